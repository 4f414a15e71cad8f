"""Models quantized for a text: their own activations, in every family, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import quants
from safetensors.numpy import load_file

from ptir import capture, spec
from ptir import functional as F
from ptir.capture import Tensor
from ptir.capture.creation import parameter
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.checkpoint.gguf.mixtures import MIXTURES
from ptir.errors import CheckpointError, QuantizationError, UsageError
from ptir.models.nextn import HEAD
from ptir.models.table import presets
from ptir.nn import Linear, Module, RMSNorm
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore
from ptir.runtime import Model, load_model
from ptir.runtime.calibration import Calibrated, Calibration, calibrate, methods
from ptir.runtime.calibration.folding import fold_of
from ptir.runtime.calibration.inputs import SiteInputs, flow_of, gathered
from ptir.runtime.calibration.program import Flow, Product, pieces
from ptir.runtime.calibration.scaled import ScaledSource
from ptir.runtime.calibration.text import windows
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.load import described
from ptir.runtime.quantized_folder import save_quantized_folder
from ptir.runtime.specs import resolve
from ptir.types import F32
from ptir.weights import FORMATS
from ptir.weights.awq import output_error
from ptir.weights.decode import decode
from ptir.weights.quantizers import quantize
from running import REF, assert_close, llama_folder, model, small_checkpoint

Array = np.ndarray[Any, Any]
FAMILIES = sorted(
    name
    for name, (family, _) in presets().items()
    if name.endswith("-tiny") and "generate" in family.capabilities
)
TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n"


def ids_file(folder: Path, vocabulary: int = 97, lines: int = 12, length: int = 16) -> Path:
    """Tokens by their ids, some far more often than others."""
    draw = np.random.default_rng(5)
    drawn = (vocabulary * draw.random((lines, length)) ** 2).astype(int)
    path = folder / "tokens.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in drawn.tolist()))
    return path


class Calibrating:
    """What a writer calls; keeps what it was called with and what came of it."""

    def __init__(self, file: Path, method: str, **how: Any) -> None:
        self.asked = Calibration(method, file, **{"window": 16, **how})

    def __call__(self, *arguments: Any) -> Calibrated:
        self.formats = arguments[2]
        self.found = calibrate(*arguments, asked=self.asked, target=REF)
        return self.found


def calibrated(checkpoint: Checkpoint, method: str, file: Path, name: str = "int4") -> Calibrated:
    """All matrices that may be quantized, of which nothing is written."""
    read = described(checkpoint)
    format = FORMATS[name]
    names = read.module.weights()
    sizes = {one: read.source.type(one).shape[axis] for one, axis in names.items()}
    formats = {one: format for one, size in sizes.items() if size % format.block == 0}
    return Calibrating(file, method)(checkpoint, read, formats, frozenset(read.source.names()))


def silent() -> None:
    """Nobody is told of progress."""


# --- what a program's matrices meet ---


@pytest.mark.slice(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_of_every_family_give_what_the_model_gives(family: str) -> None:
    """Cut before every matrix of the module, whatever joins or shares it; logits at the end."""
    whole = model(f"random:{family}")
    flow = flow_of(whole, 12)
    tokens = np.random.default_rng(1).integers(0, 200, (2, 12)).astype(np.int32)
    ports = {port.name: number for number, port in enumerate(flow.program.ports)}
    weights = described(whole.checkpoint).module.weights()
    wanted = {ports[name] for name in weights if not name.startswith(HEAD)}
    assert wanted == {port for one in flow.products for port in one.weights} & wanted
    inputs, cut = SiteInputs(flow, tokens, whole), pieces(flow, wanted)
    assert {port for piece in cut for one in piece.products for port in one.weights} >= wanted
    source = whole.store.source
    for piece in cut[:-1]:
        inputs.run(piece, lambda name: np.array(source.read(name), np.float32), silent)
    (head,) = cut[-1].products
    name = flow.program.ports[head.weights[0]].name
    weight = np.array(source.read(name), np.float64)
    found = list(inputs.rows(head, None, name))[1] @ (weight.T if head.axis == 1 else weight)
    for port in flow.block.instructions[head.position].operands[2:]:
        found = found + source.read(flow.program.ports[port].name)
    logits = whole.forward(tokens[1])
    # What follows the last product, a cap or a divisor, keeps the order of logits.
    best, wanted_best = (np.argsort(one, axis=-1)[:, -3:] for one in (found, logits))
    np.testing.assert_array_equal(best, wanted_best)


def test_inputs_of_matrices_are_those_of_numpy(tmp_path: Path) -> None:
    """A first layer of GPT-2 in NumPy's f64: norm, fused queries, keys and values, attention."""
    checkpoint = small_checkpoint()
    whole = load_model(save_folder(checkpoint, tmp_path / "small"), backend=REF)
    flow, tokens = flow_of(whole, 8), np.arange(8, dtype=np.int32)[None] * 5
    read = {n: np.array(checkpoint.source.read(n), np.float64) for n in checkpoint.source.names()}
    x = read["wte.weight"][tokens[0]] + read["wpe.weight"][:8]
    normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    normed = normed * read["h.0.ln_1.weight"] + read["h.0.ln_1.bias"]
    joined = normed @ read["h.0.attn.c_attn.weight"] + read["h.0.attn.c_attn.bias"]
    q, k, v = (part.reshape(8, 4, 8).transpose(1, 0, 2) for part in np.split(joined, 3, axis=1))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(8) + np.triu(np.full((8, 8), -np.inf), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    attended = (shares / shares.sum(-1, keepdims=True)) @ v
    wanted = {"c_attn": normed, "c_proj": attended.transpose(1, 0, 2).reshape(8, 32)}
    inputs = SiteInputs(flow, tokens, whole)
    seen: dict[str, Array] = {}
    for piece in pieces(flow, {number for number, _ in enumerate(flow.program.ports)})[:4]:
        for product in piece.products:
            name = flow.program.ports[product.weights[0]].name
            seen[name.split(".")[-2] + str(len(seen))] = next(inputs.rows(product, None, name))
        inputs.run(piece, lambda name: np.array(read[name], "f4"), silent)
    assert_close(seen["c_attn0"], wanted["c_attn"])
    assert_close(seen["c_proj1"], wanted["c_proj"])


# --- what methods make of it ---


Sums = dict[str, Array]


@contextmanager
def watched_sums() -> Iterator[Sums]:
    """The sums of the inputs of matrices by name, as methods ask for them."""
    sums: Sums = {}
    original = SiteInputs.sum_of

    def watched(self: SiteInputs, product: Product, expert: int | None, name: str) -> Any:
        found = original(self, product, expert, name)
        for port in product.weights:
            sums[self._flow.program.ports[port].name] = found[0]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteInputs, "sum_of", watched)
        yield sums


