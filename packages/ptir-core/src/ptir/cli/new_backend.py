"""``ptir new-backend``: a distribution with a conformant backend, to be made your own."""

from __future__ import annotations

import re
from importlib import metadata, resources
from pathlib import Path
from typing import Final

import click

from ptir.backend.entries import OFFICIAL
from ptir.backend.registry import listed
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, showing_only
from ptir.errors import UsageError

FILES: Final = {
    "pyproject.toml.in": "pyproject.toml",
    "README.md.in": "README.md",
    "@level@.py.in": "{module}.py",
    "check.py.in": "test_{module}.py",
    "ci.yml.in": ".github/workflows/conformance.yml",
}
"""Templates of ``ptir/data/backend``, and the file that each becomes."""

LEVELS: Final = {
    "interpreter": {
        "@class@": "NumPyBackend",
        "@what@": "the core profile on NumPy arrays, one instruction at a time",
        "@next@": "put your device in the place of NumPy, op by op",
        "@slice@": "(combinations or awkward or iota) and not window and not patches",
    },
    "kernel": {
        "@class@": "CppBackend",
        "@what@": "fused kernels in C++, built by `c++` and run by one thread",
        "@next@": "put your language in the place of C++ and your device in that of the thread",
        "@slice@": "(combinations or softmax or layer_norm or attention) and f32",
    },
}
"""What stands for the marks in templates at each level of the contract."""

LONGEST: Final = 32
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@showing_only("json")
@click.command()
@click.argument("name")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--level",
    type=click.Choice(tuple(LEVELS)),
    default="interpreter",
    help="interpreter: NumPy, op by op; kernel: fused kernels in C++.",
    show_default=True,
)
@common_options
def command(common: CommonOptions, name: str, folder: Path | None, level: str) -> None:
    """Write a backend called NAME to FOLDER (default: ptir-backend-NAME), which must be new.

    It passes the profiles that it claims as it is, with an entry point, a test, and a workflow that
    runs the conformance suite.
    """
    check_name(name)
    where = folder or Path(distribution_of(name))
    files = rendered(name, level)
    write(where, files)
    if common.json:
        names = {"distribution": distribution_of(name), "module": module_of(name)}
        show.value({"name": name, **names, "folder": str(where), "files": list(files)})
    else:
        show.note(f"wrote {len(files)} files to {where}; next, in there:")
        show.note('  python -m pip install -e ".[test]"')
        show.note("  python -m pytest")
        show.note(f"  ptir-conformance run --backend {name} --jobs 2")


def distribution_of(name: str) -> str:
    """The distribution of the backend called ``name``."""
    return f"ptir-backend-{name}"


def module_of(name: str) -> str:
    """The module of the backend called ``name``."""
    return distribution_of(name).replace("-", "_")


def check_name(name: str) -> None:
    """Raise ``UsageError`` unless a new backend can be called ``name``.

    The name is a part of a distribution's name, which installers compare in its normal form, and
    with underscores a part of a module's; ``--backend`` takes it in front of a colon.
    """
    if not _NAME.fullmatch(name):
        normal = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        near = f"; {normal!r} is" if _NAME.fullmatch(normal) else ""
        raise UsageError(
            f"{name!r} is not a name for a backend: lower-case letters, digits and single hyphens"
            f" between them, a letter first{near}"
        )
    if len(name) > LONGEST:
        raise UsageError(f"{name!r} has {len(name)} characters; at most {LONGEST} are allowed")
    if name in OFFICIAL:
        raise UsageError(f"{name!r} is a backend of ptir itself; choose another name")
    for entry in listed():
        if name == entry.name:
            where = f"{entry.distribution} {entry.version}"
            raise UsageError(f"a backend {name!r} is installed by {where}; choose another name")
    try:
        version = metadata.version(distribution_of(name))
    except metadata.PackageNotFoundError:
        return
    raise UsageError(f"{distribution_of(name)} {version} is installed; choose another name")


def rendered(name: str, level: str = "interpreter") -> dict[str, str]:
    """The files of a backend called ``name``: their paths and texts."""
    templates = resources.files("ptir") / "data" / "backend"
    marks = {"@name@": name, "@module@": module_of(name), "@level@": level, **LEVELS[level]}
    marks["@claims@"] = claims_of(level)
    files = {}
    for template, path in FILES.items():
        source = templates / template.replace("@level@", level)
        text = source.read_text(encoding="utf-8")
        for mark, meant in marks.items():
            text = text.replace(mark, meant)
        files[path.format(module=module_of(name))] = text
    return files


def claims_of(level: str) -> str:
    """The profiles that a backend of the level claims unless it says otherwise."""
    from ptir.backend import Interpreter
    from ptir.codegen import KernelBackend

    base = {"interpreter": Interpreter, "kernel": KernelBackend}[level]
    return ", ".join(sorted(base.claims))


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files to a new folder; raises ``UsageError`` where it exists or cannot be made."""
    try:
        folder.mkdir()
    except FileExistsError:
        message = f"{folder} exists already; name a folder that is not there yet"
        raise UsageError(message) from None
    except FileNotFoundError:
        message = f"{folder} cannot be made: there is no folder {folder.parent}"
        raise UsageError(message) from None
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8", newline="\n")
