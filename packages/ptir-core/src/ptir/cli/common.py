"""Options that every command has, and the session that puts them in force.

A command that runs something is written like this::

    @click.command()
    @common_options
    def command(common: CommonOptions) -> None:
        with session(common):
            target = open_target(common)
            ...
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ptir.switches import FAST_MATH, SCHEDULE, SCHEDULES, THREADS

if TYPE_CHECKING:
    from ptir.backend.contract import Target
    from ptir.ops.policies import Overrides
    from ptir.trace import ProfileSink, Sink, StatsSink


@dataclass(frozen=True)
class CommonOptions:
    """The values of the common options."""

    backend: str | None
    override: tuple[str, ...]
    dump_dir: Path | None
    dump_mode: Literal["all", "compile"]
    stats: bool
    profile: bool
    json: bool
    seed: int | None
    dump_inputs: bool = False
    profile_out: Path | None = None


def _option(name: str, help: str, **rest: Any) -> Callable[[Any], Any]:
    twin = f"PTIR_{name.removeprefix('--').replace('-', '_').upper()}"
    return click.option(name, help=help, envvar=twin, show_envvar=True, **rest)


def _of_command_line(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    """Overrides; those of the environment are read where programs are compiled."""
    source = context.get_parameter_source(option.name or "")
    return () if source is click.core.ParameterSource.ENVIRONMENT else given


def _set_threads(context: click.Context, option: click.Parameter, count: int | None) -> None:
    """The backend reads it where it opens its device."""
    if count is not None:
        os.environ[THREADS] = str(count)


def _set_schedule(context: click.Context, option: click.Parameter, name: str | None) -> None:
    """The kernel generator reads it where it compiles."""
    if name is not None:
        os.environ[SCHEDULE] = name


def _set_fast_math(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    """The passes read it, and it is a part of the keys of plans."""
    if wanted:
        os.environ[FAST_MATH] = "1"


OPTIONS = (
    _option("--backend", "Where to run; default: the best that works.", metavar="NAME[:DEVICE]"),
    _option(
        "--override",
        "How a functional is computed: default, force=NAME, prefer=NAME, benchmark(cache=N) or"
        " tuned; F may have conditions, as in 'linear[M=1,K>=4096]'. Repeatable.",
        metavar="F=POLICY",
        multiple=True,
        callback=_of_command_line,
    ),
    _option("--dump-dir", "Write programs here.", type=click.Path(path_type=Path, file_okay=False)),
    _option(
        "--dump-mode",
        "Dump each pass, or only compilations.",
        type=click.Choice(["all", "compile"]),
        default="all",
        show_default=True,
    ),
    _option("--dump-inputs", "Dump what each program reads, weights included.", is_flag=True),
    _option("--stats", "Print totals on stderr.", is_flag=True),
    _option("--profile", "Print time by layer, functional and kernel on stderr.", is_flag=True),
    _option(
        "--profile-out",
        "Write a timeline for ui.perfetto.dev.",
        metavar="FILE.json",
        type=click.Path(path_type=Path, dir_okay=False),
    ),
    _option("--json", "Print one JSON value.", is_flag=True),
    _option("--seed", "Seed of random numbers.", type=click.IntRange(0, 2**64 - 1)),
    click.option(
        "--threads",
        help="Threads of the C backend; default: the physical cores that may be used.",
        type=click.IntRange(1, 1024),
        envvar=THREADS,
        show_envvar=True,
        expose_value=False,
        callback=_set_threads,
    ),
    click.option(
        "--fast-math",
        help="Apply rules that may change rounding, signs of zeros and NaN.",
        is_flag=True,
        envvar=FAST_MATH,
        show_envvar=True,
        expose_value=False,
        callback=_set_fast_math,
    ),
    click.option(
        "--schedule",
        help="Schedule of generated kernels; default: coop on GPUs, serial on CPUs.",
        type=click.Choice(tuple(SCHEDULES)),
        envvar=SCHEDULE,
        show_envvar=True,
        expose_value=False,
        callback=_set_schedule,
    ),
)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the common options; it receives them as its argument ``common``."""

    @functools.wraps(command)
    def with_common(**values: Any) -> Any:
        names = CommonOptions.__dataclass_fields__
        common = CommonOptions(**{name: values.pop(name) for name in names})
        return command(common=common, **values)

    wrapped: Callable[..., Any] = with_common
    for option in reversed(OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def showing_only(*names: str) -> Callable[[click.Command], click.Command]:
    """Leave common options but those called ``names`` out of a command's help; it takes them all.

    For a command that runs nothing; goes above ``click.command()``.
    """

    @click.command()
    @common_options
    def bare(common: CommonOptions) -> None:
        """Only its options are looked at."""

    hidden = {option.name for option in bare.params} - {*names}

    def hide(command: click.Command) -> click.Command:
        for option in command.params:
            if isinstance(option, click.Option):
                option.hidden = option.name in hidden
        return command

    return hide


@contextmanager
def session(common: CommonOptions) -> Iterator[None]:
    """Load plugins, put overrides and sinks in force, and print statistics at the end.

    What backends and plugins print meanwhile goes to stderr, since stdout carries only the result:
    a command prints that behind its session, or to the ``sys.stdout`` of before.
    """
    import ptir.functional  # noqa: F401  fills the table that overrides name
    from ptir import events, plugins, trace
    from ptir.cli.plugin_commands import report
    from ptir.ops.overriding import active_overrides, in_force
    from ptir.ops.policies import origin, parse_override

    loaded = plugins.install()
    stats, profile = trace.StatsSink(), None
    sinks: list[Sink] = [stats] if common.stats or common.profile else []
    if common.profile:
        profile = trace.ProfileSink()
        sinks.append(profile)
    if common.profile_out is not None:
        sinks.append(trace.TimelineSink(common.profile_out))
    if common.dump_dir is not None:
        kept = common.dump_inputs
        sinks.append(trace.DumpSink(common.dump_dir, common.dump_mode, inputs=kept))
    elif common.dump_inputs:
        raise click.UsageError("--dump-inputs says what to dump; give --dump-dir, which says where")
    sinks += [row.value for row in loaded.rows("ptir_trace_sinks", folder=common.dump_dir)]
    report(loaded.untold())
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.callback(_report, common, stats, profile)
        asked = [parse_override(text, origin("command line")) for text in common.override]
        stack.enter_context(in_force(asked))
        _check_backends(active_overrides())
        stack.enter_context(trace.listening_to(sinks))
        if common.profile or common.profile_out is not None:
            stack.enter_context(events.timing_parts())
        yield


def _check_backends(asked: Overrides) -> None:
    """Refuse conditions on backends that are not installed, where somebody typed them.

    A checkpoint, or a plugin, may know more of them than there are here.
    """
    from ptir.backend import registry
    from ptir.errors import UsageError, unknown_name
    from ptir.ops.policies import RANKS

    typed = [one for one in asked if one.origin.rank >= [*RANKS].index("environment")]
    named = [c for one in typed for c in one.conditions if c.name == "backend"]
    known = {entry.name for entry in registry.listed()} if named else set()
    for condition in named:
        for value in map(str, condition.values):
            if value.partition(":")[0] not in known:
                raise UsageError(f"override: {condition}: {unknown_name('backend', value, known)}")


def _report(common: CommonOptions, stats: StatsSink, profile: ProfileSink | None) -> None:
    from ptir.cli import show

    if common.stats:
        rows: list[tuple[object, ...]] = [(k, _number(v)) for k, v in stats.summary().items()]
        rows += [(f"{f} implementation", f"{i}: {why}") for f, (i, why) in stats.chosen()]
        show.table(("statistic", "value"), rows, err=True)
    if profile is not None:
        from ptir.cli.profile import print_profile

        print_profile(profile.programs(), stats)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}"


def open_target(common: CommonOptions) -> Target:
    """The target of ``--backend``, else the best working one, which is said on stderr.

    What would have been preferred and failed is named too; what this machine merely lacks is left
    to ``ptir backends``.
    Raises ``BackendUnavailable``; never falls back from what was named.
    """
    from ptir.backend import registry
    from ptir.cli import show

    if common.backend:
        return registry.get(common.backend)
    choice = registry.best()
    failed = [skipped.name for skipped in choice.skipped if not skipped.absent]
    also = f"; {', '.join(failed)} failed, see `ptir doctor`" if failed else ""
    show.note(f"running on {choice.target}{also}")
    return choice.target