def test_matrices_meet_what_comes_from_those_that_are_quantized_already(tmp_path: Path) -> None:
    """The sums of GPTQ are those of the model that the file holds, of AWQ those of the original."""
    checkpoint, file = small_checkpoint(), ids_file(tmp_path, lines=3)
    found: dict[str, Sums] = {}
    for method in ("gptq", "awq"):
        path = tmp_path / f"{method}.gguf"
        with watched_sums() as found[method]:
            how = Calibrating(file, method)
            save_gguf(checkpoint, path, mixture=MIXTURES["q4_0"], calibrate=how)
    of_file = load_model(tmp_path / "gptq.gguf", backend=REF, dtype="f32")
    flow = flow_of(of_file, 16)
    tokens = np.array([json.loads(line) for line in file.read_text().splitlines()], np.int32)
    source = {"gptq": open_checkpoint(tmp_path / "gptq.gguf").source, "awq": checkpoint.source}
    unquantized = flow_of(load_model(save_folder(checkpoint, tmp_path / "f"), backend=REF), 16)
    assert len(flow.products) < len(unquantized.products)  # words are no parameters of products
    for method, sums in found.items():
        inputs = SiteInputs(unquantized, tokens, of_file)
        for piece in pieces(unquantized, set(range(len(unquantized.program.ports)))):
            for product in piece.products:
                name = unquantized.program.ports[product.weights[0]].name
                if name in sums:
                    assert_close(inputs.sum_of(product, None, name)[0], sums[name], 1e-4)
            read = source[method].read
            inputs.run(piece, lambda name, read=read: np.array(read(name), np.float32), silent)
        assert len(sums) == 8
    last = "h.1.mlp.c_proj.weight"
    assert np.abs(found["gptq"][last] - found["awq"][last]).max() > 1


