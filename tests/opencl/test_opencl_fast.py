"""``fast``: which models take it, what it changes, and that nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from ptir.backend.contract import Target
from ptir.errors import UnsupportedError, UsageError
from ptir.runtime import Model, load_model
from ptir.runtime.explain import explain_prefill

FORMATS = {
    "bf16": ({"dtype": "bf16"}, {"linear": "force=bf16"}),
    "int8": ({"quant": "int8"}, {"quantized_linear": "force=int8"}),
    "int4": ({"quant": "int4"}, {"quantized_linear": "force=int8"}),
}
LOST = {"bf16": 4e-3, "int8": 8e-3, "int4": 8e-3}
"""The most that logits of the demo model may lose, over the greatest exact one."""
PROMPT = "First Citizen: Before we proceed any further, hear me speak."


@pytest.fixture
def instructions(opencl: Target) -> Target:
    """The device where it has every dot instruction."""
    if len(opencl.backend.opened(opencl.device).device.dialect.dots) < 3:  # type: ignore[attr-defined]
        pytest.skip("the processor has no dot instructions")
    return opencl


def products(model: Model, tokens: int) -> set[str]:
    """What ``ptir explain`` calls the products of a step of a prompt."""
    with model.policies():
        report = explain_prefill(model, tokens, 1)
    parts = [work for section in report.sections for work in section.works]
    return {n for work in parts if work.name == "linear" for n in work.fused if "linear" in n}


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", FORMATS)
def test_logits_lose_little_and_as_much_as_the_lowering_does(
    instructions: Target, name: str
) -> None:
    how, policies = FORMATS[name]
    exact = load_model("demo", backend="ref", **how).forward(PROMPT)
    fast = load_model("demo", backend=instructions, fast=True, **how).forward(PROMPT)
    lowered = load_model("demo", backend="ref", overrides=policies, **how).forward(PROMPT)
    size = np.abs(exact).max()
    lost, also = (np.abs(found - exact).max() / size for found in (fast, lowered))
    assert 1e-4 < lost < LOST[name], "activations are rounded, and no more"
    assert also < LOST[name]
    # values between two steps may be rounded to either, so single tokens differ by a step's worth
    between = np.abs(fast - lowered).max(-1) / size
    assert between.max() < LOST[name]
    assert between.min() < 1e-6, "until a value is, both are the same but for the order of sums"


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", FORMATS)
def test_tokens_of_the_demo_model_stay(instructions: Target, name: str) -> None:
    how, _ = FORMATS[name]
    found = [
        load_model("demo", backend=instructions, fast=fast, **how)
        .generate(PROMPT, max_tokens=16, temperature=0)
        .token_ids
        for fast in (False, True)
    ]
    assert found[0] == found[1]


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", FORMATS)
def test_prompts_and_single_tokens_agree(instructions: Target, name: str) -> None:
    """Rows in a prompt, and rows one after the other: blocked and streamed schedules."""
    how, _ = FORMATS[name]
    model = load_model("demo", backend=instructions, fast=True, **how)
    whole = model.forward(PROMPT)
    few = model.forward(model.encode(PROMPT)[:5])
    size = np.abs(whole).max()
    assert np.abs(whole[:5] - few).max() / size < LOST[name]


@pytest.mark.slice(2)
@pytest.mark.parametrize("tokens", [4, 40])
@pytest.mark.parametrize("name", FORMATS)
def test_only_fast_rounds_and_explain_names_it(
    instructions: Target, name: str, tokens: int
) -> None:
    how, policies = FORMATS[name]
    ((functional, policy),) = policies.items()
    exact = load_model("demo", backend=instructions, **how)
    fast = load_model("demo", backend=instructions, fast=True, **how)
    assert products(exact, tokens) == {functional}
    assert products(fast, tokens) == {f"{functional}={policy.removeprefix('force=')}"}


def test_the_model_s_own_override_wins(instructions: Target) -> None:
    back = {"quantized_linear": "force=portable"}
    model = load_model("demo", backend=instructions, quant="int8", fast=True, overrides=back)
    exact = load_model("demo", backend=instructions, quant="int8")
    np.testing.assert_array_equal(model.forward(PROMPT), exact.forward(PROMPT))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_formats_without_an_implementation_say_so(opencl: Target, dtype: str) -> None:
    with pytest.raises(UsageError) as raised:
        load_model("demo", backend=opencl, dtype=dtype, fast=True)
    assert str(raised.value) == (
        f"fast: weights in {dtype} have no dot implementation; leave --fast out, or take those in"
        " bf16, int8, int4 (--dtype bf16, --quant int8, --quant int4)"
    )


def test_a_device_without_the_instruction_says_so() -> None:
    with pytest.raises(UnsupportedError) as raised:
        load_model("demo", backend="ref", quant="int4", fast=True)
    said = str(raised.value)
    assert said.startswith("fast: ref on 'numpy' gains nothing from quantized_linear=int8 (")
    assert said.endswith("--override quantized_linear=force=int8")


def test_a_processor_without_the_instruction_says_so(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(device.dialect, "dots", frozenset(("dot_bytes",)))
    with pytest.raises(UnsupportedError, match="the device has no dot_bf16 instruction"):
        load_model("demo", backend=opencl, dtype="bf16", fast=True)
    assert load_model("demo", backend=opencl, quant="int8", fast=True).overrides


def test_forcing_it_on_other_weights_is_an_error(opencl: Target) -> None:
    model = load_model("demo", backend=opencl, overrides={"linear": "force=bf16"})
    with pytest.raises(UnsupportedError, match="the weight is f16; bf16 takes bf16 weights"):
        model.forward([1, 2, 3])
