"""Perplexity: which tokens count, and that the numbers are those of logits in f64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import ptir
from ptir.checkpoint import save_folder
from ptir.errors import DeviceError, UsageError
from ptir.params.source import ArraySource
from ptir.runtime import Model
from ptir.runtime.likelihood import Perplexity, TextWindow, halves, perplexity, sliding
from running import REF, llama_folder, model, small, small_checkpoint

pytestmark = pytest.mark.turns(2)

TEXT = (
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n"
    "First Citizen:\nYou are all resolved rather to die than to famish?\n\nAll:\nResolved."
) * 3


def by_hand(owner: Model, ids: list[int], counted: dict[int, list[int]]) -> tuple[float, float]:
    """The mean and its standard error in f64 from ``forward``.

    ``counted`` are places of ``ids`` by the first place that the model sees.
    """
    found: list[float] = []
    for start, places in counted.items():
        logits = owner.forward(ids[start : max(places) + 1]).astype(np.float64)
        for place in places:
            row = logits[place - start - 1]
            top = row.max()
            found.append(top + math.log(np.exp(row - top).sum()) - row[ids[place]])
    count, mean = len(found), sum(found) / len(found)
    spread = math.sqrt(sum((one - mean) ** 2 for one in found) / (count - 1))
    return mean, spread / math.sqrt(count)


def assert_same(found: Perplexity, mean: float, error: float) -> None:
    assert found.nll == pytest.approx(mean, rel=2e-6)
    assert found.standard_error == pytest.approx(error, rel=2e-5)
    assert found.perplexity == pytest.approx(math.exp(mean), rel=1e-5)
    assert found.perplexity_error == pytest.approx(error * math.exp(mean), rel=1e-4)


def test_halves_of_windows_count_as_in_llama_cpp() -> None:
    assert list(halves(9, 4)) == [TextWindow(0, 3, 4), TextWindow(4, 7, 8)]
    assert list(halves(512, 512)) == [TextWindow(0, 257, 512)]
    counted = sum(window.end - window.first for window in halves(5 * 512 + 511, 512))
    assert counted == 5 * (512 - 512 // 2 - 1)  # what its own estimate divides by


def test_sliding_windows_count_every_token_but_the_first_once() -> None:
    assert list(sliding(10, 4, 3)) == [
        TextWindow(0, 1, 4),
        TextWindow(3, 4, 7),
        TextWindow(6, 7, 10),
    ]
    for count, size, stride in ((2, 5, 1), (11, 4, 1), (17, 8, 3), (9, 8, 7), (8, 8, 8)):
        windows = list(sliding(count, size, stride))
        assert [n for w in windows for n in range(w.first, w.end)] == [*range(1, count)]
        assert all(w.end - w.start <= size and w.start < w.first for w in windows)
        assert all(w.first - w.start >= size - stride for w in windows[1:])
    assert list(sliding(9, 4, 4)) == [TextWindow(0, 1, 4), TextWindow(4, 5, 8), TextWindow(8, 9, 9)]


def test_the_second_halves_have_the_likelihoods_of_their_logits() -> None:
    ids = model().encode(TEXT)
    assert 100 < len(ids) < 256
    found = perplexity(model(), TEXT, window=40)
    whole = range(0, len(ids) - 39, 40)
    assert_same(found, *by_hand(model(), ids, {n: [*range(n + 21, n + 40)] for n in whole}))
    assert (found.windows, found.counted) == (len(whole), 19 * len(whole))
    assert (found.text_tokens, found.evaluated) == (len(ids), 40 * len(whole))


def test_sliding_windows_have_the_likelihoods_of_their_logits() -> None:
    ids = model().encode(TEXT)
    apart = perplexity(model(), ids[:41], window=20, stride=20)
    assert_same(apart, *by_hand(model(), ids, {0: [*range(1, 20)], 20: [*range(21, 40)]}))
    found = perplexity(model(), ids, window=64, stride=48)
    ends = [64, *range(112, len(ids), 48), len(ids)]
    counted = {
        48 * n: [*range(a, b)] for n, (a, b) in enumerate(zip([1, *ends], ends, strict=False))
    }
    assert_same(found, *by_hand(model(), ids, counted))
    assert found.counted == len(ids) - 1


def test_one_window_of_a_short_text_is_the_whole_text() -> None:
    ids = model().encode("ROMEO:\nWhat")
    found = perplexity(model(), ids, stride=256)
    assert_same(found, *by_hand(model(), ids, {0: [*range(1, len(ids))]}))
    alone = perplexity(model(), ids[:2], stride=1)
    assert alone.counted == 1 and alone.standard_error is None and alone.perplexity_error is None


def test_a_rounded_cache_and_a_grouped_model_give_likelihoods_too(tmp_path: Path) -> None:
    folder = llama_folder(tmp_path)
    ids = np.random.default_rng(0).integers(0, 97, 60).tolist()
    exact = ptir.load_model(folder, backend=REF)
    found = perplexity(exact, ids, window=20)
    counted = {n: [*range(n + 11, n + 20)] for n in (0, 20, 40)}
    assert_same(found, *by_hand(exact, ids, counted))
    rounded = ptir.load_model(folder, backend=REF, cache_dtype="bf16")
    other = perplexity(rounded, ids, window=20)
    assert other.nll != found.nll and other.nll == pytest.approx(found.nll, rel=0.01)


def beginning_tokenizer() -> str:
    """Bytes, and a token in front of every text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, **{one: n for n, one in enumerate(alphabet, 1)}}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return str(inner.to_str())