def errors_of(checkpoint: Checkpoint, method: str, file: Path, format: str) -> dict[str, float]:
    """The error of each matrix's outputs over that of rounding, on the inputs of the model."""
    found: dict[str, float] = {}
    with watched_sums() as sums:
        result = calibrated(checkpoint, method, file, format)
    read = described(checkpoint)
    for name in result.calibrated:
        axis, kind = read.module.weights()[name], FORMATS[format]
        weights = np.moveaxis(np.array(read.source.read(name), np.float32), axis, -1)
        rows = decode(kind, result.arrays[name])
        plain = decode(kind, quantize(kind, weights))
        found[name] = output_error(rows - weights, sums[name]) / output_error(
            plain - weights, sums[name]
        )
    return found


@pytest.mark.slice(1)
@pytest.mark.parametrize(("spec", "count"), [("demo", 24), ("random:llama-tiny", 22)])
def test_gptq_is_closer_than_rounding_in_every_layer(spec: str, count: int, tmp_path: Path) -> None:
    file = ids_file(tmp_path, 300, 8, 32)
    errors = errors_of(resolve(spec), "gptq", file, "Q4_0")
    assert len(errors) == count
    assert max(errors.values()) < 0.95 and np.mean(list(errors.values())) < 0.6


def outlying(folder: Path, **config: Any) -> Checkpoint:
    """A Llama some channels of whose norms are far larger than the others; names as on the hub."""
    whole = open_checkpoint(llama_folder(folder, num_hidden_layers=1, **config))
    arrays = {name: np.array(whole.source.read(name)) for name in whole.source.names()}
    for name in arrays:
        if "norm" in name:
            arrays[name][[3, 20]] *= 8
    named = {n if n == "lm_head.weight" else f"model.{n}": values for n, values in arrays.items()}
    return replace(whole, source=ArraySource(named))


def test_awq_takes_a_matrix_of_zeros(tmp_path: Path) -> None:
    given = outlying(tmp_path)
    arrays = {name: np.array(given.source.read(name)) for name in given.source.names()}
    arrays["model.layers.0.self_attn.o_proj.weight"][:] = 0
    found = calibrated(replace(given, source=ArraySource(arrays)), "awq", ids_file(tmp_path))
    assert found.adapted


@pytest.mark.parametrize("how", [{"act_order": False}, {"damping": 0.5}])
def test_gptq_does_as_it_is_asked(tmp_path: Path, how: dict[str, Any]) -> None:
    given, file = outlying(tmp_path), ids_file(tmp_path)
    read = described(given)
    names = read.module.weights()
    formats = {n: FORMATS["int4"] for n in names if read.source.type(n).shape[1] % 128 == 0}
    formats = formats or dict.fromkeys(names, FORMATS["Q4_0"])
    every = frozenset(read.source.names())
    plain, other = (
        Calibrating(file, "gptq", **one)(given, read, formats, every).arrays for one in ({}, how)
    )
    assert any(not np.array_equal(plain[n][k], other[n][k]) for n in plain for k in plain[n])


def test_awq_is_closer_than_rounding_where_channels_lie_out(tmp_path: Path) -> None:
    checkpoint, file = outlying(tmp_path), ids_file(tmp_path)
    tokens = np.arange(40).reshape(2, 20)
    wanted = load_model(save_folder(checkpoint, tmp_path / "f", dtype=F32), backend=REF)
    logits = wanted.forward(tokens)
    off: dict[str, float] = {}
    for method in ("rtn", "gptq", "awq"):
        how = None if method == "rtn" else Calibrating(file, method)
        path = save_gguf(
            checkpoint, tmp_path / f"{method}.gguf", mixture=MIXTURES["q4_0"], calibrate=how
        )
        found = load_model(path, backend=REF).forward(tokens)
        off[method] = float(np.square(found - logits).mean())
    assert off["awq"] < 0.7 * off["rtn"] and off["gptq"] < 0.7 * off["rtn"]


