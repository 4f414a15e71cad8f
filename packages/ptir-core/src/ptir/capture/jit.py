"""``jit`` and ``capture``: a function recorded once per input signature, then only replayed."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, ParamSpec, TypeVar

from ptir import events
from ptir.backend.buffer import Buffer
from ptir.backend.contract import Feeds, Handle, Options, Target
from ptir.capture.bound import bound_plan
from ptir.capture.build import Captured, build, pending_nodes, target_of
from ptir.capture.creation import adopted, tensor
from ptir.capture.lazy import buffer_of, default_target, materialize
from ptir.capture.plan import Plan, checks_indices
from ptir.capture.plan_key import STALE
from ptir.capture.tensor import Tensor, from_handle, full
from ptir.capture.trace import Tracing, symbol, tracing
from ptir.capture.tree import Assembler, Structure, assembler, flatten, spans, unflatten
from ptir.errors import CaptureError, TypeRuleError
from ptir.ir.graph import Ref, source
from ptir.ir.program import Program
from ptir.ops.overriding import active_overrides
from ptir.types import DTYPES, TensorType

P = ParamSpec("P")
R = TypeVar("R")

MANY_SIGNATURES = 32


def capture(function: Callable[..., Any], *specs: TensorType) -> Program:
    """The program of ``function`` on inputs of the given types; input ports take its names.

    Raises ``CaptureError`` when the function reads a tensor's value.
    """
    for one in specs:
        if not isinstance(one, TensorType):
            kind = type(one).__name__
            raise TypeRuleError(f"capture: {kind} is not a type; write ptir.spec('f32', 2, 3)")
    return record(function, specs, _port_names(function, len(specs)))[0].program


def _port_names(function: Callable[..., Any], count: int) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*names, *(f"x{i}" for i in range(len(names), count))][:count]


def record(
    function: Callable[..., Any], types: Sequence[TensorType], names: Sequence[str]
) -> tuple[Captured, Structure]:
    """What ``function`` records on symbolic tensors, and the structure of its result."""
    symbols = [symbol(type, name) for type, name in zip(types, names, strict=True)]
    began = source(types[0] if types else TensorType(DTYPES["bool"], ())).node.serial
    with Tracing():
        result = function(*(Tensor(ref) for ref in symbols))
    leaves: list[Any] = []
    structure = flatten(result, leaves)
    with Tracing():
        outputs = [_output(leaf).ref for leaf in leaves]
    older = [n for n in pending_nodes(outputs) if n.serial < began]
    if older:
        materialize([Ref(n, i) for n in older for i in range(len(n.types))])
    return build(outputs, symbols, names), structure


def _output(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    if isinstance(leaf, bool | int | float):
        name = "bool" if isinstance(leaf, bool) else "i32" if isinstance(leaf, int) else "f32"
        return full(leaf, DTYPES[name])
    raise CaptureError(
        f"a captured function returned {type(leaf).__name__}; return tensors, Python numbers, None"
        " and tuples, lists, dicts or dataclasses of them"
    )


@dataclass(frozen=True)
class Replay:
    """One captured signature: its plan, what it closes over, and how its result is put together."""

    plan: Plan
    closed: tuple[Buffer, ...]
    parameters: tuple[Handle, ...]
    assemble: Assembler
    types: tuple[TensorType, ...]
    donated: frozenset[int]
    arguments: Mapping[str, range]
    """Which inputs each argument is."""
    results: Mapping[Any, range]
    """Which outputs each element of the result is, where that is a tuple."""


@dataclass(frozen=True)
class _Plain:
    """The last call, where its arguments were tensors by place: most calls are like the last."""

    types: tuple[TensorType, ...]
    around: tuple[Any, ...]
    replay: Replay

    def buffers(self, args: Sequence[Any]) -> list[Buffer] | None:
        """Those of the arguments, or None where they are not alike."""
        if len(args) != len(self.types):
            return None
        for given, type in zip(args, self.types, strict=True):
            if not isinstance(given, Tensor) or given.ref.type != type:
                return None
        buffers = [buffer_of(given.ref) for given in args]
        alike = _around(buffers) == self.around and not self.replay.plan.is_stale
        return buffers if alike else None


class Jitted(Generic[P, R]):
    """A function that is captured once per signature and then replayed. Thread-safe."""

    def __init__(self, function: Callable[P, R], donate: Sequence[str] = ()) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._name: str = getattr(
            function, "__name__", type(function).__name__
        )  # a module has none
        self._signature = inspect.signature(function)
        self._donate = tuple(donate)
        unknown = [name for name in donate if name not in self._signature.parameters]
        if unknown:
            listed = ", ".join(self._signature.parameters)
            raise TypeRuleError(
                f"jit: donate names {unknown[0]!r}, which {self._name}({listed}) lacks"
            )
        self._replays: dict[Any, Replay] = {}
        self._latest: tuple[Any, Replay | None] = (None, None)
        self._plain: _Plain | None = None
        self._lock = threading.RLock()

    @property
    def signatures(self) -> int:
        """How many signatures have been captured."""
        return len(self._replays)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the signatures captured so far, oldest first."""
        return tuple(replay.plan for replay in self._replays.values())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Replay the function for these arguments, capturing it first if they are new."""
        if tracing():
            return self._function(*args, **kwargs)
        replay, buffers = self._replay(args, kwargs)
        if replay.donated:
            with self._consuming(replay, buffers) as handles:
                outputs = replay.plan.run(handles, replay.parameters)
        else:
            outputs = replay.plan.run(_handles(replay, buffers), replay.parameters)
        result: R = self._result(replay, outputs)
        return result

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """Capture the function for these arguments if they are new; nothing runs."""
        return self._replay(args, kwargs)[0].plan

    def repeat(
        self, count: int, feeds: Mapping[str, int], keep: int, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[list[Tensor], R]:
        """``count`` calls in a row, submitted at once where the backend can.

        The function returns a tuple. ``feeds`` names arguments, each with the number of the element
        that it is from the second call on, of the same structure and types. Returns element
        ``keep`` of every result, a tensor, and the last result. What is donated and not fed back
        would be consumed by the first call: ``CaptureError``.
        """
        if count < 1:
            raise CaptureError(f"repeat: {count} runs; ask for at least one")
        lost = [name for name in self._donate if name not in feeds]
        if lost and count > 1:
            raise CaptureError(
                f"repeat: {lost[0]!r} is donated to the first call and no element of the result is"
                " what the next one is given; name it in feeds"
            )
        replay, buffers = self._replay(args, kwargs)
        places, kept = _fed(replay, feeds, keep)
        with self._consuming(replay, buffers) as handles:
            every, outputs = replay.plan.repeat(handles, replay.parameters, places, count, kept)
        result: R = self._result(replay, outputs)
        return [_resident(handle, replay.types[kept], replay) for handle in every], result

    def _replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Replay, list[Buffer]]:
        """What is replayed for the arguments, captured now if they are new, and their buffers."""
        plain = self._plain  # another thread may change it
        if plain is not None and not kwargs:
            buffers = plain.buffers(args)
            if buffers is not None:
                return plain.replay, buffers
        bound = self._signature.bind(*args, **kwargs)
        leaves: list[Any] = []
        structure = flatten(bound.arguments, leaves)
        tensors, described = self._inspect(leaves)
        buffers = [buffer_of(t.ref) for t in tensors]
        around = _around(buffers)
        key = (structure, described, *around)
        latest, replay = self._latest
        if latest != key:  # comparing types that are mostly the same objects beats hashing them
            replay = self._replays.get(key)
        if replay is None or replay.plan.is_stale:
            replay = self._captured(key, structure, leaves, buffers)
        self._latest = (key, replay)
        is_plain = not kwargs and all(isinstance(one, Tensor) for one in args)
        self._plain = _Plain(described, around, replay) if is_plain else None
        return replay, buffers

    def _inspect(self, leaves: list[Any]) -> tuple[list[Tensor], tuple[Any, ...]]:
        """The tensor leaves, and the part of the key that describes leaves."""
        tensors: list[Tensor] = []
        described: list[Any] = []
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor | bool | int | float | str | None):
                leaf = leaves[i] = _as_argument(leaf)
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                described.append(leaf.ref.type)
            else:
                described.append((type(leaf), repr(leaf)))
        return tensors, tuple(described)

    def _captured(
        self,
        key: Any,
        structure: Structure,
        leaves: list[Any],
        buffers: list[Buffer],
    ) -> Replay:
        with self._lock:
            if key in self._replays and not self._replays[key].plan.is_stale:
                return self._replays[key]
            if events.listening():
                why = _why_new(key, [*self._replays])
                events.emit(events.CacheLookup("signatures", self._name, False, why))
            static = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]

            def positional(*tensors: Tensor) -> Any:
                values = iter(tensors)
                full = (next(values) if s is None else s[0] for s in static)
                arguments = unflatten(structure, full)
                bound = inspect.BoundArguments(self._signature, arguments)
                return self._function(*bound.args, **bound.kwargs)

            names = [f"x{i}" for i in range(len(buffers))]
            captured, result = record(positional, [b.type for b in buffers], names)
            target = _common_target(buffers, captured)
            aliases = _aliases([*buffers, *captured.closed])
            arguments = _inputs(structure, leaves)
            donated = frozenset(i for name in self._donate for i in arguments.get(name, ()))
            options = Options(donated, aliases, checks_indices())
            plan, parameters = bound_plan(
                captured.program, captured.parameters, target, options, self._name
            )
            types = captured.program.outputs
            assemble, results = assembler(result), spans(result)
            replay = Replay(
                plan, captured.closed, parameters, assemble, types, donated, arguments, results
            )
            self._replays[key] = replay
            if len(self._replays) == MANY_SIGNATURES:
                warnings.warn(
                    f"jit({self._name}) has captured {MANY_SIGNATURES} signatures;"
                    " pass values that change as tensors, not as Python numbers",
                    stacklevel=4,
                )
            return replay

    @contextmanager
    def _consuming(self, replay: Replay, buffers: list[Buffer]) -> Iterator[list[Handle]]:
        """The handles for a run, which consumes what is donated, also when it fails."""
        target = replay.plan.target
        handles = [buffer.handle for buffer in buffers]
        for buffer in {buffers[position] for position in replay.donated}:
            buffer.claim(f"it was donated to {self._name}")
        for position in replay.donated:
            if buffers[position].aliased:
                handles[position] = target.backend.copy(handles[position], target.device)
        handles += [buffer.handle for buffer in replay.closed]  # an error for what was claimed
        try:
            yield handles
        except BaseException:
            for position in replay.donated:
                buffers[position].consume("a failed run consumed it")
            raise

    def _result(self, replay: Replay, outputs: Sequence[Handle]) -> Any:
        tensors = (
            _resident(handle, type, replay)
            for handle, type in zip(outputs, replay.types, strict=True)
        )
        return replay.assemble(tensors)


KEY: Final = (
    *("structure of arguments", "types or values of arguments", "sharing of buffers"),
    *("overrides", "target, or checks of indices"),
)
"""What the parts of a signature's key are, for people."""


