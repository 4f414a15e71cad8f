"""``-k`` expressions select by words, and say what is wrong with them."""

from __future__ import annotations

import pytest

from ptir.errors import UsageError
from ptir_testsuite.cli import main
from ptir_testsuite.corpus.selection import selection
from ptir_testsuite.mutants import Correct
from ptir_testsuite.reports.runner import Wish, chosen_from
from ptir_testsuite.running.items import items

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


ID = "round-dda0123456ad"


@pytest.mark.parametrize(
    ("word", "found"),
    [
        (ID, True),
        ("dda0123456ad", True),
        ("round-", True),
        ("add", False),
        ("dda01", False),
        ("round-dda01", False),
        ("0123456ad", False),
        ("fade", True),
    ],
)
def test_the_hash_of_an_id_is_found_whole_or_not_at_all(word, found):
    assert selection(word)(f"{ID} round(f32[2]) facade0fade") is found


def test_a_word_selects_nothing_by_the_hash_of_its_id(few_ops):
    found = list(items(0))
    by_hash = [item.id for item in found if "add" in item.id.rpartition("-")[2]]
    chosen = {item.id for item in chosen_from(found, Wish("any", words="add and sample"))}
    others = [id for id in by_hash if not id.startswith("add-")]
    assert others and chosen and chosen.isdisjoint(others), chosen


@pytest.mark.parametrize("expression", ["(" * 5000 + "add" + ")" * 5000, "not " * 5000 + "add"])
def test_what_nests_too_deep_is_refused(expression):
    with pytest.raises(UsageError, match="nests deeper than 100 parentheses and negations"):
        selection(expression)


def test_a_long_expression_is_none_that_nests():
    expression = " or ".join(f"word{n} and x" for n in range(20_000))
    assert not selection(expression)(TEXT)
    assert selection(f"{expression} or (add and ((f32)))")(TEXT)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["roound"], "no case matches 'roound' (nearest: round)"),
        (["roound or erff"], "no case matches 'roound or erff' (nearest: round, erf)"),
        (["rsqrt and sort"], "no case matches 'rsqrt and sort'\n"),
        (
            ["sort and bf16", "--claims", "core"],
            "no case matches 'sort and bf16' within the profiles core\n",
        ),
    ],
)
def test_where_nothing_matches_it_is_said(arguments, text, installed, capsys):
    installed(Correct())
    base = ["run", "--backend", "any", "--jobs", "0", "--programs", "0", "-k"]
    assert main([*base, *arguments]) == 3
    assert text in capsys.readouterr().err