def test_every_window_begins_as_a_text_does(tmp_path: Path) -> None:
    folder = llama_folder(tmp_path, beginning_tokenizer(), vocab_size=257)
    loaded = ptir.load_model(folder, backend=REF)
    text = "Speak, speak. Resolved."
    ids = loaded.encode(text)
    found = perplexity(loaded, text, window=8)
    assert ids[0] == 0 and 0 not in ids[1:]
    ids[8] = ids[16] = 0
    assert_same(found, *by_hand(loaded, ids, {n: [*range(n + 5, n + 8)] for n in (0, 8, 16)}))


REFUSED: dict[str, tuple[Any, dict[str, int], str]] = {
    "nothing": ("", {}, r"the text has 0 token\(s\); a perplexity needs two at least"),
    "one": ([5], {"stride": 1}, r"the text has 1 token\(s\)"),
    "short": ([5] * 255, {}, "255 tokens, which fill no window of 256: .* --stride N"),
    "small": ([5] * 9, {"window": 2}, "window 2: must be from 3 to the context of 256 tokens"),
    "large": ([5] * 9, {"window": 257}, "window 257: must be from 3 to the context of 256"),
    "still": ([5] * 9, {"stride": 0}, "stride 0: must be from 1 to the window of 256 tokens"),
    "holes": ([5] * 9, {"window": 4, "stride": 5}, "stride 5: must be from 1 to the window of 4"),
    "ids": ([5, 1024], {"stride": 1}, r"token id 1024: must be an integer in \[0, 1024\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_perplexity_is_refused(case: str) -> None:
    text, options, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        perplexity(model(), text, **options)


def test_a_text_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no tokenizer; .* put the model's tokenizer\.json"):
        perplexity(small(tmp_path), TEXT)


def changed(folder: Path, name: str, factor: float) -> Model:
    """A model one of whose parameters is multiplied."""
    source = small_checkpoint().source
    held = {one: source.read(one) for one in source.names()}
    held[name] = held[name] * np.float32(factor)
    path = save_folder(small_checkpoint(ArraySource(held)), folder / "changed")
    return ptir.load_model(path, backend=REF)


def test_likelihoods_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="log likelihood of counted token 0 is nan: numbers left"):
        perplexity(changed(tmp_path, "ln_f.bias", math.nan), [*range(9)], stride=9)


def test_a_perplexity_beyond_all_floats_is_infinite(tmp_path: Path) -> None:
    found = perplexity(changed(tmp_path, "ln_f.weight", 1e10), [*range(9)], stride=9)
    assert found.nll > 1e6 and math.isinf(found.perplexity)
