"""Prompts against Transformers, whose ones are also kept for tests without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from ptir.text.chat_template import ChatTemplates, Renderer

TESTS = Path(__file__).resolve().parent.parent
sys.path.append(str(TESTS / "text"))

from chat_shapes import CASES, SHAPES, SPECIAL, Case  # noqa: E402

KEPT = TESTS / "data" / "chat-prompts.json"
pytestmark = pytest.mark.parity
RENDERER = Renderer()


def by_transformers(case: Case) -> str:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **SPECIAL)
    given: dict[str, Any] = {"add_generation_prompt": True, **case.arguments}
    options = given.pop("options", {})
    found = tokenizer.apply_chat_template(
        given.pop("messages"),
        chat_template=SHAPES[case.shape],
        tokenize=False,
        **given,
        **options,
    )
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompts_equal_those_of_transformers(case: Case) -> None:
    templates = ChatTemplates({"default": SHAPES[case.shape]}, SPECIAL, "x", RENDERER)
    assert templates.render(**case.arguments) == by_transformers(case)


def test_the_kept_prompts_are_those_of_transformers() -> None:
    found = {case.name: by_transformers(case) for case in CASES}
    assert json.loads(KEPT.read_text(encoding="utf-8")) == found


if __name__ == "__main__":  # writes what is kept
    text = json.dumps({c.name: by_transformers(c) for c in CASES}, indent=1, ensure_ascii=False)
    KEPT.write_text(text + "\n", encoding="utf-8")
