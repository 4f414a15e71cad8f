"""Decoding of speech: what is doubted, text before, draws, beams, several windows at once."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.audio import wav_bytes
from ptir.checkpoint import save_folder
from ptir.errors import AudioError, UsageError
from ptir.models.table import preset
from ptir.params.source import ArraySource
from ptir.runtime import SpeechModel, Transcript
from ptir.runtime.draws import Draws
from ptir.runtime.specs import resolve
from ptir.runtime.speech.beams import Beams
from ptir.runtime.speech.decoding import Manner
from ptir.runtime.speech.options import Heard, SpeechOptions, compression_ratio
from ptir.runtime.speech.stamps import bounds
from ptir.runtime.speech.tokens import SpeechTokens
from ptir.runtime.speech.words import words
from running import REF
from together import together

MICRO = "random:whisper-micro"
TOKENS = SpeechTokens.of(preset("whisper-micro")[1], {})
T = TOKENS.first_stamp

Array = np.ndarray[Any, Any]


def loaded() -> SpeechModel:
    model = ptir.load_model(MICRO, backend=REF)
    assert isinstance(model, SpeechModel)
    return model


@pytest.fixture(scope="module")
def model() -> SpeechModel:
    return loaded()


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> SpeechModel:
    """A model of weights with which every sound has another text."""
    checkpoint, rng = resolve(MICRO), np.random.default_rng(11)
    held = dict[str, Array]()
    for name in checkpoint.source.names():
        shape = checkpoint.source.read(name).shape
        mean = float("norm" in name and name.endswith("weight"))
        scale = 0.3 if len(shape) < 2 else 1.3 * math.prod(shape[1:]) ** -0.5
        held[name] = (mean + scale * rng.standard_normal(shape)).astype(np.float32)
    folder = tmp_path_factory.mktemp("loud")
    save_folder(replace(checkpoint, source=ArraySource(held)), folder / "m")
    model = ptir.load_model(folder / "m", backend=REF)
    assert isinstance(model, SpeechModel)
    return model


def noise(size: int, seed: int = 0) -> Array:
    return (0.1 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def tones(size: int, seed: int = 0) -> Array:
    """Another tone in every second, f32[size], and noise."""
    rng = np.random.default_rng(seed)
    pitch = np.repeat(rng.integers(100, 7000, size // 16000 + 1), 16000)[:size]
    tone = np.sin(2 * np.pi * pitch * np.arange(size) / 16000)
    return (0.3 * tone + 0.01 * rng.standard_normal(size)).astype(np.float32)


class Script:
    """What a model is to hear, one answer after another, and what it is asked for."""

    def __init__(self, model: SpeechModel, *answers: Heard) -> None:
        self.model, self.rest = model, [*answers]
        self.asked = list[tuple[list[int], Manner]]()
        model.__dict__["decoder"] = self

    def hear(self, features: Sequence[Array], rows: int) -> Any:
        return ()

    def pick(self, source: Any, windows: Sequence[int]) -> Any:
        return ()

    def alignment(self, *given: Any) -> Any:
        raise AssertionError("nobody asked for words")

    def decode(
        self, source: Any, prompts: Sequence[list[int]], manner: Manner, seeds: Sequence[int]
    ) -> list[Heard]:
        self.asked += [(prompt, manner) for prompt in prompts]
        return [replace(self.rest.pop(0), temperature=manner.temperature) for _ in prompts]

    def transcribe(self, seconds: int, **options: Any) -> Transcript:
        return self.model.transcribe(noise(16000 * seconds), language="en", **options)


SAID = (T, 7, T + 9)
SURE, UNSURE, SILENT = Heard(SAID, -0.5, 0.0), Heard(SAID, -1.5, 0.0), Heard(SAID, -1.5, 0.7)


# --- doubts ---


@together()
@pytest.mark.parametrize(
    ("answers", "options", "temperatures", "kept"),
    [
        ([SURE], {}, [0.0], [0.0]),
        ([UNSURE, UNSURE, SURE], {}, [0.0, 0.2, 0.4], [0.4]),
        ([UNSURE] * 6, {}, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0]),  # the last one is taken
        ([UNSURE], {"temperature": 0.3}, [0.3], [0.3]),
        ([UNSURE], {"logprob_threshold": -2}, [0.0], [0.0]),
        ([UNSURE], {"logprob_threshold": None}, [0.0], [0.0]),
        ([SILENT], {}, [0.0], []),
        ([UNSURE, SILENT], {}, [0.0, 0.2], []),
        ([replace(SURE, no_speech_prob=0.7)], {}, [0.0], [0.0]),
        ([replace(SURE, no_speech_prob=0.7)], {"logprob_threshold": None}, [0.0], []),
        ([SILENT, SURE], {"no_speech_threshold": None}, [0.0, 0.2], [0.2]),
        ([SILENT, SURE], {"no_speech_threshold": 0.8}, [0.0, 0.2], [0.2]),
    ],
)
def test_answers_that_are_not_believed_are_decoded_again(
    answers: list[Heard], options: dict[str, Any], temperatures: list[float], kept: list[float]
) -> None:
    script = Script(loaded(), *answers)
    found = script.transcribe(1, **options)
    assert [manner.temperature for _, manner in script.asked] == temperatures
    assert [one.temperature for one in found.segments] == kept
    assert script.rest == []


def test_a_text_that_repeats_itself_is_decoded_again() -> None:
    """Compression as zlib does it, of the text's bytes."""
    text = "ha" * 40
    assert compression_ratio(f" {text} ") == 80 / len(zlib.compress(text.encode())) > 2.4
    assert compression_ratio("") == 0
    again = Heard((T, *[7] * 30, T + 9), -0.1, 0.0)
    script = Script(loaded(), again, again, SURE)
    (segment,) = script.transcribe(1).segments
    assert [manner.temperature for _, manner in script.asked] == [0.0, 0.2, 0.4]
    assert segment.compression_ratio == compression_ratio(segment.text) < 2.4
    script = Script(loaded(), again)
    (segment,) = script.transcribe(1, compression_ratio_threshold=9).segments
    assert 2.4 < segment.compression_ratio < 9


