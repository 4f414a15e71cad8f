"""Optimized programs on disk: what the passes made in one process, later ones take from there.

For a model of many layers the passes take longer than everything else before its first token. An
entry's name holds all that they look at: the program with its locations, the rules and stages, what
the backend says of itself (``Backend.cache_identity``), and the ``PTIR_`` variables. Nothing is
kept where something else takes part: implementations, passes and rules of plugins, what is being
timed, somebody who hears what the passes do, or verifying in between.

Entries are pickled, as nothing else restores thousands of small records as fast; only the records
of programs are accepted when they are read.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import warnings
from collections.abc import Mapping
from typing import Any, Final

from ptir import events
from ptir.backend.cache_key import CacheKey, note_stored
from ptir.backend.disk_cache import Damaged, DiskCache
from ptir.backend.folders import ENVIRONMENT
from ptir.ir.location import Location
from ptir.ir.program import Block, Program
from ptir.ops.implementations import FUNCTIONALS, never
from ptir.ops.policies import Overrides
from ptir.passes.context import Derivation, PassContext
from ptir.passes.pipeline import PLUGGED, optimize, pipeline_key
from ptir.passes.remembered import records_state
from ptir.rewrite.plugged import PLUGGED_RULES
from ptir.rewrite.worth import ADDED
from ptir.switches import switched_on
from ptir.types import DTYPES, DType

FORMAT: Final = 1
PROGRAMS: Final = DiskCache("programs", FORMAT, limit=256 << 20)

UNUSED: Final = "not looked up: while somebody hears what passes do, they run"

LEAST: Final = 64
"""Instructions below which a program is optimized as fast as it is read."""

RECORDS: Final = frozenset(
    {
        *(("ptir.ir.program", name) for name in ("Program", "Block", "Instruction", "Port")),
        *(("ptir.ir.attributes", name) for name in ("Attributes", "Literal")),
        ("ptir.ir.location", "Location"),
        ("ptir.types", "TensorType"),
        ("ptir.backend.contract", "Derivation"),
    }
)
"""What an entry may hold besides tuples, dictionaries, numbers and text."""

Optimized = tuple[Program, Mapping[str, Derivation]]


def optimized(program: Program, context: PassContext) -> Program:
    """``ptir.passes.optimize``, or what it gave an earlier process."""
    key = _key(program, context)
    if key is None:
        if events.listening():
            events.emit(events.CacheLookup(PROGRAMS.name, "", False, UNUSED))
        return optimize(program, context)
    found = _read(key)
    if found is not None:
        context.derived.update(found[1])
        return found[0]
    made = optimize(program, context)
    entry = _pickled((made, dict(context.derived)))
    PROGRAMS.store(key, entry, "program cache", "programs are optimized again")
    note_stored(PROGRAMS, key)
    return made


def _key(program: Program, context: PassContext) -> CacheKey | None:
    """The name of an entry, or None where none may be used."""
    alone = not (PLUGGED or PLUGGED_RULES or ADDED or events.listening())
    asked = _asked(context.overrides) if alone else None
    if asked is None or len(program.main.instructions) < LEAST:
        return None
    if switched_on("PTIR_REBUILD_KERNELS") or switched_on("PTIR_VERIFY"):
        return None
    identity = context.backend.cache_identity(context.device)
    if identity is None:
        return None
    variables = sorted(item for item in os.environ.items() if item[0].startswith("PTIR_"))
    return CacheKey.of(
        {
            "format": str(FORMAT),
            "backend": identity,
            "pipeline": pipeline_key(),
            "environment": repr([item for item in variables if item[0] != ENVIRONMENT]),
            "checks": repr(context.check_indices),
            "overrides": asked,
            "program": program.digest,
            "locations": _locations(program.main),
        }
    )


def _asked(overrides: Overrides) -> str | None:
    """What overrides ask for, with what decides it; None where that is timed, or others' code."""
    for one in overrides:
        lowerings = (each.lower for each in FUNCTIONALS[one.functional].implementations.values())
        modules = (getattr(lower, "__module__", "") for lower in lowerings)
        if one.policy.kind == "benchmark" or not all(m.startswith("ptir.") for m in modules):
            return None
    every = (one for found in FUNCTIONALS.values() for one in found.implementations.values())
    preferred = (one.preferred for one in every if one.preferred is not never)
    if not all(getattr(one, "__module__", "").startswith("ptir.") for one in preferred):
        return None
    tuned = any(one.policy.kind == "tuned" for one in overrides)
    return repr([*map(str, overrides), records_state() if tuned else ""])


def _locations(block: Block) -> str:
    """A digest of where all instructions come from."""
    state, known = hashlib.blake2b(digest_size=16), dict[int, bytes]()
    seen = set[int]()

    def visit(block: Block) -> None:
        if id(block) in seen:
            return
        seen.add(id(block))
        for instruction in block.instructions:
            location: Location = instruction.location
            text = known.get(id(location))
            if text is None:
                text = known[id(location)] = repr(tuple(location)).encode()
            state.update(text)
            for region in instruction.regions:
                visit(region)

    visit(block)
    return state.hexdigest()


# --- entries ---


class _Pickler(pickle.Pickler):
    """Element types are named: there is one record of each."""

    def persistent_id(self, value: Any) -> str | None:
        return value.name if isinstance(value, DType) else None


class _Unpickler(pickle.Unpickler):
    """Accepts the records of programs alone."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in RECORDS:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return super().find_class(module, name)

    def persistent_load(self, name: str) -> DType:
        return DTYPES[name]


def _pickled(made: Optimized) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(made)
    return file.getvalue()


def _read(key: str) -> Optimized | None:
    """The entry of an earlier process, or None. A damaged one is a warning."""
    try:
        entry = PROGRAMS.read(key)
        return None if entry is None else _unpickled(entry)
    except Damaged as error:
        problem = str(error)
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        problem = f"{PROGRAMS.path(key)}: {error}"
    warnings.warn(f"program cache: {problem}; the program is optimized again", stacklevel=3)
    return None


def _unpickled(entry: bytes) -> Optimized:
    """What ``_pickled`` was given; raises what ``_read`` handles."""
    program, derived = _Unpickler(io.BytesIO(entry)).load()
    if not isinstance(program, Program) or not isinstance(derived, dict):
        raise pickle.UnpicklingError("it is no program")
    return program, derived
