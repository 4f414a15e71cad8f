"""Chooses a strategy for each op of a program: a beam search along the program.

A state is where the values are that later ops still need, and in which phase they were made. Two
states that agree in this have the same future, so only the cheaper one goes on; of those that
differ, the cheapest few do. A value that is not as an op needs it is communicated: whoever
reads it then is at least one phase later than who made it, and each further phase costs a barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ptir.ir.program import Instruction, Program
from ptir.partition.costs import Costs
from ptir.partition.search_space import SearchSpace
from ptir.sharding.placement import REPLICATED, Partial, Placement
from ptir.sharding.strategies import Strategy

BEAM_WIDTH: Final = 16
"""How many states go on after each op."""
SMALL: Final = 0.05
"""The part of a barrier up to which everybody does what everybody can do."""


@dataclass(frozen=True)
class Decision:
    """The strategy of one instruction, its phase, and what is communicated for it.

    ``whole`` are the operands made whole in their next phase, to be kept; ``parts`` those of which
    each worker brings its own part only together, in the instruction's phase.
    """

    number: int
    strategy: Strategy
    phase: int
    whole: tuple[tuple[int, int], ...]
    """Values and the phases in which they are made whole."""
    parts: tuple[int, ...]


@dataclass(frozen=True)
class History:
    """The decisions so far, the last one first."""

    decision: Decision
    before: History | None


@dataclass(frozen=True)
class LiveValue:
    """A value's placement and the phase from which on workers have it."""

    placement: Placement
    phase: int


@dataclass(frozen=True)
class State:
    """One way to have done the program so far."""

    seconds: float
    phases: int
    live: dict[int, LiveValue]
    history: History | None

    def key(self) -> frozenset[tuple[int, Placement, int]]:
        """What the future depends on: states with equal keys differ in cost alone."""
        return frozenset(
            (v, where.placement, self.phases - where.phase) for v, where in self.live.items()
        )


def search(
    program: Program, workers: int, costs: Costs
) -> tuple[list[Decision], SearchSpace, float]:
    """The decisions of the cheapest way found, in order, and its cost; views have none."""
    space = SearchSpace(program, workers, costs)
    outputs = set(program.main.outputs)
    states = [State(0.0, 0, {}, None)]
    for number, instruction in enumerate(program.main.instructions):
        if space.results[number] and space.results[number][0] in space.views:
            continue
        strategies = [
            (chosen, space.seconds(instruction, chosen)) for chosen in space.strategies(number)
        ]
        found: dict[frozenset[tuple[int, Placement, int]], State] = {}
        small = strategies[0][1] <= SMALL * costs.barrier_seconds
        for state in states:
            alike = small and _is_whole(state, instruction)
            for chosen, seconds in strategies[:1] if alike else strategies:
                after = _after(space, state, number, chosen, seconds, outputs)
                key = after.key()
                if key not in found or after.seconds < found[key].seconds:
                    found[key] = after
        states = _pruned(space, found.values())
    best = min(states, key=lambda state: _ending(space, state))
    return list(_listed(best.history)), space, _ending(space, best)


def _is_whole(state: State, instruction: Instruction) -> bool:
    """Whether every worker has all operands: then each has the result for next to nothing."""
    where = (state.live.get(v) for v in instruction.operands)
    return all(one is None or one.placement == REPLICATED for one in where)


def _pruned(space: SearchSpace, found: Iterable[State]) -> list[State]:
    """The cheapest states, without those that the best one could become for what they cost more.

    Once everything has been brought together, at a barrier or two, every way is open to it.
    """
    states = sorted(found, key=lambda state: state.seconds)[:BEAM_WIDTH]
    best = states[0]
    turned = best.seconds + 2 * space.costs.barrier_seconds
    for value, where in best.live.items():
        if where.placement != REPLICATED:
            turned += space.communication(value, where.placement, REPLICATED)
    return [state for state in states if state.seconds <= turned]


def _after(
    space: SearchSpace,
    state: State,
    number: int,
    chosen: Strategy,
    seconds: float,
    outputs: set[int],
) -> State:
    """The state behind an instruction under a strategy."""
    instruction = space.block.instructions[number]
    live = dict(state.live)
    phase, whole, parts = 0, list[tuple[int, int]](), list[int]()
    for value, needs in zip(instruction.operands, chosen.operands, strict=True):
        if value in space.views:
            continue
        where = live[value]
        if where.placement in (needs, REPLICATED):
            phase = max(phase, where.phase)
            continue
        seconds += space.communication(value, where.placement, needs)
        phase = max(phase, where.phase + 1)
        if needs == REPLICATED or not isinstance(where.placement, Partial):
            live[value] = LiveValue(REPLICATED, where.phase + 1)
            whole.append((value, where.phase + 1))
        else:
            parts.append(value)
    for value, placement in zip(space.results[number], chosen.results, strict=True):
        live[value] = LiveValue(placement, phase)
    phases = max(state.phases, phase)
    seconds += (phases - state.phases) * space.costs.barrier_seconds
    for value in (*instruction.operands, *space.results[number]):
        dead = space.last[value] <= number and value in live
        if dead and (value not in outputs or not isinstance(live[value].placement, Partial)):
            del live[value]
    decision = Decision(number, chosen, phase, tuple(whole), tuple(dict.fromkeys(parts)))
    return State(state.seconds + seconds, phases, live, History(decision, state.history))


def _ending(space: SearchSpace, state: State) -> float:
    """The cost of a state at the end: addends of outputs are still to be added."""
    total = state.seconds
    for value, where in state.live.items():
        total += space.communication(value, where.placement, REPLICATED)
        if where.phase == state.phases:
            total += space.costs.barrier_seconds
    return total


def _listed(history: History | None) -> Iterator[Decision]:
    found: list[Decision] = []
    while history is not None:
        found.append(history.decision)
        history = history.before
    yield from reversed(found)