FOLDS = {
    "gpt2-tiny": ("c_attn", "attn.c_proj", "c_fc"),
    "llama-tiny": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "gemma2-tiny": ("q_proj", "o_proj", "up_proj", "down_proj"),
    "phi3-tiny": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "opt-tiny": ("q_proj", "out_proj", "fc1", "fc2"),
    "qwen3_moe-tiny": ("q_proj", "o_proj", "experts.up_proj", "experts.down_proj"),
}
"""Matrices of a layer whose inputs can be scaled."""


@pytest.mark.slice(2)
@pytest.mark.parametrize("family", FOLDS)
def test_scales_folded_away_leave_the_logits(family: str) -> None:
    """Random scales from 1/8 to 8 on every matrix that has a place for them, in f32."""
    whole = model(f"random:{family}")
    flow, draw = flow_of(whole, 6), np.random.default_rng(7)
    method = methods.Awq(
        flow, whole.store.source, {}, {}, frozenset(whole.store.source.names()), None
    )
    scaled: set[str] = set()
    for value in dict.fromkeys(one.inputs for one in flow.products):
        together = tuple(one for one in flow.products if one.inputs == value)
        fold = fold_of(flow, together)
        if fold is not None:
            size = flow.block.types[value].shape[-1]
            scales = np.exp2(draw.uniform(-3, 3, size)).astype(np.float32)[fold.tied]
            method._take(together, fold, scales)
            scaled |= {flow.program.ports[port].name for one in together for port in one.weights}
    for end in FOLDS[family]:
        assert any(name.endswith(f"{end}.weight") for name in scaled), end
    tokens = np.arange(24).reshape(2, 12) * 5
    arrays = {name: method.scales.read(name) for name in whole.store.source.names()}
    changed = [n for n in arrays if (arrays[n] != whole.store.source.read(n)).any()]
    assert len(changed) > len(scaled)
    folder = replace(whole.checkpoint, source=ArraySource(arrays))
    again = bound(folder, whole)
    assert_close(again.forward(tokens), whole.forward(tokens), 2e-5)


def bound(checkpoint: Checkpoint, like: Model) -> Model:
    """A model of other parameters."""
    store = ParamStore(checkpoint.source, REF)
    module = described(like.checkpoint).module.bind(partial(parameter, store))
    return replace(like, checkpoint=checkpoint, store=store, module=module)


def test_scales_that_something_else_would_see_are_not_folded() -> None:
    """GELU takes no division, and a gate none of its own."""
    whole = model("random:gpt2-tiny")
    flow = flow_of(whole, 6)
    by_name = {flow.program.ports[one.weights[0]].name: one for one in flow.products}
    assert fold_of(flow, (by_name["h.0.mlp.c_proj.weight"],)) is None
    assert fold_of(flow, (by_name["wte.weight"],)) is None


class Gated(Module):
    """A norm, a projection and what is in front of another one, by name."""

    def __init__(self) -> None:
        self.norm, self.up = RMSNorm(8, epsilon=1e-5), Linear(8, 8)
        self.down = Linear(8, 8, bias=False)

    def of(self, what: str, x: Tensor) -> Tensor:
        """What ``down`` makes of the inputs called so."""
        normed = self.norm(x)
        up = self.up(x)
        inputs = {
            "norm": normed,
            "norm kept": normed,
            "relu": F.maximum(up, 0.0),
            "maximum": F.maximum(up, 1.0),
            "square": up * up,
            "gate": F.tanh(normed) * up,
            "gate read twice": up * F.tanh(up),
            "sum": normed + up,
        }[what]
        return self.down(inputs) + (inputs if what.endswith("kept") else 0.0)


FOLDED = {
    "norm": {"norm.weight"},
    "norm kept": None,
    "relu": {"up.weight", "up.bias"},
    "maximum": None,
    "square": None,
    "gate": {"up.weight", "up.bias"},
    "gate read twice": None,
    "sum": None,
}


