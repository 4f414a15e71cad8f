"""Whisper against Transformers, on each backend: features, logits, tokens, long recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ptir
from ptir.runtime import SpeechModel, SpeechSegment
from ptir.runtime.specs import shipped_tokenizer
from ptir.runtime.speech.alignment import token_positions
from ptir.runtime.speech.languages import LANGUAGES, language_code
from ptir.runtime.speech.tokens import SpeechTokens

pytestmark = pytest.mark.parity

Array = np.ndarray[Any, Any]
BACKENDS = ("ref", "c", "opencl")
SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "num_mel_bins": 10,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 50,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 50,
    "max_source_positions": 50,
    "max_target_positions": 40,
    "bos_token_id": 450,
    "eos_token_id": 450,
    "pad_token_id": 450,
    "decoder_start_token_id": 451,
}
ODD: dict[str, dict[str, Any]] = {
    "small": {},
    "odd sizes": {
        "d_model": 42,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 7,
        "encoder_ffn_dim": 41,
        "decoder_ffn_dim": 67,
        "num_mel_bins": 7,
        "max_source_positions": 37,
        "decoder_layers": 3,
    },
    "another activation": {"activation_function": "relu", "encoder_layers": 1},
}


def noisy(folder: Path, seed: int = 0, **change: Any) -> Any:
    """Transformers' model with values that let nothing go unnoticed, saved with a tokenizer."""
    config = {**SMALL, **change}
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**config))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim < 2:
                value.normal_(float("norm" in name and name.endswith("weight")), 0.3)
            else:
                value.normal_(0.0, 1.3 * value[0].numel() ** -0.5)
    tokens, rules = SpeechTokens.of(config, {}), model.generation_config
    rules.no_timestamps_token_id, rules.is_multilingual = tokens.no_stamps, True
    rules.lang_to_id = {f"<|{name}|>": number for name, number in tokens.languages.items()}
    rules.task_to_id = dict(tokens.tasks)
    rules.suppress_tokens, rules.begin_suppress_tokens = [1, 2, 7, 451, 455], [220, 450]
    rules.max_initial_timestamp_index = 25
    rules.max_length = config["max_target_positions"]
    model.save_pretrained(folder)
    words = shipped_tokenizer("gpt2", 450)
    assert words is not None
    (folder / "vocab.json").write_text(words.vocab)
    (folder / "merges.txt").write_text(words.merges)
    return model.eval()


def opened(folder: Path, backend: str) -> SpeechModel:
    model = ptir.load_model(folder, backend=backend)
    assert isinstance(model, SpeechModel)
    return model


def assert_alike(found: Array, wanted: Array) -> None:
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def sound(size: int, seed: int) -> Array:
    """Noise that grows and fades, f32[size]."""
    noise = np.random.default_rng(seed).standard_normal(size)
    return (0.3 * noise * np.abs(np.sin(np.arange(size) / 3000))).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ODD)
def test_logits_are_those_of_transformers(name: str, backend: str, tmp_path: Path) -> None:
    model = noisy(tmp_path, **ODD[name])
    rng = np.random.default_rng(0)
    shape = (2, 2 * model.config.max_source_positions, model.config.num_mel_bins)
    features = rng.standard_normal(shape).astype(np.float32)
    ids = rng.integers(0, 512, (2, 9))
    with torch.no_grad():
        given = torch.from_numpy(features).transpose(1, 2)
        wanted = model(given, decoder_input_ids=torch.from_numpy(ids)).logits.numpy()
    assert_alike(opened(tmp_path, backend).forward(ids, features), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("seconds", [3.217, 41.3])
def test_features_are_those_of_transformers(mels: int, seconds: float, backend: str) -> None:
    from ptir.audio import LogMel, feature_settings

    samples = sound(int(16000 * seconds), 1)
    whole = {} if seconds < 30 else {"truncation": False, "padding": "longest"}
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
    wanted = extractor(samples, sampling_rate=16000, return_tensors="np", **whole)
    settings = feature_settings({}, mels=mels, frames=3000)
    found = LogMel(settings, ptir.backend(backend))(samples)
    assert_alike(found, wanted.input_features[0].T)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(3))
def test_tokens_of_a_window_are_those_of_transformers(
    seed: int, backend: str, tmp_path: Path
) -> None:
    """Without timestamps, which random weights give all the same and are suppressed."""
    model = noisy(tmp_path, seed)
    rules = model.generation_config
    rules.suppress_tokens = [1, 2, 7, *range(450, 512)]
    rules.save_pretrained(tmp_path)
    features = np.random.default_rng(seed).standard_normal((100, 10)).astype(np.float32)
    with torch.no_grad():
        given = torch.from_numpy(features).T[None]
        wanted = model.generate(given, language="de", task="translate")[0].tolist()
    ours = opened(tmp_path, backend)
    prompt = ours.tokens.prompt("de", "translate", timestamps=False)
    heard = ours.window(ours.hear(features), prompt, timestamps=False)
    assert len(heard.tokens) == 36
    assert [*heard.tokens] == wanted[-36:]


