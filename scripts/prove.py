"""The whole proof of a release: every test, every case on every device, every planted fault.

``python scripts/prove.py FOLDER [NAME...]`` (``make prove``) runs the stages of ``STAGES`` that are
named (default: all), one after the other, says how far it is and about how long the rest takes, and
goes on with what was interrupted. What each stage ended with goes into ``FOLDER/proof.json`` with
the commit; ``--publish`` puts that into the page of the matrix, and into ``proof.json`` beside it.
A stage that passed before, there or in the folder, is not run again as long as nothing that it
reads has changed since (``Stage.reads``): so a proof may take several days and machines.
It needs what ``.ci/run`` installs from the system, and hours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import IO, Any, Final

from ptir_testsuite.reports.report import INCOMPLETE

ROOT: Final = Path(__file__).resolve().parent.parent
PUBLISHED: Final = ROOT / "docs/results/proof.json"
PAGE: Final = ROOT / "docs/results/matrix.md"
BEGIN: Final = "<!-- what scripts/prove.py --publish wrote -->"
END: Final = "<!-- its end -->"
COOP: Final = {"PTIR_SCHEDULE": "coop"}
HOST: Final = {"PYTHONPATH": str(ROOT / "tests/cupy/host")}
REQUIRED: Final = {
    "PTIR_REQUIRE_BACKENDS": "c,opencl,cuda",
    "PTIR_REQUIRE_TOOLS": "oclgrind,wgpu,chromium",
    "PTIR_REQUIRE_WITNESSES": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
FOREIGN: Final = ("PTIR_", "OCL_ICD_", "POCL_", "PYOPENCL_")
"""Beginnings of variables that no stage takes from whoever starts it."""
ONCE: Final = {"PTIR_REBUILD_KERNELS": "1", "POCL_KERNEL_CACHE": "0", "PYOPENCL_NO_CACHE": "1"}
"""Kernels that nobody needs again stay off the disk."""

DIRTY: Final = "-dirty"

ALL: Final = (".", ":!docs/results")
"""Whatever is kept in the repository but what the proof itself writes."""
CODE: Final = ("packages", "requirements")
"""What a conformance run reads."""
TESTS: Final = (*CODE, "tests")
"""What a command of the tests reads."""

SUITE: Final = ("-m", "ptir_testsuite")
FILES: Final = ("tests/fuzz_files.py", "--kind")
WITNESS: Final = ("-m", "ptir_testsuite.witnesses")
PYTEST: Final = ("-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")


@dataclass(frozen=True)
class Stage:
    """A command of Python's, and about how many minutes it takes on two cores.

    ``report`` is a conformance run: its rows are kept in the folder, and an unfinished one goes on.
    ``packages`` are installed in the folder for this stage alone. ``reads`` are the files, as git
    names them, on which the result depends.
    """

    minutes: float
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    report: bool = False
    packages: tuple[str, ...] = ()
    reads: tuple[str, ...] = ALL


def whole(
    minutes: float,
    backend: str,
    *more: str,
    packages: tuple[str, ...] = (),
    reads: tuple[str, ...] = CODE,
    **environment: str,
) -> Stage:
    """A whole conformance run.

    Each case is compiled by itself, as users' programs are; schedules that repeat a run on the same
    device or the host take ``AT_ONCE``.
    """
    command = (*SUITE, "run", "--backend", backend, "--jobs", str(os.cpu_count()), *more)
    return Stage(minutes, command, ONCE | environment, True, packages, reads)


INTEL: Final = "opencl:intel(r) opencl"
"""Intel's runtime, by its platform: PoCL's device is named after the processor, maybe Intel's."""


def intel() -> tuple[str, ...]:
    """What ``ptir-backend-opencl[cpu]`` needs, which would be the tests' default device."""
    path = ROOT / "packages/ptir-backend-opencl/pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(project["project"]["optional-dependencies"]["cpu"])


AT_ONCE: Final = ("--at-once",)
"""Many cases in one source file, where the compiler's start is most of what a case costs."""

PATIENT: Final = ("--timeout", "300")
"""Intel's compiler takes 110 s for a program of 24 random draws."""

KERNELS: Final = ("tests/fuzz_kernels.py", "--backend")
FEWER: Final = ("--blocks", "1000")
"""Of each format, where a kernel's threads take turns on the host."""

