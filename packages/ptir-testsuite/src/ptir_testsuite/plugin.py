"""The corpus as tests: ``pytest -p ptir_testsuite.plugin --ptir-backend NAME``.

Every item of the corpus is a test of its own, named by its id; what is refused outside the
claimed profiles is skipped with the reason. Items run in pytest's process, which a crash or a hang
takes along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ptir.errors import PtirError
from ptir_testsuite.corpus.profiles import parse_claims
from ptir_testsuite.corpus.selection import nothing_found
from ptir_testsuite.reports.failures import told
from ptir_testsuite.reports.runner import Programs, Wish, prepared
from ptir_testsuite.reports.waivers import Waiver, applied, read_waivers
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.items import Item, run_item
from ptir_testsuite.running.outcomes import HARMLESS, Outcome, Row
from ptir_testsuite.running.vocabulary import names


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; without a backend the plugin does nothing."""
    group = parser.getgroup("ptir", "conformance of a backend of ptir")
    group.addoption("--ptir-backend", metavar="NAME", help="Run the corpus on this backend.")
    group.addoption("--ptir-claims", metavar="PROFILES", help="Only these profiles: core,f16.")
    group.addoption("--ptir-words", default="", metavar="EXPR", help="Only cases that match.")
    group.addoption("--ptir-programs", type=int, default=200, help="Random programs.")
    group.addoption("--ptir-seed", type=int, default=0, help="The seed of the random programs.")
    group.addoption("--ptir-waivers", metavar="FILE", help="Known failures, in TOML or JSON.")
    group.addoption("--ptir-import", action="append", default=[], help="A module that defines ops.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the corpus to the tests."""
    option = session.config.option
    if not option.ptir_backend:
        _require_nothing(session.config)
        return
    try:
        wish = _wish(option)
        setting, _, chosen = prepared(wish)
    except PtirError as error:
        raise pytest.UsageError(f"[{error.code}] {error}") from error
    if not chosen:
        raise pytest.UsageError(nothing_found(wish.words, wish.claims, names()))
    waivers = {waiver.id: waiver for waiver in wish.waivers}
    for item in chosen:
        row_of = partial(_row, item, setting, waivers)
        given = {"row_of": row_of, "again": setting.again}
        items.append(CorpusItem.from_parent(session, name=item.id, item=item, **given))


def _require_nothing(config: pytest.Config) -> None:
    """Refuse what says which part of the corpus to run where nothing says on what."""
    for name in ("--ptir-claims", "--ptir-words", "--ptir-waivers"):
        if config.getoption(name):
            raise pytest.UsageError(f"{name} needs --ptir-backend NAME: without it nothing is run")


def _wish(option: Any) -> Wish:
    return Wish(
        option.ptir_backend,
        None if option.ptir_claims is None else parse_claims(option.ptir_claims),
        option.ptir_words,
        imports=tuple(option.ptir_import),
        programs=Programs(option.ptir_programs, option.ptir_seed),
        waivers=read_waivers(Path(option.ptir_waivers)) if option.ptir_waivers else (),
    )


def _row(item: Item, setting: Setting, waivers: Mapping[str, Waiver]) -> Row:
    return applied(run_item(item, setting), waivers)


class RejectedError(AssertionError):
    """A row that speaks against the backend; its message says everything."""


class CorpusItem(pytest.Item):
    """One item of the corpus; ``again`` gives the command that shows its row in full."""

    def __init__(
        self, item: Item, row_of: Callable[[], Row], again: Callable[[Row], str], **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.item, self.row_of, self.again = item, row_of, again

    def runtest(self) -> None:
        """Run it once, as ``ptir-conformance run`` does."""
        row = self.row_of()
        for name, value in (("outcome", row.outcome.value), ("worst_ulp", row.worst_ulp)):
            self.user_properties.append((name, value))
        if row.failed:
            raise RejectedError("\n".join((told(row), *row.trace, f"again: {self.again(row)}")))
        if row.outcome in HARMLESS - {Outcome.PASS}:
            pytest.skip(f"{row.outcome.value}: {row.message}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The row's message alone: where it was raised says nothing."""
        if isinstance(excinfo.value, RejectedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The id stands for the place."""
        return Path("ptir"), None, self.item.id
