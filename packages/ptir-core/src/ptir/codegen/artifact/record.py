"""What a compiled program comes down to: a source file, launches and copies, and where things lie.

An artifact is plain data, so it is in the disk cache too: a later process that compiles the same
program takes it from there and neither fuses nor writes. Its key holds everything that compiling
looks at: the program, the options, the device, the tiles, and the state of the code that compiles.
"""

from __future__ import annotations

import base64
import json
import warnings
from dataclasses import dataclass
from typing import Any, Final

from ptir.backend.cache_key import CacheKey, note_stored, tell_lookup
from ptir.backend.code_state import code_states
from ptir.backend.contract import Options
from ptir.backend.disk_cache import Damaged, DiskCache
from ptir.backend.kernel import KernelDevice
from ptir.codegen.planning.buffer_slot import BufferSlot
from ptir.codegen.schedules.schedules import schedule_of
from ptir.codegen.schedules.tuned_tiles import tiles_for
from ptir.codegen.weights import panels
from ptir.ir.attributes import Literal
from ptir.ir.program import Program
from ptir.switches import switched_on
from ptir.types import parse_type

FORMAT: Final = 3
ARTIFACTS: Final = DiskCache("recipes", FORMAT, limit=256 << 20)
LARGEST: Final = 1 << 20
"""Most bytes of all constants of an artifact on disk."""


@dataclass(frozen=True)
class BufferBinding:
    """A memory that a step uses, and how many bytes of it."""

    slot: BufferSlot
    nbytes: int
    offset: int = 0
    """Bytes behind the begin of the place: inputs and outputs are used in parts too."""


@dataclass(frozen=True)
class Command:
    """One step: a kernel by name, its workgroups and arguments, or a copy, which has no name."""

    kernel: str
    workgroups: int
    bindings: tuple[BufferBinding, ...]
    workgroup_size: int = 1
    """Threads of a workgroup."""


@dataclass(frozen=True)
class Artifact:
    """All that is needed to bind and run a program on the device that it was compiled for."""

    source: str
    commands: tuple[Command, ...]
    outputs: tuple[BufferSlot, ...]
    arena: int
    constants: tuple[Literal, ...]
    counts: tuple[tuple[int, ...], ...] = ()
    """Of a partitioned program: how many commands, in order, each worker does in each phase."""
    partitioning: str = ""
    """How it is partitioned among workers, or why it is not."""

    def encoded(self) -> bytes:
        """The artifact as JSON."""
        fields = {
            "source": self.source,
            "calls": [
                [c.kernel, c.workgroups, c.workgroup_size, *map(_encoded_binding, c.bindings)]
                for c in self.commands
            ],
            "outputs": [_encoded_slot(place) for place in self.outputs],
            "arena": self.arena,
            "constants": [[str(c.type), base64.b85encode(c.data).decode()] for c in self.constants],
            "counts": self.counts,
            "sharing": self.partitioning,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decoded(text: bytes) -> Artifact:
        """What ``encoded`` gave; else a ``ValueError``, ``TypeError`` or ``KeyError``."""
        fields = json.loads(text)
        return Artifact(
            fields["source"],
            tuple(
                Command(
                    name,
                    workgroups,
                    tuple(BufferBinding(BufferSlot(k, n), *rest) for k, n, *rest in parts),
                    workgroup_size,
                )
                for name, workgroups, workgroup_size, *parts in fields["calls"]
            ),
            tuple(BufferSlot(kind, number) for kind, number in fields["outputs"]),
            fields["arena"],
            tuple(
                Literal(parse_type(type), base64.b85decode(data))
                for type, data in fields["constants"]
            ),
            tuple(map(tuple, fields["counts"])),
            fields["sharing"],
        )


def _encoded_slot(place: BufferSlot) -> list[Any]:
    return [place.kind, place.number]


def _encoded_binding(part: BufferBinding) -> list[Any]:
    return [*_encoded_slot(part.slot), part.nbytes, part.offset]


# --- on disk ---


def load(key: CacheKey) -> Artifact | None:
    """The artifact that an earlier process stored, or None. A damaged one is a warning."""
    try:
        entry = ARTIFACTS.read(key)
        tell_lookup(ARTIFACTS, key, entry is not None)
        return None if entry is None else _decoded(key, entry)
    except Damaged as problem:
        warnings.warn(f"artifact cache: {problem}; the program is compiled again", stacklevel=2)
        return None


def _decoded(key: str, entry: bytes) -> Artifact:
    try:
        return Artifact.decoded(entry)
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{ARTIFACTS.path(key)} is no artifact ({error})") from error


def store(key: CacheKey, artifact: Artifact) -> None:
    """Let later processes find ``artifact``."""
    if sum(len(constant.data) for constant in artifact.constants) <= LARGEST:
        ARTIFACTS.store(key, artifact.encoded(), "artifact cache", "programs are compiled again")
        note_stored(ARTIFACTS, key)


def cache_key(
    program: Program, device: KernelDevice, options: Options, batch: str = ""
) -> CacheKey | None:
    """The key of an artifact, or None where none may be loaded or the code's state is unknown.

    Of a program that is built with others ``batch`` says with which: its source has all kernels.
    """
    state = None if switched_on("PTIR_REBUILD_KERNELS") else device_state(device)
    if state is None:
        return None
    staged = repr([sorted(group) for group in options.apart]) if options.staged else ""
    return CacheKey.of(
        {
            **{name: part for name, part in zip(_state_names(state), state, strict=True)},
            "options": repr((sorted(options.donated), options.aliases, options.check_indices)),
            **({"staged": f"staged {staged}"} if staged else {}),
            **({"batch": f"batch {batch}"} if batch else {}),
            "ports": repr([port.kind for port in program.ports]),
            "program": program.main.digest.hex(),
        }
    )


def _state_names(state: tuple[str, ...]) -> tuple[str, ...]:
    """What the parts of ``device_state`` are, for people."""
    last = ("device class", "dialect class", "dialect", "device", "tiles")
    code = (f"code {number}" for number in range(len(state) - 1 - len(last)))
    return ("format", *code, *last)


def device_state(device: KernelDevice) -> tuple[str, ...] | None:
    """What compiling looks at besides a program and options; None where the code is unknown."""
    types = (type(device), type(device.dialect))
    code = code_states(*types)
    if code is None:
        return None
    return (
        f"{FORMAT}.{panels.VERSION}",
        *code,
        *(f"{made.__module__}.{made.__qualname__}" for made in types),
        repr([(name, _settled(value)) for name, value in sorted(vars(device.dialect).items())]),
        repr((device.traits, device.partitioning)),
        repr((tiles_for(device), schedule_of(device))),
    )


def _settled(value: object) -> object:
    """A value whose text is the same in every process: sets have no order of their own."""
    return sorted(value) if isinstance(value, frozenset) else value