STAGES: Final = {
    "tests": Stage(45, PYTEST, REQUIRED),
    "mutants": Stage(6, (*SUITE, "mutants", "--jobs", str(os.cpu_count())), reads=CODE),
    "ref": whole(1, "ref"),
    "c": whole(8, "c"),
    "pocl": whole(25, "opencl:portable"),
    "intel": whole(20, INTEL, *PATIENT, packages=intel()),
    "coop-pocl": whole(25, "opencl:portable", *AT_ONCE, **COOP),
    "coop-intel": whole(15, INTEL, *AT_ONCE, *PATIENT, packages=intel(), **COOP),
    "cuda-host": whole(18, "cuda-host", *AT_ONCE, reads=(*CODE, "tests/cupy/host"), **HOST),
    "fuzz": Stage(
        30, (*SUITE, "fuzz", "--count", "4000", "--seed", "1", "--jobs", "2"), ONCE, reads=CODE
    ),
    "fuzz-text": Stage(
        30, (*SUITE, "fuzz-text", "--count", "20000", "--jobs", "2"), ONCE, reads=CODE
    ),
    "fuzz-gguf": Stage(20, (*FILES, "gguf", "--count", "100000", "--jobs", "2"), reads=TESTS),
    "fuzz-folder": Stage(5, (*FILES, "folder", "--count", "20000", "--jobs", "2"), reads=TESTS),
    "fuzz-config": Stage(5, (*FILES, "config", "--count", "5400", "--jobs", "2"), reads=TESTS),
    "blocks": Stage(10, ("tests/fuzz_blocks.py", "--jobs", "2"), reads=TESTS),
    "kernels": Stage(12, (*KERNELS, "c"), reads=TESTS),
    "kernels-pocl": Stage(40, (*KERNELS, "opencl:portable"), reads=TESTS),
    "kernels-coop": Stage(40, (*KERNELS, "opencl:portable"), COOP, reads=TESTS),
    "kernels-cuda": Stage(20, (*KERNELS, "cuda-host", *FEWER), HOST, reads=TESTS),
    "umath": Stage(3, (*WITNESS, "umath", "--backend", "c"), reads=CODE),
    "onnx": Stage(5, (*WITNESS, "onnx", "--backend", "c"), reads=CODE),
}


@dataclass(frozen=True)
class Result:
    """What a stage ended with."""

    stage: str
    headline: str
    code: int
    seconds: int
    commit: str
    date: str
    machine: str


def main(folder: Path, names: Sequence[str], publish: bool) -> int:
    """Run the stages; the exit code is the greatest of theirs."""
    unknown = sorted(set(names) - set(STAGES))
    if unknown:
        print(f"no stage is called {', '.join(unknown)}; there are {', '.join(STAGES)}")
        return 2
    folder = folder.resolve()  # stages run in the root of the project
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in STAGES if name in names or not names]
    try:
        commit = _commit()
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        print(f"git does not say which commit this is: {str(said).strip()}")
        return 2
    results = list(_run(folder, chosen, commit))
    if publish:
        published(_kept(folder))
    return max(result.code for result in results)


def published(results: Sequence[Result]) -> None:
    """Put the results into the documentation: as data, and as the table of the page."""
    PUBLISHED.write_text(_json(results), encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}{END}{after}", encoding="utf-8")


def table(results: Sequence[Result]) -> str:
    """The results as Markdown: a line a stage."""
    lines = ["| stage | ended with | minutes | commit | on |", "|---|---|---|---|---|"]
    for r in results:
        said = r.headline.replace("|", "/") + ("" if r.code == 0 else f" (exit code {r.code})")
        lines.append(
            f"| {r.stage} | {said} | {r.seconds / 60:.1f} | {r.commit} | {r.date}, {r.machine} |"
        )
    return "\n".join(lines) + "\n"


def _run(folder: Path, chosen: Sequence[str], commit: str) -> Iterator[Result]:
    known = [] if commit.endswith(DIRTY) else [*read(PUBLISHED), *_kept(folder)]
    kept = {r.stage: r for r in known if r.stage in chosen and r.code == 0 and _holds(r, commit)}
    for number, name in enumerate(chosen, 1):
        left = sum(STAGES[n].minutes for n in chosen[number - 1 :] if n not in kept)
        place = f"[{number}/{len(chosen)}] {name}"
        if name in kept:
            print(f"{place}: {kept[name].headline} (before)", flush=True)
            _stored(folder, [kept[name]])
            yield kept[name]
            continue
        print(f"{place}: about {STAGES[name].minutes:g} min, all about {left:g} min", flush=True)
        result = _stage(folder, name, commit)
        print(f"{place}: {result.headline} ({result.seconds} s)", flush=True)
        _stored(folder, [result])
        yield result


