"""The ``ptir`` command: the table of commands, and what the shell sees when one fails.

A command is one row of ``COMMANDS`` and one module that is imported when the command is used, so
that ``ptir --help`` stays light. To add one: write ``cli/NAME.py`` with a click command called
``command``, decorate it with ``cli.common.common_options``, and add its row.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NoReturn

import click

from ptir.cli import show
from ptir.cli.process import end_process
from ptir.cli.streams import open_streams, reader_gone, results_alone
from ptir.errors import PtirError, unknown_name
from ptir.switches import LIMITS, SWITCHES, limited_bytes, switched_on


@dataclass(frozen=True)
class CommandRow:
    """A command's name, the module that defines it as ``command``, and its line in the help."""

    name: str
    module: str
    help: str


COMMANDS: Final = (
    CommandRow("run", "ptir.cli.run", "Continue a prompt with a model."),
    CommandRow("generate", "ptir.cli.run", "The same as run."),
    CommandRow("chat", "ptir.cli.chat", "Talk with a model."),
    CommandRow("embed", "ptir.cli.embed", "Print vectors of texts or images."),
    CommandRow("classify", "ptir.cli.classify", "Say which classes texts or images are of."),
    CommandRow("rerank", "ptir.cli.rerank", "Sort documents by how well they answer a query."),
    CommandRow("fill", "ptir.cli.fill", "Say which words fit where one is masked."),
    CommandRow("transcribe", "ptir.cli.transcribe", "Write down what is said in recordings."),
    CommandRow("forward", "ptir.cli.forward", "Compute logits, without generating."),
    CommandRow("bench", "ptir.cli.bench", "Measure prefill and decoding speed."),
    CommandRow("eval", "ptir.cli.eval", "Measure a model, or compare it with PyTorch's."),
    CommandRow("explain", "ptir.cli.explain", "Show what a step runs: kernels, bytes, time."),
    CommandRow("report", "ptir.cli.report", "Write a page about what a step runs."),
    CommandRow("warmup", "ptir.cli.warmup", "Build a model's kernels ahead of the first run."),
    CommandRow("tune", "ptir.cli.tune", "Time implementations; use the fastest from now on."),
    CommandRow("cache", "ptir.cli.cache", "List or clear what is cached on disk."),
    CommandRow("list", "ptir.cli.list", "List the models on this machine, and their speed."),
    CommandRow("inspect", "ptir.cli.inspect", "Show what a checkpoint holds."),
    CommandRow("dump", "ptir.cli.dump", "Print a model's step as a program."),
    CommandRow("trace", "ptir.cli.trace", "Compute every layer's output, for a file."),
    CommandRow("diff", "ptir.cli.diff", "Compare two traces, layer by layer."),
    CommandRow("verify", "ptir.cli.verify", "Compare a backend with another, layer by layer."),
    CommandRow("bisect", "ptir.cli.bisect", "Find the instruction that a backend gets wrong."),
    CommandRow("convert", "ptir.cli.convert", "Write a model as a folder, one file or GGUF."),
    CommandRow("quantize", "ptir.cli.quantize", "Write a model in fewer bits, as GGUF."),
    CommandRow("pull", "ptir.cli.pull", "Fetch a model from the Hugging Face hub."),
    CommandRow("patterns", "ptir.cli.patterns", "List the functionals found in bare ops."),
    CommandRow("ops", "ptir.cli.ops", "List the ops, or explain one."),
    CommandRow("backends", "ptir.cli.backends", "List the installed backends and their devices."),
    CommandRow("doctor", "ptir.cli.doctor", "Check this installation and run a kernel everywhere."),
    CommandRow("new-backend", "ptir.cli.new_backend", "Write the skeleton of a new backend."),
    CommandRow("overrides", "ptir.cli.overrides", "List functionals and their implementations."),
)

ELSEWHERE: Final = {"conformance": "ptir-testsuite"}
"""Commands of the project's own plugins, and the distribution that brings each."""