@pytest.mark.parametrize("what", FOLDED)
def test_a_division_goes_where_nothing_else_sees_it(what: str) -> None:
    shapes = Gated().parameters()
    store = ParamStore(ArraySource({n: np.ones(t.shape, "f4") for n, t in shapes.items()}), REF)
    module = Gated().bind(partial(parameter, store))
    flow = Flow(capture(lambda x: module.of(what, x), spec("f32", 1, 3, 8)))
    (down,) = (
        one for one in flow.products if flow.program.ports[one.weights[0]].name == "down.weight"
    )
    fold = fold_of(flow, (down,))
    ports = None if fold is None else {*fold.vectors, *fold.outputs}
    assert FOLDED[what] == (ports and {flow.program.ports[port].name for port in ports})


def test_experts_that_no_token_comes_to_are_rounded_and_said(tmp_path: Path) -> None:
    checkpoint = resolve("random:qwen3_moe-tiny")
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps([7] * 16) + "\n")
    found = calibrated(checkpoint, "gptq", file, "Q4_0")
    assert found.unreached
    read, kind = described(checkpoint), FORMATS["Q4_0"]
    for name, experts in found.unreached.items():
        weights = np.array(read.source.read(name), np.float32)
        count = len(weights) // 6
        plain = quantize(kind, weights)["blocks"].reshape(6, count, -1)
        ours = found.arrays[name]["blocks"].reshape(6, count, -1)
        same = [number for number in range(6) if (plain[number] == ours[number]).all()]
        assert same == experts and 0 < len(experts) < 6
    assert any("experts that no token of the text came to" in line for line in found.said())


def test_rows_of_an_expert_are_gathered_from_many_windows_in_order() -> None:
    parts = [
        np.arange(count * 2, dtype="f4").reshape(count, 2) + at
        for at, count in enumerate((3, 0, 2, 4, 9, 1, 0))
    ]
    found = list(gathered(iter(parts), 5))
    assert list(map(len, found)) == [5, 13, 1]
    assert np.array_equal(np.concatenate(found), np.concatenate(parts))
    assert list(gathered(iter([parts[1]] * 3), 5)) == []


def test_awq_says_which_matrices_are_only_clipped_and_why(tmp_path: Path) -> None:
    """Of GPT-2, what is behind GELU, and the table of tokens, which is the head too."""
    found = calibrated(small_checkpoint(), "awq", ids_file(tmp_path), "Q4_0")
    assert set(found.clipped) <= set(found.adapted)
    unfolded = {name for name, why in found.clipped.items() if why == methods.UNFOLDED}
    assert unfolded == {name for name in found.adapted if name.endswith("mlp.c_proj.weight")}
    assert len(unfolded) == 2 and len(found.clipped) < len(found.adapted)
    assert found.summary()["clipped"] == found.clipped
    line = f"clipped only: {min(unfolded)} and 1 more: {methods.UNFOLDED}"
    assert line in found.said()
    assert not calibrated(small_checkpoint(), "gptq", ids_file(tmp_path), "Q4_0").clipped


# --- what is written ---


