"""Reports side by side, badges, what a backend claims, and holes of the corpus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from impostors import Little, Nothing
from report_files import records, rewritten

from corpus_slices import in_turn
from ptir.errors import UsageError
from ptir.ops import OPS
from ptir.ops.classes import FLOAT
from ptir.ops.record import Array, Attribute, bad, define, refusals, sample
from ptir_testsuite.cli import main, tables
from ptir_testsuite.corpus import coverage
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.reports.matrix import about, columns, matrix, summary

pytestmark = pytest.mark.turns(2)

WORDS = "(rsqrt or select or maximum) and (sample or wired) and not refusal"


class Wrong(Mutant):
    name = "wrong"
    claims = frozenset({"core", "f16"})

    def __init__(self):
        super().__init__(MUTANTS["maximum drops a NaN on the left"])


@pytest.fixture
def written(few_ops, installed, tmp_path):
    def write(backend, words=WORDS):
        installed(backend)
        path = tmp_path / f"{backend.name}.jsonl"
        main(
            ["run", "--backend", "any", "--jobs", "0", "--programs", "0", "-k", words]
            + ["--json", str(path)]
        )
        return path

    return write


def test_a_failure_in_one_dtype_of_one_backend_is_one_mark(written):
    found = columns([written(Correct()), written(Wrong()), written(Little())])
    head, *rows = matrix(found)
    cells = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    assert cells["rsqrt"]["f32"] == "✓✓–"
    assert cells["maximum"]["f32"] == "✓✗–"
    assert cells["maximum"]["i32"] == "✓✓–"
    assert cells["select"]["f32"] == "✓✓–" and cells["rsqrt"]["i32"] == ""
    worst = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in matrix(found, True)[1:]}
    first, second, third = worst["rsqrt"]["f32"].split(" / ")
    assert first == second and 0 < float(first) <= 2 and third == "–"
    assert worst["maximum"]["i32"] == "= / = / –"
    verdicts = {row[0].split()[0]: row[-1] for row in summary(found)[1:]}
    assert verdicts["wrong"] == "not conformant"
    assert verdicts["correct"] == "incomplete: a part only"


@pytest.mark.parametrize(
    ("op", "dtypes", "wanted"),
    [
        ("select", ("bool", "f32"), "f32"),
        ("select", ("bool",), "bool"),
        ("add", ("i8",), "i8"),
        ("take", ("f16", "i32"), "f16"),
        ("program", (), "—"),
    ],
)
def test_what_a_call_is_counted_under(op, dtypes, wanted):
    assert about(op, dtypes) == wanted


def test_markdown_and_terminal_say_the_same(written, capsys, tmp_path):
    paths = [str(written(Correct())), str(written(Wrong()))]
    capsys.readouterr()
    assert main(["matrix", *paths]) == 0
    terminal = capsys.readouterr().out
    assert main(["matrix", *paths, "-o", str(tmp_path / "matrix.md")]) == 0
    page = (tmp_path / "matrix.md").read_text(encoding="utf-8")
    for line in page.splitlines():
        if line.startswith("| maximum"):
            cells = [c.strip() for c in line.strip("|").split("|")]
            (shown,) = (t for t in terminal.splitlines() if t.startswith("maximum"))
            assert shown.split() == [c for c in cells if c]
            break
    else:
        pytest.fail("no row of maximum")
    assert "in each cell: correct, wrong; " in page and "in each cell: correct, wrong; " in terminal


def test_a_page_has_the_same_cells_with_tones(written, capsys, tmp_path):
    paths = [str(written(Correct())), str(written(Wrong()))]
    assert main(["matrix", *paths, "--html", "-o", str(tmp_path / "matrix.html")]) == 0
    text = (tmp_path / "matrix.html").read_text(encoding="utf-8")
    held = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    found = json.loads(held[1])
    head, *rows = matrix(columns([Path(path) for path in paths]))
    backends, ops = (section["data"] for section in found["sections"])
    assert ops["columns"] == head
    plain = [[c["text"] if isinstance(c, dict) else c for c in row] for row in ops["rows"]]
    assert plain == rows
    tones = {c["text"]: c["tone"] for row in ops["rows"] for c in row if isinstance(c, dict)}
    assert tones["✓✗"] == "bad" and tones["✓✓"] == "good"
    assert all(isinstance(row[-2], int) for row in backends["rows"])
    capsys.readouterr()
    assert main(["matrix", *paths, "--html", "--markdown"]) == 2
    assert "give one" in capsys.readouterr().err


def test_edited_foreign_and_double_reports_are_no_column(written, tmp_path):
    path, other = written(Correct()), tmp_path / "other.jsonl"
    lines = records(path)
    rewritten(other, [lines[0], *lines[2:]])
    with pytest.raises(UsageError, match="is rejected: line 2"):
        columns([other])
    rewritten(other, [lines[0] | {"corpus": "0" * 32}, *lines[1:]], resealed=True)
    with pytest.raises(UsageError, match="is of another corpus than"):
        columns([path, other])
    with pytest.raises(UsageError, match=r"two reports are of correct \(host\)"):
        columns([path, path])


@pytest.mark.parametrize(
    ("backend", "message", "color"),
    [
        (Correct(), "incomplete: a part only, 23/", "lightgrey"),
        (Wrong(), "not conformant, ", "red"),
    ],
    ids=["correct", "wrong"],
)
def test_a_badge_tells_verdict_and_denominator(backend, message, color, written, capsys):
    path = str(written(backend))
    lines = records(written(backend))
    capsys.readouterr()
    assert main(["badge", path, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    message = message.replace("23/", f"{lines[-1]['attempted']}/")
    assert found["message"].startswith(message)
    assert found["message"].endswith(f"/{lines[-1]['total']}") and found["color"] == color
    assert main(["badge", path]) == 0
    root = ElementTree.fromstring(capsys.readouterr().out)
    texts = [node.text for node in root.iter() if node.tag.endswith("}text")]
    assert texts == [found["label"], found["message"]]


# --- support ---


def test_support_tells_what_is_claimed_and_fails_what_is_claimed_and_refused(installed, capsys):
    installed(Nothing())
    assert main(["support", "--backend", "any"]) == 1
    out = capsys.readouterr().out
    assert "claimed and refused: add(i32[" in out and "nothing is taken" in out
    installed(Little())
    assert main(["support", "--backend", "any", "--claims", "f8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    cells = {(cell["op"], cell["dtype"]): cell for cell in found["cells"]}
    assert found["profiles"] == ["f8"] and found["composites"] == []
    assert cells["add", "f32"]["taken"] > 0 == cells["add", "f32"]["refused"]
    assert cells["mul", "f32"]["taken"] == 0 < cells["mul", "f32"]["refused"]
    assert cells["mul", "f32"]["reason"] == "only add is taken"
    assert cells["arg_min", "f32"]["around"] > 0 == cells["arg_min", "f32"]["refused"]


# --- coverage ---


def test_the_corpus_has_no_hole(capsys, monkeypatch):
    ops = in_turn(list(OPS.values()), 4)
    monkeypatch.setattr(tables, "needs", lambda: coverage.needs(ops))
    assert main(["coverage"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    met, _, rest = last.partition("/")
    assert rest.startswith(f"{met} needs of ") and int(met) > (
        1500 if len(ops) == len(OPS) else 100
    )


@pytest.fixture
def made_up():
    """An op with a kind that its samples do not use, and a constraint that nothing breaks."""

    def rule(call):
        call.require(call.types[0].rank > 0, "rank", "a scalar")
        call.require(call["kind"] != "b" or call.types[0].dtype.bits > 16, "narrow", "too narrow")
        return call.types[0]

    record = define(
        "made_up",
        "operand",
        dtypes=FLOAT,
        rule=rule,
        reference=lambda xp, x, kind: x,
        attributes=(Attribute("kind", "what it does", choices=("a", "b")),),
        samples=(sample(Array("f32", [1.0]), kind="a", gives=Array("f32", [1.0])),),
        bad_calls=(
            *refusals("operand", FLOAT, "f32[1]", kind="a"),
            bad("rank", "f32[]", kind="a", message="a scalar"),
        ),
        doc="The operand.",
    )
    yield record
    del OPS["made_up"]


def test_holes_of_an_op_without_an_oracle_are_found(made_up, monkeypatch, capsys):
    holes = [need.text for need in coverage.needs([made_up]) if not need.met]
    assert holes == [
        "f16 as operand",
        "bf16 as operand",
        "f64 as operand",
        "kind = b with float",
        "a refusal labelled 'attribute'",
        "a refusal labelled 'narrow'",
    ]
    monkeypatch.setattr(tables, "needs", lambda: coverage.needs([made_up]))
    assert main(["coverage"]) == 1
    assert "made_up: no case for kind = b with float" in capsys.readouterr().out


def test_what_the_rule_refuses_everywhere_is_owed_by_nobody():
    needs = {need.text for need in coverage.needs([OPS["reduce"]])}
    assert "kind = any with bool" in needs and "kind = any with float" not in needs
    assert "kind = sum with float" in needs and "kind = sum with bool" not in needs
