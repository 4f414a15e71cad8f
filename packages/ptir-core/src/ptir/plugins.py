"""Plugins: every hook there is, and the manager that loads whoever implements them.

A plugin is a module (or object) named by an entry point in the group ``ptir.plugins``; it marks
functions with ``@ptir.plugins.hookimpl``, and each returns rows for one of ptir's tables.
``import ptir`` loads none of them; each loads under its own guard, so that a broken plugin is one
line in ``ptir backends`` and ``ptir doctor``, and never a broken command line.
"""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pluggy

from ptir.backend import entries, verdicts
from ptir.backend.entries import Entry, guard
from ptir.backend.import_places import explained, hiding
from ptir.errors import PluginError, PtirError, UsageError, unknown_name

if TYPE_CHECKING:
    import click

    from ptir.backend.contract import BackendPass
    from ptir.ops.implementations import Implementation
    from ptir.ops.policies import Override
    from ptir.ops.record import Op
    from ptir.rewrite.rule import RewriteRule
    from ptir.trace.sink import Sink

GROUP: Final = "ptir.plugins"
PROJECT: Final = "ptir"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# ------------------------------------------------------------------------------------- the hooks


@dataclass(frozen=True)
class ModelModule:
    """An architecture: the ``model_type`` of its checkpoints and the module that defines it."""

    model_type: str
    module: str


@hookspec
def ptir_ops() -> Iterable[Op]:
    """More ops: the records that the plugin's import defined; see ``docs/guides/add-an-op.md``.

    Signature: ``ptir_ops() -> Iterable[ptir.ops.Op]``::

        @hookimpl
        def ptir_ops():
            return [define("square", "operand", ...)]
    """
    return ()


@hookspec
def ptir_implementations() -> Iterable[Implementation]:
    """More implementations of functionals, for ``--override`` and ``ptir.overrides`` to choose.

    Signature: ``ptir_implementations() -> Iterable[ptir.ops.implementations.Implementation]``::

        @hookimpl
        def ptir_implementations():
            return [Implementation("softmax", "online", lower_online, doc="one pass over memory")]
    """
    return ()


@hookspec
def ptir_overrides() -> Iterable[Override]:
    """Overrides that hold wherever the plugin is installed and nothing stronger says otherwise.

    Signature: ``ptir_overrides() -> Iterable[ptir.ops.policies.Override]``::

        @hookimpl
        def ptir_overrides():
            return [parse_override("softmax[N>=4096,backend=c]=force=online")]
    """
    return ()


@hookspec
def ptir_models() -> Iterable[ModelModule]:
    """More architectures; a module is imported only when a checkpoint of its type is opened.

    Signature: ``ptir_models() -> Iterable[ptir.plugins.ModelModule]``::

        @hookimpl
        def ptir_models():
            return [ModelModule("mamba", "ptir_mamba.model")]
    """
    return ()


@hookspec
def ptir_passes() -> Iterable[BackendPass]:
    """More passes, run on every program at a named point of the pipeline.

    Points are ``pre``, ``raised``, ``selected`` and ``cleanup``.

    Signature: ``ptir_passes() -> Iterable[ptir.backend.contract.BackendPass]``::

        @hookimpl
        def ptir_passes():
            return [BackendPass("fold-scales", "pre", run=fold_scales)]
    """
    return ()


@hookspec
def ptir_rules() -> Iterable[RewriteRule]:
    """More rules: rows of patterns, checked on awkward values when they are added.

    Signature: ``ptir_rules() -> Iterable[ptir.rewrite.RewriteRule]``::

        @hookimpl
        def ptir_rules():
            return [row("abs of abs", "abs(abs(x))", "abs(x)", {"x": "f32[256]"})]
    """
    return ()


@hookspec
def ptir_trace_sinks(folder: Path | None) -> Iterable[Sink]:
    """More listeners for the events of a command; ``folder`` is that of ``--dump-dir`` or None.

    Signature: ``ptir_trace_sinks(folder: Path | None) -> Iterable[ptir.trace.Sink]``::

        @hookimpl
        def ptir_trace_sinks(folder):
            return [ChromeTrace(folder / "trace.json")] if folder else []
    """
    return ()


@hookspec
def ptir_commands() -> Iterable[click.Command]:
    """More commands of ``ptir``; the command's own name is what users type.

    Signature: ``ptir_commands() -> Iterable[click.Command]``::

        @hookimpl
        def ptir_commands():
            return [click.Command("hello", callback=hello, short_help="greet the user")]
    """
    return ()