class LazyGroup(click.Group):
    """Commands from a table, imported when used; plugins add theirs when there are any."""

    @cached_property
    def rows(self) -> dict[str, CommandRow]:
        """The table by name."""
        return {row.name: row for row in COMMANDS}

    @cached_property
    def plugin_commands(self) -> dict[str, click.Command]:
        """The commands of plugins by name; what is wrong with one is a line on stderr."""
        from ptir.cli.plugin_commands import plugin_commands

        return plugin_commands(frozenset(self.rows))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name: the table's first, then those of plugins."""
        return [*self.rows, *self.plugin_commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called ``cmd_name``, imported now."""
        if cmd_name in self.rows:
            module = importlib.import_module(self.rows[cmd_name].module)
            command: click.Command = module.command
            return command
        return self.plugin_commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, with the nearest names when there is no such command."""
        name = args[0]
        if not name.startswith("-") and name not in self.list_or_load(name):
            raise click.UsageError(_missing(name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)

    def list_or_load(self, name: str) -> Sequence[str]:
        """The names to look ``name`` up in; plugins are loaded only when the table lacks it."""
        return [*self.rows] if name in self.rows else [*self.plugin_commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing those of the table."""
        lines = [(row.name, row.help) for row in self.rows.values()]
        lines += [(n, c.get_short_help_str(60)) for n, c in self.plugin_commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(lines)


def _missing(name: str, known: Sequence[str]) -> str:
    from ptir.plugins import listed

    distribution = ELSEWHERE.get(name)
    if distribution and distribution not in {entry.distribution for entry in listed()}:
        return f"command {name!r} is not installed: pip install {distribution}"
    return unknown_name("command", name, known)


def _print_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from ptir.cli.versions import version_of

    click.echo(f"ptir {version_of('ptir-core') or '(ptir-core is not installed)'}")
    ctx.exit()


@click.command("ptir", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def group() -> None:
    """Portable tensor programs: run models on whichever backend is installed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ptir`` with ``argv`` (default: the process's) and return the exit code.

    0 ok, 1 failure, 2 usage, 3 backend unavailable, 4 unsupported, 5 verification failed, 130
    interrupted. Errors are one message on stderr; ``PTIR_DEBUG=1`` adds the traceback.
    """
    try:
        args = list(sys.argv[1:] if argv is None else argv)
        open_streams()
        for name in SWITCHES:
            switched_on(name)
        for name in LIMITS:
            limited_bytes(name)
    except PtirError as error:
        return _failed(error)
    with results_alone(), seldom_collected():
        return _run(args)


def script() -> NoReturn:
    """What the installed script ``ptir`` calls: ``main``, as all that this process does."""
    end_process(main())


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Inside, cycles are looked for once in 50,000 new objects instead of 700.

    Modules, programs and plans stay until the end: looking through them again and again finds
    nothing, and takes a twentieth of a short run.
    """
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _run(args: list[str]) -> int:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = group.main(args, prog_name="ptir", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        return reader_gone()
    except OSError as error:
        where = error.filename or "the output"
        click.echo(f"error: {where}: {error.strerror or error}", err=True)
        return 1
    except Exception as error:  # noqa: BLE001  the last guard: every failure is one clear message
        return _failed(error)
    return code if isinstance(code, int) else 0


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning is one line, not a place in our source."""
    show.note(f"warning: {message}")


def _failed(error: Exception) -> int:
    debug = os.environ.get("PTIR_DEBUG") == "1"
    if debug:
        traceback.print_exception(error)
    if isinstance(error, PtirError):
        show.sentence(f"error [{error.code}]: {error}", err=True)
        return error.exit_code
    first = next(iter(str(error).splitlines()), "")
    hint = "" if debug else " (set PTIR_DEBUG=1 to see the traceback)"
    show.sentence(f"error: unexpected {type(error).__name__}: {first}{hint}", err=True)
    return 1
