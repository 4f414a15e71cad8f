"""Pages that are generated from tables say what the tables say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = tuple(f"reference/{name}.md" for name in ("ops", "functionals", "errors", "accuracy"))


def generator() -> ModuleType:
    path = REPOSITORY / "scripts" / "generate_docs.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_not_stale(name: str) -> None:
    found = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    assert found == generator().pages()[name], "stale: run `python scripts/generate_docs.py`"


def test_every_generated_page_is_checked() -> None:
    assert set(generator().pages()) == set(PAGES)
