"""Chooses how each op of a program is shared: a search along the program, the cheapest first.

A state is where the values are that later ops still need, and in which phase they were made. Two
states that agree in this have the same future, so only the cheaper one goes on; of those that
differ, the cheapest few do. A value that is not as an op needs it crosses between workers: whoever
reads it then is at least one phase later than who made it, and each further phase costs a barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ptir.ir.program import Instruction, Program
from ptir.partition.choices import Choice
from ptir.partition.costs import Costs
from ptir.partition.facts import Facts
from ptir.partition.placement import WHOLE, Partial, Placement

STATES: Final = 16
"""How many states go on after each op."""
SMALL: Final = 0.05
"""The part of a barrier up to which everybody does what everybody can do."""


@dataclass(frozen=True)
class Decision:
    """How one instruction is shared, in which phase, and what crosses for it.

    ``whole`` are the operands collected in their next phase, to be kept; ``parts`` those of which
    each worker collects its own part only, in the instruction's phase.
    """

    number: int
    choice: Choice
    phase: int
    whole: tuple[tuple[int, int], ...]
    """Values and the phases in which they are collected."""
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """The decisions so far, the last one first."""

    decision: Decision
    before: Chain | None


@dataclass(frozen=True)
class Where:
    """A value's placement and the phase from which on workers have it."""

    placement: Placement
    phase: int


@dataclass(frozen=True)
class State:
    """One way to have done the program so far."""

    seconds: float
    phases: int
    live: dict[int, Where]
    chain: Chain | None

    def key(self) -> frozenset[tuple[int, Placement, int]]:
        """What the future depends on: states with equal keys differ in cost alone."""
        return frozenset(
            (v, where.placement, self.phases - where.phase) for v, where in self.live.items()
        )


def search(program: Program, workers: int, costs: Costs) -> tuple[list[Decision], Facts, float]:
    """The decisions of the cheapest way found, in order, and its cost; views have none."""
    facts = Facts(program, workers, costs)
    outputs = set(program.main.outputs)
    states = [State(0.0, 0, {}, None)]
    for number, instruction in enumerate(program.main.instructions):
        if facts.results[number] and facts.results[number][0] in facts.views:
            continue
        choices = [(chosen, facts.seconds(instruction, chosen)) for chosen in facts.choices(number)]
        found: dict[frozenset[tuple[int, Placement, int]], State] = {}
        small = choices[0][1] <= SMALL * costs.barrier_seconds
        for state in states:
            alike = small and _is_whole(state, instruction)
            for chosen, seconds in choices[:1] if alike else choices:
                after = _after(facts, state, number, chosen, seconds, outputs)
                key = after.key()
                if key not in found or after.seconds < found[key].seconds:
                    found[key] = after
        states = _promising(facts, found.values())
    best = min(states, key=lambda state: _ending(facts, state))
    return list(_listed(best.chain)), facts, _ending(facts, best)


def _is_whole(state: State, instruction: Instruction) -> bool:
    """Whether every worker has all operands: then each has the result for next to nothing."""
    where = (state.live.get(v) for v in instruction.operands)
    return all(one is None or one.placement == WHOLE for one in where)


def _promising(facts: Facts, found: Iterable[State]) -> list[State]:
    """The cheapest states, without those that the best one could become for what they cost more.

    Once everything has been brought together, at a barrier or two, every way is open to it.
    """
    states = sorted(found, key=lambda state: state.seconds)[:STATES]
    best = states[0]
    turned = best.seconds + 2 * facts.costs.barrier_seconds
    for value, where in best.live.items():
        if where.placement != WHOLE:
            turned += facts.crossing(value, where.placement, WHOLE)
    return [state for state in states if state.seconds <= turned]


def _after(
    facts: Facts, state: State, number: int, chosen: Choice, seconds: float, outputs: set[int]
) -> State:
    """The state behind an instruction that is shared so."""
    instruction = facts.block.instructions[number]
    live = dict(state.live)
    phase, whole, parts = 0, list[tuple[int, int]](), list[int]()
    for value, needs in zip(instruction.operands, chosen.operands, strict=True):
        if value in facts.views:
            continue
        where = live[value]
        if where.placement in (needs, WHOLE):
            phase = max(phase, where.phase)
            continue
        seconds += facts.crossing(value, where.placement, needs)
        phase = max(phase, where.phase + 1)
        if needs == WHOLE or not isinstance(where.placement, Partial):
            live[value] = Where(WHOLE, where.phase + 1)
            whole.append((value, where.phase + 1))
        else:
            parts.append(value)
    for value, placement in zip(facts.results[number], chosen.results, strict=True):
        live[value] = Where(placement, phase)
    phases = max(state.phases, phase)
    seconds += (phases - state.phases) * facts.costs.barrier_seconds
    for value in (*instruction.operands, *facts.results[number]):
        dead = facts.last[value] <= number and value in live
        if dead and (value not in outputs or not isinstance(live[value].placement, Partial)):
            del live[value]
    decision = Decision(number, chosen, phase, tuple(whole), tuple(dict.fromkeys(parts)))
    return State(state.seconds + seconds, phases, live, Chain(decision, state.chain))


def _ending(facts: Facts, state: State) -> float:
    """The cost of a state at the end: addends of outputs are still to be added."""
    total = state.seconds
    for value, where in state.live.items():
        total += facts.crossing(value, where.placement, WHOLE)
        if where.phase == state.phases:
            total += facts.costs.barrier_seconds
    return total


def _listed(chain: Chain | None) -> Iterator[Decision]:
    found: list[Decision] = []
    while chain is not None:
        found.append(chain.decision)
        chain = chain.before
    yield from reversed(found)
