"""Pages hold all that they show, and what they show of a program is what ran."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import ptir
from ptir import events
from ptir import functional as F
from ptir.backend.explanation import Access, Part
from ptir.capture.plan import Plan, plan_for
from ptir.codegen.planning.fuse import SHARED
from ptir.errors import UsageError
from ptir.report import bars, page, program_sections, table, write_page
from ptir.report.memory import live_bytes
from ptir.report.page import SCRIPTS, STYLES
from ptir.trace.profile import ProgramProfile, Roofs

ASSETS = Path(page.__code__.co_filename).parent / "assets"


class Reader(HTMLParser):
    """Elements with their attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def profile_of(plan: Plan, runs: int = 3) -> ProgramProfile:
    """A profile whose part n took n + 1 microseconds in the median."""
    made = ProgramProfile(plan, plan.executable)
    explanation = plan.executable.explain()
    assert explanation is not None
    for run in range(runs):
        parts = tuple((n + 1 + run - runs // 2) * 1e-6 for n in range(len(explanation.parts)))
        made.take(events.ProgramRun(plan.optimized, "b", "d", 1.0, parts, run, plan))
    return made


@pytest.fixture(scope="module", params=["ref", "c"])
def plan(request: pytest.FixtureRequest) -> Plan:
    def step(x: Any, w: Any) -> Any:
        y = F.gelu(x @ w)
        return F.softmax(y) * 2.0, y.sum(axis=0)

    program = ptir.capture(step, ptir.spec("f32", 16, 16), ptir.spec("f32", 16, 16))
    return plan_for(program, ptir.backend(request.param), name="step")


def sections(plan: Plan) -> dict[str, Any]:
    return {s.title: s.data for s in program_sections(profile_of(plan), Roofs(1e9, 1e10))}


def test_numbers_in_a_page_refer_to_what_is_there(plan: Plan) -> None:
    graph = sections(plan)["Program"]
    block = plan.optimized.main
    texts, values = graph["texts"], len(block.types)
    assert len(graph["instructions"]) == len(block.instructions)
    for one, real in zip(graph["instructions"], block.instructions, strict=True):
        *numbers, operands, results = one
        assert (texts[numbers[0]], texts[numbers[1]].split(", ")) == (
            real.name,
            [*map(str, real.types)],
        )
        assert all(0 <= n < len(texts) for n in numbers)
        assert operands == [*real.operands]
        assert all(len(graph["ports"]) <= n < values for n in results)
    for part in graph["parts"]:
        assert all(0 <= n < len(block.instructions) for n in part["members"])
        assert all(0 <= value < values for value, _ in (*part["reads"], *part["writes"]))


def test_parts_have_their_median_times_bytes_and_flops(plan: Plan) -> None:
    graph = sections(plan)["Program"]
    assert [part["us"] for part in graph["parts"]] == [n + 1 for n in range(len(graph["parts"]))]
    assert sum(part["flops"] for part in graph["parts"]) >= 2 * 16**3
    assert all(part["bytes"] >= part["weights"] for part in graph["parts"])


def test_what_is_not_fused_has_a_reason(plan: Plan) -> None:
    rows = sections(plan)["Not fused"]["rows"]
    assert rows
    assert all(why for *_, why in rows)
    backend = plan.target.backend.name
    whys = {why for *_, why in rows}
    if backend == "ref":
        assert whys == {"this backend runs one op at a time"}
    else:
        assert "it is an output of the program" in whys
        assert any("computes a whole matmul before" in why for why in whys)
        assert any(
            len(names.split(", ")) > 1 for _, _, names, *_ in sections(plan)["Fused"]["rows"]
        )


def test_every_value_in_memory_has_a_reason_of_the_fusion_pass() -> None:
    program = ptir.capture(
        lambda x: F.exp(F.tanh(x) * 2.0).sum(axis=0) + F.tanh(x), ptir.spec("f32", 64, 64)
    )
    explanation = plan_for(program, ptir.backend("c")).executable.explain()
    assert explanation is not None
    written = {access.value for part in explanation.parts for access in part.writes}
    assert written <= explanation.stored.keys()


def test_what_several_kernels_read_says_so() -> None:
    def step(x: Any) -> Any:
        y = F.tanh(F.exp(x)) * F.erf(x)
        return y.sum(axis=0), y.max(axis=1)

    explanation = plan_for(
        ptir.capture(step, ptir.spec("f32", 64, 64)), ptir.backend("c")
    ).executable.explain()
    assert explanation is not None
    assert SHARED in explanation.stored.values()


# --- memory ---


def test_memory_is_what_is_still_to_be_read() -> None:
    block = ptir.capture(lambda x: (F.exp(x).T, F.neg(x)), ptir.spec("f32", 4, 4)).main
    # values: 0 input; 1 exp; 2 its transpose, a view; 3 neg
    names = [one.name for one in block.instructions]
    assert names == ["exp", "transpose", "neg"]
    scratch = Part("kernel", "a", (0,), (Access(0, 64),), (Access(1, 64),))
    other = Part("kernel", "b", (2,), (Access(0, 64),), (Access(3, 64),))
    view = Part("op", "transpose", (1,), (), ())
    assert live_bytes(block, (scratch, view, other)) == [64, 64, 128]


def test_what_nobody_reads_any_more_counts_no_longer() -> None:
    block = ptir.capture(lambda x: F.exp(F.neg(F.tanh(x))), ptir.spec("f32", 4)).main
    parts = [Part("kernel", "m", (n,), (Access(n, 16),), (Access(n + 1, 16),)) for n in range(3)]
    assert live_bytes(block, parts) == [16, 32, 32]


# --- the page ---


def test_a_page_needs_nothing_from_elsewhere(plan: Plan) -> None:
    made = page("step", [("a", "b")], program_sections(profile_of(plan), Roofs()))
    reader = Reader(made)
    assert [
        name for name, _ in reader.elements if name in ("link", "img", "iframe", "object")
    ] == []
    assert not [a for _, a in reader.elements if "src" in a]
    policy = next(a["content"] for n, a in reader.elements if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", reader.scripts[1])
    assert [s["title"] for s in reader.data["sections"]] == [
        *("Program", "Roofline", "Timeline", "Memory", "Fused", "Not fused")
    ]


def test_data_of_any_text_end_no_script() -> None:
    nasty = "</script><script>alert(1)</script> @@STYLE@@ <!-- & \u2028 'x' \"y\""
    made = page(nasty, [(nasty, nasty)], [table(nasty, [nasty], [[nasty]])])
    reader = Reader(made)
    assert len(reader.scripts) == 2
    assert reader.data["title"] == nasty
    assert reader.data["sections"][0]["data"]["rows"] == [[nasty]]
    assert "<title>&lt;/script&gt;" in made


def test_every_kind_of_section_has_what_draws_it(plan: Plan) -> None:
    drawn = set(re.findall(r"kinds\.(\w+) = ", "".join(map(read, SCRIPTS))))
    used = {s.kind for s in program_sections(profile_of(plan), Roofs())}
    assert used | {bars("", "", []).kind} == drawn


def test_assets_are_all_in_a_page_and_small() -> None:
    assert {path.name for path in ASSETS.iterdir()} == {*STYLES, *SCRIPTS, "page.html"}
    for path in ASSETS.iterdir():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 150, path


def read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.*No such file.*choose another"):
        write_page(tmp_path / "nowhere" / "x.html", "")


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        page("x", [], [table("t", ["n"], [[float("nan")]])])
