"""Matrix instructions: how a dialect says that subgroups multiply small matrices together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FragmentLayout = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class MmaInstruction:
    """One shape of instruction: sums in f32 of products of 16-bit floats, and how it is spelled.

    A subgroup of ``width`` threads adds the product of a *left* matrix, ``rows`` by ``depth``, and
    a *right* one, ``depth`` by ``columns``, to sums of f32. All its threads arrive together.
    Operands are held in u32 words of a *pair*: two neighbours along the depth, the first in the low
    half.
    Thread m stands at line ``m // across`` and place ``m % across``, and holds what ``left``,
    ``right`` and ``sums`` say, counted from there.

    Products are exact; how an instruction adds them up and rounds is the hardware's, so that sums
    should be taken out of it and added in f32 every few instructions.
    """

    rows: int
    columns: int
    depth: int
    width: int
    across: int
    left: FragmentLayout
    """Row and pair of each word of the left matrix, from the thread's line and place on."""
    right: FragmentLayout
    """Column and pair of each word of the right matrix, from the thread's line and place on."""
    sums: FragmentLayout
    """Row and column of each sum, from the thread's line and twice its place on."""
    multiply: Mapping[str, str]
    """A statement by the name of the operands' type: adds to the variables of the sums, which come
    first, what the words of the left and of the right matrix give, which follow."""
    load_matrix: str
    """A statement: brings four 8 by 8 matrices of 16-bit elements out of shared memory, one into
    each of the u32 variables ``{0}`` to ``{3}``. ``{4}`` is the shared array and ``{5}`` the place
    at which 16 bytes begin, an address that 16 divides: thread m names row ``m % 8`` of matrix
    ``m // 8``, and gets the pair at its own line and place of each."""
    load_matrix_transposed: str
    """The same, but matrices are turned over: a thread gets the elements of two rows, twice its
    place and the next, in the column of its line."""
    async_copy: str
    """A statement: begins to copy 16 bytes to the shared array ``{0}`` from its u32 ``{1}`` on,
    from buffer ``{2}`` of words from its element ``{3}`` on; both addresses are divided by 16."""
    async_wait: str
    """A statement: goes on when all copies that the thread began are done. Others see them behind
    a barrier."""
