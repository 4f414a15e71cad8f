"""Packed weights as elements: where panels hold the weight of an output and an input.

``codegen.weights.panels`` says what panels are; their composite is indexed like any movement op.
"""

from __future__ import annotations

from typing import Final

from ptir.codegen.expressions.expr import Expr
from ptir.codegen.expressions.index import Index
from ptir.codegen.expressions.movement import Coordinates, Operands
from ptir.weights.record import PANELS

UNPACK: Final = "ptir_unpack"
"""The composite that stands for the matrix behind a packed parameter."""


def place_in_panels(output: Index, input: Index, per: int) -> Coordinates:
    """Where a weight lies in a packed parameter whose words hold ``per`` inputs."""
    lanes = PANELS.lanes
    return (output // lanes, input // per, output % lanes, input % per)


def unpacked_element(operands: Operands, at: Coordinates) -> Expr:
    """The movement rule of the ``unpack`` composite."""
    is_oi = operands.instruction.attributes["layout"] == "oi"
    output, input = at if is_oi else (at[1], at[0])
    return operands.at(0, place_in_panels(output, input, operands.types[0].shape[3]))
