"""``-k`` expressions select by words, and say what is wrong with them."""

from __future__ import annotations

import pytest

from ptir.errors import UsageError
from ptir_testsuite.selection import selection

TEXT = "add-0123 add(f32[2], f32[2]) f32 sample 0 plain dense core"


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("add", True),
        ("sub", False),
        ("not sub", True),
        ("add and f16", False),
        ("sub or add and not f16", True),
        ("not (sub or add)", False),
        ("(f16 or f32) and sample", True),
    ],
)
def test_words_combine(expression, found):
    assert selection(expression)(TEXT) is found


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("add and", "a word is missing"),
        ("(add", "a parenthesis is not closed"),
        ("add sub", "unexpected 'sub'"),
        ("or", "a word is missing"),
    ],
)
def test_what_is_no_expression_is_refused(expression, why):
    with pytest.raises(UsageError, match=why.replace("(", r"\(")):
        selection(expression)