ROWS: Final = {
    "ptir_ops": "ptir.ops.record:Op",
    "ptir_implementations": "ptir.ops.implementations:Implementation",
    "ptir_overrides": "ptir.ops.policies:Override",
    "ptir_models": "ptir.plugins:ModelModule",
    "ptir_passes": "ptir.backend.contract:BackendPass",
    "ptir_rules": "ptir.rewrite.rule:RewriteRule",
    "ptir_trace_sinks": "ptir.trace.sink:Sink",
    "ptir_commands": "click:Command",
}
"""What each hook returns rows of, as ``module:class``."""


# ----------------------------------------------------------------------------------- the manager


@dataclass(frozen=True)
class PluginStatus:
    """One entry of ``ptir.plugins``, the hooks it implements, and what is wrong with it if any."""

    name: str
    distribution: str
    version: str
    status: Literal["ok", "broken", "duplicate"]
    reason: str = ""
    hooks: tuple[str, ...] = ()

    def __str__(self) -> str:
        reason = " ".join(line.strip() for line in self.reason.splitlines())
        return (
            f"plugin {self.name} of {self.distribution} {self.version} is {self.status}"
            + f": {reason}" * bool(reason)
        )


@dataclass(frozen=True)
class Row:
    """One row that a plugin returned from a hook."""

    plugin: str
    value: Any


class Plugins:
    """The loaded plugins, and what became of each entry."""

    def __init__(self, found: Sequence[Entry], ends: Mapping[Entry, str] | None = None) -> None:
        """Load what is ``found``, without those that met one of ``ends`` in a trial."""
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(sys.modules[__name__])
        twice = entries.claimed_twice(found)
        self._told = set[PluginStatus]()
        ends = ends or {}
        self._statuses = [self._register(e, twice.get(e.name, ""), ends.get(e, "")) for e in found]

    def _register(self, entry: Entry, duplicate: str, end: str) -> PluginStatus:
        status = PluginStatus(entry.name, entry.distribution, entry.version, "ok")
        if duplicate:
            return replace(status, status="duplicate", reason=duplicate)
        if end:
            return replace(status, status="broken", reason=_left_out(entry, end))
        try:
            return replace(status, hooks=self._load(entry))
        except PtirError as error:
            return replace(status, status="broken", reason=explained(entry, str(error)))

    def _load(self, entry: Entry) -> tuple[str, ...]:
        plugin = entries.load(entry)
        try:
            with guard(f"registration of {entry.value}"):
                self.manager.register(plugin, name=entry.name)
                self.manager.check_pending()
                return self._hooks_of(entry, plugin)
        except PtirError as error:
            self._forget(entry.name)
            rejected = error.__cause__
            if isinstance(rejected, pluggy.PluginValidationError):
                raise PluginError(_signature_mistake(rejected)) from error
            raise

    def _forget(self, name: str) -> None:
        if self.manager.has_plugin(name):
            self.manager.unregister(name=name)

    def _hooks_of(self, entry: Entry, plugin: object) -> tuple[str, ...]:
        hooks = tuple(caller.name for caller in self.manager.get_hookcallers(plugin) or ())
        if not hooks:
            known = ", ".join(ROWS)
            raise PluginError(
                f"{entry.value} implements no hook; mark one of {known} with hookimpl"
            )
        return hooks

    def rows(self, hook: str, **arguments: Any) -> list[Row]:
        """What every plugin returns from ``hook``.

        A plugin that fails or returns something else becomes ``broken`` and gives no rows.
        """
        if hook not in ROWS:
            raise UsageError(unknown_name("hook", hook, ROWS))
        results: list[Row] = []
        for status in tuple(self._statuses):
            if status.status == "ok" and hook in status.hooks:
                try:
                    results += self._rows_of(status.name, hook, arguments)
                except PtirError as error:
                    self.blame(status.name, str(error))
        return results

    def _rows_of(self, plugin: str, hook: str, arguments: dict[str, Any]) -> list[Row]:
        others = [p for name, p in self.manager.list_name_plugin() if name != plugin]
        caller = self.manager.subset_hook_caller(hook, others)
        with guard(f"{hook}()"):
            values = [value for returned in caller(**arguments) for value in returned]
        module, _, name = ROWS[hook].partition(":")
        expected = getattr(importlib.import_module(module), name)
        for value in values:
            if not isinstance(value, expected):
                raise PluginError(f"{hook}() returned {value!r}, which is not a {module}.{name}")
        return [Row(plugin, value) for value in values]

    def blame(self, plugin: str, reason: str) -> None:
        """Record that a loaded plugin is broken after all."""
        self._statuses = [
            replace(s, status="broken", reason=reason) if s.name == plugin else s
            for s in self._statuses
        ]

    def untold(self) -> tuple[PluginStatus, ...]:
        """The failures that this has not given before: whoever tells of them tells once."""
        found = tuple(s for s in self.failures() if s not in self._told)
        self._told.update(found)
        return found

    def statuses(self) -> tuple[PluginStatus, ...]:
        """Every entry and what became of it, ordered by name."""
        return tuple(self._statuses)

    def failures(self) -> tuple[PluginStatus, ...]:
        """The entries that are not ok."""
        return tuple(s for s in self._statuses if s.status != "ok")


