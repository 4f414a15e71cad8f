"""Programs as data: attributes, the value graph they are built from, and their frozen form.

An op is only a name with attributes and regions here; ``ptir.ops`` gives names their meaning.
"""

from ptir.ir.attributes import Attr, Attributes, Literal
from ptir.ir.graph import Node, Ref, freeze, inline
from ptir.ir.location import Location
from ptir.ir.program import Block, Instruction, Port, Program

__all__ = [
    "Attr",
    "Attributes",
    "Block",
    "Instruction",
    "Literal",
    "Location",
    "Node",
    "Port",
    "Program",
    "Ref",
    "freeze",
    "inline",
]