def test_beams_are_for_temperature_0() -> None:
    script = Script(loaded(), UNSURE, SURE)
    script.transcribe(1, beams=4)
    assert [(one.temperature, one.beams) for _, one in script.asked] == [(0.0, 4), (0.2, 1)]


# --- text before ---


def test_the_text_so_far_stands_before_a_window() -> None:
    marks = TOKENS.prompt("en", "transcribe", timestamps=True)
    long = Heard((T, *range(100, 130), T + 9), -0.1, 0.0)
    script = Script(loaded(), SURE, SURE, long, SURE)
    script.transcribe(4, condition_on_previous_text=True, compression_ratio_threshold=None)
    prompts = [prompt for prompt, _ in script.asked]
    before = [TOKENS.previous]
    assert prompts[:3] == [marks, [*before, *SAID, *marks], [*before, *SAID, *SAID, *marks]]
    assert prompts[3] == [*before, *range(112, 130), T + 9, *marks]  # 19: less than half of 40
    assert TOKENS.previous == TOKENS.no_stamps - 2


def test_a_prompt_stands_before_every_window_and_the_text_behind_it(model: SpeechModel) -> None:
    assert model.tokenizer is not None
    words = model.tokenizer.encode(" a cat")
    marks = TOKENS.prompt("en", "transcribe", timestamps=True)
    script = Script(loaded(), SURE, SURE, Heard((T, *range(100, 130), T + 9), -0.1, 0.0), SURE)
    options = {"condition_on_previous_text": True, "compression_ratio_threshold": None}
    script.transcribe(4, prompt="a cat ", **options)
    prompts = [prompt[: -len(marks)] for prompt, _ in script.asked]
    assert prompts[:2] == [[TOKENS.previous, *words], [TOKENS.previous, *words, *SAID]]
    assert prompts[3][: len(words) + 1] == [TOKENS.previous, *words]
    assert len(prompts[3]) == 20 and prompts[3][-2:] == [129, T + 9]
    script = Script(loaded(), SURE, SURE)
    script.transcribe(2, prompt=" a cat")
    assert [prompt[: -len(marks)] for prompt, _ in script.asked] == 2 * [[TOKENS.previous, *words]]


