"""Loading: what a checkpoint must hold, how its weights are stored, and what specs mean."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptir
from ptir.backend.contract import Target
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder, save_single_file
from ptir.errors import CheckpointError, UsageError
from ptir.functional.linear import stored_alike
from ptir.models import definition
from ptir.params.source import ArraySource
from ptir.runtime import Model
from ptir.runtime.held import types_taken
from ptir.runtime.specs import random_checkpoint, resolve, shipped_tokenizer
from ptir.text import Tokenizer
from ptir.types import dtype
from running import CASES, REF, assert_close, llama_folder, model, small_checkpoint

Arrays = dict[str, Any]
TOKENS = list(range(0, 60, 3))


def arrays() -> Arrays:
    source = small_checkpoint().source
    return {name: source.read(name) for name in source.names()}


def load(folder: Path, held: Arrays, **config: Any) -> Model:
    checkpoint = replace(small_checkpoint(**config), source=ArraySource(held))
    save_folder(checkpoint, folder, overwrite=True)
    return ptir.load_model(folder, backend=REF)


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda held: {key: value for key, value in held.items() if key != name}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.nan, r"'h\.1\.mlp\.c_fc\.weight' of the checkpoint holds NaN or infinity; fetch"),
        (3e38, r"every weight is finite, so a value on the way passed the range"),
    ],
)
def test_nothing_is_generated_from_logits_that_are_no_numbers(
    value: float, why: str, tmp_path: Path
) -> None:
    held = arrays()
    held["h.1.mlp.c_fc.weight"] = np.full_like(held["h.1.mlp.c_fc.weight"], value)
    words = f"the logits after the prompt are NaN: {why}"
    with pytest.raises(CheckpointError, match=words), np.errstate(all="ignore"):
        load(tmp_path / "m", held).generate([1, 2, 3], max_tokens=4)


def test_prefix_of_checkpoint_keys_is_taken_off(tmp_path: Path) -> None:
    plain = load(tmp_path / "a", arrays()).forward(TOKENS)
    named = {f"transformer.{name}": value for name, value in arrays().items()}
    named |= {"transformer.h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32)}
    assert np.array_equal(load(tmp_path / "b", named).forward(TOKENS), plain)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("h.1.mlp.c_fc.bias"), r"1 tensors missing \(h.1.mlp.c_fc.bias\)"),
        (lambda held: held | {"h.2.ln_1.bias": held["ln_f.bias"]}, r"not expected \(h.2.ln_1"),
        (
            lambda held: held | {"ln_f.bias": held["wpe.weight"]},
            r"ln_f.bias is f32\[40,32\], expected f32\[32\]",
        ),
        (lambda held: held | {"ln_f.bias": np.zeros(32, np.int32)}, r"ln_f.bias is i32\[32\]"),
        (
            lambda held: held | {"transformer.ln_f.bias": held["ln_f.bias"]},
            "tensors 'ln_f.bias' and 'transformer.ln_f.bias' are both 'ln_f.bias'",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: Callable[[Arrays], Arrays], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path / "m", change(arrays()))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gtp2"}, r"config.json: unknown model_type 'gtp2' \(nearest: gpt2"),
        ({"activation_function": "relu"}, "activation_function 'relu': one of gelu_new"),
        ({"n_head": 5}, "n_embd 32 must be a multiple of n_head 5"),
        (
            {"n_layer": None},
            "n_layer None in config.json must be an integer >= 1 and <= 4096; corr",
        ),
        ({"n_inner": "wide"}, "n_inner 'wide'"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon 0"),
        ({"add_cross_attention": True}, "cross attention"),
        ({"ptir_overrides": ["softmax"]}, "ptir_overrides .'softmax'. is not an object"),
    ],
)
def test_configuration_that_cannot_be_run_is_a_checkpoint_error(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    held = small_checkpoint()
    save_folder(replace(held, config={**held.config, **config}), tmp_path / "m")
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(tmp_path / "m", backend=REF)


def test_head_of_its_own_is_used_unless_the_config_ties_it(tmp_path: Path) -> None:
    head = -arrays()["wte.weight"]
    plain = load(tmp_path / "a", arrays()).forward(TOKENS)
    with_head = arrays() | {"lm_head.weight": head}
    untied = load(tmp_path / "b", with_head, tie_word_embeddings=False)
    assert_close(untied.forward(TOKENS), -plain)
    tied = load(tmp_path / "c", with_head, tie_word_embeddings=True)
    assert np.array_equal(tied.forward(TOKENS), plain)
    silent = load(tmp_path / "d", with_head)
    assert np.array_equal(silent.forward(TOKENS), plain)


@pytest.mark.parametrize(("name", "share"), [("bf16", 0.05), ("f16", 0.005)])
def test_narrow_storage_gives_logits_near_f32(name: str, share: float) -> None:
    exact = model("random:gpt2-tiny").forward(TOKENS)
    narrow = model("random:gpt2-tiny", dtype=name)
    assert narrow.store.type("wte.weight").dtype.name == name
    assert_close(narrow.forward(TOKENS), exact, share)
    assert not np.array_equal(narrow.forward(TOKENS), exact)
    assert len(narrow.generate(TOKENS, max_tokens=4).token_ids) == 4


def test_narrow_storage_rounds_matrices_once_and_computes_in_f32(tmp_path: Path) -> None:
    rounded = {
        name: value.astype(ml_dtypes.bfloat16 if value.ndim > 1 else np.float32).astype(np.float32)
        for name, value in arrays().items()
    }
    expected = load(tmp_path / "a", rounded).forward(TOKENS)
    narrow = ptir.load_model(_saved(tmp_path / "b"), backend=REF, dtype="bf16")
    assert_close(narrow.forward(TOKENS), expected)


def _saved(path: Path) -> Path:
    return save_folder(small_checkpoint(), path)


@pytest.mark.parametrize("name", ["f64", "i32", "f8e4m3fn", "float"])
def test_other_storage_dtypes_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown storage dtype '{name}'.*bf16, f16, f32"):
        ptir.load_model("demo", backend=REF, dtype=name)


def test_overrides_of_the_config_are_in_force_unless_the_caller_sets_another(
    tmp_path: Path,
) -> None:
    loaded = load(tmp_path / "m", arrays(), ptir_overrides={"softmax": "force=online"})
    plain = load(tmp_path / "n", arrays())
    assert_close(loaded.forward(TOKENS), plain.forward(TOKENS))
    with loaded.policies():
        assert _softmax_policy() == "force=online"
    with ptir.overrides(softmax="force=portable"), loaded.policies():
        assert _softmax_policy() == "force=portable"
    argument = ptir.load_model(tmp_path / "m", backend=REF, overrides={"softmax": "default"})
    with argument.policies():
        assert _softmax_policy() == "default"
    assert loaded.generate([5], max_tokens=9) == plain.generate([5], max_tokens=9)


def _softmax_policy() -> str:
    from ptir.ops.overriding import active_overrides

    (found,) = active_overrides()
    return str(found.policy)


def test_unknown_override_of_the_config_is_an_error_that_names_what_exists(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown functional 'softmaxx' .nearest: .*softmax"):
        load(tmp_path / "m", arrays(), ptir_overrides={"softmaxx": "default"})


@pytest.mark.parametrize("form", ["folder", "shards", "file"])
def test_every_written_form_gives_the_same_tokens(form: str, tmp_path: Path) -> None:
    demo = resolve("demo")
    if form == "file":
        path = save_single_file(demo, tmp_path / "demo.safetensors")
    else:
        size = 10**9 if form == "folder" else 600_000
        path = save_folder(demo, tmp_path / "demo", max_shard_bytes=size)
        assert len(open_checkpoint(path).files) == 1 or form == "shards"
    found = ptir.load_model(path, backend=REF).generate(CASES[0]["prompt"], max_tokens=64)
    assert found.token_ids == CASES[0]["greedy_ids"]
    assert found.text == CASES[0]["greedy_text"]


def test_parameters_are_read_when_first_needed_and_at_most_once(tmp_path: Path) -> None:
    loaded = ptir.load_model(_saved(tmp_path / "m"), backend=REF)
    counters = loaded.store.source.counters
    assert counters.bytes_read == 0
    loaded.generate([1, 2, 3], max_tokens=20)
    loaded.generate(list(range(30)), max_tokens=3, temperature=1.0)
    loaded.generate_batch([[1], [2, 3]], max_tokens=3, logprobs=2)
    loaded.forward([4, 5])
    assert set(counters.loads) == set(loaded.module.parameters()) | set(loaded.store.source.names())
    assert set(counters.loads.values()) == {1}


def test_random_weights_depend_on_the_seed_alone() -> None:
    def weights(seed: int) -> Checkpoint:
        return random_checkpoint("gpt2-tiny", seed)

    one, again, other = weights(1).source, weights(1).source, weights(2).source
    for name in one.names():
        assert np.array_equal(one.read(name), again.read(name))
        assert not np.array_equal(one.read(name), other.read(name))
    texts = {model("random:gpt2-tiny", seed=s).generate("A", max_tokens=4).text for s in (1, 2)}
    assert len(texts) == 2


@pytest.mark.parametrize("size", [256, 257, 512, 50256, 50257, 128256])
def test_the_tokenizer_of_random_models_fits_their_vocabulary(size: int) -> None:
    """Cut to a smaller vocabulary it stays whole: every id has a text, every text has ids."""
    files = shipped_tokenizer("gpt2", size)
    assert files is not None
    cut = Tokenizer.from_gpt2(files.vocab, files.merges)
    assert cut.vocab_size == min(size, 50257)
    text = "The cat's 12 hats; Ça va, 東京!\n"
    ids = cut.encode(text)
    assert max(ids) < size and cut.decode(ids) == text
    assert len(cut.encode(" the")) == {256: 4, 257: 3}.get(size, 1)


def test_a_vocabulary_too_small_for_bytes_gets_no_tokenizer() -> None:
    assert shipped_tokenizer("gpt2", 255) is None
    assert shipped_tokenizer("", 50257) is None


def test_every_preset_has_a_tokenizer_that_fits() -> None:
    for architecture in (definition("gpt2"), definition("llama")):
        for config in architecture.presets.values():
            files = shipped_tokenizer(architecture.tokenizer, config["vocab_size"])
            assert files is not None
            assert len(json.loads(files.vocab)) <= config["vocab_size"]


def test_random_scales_lie_around_1_and_biases_around_0() -> None:
    source = random_checkpoint("gpt2-tiny", 0).source
    for name in ("h.0.ln_1.weight", "ln_f.weight"):
        assert source.read(name).mean() == pytest.approx(1.0, abs=0.06)
        assert source.read(name).std() == pytest.approx(0.1, abs=0.03)
    assert source.read("h.0.ln_1.bias").mean() == pytest.approx(0.0, abs=0.06)
    assert source.read("wte.weight").std() == pytest.approx(0.02, rel=0.01)
    assert source.read("wte.weight").mean() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ("random:gpt3", UsageError, "unknown random model 'gpt3' .nearest: gpt2, "),
        ("xyzzy", UsageError, "no such file or folder; a model is `demo`, random:NAME"),
        ("./no/where", UsageError, "no such file or folder"),
        ("dmo", UsageError, "no such file or folder .nearest: demo.;"),
        ("gpt2", UsageError, "no such file or folder .nearest: random:gpt2"),
        (".", CheckpointError, "has no config.json"),
    ],
)
def test_specs_that_name_no_model(
    spec: str, kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=words):
        resolve(spec)


def test_hub_id_that_was_not_pulled_says_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for spec in ("owner/name", "owner/name:Q4_K_M"):
        with pytest.raises(CheckpointError, match=f"fetch it with `ptir pull {spec}`"):
            resolve(spec)


def test_conversion_rounds_floats_to_the_asked_dtype(tmp_path: Path) -> None:
    path = save_single_file(small_checkpoint(), tmp_path / "m.safetensors", dtype=dtype("bf16"))
    loaded = ptir.load_model(path, backend=REF)
    assert {str(open_checkpoint(path).source.type(n).dtype) for n in arrays()} == {"bf16"}
    exact = ptir.load_model(_saved(tmp_path / "m"), backend=REF)
    assert_close(loaded.forward(TOKENS), exact.forward(TOKENS), 0.05)


def test_auto_holds_each_matrix_as_it_is_stored_and_changes_no_number(tmp_path: Path) -> None:
    kinds = (np.float32, np.float16, ml_dtypes.bfloat16)
    held = arrays()
    matrices = [name for name, value in held.items() if value.ndim > 1]
    held |= {name: held[name].astype(kinds[n % 3]) for n, name in enumerate(matrices)}
    vector = "h.0.ln_1.bias"
    held[vector] = held[vector].astype(np.float16)
    found = load(tmp_path / "m", held)
    store = found.store
    assert all(store.type(name) == store.source.type(name) for name in matrices)
    assert store.matrix_dtypes == ("bf16", "f16", "f32")
    assert {store.type(name).dtype.name for name in held if name not in matrices} == {"f32"}
    wide = ptir.load_model(tmp_path / "m", backend=REF, dtype="f32")
    assert wide.store.matrix_dtypes == ("f32",)
    assert_close(found.forward(TOKENS), wide.forward(TOKENS), 1e-6)
    assert (found.cache_dtype, wide.cache_dtype) == (dtype("f32"), dtype("f32"))


def test_auto_joins_only_weights_of_one_type(tmp_path: Path) -> None:
    path = llama_folder(tmp_path / "l")
    checkpoint = open_checkpoint(path)
    held = {name: np.array(checkpoint.source.read(name)) for name in checkpoint.source.names()}
    for part, kind in (("q_proj", np.float16), ("k_proj", ml_dtypes.bfloat16)):
        held |= {name: value.astype(kind) for name, value in held.items() if part in name}
    save_folder(replace(checkpoint, source=ArraySource(held)), tmp_path / "mixed")
    one, other = (
        ptir.load_model(tmp_path / "mixed", backend=REF, dtype=name) for name in ("auto", "f32")
    )
    attention = one.module.layers[0].self_attn
    weights = [getattr(attention, f"{part}_proj").weight for part in "qkv"]
    assert [weight.dtype.name for weight in weights] == ["f16", "bf16", "f32"]
    assert stored_alike(weights) == [[0], [1], [2]]
    assert stored_alike([weights[0], weights[0], weights[2]]) == [[0, 1], [2]]
    assert_close(one.forward(TOKENS), other.forward(TOKENS), 1e-5)


@pytest.mark.parametrize("claims", [{"core"}, {"core", "bf16"}])
def test_auto_holds_in_f32_what_the_backend_does_not_take(claims: set[str]) -> None:
    backend = copy.copy(REF.backend)
    backend.claims = frozenset(claims)
    backend.refusal = lambda query, device: (
        "no"
        if {t.dtype.name for t in (*query.operands, *query.results)} & {"f16", "bf16"} - claims
        else None
    )
    target = Target(backend, REF.device)
    assert types_taken(target) == {"f32"} | claims - {"core"}
    found = ptir.load_model("demo", backend=target)
    assert found.store.matrix_dtypes == ("f32",)
    named = ptir.load_model("demo", backend=target, dtype="f16")
    assert named.store.matrix_dtypes == ("f16",)


def test_fast_names_all_types_of_the_weights(tmp_path: Path) -> None:
    held = arrays()
    held["h.0.mlp.c_fc.weight"] = held["h.0.mlp.c_fc.weight"].astype(ml_dtypes.bfloat16)
    load(tmp_path / "m", held)
    with pytest.raises(UsageError, match=r"fast: weights in bf16\+f32 have no dot implementation"):
        ptir.load_model(tmp_path / "m", backend=REF, fast=True)
