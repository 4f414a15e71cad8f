"""Times of words: paths, smoothing, what a word is, and which heads tell. Cf. tests/parity."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.checkpoint import save_folder
from ptir.errors import CheckpointError
from ptir.models.table import preset
from ptir.models.whisper import Config
from ptir.runtime import SpeechModel
from ptir.runtime.specs import resolve
from ptir.runtime.speech.alignment import alignment_heads, median_width, token_positions, warped
from ptir.runtime.speech.words import Word, words
from running import REF
from together import together

MICRO = "random:whisper-micro"
Array = np.ndarray[Any, Any]


def sound(size: int) -> Array:
    return (0.1 * np.random.default_rng(size).standard_normal(size)).astype(np.float32)


# --- paths ---


def cost(costs: Array, path: Sequence[tuple[int, int]]) -> float:
    return float(sum(costs[one] for one in path))


def paths(rows: int, columns: int) -> list[list[tuple[int, int]]]:
    """Every path from the first place to the last, in single steps."""
    if rows == columns == 1:
        return [[(0, 0)]]
    before = [(rows - 1, columns - 1), (rows - 1, columns), (rows, columns - 1)]
    return [[*path, (rows - 1, columns - 1)] for r, c in before if r and c for path in paths(r, c)]


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (3, 5), (5, 3), (4, 4)])
def test_the_path_is_the_cheapest_of_all(shape: tuple[int, int]) -> None:
    costs = np.random.default_rng(0).standard_normal(shape)
    rows, columns = warped(costs)
    found = [*zip(rows.tolist(), columns.tolist(), strict=True)]
    assert found in paths(*shape)
    assert cost(costs, found) == pytest.approx(min(cost(costs, path) for path in paths(*shape)))


def test_tokens_are_where_heads_look() -> None:
    """Each head looks at a stretch for each token; one outlier is no stretch."""
    begins = [0, 4, 11, 19, 30]
    weights = np.full((2, 4, 30), 0.01)
    for token, (first, last) in enumerate(itertools.pairwise(begins)):
        weights[:, token, first:last] = 1.0
    weights[1, 3, 1] = 9.0
    assert token_positions(weights, 3).tolist() == begins[:-1]
    assert token_positions(weights[:, :, :2], 7).tolist() == sorted(
        token_positions(weights[:, :, :2], 7).tolist()
    )  # fewer positions than tokens, and than the median takes


def test_equal_rows_of_weights_are_no_error() -> None:
    with np.errstate(all="raise"):
        assert len(token_positions(np.full((1, 3, 9), 0.5))) == 3


# --- words ---


def spelled(*pieces: str) -> tuple[list[int], Any]:
    """Tokens with such texts; ``~`` is a part of a character, two of which are one."""
    texts = dict(enumerate(pieces))

    def decode(ids: Sequence[int]) -> str:
        return "".join(texts[one] for one in ids).replace("~~", "é").replace("~", "\ufffd")

    return [*texts], decode


@together()
@pytest.mark.parametrize(
    ("pieces", "language", "wanted"),
    [
        ((" He", "llo", " world"), "en", [(" Hello", 2), (" world", 1)]),
        ((" Hi", ",", " you", "."), "en", [(" Hi,", 2), (" you.", 2)]),
        ((" (", "so", ")", "!"), "en", [(" (so)!", 4)]),
        ((" it", "'s"), "en", [(" it's", 2)]),
        ((" well", "-", "known"), "en", [(" well", 1), ("-known", 2)]),
        ((" a", "-"), "en", [(" a", 1), ("-", 1)]),
        ((" caf", "~", "~", " so"), "fr", [(" café", 3), (" so", 1)]),
        ((" caf", "~"), "fr", [(" caf\ufffd", 2)]),
        (("你", "好", "。", "吗"), "zh", [("你", 1), ("好。", 2), ("吗", 1)]),
        (("你", "好"), "en", [("你好", 2)]),
        (("lo", " there"), None, [("lo", 1), (" there", 1)]),
        ((), "en", []),
    ],
)
def test_words_are_what_stands_between_spaces(
    pieces: tuple[str, ...], language: str | None, wanted: list[tuple[str, int]]
) -> None:
    tokens, decode = spelled(*pieces)
    assert words(tokens, decode, language) == [Word(*one) for one in wanted]


def test_words_of_segments_are_their_text_in_order() -> None:
    model = ptir.load_model(MICRO, backend=REF)
    assert isinstance(model, SpeechModel)
    options: dict[str, Any] = {"language": "en", "temperature": 0, "word_timestamps": True}
    found = model.transcribe(sound(24000), **options)
    for segment in found.segments:
        assert "".join(word.word for word in segment.words) == segment.text
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times)
    times = [w.start for one in found.segments for w in one.words]
    assert max(times) <= found.duration and min(times) < 1 <= max(times)
    plain = model.transcribe(sound(24000), **{**options, "word_timestamps": False})
    assert [replace(one, words=()) for one in found.segments] == [*plain.segments]
    together = model.transcribe_batch([sound(9000), sound(24000)], batch=2, **options)[1]
    pairs = zip(together.segments, found.segments, strict=True)
    both = [pair for one, other in pairs for pair in zip(one.words, other.words, strict=True)]
    assert all(replace(a, probability=b.probability) == b for a, b in both)
    shares = [[pair[side].probability for pair in both] for side in (0, 1)]
    np.testing.assert_allclose(*shares, rtol=1e-5)


def test_rows_are_those_that_forward_attends_with() -> None:
    """Each token's row is that of the one before: weights of other tokens behind change nothing."""
    model = ptir.load_model(MICRO, backend=REF)
    assert isinstance(model, SpeechModel)
    source = model.hear(model.features(sound(16000)))
    prompt = model.tokens.prompt("en", "transcribe", timestamps=False)
    short = model.decoder.alignment(source, 0, prompt, [7, 8]).weights
    long = model.decoder.alignment(source, 0, prompt, [7, 8, 9, 10]).weights
    assert short.shape == (2, 3, 50) and long.shape == (2, 5, 50)
    np.testing.assert_allclose(short.sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(short, long[:, :3], rtol=1e-5)


def test_words_are_as_probable_as_forward_says_of_their_tokens() -> None:
    """Among tokens of text alone; of several tokens it is the mean."""
    model = ptir.load_model(MICRO, backend=REF)
    assert isinstance(model, SpeechModel)
    features = model.features(sound(16000))
    source, said = model.hear(features), [7, 300, 8, 9]
    prompt = model.tokens.prompt("en", "transcribe", timestamps=False)
    found = model.decoder.alignment(source, 0, prompt, said).probabilities
    logits = model.forward([*prompt, *said], features[:100])[:, : model.tokens.end]
    wide = np.exp(logits.astype(np.float64))
    shares = wide / wide.sum(axis=-1, keepdims=True)
    wanted = [shares[len(prompt) - 1 + place, token] for place, token in enumerate(said)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert len({round(one, 9) for one in wanted}) == 4


# --- what files say ---


def test_heads_are_those_that_a_file_names() -> None:
    config = Config.of(preset("whisper-micro")[1])
    assert alignment_heads({"alignment_heads": [[1, 0], [0, 1]]}, config) == ((0, 1), (1, 0))
    assert alignment_heads({}, config) == ((1, 0), (1, 1))  # the later half of the layers


@together()
@pytest.mark.parametrize(
    "said", [[], "x", [[2, 0]], [[0, 2]], [[0]], [0, 1], [[0, -1]], [[0, True]], [[0, 1.0]], 3]
)
def test_heads_that_cannot_be_are_refused(said: Any) -> None:
    config = Config.of(preset("whisper-micro")[1])
    with pytest.raises(CheckpointError, match="must be pairs of a layer < 2 and a head < 2"):
        alignment_heads({"alignment_heads": said}, config)


@together()
@pytest.mark.parametrize("said", [0, 4, "7", 7.0, True, 10**9 + 1])
def test_widths_that_cannot_be_are_refused(said: Any) -> None:
    with pytest.raises(CheckpointError, match=r"median_filter_width .* must be an odd integer"):
        median_width({"median_filter_width": said})
    assert median_width({}) == 7


def test_a_file_with_other_heads_is_named(tmp_path: Path) -> None:
    checkpoint = resolve(MICRO)
    rules = {"alignment_heads": [[9, 9]]}
    folder = save_folder(replace(checkpoint, generation_config=rules), tmp_path / "m")
    model = ptir.load_model(folder, backend=REF)
    with pytest.raises(CheckpointError, match=r"m: generation_config.json: alignment_heads \[\[9"):
        model.transcribe(sound(9000), language="en", temperature=0, word_timestamps=True)
