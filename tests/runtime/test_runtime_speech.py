"""Speech: special tokens, the rules of timestamps, windows over long recordings, refusals.

Numbers of models, and whole transcriptions, are compared with Transformers in tests/parity.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.checkpoint import save_folder
from ptir.errors import AudioError, CheckpointError, UnsupportedError, UsageError
from ptir.models.table import preset
from ptir.params.source import ArraySource
from ptir.runtime import SpeechModel, SpeechSegment, Transcript
from ptir.runtime.specs import resolve
from ptir.runtime.speech.options import Heard
from ptir.runtime.speech.stamps import Bounds, Part, bounds, parts, untimed
from ptir.runtime.speech.tokens import SpeechTokens
from running import REF
from together import together

MICRO = "random:whisper-micro"
TOKENS = SpeechTokens.of(preset("whisper-micro")[1], {})
T, END = TOKENS.first_stamp, TOKENS.end
"""The token of second 0, and the one that ends a text; 7 and 8 are words."""


def loaded(**options: Any) -> SpeechModel:
    model = ptir.load_model(MICRO, backend=REF, **options)
    assert isinstance(model, SpeechModel)
    return model


@pytest.fixture(scope="module")
def model() -> SpeechModel:
    return loaded()


def noise(size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return (0.1 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


# --- tokens ---


@pytest.mark.parametrize(
    ("name", "end", "english", "transcribe", "no_stamps", "count"),
    [
        ("whisper-tiny.en", 50256, None, None, 50362, 0),
        ("whisper-small", 50257, 50259, 50359, 50363, 99),
        ("whisper-large-v3", 50257, 50259, 50360, 50364, 100),
    ],
)
def test_tokens_stand_where_published_models_have_them(
    name: str, end: int, english: int, transcribe: int, no_stamps: int, count: int
) -> None:
    found = SpeechTokens.of(preset(name)[1], {})
    assert (found.end, found.start, found.no_stamps) == (end, end + 1, no_stamps)
    assert found.first_stamp + 1500 == found.size - 1
    assert len(found.languages) == count
    assert found.languages.get("en") == english
    assert found.tasks.get("transcribe") == transcribe
    marks = [english, transcribe] if count else []
    language = "en" if count else None
    assert found.prompt(language, "transcribe", timestamps=True) == [end + 1, *marks]
    assert found.prompt(language, "transcribe", timestamps=False)[-1] == no_stamps


def test_a_generation_config_is_taken_at_its_word() -> None:
    said = {
        "no_timestamps_token_id": 400,
        "lang_to_id": {"<|de|>": 390},
        "task_to_id": {"transcribe": 395, "translate": 394},
        "suppress_tokens": [3],
        "begin_suppress_tokens": [4],
        "max_initial_timestamp_index": 5,
        "eos_token_id": 380,
        "decoder_start_token_id": 385,
    }
    found = SpeechTokens.of(preset("whisper-micro")[1], said)
    assert found.prompt("de", "translate", timestamps=False) == [385, 390, 394, 400]
    assert (found.end, found.first_stamp, found.latest_first) == (380, 401, 5)
    assert (found.suppressed, found.suppressed_first) == ((3, 400), (4,))


@together()
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"suppress_tokens": [-1]}, r"suppress_tokens -1 must be an id >= 0 and < vocab_size 512"),
        ({"suppress_tokens": "7"}, "suppress_tokens '7' must be a list of ids"),
        ({"lang_to_id": {}}, "lang_to_id {} must be an object"),
        ({"lang_to_id": {"<|en|>": 512}}, "lang_to_id 512 must be an id"),
        ({"task_to_id": {"translate": 3}}, "must be an object .* with transcribe and translate"),
        ({"no_timestamps_token_id": 10**30}, "no_timestamps_token_id 1000"),
        ({"max_initial_timestamp_index": True}, "max_initial_timestamp_index True must be an id"),
        ({"is_multilingual": "yes"}, "is_multilingual 'yes' must be true or false"),
        ({"no_timestamps_token_id": 100}, "must be in this order"),
    ],
)
def test_tokens_that_cannot_be_are_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        SpeechTokens.of(preset("whisper-micro")[1], said)


# --- timestamps ---


@together()
@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ([], Bounds(T, T, min(512, T + 51))),  # a time first, not a late one
        ([T + 3], Bounds(0, 512, 512)),  # then text
        ([T + 3, 7], Bounds(0, T + 4, 512)),  # text, or a time behind the last
        ([T + 3, 7, T + 9], Bounds(END, T + 9, 512)),  # a time, the same one too, or the end
        ([T + 3, 7, T + 9, T + 9], Bounds(0, 512, 512)),
        ([T + 3, 7, T + 9, T + 9, 8], Bounds(0, T + 10, 512)),
    ],
)
def test_times_come_in_pairs_and_never_go_back(said: Sequence[int], wanted: Bounds) -> None:
    assert bounds(said, TOKENS) == wanted


@together()
@pytest.mark.parametrize(
    ("said", "wanted", "done"),
    [
        ([], [], None),
        ([T, 7, T + 9], [Part((T, 7, T + 9), 0, 9)], None),  # nothing follows
        (
            [T, 7, T + 9, T + 10, 8, T + 20],
            [Part((T, 7, T + 9), 0, 9), Part((T + 10, 8, T + 20), 10, 20)],
            None,
        ),
        ([T, 7, T + 9, T + 9], [Part((T, 7, T + 9), 0, 9)], 18),  # frames are half a position
        ([T, 7, T + 9, T + 12, 8], [Part((T, 7, T + 9), 0, 9)], 18),  # 8 is said again
        ([T + 4, 7, 8], [Part((T + 4, 7, 8), 4, None)], None),  # not closed
        ([T + 4, T + 4], [Part((T + 4,), 4, 4)], 8),
    ],
)
def test_segments_of_a_window(said: list[int], wanted: list[Part], done: int | None) -> None:
    assert parts(said, TOKENS) == (wanted, done)


def test_without_timestamps_a_window_is_a_segment() -> None:
    assert untimed([7, 8], TOKENS) == ([Part((7, 8), 0, None)], None)
    assert untimed([], TOKENS) == ([], None)


# --- windows ---


def scripted(model: SpeechModel, monkeypatch: pytest.MonkeyPatch, *windows: Heard) -> list[float]:
    """Have the model hear these windows; the list gets what each began with."""
    seen, rest = list[float](), iter(windows)

    def hear(features: Sequence[np.ndarray[Any, Any]], rows: int) -> Any:
        seen.extend(float(one[0, 0]) for one in features)
        return ()

    def decode(source: Any, prompts: Sequence[Sequence[int]], *others: Any) -> list[Heard]:
        return [next(rest) for _ in prompts]

    monkeypatch.setattr(model.decoder, "hear", hear)
    monkeypatch.setattr(model.decoder, "pick", lambda source, windows: ())
    monkeypatch.setattr(model.decoder, "decode", decode)
    monkeypatch.setattr(model, "_features", lambda x: np.arange(len(x) // 160.0)[:, None])
    return seen


def test_the_next_window_begins_where_the_last_segment_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = loaded()
    seen = scripted(
        model,
        monkeypatch,
        Heard((T + 1, 7, T + 20, T + 21, 8), -0.1, 0.0),
        Heard((T, 8, T + 30), -0.1, 0.0),
        Heard((T + 2, 7), -0.1, 0.0),
    )
    found = model.transcribe(noise(16000 * 2), language="en")
    assert seen == [0, 40, 140]
    times = [(one.start, one.end) for one in found.segments]
    assert times == [(0.02, 0.4), (0.4, 1.0), (1.44, 2.0)]  # the last ends with the recording
    assert (found.language, found.duration) == ("en", 2.0)
    assert found.text == "".join(one.text for one in found.segments).strip()


def test_windows_without_timestamps_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded()
    seen = scripted(model, monkeypatch, Heard((7,), -0.1, 0.0), Heard((8, T + 3), -0.1, 0.0))
    found = model.transcribe(noise(24000), language="en", timestamps=False)
    assert seen == [0, 100]
    assert [(one.start, one.end) for one in found.segments] == [(0.0, 1.0), (1.0, 1.5)]


def test_a_window_in_which_nobody_speaks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded()
    said = (T, 7, T + 9)
    unsure, sure = Heard(said, -1.5, 0.9), Heard(said, -0.5, 0.9)
    scripted(model, monkeypatch, unsure, sure)
    found = model.transcribe(noise(32000), language="en")
    assert [one.start for one in found.segments] == [1.0]
    scripted(model, monkeypatch, unsure, sure)
    found = model.transcribe(noise(32000), language="en", no_speech_threshold=None, temperature=0)
    assert [one.start for one in found.segments] == [0.0, 1.0]


def test_a_transcription_gives_segments_one_by_one(model: SpeechModel) -> None:
    run = model.transcribing(noise(40000), language="German", temperature=0)
    first = next(iter(run))
    assert run.result.segments == (first,)
    for _ in run:
        pass
    assert run.result == model.transcribe(noise(40000), language="<|de|>", temperature=0)
    assert run.result.language == "de"


def test_the_language_is_the_likeliest_one(model: SpeechModel) -> None:
    found = model.detect_language(noise(16000))
    assert sum(found.values()) == pytest.approx(1)
    assert [*found.values()] == sorted(found.values(), reverse=True)
    assert {*found} == {"en", "zh", "de"}
    assert model.transcribe(noise(16000), temperature=0).language == next(iter(found))


def test_tokens_follow_the_rules_and_are_the_likeliest(model: SpeechModel) -> None:
    """What ``forward`` says behind each token, under the bounds, is what was chosen."""
    features = model.features(noise(16000, 3))
    prompt = TOKENS.prompt("en", "transcribe", timestamps=True)
    heard = model.window(model.hear(features), prompt, timestamps=True)
    said = [*prompt, *heard.tokens]
    logits = model.forward(said, features[:100]).astype(np.float64)
    number, logprobs = np.arange(512), []
    for place, token in enumerate(heard.tokens):
        text, low, high = bounds(heard.tokens[:place], TOKENS)
        row = logits[len(prompt) + place - 1].copy()
        may = np.where(number >= T, (number >= low) & (number < high), number >= text)
        row[~may | (number == TOKENS.no_stamps)] = -np.inf
        if np.exp(row[T:]).sum() > np.exp(row[:T].max()):
            row[:T] = -np.inf
        assert row.argmax() == token
        logprobs.append(row[token] - np.log(np.exp(row).sum()))
    assert len(heard.tokens) == model.context - len(prompt)
    assert heard.avg_logprob == pytest.approx(np.mean(logprobs), abs=1e-4)


def test_a_cache_in_16_bits_holds_what_is_heard_too() -> None:
    narrow = loaded(cache_dtype="bf16")
    assert {one.dtype.name for one in narrow.hear(narrow.features(noise(9)))[0]} == {"bf16"}
    assert narrow.transcribe(noise(16000), language="en", temperature=0).segments


def test_a_trace_has_both_towers(model: SpeechModel) -> None:
    features = model.features(noise(16000))
    found = model.trace([451, 7], features)
    assert found["encoder.layers.1"].shape == (1, 50, 24)
    assert found["decoder.layers.1.encoder_attn"].shape == (1, 2, 24)
    np.testing.assert_array_equal(found["logits"][0], model.forward([451, 7], features))


# --- refusals ---


@together()
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"language": "klingon"}, "unknown language 'klingon'; known: chinese, de, en"),
        ({"language": "fr"}, "unknown language 'fr'"),
        ({"task": "summarize"}, "task 'summarize': must be transcribe or translate"),
    ],
)
def test_what_cannot_be_asked_for(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loaded().transcribe(noise(10), **options)


def test_a_model_for_english_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded()
    model.__dict__["tokens"] = replace(TOKENS, languages={}, tasks={})
    with pytest.raises(UsageError, match="knows English alone, and language is 'German'"):
        model.transcribe(noise(10), language="German")
    with pytest.raises(UsageError, match="a multilingual one translates"):
        model.transcribe(noise(10), task="translate")
    with pytest.raises(UnsupportedError, match="knows English alone"):
        model.detect_language(noise(10))
    assert model.transcribe(noise(10), language="English", temperature=0).language is None


def test_other_inputs_are_refused_by_what_it_takes(model: SpeechModel) -> None:
    with pytest.raises(UnsupportedError, match="cannot generate; it can transcribe"):
        model.generate("a text")
    with pytest.raises(UnsupportedError, match="takes recordings, not texts"):
        model.forward("a text", np.zeros((100, 10), np.float32))
    with pytest.raises(UsageError, match=r"give features f32\[B,100,10\] beside the tokens"):
        model.forward([7])
    with pytest.raises(UsageError, match=r"features are float32\[3,10\]"):
        model.forward([7], np.zeros((3, 10), np.float32))
    with pytest.raises(UsageError, match="do not fit the context of 40"):
        model.forward([7] * 41, np.zeros((100, 10), np.float32))
    with pytest.raises(AudioError, match="samples are none"):
        model.transcribe(np.zeros(0, np.float32))
    with pytest.raises(UnsupportedError, match="cannot transcribe; it can generate"):
        ptir.load_model("demo", backend=REF).transcribe(noise(10))


def micro(tmp_path: Path, **change: Any) -> Path:
    """The small model in a folder, with other settings."""
    checkpoint = resolve(MICRO)
    return save_folder(replace(checkpoint, config={**checkpoint.config, **change}), tmp_path / "m")


@together("change")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"d_model": 25}, "d_model 25 must be a multiple of encoder_attention_heads 2"),
        ({"d_model": 10**12}, "d_model 1000000000000 in config.json must be an integer"),
        ({"encoder_layers": -1}, "encoder_layers -1 in config.json"),
        ({"encoder_layers": 4000}, "says encoder_layers 4000, and tensors of 2 layers"),
        ({"decoder_layers": 4000}, "says decoder_layers 4000, and tensors of 2 layers"),
        ({"num_mel_bins": 0}, "num_mel_bins 0 in config.json"),
        ({"num_mel_bins": 80}, "encoder.conv1.weight"),
        ({"max_source_positions": 10**9}, "max_source_positions 1000000000 in config.json"),
        (
            {"max_target_positions": 4},
            "max_target_positions 4 in config.json must be an integer >= 5",
        ),
        ({"max_target_positions": True}, "max_target_positions True in config.json"),
        ({"max_target_positions": 448}, "decoder.embed_positions.weight"),
        ({"vocab_size": 10**20}, "vocab_size 100000000000000000000 in config.json"),
        ({"activation_function": "sin"}, "activation_function 'sin' is not implemented"),
        ({"scale_embedding": True}, "scale_embedding true is not implemented"),
    ],
)
def test_settings_out_of_range_are_refused_at_once(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = micro(tmp_path, **change)
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(folder, backend=REF)
    assert time.monotonic() - began < 1


def test_a_damaged_weight_is_named(tmp_path: Path) -> None:
    checkpoint = resolve(MICRO)
    held = {name: checkpoint.source.read(name) for name in checkpoint.source.names()}
    name = "decoder.layer_norm.weight"
    held[name] = np.where(np.arange(24) == 3, np.float32(np.nan), held[name])
    damaged = save_folder(replace(checkpoint, source=ArraySource(held)), tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"'decoder\.layer_norm\.weight' of the checkpoint"):
        ptir.load_model(damaged, backend=REF).transcribe(noise(100), language="en")


def test_names_of_transformers_are_read(tmp_path: Path) -> None:
    """Everything stands under ``model.``, and the head, which is the embedding, is stored too."""
    checkpoint = resolve(MICRO)
    held = {f"model.{name}": checkpoint.source.read(name) for name in checkpoint.source.names()}
    held["proj_out.weight"] = held["model.decoder.embed_tokens.weight"]
    folder = save_folder(replace(checkpoint, source=ArraySource(held)), tmp_path / "m")
    features = np.random.default_rng(0).standard_normal((100, 10)).astype(np.float32)
    found = ptir.load_model(folder, backend=REF).forward([451, 9], features)
    np.testing.assert_array_equal(found, loaded().forward([451, 9], features))
    held["proj_out.weight"] = 2 * held["proj_out.weight"]
    apart = replace(
        checkpoint,
        source=ArraySource(held),
        config={**checkpoint.config, "tie_word_embeddings": False},
    )
    folder = save_folder(apart, tmp_path / "apart")
    doubled = ptir.load_model(folder, backend=REF).forward([451, 9], features)
    np.testing.assert_allclose(doubled, 2 * found, rtol=1e-5)


# --- forms ---


def test_subtitles() -> None:
    rows = [(0.0, 2.5, " Hello,\nthere & <you> "), (3661.25, 3662.0, "a --> b")]
    found = Transcript(
        tuple(SpeechSegment(a, b, text, (), 0.0, 0.0, 0.0, 0.0) for a, b, text in rows),
        "en",
        4000.0,
    )
    assert found.srt() == (
        "1\n00:00:00,000 --> 00:00:02,500\nHello, there & <you>\n\n"
        "2\n01:01:01,250 --> 01:01:02,000\na -> b\n\n"
    )
    assert found.vtt() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nHello, there &amp; &lt;you>\n\n"
        "01:01:01.250 --> 01:01:02.000\na -> b\n\n"
    )
    assert "2 segments, en" in repr(found)
    assert dict(found.card().facts)["segments"] == 2
