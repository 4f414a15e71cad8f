"""Layers that carry a state, and mixtures of experts: what their steps take beside what they read.

Works alternate, with probes of read bandwidth between them, and ratios are taken within a round:

- ``delta``: gated delta layers (those of qwen3.5-0.8b, bf16) and the rule alone. A step reads the
  weights and the state; a prompt's rule stands beside the same rule token by token, as a scan
  (``gated_delta_rule="force=recurrent"``) and as steps of decoding.
- ``experts``: mixtures of 32 experts of which 4 work, small ones and as wide as gpt-oss's. A step
  reads the weights of those; rows of a prompt stand beside as many rows of a linear map with as
  many products.

    python benchmarks/state_layers.py --backend c --rounds 5 --json out.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from measuring.bars import Row, table
from measuring.probing import in_pieces

import ptir
from ptir import functional as F
from ptir.backend import registry
from ptir.backend.contract import Target
from ptir.capture import Tensor
from ptir.capture.creation import parameter
from ptir.models.llama import CachePositions
from ptir.models.mixture import ExpertSizes
from ptir.models.qwen3_5 import PRESETS, Config, GatedDeltaNet
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore

LAYERS: Final = 6
"""Delta layers in a row: more bytes than caches hold."""
PROMPT: Final = 2048
PART: Final = 128
"""Tokens of it that are taken one by one; the others would take as long each."""
RECURRENT: Final = "force=recurrent"
STEPS: Final = 8
"""Steps of a piece."""
TOKENS: Final = 32
"""Tokens of a piece, one after the other, each with experts of its own."""
ROWS: Final = 512
"""Tokens of a prompt that experts are given at once."""
SHARE, PROMPTS, ACTIVE = 0.8, 3.0, 1.2
"""The bars: of bandwidth, over token by token, over reading the chosen experts."""

Array = np.ndarray[Any, Any]
Work = Callable[[], float]


@dataclass(frozen=True)
class Mixtures:
    """Experts of so many layers ``width`` wide, in a row as a model has them.

    A call of a compiled function is paid for once for all.
    """

    experts: ExpertSizes
    width: int
    layers: int

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of an expert's matrices, by their names."""
        inner, width = self.experts.inner, self.width
        return {"gate_up": (2 * inner, width), "down": (width, inner)}


SMALL: Final = Mixtures(ExpertSizes(experts=32, chosen=4, inner=768), 1024, 12)
LARGE: Final = Mixtures(ExpertSizes(experts=32, chosen=4, inner=2880), 2880, 3)
"""As wide as those of gpt-oss-20b."""


class Bench:
    """Compiled functions of stored parameters on one backend, timed."""

    def __init__(self, backend: str) -> None:
        self.target: Target = registry.get(backend)
        self.draws = np.random.default_rng(0)

    def normal(self, *shape: int, by: float = 1.0) -> Array:
        """Numbers of the normal distribution, f32."""
        return self.draws.standard_normal(shape, np.float32) * np.float32(by)

    def tensor(self, array: Array) -> Tensor:
        """An array on the device."""
        return ptir.tensor(array, backend=self.target)

    def store(self, arrays: Mapping[str, Array]) -> Callable[[str], Tensor]:
        """What gives stored parameters by name."""
        return partial(parameter, ParamStore(ArraySource(dict(arrays)), self.target))

    def seconds(self, call: Callable[[], Any]) -> float:
        """The time of a call, to its end on the device."""
        began = time.perf_counter()
        call()
        self.target.backend.synchronize(self.target.device)
        return time.perf_counter() - began


class Carried:
    """A step that is given its state and gives the next one."""

    def __init__(self, bench: Bench, step: Callable[..., Any], state: Any) -> None:
        self.bench, self.state = bench, state
        self.step = ptir.jit(step, donate=("state",))

    def timed(self, count: int, *operands: Tensor) -> float:
        """Seconds of so many steps."""

        def steps() -> None:
            for _ in range(count):
                _, self.state = self.step(*operands, self.state)

        return self.bench.seconds(steps)


def normed(x: Tensor) -> Tensor:
    """What a layer reads; what it gives is added, as in a model.

    Layers square what they read: without both the last ones would compute with denormals.
    """
    return F.rms_norm(x, F.full((x.shape[-1],), 1.0), epsilon=1e-6)


