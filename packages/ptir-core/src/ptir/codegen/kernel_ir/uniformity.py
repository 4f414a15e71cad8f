"""What threads of a workgroup have in common, and what they may do only together.

What comes in: a value, or the place of a statement, with the scopes around it. What goes out:
whether threads may differ in it, or a sentence on threads that would wait for others in vain. What
is computed from a thread's number is *varying*: a barrier, an exchange of values or a matrix
instruction under a condition or in a loop of that kind would wait for threads that never come.
"""

from __future__ import annotations

from collections.abc import Iterator

from ptir.codegen.expressions.expr import Var
from ptir.codegen.expressions.index import Axis
from ptir.codegen.kernel_ir.scopes import Scopes
from ptir.codegen.kernel_ir.values import CHILDREN, FetchAdd, Node, Poll, ShuffleXor, Word


def varies(scopes: Scopes, *values: Node) -> bool:
    """Whether threads may find different values in any of these."""
    return any(_varies(scopes, one) for one in values)


def _varies(scopes: Scopes, one: Node) -> bool:
    if isinstance(one, Var | Axis):
        known = scopes[one.name]
        return known is not None and known.varying
    is_own = isinstance(one, ShuffleXor | FetchAdd | Poll | Word)
    return is_own or varies(scopes, *CHILDREN[type(one)](one))


def apart(scopes: Scopes, workgroup_size: int, what: str) -> Iterator[str]:
    """Why threads cannot do something together here."""
    if workgroup_size == 1:
        yield f"{what} stands in a kernel that is not one of workgroups"
    elif scopes.diverged:
        yield f"{what} stands where only some threads may come"