def test_a_text_of_a_high_temperature_is_none_to_go_on_from() -> None:
    marks = TOKENS.prompt("en", "transcribe", timestamps=True)
    script = Script(loaded(), SURE, UNSURE, UNSURE, UNSURE, SURE, SURE, SURE)
    script.transcribe(4, condition_on_previous_text=True)
    assert [one.temperature for _, one in script.asked] == [0.0, 0.0, 0.2, 0.4, 0.6, 0.0, 0.0]
    assert script.asked[4][0] == [TOKENS.previous, *SAID, *marks]
    assert script.asked[5][0] == marks
    assert script.asked[6][0] == [TOKENS.previous, *SAID, *marks]


def test_a_silent_window_is_no_text_to_go_on_from() -> None:
    marks = TOKENS.prompt("en", "transcribe", timestamps=True)
    script = Script(loaded(), SILENT, SURE)
    script.transcribe(2, condition_on_previous_text=True)
    assert [prompt for prompt, _ in script.asked] == [marks, marks]


def test_silence_is_told_behind_the_start_token_wherever_it_stands(model: SpeechModel) -> None:
    features = model.features(noise(16000, 3))
    marks = TOKENS.prompt("en", "transcribe", timestamps=True)
    prompt = [TOKENS.previous, 7, 8, 9, *marks]
    logits = model.forward(prompt, features[:100]).astype(np.float64)[4]
    weights = np.exp(logits - logits.max())
    found = model.window(model.hear(features), prompt, timestamps=True)
    assert found.no_speech_prob == pytest.approx(weights[TOKENS.no_speech] / weights.sum())


# --- draws and beams ---


def allowed(logits: Array, said: Sequence[int]) -> Array:
    """The rules of timestamps in NumPy."""
    text, low, high = bounds(said, TOKENS)
    number, row = np.arange(512), logits.astype(np.float64)
    may = np.where(number >= T, (number >= low) & (number < high), number >= text)
    row[~may | (number == TOKENS.no_stamps)] = -np.inf
    if np.exp(row[T:]).sum() > np.exp(row[:T].max()):
        row[:T] = -np.inf
    return row


def test_tokens_are_drawn_by_their_probabilities(model: SpeechModel) -> None:
    """By inverse CDF, the likeliest first, of what ``forward`` says, for the seed's numbers."""
    features = model.features(noise(16000, 3))
    prompt = TOKENS.prompt("en", "transcribe", timestamps=True)
    heard = model.window(
        model.hear(features), prompt, timestamps=True, temperature=0.7, seed=2**40 + 5
    )
    assert heard.temperature == 0.7
    logits = model.forward([*prompt, *heard.tokens], features[:100])
    draws, logprobs = Draws([2**40 + 5]), list[float]()
    for place, token in enumerate(heard.tokens):
        row = allowed(logits[len(prompt) + place - 1], heard.tokens[:place])
        order = np.argsort(-row, kind="stable")
        sums = np.cumsum(np.exp((row[order] - row.max()) / 0.7))
        drawn = order[np.searchsorted(sums, draws.take(1)[0, 0] * sums[-1], side="right")]
        assert drawn == token
        logprobs.append(row[token] - row.max() - math.log(np.exp(row - row.max()).sum()))
    assert heard.avg_logprob == pytest.approx(np.mean(logprobs), abs=1e-4)
    assert len({*heard.tokens}) > 5