def _holds(result: Result, commit: str) -> bool:
    """Whether nothing that the stage reads has changed since its result."""
    if result.commit == commit:
        return True
    call = ("git", "diff", "--quiet", result.commit, "HEAD", "--", *STAGES[result.stage].reads)
    return subprocess.run(call, cwd=ROOT, capture_output=True, check=False).returncode == 0


def _stage(folder: Path, name: str, commit: str) -> Result:
    stage, log = STAGES[name], folder / f"{name}.log"
    environment = {n: v for n, v in os.environ.items() if not n.startswith(FOREIGN)}
    environment |= stage.environment
    places = [e["PYTHONPATH"] for e in (stage.environment, os.environ) if "PYTHONPATH" in e]
    commands = [[sys.executable, *stage.arguments]]
    if stage.packages:
        commands.insert(0, _installing(folder / "packages", stage.packages))
        places.insert(0, _importable(folder / "packages"))
    if places:
        environment["PYTHONPATH"] = os.pathsep.join(places)
    report = folder / f"{name}-{commit}.jsonl"
    if stage.report:
        if commit.endswith(DIRTY):
            report.unlink(missing_ok=True)
        commands[-1] += ["--json", str(report), *(["--resume"] if report.exists() else [])]
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        code = next(filter(None, (_code(one, environment, file) for one in commands)), 0)
    if code not in (0, INCOMPLETE) and report.exists():  # interrupted ones go on, these are read
        report.replace(folder / f"{name}-failed.jsonl")
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    headline = lines[-1].strip("= ") if lines else "nothing was printed"
    seconds = round(time.monotonic() - began)
    return Result(name, headline, code, seconds, commit, date.today().isoformat(), _machine())


def _code(command: Sequence[str], environment: dict[str, str], log: IO[str]) -> int:
    """What a command ends with; of one that a signal ended, what a shell says: 128 and more."""
    made = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
    )
    return made.returncode if made.returncode >= 0 else 128 - made.returncode


def _installing(place: Path, packages: Sequence[str]) -> list[str]:
    """What installs packages beside, not into, this environment.

    They get a prefix of their own (pip's ``--target`` loses files outside ``site-packages``).
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed"]
    pins = ROOT / "requirements/pins.txt"
    return [*pip, "--prefix", str(place), "-c", str(pins), *packages]


def _importable(place: Path) -> str:
    """Where what was installed into a prefix is imported from."""
    return sysconfig.get_paths(vars={"base": str(place), "platbase": str(place)})["purelib"]


def _stored(folder: Path, results: Sequence[Result]) -> None:
    """Results in the order of the stages, each stage's last one."""
    known = {r.stage: r for r in (*_kept(folder), *results)}
    listed = [known[name] for name in STAGES if name in known]
    (folder / "proof.json").write_text(_json(listed), encoding="utf-8")


def _json(results: Sequence[Result]) -> str:
    return json.dumps([asdict(result) for result in results], indent=1) + "\n"


def _kept(folder: Path) -> list[Result]:
    return read(folder / "proof.json")


def read(path: Path) -> list[Result]:
    """The results in a file; none where there is no file."""
    if not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return [Result(**row) for row in found]


def _commit() -> str:
    """The commit, marked where the working tree is not it."""
    call = ("git", "describe", "--always", f"--dirty={DIRTY}", "--abbrev=12", "--exclude=*")
    return subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _machine() -> str:
    """The processor's name, its vectors, and how many there are."""
    name, vectors = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        text = info.read_text(encoding="utf-8")
        name = next((x.partition(":")[2].strip() for x in text.splitlines() if "name" in x), name)
        vectors = " with AVX-512" if "avx512f" in text else ""
    return f"{name}{vectors}, {os.cpu_count()} cores"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(STAGES))
    parser.add_argument("--publish", action="store_true", help=f"into {PUBLISHED.name} of docs")
    options = parser.parse_args()
    sys.exit(main(options.folder, options.names, options.publish))
