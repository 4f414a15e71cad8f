"""Bars on a terminal: what they show, and that nothing is shown elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from ptir.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_knows_how_much_there_is_when_it_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with progress("weights") as report:
        for done in (1, 2, 3):
            report(done, 3)
    assert "weights" in shown.getvalue() and "1/3" in shown.getvalue()
    assert "None" not in shown.getvalue()


def test_elsewhere_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    with progress("weights") as report:
        report(1, 3)
    assert not shown.getvalue()
