"""ptir as a peer: GPT-2 of random weights on a backend, in one weight format."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

CONTEXT = 1024


class Ours:
    """A loaded model. Every session has room for the whole context, as peers have."""

    def __init__(
        self,
        backend: str,
        dtype: str,
        quant: str | None,
        fast: bool = False,
        positions: int = CONTEXT,
        cache_dtype: str = "f32",
        model: str = "",
    ) -> None:
        """``model`` is another than GPT-2 of random weights."""
        import ptir

        self.positions = positions
        self.model = ptir.load_model(
            model or f"random:{preset_of(positions)}",
            backend=backend,
            dtype=dtype,
            quant=quant,
            fast=fast,
            cache_dtype=cache_dtype,
        )
        self._kept: dict[str, Any] = {}
        self._policies = self.model.policies()  # in force for as long as the process lasts
        self._policies.__enter__()
        self._session: Any = None

    def _fresh(self) -> Any:
        from ptir.runtime.session import Session

        self._session = None  # its cache goes before the next one comes
        self._session = Session.of(self.model, 1, CONTEXT)
        return self._session

    def prefill(self, tokens: list[int]) -> float:
        """Seconds for a prompt, up to the logits of the last token."""
        session = self._fresh()
        began = time.perf_counter()
        session.prefill([tokens])
        return time.perf_counter() - began

    def begin(self, token: int) -> None:
        """Start a sequence of one token, which ``decode`` continues."""
        session = self._fresh()
        session.pick(session.prefill([[token]]))

    def decode(self, tokens: list[int]) -> float:
        """Seconds for as many greedy tokens as are given."""
        active = np.ones(1, np.bool_)
        began = time.perf_counter()
        for left in reversed(range(len(tokens))):
            self._session.advance(active, ahead=left)
        return time.perf_counter() - began

    def logits(self, tokens: list[int]) -> list[float]:
        """The logits after the last token."""
        found: list[float] = np.asarray(self._fresh().prefill([tokens]))[0].tolist()
        return found

    def keep(self, name: str, position: int, rows: int = 1) -> None:
        """Start sequences with ``position`` tokens each under a name, beside others."""
        from ptir.runtime.session import Session

        room = self.positions if rows == 1 else position + 256
        session = self._kept[name] = Session.of(self.model, rows, room)
        prompt = np.random.default_rng(0).integers(0, 50257, position).tolist()
        session.pick(session.prefill([prompt] * rows))

    def continued(self, name: str, steps: int) -> float:
        """Seconds for so many greedy tokens of every sequence under a name."""
        session = self._kept[name]
        active = np.ones(session.batch, np.bool_)
        began = time.perf_counter()
        for left in reversed(range(steps)):
            session.advance(active, ahead=left)
        return time.perf_counter() - began

    def cache_bytes(self) -> float:
        """Bytes of the cache for each position of one sequence."""
        caches = self.model.state_types(1, self.positions)
        return sum(type.nbytes for pair in caches for type in pair) / self.positions

    def weight_bytes(self) -> int:
        """The weights that one token reads, after decoding one sequence."""
        from ptir.runtime.explain import weights_read

        found = weights_read(self.model.steps.advance(1, self.positions).plans[-1])
        assert found is not None, "only backends that explain themselves are asked"
        return found

    def _decoding(self) -> Any:
        return self.model.steps.advance(1, self._session.capacity).plans[-1]

    def facts(self) -> dict[str, Any]:
        """After decoding: the weights that one token reads, and memory over what is needed."""
        from ptir.runtime.explain import weights_read

        target, plan = self.model.target, self._decoding()
        ports = zip(plan.optimized.ports, plan.optimized.inputs, strict=True)
        parameters = sum(type.nbytes for port, type in ports if port.kind == "parameter")
        caches = self.model.state_types(1, self._session.capacity)
        cache = sum(type.nbytes for pair in caches for type in pair)
        memory = target.backend.memory_stats(target.device)
        return {
            "weight_bytes": weights_read(plan) or parameters,
            "device": target.device.name,
            "peak_bytes": memory.peak_bytes if memory else None,
            "parameters_and_cache": parameters + cache,
        }

    def replay(self, tokens: list[int]) -> list[float]:
        """Processor seconds that the submitting thread spends on each launch, by decode step.

        Each step waits, so that the device does not take the processor away meanwhile. Nothing
        where a run is over when it returns: then the thread's time is the device's.
        """
        self.begin(tokens[0])
        active = np.ones(1, np.bool_)
        self._session.advance(active, ahead=1)
        ahead = self._session._ahead
        if not ahead or ahead[0].fetched is None:
            return []
        executable = self._decoding().executable
        launches = sum(part.kind == "kernel" for part in executable.explain().parts)
        kind, spent = type(executable), list[float]()
        run = kind.run

        def counted(self: Any, inputs: Any) -> Any:
            began = time.thread_time()
            outputs = run(self, inputs)
            if self is executable:
                spent.append((time.thread_time() - began) / max(1, launches))
            return outputs

        kind.run = counted  # type: ignore[method-assign]
        try:
            for _ in tokens:
                self._session.advance(active)
        finally:
            kind.run = run  # type: ignore[method-assign]
        return spent


def preset_of(positions: int) -> str:
    """GPT-2 124M with so many positions, as a preset."""
    from ptir.models import table

    definition, config = table.preset("gpt2")
    if config["n_positions"] == positions:
        return "gpt2"
    presets: Any = definition.presets
    presets[f"gpt2-{positions}"] = {**config, "n_positions": positions}
    return f"gpt2-{positions}"
