"""The kernels that this tree generates for devices on paper: what a change of it changes.

    python scripts/kernel_texts.py write FILE [--part K/N] [--only REGEX] [--device NAME]...
    python scripts/kernel_texts.py compare BEFORE AFTER

``write`` compiles a part of the conformance corpus (cases, composites, models, random programs) for
every device of ``DEVICES``, none of which has to be there, and keeps the source files that a
driver would be given. ``compare`` says which differ, and in which lines. No kernel is built or run.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Texts = dict[str, list[str]]
"""The source files by what was compiled: ``device: id``."""

FORMS: Final = (
    (re.compile(r"\+\+(\w+)\)"), r"\1 += 1)"),
    (re.compile(r"--(\w+)\)"), r"\1 -= 1)"),
    (re.compile(r"\bt\d+\b"), "t"),
)
"""Spellings that mean the same; names of temporaries are told apart by what they hold."""


@dataclass(frozen=True)
class Paper:
    """A device on paper: its dialect (module, class, arguments), traits, and dot products."""

    dialect: tuple[str, str, tuple[Any, ...]]
    traits: dict[str, Any]
    dots: tuple[str, ...] = ()


CPU: Final = {
    "compute_units": 2,
    "has_f64": True,
    "max_allocation_bytes": 1 << 32,
    "alignment": 128,
}
GPU: Final = CPU | {
    "device_class": "gpu",
    "max_workgroup_size": 1024,
    "shared_memory_bytes": 48 << 10,
    "compute_units": 132,
}
WEBGPU: Final = GPU | {
    "has_f64": False,
    "max_workgroup_size": 256,
    "shared_memory_bytes": 32 << 10,
    "alignment": 256,
}
OPENCL: Final = ("ptir_backend_opencl.dialect", "OpenCLC")
DEVICES: Final = {
    "c-dots": Paper(("ptir_backend_c.dialect", "PlainC", ()), CPU, ("dot_bytes", "dot_bf16")),
    "c": Paper(("ptir_backend_c.dialect", "PlainC", ()), CPU | {"device_class": "cpu-avx2"}),
    "opencl": Paper((*OPENCL, (True,)), CPU | {"max_persistent_buffers": 128}),
    "opencl-own": Paper(
        (*OPENCL, (True, True, True)), CPU | {"max_persistent_buffers": 128}, ("dot_bytes",)
    ),
    "opencl-coop": Paper((*OPENCL, (True, False, False, 0)), GPU | {"max_workgroup_size": 256}),
    "opencl-subgroups": Paper(
        (*OPENCL, (True, False, False, 16)), GPU | {"max_workgroup_size": 256}
    ),
    "wgsl": Paper(("ptir.codegen.wgsl.dialect", "Wgsl", ()), WEBGPU),
    "cuda": Paper(("ptir_backend_cupy.dialect", "CudaC", ()), GPU, ("dot_bf16",)),
}


def recorder(name: str) -> Any:
    """A backend whose only device is on paper, and which notes what it would build."""
    from importlib import import_module

    from ptir.backend.contract import Device
    from ptir.codegen.api import KernelBackend, KernelDevice, PaperDevice, Traits

    paper = DEVICES[name]
    module, made, arguments = paper.dialect

    class Recorder(PaperDevice):
        traits = Traits(identity=name, **paper.traits)
        dialect = getattr(import_module(module), made)(*arguments)

        def build(self, source: str) -> str:
            built.append(source.removeprefix(self.dialect.prelude()))
            return source

    Recorder.dialect.dots = frozenset(paper.dots)
    built: list[str] = []

    class PaperBackend(KernelBackend):
        sources = built

        def devices(self) -> Sequence[Device]:
            return (Device(0, name, "cpu"),)

        def open(self, device: Device) -> KernelDevice:
            return Recorder()

    PaperBackend.name = name
    return PaperBackend()


def written(name: str, part: tuple[int, int], only: str) -> Iterator[tuple[str, list[str]]]:
    """What each program of a part of the corpus comes to on a device."""
    from ptir.backend.contract import Target
    from ptir.ops.overriding import active_overrides
    from ptir.passes.context import PassContext
    from ptir.passes.pipeline import optimize
    from ptir_testsuite.corpus.case import Case
    from ptir_testsuite.corpus.composites import CompositeCall
    from ptir_testsuite.corpus.models import ModelRun
    from ptir_testsuite.running.execute import Setting, options_of
    from ptir_testsuite.running.items import RandomProgram, items, run_item

    backend = recorder(name)
    device = backend.devices()[0]
    setting = Setting(Target(backend, device), backend.claimed(device))
    number, of = part
    kinds = Case, CompositeCall, ModelRun, RandomProgram
    taken = [item for item in items(of) if isinstance(item, kinds)]
    taken = [item for item in taken if re.search(only, item.id)]
    for place, item in enumerate(taken):
        if place % of != number % of and not isinstance(item, ModelRun):
            continue
        backend.sources.clear()
        if isinstance(item, Case):
            try:
                program = optimize(item.program, PassContext(backend, device, active_overrides()))
                backend.compile(program, device, options_of(item))
            except Exception as error:  # noqa: BLE001  what is refused is a text, too
                backend.sources.append(f"{type(error).__name__}: {error}")
        else:
            run_item(item, setting)
        yield f"{name}: {item.id}", list(backend.sources)


def write(file: Path, part: tuple[int, int], only: str, names: Sequence[str]) -> None:
    """Keep all texts in a file."""
    os.environ |= {"PTIR_REBUILD_KERNELS": "1", "PTIR_SCHEDULE": ""}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PTIR_CACHE_DIR"] = cache
        texts: Texts = {}
        for name in names:
            texts |= dict(written(name, part, only))
            print(f"{name}: {len(texts)} programs so far", file=sys.stderr, flush=True)
    with gzip.open(file, "wt", encoding="utf-8", compresslevel=1) as out:
        json.dump(texts, out)


def read(file: Path) -> Texts:
    """What ``write`` kept."""
    with gzip.open(file, "rt", encoding="utf-8") as found:
        texts: Texts = json.load(found)
    return texts


def plain(text: str) -> list[str]:
    """Lines without what means nothing."""
    for pattern, form in FORMS:
        text = pattern.sub(form, text)
    return [line.strip() for line in text.splitlines()]


def compare(before: Texts, after: Texts, most: int) -> int:
    """Print what differs: programs, then changed lines by how often they come."""
    both = sorted(before.keys() & after.keys())
    changed, lines = list[str](), Counter[str]()
    for key in both:
        if before[key] == after[key]:
            continue
        a, b = ([x for text in texts[key] for x in plain(text)] for texts in (before, after))
        if a == b:
            continue
        changed.append(key)
        delta = difflib.unified_diff(a, b, "", "", n=0, lineterm="")
        hunk: list[str] = []
        for line in (*list(delta)[2:], "@@"):
            if line.startswith("@@"):
                lines["\n".join(hunk)] += bool(hunk)
                hunk = []
            else:
                hunk.append(line)
    for hunk_text, count in lines.most_common(most):
        if hunk_text:
            print(f"--- {count} times\n{hunk_text}")
    for key in changed[:most]:
        print("differs:", key)
    alone = before.keys() ^ after.keys()
    equal = len(both) - len(changed)
    print(f"{equal} of {len(both)} programs equal, {len(alone)} in one file only")
    return bool(changed or alone)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("write")
    one.add_argument("file", type=Path)
    one.add_argument("--part", default="0/40", help="K/N: every N-th item of the corpus, from K on")
    one.add_argument("--only", default="", help="a regular expression for the ids of items")
    one.add_argument("--device", action="append", choices=DEVICES)
    two = commands.add_parser("compare")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    two.add_argument("--most", type=int, default=40, help="lines and programs that are shown")
    given = parser.parse_args()
    if given.command == "write":
        number, of = map(int, given.part.split("/"))
        write(given.file, (number, of), given.only, given.device or tuple(DEVICES))
        return 0
    return compare(read(given.before), read(given.after), given.most)


if __name__ == "__main__":
    sys.exit(main())
