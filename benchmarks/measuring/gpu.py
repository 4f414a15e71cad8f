"""One part of the proofs on a GPU, in a process of its own: ``benchmarks/gpu.sh`` runs them all.

    python -m measuring.gpu device|parity|model|theirs|launches FILE [MODEL [dtype=... quant=...]]

Writes what it found to FILE as JSON, after each half of what has two, and ends with 3 where there
is no device.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

NO_DEVICE = 3
PROMPT = 512
"""Tokens of a prompt whose prefill is timed."""
WATCHED = 70
"""Tokens of a prompt whose kernels are watched: more than a tile of a product takes."""
STEPS = 64
"""Decode steps of a round."""
ROUNDS = 5
COPIED = 2 << 30
"""Bytes of the copy that stands for the device's bandwidth."""


def target() -> Any:
    """The first CUDA device; ends the process where there is none."""
    from ptir.backend import registry
    from ptir.errors import PtirError

    try:
        return registry.get("cupy")
    except PtirError as error:
        print(f"no device: {error}", file=sys.stderr)
        raise SystemExit(NO_DEVICE) from error


def seconds(
    run: Callable[..., object], before: Callable[[], tuple[Any, ...]] = tuple
) -> list[float]:
    """The time of each round, after one that does not count; ``before`` makes what it is given."""
    found = []
    for _ in range(1 + ROUNDS):
        given = before()
        began = time.perf_counter()
        run(*given)
        found.append(time.perf_counter() - began)
    return found[1:]


def device(given: list[str]) -> dict[str, Any]:
    """What the device is, and how fast it copies (bytes read and written in a second)."""
    chosen = target()
    import cupy

    source = cupy.empty(COPIED, cupy.uint8)
    into = cupy.empty_like(source)

    def copied() -> None:
        cupy.copyto(into, source)
        cupy.cuda.get_current_stream().synchronize()

    return {
        "device": chosen.device.name,
        "capabilities": dict(chosen.backend.capabilities(chosen.device)),
        "copy_bytes_per_second": 2 * COPIED / statistics.median(seconds(copied)),
    }


def parity(given: list[str]) -> dict[str, Any]:
    """Logits of random checkpoints of Transformers: the greatest difference over their size."""
    import torch
    import transformers

    import ptir

    chosen, found = target(), {}
    small: dict[str, dict[str, Any]] = {
        "gpt2": {"n_embd": 192, "n_layer": 3, "n_head": 6, "vocab_size": 1031},
        "llama": {
            "hidden_size": 256,
            "intermediate_size": 640,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "vocab_size": 1031,
        },
    }
    tokens = np.random.default_rng(0).integers(0, 1031, 70).tolist()
    for kind, sizes in small.items():
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(kind, **sizes)
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            made.save_pretrained(folder)
            there = made(torch.tensor([tokens])).logits.numpy().reshape(-1, 1031)
            here = np.asarray(ptir.load_model(folder, backend=chosen).forward(tokens))
        here = here.reshape(-1, 1031)
        difference = float(np.abs(here - there[-len(here) :]).max() / np.abs(there).max())
        found[kind] = {"difference": difference, "agrees": difference < 1e-4}
    return found


class Alike:
    """A store's source whose parameters of one type are one array: 8e9 draws take minutes."""

    def __init__(self, store: Any) -> None:
        self._source, self._type = store.source, store.type
        self._arrays: dict[Any, Any] = {}

    def read(self, name: str) -> Any:
        """The array of the parameter's type, in that type."""
        type_ = self._type(name)
        if type_ not in self._arrays:
            array = self._source.read(name)
            self._arrays[type_] = array.astype(type_.dtype.numpy, copy=False)
        return self._arrays[type_]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def loaded(given: list[str]) -> Any:
    """A model, with what follows its name as options."""
    import ptir

    name, *pairs = given
    options: dict[str, Any] = dict(pair.split("=", 1) for pair in pairs)
    made = ptir.load_model(name, backend=target(), **options)
    if name.startswith("random:"):
        made.store.source = Alike(made.store)
    return made