def alone(segment: SpeechSegment, times: tuple[float, float]) -> bool:
    """Whether a segment may be its window's only one, whose begin Transformers tells."""
    return times[0] < segment.start < segment.end


LONG = {0: 16000, 1: 40000, 3: 59161, 4: 70001, 5: 31999, 9: 59161, 10: 70001, 11: 31999}
"""Samples by seed; one second is a window."""


def theirs(model: Any, samples: Array, **options: Any) -> list[dict[str, Any]]:
    """The segments of Transformers."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=10, chunk_length=1)
    whole = {} if len(samples) <= 16000 else {"truncation": False, "padding": "longest"}
    given = extractor(
        samples, sampling_rate=16000, return_tensors="pt", return_attention_mask=True, **whole
    )
    mask = {"attention_mask": given.attention_mask} if whole else {}
    with torch.no_grad():
        made = model.generate(
            given.input_features,
            task="transcribe",
            return_timestamps=True,
            return_segments=True,
            **mask,
            **options,
        )
        model.told = model.detect_language(given.input_features[:, :, :100])[0].item()
    found: list[dict[str, Any]] = made["segments"][0]
    return found


def assert_same_segments(ours: SpeechModel, found: ptir.runtime.Transcript, theirs: Any) -> None:
    """The tokens of all that have a text, and times where both ends of one are told.

    Where a window has no two segments Transformers takes its begin for that of the first, whatever
    time is told, and the only time of one that is not closed for its end; here that is its begin.
    """
    assert ours.tokenizer is not None
    wanted = list[tuple[list[int], tuple[float, float] | None]]()
    for one in theirs:
        tokens = one["tokens"].tolist()
        words = [token for token in tokens if token < 450]
        if not ours.tokenizer.decode(words).strip():
            continue
        closed = sum(token >= ours.tokens.first_stamp for token in tokens) > 1
        times = (round(float(one["start"]), 3), round(float(one["end"]), 3))
        wanted.append((words, times if closed else None))
    assert [[t for t in one.tokens if t < 450] for one in found.segments] == [w for w, _ in wanted]
    for segment, (_, times) in zip(found.segments, wanted, strict=True):
        if times is not None and segment.tokens[-1] >= ours.tokens.first_stamp:
            assert segment.end == pytest.approx(times[1], abs=1e-3)
            assert segment.start == pytest.approx(times[0], abs=1e-3) or alone(segment, times)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", LONG)
def test_long_recordings_are_heard_as_transformers_does(
    seed: int, backend: str, tmp_path: Path
) -> None:
    """From samples to segments, the language found out."""
    model, samples = noisy(tmp_path, seed), sound(LONG[seed], seed)
    wanted = theirs(model, samples)
    ours = opened(tmp_path, backend)
    found = ours.transcribe(samples, no_speech_threshold=None, temperature=0)
    assert found.language is not None
    assert ours.tokens.languages[found.language] == model.told
    assert_same_segments(ours, found, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_beams_find_what_those_of_transformers_find(
    seed: int, beams: int, backend: str, tmp_path: Path
) -> None:
    model, samples = noisy(tmp_path, seed), sound(LONG[seed], seed)
    wanted = theirs(model, samples, num_beams=beams)
    ours = opened(tmp_path, backend)
    found = ours.transcribe(samples, no_speech_threshold=None, temperature=0, beams=beams)
    assert_same_segments(ours, found, wanted)
    plain = ours.transcribe(samples, no_speech_threshold=None, temperature=0)
    assert plain.segments != found.segments


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "asked",
    [{"prompt": " the cat, in"}, {"condition_on_previous_text": True}],
    ids=["prompt", "text before"],
)
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_text_before_is_given_as_transformers_gives_it(
    seed: int, asked: dict[str, Any], backend: str, tmp_path: Path
) -> None:
    model, samples = noisy(tmp_path, seed), sound(LONG[seed], seed)
    model.generation_config.prev_sot_token_id = 458
    ours = opened(tmp_path, backend)
    assert ours.tokens.previous == 458
    if "prompt" in asked:
        assert ours.tokenizer is not None
        ids = [458, *ours.tokenizer.encode(" the cat, in")]
        options: dict[str, Any] = {"prompt_ids": torch.tensor(ids)}
    else:
        options = {"condition_on_prev_tokens": True, "temperature": (0.0,)}
    wanted = theirs(model, samples, **options)
    found = ours.transcribe(samples, no_speech_threshold=None, temperature=0, **asked)
    assert_same_segments(ours, found, wanted)
    plain = ours.transcribe(samples, no_speech_threshold=None, temperature=0)
    assert plain.segments != found.segments


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [3, 4, 9, 10])
def test_answers_are_doubted_and_left_out_where_transformers_does(
    seed: int, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same attempts, numbers of each, and windows left out: together the seeds have all kinds.

    A second temperature that is nearly 0 draws the likeliest tokens, on both sides. Theirs measure
    how well ids of tokens are compressed; here it is the text, as in the paper, so no threshold.
    They stay with one beam for good once a window was decoded again, so beams are left out.
    """
    model, samples = noisy(tmp_path, seed), sound(LONG[seed], seed)
    ours, kind = opened(tmp_path, backend), type(model)
    options: dict[str, Any] = {"compression_ratio_threshold": None}
    plain = ours.transcribe(samples, temperature=0, logprob_threshold=None, **options)
    logprob = float(np.median([one.avg_logprob for one in plain.segments])) + 1e-4
    unsure = [one.no_speech_prob for one in plain.segments if one.avg_logprob < logprob]
    options.update(
        logprob_threshold=logprob,
        no_speech_threshold=1.0001 * float(np.median(unsure)),
        temperature=(0.0, 1e-3),
    )
    attempts, verdicts = list[tuple[float, float]](), list[tuple[bool, bool]]()
    need, mean = kind._need_fallback, kind._retrieve_avg_logprobs

    def needed(self: Any, *given: Any) -> tuple[bool, bool]:
        verdicts.append(need(self, *given))
        return verdicts[-1]

    def meant(scores: Any, tokens: Any, temperature: float) -> Any:
        found = mean(scores, tokens, temperature)
        attempts.append((temperature, float(found)))
        return found

    monkeypatch.setattr(kind, "_need_fallback", needed)
    monkeypatch.setattr(kind, "_retrieve_avg_logprobs", staticmethod(meant))
    told = {"return_dict_in_generate": True, "output_scores": True, "top_k": 0}
    wanted = theirs(model, samples, **told, **options)
    made, decode = list[tuple[float, float]](), ours.decoder.decode

    def recorded(*given: Any) -> Any:
        (heard,) = decode(*given)
        made.append((heard.temperature, heard.avg_logprob))
        return [heard]

    monkeypatch.setattr(ours.decoder, "decode", recorded)
    found = ours.transcribe(samples, **options)
    assert len({*verdicts}) > 1
    assert [one for one, _ in made] == [one for one, _ in attempts]
    np.testing.assert_allclose([p for _, p in made], [p for _, p in attempts], rtol=1e-5)
    assert_same_segments(ours, found, wanted)
    assert {one.temperature for one in found.segments} <= {0.0, 1e-3}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads", [((0, 1), (1, 0)), ((1, 1),)])
