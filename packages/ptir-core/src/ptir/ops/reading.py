"""Programs from outside, as text or as JSON: what is read is verified, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptir.ir.attributes import Literal
from ptir.ir.jsonform import from_json_unverified
from ptir.ir.parser import parse_unverified
from ptir.ir.program import Program
from ptir.ops.verify import verify


def parse(text: str, literals: Mapping[str, Literal] | None = None) -> Program:
    """The verified program printed as ``text``; ``literals`` holds those kept in a side file.

    Raises ``VerifyError`` with line and column, of a mistake in the text as of an instruction that
    breaks a rule of its op.
    """
    program = parse_unverified(text, literals)
    verify(program)
    return program


def from_json(value: Any) -> Program:
    """The verified program whose JSON value is ``value``; raises ``VerifyError``."""
    program = from_json_unverified(value)
    verify(program)
    return program
