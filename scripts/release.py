"""Builds what is published into dist/, and proves every file of it as its user will meet it.

`make release` does all of it: a source distribution of every package; a wheel from each of those,
in a folder outside of the repository and in an environment with its stated build requirements only;
what they hold, against the working tree and by `twine check --strict`; then, for every distribution
and interpreter, an empty environment in which it is installed from these files by its name, with
what it says that it needs, and the commands of SMOKE. Nothing is uploaded.

`python scripts/release.py --files` (`make wheels`) stops after the files, and needs no network.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from distributions import (
    DISTRIBUTIONS,
    ROOT,
    Distribution,
    contents,
    faults_of_sdist,
    faults_of_wheel,
    version,
)
from smoke import SMOKE, Smoke

DIST: Final = ROOT / "dist"
SUMS: Final = "SHA256SUMS"
FOREIGN: Final = ("PYTHON", "PTIR_", "VIRTUAL_ENV")
"""Beginnings of variables that a user's environment does not have."""


class FailedError(Exception):
    """A step that ends the release; the message holds what the command printed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Build and check; the exit code is 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description="Build and prove what is published.")
    parser.add_argument("--files", action="store_true", help="only build and check the files")
    parser.add_argument(
        "--python",
        action="append",
        metavar="EXE",
        help="interpreters to install with (default: this one); may be repeated",
    )
    parser.add_argument("only", nargs="*", metavar="NAME", help="only these distributions")
    given = parser.parse_args(argv)
    if unknown := sorted(set(given.only) - set(DISTRIBUTIONS)):
        parser.error(f"no distribution {', '.join(unknown)}; there are {', '.join(DISTRIBUTIONS)}")
    with tempfile.TemporaryDirectory(prefix="ptir-release-") as scratch:
        try:
            faults = _released(Path(scratch), given)
        except FailedError as error:
            faults = [str(error)]
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    print(f"release {version()}: {f'{len(faults)} faults' if faults else 'everything holds'}")
    return 1 if faults else 0


def _released(scratch: Path, given: argparse.Namespace) -> list[str]:
    faults = _files(scratch, isolated=not given.files)
    if not given.files:
        _notes()
    if given.files or faults:
        return faults
    faults += _twine(scratch)
    for python in given.python or [sys.executable]:
        for name in given.only or DISTRIBUTIONS:
            faults += _installed(scratch, python, DISTRIBUTIONS[name])
    return faults


# ------------------------------------------------------------------------------------ the files


def _files(scratch: Path, isolated: bool) -> list[str]:
    """Build everything into an empty dist/, and say what is wrong with it."""
    if DIST.exists():
        shutil.rmtree(DIST)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda given: _built(given, scratch, isolated), DISTRIBUTIONS.values())
        faults = [fault for found in made for fault in found]
    _sums()
    return faults


def _built(given: Distribution, scratch: Path, isolated: bool) -> list[str]:
    """Build a source distribution, and a wheel from it; what is wrong with them."""
    sdist, wheel = DIST / f"{given.stem}.tar.gz", DIST / f"{given.stem}-py3-none-any.whl"
    _build("--sdist", "--no-isolation", given.folder)
    faults = [f"{sdist.name}: {fault}" for fault in faults_of_sdist(given, contents(sdist))]
    _unpack(sdist, scratch)
    alone = [] if isolated else ["--no-isolation"]
    _build("--wheel", *alone, scratch / given.stem)
    faults += [f"{wheel.name}: {fault}" for fault in faults_of_wheel(given, contents(wheel))]
    print(f"built {sdist.name}, and {wheel.name} from it", flush=True)
    return faults


def _unpack(sdist: Path, folder: Path) -> None:
    for name, content in contents(sdist).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _build(*options: str | Path) -> None:
    _output([sys.executable, "-m", "build", "--outdir", DIST, *options], ROOT)


def _sums() -> None:
    """What to compare a download with, in the form that `sha256sum --check` reads."""
    files = sorted(DIST.iterdir())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / SUMS).write_text("".join(lines), encoding="utf-8")


def _notes() -> None:
    """What is no fault before the day of the release, and would be one on it."""
    if shutil.which("git"):
        made = _run(["git", "status", "--porcelain", "--", "packages", "VERSION"], ROOT)
        if made.stdout or made.returncode:
            print(f"note: these files are of no commit:\n{made.stdout}{made.stderr}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"## {version()} (unreleased)" in changelog:
        print(f"note: CHANGELOG.md calls {version()} unreleased; write the date there")


def _twine(scratch: Path) -> list[str]:
    """The index's own opinion of the metadata, by a twine that nothing else here has to install."""
    python = _environment(scratch / "twine", sys.executable)
    needs = ["-r", ROOT / "requirements/release.txt", "-c", ROOT / "requirements/pins.txt"]
    _output([python, "-m", "pip", "install", "--quiet", *needs], scratch)
    files = sorted(path for path in DIST.iterdir() if path.name != SUMS)
    made = _run([python, "-m", "twine", "check", "--strict", *files], scratch)
    print(f"twine check --strict: {len(files)} files, exit code {made.returncode}", flush=True)
    return [] if made.returncode == 0 else [f"twine check --strict: {made.stdout}"]


