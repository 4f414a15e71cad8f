"""Pages that are generated from tables say what the tables say."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
NAMES = ("ops", "functionals", "errors", "accuracy", "weight-formats")
REFERENCE = tuple(f"reference/{name}.md" for name in NAMES)
PAGES = (*REFERENCE, "internals/layout.md", "models.md")


def generator() -> ModuleType:
    """scripts/generate_docs.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "scripts"))
        return importlib.import_module("generate_docs")


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_not_stale(name: str) -> None:
    found = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    assert found == generator().pages()[name], "stale: run `python scripts/generate_docs.py`"


def test_every_generated_page_is_checked() -> None:
    assert set(generator().pages()) == set(PAGES)


def test_a_composite_has_every_attribute_and_its_name_whatever_a_caller_left_out() -> None:
    made = generator()
    assert made.PLAIN_CALLS.keys() == made.FUNCTIONALS.keys(), "one plain call for each functional"
    for one in made.FUNCTIONALS.values():
        parameters, found = made.parameters_of(one), made.plain_composite(one)
        keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        assert set(found.attributes) == {"name", *keywords}, one.name
        assert found.attributes["name"] == found.name == one.name
        required = [p for p in parameters if p.kind is not p.KEYWORD_ONLY and p.default is p.empty]
        assert len(found.operands) == len(required), one.name


def test_only_the_tables_of_rooms_are_written_anew_and_their_marks_are_needed() -> None:
    rooms = generator().rooms
    begins = [rooms.BEGIN.format(package=package) for package in rooms.ROOMS]
    page = "".join(f"{begin}\nold\n{rooms.END}\nmore\n" for begin in begins)
    written = rooms.with_tables(page)
    assert rooms.with_tables(written) == written
    assert (written.count("more\n"), written.count("old\n")) == (len(begins), 0)
    for package in rooms.ROOMS:
        assert rooms.table(package) in written
    for mark in (begins[0], rooms.END):
        with pytest.raises(ValueError, match=mark):
            rooms.with_tables(page.replace(mark, ""))
