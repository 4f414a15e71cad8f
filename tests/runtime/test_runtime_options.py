"""How a generation ends and how tokens are chosen: limits, stops, sampling, interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.checkpoint import save_folder
from ptir.errors import CheckpointError, UnsupportedError, UsageError
from ptir.runtime import Model
from ptir.runtime.generation import SamplingOptions
from ptir.runtime.session import Draws
from ptir.runtime.specs import shipped_tokenizer
from running import REF, Script, model, script, small, small_checkpoint
from tiny_backend import ONE, TinyBackend

__all__ = ["script"]


def ids_of(text: str) -> list[int]:
    return model().encode(text)


@pytest.mark.parametrize("eos", [ids_of("KING")[-1], [3, ids_of("KING")[-1]]])
@pytest.mark.parametrize("where", ["config", "generation_config"])
def test_any_end_of_text_token_ends_a_row_and_is_not_kept(
    eos: int | list[int], where: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = model().checkpoint
    changed = {"generation_config": {}, where: {**getattr(checkpoint, where), "eos_token_id": eos}}
    monkeypatch.setattr(model(), "checkpoint", type(checkpoint)(**{**vars(checkpoint), **changed}))
    spoken = [*ids_of("Hear me, "), *ids_of("KING"), *ids_of(" more")]
    script(spoken)
    found = model().generate("A", max_tokens=30)
    assert (found.text, found.finish_reason) == ("Hear me, ", "stop")
    assert found.token_ids == ids_of("Hear me, ")
    script(spoken)
    through = model().generate("A", max_tokens=len(spoken), ignore_eos=True)
    assert (through.token_ids, through.finish_reason) == (spoken, "length")


@pytest.mark.parametrize("stop", ["me, the", ["zzz", ", t"], ["\ufffd", "the", "e, th"]])
def test_stop_text_ends_a_row_wherever_the_pieces_are_cut(
    stop: str | list[str], script: Script
) -> None:
    script(ids_of("Hear me, then speak."))
    run = model().run(["A"], max_tokens=40, stop=stop)
    shown = "".join(piece.text for piece in run)
    (found,) = run.results
    stops = [stop] if isinstance(stop, str) else stop
    assert found.finish_reason == "stop"
    assert shown == found.text
    assert "Hear me, then speak.".startswith(found.text)
    assert any(("Hear me, then speak.".removeprefix(found.text)).startswith(s) for s in stops)


def test_text_held_back_for_a_stop_is_given_out_when_the_row_ends(script: Script) -> None:
    spoken = ids_of("Hear me, the")
    script(spoken)
    found = model().generate("A", max_tokens=len(spoken), stop="me, then")
    assert (found.text, found.finish_reason) == ("Hear me, the", "length")


def test_stop_text_that_only_the_end_completes_counts(script: Script) -> None:
    half = ids_of("Hear 😀")[:-1]
    script(half)
    found = model().generate("A", max_tokens=len(half), stop="\ufffd")
    assert (found.text, found.finish_reason) == ("Hear ", "stop")


def test_max_tokens_0_generates_nothing() -> None:
    found = model().generate("ROMEO:", max_tokens=0)
    assert (found.text, found.token_ids, found.finish_reason) == ("", [], "length")
    assert found.stats.prompt_tokens == 2


def test_no_prompts_give_no_results() -> None:
    assert model().generate_batch([]) == []


def test_without_a_limit_the_context_is_filled(tmp_path: Path) -> None:
    found = small(tmp_path).generate([1, 2, 3])
    assert (len(found.token_ids), found.finish_reason) == (37, "length")


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("", {}, "the prompt is empty"),
        ([], {}, "the prompt is empty"),
        ("A", {"max_tokens": -1}, "max_tokens -1: must be >= 0"),
        (None, {}, "a prompt is NoneType; give a text or a list of token ids"),
        ("A", {"max_tokens": 2.5}, "max_tokens 2.5: must be >= 0, an integer"),
        ("A", {"logprobs": "x"}, "logprobs 'x': must be >= 0, an integer"),
        ("A", {"stop": 5}, "stop 5: must be a text or a list of texts"),
        ("A", {"max_tokens": 256}, "1 tokens and 256 new ones do not fit the context of 256"),
        ([1] * 256, {}, "256 tokens and 1 new ones do not fit"),
        ([1024], {}, r"token id 1024: must be an integer in \[0, 1024\)"),
        ([-1], {}, "token id -1"),
        ([1.5], {}, "token id 1.5: must be an integer"),
        ("A", {"stop": ""}, "non-empty"),
        ("A", {"logprobs": -1}, "logprobs -1: must be >= 0"),
        ("A", {"temprature": 1.0}, "unknown option 'temprature' .nearest: temperature"),
        ("A", {"temperature": -0.1}, "temperature -0.1: must be a number >= 0"),
        ("A", {"temperature": float("nan")}, "temperature nan"),
        ("A", {"temperature": None}, "temperature None: must be a number"),
        ("A", {"top_k": -1}, "top_k -1: must be an integer in"),
        ("A", {"top_k": 2.5}, "top_k 2.5: must be an integer"),
        ("A", {"top_p": 0.0}, r"top_p 0.0: must be a number in \(0, 1\]"),
        ("A", {"top_p": 1.1}, "top_p 1.1"),
        ("A", {"min_p": 1.1}, "min_p 1.1"),
        ("A", {"repetition_penalty": 0.0}, "repetition_penalty 0.0: must be a number > 0"),
        ("A", {"seed": -1}, "seed -1"),
        ("A", {"seed": 2**64}, "seed 18446744073709551616"),
        ("A", {"seed": True}, "seed True: must be an integer"),
        ("A", {"seed": None}, "seed None: must be an integer"),
        ("A", {"seed": [1, -2]}, "seed -2: must be an integer"),
        ("A", {"seed": [1, 2]}, "2 seeds for 1 prompts; give one, or one each"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(
    prompt: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        model().generate(prompt, **options)


def test_one_text_as_list_of_prompts_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="list of prompts"):
        model().run("ROMEO:")


def test_model_without_tokenizer_takes_ids_only(tmp_path: Path) -> None:
    loaded = small(tmp_path)
    assert loaded.generate([5], max_tokens=2).text == ""
    for prompt, options in [("text", {}), ([5], {"stop": "x"})]:
        with pytest.raises(UsageError, match="has no tokenizer"):
            loaded.generate(prompt, **options)


def test_a_tokenizer_of_another_model_is_refused_by_its_first_id(tmp_path: Path) -> None:
    tokenizer = shipped_tokenizer("gpt2", 512)
    loaded = ptir.load_model(
        save_folder(replace(small_checkpoint(), tokenizer=tokenizer), tmp_path / "m"), backend=REF
    )
    size = loaded.checkpoint.config["vocab_size"]
    assert loaded.encode("!") == [0]
    with pytest.raises(CheckpointError, match=rf"gives id 262 and the model has vocab_size {size}"):
        loaded.generate(" the")


@pytest.mark.parametrize("tokens", ["", [], [[1, 2], [3]], [1.0], [1024], [[1] * 257], [[[1]]]])
def test_forward_refuses_what_are_no_token_rows(tokens: Any) -> None:
    with pytest.raises(UsageError):
        model().forward(tokens)


def test_capabilities_a_model_lacks_are_unsupported() -> None:
    able = "it can generate, forward, trace: load a model that can embed"
    with pytest.raises(UnsupportedError, match=f"cannot embed; {able}"):
        model().embed(["text"])
    with pytest.raises(UnsupportedError, match="cannot classify"):
        model().classify([])


def test_seed_decides_the_text() -> None:
    def text(seed: int) -> str:
        return model().generate("ROMEO:", max_tokens=24, temperature=1.0, seed=seed).text

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(1, 5)}) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "seed": 5},
        {"temperature": 1.5, "top_k": 1, "seed": 5},
        {"temperature": 1.5, "top_p": 1e-6, "seed": 5},
        {"temperature": 1.5, "min_p": 1.0, "seed": 5},
    ],
)
def test_filters_that_leave_one_token_are_greedy(options: dict[str, Any]) -> None:
    found = model().generate("ROMEO:", max_tokens=16, **options)
    assert found.token_ids == model().generate("ROMEO:", max_tokens=16).token_ids


def test_sampled_tokens_follow_the_distribution(tmp_path: Path) -> None:
    """A chi-squared test of first tokens; 200 draws of a row each, top 8 of 97."""
    loaded = small(tmp_path)
    logits = loaded.forward([7, 3, 88])[-1].astype(np.float64)
    best = np.argsort(-logits)[:8]
    weights = np.exp((logits[best] - logits[best].max()) / 2.0)
    options = {"max_tokens": 1, "temperature": 2.0, "top_k": 8}
    drawn = loaded.generate_batch([[7, 3, 88]] * 200, seed=range(200), **options)
    tokens = [one.token_ids[0] for one in drawn]
    counts = np.array([tokens.count(int(token)) for token in best])
    expected = weights / weights.sum() * 200
    assert counts.sum() == 200
    assert (((counts - expected) ** 2) / expected).sum() < 24.3  # 7 degrees of freedom, p = 0.001


def test_a_row_draws_what_it_would_draw_alone() -> None:
    prompts = ["ROMEO:", "A", "Hear me", "ROMEO:"]
    options = {"max_tokens": 20, "temperature": 1.0}
    for seeds in (7, [7, 8, 9, 10], [3, 3, 3, 2**64 - 1]):
        listed = seeds if isinstance(seeds, list) else [seeds] * 4
        alone = [
            model().generate(p, seed=s, **options).token_ids
            for p, s in zip(prompts, listed, strict=True)
        ]
        together = model().generate_batch(prompts, seed=seeds, **options)
        assert [one.token_ids for one in together] == alone
        turned = model().generate_batch(prompts[::-1], seed=listed[::-1], **options)
        assert [one.token_ids for one in turned[::-1]] == alone


def test_equal_prompts_differ_only_where_their_seeds_do() -> None:
    options = {"max_tokens": 24, "temperature": 1.0}
    same = model().generate_batch(["ROMEO:"] * 3, seed=4, **options)
    assert len({one.text for one in same}) == 1
    others = model().generate_batch(["ROMEO:"] * 3, seed=range(4, 7), **options)
    assert len({one.text for one in others}) == 3
    assert others[0].text == same[0].text


def test_draws_are_those_of_the_functional_under_the_seeds_key() -> None:
    seeds = [0, 5, 2**32 + 7, 2**64 - 1]
    draws = Draws(seeds)
    found = np.concatenate([draws.take(n) for n in (1, 64, 20, 65)]).T
    for seed, row in zip(seeds, found, strict=True):
        words = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
        key = ptir.tensor(words, backend=REF)
        np.testing.assert_array_equal(row, F.uniform(key, (150,)).numpy())


def test_a_token_beyond_the_tokenizer_has_no_text(script: Script, tmp_path: Path) -> None:
    """Padded vocabularies: the model may choose an id that no token has."""
    loaded = small(tmp_path, vocab_size=1100)
    loaded.text = model().text
    script([*ids_of("Hear"), 1099, 1030, *ids_of(" me"), 1024])
    found = loaded.generate([1], max_tokens=len(ids_of("Hear")) + len(ids_of(" me")) + 3)
    assert found.text == "Hear me"
    assert [i for i in found.token_ids if i >= 1024] == [1099, 1030, 1024]


class Stateless:
    """A language model without caches: the next token is the last one and one more."""

    def states(self) -> tuple[()]:
        return ()

    def __call__(self, tokens: Any, cache: Any, start: Any, count: Any, *, every: bool = False):
        batch, length = tokens.shape
        ahead = F.arange(97).reshape(1, 1, 97) - tokens.reshape(batch, length, 1)
        logits = F.where(ahead == 1, 5.0, 0.0)
        if every:
            return logits, ()
        last = F.arange(length).reshape(1, length, 1) == count.reshape(batch, 1, 1) - 1
        return F.where(last, logits, 0.0).sum(axis=1), ()


def test_a_model_without_caches_generates(tmp_path: Path) -> None:
    loaded = replace(small(tmp_path), module=Stateless())
    assert loaded.generate([3, 7], max_tokens=4).token_ids == [8, 9, 10, 11]
    rows = loaded.generate_batch([[3], [7, 50]], max_tokens=3)
    assert [row.token_ids for row in rows] == [[4, 5, 6], [51, 52, 53]]
    assert loaded.forward([3, 7]).argmax(-1).tolist() == [4, 8]


def test_every_token_is_drawn_anew() -> None:
    found = model().generate("A", max_tokens=30, temperature=1e6, seed=3, logprobs=1024)
    ranks = {
        [token for token, _ in entry["top"]].index(entry["token_id"])
        for entry in found.logprobs or ()
    }
    assert len(ranks) > 20


def test_repetition_penalty_is_that_of_a_plain_loop() -> None:
    penalty, ids = 1.3, ids_of("ROMEO:")
    found = model().generate("ROMEO:", max_tokens=40, repetition_penalty=penalty)
    for _ in range(40):
        logits = model().forward(ids)[-1].copy()
        for token in set(ids):
            value = logits[token]
            logits[token] = value * penalty if value < 0 else value / penalty
        ids.append(int(logits.argmax()))
    assert found.token_ids == ids[2:]
    assert found.token_ids != model().generate("ROMEO:", max_tokens=40).token_ids


def test_logprobs_are_the_log_softmax_of_forward() -> None:
    found = model().generate("ROMEO:", max_tokens=6, logprobs=1024)
    assert found.logprobs is not None
    ids = found.prompt_ids + found.token_ids
    logits = model().forward(ids).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    for step, entry in enumerate(found.logprobs):
        values = [value for _, value in entry["top"]]
        assert sum(np.exp(values)) == pytest.approx(1.0, abs=1e-9)
        assert values == sorted(values, reverse=True)
        assert entry["token_id"] == found.token_ids[step] == entry["top"][0][0]
        position = len(found.prompt_ids) - 1 + step
        assert entry["logprob"] == pytest.approx(expected[position, entry["token_id"]], abs=1e-3)
    assert model().generate("ROMEO:", max_tokens=2).logprobs is None


def test_pieces_never_split_a_character_and_add_up_to_the_text(script: Script) -> None:
    said = "é中 😀 KING 👑🏽!"
    script(ids_of(said))
    pieces = list(model().stream("A", max_tokens=len(ids_of(said))))
    assert "".join(pieces) == said
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(pieces) > 5


def test_interruption_keeps_what_was_generated(script: Script) -> None:
    spoken = ids_of("Hear 😀")
    script(spoken, interrupt_at=len(spoken) - 1)
    run = model().run(["A"], max_tokens=30, stop="zz")
    with pytest.raises(KeyboardInterrupt):
        for _ in run:
            pass
    (found,) = run.results
    assert found.finish_reason == "interrupted"
    assert found.token_ids == spoken[:-1]
    assert found.text == "Hear \ufffd"
    assert run.results == [found]


def test_leaving_the_loop_interrupts_the_rows_that_are_not_finished() -> None:
    run = model().run(["ROMEO:", "To be"], max_tokens=9)
    for count, _ in enumerate(run, 1):
        if count == 5:
            break
    found = run.results
    assert [len(one.token_ids) for one in found] == [3, 2]
    assert [one.finish_reason for one in found] == ["interrupted"] * 2
    assert found[0].text == model().generate("ROMEO:", max_tokens=3).text
    assert list(run) == []


def test_statistics_say_what_was_done_and_where() -> None:
    stats = model().generate("ROMEO:", max_tokens=5).stats
    assert (stats.prompt_tokens, stats.generated_tokens) == (2, 5)
    assert (stats.backend, stats.device) == ("ref", model().target.device.name)
    assert stats.host_fallback_ops == 0
    assert stats.first_token_seconds >= stats.prompt_seconds > 0
    assert stats.generated_seconds > 0


def test_default_options_are_greedy() -> None:
    assert SamplingOptions().greedy
    assert not SamplingOptions(temperature=0.5).greedy


def test_row_of_a_batch_that_ends_early_does_not_disturb_the_others(tmp_path: Path) -> None:
    save_folder(small_checkpoint(eos_token_id=list(range(0, 97, 7))), tmp_path / "m")
    import ptir
    from running import REF

    loaded: Model = ptir.load_model(tmp_path / "m", backend=REF)
    prompts = [[token] for token in range(1, 9)]
    together = loaded.generate_batch(prompts, max_tokens=20)
    alone = [loaded.generate(prompt, max_tokens=20) for prompt in prompts]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.finish_reason for one in together] == [one.finish_reason for one in alone]
    assert {one.finish_reason for one in together} >= {"stop"}
    assert len({len(one.token_ids) for one in together}) > 2


class SortsNothing(TinyBackend):
    claims = frozenset({"core", "f64"})

    def refusal(self, query, device):
        return "no order" if query.op in ("sort", "top_k") else super().refusal(query, device)


def test_sampling_without_sort_says_what_needs_none() -> None:
    model = ptir.load_model("demo", backend=Target(SortsNothing(), ONE[0]))
    with pytest.raises(UnsupportedError) as raised:
        model.generate("x", max_tokens=1, temperature=0.8)
    said = "temperature 0 (--temp 0) takes the most likely token without it"
    assert ": no order on device" in str(raised.value) and said in str(raised.value)
    assert len(model.generate("x", max_tokens=1).token_ids) == 1