def _left_out(entry: Entry, end: str) -> str:
    """Why a plugin is not loaded that ended its process in a trial, and what to do."""
    found = hiding(entry)
    mend = f"{found}; {found.fix}" if found else f"upgrade or uninstall {entry.distribution}"
    return f"{end}; it is left out until `ptir doctor` finds it mended: {mend}"


def _signature_mistake(error: pluggy.PluginValidationError) -> str:
    """Pluggy's message, which shows the offending signature, on one line with the known hooks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{'; '.join(lines)}; hooks and signatures are in ptir.plugins: {', '.join(ROWS)}"


def listed() -> tuple[Entry, ...]:
    """Every installed plugin's entry, ordered by name; imports none of them."""
    return entries.listed(GROUP)


def load_alone(entry: Entry) -> Plugins:
    """Load one plugin; what a trial does."""
    return Plugins([entry])


_LOADER: Final = f"{__name__}:{load_alone.__name__}"
"""What trials run."""
ENDS: Final[dict[Entry, str]] = {}
"""Why those that ``try_strangers`` has tried ended their process, nothing for the others."""


def try_strangers() -> None:
    """Load the plugins of strangers in a process of their own, ahead of ``load``.

    ``load`` does so too, but where the same files were tried before it takes their verdict. This
    takes some tenths of a second, which only commands that look at what is installed spend.
    """
    ENDS.update(verdicts.tried(listed(), _LOADER))


_LOADING: Final = threading.RLock()
"""Held while plugins are loaded or added: a second thread would add their rows again."""


def load() -> Plugins:
    """Load every installed plugin, once; failures are records, never exceptions.

    One that ended its process in a trial is left out. Those of strangers have theirs the first time
    they are loaded after something was installed.
    """
    with _LOADING:
        return _loaded()


@cache
def _loaded() -> Plugins:
    found = listed()
    untried = tuple(entry for entry in found if entry not in ENDS)
    return Plugins(found, {**ENDS, **verdicts.remembered(untried, _LOADER)})


def ensure_installed() -> None:
    """``install``, unless somebody did; each plugin that is broken is a ``RuntimeWarning``."""
    with _LOADING:
        known = _installed.cache_info().currsize
        failures = () if known else install().untold()
    for status in failures:
        warnings.warn(f"{status}; `ptir doctor` says more", RuntimeWarning, stacklevel=3)


def install() -> Plugins:
    """Load every plugin and add its rows to the tables of ptir, once.

    A row that a table refuses is blamed on its plugin; the others stay. ``ptir`` and
    ``ptir.load_model`` have done so; a program that uses neither calls it first.
    """
    with _LOADING:
        return _installed()


@cache
def _installed() -> Plugins:
    from ptir.models.table import add_module
    from ptir.ops.implementations import register
    from ptir.ops.overriding import plug_in_override
    from ptir.ops.record import add
    from ptir.passes.pipeline import plug_in
    from ptir.rewrite.plugged import plug_in_rule

    plugins = load()
    if plugins.manager.get_plugins():
        import ptir.functional  # noqa: F401  fills the table that plugins add to
    adders: dict[str, Callable[[Row], object]] = {
        "ptir_ops": lambda row: add(row.value),
        "ptir_implementations": lambda row: register(row.value),
        "ptir_overrides": lambda row: plug_in_override(row.plugin, row.value),
        "ptir_models": lambda row: add_module(row.value.model_type, row.value.module),
        "ptir_passes": lambda row: plug_in(row.plugin, row.value),
        "ptir_rules": lambda row: plug_in_rule(row.plugin, row.value),
    }
    for hook, enter in adders.items():
        for row in plugins.rows(hook):
            try:
                enter(row)
            except PtirError as error:
                plugins.blame(row.plugin, str(error))
    return plugins