def test_of_several_drawn_texts_the_likeliest_is_taken(loud: SpeechModel) -> None:
    """Each is what its own seed draws alone; the first is that of one text."""
    features = loud.features(tones(16000, 3))
    prompt = TOKENS.prompt("en", "transcribe", timestamps=True)
    source = loud.hear(features)
    options: dict[str, Any] = {"timestamps": True, "temperature": 1.0}
    for seed in range(4):
        alone = [loud.window(source, prompt, seed=seed + (n << 48), **options) for n in range(5)]
        assert len({one.tokens for one in alone}) == 5
        for count in (1, 3, 5):
            wanted = max(alone[:count], key=lambda one: one.avg_logprob)
            found = loud.window(source, prompt, seed=seed, best_of=count, **options)
            assert found.tokens == wanted.tokens
            assert found.avg_logprob == pytest.approx(wanted.avg_logprob, abs=1e-5)
    one, other = (loud.window(source, prompt, timestamps=True, best_of=n) for n in (1, 5))
    assert one == other  # at temperature 0 nothing is drawn


def test_a_word_is_as_probable_as_its_tokens_in_the_mean(loud: SpeechModel) -> None:
    sounds = tones(16000, 3)
    options: dict[str, Any] = {"language": "en", "temperature": 0, "word_timestamps": True}
    segment = loud.transcribe(sounds, **options).segments[0]
    text = [one for one in segment.tokens if one < TOKENS.end]
    found = words(text, loud.text_of, "en")
    assert [one.text for one in found] == [one.word for one in segment.words]
    assert max(one.count for one in found) > 1
    prompt = TOKENS.prompt("en", "transcribe", timestamps=False)
    source = loud.hear(loud.features(sounds))
    shares = iter(loud.decoder.alignment(source, 0, prompt, text).probabilities)
    wanted = [np.mean([next(shares) for _ in range(one.count)]) for one in found]
    np.testing.assert_allclose([one.probability for one in segment.words], wanted, rtol=1e-5)


def test_windows_together_draw_the_texts_of_each(loud: SpeechModel) -> None:
    sounds = [tones(16000, 3), tones(9000, 4), tones(16000, 5)]
    options: dict[str, Any] = {"language": "en", "temperature": 0.8, "best_of": 3, "seed": 7}
    options.update(compression_ratio_threshold=None, logprob_threshold=None)
    found = loud.transcribe_batch(sounds, batch=3, **options)
    same(found, [loud.transcribe(one, **options) for one in sounds])
    plain = [loud.transcribe(one, **{**options, "best_of": 1}) for one in sounds]
    means = [[one.segments[0].avg_logprob for one in every] for every in (found, plain)]
    assert all(a >= b for a, b in zip(*means, strict=True)) and means[0] != means[1]


def test_beams_count_what_forward_says(loud: SpeechModel) -> None:
    features = loud.features(tones(16000, 3))
    prompt = TOKENS.prompt("en", "transcribe", timestamps=True)
    source = loud.hear(features)
    heard = loud.window(source, prompt, timestamps=True, beams=4)
    assert heard.tokens != loud.window(source, prompt, timestamps=True).tokens
    logits = loud.forward([*prompt, *heard.tokens], features[:100])
    logprobs = list[float]()
    for place, token in enumerate(heard.tokens):
        row = allowed(logits[len(prompt) + place - 1], heard.tokens[:place])
        logprobs.append(row[token] - row.max() - math.log(np.exp(row - row.max()).sum()))
    assert len(logprobs) == loud.context - len(prompt)
    assert heard.avg_logprob == pytest.approx(np.mean(logprobs), abs=1e-4)


def test_other_seeds_draw_other_tokens(model: SpeechModel) -> None:
    found = [
        model.transcribe(noise(16000), language="en", temperature=0.8, seed=seed).text
        for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]


def test_many_beams_find_the_best_of_all_texts() -> None:
    """Of texts of up to four tokens, where each depends on the one before, by trying all."""
    rng, end = np.random.default_rng(5), 0
    for _ in range(20):
        table = rng.standard_normal((4, 4)) * 2
        scores = table - np.log(np.exp(table).sum(axis=1, keepdims=True))

        def total(text: Sequence[int], scores: Array = scores) -> float:
            return sum(scores[a, b] for a, b in itertools.pairwise((3, *text)))

        texts = [
            text
            for length in range(1, 5)
            for text in itertools.product(range(4), repeat=length)
            if end not in text[:-1] and (text[-1] == end or length == 4)
        ]
        best = max(texts, key=lambda text: total(text) / len(text))
        beams = Beams(200, end, 4)
        while not beams.done:
            last = [one.tokens[-1] if one.tokens else 3 for one in beams.running]
            rows = scores[last]
            order = np.argsort(-rows, axis=1)
            more = np.full((len(last), 1), 0.25)
            beams.step(order, np.take_along_axis(rows, order, 1), more)
        assert beams.best.tokens == best
        assert beams.best.score == pytest.approx(total(best))
        assert beams.best.logprob == pytest.approx(total(best) + 0.25 * len(best))


