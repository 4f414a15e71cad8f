"""What a memory budget may be, and that errors advise only what helps a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

import ptir
from gguf_models import kind_of_matrices, write
from ptir.checkpoint import open_checkpoint
from ptir.errors import UsageError
from ptir.params.streaming import alternatives, memory_budget
from ptir.runtime import savings
from running import REF, Command, command, llama_folder

__all__ = ["command"]

TOKENS = [1, 2, 3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test's own."""
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [
        (7, 7),
        ("7", 7),
        ("2GB", 2 * 10**9),
        ("2 GiB", 2 << 30),
        ("2gb", 2 * 10**9),
        ("2gib", 2 << 30),
        ("500KB", 500_000),
        ("1.5kib", 1536),
        (" 3 B ", 3),
    ],
)
def test_a_budget_is_bytes(given: str | int, nbytes: int) -> None:
    assert memory_budget(given) == nbytes


RULE = (
    "; give bytes as a number above 0, alone or with a unit: kB, MB, GB and TB (of 1000), KiB, MiB,"
    " GiB and TiB (of 1024), such as 2GiB"
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("2g", f"'g' is no unit (did you mean 2GB or 2GiB?){RULE}"),
        ("4 K", f"'K' is no unit (did you mean 4kB or 4KiB?){RULE}"),
        ("2 bits", f"'bits' is no unit{RULE}"),
        ("1e9", f"is no number of bytes above 0{RULE}"),
        ("-1", f"is no number of bytes above 0{RULE}"),
        ("lots", f"is no number of bytes above 0{RULE}"),
        ("", f"is no number of bytes above 0{RULE}"),
        ("0", "that is 0 bytes, and parameters and caches need some; give more, such as 2GiB, or"),
        ("0.2B", "that is 0 bytes, and parameters and caches need some; give more, such as 2GiB"),
    ],
)
def test_what_is_no_budget_says_what_is(given: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        memory_budget(given)
    assert str(caught.value).startswith(f"device memory {given!r}: {said}")


def test_alternatives_are_the_end_of_a_sentence() -> None:
    assert [alternatives(one) for one in ((), ("a",), ("a", "b"), ("a", "b", "c"))] == [
        "",
        ", or a",
        ", or a or b",
        ", or a, b or c",
    ]


# --- what is advised where a budget is too small ---


def advice(model: Any, run: Callable[[Any], object]) -> str:
    with pytest.raises(UsageError) as caught:
        run(model)
    return str(caught.value).partition(" or more")[2]


def generate(model: Any) -> object:
    return model.generate(TOKENS, max_tokens=4, temperature=0, ignore_eos=True)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return llama_folder(tmp_path, num_hidden_layers=2, hidden_size=96, intermediate_size=160)


def test_a_model_of_floats_may_do_with_less_in_every_way(llama: Path) -> None:
    model = ptir.load_model(llama, backend=REF, device_memory=90_000)
    said = ", or fewer tokens (-n), --cache-dtype bf16 or --quant int4"
    assert advice(model, generate) == said


def test_what_is_in_few_bits_already_is_not_advised(llama: Path, tmp_path: Path) -> None:
    tokens = ", or fewer tokens (-n)"
    options: dict[str, Any] = {"backend": REF, "device_memory": 70_000}
    model = ptir.load_model(llama, quant="int4", cache_dtype="bf16", **options)
    assert advice(model, generate) == tokens
    file = write(tmp_path / "m.gguf", open_checkpoint(llama), kind_of_matrices(Kind.Q4_0)).path
    assert advice(ptir.load_model(file, **options), generate) == f"{tokens} or --cache-dtype bf16"


def test_a_type_that_the_backend_does_not_take_is_not_advised(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savings, "types_taken", lambda target: frozenset({"f32"}))
    model = ptir.load_model(llama, backend=REF, device_memory=90_000)
    assert advice(model, generate) == ", or fewer tokens (-n) or --quant int4"


def test_an_encoder_has_no_tokens_to_leave_out() -> None:
    model: Any = ptir.load_model("random:bert-tiny", backend=REF, device_memory=10_000)
    assert not advice(model, lambda one: one.embed("hello"))


def test_a_state_that_does_not_fit_is_not_told_to_quantize_weights(llama: Path) -> None:
    model = ptir.load_model(llama, backend=REF, device_memory=9_000)
    with pytest.raises(
        UsageError, match=r"give more, or fewer tokens \(-n\) or --cache-dtype bf16$"
    ):
        generate(model)


def test_json_says_what_was_fetched(command: Command) -> None:
    model = ("random:llama-tiny", "--backend", "ref", "--json")
    for how in (("run", *model, "--tokens", "1,2", "-n", 2), ("bench", *model, "-p", 2, "-n", 2)):
        assert "streamed" not in command(*how).value
        found = command(*how, "--device-memory", "600KiB").value["streamed"]
        assert found["budget_bytes"] == 600 << 10
        assert 0 < found["resident_bytes_at_most"] < 600 << 10 < found["fetched_bytes"]
