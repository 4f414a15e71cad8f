"""The memories of a kernel: arguments and arrays, the bytes behind them, and who may touch what.

What comes in: every use of a memory, with where in it that lies. What goes out: sentences on what
is not there, is not what it is taken for, or may not be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import is_alike, whole_word
from ptir.codegen.expressions.index import Index
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.ranges import bounds, is_unreached
from ptir.codegen.kernel_ir.scopes import Scopes
from ptir.types import U32, DType


class Memories:
    """What is known by name; ``nbytes`` are the bytes behind arguments, where they are known."""

    def __init__(self, arguments: Iterable[Argument], nbytes: Mapping[str, int]) -> None:
        self.arguments = {argument.name: argument for argument in arguments}
        self.arrays: dict[str, nodes.Array] = {}
        self.words: set[str] = set()
        """What names 16 bytes."""
        self.addresses: set[str] = set()
        """What holds addresses."""
        self._nbytes = nbytes
        self._used: set[str] = set()

    def array(self, one: nodes.Array, workgroup_size: int) -> Iterator[str]:
        """Declare an array, and say what is wrong with it."""
        if one.name in self.arrays or one.name in self.arguments:
            yield f"{one.name} is declared twice"
        if one.shared and workgroup_size == 1:
            yield f"array {one.name} is shared, and the kernel is not one of workgroups"
        if one.numbers and (one.shared or one.dtype != U32 or len(one.numbers) != one.size):
            yield f"array {one.name} is no constant of {one.size} u32"
        self.arrays[one.name] = one

    def touched(
        self, scopes: Scopes, memory: str, dtype: DType, at: Index, count: int, written: bool
    ) -> Iterator[str]:
        """What is wrong with reading or writing ``count`` elements from a place on."""
        argument, verb = self.arguments.get(memory), "written" if written else "read"
        self._used.add(memory)
        if argument is not None and written and not argument.written:
            yield f"argument {memory} is written, and is not declared so"
        if written and memory in self.arrays and self.arrays[memory].numbers:
            yield f"array {memory} is written, and is a constant"
        if argument is None and memory not in self.arrays:
            yield f"{memory} is {verb}, and is neither an argument nor an array"
        element = self.element(memory, dtype, written)
        fits = dtype in (element, whole_word(element)) if written else is_alike(dtype, element)
        if not fits:
            yield f"{memory} holds {element} and is {verb} as {dtype}"
        size, (low, high) = self._size(memory, element), bounds(scopes, at)
        beyond = low < 0 or (size is not None and high + count > size)
        if beyond and not is_unreached(scopes):
            of = "" if size is None else f" of {size} elements"
            yield f"{memory}{of} is {verb} at {low} to {high + count - 1} ({at!r})"

    def element(self, memory: str, dtype: DType, written: bool) -> DType:
        """What is taken for an element of ``dtype``: of an array its own, or a part of a word.

        An argument is read and written as any type.
        """
        array = self.arrays.get(memory)
        is_part = written and array is not None and array.dtype == U32 and dtype.bits < 32
        return dtype if array is None or is_part else array.dtype

    def _size(self, memory: str, dtype: DType) -> int | None:
        """The elements of a type that a memory holds, where that is known."""
        array, nbytes = self.arrays.get(memory), self._nbytes.get(memory)
        if array is not None:
            nbytes = array.size * array.dtype.itemsize
        return None if nbytes is None else nbytes // dtype.itemsize

    def listed(self, one: nodes.Addresses) -> Iterator[str]:
        """Declare a list of addresses of arguments, and say what is wrong with it."""
        for memory in one.memories:
            self._used.add(memory)
            if memory not in self.arguments:
                yield f"{memory} has no address: it is no argument"
        if len(one.memories) != len(one.offsets) or min(one.offsets, default=0) < 0:
            yield f"{one.name}: {one.memories} with offsets {one.offsets}"
        self.addresses.add(one.name)

    def unworded(self, name: str) -> Iterator[str]:
        """What is wrong with taking a word of what a name stands for."""
        if name not in self.words:
            yield f"{name} names no 16 bytes"

    @staticmethod
    def uneven(memory: str, dtype: DType, at: Index) -> Iterator[str]:
        """What is wrong with the place that 16 bytes are taken at: 16 must divide it."""
        each = 16 // dtype.itemsize
        if (at % each).bounds != (0, 0):
            yield f"16 bytes of {memory} are taken at {at!r}, which {each} may not divide"

    def unused(self) -> Iterator[str]:
        """The arguments that nothing in the kernel touched."""
        for name in self.arguments.keys() - self._used:
            yield f"argument {name} is never read or written"