def rule_operands(bench: Bench, config: Config, length: int) -> list[Tensor]:
    """Operands of the rule, as models have them: keys of length 1, rates below 1, decays."""
    keys, values = config.keys, config.values
    q, k = (bench.normal(1, keys, length, config.key_dim) for _ in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -np.abs(bench.normal(1, values, length, by=0.1))
    beta = bench.draws.random((1, values, length), np.float32)
    v = bench.normal(1, values, length, config.value_dim)
    return [*map(bench.tensor, (q, k, v, g, beta))]


def delta_works(bench: Bench, config: Config) -> tuple[dict[str, Work], dict[str, float]]:
    """Steps of layers and of the rule alone, and the bytes that each reads."""
    layers = [GatedDeltaNet(config) for _ in range(LAYERS)]
    arrays: dict[str, Array] = {}
    for number, layer in enumerate(layers):
        for name, type in layer.parameters(f"{number}.").items():
            made = bench.normal(*type.shape, by=0.02)
            arrays[name] = made.astype(ml_dtypes.bfloat16) if len(type.shape) == 2 else made
    of = bench.store(arrays)
    bound = [layer.bind(lambda key, n=n: of(f"{n}.{key}")) for n, layer in enumerate(layers)]
    tail = bench.tensor(np.zeros((1, config.taps - 1, config.mixed), np.float32))
    matrices = bench.normal(1, config.values, config.key_dim, config.value_dim)
    one = bench.tensor(np.ones(1, np.int32))

    def step(x: Tensor, count: Tensor, state: Any) -> Any:
        at, after = CachePositions.of(count, count, 1), []
        for layer, before in zip(bound, state, strict=True):
            added, left = layer(normed(x), before, at)
            x = x + added
            after.append(left)
        return x, tuple(after)

    def rules(q: Any, k: Any, v: Any, g: Any, beta: Any, count: Tensor, state: Any) -> Any:
        found = [F.gated_delta_rule(q, k, v, g, beta, one, count) for one in state]
        return [seen for seen, _ in found], tuple(new for _, new in found)

    state = tuple((tail + 0.0, bench.tensor(matrices)) for _ in range(LAYERS))
    whole = Carried(bench, step, state)
    alone = Carried(bench, rules, tuple(bench.tensor(matrices) for _ in range(8 * LAYERS)))
    x, operands = (
        bench.tensor(bench.normal(1, 1, config.full.hidden_size)),
        [
            *rule_operands(bench, config, 1),
            one,
        ],
    )
    works: dict[str, Work] = {
        "layers": lambda: whole.timed(STEPS, x, one),
        "rule": lambda: alone.timed(STEPS, *operands),
    }
    weights = sum(array.nbytes for array in arrays.values())
    carried = LAYERS * (matrices.nbytes + 4 * (config.taps - 1) * config.mixed)
    return works, {
        "layers": STEPS * (weights + carried),
        "rule": STEPS * 8 * LAYERS * 2 * matrices.nbytes,
    }


def prompt_works(bench: Bench, config: Config) -> dict[str, Work]:
    """The rule over a prompt: as it is taken, by its implementations, and as steps of decoding."""
    matrices = bench.normal(1, config.values, config.key_dim, config.value_dim)
    works: dict[str, Work] = {}

    def rule(q: Any, k: Any, v: Any, g: Any, beta: Any, count: Tensor, state: Any) -> Any:
        return F.gated_delta_rule(q, k, v, g, beta, state, count)

    for policy, length in (("default", PROMPT), ("force=chunked", PROMPT), (RECURRENT, PART)):
        carried = Carried(bench, rule, bench.tensor(matrices))
        operands = rule_operands(bench, config, length)
        count = bench.tensor(np.array([length], np.int32))

        def work(
            carried: Carried = carried,
            policy: str = policy,
            given: Sequence[Tensor] = (*operands, count),
            times: int = PROMPT // length,
        ) -> float:
            with ptir.overrides(gated_delta_rule=policy):
                return carried.timed(1, *given) * times

        works[policy] = work
    single = Carried(bench, rule, bench.tensor(matrices))
    token = rule_operands(bench, config, 1)
    one = bench.tensor(np.ones(1, np.int32))
    works["steps"] = lambda: single.timed(PART, *token, one) * (PROMPT // PART)
    return works


def mixture_works(
    bench: Bench, quant: bool, rows: int, given: Mixtures = SMALL
) -> tuple[dict[str, Work], dict[str, float]]:
    """Mixtures one after the other over so many tokens, and the bytes of the experts at work."""
    how = given.experts
    arrays: dict[str, Array] = {}
    nbytes = 0.0
    for layer in range(given.layers):
        for name, (outputs, inputs) in given.sizes.items():
            shape, key = (how.experts * outputs, inputs), f"{layer}.{name}"
            if quant:
                words = (shape[0], inputs // 8)
                arrays[f"{key}.words"] = bench.draws.integers(0, 1 << 32, words, np.uint32)
                scale = bench.normal(shape[0], inputs // 32, by=0.01)
                arrays[f"{key}.scale"] = scale.astype(ml_dtypes.bfloat16)
            else:
                arrays[key] = bench.normal(*shape, by=0.02).astype(ml_dtypes.bfloat16)
            held = sum(a.nbytes for n, a in arrays.items() if n.startswith(key))
            nbytes += held * how.chosen / how.experts
    of = bench.store(arrays)

    def product(x: Tensor, name: str, chosen: Tensor) -> Tensor:
        if not quant:
            return F.expert_linear(x, of(name), chosen, experts=how.experts)
        words, scale = of(f"{name}.words"), of(f"{name}.scale")
        form: dict[str, Any] = {"bits": 4, "group": 32, "experts": how.experts}
        return F.quantized_expert_linear(x, words, scale, scale * -8.0, chosen, **form)

    def step(x: Tensor, chosen: Tensor) -> Tensor:
        for layer in range(given.layers):
            both = product(normed(x), f"{layer}.gate_up", chosen[layer])
            gate, up = both[..., : how.inner], both[..., how.inner :]
            made = product(F.swiglu(gate, up), f"{layer}.down", chosen[layer])
            x = x + made.sum(axis=1)
        return x

    run, x = ptir.jit(step), bench.tensor(bench.normal(rows, given.width))
    choices = [
        bench.tensor(
            np.argsort(bench.draws.random((given.layers, rows, how.experts)), axis=2)[
                ..., : how.chosen
            ].astype(np.int32)
        )
        for _ in range(TOKENS if rows == 1 else 1)
    ]

    def work() -> float:
        return bench.seconds(lambda: [run(x, chosen) for chosen in choices])

    name = f"{'int4' if quant else 'bf16'}, {given.width} wide, {rows}"
    return {name: work}, {name: len(choices) * nbytes}


def dense_works(bench: Bench, quant: bool) -> dict[str, Work]:
    """A linear map of as many products as a prompt's rows have with their experts."""
    how, width, rows = SMALL.experts, SMALL.width, ROWS * SMALL.experts.chosen
    shape = (3 * SMALL.layers * how.inner, width)
    name = "int4" if quant else "bf16"
    if quant:
        words = bench.draws.integers(0, 1 << 32, (shape[0], width // 8), np.uint32)
        scale = bench.normal(shape[0], width // 32, by=0.01).astype(ml_dtypes.bfloat16)
        of = bench.store({"words": words, "scale": scale})
    else:
        of = bench.store({"w": bench.normal(*shape, by=0.02).astype(ml_dtypes.bfloat16)})

    def product(x: Tensor) -> Tensor:
        if not quant:
            return F.linear(x, of("w"), layout="oi")
        words, scale = of("words"), of("scale")
        given: dict[str, Any] = {"bits": 4, "group": 32, "layout": "oi"}
        return F.quantized_linear(x, words, scale, scale * -8.0, **given)

    run, x = ptir.jit(product), bench.tensor(bench.normal(rows, width))
    return {f"{name}, linear": lambda: bench.seconds(lambda: run(x))}


def rounds(works: Mapping[str, Work], count: int, threads: int) -> list[dict[str, Any]]:
    """What every round gives, the first left out: it compiles."""
    found = [in_pieces(works, threads) for _ in range(count + 1)]
    return found[1:]


def delta_rows(bench: Bench, given: argparse.Namespace) -> list[Row]:
    """Decoding beside bandwidth, prompts beside token by token."""
    config = Config.of(PRESETS["qwen3.5-0.8b"])
    works, nbytes = delta_works(bench, config)
    found = rounds(works, given.rounds, given.threads)
    rows = [
        Row(
            "delta, decode",
            f"{name}, share of the probe",
            [4 * nbytes[name] / (one[name][0] * one[name][1]) for one in found],
            "%",
            SHARE,
        )
        for name in works
    ]
    prompts = prompt_works(bench, config)
    found = rounds(prompts, given.rounds, given.threads)
    rows += [
        Row("delta, prompt", f"{n}", [o[n][0] / 4 * 1e3 for o in found], "ms") for n in prompts
    ]
    for name in (RECURRENT, "steps"):
        ratios = [one[name][0] / one["default"][0] for one in found]
        rows.append(Row("delta, prompt", f"over {name}", ratios, "x", PROMPTS))
    return rows


def expert_rows(bench: Bench, given: argparse.Namespace) -> list[Row]:
    """Decoding beside the bytes at work, prompts beside a linear map."""
    works: dict[str, Work] = {}
    nbytes: dict[str, float] = {}
    for quant in (False, True):
        for sizes, count in ((SMALL, 1), (LARGE, 1), (SMALL, ROWS)):
            made, read = mixture_works(bench, quant, count, sizes)
            works |= made
            nbytes |= read
        works |= dense_works(bench, quant)
    found = rounds(works, given.rounds, given.threads)
    rows = []
    for name in ("bf16", "int4"):
        for sizes in (SMALL, LARGE):
            one = f"{name}, {sizes.width} wide"
            spent = [round[f"{one}, 1"] for round in found]
            times = [s * b / (4 * nbytes[f"{one}, 1"]) for s, b in spent]
            rows.append(Row("experts, decode", f"{one}, x active bytes", times, "x", ACTIVE, True))
        many, dense = f"{name}, {SMALL.width} wide, {ROWS}", f"{name}, linear"
        rows.append(Row("experts, prompt", name, [o[many][0] / 4 * 1e3 for o in found], "ms"))
        ratios = [o[many][0] / o[dense][0] for o in found]
        rows.append(Row("experts, prompt", f"{name}, x linear", ratios, "x"))
    return rows


SECTIONS: Final = {"delta": delta_rows, "experts": expert_rows}


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of the probe of bandwidth")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bench = Bench(given.backend)
    rows = [row for section in given.sections for row in SECTIONS[section](bench, given)]
    print(table(rows))
    if given.json:
        given.json.write_text(json.dumps([row.json() for row in rows], indent=1))


if __name__ == "__main__":
    main()