def _why_new(key: tuple[Any, ...], known: Sequence[tuple[Any, ...]]) -> str:
    """What the signature that was captured last differs in."""
    if not known:
        return "it was never called"
    pairs = zip(KEY, key, known[-1], strict=True)
    found = [name for name, now, before in pairs if now != before]
    return f"other {', '.join(found)}" if found else f"its plan is stale: {STALE}"


def _inputs(structure: Any, leaves: Sequence[Any]) -> dict[str, range]:
    """Which inputs each argument is: its leaves that are tensors."""
    tensors = [0]
    for leaf in leaves:
        tensors.append(tensors[-1] + isinstance(leaf, Tensor))
    return {
        name: range(tensors[span.start], tensors[span.stop])
        for name, span in spans(structure).items()
    }


def _fed(replay: Replay, feeds: Mapping[str, int], keep: int) -> tuple[Feeds, int]:
    """The inputs that outputs become, and the output that is kept; raises ``CaptureError``."""
    found: list[tuple[int, int]] = []
    for element in (keep, *feeds.values()):
        if element not in replay.results:
            raise CaptureError(
                f"repeat: the result has no element {element}; the function returns a tuple, and"
                f" its elements are {', '.join(map(str, replay.results)) or 'none'}"
            )
    for name in feeds:
        if name not in replay.arguments:
            listed = ", ".join(replay.arguments)
            raise CaptureError(f"repeat: feeds names {name!r}; the arguments are {listed}")
    if len(replay.results[keep]) != 1:
        raise CaptureError(
            f"repeat: element {keep} of the result is {len(replay.results[keep])} tensors; keep one"
            " that is a tensor"
        )
    (kept,) = replay.results[keep]
    for name, element in feeds.items():
        into, out = replay.arguments[name], replay.results[element]
        given = [replay.plan.captured.inputs[i] for i in into]
        if given != [replay.types[i] for i in out]:
            listed = ", ".join(str(replay.types[i]) for i in out)
            wanted = ", ".join(map(str, given))
            raise CaptureError(
                f"repeat: {name!r} is ({wanted}) and element {element} of the result is ({listed});"
                " what is fed back keeps its types"
            )
        found += zip(into, out, strict=True)
    return found, kept