def model(given: list[str]) -> dict[str, Any]:
    """Prefill and decode of ours, bytes and launches of a step, the host's time to queue one."""
    from ptir.runtime.explain import weights_read
    from ptir.runtime.session import Session

    made = loaded(given)
    chosen = made.target
    prompt = np.random.default_rng(0).integers(1, 1000, PROMPT).tolist()
    active = np.ones(1, np.bool_)
    with made.policies():

        def fresh() -> tuple[Session]:
            return (Session.of(made, 1, 2 * PROMPT),)

        prefill = seconds(lambda session: session.prefill([prompt]), fresh)
        (session,) = fresh()
        session.pick(session.prefill([prompt]))
        stats = chosen.backend.stats(chosen.device)

        def steps() -> None:
            for left in reversed(range(STEPS)):
                session.advance(active, ahead=left)

        decode = seconds(steps)
        queue, spent = session._queue, 0.0

        def timed(*given: Any) -> None:
            nonlocal spent
            began = time.thread_time()
            queue(*given)
            spent += time.thread_time() - began

        session._queue = timed  # type: ignore[method-assign]  # waiting for tokens is not work
        before = stats.kernels_launched
        steps()
        launches = (stats.kernels_launched - before) / STEPS
        read = weights_read(made.steps.advance(1, session.capacity).plans[-1])
    return {
        "prefill_tokens_per_second": [PROMPT / one for one in prefill],
        "decode_tokens_per_second": [STEPS / one for one in decode],
        "weight_bytes_per_step": read,
        "launches_per_step": launches,
        "host_seconds_per_step": spent / STEPS,
    }


def theirs(given: list[str]) -> Iterator[dict[str, Any]]:
    """The same by Transformers in bf16, compiled with CUDA graphs: decode, then prefill."""
    import torch
    import transformers

    target()
    name = given[0].removeprefix("random:")
    from ptir.models.table import preset

    _, settings = preset(name)
    config = transformers.AutoConfig.for_model(**dict(settings))
    with torch.device("cuda"):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    prompt = torch.randint(1, 1000, (1, PROMPT), device="cuda")
    forward = torch.compile(made, mode="reduce-overhead", dynamic=False)
    with torch.no_grad():
        cache = transformers.StaticCache(config=config, max_cache_len=2 * PROMPT)
        made(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        last = prompt[:, :1].clone()

        def steps() -> None:
            for _ in range(STEPS):
                torch.compiler.cudagraph_mark_step_begin()
                logits = forward(last, past_key_values=cache, use_cache=True).logits
                last.copy_(logits[:, -1:].argmax(-1))
            torch.cuda.synchronize()

        yield {"decode_tokens_per_second": [STEPS / one for one in seconds(steps)]}

        def prefilled() -> None:
            forward(prompt, use_cache=False, logits_to_keep=1)
            torch.cuda.synchronize()

        yield {"prefill_tokens_per_second": [PROMPT / one for one in seconds(prefilled)]}


def launches(given: list[str]) -> dict[str, Any]:
    """A prompt and some tokens in f32 and in bf16, for tools that watch every launch.

    Each piece of memory is an allocation of its own: in a pool, what lies behind it is somebody's.
    """
    import cupy

    def direct(nbytes: int) -> Any:
        return cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0)

    cupy.cuda.MemoryPool = lambda: SimpleNamespace(malloc=direct)
    found = {}
    for storage in ("f32", "bf16"):
        made = loaded([*given, f"dtype={storage}", f"cache_dtype={storage}"])
        tokens = [1 + n % 1000 for n in range(WATCHED)]
        text = made.generate(tokens, max_tokens=4, temperature=0.0, ignore_eos=True)
        found[storage] = list(text.token_ids)
    return found


PARTS = {one.__name__: one for one in (device, parity, model, theirs, launches)}


def main() -> None:
    """The command."""
    name, file, *given = sys.argv[1:]
    made: Any = PARTS[name](given)
    whole: dict[str, Any] = {}
    for half in [made] if isinstance(made, dict) else made:
        whole |= half
        Path(file).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
