"""Statements of one kernel body: blocks, loops, names, and what members of a group share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ptir.backend.kernel import Dialect, Together
from ptir.codegen.index import Axis
from ptir.types import DType

T = TypeVar("T")


class Statements(Generic[T]):
    """The statements so far, and the values of type ``T`` that are named in each open block."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._lines: list[str] = []
        self._depth = 1
        self._scopes: list[dict[Hashable, T]] = [{}]
        self._names = 0
        self._shared = 0
        self._arrays: dict[str, tuple[DType, int]] = {}

    def line(self, text: str) -> None:
        """Add one statement."""
        self._lines.append("  " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Statements in braces behind ``header``; values named inside are forgotten after it."""
        self.line(f"{header} {{")
        self._depth += 1
        self._scopes.append({})
        yield
        self._scopes.pop()
        self._depth -= 1
        self.line("}")

    @contextmanager
    def loop(
        self, axis: Axis, first: str, end: str, step: int = 1, rolled: bool = False
    ) -> Iterator[None]:
        """A loop of ``axis`` from ``first`` up to ``end``.

        Where large bodies are nested, compilers that unroll what is ``rolled`` take minutes.
        """
        name = axis.name
        header = f"for (int {name} = {first}; {name} < {end}; {name} += {step})"
        with self.block(f"{self.dialect.rolled} {header}".strip() if rolled else header):
            yield

    def share(self, pieces: int, items: int) -> None:
        """Declare ``first`` and ``last``: the item's part of ``pieces`` among ``items``.

        What was written before is the kernel's *head*: it must not depend on the item.
        """
        self._shared = len(self._lines)
        for name, item in (("first", "item"), ("last", "(item + 1)")):
            self.line(
                f"const int {name} = {item} * {pieces // items} + min({item}, {pieces % items});"
            )

    def name(self, prefix: str = "t") -> str:
        """A fresh variable name."""
        self._names += 1
        return f"{prefix}{self._names}"

    def let(self, dtype: DType, wide: bool, text: str) -> str:
        """Declare a variable that holds ``text``; returns its name."""
        name = self.name()
        self.line(f"const {self.type(dtype, wide)} {name} = {text};")
        return name

    def type(self, dtype: DType, wide: bool) -> str:
        """The type of a variable."""
        return self.dialect.type(dtype, self.dialect.lanes if wide else 1)

    def parts(self) -> tuple[str, str]:
        """What is the same for every item, and what each item does."""
        head, each = self._lines[: self._shared], self._lines[self._shared :]
        return "\n".join((*self._declared(), *head)), "\n".join(each)

    # --- what is named ---

    def known(self, key: Hashable) -> T | None:
        """What an open block remembers under ``key``."""
        return next((scope[key] for scope in reversed(self._scopes) if key in scope), None)

    def remember(self, key: Hashable, value: T) -> T:
        """Know ``value`` until the innermost block is closed; returns it."""
        self._scopes[-1][key] = value
        return value

    # --- groups ---

    @property
    def together(self) -> Together:
        """How the dialect spells groups."""
        assert self.dialect.together is not None, f"{self.dialect.name} has no work-groups"
        return self.dialect.together

    def _declared(self) -> Iterator[str]:
        for name, (dtype, size) in self._arrays.items():
            yield f"  {self.together.shared.format(self.type(dtype, False), name, size)}"

    @property
    def shared_bytes(self) -> int:
        """Bytes of all shared arrays, each of which begins at a multiple of 16."""
        sizes = (size * max(4, dtype.itemsize) for dtype, size in self._arrays.values())
        return sum(-(-size // 16) * 16 for size in sizes)

    def shared(self, dtype: DType, size: int) -> str:
        """Declare an array that the members of a group share; returns its name."""
        name = self.name("shared")
        self._arrays[name] = dtype, size
        return name

    def room(self, dtype: DType, size: int) -> str:
        """The shared array of a type for whatever is brought together, of ``size`` at least.

        Whoever uses it leaves with a barrier behind the last read.
        """
        name = f"room_{dtype.name}"
        self._arrays[name] = dtype, max(size, self._arrays.get(name, (dtype, 0))[1])
        return name

    def barrier(self) -> None:
        """All members arrive, and see what the others wrote. Every member must come here."""
        self.line(self.together.barrier)