def test_beams_end_when_no_running_text_is_better() -> None:
    beams = Beams(2, 0, 9)
    beams.step(np.array([[5, 0, 6, 7]]), np.log([[0.5, 0.4, 0.05, 0.05]]), np.zeros((1, 1)))
    assert [one.tokens for one in beams.running] == [(5,), (6,)]  # the end is no text to go on from
    assert [one.tokens for _, one in beams.whole] == [(0,)]
    assert not beams.done
    tokens = np.array([[0, 8, 9, 4], [0, 8, 9, 4]])
    beams.step(tokens, np.log([[0.9, 0.01, 0.01, 0.01]] * 2), np.zeros((2, 1)))
    assert beams.done
    assert beams.best.tokens == (5, 0)
    assert [one.origin for one in beams.running] == [0, 0]


def test_beams_with_fewer_texts_than_there_may_be() -> None:
    beams = Beams(3, 0, 9)
    scores = np.array([[-0.5, -math.inf, -math.inf, -math.inf, -math.inf, -math.inf]])
    beams.step(np.array([[5, 1, 2, 3, 4, 6]]), scores, np.zeros((1, 1)))
    assert [one.tokens for one in beams.running] == [(5,)]
    assert [one.tokens for one in beams.rows] == [(5,)] * 3


# --- several at once ---


def same(found: Sequence[Transcript], wanted: Sequence[Transcript]) -> None:
    """The same but for the last bits of log probabilities."""
    for one, other in zip(found, wanted, strict=True):
        assert (one.text, one.language, one.duration) == (
            other.text,
            other.language,
            other.duration,
        )
        assert [s.tokens for s in one.segments] == [s.tokens for s in other.segments]
        assert [(s.start, s.end, s.temperature) for s in one.segments] == [
            (s.start, s.end, s.temperature) for s in other.segments
        ]
        numbers = [[(s.avg_logprob, s.no_speech_prob) for s in t.segments] for t in (one, other)]
        np.testing.assert_allclose(*numbers, rtol=1e-5)


def believed(model: SpeechModel, sounds: Sequence[Array], **options: Any) -> dict[str, Any]:
    """Options with which some windows are decoded again."""
    found = [model.transcribe(one, temperature=0, **options) for one in sounds]
    means = sorted({round(s.avg_logprob, 4) for one in found for s in one.segments})
    assert len(means) > 3
    options.update(temperature=(0.0, 0.7), compression_ratio_threshold=None)
    below, above = means[len(means) // 2 - 1 :][:2]  # no window's own, which rounding moves
    return {**options, "logprob_threshold": (below + above) / 2}


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    "options",
    [{}, {"beams": 3, "temperature": 0}, {"prompt": "a cat", "temperature": 0.0}],
    ids=["greedy", "beams", "prompt"],
)
def test_recordings_together_are_as_each_alone(loud: SpeechModel, options: Any) -> None:
    """More than fit in a batch, of other lengths, in other languages, some decoded again."""
    sounds = [tones(size, size) for size in (40000, 9000, 16001, 23000)]
    options = options or believed(loud, sounds)
    alone = [loud.transcribe(one, **options) for one in sounds]
    same(loud.transcribe_batch(sounds, batch=2, **options), alone)
    if "logprob_threshold" in options:
        assert {s.temperature for one in alone for s in one.segments} == {0.0, 0.7}
        assert len({one.language for one in alone}) > 1


