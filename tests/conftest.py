"""What all tests share: where the repository is, and that parity tests wait to be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/parity unread unless `-m parity` asks for it: its modules import torch."""
    in_parity = REPOSITORY / "tests" / "parity" in (collection_path, *collection_path.parents)
    return True if in_parity and config.option.markexpr != "parity" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whatever lies in tests/parity, so that no file there can forget to."""
    for item in items:
        if REPOSITORY / "tests" / "parity" in item.path.parents:
            item.add_marker("parity")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return REPOSITORY