@pytest.mark.parametrize("seed", range(3))
def test_times_of_tokens_are_those_of_transformers(
    seed: int, heads: tuple[tuple[int, int], ...], backend: str, tmp_path: Path
) -> None:
    """For the rows that they take: of each token itself, where here it is that of the one before.

    They leave out the last token, and round times to f32.
    """
    model = noisy(tmp_path, seed)
    rules = model.generation_config
    rules.suppress_tokens = [1, 2, 7, *range(450, 512)]
    rules.alignment_heads = [[*pair] for pair in heads]
    rules.save_pretrained(tmp_path)
    model.set_attn_implementation("eager")
    features = np.random.default_rng(seed).standard_normal((100, 10)).astype(np.float32)
    given = torch.from_numpy(features).T[None]
    with torch.no_grad():
        made = model.generate(
            given,
            language="de",
            task="translate",
            return_token_timestamps=True,
            attention_mask=torch.ones((1, 100), dtype=torch.long),
        )
    wanted = made["token_timestamps"][0].numpy()
    ours = opened(tmp_path, backend)
    assert ours.alignment_heads == tuple(sorted(heads))
    prompt = ours.tokens.prompt("de", "translate", timestamps=False)
    source = ours.hear(features)
    said = ours.window(source, prompt, timestamps=False).tokens
    assert [*said] == made["sequences"][0].tolist()[-36:]
    aligned = ours.decoder.alignment(source, 0, prompt, said)
    with torch.no_grad():  # as OpenAI's has it: among tokens of text
        ids = torch.tensor([[*prompt, *said[:-1]]])
        logits = model(given, decoder_input_ids=ids).logits[0, len(prompt) - 1 :, :450]
    shares = logits.softmax(-1).gather(-1, torch.tensor(said)[:, None])[:, 0].numpy()
    np.testing.assert_allclose(aligned.probabilities, shares, rtol=1e-3, atol=1e-6)
    weights = aligned.weights
    found = 0.02 * token_positions(weights[:, 1:36])
    np.testing.assert_allclose(found, wanted[-36:-1], atol=1e-5)
    assert len({*found.tolist()}) > 3


def test_languages_are_those_of_transformers_in_their_order() -> None:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES as THEIRS

    assert [*LANGUAGES] == [*THEIRS]
    named = {code: name.lower().replace("_", " ") for code, name in LANGUAGES.items()}
    assert named == THEIRS
    assert {language_code(name, THEIRS) for name in THEIRS.values()} == {*THEIRS}