def test_a_gguf_file_holds_what_calibration_found(tmp_path: Path) -> None:
    """Turned weights, rotated rows: as somebody else decodes them, in the order of the file."""
    for number, checkpoint in enumerate(
        (small_checkpoint(), open_checkpoint(llama_folder(tmp_path)))
    ):
        how = Calibrating(ids_file(tmp_path), "gptq")
        path = save_gguf(
            checkpoint, tmp_path / f"{number}.gguf", mixture=MIXTURES["q4_1"], calibrate=how
        )
        reader = {one.name: one for one in gguf.GGUFReader(path).tensors}
        assert {reader[n].tensor_type.name for n in reader if "attn_" in n and "norm" not in n} >= {
            "Q4_1"
        }
        source = open_checkpoint(path).source
        assert how.found.arrays.keys() == how.formats.keys() - how.found.rounded.keys()
        axes = described(checkpoint).module.block_weights()
        for name, arrays in how.found.arrays.items():
            rows = decode(how.formats[name], arrays)
            ours = source.read(name) if name in source.names() else source.read(f"model.{name}")
            np.testing.assert_array_equal(np.moveaxis(ours, axes[name], -1), rows)
        for one in reader.values():
            if one.tensor_type.name == "Q4_1":
                assert np.isfinite(quants.dequantize(one.data, one.tensor_type)).all()


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_folder_holds_what_calibration_found(tmp_path: Path, method: str) -> None:
    checkpoint, file = outlying(tmp_path), ids_file(tmp_path)
    how = Calibrating(file, method)
    path = save_quantized_folder(checkpoint, tmp_path / "q", FORMATS["int4"], calibrate=how)
    tensors = load_file(path / "model.safetensors")
    assert {t.dtype.name for n, t in tensors.items() if "norm" in n} == {"float32"}
    again, names = open_checkpoint(path).source, how.found.source
    for name in how.formats:
        words = tensors[f"model.{name}_packed"].view(np.uint32)
        codes = (words[:, :, None] >> (np.arange(8, dtype=np.uint32) * 4)) & 15
        scales = tensors[f"model.{name}_scale"].astype(np.float32).repeat(32, axis=1)
        numbers = (codes.reshape(len(words), -1).astype(np.float32) - 8) * scales
        np.testing.assert_array_equal(again.read(f"model.{name}"), numbers)
        if method == "gptq":
            np.testing.assert_array_equal(decode(FORMATS["int4"], how.found.arrays[name]), numbers)
        else:
            wanted = decode(FORMATS["int4"], quantize(FORMATS["int4"], names.read(name)))
            np.testing.assert_array_equal(wanted, numbers)
    tokens = np.arange(40).reshape(2, 20)
    plain = save_quantized_folder(checkpoint, tmp_path / "p", FORMATS["int4"])
    floats = load_model(save_folder(checkpoint, tmp_path / "f", dtype=F32), backend=REF)
    off = [
        np.square(load_model(one, backend=REF).forward(tokens) - floats.forward(tokens)).mean()
        for one in (path, plain)
    ]
    assert off[0] < 0.7 * off[1]


def test_the_seed_chooses_the_windows_and_repeats_them(tmp_path: Path) -> None:
    file, checkpoint = ids_file(tmp_path, lines=40), small_checkpoint()
    files = []
    for number, seed in enumerate((1, 1, 2)):
        how = Calibrating(file, "gptq", samples=3, seed=seed)
        path = tmp_path / f"{number}.gguf"
        files.append(
            save_gguf(checkpoint, path, mixture=MIXTURES["q4_0"], calibrate=how).read_bytes()
        )
        assert (how.found.windows, how.found.tokens) == (3, 48)
    assert files[0] == files[1] != files[2]


def test_a_scaled_source_multiplies_divides_and_knows_what_is_added() -> None:
    values = {"m": np.arange(6, dtype=np.float32).reshape(2, 3), "v": np.ones(2, np.float32)}
    source = ScaledSource(ArraySource(values))
    source.multiply("m", np.array([1, 2, 4], np.float32), 1)
    source.divide("m", np.array([1, 2], np.float32), 0)
    source.divide("v", np.array([1, 4], np.float32), 0, plus=1.0)
    np.testing.assert_array_equal(source.read("m"), [[0, 2, 8], [1.5, 4, 10]])
    np.testing.assert_array_equal(source.read("v"), [1, -0.5])  # (1 + 1) / 4 - 1


# --- what is refused ---


def refused(
    tmp_path: Path, checkpoint: Checkpoint, text: bytes | None, name: str, **how: Any
) -> pytest.ExceptionInfo[Exception]:
    """The error of a calibration, which leaves nothing behind."""
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text)
    before = sorted(tmp_path.iterdir())
    asked = Calibrating(file, **{"method": "gptq", **how})
    with pytest.raises((UsageError, QuantizationError, CheckpointError)) as found:
        save_gguf(checkpoint, tmp_path / "m.gguf", mixture=MIXTURES["q4_0"], calibrate=asked)
    assert sorted(tmp_path.iterdir()) == before
    return found