@pytest.mark.slice(1)
@pytest.mark.parametrize("before", [False, True])
def test_windows_of_one_recording_together(loud: SpeechModel, before: bool) -> None:
    options = believed(loud, [tones(70000)], timestamps=False, condition_on_previous_text=before)
    alone = loud.transcribe(tones(70000), **options)
    (found,) = loud.transcribe_batch([tones(70000)], batch=3, **options)
    same([found], [alone])
    assert len(found.segments) == 5
    assert {s.temperature for s in found.segments} == {0.0, 0.7}
    rows = {plan.captured.inputs[0].shape[0] for plan in loud.decoder.steps.hear.plans}
    assert before or {1, 2, 3} <= rows


def test_recordings_are_opened_when_there_is_room(model: SpeechModel) -> None:
    broken = wav_bytes(noise(100), 16000)[:50]
    runs = model.transcribing_batch([noise(9000), noise(9000, 1), broken], batch=1, temperature=0)
    assert [run.duration for run in runs] == [9000 / 16000, 0, 0]
    assert runs[1].finished().segments
    with pytest.raises(AudioError):
        runs[2].finished()
    assert runs[0].finished().duration == 9000 / 16000


def test_a_recording_that_cannot_be_opened_takes_nothing_from_others(model: SpeechModel) -> None:
    broken = wav_bytes(noise(100), 16000)[:50]
    given = [noise(9000), broken, noise(9000, 1)]
    runs = model.transcribing_batch(given, batch=4, temperature=0)
    alone = [model.transcribe(one, temperature=0) for one in (given[0], given[2])]
    same([runs[0].finished(), runs[2].finished()], alone)
    for _ in range(2):  # asked again it is no empty text
        with pytest.raises(AudioError):
            runs[1].finished()


# --- refusals ---


@together()
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, r"temperature -1: must be a number >= 0"),
        ({"temperature": "hot"}, r"temperature 'hot': must be a number >= 0"),
        ({"temperature": (0, math.nan)}, r"temperature nan: must be"),
        ({"temperature": ()}, r"temperature: 0 of them; give 1 to 64"),
        ({"logprob_threshold": "low"}, "logprob_threshold 'low': must be a number, or None"),
        ({"no_speech_threshold": True}, "no_speech_threshold True: must be a number"),
        ({"compression_ratio_threshold": math.nan}, "compression_ratio_threshold nan: must be"),
        ({"timestamps": "no"}, "timestamps 'no': must be True or False"),
        ({"word_timestamps": 1}, "word_timestamps 1: must be True or False"),
        ({"beams": 0}, r"beams 0: must be an integer in \[1, 64\]"),
        ({"beams": 2.0}, r"beams 2.0: must be an integer"),
        ({"seed": -1}, "seed -1: must be an integer in"),
        ({"prompt": 7}, "prompt 7: must be a text"),
        ({"prompt": "a cat " * 9}, r"prompt 'a cat .*: 27 tokens, and 19 fit before"),
        ({"prompt": "a word"}, r"prompt 'a word': token 4\d\d is none of a text"),
        ({"beam": 2}, "unknown option 'beam'.*beams"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loaded().transcribe(noise(10), **options)


@pytest.mark.parametrize("batch", [0, 65, 2.0, True])
def test_batches_that_cannot_be(batch: Any, model: SpeechModel) -> None:
    with pytest.raises(UsageError, match=r"batch .*: must be an integer in \[1, 64\]"):
        model.transcribe_batch([noise(10)], batch=batch)


def test_a_prompt_holds_no_special_token(model: SpeechModel, monkeypatch: Any) -> None:
    assert model.tokenizer is not None
    monkeypatch.setattr(model.tokenizer, "encode", lambda text, **options: [7, TOKENS.end])
    with pytest.raises(UsageError, match="token 450 is none of a text"):
        model.transcribe(noise(10), prompt="<|endoftext|>")


def test_options_say_what_follows() -> None:
    assert SpeechOptions().follows
    assert not SpeechOptions(timestamps=False).follows
    assert SpeechOptions(timestamps=False, condition_on_previous_text=True).follows
