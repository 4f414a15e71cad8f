"""Which of a peer's modules computes what a layer of ours does.

Many families here have the names of their checkpoints, behind which Transformers puts one prefix
or another. Others are matched by their parameters, whose names in checkpoints are known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Modules: TypeAlias = tuple[str, ...]
"""A peer's modules whose results lie side by side in one of ours; mostly it is one."""
Parameter: TypeAlias = tuple[str, int | None]
"""One of ours, and the number of the part of it where a peer has it in parts."""
Held: TypeAlias = tuple[bool, frozenset[Parameter]]
"""Whether a module's parameters are all its own, none a module's in it; and which they are."""


def called_alike(ours: Iterable[str], theirs: Iterable[str]) -> dict[str, Modules]:
    """For layers of ours the module of the same name behind a prefix, the one that most have."""
    names = {*ours}
    held: defaultdict[str, dict[str, str]] = defaultdict(dict)
    votes: Counter[str] = Counter()
    for module in theirs:
        parts = module.split(".")
        for number in range(len(parts)):
            name, prefix = ".".join(parts[number:]), ".".join(parts[:number])
            if name in names:
                held[name][prefix] = module
                votes[prefix] += 1
    return {
        name: (by_prefix[max(by_prefix, key=lambda one: (votes[one], -len(one)))],)
        for name, by_prefix in held.items()
    }


def of_the_same_parameters(
    ours: Sequence[str], theirs: Iterable[str], parameters: Mapping[str, Parameter]
) -> dict[str, Modules]:
    """For layers of ours the module that has the same parameters, or one for each part of them.

    ``parameters`` says of a peer's tensors which of ours they are. What has parameters itself is
    matched with such a module, what holds others with one that does: of several within each other
    that have the same the outermost on both sides, and if there are as many of ours, each.
    """
    known = {name for name, _ in parameters.values()}
    held = _held(ours, {name: (name, None) for name in known})
    modules = _nested(_held(theirs, parameters))
    parts: defaultdict[str, set[int]] = defaultdict(set)
    for name, number in parameters.values():
        if number is not None:
            parts[name].add(number)
    found: dict[str, Modules] = {}
    for (leaf, inside), nested in _nested(held).items():
        numbers = {name: sorted(parts.get(name, ())) for name, _ in inside}
        rows = _with_parameters(leaf, numbers, modules)
        few = None if len(rows) == len(nested) else 1
        found |= zip(nested[:few], rows[:few], strict=False)
    return {name: found[name] for name in ours if name in found}


def _with_parameters(
    leaf: bool, numbers: Mapping[str, list[int]], modules: Mapping[Held, list[str]]
) -> list[Modules]:
    """The modules that have just these parameters, or those that each have one part of all."""
    whole_ones = ((name, None) for name, held in numbers.items() if not held)
    every = ((name, n) for name, held in numbers.items() for n in held)
    whole = modules.get((leaf, frozenset((*whole_ones, *every))))
    if whole is not None:
        return [(module,) for module in whole]
    first = next(iter(numbers.values()))
    each = [modules.get((leaf, frozenset((name, n) for name in numbers))) for n in first]
    return [tuple(one[0] for one in each if one)] if each and all(each) else []


def _held(modules: Iterable[str], parameters: Mapping[str, Parameter]) -> dict[str, Held]:
    """By module whether all its parameters are its own, and which it holds."""
    inside: defaultdict[str, set[Parameter]] = defaultdict(set)
    deeper: set[str] = set()
    for module, tensor in _within(modules, parameters):
        inside[module].add(parameters[tensor])
        if "." in tensor.removeprefix(f"{module}."):
            deeper.add(module)
    return {module: (module not in deeper, frozenset(held)) for module, held in inside.items()}


def _nested(held: Mapping[str, Held]) -> dict[Held, list[str]]:
    """Modules that hold the same, the outermost first."""
    found: defaultdict[Held, list[str]] = defaultdict(list)
    for module in sorted(held, key=_depth):
        found[held[module]].append(module)
    return found


def _within(modules: Iterable[str], tensors: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Each tensor with each of the modules that hold it."""
    known = {*modules}
    for tensor in tensors:
        parts = tensor.split(".")
        for number in range(1, len(parts)):
            module = ".".join(parts[:number])
            if module in known:
                yield module, tensor


def _depth(name: str) -> int:
    return name.count(".")