IDS = json.dumps(list(range(64))).encode()
REFUSED: dict[str, tuple[bytes | None, str, Mapping[str, Any], str]] = {
    "missing": (None, "x.txt", {}, "x.txt: cannot be read: No such file"),
    "empty": (b" \n", "x.txt", {}, "x.txt: is empty"),
    "binary": (b"\xff\xfe\x00", "x.txt", {}, "is not UTF-8 text"),
    "zeros": (b"a\0b", "x.txt", {}, "holds bytes of 0"),
    "short": (b"[1, 2, 3]", "x.jsonl", {}, "has 3 tokens, which fill no window of 16"),
    "no JSON": (b"[1]\nplain\n", "x.jsonl", {}, "line 2: is not JSON"),
    "kind": (b'{"body": "x"}', "x.jsonl", {}, "line 1: None is neither a text nor token ids"),
    "vocabulary": (b"[5, 97]", "x.jsonl", {}, r"token id 97: must be an integer in \[0, 97\)"),
    "negative": (b"[-1]", "x.jsonl", {}, "token id -1"),
    "tokenizer": (b"a text", "x.txt", {}, "has no tokenizer"),
    "long": (IDS, "x.jsonl", {"window": 41}, "window 41: must be 2 to 40, the context"),
    "narrow": (IDS, "x.jsonl", {"window": 1}, "window 1: must be 2 to 40"),
    "samples": (IDS, "x.jsonl", {"samples": 0}, "samples 0: must be 1 or more"),
    "damping": (IDS, "x.jsonl", {"damping": -1.0}, "damping -1: must be 0 or more"),
    "damping nan": (IDS, "x.jsonl", {"damping": float("nan")}, "damping nan: must be 0"),
    "method": (IDS, "x.jsonl", {"method": "gptx"}, "unknown calibration method 'gptx'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_texts_and_numbers_that_cannot_be_are_refused(tmp_path: Path, case: str) -> None:
    text, name, how, message = REFUSED[case]
    refused(tmp_path, small_checkpoint(), text, name, **how).match(message)


def damaged(name: str, value: float) -> Checkpoint:
    whole = small_checkpoint()
    arrays = {one: np.array(whole.source.read(one)) for one in whole.source.names()}
    arrays[name][..., -1] = value
    return replace(whole, source=ArraySource(arrays))


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("h.0.ln_1.bias", np.nan, "'h.0.ln_1.bias': a weight holds NaN or infinity"),
        ("h.0.ln_1.bias", 1e30, "'h.0.attn.c_attn.weight': .*(infinity|overflows)"),
        ("h.1.mlp.c_fc.weight", np.inf, "'h.1.mlp.c_fc.weight': a weight holds NaN or infinity"),
    ],
)
def test_activations_that_are_not_finite_are_refused(
    tmp_path: Path, method: str, name: str, value: float, message: str
) -> None:
    refused(tmp_path, damaged(name, value), IDS, "x.jsonl", method=method).match(message)


def test_models_without_a_matrix_to_calibrate_are_refused(tmp_path: Path) -> None:
    found = refused(tmp_path, small_checkpoint(n_embd=20), IDS, "x.jsonl")
    found.match("--method gptq finds no matrix to calibrate: none is to be quantized")


def test_a_model_that_is_quantized_already_is_refused(tmp_path: Path) -> None:
    path = save_gguf(small_checkpoint(), tmp_path / "q.gguf", mixture=MIXTURES["q8_0"])
    refused(tmp_path, open_checkpoint(path), IDS, "x.jsonl").match("has weights in Q8_0 already")


def test_what_exists_is_refused_before_a_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"before")
    refused(tmp_path, small_checkpoint(), None, "x.txt").match("exists already")
    folder, whole = tmp_path / "q", open_checkpoint(llama_folder(tmp_path))
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    how = Calibrating(tmp_path / "none.txt", "awq")
    with pytest.raises(CheckpointError, match="exists already"):
        save_quantized_folder(whole, folder, FORMATS["int4"], calibrate=how)


def test_long_texts_are_read_in_parts_that_the_seed_chooses() -> None:
    read: list[int] = []

    def encode(document: Any) -> list[int]:
        read.append(len(document))
        return [ord(one) for one in document]

    text = "".join(chr(97 + number % 26) for number in range(100_000))
    how: dict[str, Any] = {"size": 10, "samples": 4, "where": "text"}
    found = [windows([text], encode, seed=seed, **how) for seed in (1, 1, 2)]
    assert max(read) == 640 and found[0].shape == (4, 10)
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()
    assert (np.diff(found[0], axis=1) % 26 == 1).all()  # neighbours of the text
    short = windows(["abcdefghijklm"], encode, seed=1, **how)
    assert short.shape == (1, 10)
