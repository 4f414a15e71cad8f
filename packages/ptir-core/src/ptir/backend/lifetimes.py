"""Which values of a block share memory where instructions run one by one, and how much there is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ptir.backend.contract import Options
from ptir.backend.control import CONTROL, handed_on
from ptir.ir.program import Block
from ptir.ops.record import OPS


class Storage:
    """Which values of a block share memory, and when each is read last.

    An op with the trait ``view`` may return its first operand's memory; control flow may return
    any of its operands', but what a scan stacks is new. Everything that may share memory forms
    one group.
    """

    def __init__(self, block: Block, options: Options) -> None:
        self._block = block
        self._group = list(range(len(block.types)))
        self._fixed: set[int] = {v for v in range(len(block.inputs)) if v not in options.donated}
        self._constants: set[int] = set()
        for aliased in options.aliases:
            for number in aliased[1:]:
                self._join(aliased[0], number)
            self._fixed.add(aliased[0])
        self._scan()
        self._last_value, self._last_group = self._last_reads()

    def inputs_behind(self, values: Sequence[int]) -> frozenset[int]:
        """The inputs that the values are, or may share memory with."""
        roots = {self._root(value) for value in values}
        return frozenset(n for n in range(len(self._block.inputs)) if self._root(n) in roots)

    def _root(self, value: int) -> int:
        while self._group[value] != value:
            value = self._group[value]
        return value

    def _join(self, a: int, b: int) -> None:
        self._group[self._root(b)] = self._root(a)

    def _scan(self) -> None:
        for results, instruction in self._block.numbered():
            if instruction.op == "constant":
                self._constants.add(results[0])
            elif instruction.op in CONTROL:
                handed = results[: handed_on(instruction)]
                for value in (*instruction.operands, *handed)[1:]:
                    self._join(instruction.operands[0], value)
            elif "view" in OPS[instruction.op].traits:
                self._join(instruction.operands[0], results[0])
        self._constant_groups = {self._root(v) for v in self._constants}
        self._fixed_groups = {self._root(v) for v in self._fixed} | self._constant_groups

    def _last_reads(self) -> tuple[dict[int, int], dict[int, int]]:
        by_value: dict[int, int] = {}
        by_group: dict[int, int] = {}
        for position, (results, instruction) in enumerate(self._block.numbered()):
            for value in (*instruction.operands, *results):
                by_value[value] = by_group[self._root(value)] = position
        end = len(self._block.instructions)
        for value in self._block.outputs:
            by_value[value] = by_group[self._root(value)] = end
        return by_value, by_group

    def most_bytes(self) -> int:
        """Most bytes at once of values that are neither inputs nor outputs; views have none."""
        outside = {*range(len(self._block.inputs)), *self._block.outputs, *self._constants}
        groups = {self._root(v) for v in outside}
        sizes: dict[int, int] = {}
        changes = [0] * (len(self._block.instructions) + 2)
        for position, (results, _) in enumerate(self._block.numbered()):
            for value in results:
                root = self._root(value)
                if root not in groups and root not in sizes:
                    sizes[root] = self._block.types[value].nbytes
                    changes[position] += sizes[root]
                    changes[self._last_group[root] + 1] -= sizes[root]
        return max(accumulate(changes))

    def dead_after(self, position: int) -> tuple[int, ...]:
        """Values that nothing reads after the instruction at ``position``."""
        return tuple(v for v, last in self._last_value.items() if last == position)

    def reusable(self, position: int) -> frozenset[int]:
        """Operand positions of an instruction whose memory dies with it and belongs to the run."""
        instruction = self._block.instructions[position]
        roots = [self._root(v) for v in instruction.operands]
        return frozenset(
            index
            for index, root in enumerate(roots)
            if self._last_group[root] == position
            and root not in self._fixed_groups
            and roots.count(root) == 1
        )

    def copied_outputs(self, region: bool) -> tuple[bool, ...]:
        """For each output, whether it must be copied so that it aliases nothing.

        A region's outputs may alias its inputs and each other, since whoever runs it takes all of
        them for one piece of memory; they may not alias its constants.
        """
        roots = [self._root(v) for v in self._block.outputs]
        if region:
            return tuple(root in self._constant_groups for root in roots)
        return tuple(
            root in self._fixed_groups or roots.index(root) != index
            for index, root in enumerate(roots)
        )