# ---------------------------------------------------------------------------- each one, installed


def _installed(scratch: Path, interpreter: str, given: Distribution) -> list[str]:
    """Install one distribution alone and run its commands; what is wrong."""
    began = time.monotonic()
    home = scratch / "home"
    shutil.rmtree(home, ignore_errors=True)
    (home / "empty").mkdir(parents=True)
    python = _environment(home / "venv", interpreter)
    _install(python, given.name)
    faults = [*_agreeing(python, home), *_ours(python, home, given)]
    seconds = time.monotonic() - began
    passed = 0
    for row in SMOKE[given.name]:
        for name in row.beside:
            _install(python, name)
        fault = _smoke(row, home)
        faults += [fault] if fault else []
        passed += not fault
    which = f"{given.name} {version()}, {_output([python, '--version'], home).strip()}"
    told = f"{passed} of {len(SMOKE[given.name])} commands as they should be"
    print(f"{which}: installed alone in {seconds:.0f} s, {told}", flush=True)
    return [f"{given.name}, {interpreter}: {fault}" for fault in faults]


def _environment(folder: Path, interpreter: str) -> Path:
    _output([interpreter, "-m", "venv", folder], ROOT)
    return folder / "bin/python"


def _install(python: Path, name: str) -> None:
    wanted = ["--find-links", DIST, f"{name}=={version()}"]
    _output([python, "-m", "pip", "install", "--quiet", *wanted], python.parent)


def _agreeing(python: Path, home: Path) -> list[str]:
    """Whether everything installed has what it needs."""
    made = _run([python, "-m", "pip", "check"], home)
    return [] if made.returncode == 0 else [f"pip check: {made.stdout}"]


def _ours(python: Path, home: Path, given: Distribution) -> list[str]:
    """Of ptir, only this and what it states; each from dist/, not a namesake from an index."""
    listed = json.loads(_output([python, "-m", "pip", "list", "--format", "json"], home))
    found = {row["name"] for row in listed if row["name"].startswith("ptir")}
    wanted = {given.name, "ptir-core"}
    faults = [] if found == wanted else [f"installed {sorted(found)}, not {sorted(wanted)}"]
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(_output([python, "-c", code], home).strip())
    for name in sorted(found & set(DISTRIBUTIONS)):
        one = DISTRIBUTIONS[name]
        record = f"{one.dist_info}/RECORD"
        held = contents(DIST / f"{one.stem}-py3-none-any.whl")[record].decode()
        if missing := _rows(held) - _rows((site / record).read_text(encoding="utf-8")):
            faults.append(f"{name} is not the one in dist/: {sorted(missing)[0]}")
    return faults


def _rows(record: str) -> set[tuple[str, ...]]:
    return {tuple(row[:2]) for row in csv.reader(record.splitlines()) if row[1]}


def _smoke(row: Smoke, home: Path) -> str:
    """What is wrong with what one command printed, or nothing."""
    program, *arguments = row.command
    made = _run([home / "venv/bin" / program, *arguments], home / "empty", home)
    reason = row.fault(made.returncode, made.stdout, made.stderr)
    return f"`{' '.join(row.command)}` {reason}\n{made.stdout}{made.stderr}" if reason else ""


# ------------------------------------------------------------------------------------- processes


def _run(
    command: Sequence[str | Path], folder: Path, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; with ``home``, what it caches begins empty and stays there."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    if home is not None:
        environment |= {"HOME": str(home), "PTIR_CACHE_DIR": str(home / "cache")}
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _output(command: Sequence[str | Path], folder: Path) -> str:
    made = _run(command, folder)
    if made.returncode:
        raise FailedError(f"{' '.join(map(str, command))}\n{made.stdout}{made.stderr}")
    return made.stdout


if __name__ == "__main__":
    sys.exit(main())
