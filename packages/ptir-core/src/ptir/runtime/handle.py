"""``Model``: a loaded model as a handle with capabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ptir.backend.contract import Target
from ptir.capture.jit import jit
from ptir.capture.lazy import tensor
from ptir.checkpoint import Checkpoint, eos_token_ids
from ptir.errors import UnsupportedError, UsageError
from ptir.nn.module import recording
from ptir.ops.implementations import active_overrides, overrides
from ptir.params.store import ParamStore
from ptir.runtime.generation import Generation, SamplingOptions
from ptir.runtime.steps import Steps

if TYPE_CHECKING:
    from ptir.runtime.generate import GenerationRun
    from ptir.runtime.session import Progress
    from ptir.text import Tokenizer

Array = np.ndarray[Any, Any]
Prompt = str | Sequence[int]


@dataclass
class Model:
    """A loaded model: its checkpoint, its bound architecture and where it runs.

    ``capabilities`` says which methods apply; the others raise ``UnsupportedError``.
    """

    name: str
    checkpoint: Checkpoint
    module: Any
    store: ParamStore
    target: Target
    tokenizer: Tokenizer | None
    context: int
    overrides: Mapping[str, str]
    load_seconds: float
    steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = Steps(self.module)
        self._every = jit(self._all_logits)

    def policies(self) -> AbstractContextManager[None]:
        """The model's own overrides, in force where the caller has not set another policy."""
        return overrides({**self.overrides, **dict(active_overrides())})

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What this model can do."""
        return ("generate", "forward", "trace")

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a generation."""
        return eos_token_ids(self.checkpoint.config, self.checkpoint.generation_config)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; ids are checked and passed through. Raises ``UsageError``."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise UsageError(f"model {self.name!r} has no tokenizer; give token ids")
            return self.tokenizer.encode(prompt)
        size = int(self.checkpoint.config["vocab_size"])
        for index in prompt:
            if not 0 <= index < size:
                raise UsageError(f"token id {index}: must be in [0, {size})")
        return [int(index) for index in prompt]

    def run(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        ignore_eos: bool = False,
        progress: Progress | None = None,
        **sampling: Any,
    ) -> GenerationRun:
        """A generation to be iterated: yields ``Piece``s, then holds ``results``.

        ``max_tokens`` None means as many as fit the context; ``logprobs`` N records the chosen
        token's log probability and the N best. ``sampling`` are ``SamplingOptions``' fields.
        Raises ``UsageError`` when prompt and tokens do not fit the context.
        """
        from ptir.runtime.generate import GenerationRun

        try:
            options = SamplingOptions(**sampling)
        except TypeError as error:
            raise UsageError(f"generate: {error}") from error
        ids = [self.encode(prompt) for prompt in prompts]
        return GenerationRun(
            self, ids, options, max_tokens, tuple(stop), logprobs, ignore_eos, progress
        )

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Continue one prompt; options as for ``run``."""
        return self.generate_batch([prompt], **options)[0]

    def generate_batch(self, prompts: Sequence[Prompt], **options: Any) -> list[Generation]:
        """Continue several prompts of any lengths together; results in the prompts' order."""
        run = self.run(prompts, **options)
        for _ in run:
            pass
        return run.results

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """The generated text piece by piece; no piece ends inside a character."""
        return (piece.text for piece in self.run([prompt], **options) if piece.text)

    def forward(self, tokens: Any) -> Array:
        """Logits f32[B,T,V] (or f32[T,V] for one row) of all positions of ``tokens``."""
        rows, ids = self._token_rows(tokens)
        with self.policies():
            logits: Array = self._every(self._lent(ids)).numpy()
        return logits if rows else logits[0]

    def trace(self, tokens: Any) -> dict[str, Array]:
        """The output of every layer by name, and ``logits``, for all positions of ``tokens``."""
        _, ids = self._token_rows(tokens)

        def traced(tokens: Any) -> dict[str, Any]:
            with recording() as outputs:
                logits = self._all_logits(tokens)
            return {**outputs, "logits": logits}

        with self.policies():
            return {n: t.numpy() for n, t in jit(traced)(self._lent(ids)).items()}

    def _all_logits(self, tokens: Any) -> Any:
        from ptir import functional as F

        batch, length = tokens.shape
        zero = F.full((batch,), 0, "i32")
        caches = self.module.cache_types(batch, length)
        cache = tuple((F.full(k.shape, 0.0), F.full(v.shape, 0.0)) for k, v in caches)
        return self.module(tokens, cache, zero, zero + length, every=True)[0]

    def _token_rows(self, tokens: Any) -> tuple[bool, Array]:
        ids = np.asarray(self.encode(tokens) if isinstance(tokens, str) else tokens)
        if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu" or not ids.size:
            raise UsageError("forward: give text, or token ids in one row or a [B,T] array")
        for row in np.atleast_2d(ids):
            self.encode(row.tolist())
        if ids.shape[-1] > self.context:
            raise UsageError(
                f"{ids.shape[-1]} tokens do not fit the context of {self.context}; shorten the"
                " input"
            )
        return ids.ndim == 2, np.atleast_2d(ids).astype(np.int32)

    def _lent(self, ids: Array) -> Any:
        return tensor(ids, backend=self.target)

    def embed(self, texts: Sequence[str]) -> NoReturn:
        """Sentence embeddings, for models with that capability."""
        self._lacks("embed")

    def classify(self, images: Any) -> NoReturn:
        """Class scores of images, for models with that capability."""
        self._lacks("classify")

    def _lacks(self, capability: str) -> NoReturn:
        kind = self.checkpoint.config.get("model_type")
        raise UnsupportedError(
            f"model {self.name!r} ({kind}) cannot {capability}; it can {', '.join(self.capabilities)}"
        )
