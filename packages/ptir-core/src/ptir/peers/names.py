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

    ``parameters`` says of a peer's tensors which of ours they are. Of modules within each other
    that have the same it is the outermost on both sides, and if there are as many of ours, each.
    """
    parts: defaultdict[str, set[int]] = defaultdict(set)
    for name, number in parameters.values():
        if number is not None:
            parts[name].add(number)
    inside: defaultdict[str, set[Parameter]] = defaultdict(set)
    for module, tensor in _within(theirs, parameters):
        inside[module].add(parameters[tensor])
    modules: defaultdict[frozenset[Parameter], list[str]] = defaultdict(list)
    for module in sorted(inside, key=_depth):
        modules[frozenset(inside[module])].append(module)
    held: defaultdict[str, set[str]] = defaultdict(set)
    for layer, name in _within(ours, {name for name, _ in parameters.values()}):
        held[layer].add(name)
    layers: defaultdict[frozenset[str], list[str]] = defaultdict(list)
    for layer in sorted(held, key=_depth):
        layers[frozenset(held[layer])].append(layer)
    found: dict[str, Modules] = {}
    for names, nested in layers.items():
        rows = _with_parameters(names, parts, modules)
        few = None if len(rows) == len(nested) else 1
        found |= zip(nested[:few], rows[:few], strict=False)
    return {name: found[name] for name in ours if name in found}


def _with_parameters(
    names: frozenset[str],
    parts: Mapping[str, set[int]],
    modules: Mapping[frozenset[Parameter], list[str]],
) -> list[Modules]:
    """The modules that have just these parameters, or those that each have one part of all."""
    numbers: dict[str, list[int | None]] = {one: [*parts.get(one, ())] or [None] for one in names}
    whole = modules.get(frozenset((name, n) for name in names for n in numbers[name]))
    if whole is not None:
        return [(module,) for module in whole]
    every = sorted(n for n in next(iter(numbers.values())) if n is not None)
    each = [modules.get(frozenset((name, n) for name in names)) for n in every]
    return [tuple(one[0] for one in each if one)] if each and all(each) else []


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
