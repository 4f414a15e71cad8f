"""A dialect with what most C-like languages share: tables of names and of **rows**.

A row says how one scalar op, or one step of a load or store, is spelled: a template, or a function
where a template cannot tell. ``scalar_rows`` are those of scalars, ``wide_rows`` those of wide
values; an op without a row is an operator or a function of floats. A language brings the rows in
which it differs. One without any wide rows has wide ops written lane by lane. Its prelude has
``min`` of two ``int``.

Templates hold ``{0}``, ``{1}``, ... (the operands), ``{args}`` (all of them), ``{op}`` and
``{function}`` (what the table calls it), ``{type}`` (of the result, as wide as it is), ``{result}``
and ``{operand}`` (the names of what carries them), ``{stored}`` (the name of what lies in memory),
``{name}`` (of the element type), ``{n}`` (the lanes of a wide value, else nothing) and ``{v}``
(``v`` for a wide value).
"""

from ptir.backend.clike.dialect import CLike, Spelling
from ptir.backend.clike.names import CARRIERS, FORMS, STORED, WORDS, WRAPPING, worded
from ptir.backend.clike.rows import SCALAR, WIDE, recast_bits

__all__ = ["CARRIERS", "FORMS", "SCALAR", "STORED", "WIDE", "WORDS", "WRAPPING", "CLike"]
__all__ += ["Spelling", "recast_bits", "worded"]
