"""What pages point at is there, charts show their numbers, the site reads the same pages."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from together import together

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
PAGES = (
    REPOSITORY / "README.md",
    REPOSITORY / "CHANGELOG.md",
    *sorted(REPOSITORY.glob("packages/*/README.md")),
    *sorted(REPOSITORY.glob("examples/*/README.md")),
    *sorted(DOCS.glob("**/*.md")),
)
ROOMS = ("", "start", "guides", "reference", "reference/api", "internals", "results")


def module(path: str) -> ModuleType:
    """A script or an extension of the site, which is in no package."""
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / path)
    assert spec is not None and spec.loader is not None
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


# --- links ---


@cache
def blocks(text: str) -> list[Token]:
    """A page, parsed."""
    return MarkdownIt().parse(text)


def targets(text: str) -> Iterator[str]:
    """Where the links and pictures of a page lead, but for the web."""
    for block in blocks(text):
        for token in (block, *(block.children or ())):
            found = [token.attrs.get("href"), token.attrs.get("src")]
            if token.type.startswith("html"):
                found += re.findall(r'(?:src|srcset|href)="([^"]+)"', token.content)
            yield from (str(one) for one in found if one and "://" not in str(one))


@cache
def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as repository browsers make them."""
    titles = [b.content for a, b in pairwise(blocks(text)) if a.type == "heading_open"]
    counts, found = Counter[str](), set[str]()
    for title in titles:
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return found


def dangling(page: Path, text: str) -> list[str]:
    """Links of a page that lead nowhere."""
    wrong = []
    for target in targets(text):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            wrong.append(target)
        elif anchor and file.suffix == ".md":
            there = text if file == page else file.read_text(encoding="utf-8")
            wrong += [target] if anchor not in anchors(there) else []
    return wrong


@together()
@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(REPOSITORY)) for p in PAGES])
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    assert dangling(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "link", ["[a](none.md)", "[a](ops.md#none)", "[a](#none)", "![a](none.svg)", '<img src="none">']
)
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    page = DOCS / "reference" / "semantics.md"
    assert len(dangling(page, f"# Title\n\n| x |\n|---|\n| {link} |\n")) == 1
    right = "# A title\n\n[a](ops.md#add) [b](#a-title) [c](https://example.org/none)\n"
    assert dangling(page, right) == []


def test_pages_that_code_names_exist() -> None:
    named = re.compile(r"\bdocs/[\w/.-]+\.md\b")
    folders = ("packages", "examples", "tests", "scripts", "benchmarks", ".ci")
    files = [f for name in folders for f in (REPOSITORY / name).rglob("*") if f.suffix in KINDS]
    found = {m for file in files for m in named.findall(file.read_text(encoding="utf-8"))}
    assert len(found) > 5
    assert [one for one in sorted(found) if not (REPOSITORY / one).exists()] == []


KINDS = (".py", ".md", ".sh", ".toml")


# --- the site ---


@pytest.mark.parametrize("room", ROOMS)
def test_every_page_of_a_room_is_listed_in_its_index(room: str) -> None:
    folder = DOCS / room
    text = (folder / "index.md").read_text(encoding="utf-8")
    listed = {t.partition("#")[0] for t in targets(text)}
    pages = {f.name for f in folder.iterdir() if f.suffix in (".md", ".rst")} - {"index.md"}
    inner = {f"{f.parent.name}/index.md" for f in folder.glob("*/index.md")}
    assert pages | inner <= listed


def test_the_site_lists_what_begins_a_line_of_an_index_in_its_order() -> None:
    site = module("docs/site/pages.py")
    text = "# A\n\n[z](z.md)\n\n- [b](b.md) [z](z.md)\n\n1. [c](c/index.md#x)\n- [b](b.md)\n"
    text += "\n```text\n- [d](d.md)\n```\n"
    assert site.contents(text).split() == ["```{toctree}", ":hidden:", "b.md", "c/index.md", "```"]
    assert site.sited(text, DOCS / "x.md", DOCS) == text, "only an index has contents"
    up = text + "- [up](../z.md)\n"
    assert site.contents(up) == site.contents(text)


