"""Answers are cut into reasoning and text the same way however they come."""

from __future__ import annotations

import pytest

from ptir.text.reasoning import TAGS, AnswerSplitter

TALK = "<think>\nWho <b>knows</b>?</think>\n\nI do: </think> is a tag."


def split(pieces: list[str], prompt: str = "") -> tuple[str, str]:
    splitter = AnswerSplitter(prompt)
    parts = [*map(splitter.push, pieces), splitter.flush()]
    return "".join(one.text for one in parts), "".join(one.reasoning for one in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pieces_of_any_size_give_the_same(size: int) -> None:
    pieces = [TALK[at : at + size] for at in range(0, len(TALK), size)]
    assert split(pieces) == ("I do: </think> is a tag.", "\nWho <b>knows</b>?")


@pytest.mark.parametrize(("tag", "close"), TAGS)
def test_reasoning_that_the_prompt_began_needs_no_tag(tag: str, close: str) -> None:
    assert split(["a", f"b{close[:3]}", close[3:], "\n\nc"], f"x{tag}\n") == ("c", "ab")
    assert split([f" {tag}a", f"{close}b"]) == ("b", "a")


@pytest.mark.parametrize("text", ["", "<", "<thin", "a <think>b</think>", "  x\n", "[not]"])
def test_what_begins_with_no_tag_is_text_alone(text: str) -> None:
    assert split([*text]) == (text, "")


def test_reasoning_that_does_not_end_is_no_text() -> None:
    assert split(["<think>", "a </thi"]) == ("", "a </thi")


def test_channels_other_than_the_final_one_are_reasoning() -> None:
    splitter = AnswerSplitter("<|start|>assistant")
    given = [
        ("", "<|channel|>"), ("analysis", ""), ("", "<|message|>"), ("Hm", ""), ("m.", ""),
        ("", "<|end|>"), ("", "<|start|>"), ("assistant", ""), ("", "<|channel|>"),
        ("final", ""), ("", "<|message|>"), ("<th", ""), ("ink> Yes", ""),
    ]  # fmt: skip
    parts = [*(splitter.push(*one) for one in given), splitter.flush()]
    assert "".join(one.text for one in parts) == "<think> Yes"
    assert "".join(one.reasoning for one in parts) == "Hmm."


def test_tags_that_are_special_tokens_are_tags_all_the_same() -> None:
    splitter = AnswerSplitter()
    given = [("", "[THINK]"), ("why", ""), ("", "[/THINK]"), ("so", "")]
    parts = [splitter.push(*one) for one in given]
    assert [part.text for part in parts] == ["", "", "", "so"]
    assert [part.reasoning for part in parts] == ["", "why", "", ""]


@pytest.mark.parametrize("special", [True, False])
def test_gemma_4_reasons_in_a_channel_whose_name_is_no_reasoning(special: bool) -> None:
    splitter = AnswerSplitter("<|turn>model\n")
    given = [("", "<|channel>"), ("tho", ""), ("ught", ""), ("\n", ""), ("Hm", ""), (".\n", "")]
    given += [("", "<channel|>"), ("Yes", ""), ("", "<turn|>")]
    texts = given if special else [(text + token, "") for text, token in given[:-1]]
    parts = [*(splitter.push(*one) for one in texts), splitter.flush()]
    assert "".join(one.text for one in parts) == "Yes"
    assert "".join(one.reasoning for one in parts) == "\nHm.\n"
    assert split(["<|channel>thought\n<channel|>Yes"]) == ("Yes", "\n")
    assert split(["a\n<channel|>Yes"], "<|turn>model\n<|channel>thought\n") == ("Yes", "a\n")
    assert split(["Yes"], "<|turn>model\n<|channel>thought\n<channel|>") == ("Yes", "")
    assert split(["<|channel>", "thought"]) == split(["<|channel>"]) == ("", "")
    assert split(["<|channel>", "thou"]) == ("", "thou")