def _resident(handle: Handle, type: TensorType, replay: Replay) -> Tensor:
    """An output's handle as a tensor that owns it."""
    return from_handle(handle, type, replay.plan.target)


def _as_argument(leaf: Any) -> Tensor:
    """A tensor for an array given to a jitted function: where it lies, if on the device."""
    if hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__"):
        target = default_target()
        found = adopted(leaf, target)
        return tensor(leaf, backend=target) if found is None else found
    raise CaptureError(
        f"jit: an argument holds {type(leaf).__name__}; pass tensors, arrays, numbers, strings,"
        " None and tuples, lists, dicts or dataclasses of them"
    )


def _aliases(buffers: Sequence[Buffer]) -> tuple[tuple[int, ...], ...]:
    """Groups of positions that hold one and the same buffer."""
    positions: dict[int, list[int]] = {}
    for position, buffer in enumerate(buffers):
        positions.setdefault(id(buffer), []).append(position)
    if len(positions) == len(buffers):
        return ()
    return tuple(tuple(group) for group in positions.values() if len(group) > 1)


def _around(buffers: Sequence[Buffer]) -> tuple[Any, ...]:
    """What of a signature is no structure, type or value: the last of ``KEY``."""
    where = str(buffers[0].target) if buffers else ""
    return _aliases(buffers), active_overrides(), (where, checks_indices())


def _handles(replay: Replay, buffers: Sequence[Buffer]) -> list[Handle]:
    """The handles for a run."""
    return [*(buffer.handle for buffer in buffers), *(buffer.handle for buffer in replay.closed)]


def _common_target(buffers: Sequence[Buffer], captured: Captured) -> Target:
    everything = Captured(captured.program, (*buffers, *captured.closed), captured.parameters)
    return target_of(everything, default_target)


def jit(function: Callable[P, R] | None = None, *, donate: Sequence[str] = ()) -> Any:
    """Capture ``function`` once per input signature, then only replay it.

    The signature is the structure, types and sharing of the tensors, the values of Python numbers
    and strings, and the overrides in force. Tensors in the arguments named by ``donate`` are
    consumed: their memory is reused, and using them afterwards raises ``CaptureError``. Inside,
    reading a tensor's value raises ``CaptureError``; closed-over tensors become inputs.
    """
    if function is None:
        return functools.partial(jit, donate=donate)
    return Jitted(function, donate)


__all__ = ["Jitted", "capture", "jit", "record"]
