"""``ptir bench`` and ``ptir warmup`` of models of speech."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.capture.plan import PLANS
from ptir.cli.main import main
from ptir.errors import UsageError
from ptir.runtime import SpeechModel
from ptir.runtime.warmup import warm_up
from ptir.runtime.warmup_jobs import batches
from running import REF

MICRO = "random:whisper-micro"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--backend", "ref", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_window_and_decoding_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "bench", MICRO, "-n", "5", "-r", "1")
    assert [row["test"] for row in found["rows"]] == ["enc50", "tg5", "win1s+5"]
    for row in found["rows"]:
        assert len(row["tokens_per_second"]["samples"]) == 1
        assert row["tokens_per_second"]["min"] > 0
    heard, decoded, both = found["rows"]
    assert decoded["real_time"] is None
    for row, count in ((heard, 50), (both, 5)):  # a window is of one second
        assert row["real_time"] == pytest.approx(row["tokens_per_second"]["median"] / count)
    assert heard["bandwidth_share"] is None and decoded["bandwidth_share"] > 0
    model = ptir.load_model(MICRO, backend=REF)
    store = model.store
    sizes = {name: store.type(name).nbytes for name in store.source.names()}
    decoder = sum(size for name, size in sizes.items() if name.startswith("decoder."))
    assert 0 < decoded["weight_bytes_per_token"] <= decoder < sum(sizes.values())
    assert found["estimated_tokens_per_second"] is None
    (row,) = shown(capsys, "bench", MICRO, "-n", "0", "-r", "1")["rows"]
    assert row["test"] == "enc50"


def test_after_the_warm_up_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ptir.load_model(MICRO, backend=REF)
    assert isinstance(model, SpeechModel)
    told = list[tuple[int, int]]()
    done = warm_up(model, batch=3, progress=lambda *one: told.append(one))
    assert done.programs > 0
    assert done.capacities == (model.context,)
    assert told == [(1, 3), (2, 3), (3, 3)]
    before = PLANS.compiled
    sounds = [np.full(size, 0.1, np.float32) for size in (16000, 9000, 16000, 7000)]
    for batch in (1, 2, 3):
        model.transcribe_batch(sounds, batch=batch, temperature=(0.0, 0.5))
    assert PLANS.compiled == before


@pytest.mark.parametrize(
    ("most", "wanted"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8))]
)
def test_batches_are_powers_of_two_and_the_whole(most: int, wanted: tuple[int, ...]) -> None:
    assert batches(most) == wanted


def test_the_warm_up_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", MICRO, "--backend", "ref"]) == 0
    found = capsys.readouterr()
    assert "for every batch size" in found.err and "1 of 1 batch sizes done" in found.err
    assert "programs in" in found.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("warmup", "-n", "20"), 2, "20 tokens: model .* hears, with one size of caches"),
        (("warmup", "--tune"), 2, "--tune: ref:0 .* has no sizes to choose; leave it out"),
        (
            ("bench", "--speculate", "lookup"),
            2,
            "--speculate is for models that generate; leave it out",
        ),
        (("bench",), 2, "-n 64 does not fit the context of 40"),
    ],
)
def test_what_a_model_of_speech_has_none_of(
    arguments: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = arguments
    assert main([command, MICRO, *options, "--backend", "ref"]) == code
    assert re.search(words, capsys.readouterr().err)


def test_a_warm_up_for_some_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="leave it out"):
        warm_up(ptir.load_model(MICRO, backend=REF), 20)
