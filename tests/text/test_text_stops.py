"""Stop strings: text is cut at the first complete one, however it was split."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptir.errors import UsageError
from ptir.text import StopMatcher

SMALL = st.text("ab<", max_size=20)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3)


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece)[0] for piece in pieces)
    return shown + matcher.flush(), matcher.matched


def cut(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(STOPS, st.lists(SMALL, max_size=6))
def test_streaming_equals_cutting_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == cut(stops, "".join(pieces))


def test_single_characters_of_every_short_text_add_up_to_the_same_cut() -> None:
    words = ["".join(w) for n in range(6) for w in itertools.product("ab", repeat=n)]
    for stops in itertools.combinations_with_replacement(words[1:15], 2):
        for text in words:
            assert run(list(stops), list(text)) == cut(list(stops), text)


@given(STOPS, SMALL)
def test_only_what_may_become_a_stop_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    shown, stopped = matcher.push(text)
    held = text[len(shown) :]
    if not stopped:
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = [text[i:] for i in range(len(shown)) if len(text) > i]
        assert not any(stop.startswith(end) for end in longer for stop in stops)


def test_a_stop_string_over_three_pieces_is_found_and_ends_the_stream() -> None:
    matcher = StopMatcher(["</end>", "STOP"])
    assert matcher.push("hi </") == ("hi ", False)
    assert matcher.push("e") == ("", False)
    assert matcher.push("nd> more") == ("", True)
    assert matcher.matched == "</end>"
    assert matcher.push("again") == ("", True)
    assert matcher.flush() == ""


def test_a_false_start_is_shown_once_it_cannot_become_a_stop() -> None:
    matcher = StopMatcher(["</end>"])
    assert matcher.push("</e") == ("", False)
    assert matcher.push("x</") == ("</ex", False)
    assert matcher.flush() == "</"
    assert matcher.flush() == ""


@pytest.mark.parametrize("strings", ["stop", ["a", ""]])
def test_a_bare_string_and_empty_stops_are_refused(strings) -> None:
    with pytest.raises(UsageError, match="must be a list of non-empty strings"):
        StopMatcher(strings)