def test_the_site_shows_a_picture_in_both_schemes() -> None:
    site = module("docs/site/pages.py")
    for page in (DOCS / "index.md", DOCS / "results" / "index.md"):
        text = page.read_text(encoding="utf-8")
        assert text.count("<picture>") == 1
        read = site.sited(text, page, DOCS)
        assert "<picture>" not in read
        for scheme in ("light", "dark"):
            shown = re.findall(rf"```{{image}} (\S+)\n:alt: .+\n:class: only-{scheme}\n```", read)
            assert [Path(one).name for one in shown] == [f"speed-{scheme}.svg"]


def test_what_lies_outside_of_the_pages_is_downloaded() -> None:
    site = module("docs/site/pages.py")
    page = DOCS / "results" / "matrix.md"
    text = "[v](../../VERSION) [e](../../examples) [p](index.md)\n"
    outside = "{download}`v <../../VERSION>` e [p](index.md)\n"
    assert site.sited(text, page, DOCS) == outside
    fenced = "```text\n[v](../../VERSION)\n```\n"
    assert site.sited(fenced, page, DOCS) == fenced


# --- the charts ---


@pytest.fixture(scope="module")
def charts() -> Any:
    return module("scripts/draw_charts.py")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chart_shows_what_its_json_says(charts: Any, scheme: str) -> None:
    """`make docs`, which has matplotlib, compares every byte."""
    assert set(charts.SCHEMES) == {"light", "dark"}
    tree = ElementTree.parse(charts.file_of(scheme))
    (described,) = tree.iter("{http://purl.org/dc/elements/1.1/}description")
    stale = "stale: run `python scripts/draw_charts.py`"
    assert described.text == charts.chart().described(), stale
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    for title, series in charts.chart().panels.items():
        medians = [value[0] for one in series for value in one.values.values()]
        assert title in texts and len(medians) >= len(charts.FORMATS)
        assert {f"{median:.0f}" for median in medians} <= set(texts), stale


def run(backend: str, peer: bool, taken: float = 0.0) -> dict[str, Any]:
    """What speed.py writes, with a row for each figure of two formats."""
    figures = {"ptir: decode": 20.0, "ptir: prefill of 512": 200.0}
    if peer:
        figures |= {"llama.cpp: decode": 10.0, "llama.cpp: prefill of 512": 400.0}
        figures |= {"decode, x llama.cpp": 2.0, "prefill, x llama.cpp": 0.5}
    rows = [
        {"subject": subject, "figure": figure, "median": m, "min": m - 1, "max": m + 1}
        for subject in ("f32", "f32, 1 thread", "int4")
        for figure, m in figures.items()
    ]
    rows.append({"subject": "f32", "figure": "processors taken by others", "median": taken})
    origin = {"processor": "P", "threads": [1, 2], "date": "2026-01-01", "rounds": 3}
    versions = {"llama-cpp-python": "0.1"} if peer else {}
    return {"backend": backend, "versions": versions, **origin, "rows": rows}


def test_a_chart_has_the_peer_once_and_ratios_of_each_run(charts: Any, tmp_path: Path) -> None:
    for name, one in {"c": run("c", True), "opencl": run("opencl:portable", True, 0.5)}.items():
        (tmp_path / f"speed-{name}.json").write_text(json.dumps(one), encoding="utf-8")
    found = charts.chart(tmp_path)
    decode, prompt = found.panels.values()
    assert [one.name for one in decode] == ["ptir, C", "ptir, PoCL", "llama.cpp"]
    assert decode[0].values == {"f32": [20.0, 19.0, 21.0], "int4": [20.0, 19.0, 21.0]}
    assert (decode[1].ratios["int4"], prompt[1].ratios["f32"]) == (2.0, 0.5)
    assert found.note.count("others took up to 50%") == 1 and "llama.cpp 0.1" in found.note


def test_a_chart_without_the_peer_has_no_ratios(charts: Any, tmp_path: Path) -> None:
    (tmp_path / "speed-c.json").write_text(json.dumps(run("c", False)), encoding="utf-8")
    found = charts.chart(tmp_path)
    assert [[one.name for one in series] for series in found.panels.values()] == [["ptir, C"]] * 2
    assert not any(one.ratios for series in found.panels.values() for one in series)
    assert "llama" not in found.note and "others" not in found.note
    other = copy.deepcopy(found.panels)
    next(iter(other.values()))[0].values["f32"][0] += 1
    assert charts.Chart(other, found.note).described() != found.described()
