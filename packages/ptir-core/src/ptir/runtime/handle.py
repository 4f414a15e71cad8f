"""``Model``: a loaded model as a handle with capabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.creation import tensor
from ptir.capture.jit import jit
from ptir.checkpoint import Checkpoint, eos_token_ids
from ptir.errors import CheckpointError, UnsupportedError, UsageError, unknown_name
from ptir.models.images import declared_classifier
from ptir.models.nextn import Predicting
from ptir.models.table import GENERATES
from ptir.nn.module import recording
from ptir.nn.state import LayerState, whole
from ptir.notebook import Card, Displayed
from ptir.ops.overriding import in_force
from ptir.ops.policies import Override
from ptir.params.store import ParamStore
from ptir.runtime.generate import GenerationRun
from ptir.runtime.generation import Generation, SamplingOptions
from ptir.runtime.session import Progress
from ptir.runtime.session_state import SessionState
from ptir.runtime.steps import Steps, all_logits
from ptir.runtime.tokenizer import CheckpointText
from ptir.text import Tokenizer
from ptir.types import F32, DType, TensorType

if TYPE_CHECKING:
    from ptir.runtime.chat import Answer, AnswerPiece, Conversation
    from ptir.runtime.speech.transcript import Transcript
    from ptir.runtime.summary import Summary
    from ptir.text.chat_template import Message
    from ptir.text.found import Filled, Ranked, TokenLabel
    from ptir.vision import Label

Array = np.ndarray[Any, Any]
Prompt = str | Sequence[int]


@dataclass(repr=False)
class Model(Displayed):
    """A loaded model: its checkpoint, its bound architecture and where it runs.

    ``capabilities`` says which methods apply; the others raise ``UnsupportedError``. ``text`` is
    what the checkpoint says of text. With ``swa_full`` layers with a window keep every position.
    """

    name: str
    checkpoint: Checkpoint
    module: Any
    store: ParamStore
    target: Target
    text: CheckpointText
    context: int
    overrides: tuple[Override, ...]
    load_seconds: float
    cache_dtype: DType = F32
    swa_full: bool = False
    steps: Steps = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.steps = Steps(self.module)
        self._every = jit(self._all_logits)

    def __repr__(self) -> str:
        kind, context = self.checkpoint.config.get("model_type"), self.context
        said = f"{kind}, {self.target}" + (f", context {context:,}" if context else "")
        return f"{type(self).__name__}({self.name!r}, {said})"

    def summary(self) -> Summary:
        """What it consists of: parameters and bytes by part, layers that are alike once.

        Printed, or shown in a notebook, it is a table. Nothing is read or computed for it.
        """
        from ptir.runtime.summary import summary  # most runs ask for none

        return summary(self)

    def card(self) -> Card:
        """What a notebook shows: the summary."""
        return self.summary().card()

    def policies(self) -> AbstractContextManager[None]:
        """The model's own overrides, in force where nothing stronger says otherwise (``RANKS``)."""
        return in_force(self.overrides) if self.overrides else nullcontext()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, if the checkpoint has one that can be used; built when first asked for."""
        return self.text.loaded.tokenizer

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What this model can do."""
        return GENERATES

    @property
    def reads_texts(self) -> bool:
        """Whether what ``embed`` and ``classify`` take are texts, not images."""
        return False

    def require(self, capability: str) -> None:
        """Raise ``UnsupportedError`` where the model lacks a capability."""
        if capability not in self.capabilities:
            self._lacks(capability)

    @property
    def has_head(self) -> bool:
        """Whether it has a head that predicts further tokens (``speculate="nextn"``)."""
        return getattr(self.module, "mtp", None) is not None

    @cached_property
    def predicting(self) -> Predicting:
        """The architecture with its head; raises ``UnsupportedError`` where it has none."""
        if not self.has_head:
            kind = self.checkpoint.config.get("model_type")
            raise UnsupportedError(
                f"model {self.name!r} ({kind}) has no head that predicts further tokens (MTP,"
                " nextn), or none that is implemented: speculate by 'lookup' or with a draft model"
            )
        return Predicting(self.module, self.module.mtp)

    @cached_property
    def head_steps(self) -> Steps:
        """The steps that let the head take in what they do, on a state with ``heads``."""
        return Steps(self.predicting)

    def states(
        self, *, heads: bool = False, swa_full: bool | None = None
    ) -> tuple[LayerState, ...]:
        """What each layer carries; with ``swa_full`` (the model's own) all that stood in a text.

        Where a window and its room are as long as the context, that is what they have anyway.
        """
        found: tuple[LayerState, ...] = (self.predicting if heads else self.module).states()
        full = self.swa_full if swa_full is None else swa_full
        return whole(found, None if full else self.context)

    def state_types(
        self, rows: int, capacity: int, *, heads: bool = False, swa_full: bool | None = None
    ) -> tuple[tuple[TensorType, ...], ...]:
        """The types of what each layer carries; in ``cache_dtype`` what it keeps of a position."""
        states = self.states(heads=heads, swa_full=swa_full)
        return tuple(state.types(rows, capacity, self.cache_dtype) for state in states)

    def new_state(self, rows: int, capacity: int, *, heads: bool = False) -> SessionState:
        """What the layers carry before the first step of ``rows`` prompts; see ``run``.

        ``heads``: and the model's head, which ``speculate="nextn"`` needs. Raises
        ``UnsupportedError`` where the model has none.
        """
        self.require("generate")
        self.make_room(rows, capacity, heads=heads)
        states, dtype = self.states(heads=heads), self.cache_dtype
        made = SessionState(states, rows, capacity, dtype, self.target)
        made.model, made.heads = self, heads
        return made

    def make_room(self, rows: int, capacity: int, *, heads: bool = False) -> None:
        """Have weights leave for such a state, where both share a budget.

        Raises ``UsageError`` where the state alone does not fit.
        """
        streamed = self.store.streamed
        if streamed is None:
            return
        types = self.state_types(rows, capacity, heads=heads)
        nbytes = sum(t.nbytes for layer in types for t in layer)
        if nbytes > streamed.budget:
            from ptir.params.streaming import alternatives  # most models have no budget

            raise UsageError(
                f"device memory {streamed.budget}: the state of {capacity} tokens (keys and values)"
                f" has {nbytes} bytes; give more{alternatives(streamed.savings.state)}"
            )
        streamed.make_room(nbytes)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a generation: the tokenizer's own rule where it has one."""
        checkpoint = self.checkpoint
        return self.text.ends or eos_token_ids(checkpoint.config, checkpoint.generation_config)

    @property
    def default_sampling(self) -> dict[str, int | float]:
        """The ``SamplingOptions`` that the checkpoint asks for: ``run(..., **default_sampling)``.

        Raises ``CheckpointError`` for values that are out of range.
        """
        from ptir.runtime.default_sampling import default_sampling  # most runs say it themselves

        return dict(default_sampling(self.checkpoint).options)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; ids are checked and passed through. Raises ``UsageError``."""
        size = int(self.checkpoint.config["vocab_size"])
        if isinstance(prompt, str):
            return self._encode_text(prompt, size)
        if not isinstance(prompt, Sequence | np.ndarray):
            kind = type(prompt).__name__
            raise UsageError(f"a prompt is {kind}; give a text or a list of token ids")
        for index in prompt:
            if not isinstance(index, Integral) or not 0 <= index < size:
                raise UsageError(f"token id {index!r}: must be an integer in [0, {size})")
        return [int(index) for index in prompt]

    def _encode_text(self, prompt: str, size: int) -> list[int]:
        if self.tokenizer is None:
            self._lacks_tokenizer()
        ids = self.tokenizer.encode(prompt)
        self._check_ids(ids, size)
        return ids

    def _check_ids(self, ids: Sequence[int], size: int) -> None:
        if max(ids, default=0) >= size:
            raise CheckpointError(
                f"{self.checkpoint.path}: the tokenizer gives id {max(ids)} and the model has"
                f" vocab_size {size}; they do not belong together: fetch both again"
            )

    def _lacks_tokenizer(self) -> NoReturn:
        lack = self.text.loaded.lack
        why = f" ({lack})" if lack else ""
        raise UsageError(f"model {self.name!r} has no tokenizer{why}; give token ids (--tokens)")

    def run(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
        ignore_eos: bool = False,
        progress: Progress | None = None,
        state: SessionState | None = None,
        ends: Sequence[int] = (),
        speculate: str | Model | None = None,
        **sampling: Any,
    ) -> GenerationRun:
        """A generation to be iterated: yields ``Piece``s, then holds ``results``.

        ``max_tokens`` None means as many as fit the context; ``stop`` is one text or several;
        ``logprobs`` N records the chosen token's log probability and the N best. ``sampling`` are
        ``SamplingOptions``' fields; ``seed`` may be a list with one for each prompt. Of a ``state``
        of as many rows, tokens are kept that the prompts begin with, and it holds prompts and
        answers afterwards. Tokens of ``ends`` end a text besides ``eos_ids``. ``speculate``, for
        one prompt, verifies several tokens in one step that an earlier place of the text
        (``"lookup"``), the model's own head (``"nextn"``), the head or else the text (``"auto"``)
        or a smaller model proposes; the tokens stay the same. Raises ``UsageError``
        for what is out of range, unknown or does not fit the context.
        """
        self.require("generate")
        if isinstance(prompts, str):
            raise UsageError("run: prompts must be a list of prompts, not one text")
        for name, value in (("logprobs", logprobs), ("max_tokens", max_tokens)):
            if value is not None and not (isinstance(value, Integral) and value >= 0):
                raise UsageError(f"{name} {value!r}: must be >= 0, an integer")
        stops = (stop,) if isinstance(stop, str) else _stop_texts(stop)
        if stops and self.tokenizer is None:
            raise UsageError(f"model {self.name!r} has no tokenizer; stop texts need one")
        options = _sampling(sampling)
        options.seeds(len(prompts))
        if state is not None and state.batch != len(prompts):
            raise UsageError(
                f"{len(prompts)} prompts and a state of {state.batch} rows: give one of as many"
            )
        if state is not None and state.model is not self:
            raise UsageError(
                f"the state is of another model than {self.name!r}: make one with new_state of the"
                " model that runs"
            )
        ids = [self.encode(prompt) for prompt in prompts]
        proposer = None
        if speculate is not None:
            from ptir.runtime.speculation import proposer_of  # most runs propose nothing

            proposer = proposer_of(speculate, self, len(prompts), options)
        if proposer is not None and proposer.heads and state is not None and not state.heads:
            raise UsageError(
                "the state has none of the model's head, which speculate 'nextn' reads: make one"
                " with new_state(..., heads=True)"
            )
        rest = max_tokens, stops, logprobs, ignore_eos, progress, state, ends, proposer
        return GenerationRun(self, ids, options, *rest)

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

    def chat(self, messages: Sequence[Message], **options: Any) -> Answer:
        """The answer to ``messages``, each with a ``role`` and a ``content``.

        The model's chat template writes them as a prompt. Options are those of ``run`` and those of
        ``Conversation``, which keeps what was computed from one answer to the next.
        """
        return self._conversation(messages, options).run().finished()

    def chat_stream(self, messages: Sequence[Message], **options: Any) -> Iterator[AnswerPiece]:
        """The same piece by piece: what is text of the answer and what is reasoning before it."""
        return iter(self._conversation(messages, options).run())

    def _conversation(self, messages: Sequence[Message], options: dict[str, Any]) -> Conversation:
        from ptir.runtime.chat import Conversation  # most runs are no chat

        self.require("generate")
        return Conversation(self, messages=messages, **{"context": self.context, **options})

    def forward(self, tokens: Any) -> Array:
        """Logits f32[B,T,V] (or f32[T,V] for one row) of all positions of ``tokens``."""
        rows, ids = self._token_rows(tokens)
        batch, length = ids.shape
        padded = np.zeros((batch, padded_length(length, self.context)), np.int32)
        padded[:, :length] = ids
        count = np.full(batch, length, np.int32)
        with self.policies():
            logits: Array = self._every(self._tensor(padded), self._tensor(count)).numpy()
        return logits[:, :length] if rows else logits[0, :length]

    def trace(self, tokens: Any) -> dict[str, Array]:
        """The output of every layer by name, and ``logits``, for all positions of ``tokens``."""
        _, ids = self._token_rows(tokens)

        def traced(tokens: Any) -> dict[str, Any]:
            with recording() as outputs:
                batch, length = tokens.shape
                logits = self._all_logits(tokens, F.full((batch,), length, "i32"))
            return {**outputs, "logits": logits}

        with self.policies():
            return {n: t.numpy() for n, t in jit(traced)(self._tensor(ids)).items()}

    def _all_logits(self, tokens: Any, count: Any) -> Any:
        return all_logits(self.module, partial(self.state_types, swa_full=True), tokens, count)

    def _token_rows(self, tokens: Any) -> tuple[bool, Array]:
        given = self.encode(tokens) if isinstance(tokens, str) else tokens
        try:
            ids = np.asarray(given)
        except ValueError as error:
            raise UsageError(f"forward: rows of token ids must be equally long: {error}") from error
        if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu" or not ids.size:
            raise UsageError("forward: give text, or token ids in one row or a [B,T] array")
        self.encode(ids.ravel().tolist())
        if ids.shape[-1] > self.context:
            raise UsageError(
                f"{ids.shape[-1]} tokens do not fit the context of {self.context}; shorten the"
                " input"
            )
        return ids.ndim == 2, np.atleast_2d(ids).astype(np.int32)

    def _tensor(self, ids: Array) -> Any:
        return tensor(ids, backend=self.target)

    def embed(self, inputs: Any) -> Array:
        """Embeddings f32[N,D], for models with that capability."""
        self._lacks("embed")

    def embed_texts(self, texts: Sequence[str]) -> Array:
        """Embeddings of texts in the space of images, for models with that capability."""
        self._lacks("embed_texts")

    def classify_tokens(self, texts: str | Sequence[str]) -> list[tuple[TokenLabel, ...]]:
        """The likeliest class of each token of texts, for models with that capability."""
        self._lacks("classify_tokens")

    def rerank(self, query: str, documents: Sequence[str]) -> list[Ranked]:
        """Documents by how well they answer a query, for models with that capability."""
        self._lacks("rerank")

    def fill(self, texts: str | Sequence[str]) -> list[tuple[tuple[Filled, ...], ...]]:
        """The likeliest tokens for each masked word of texts, for models with that capability."""
        self._lacks("fill")

    def classify(
        self, images: Any, *, top_k: int = 5, labels: Sequence[str] = ()
    ) -> list[tuple[Label, ...]]:
        """The likeliest classes of images or texts, for models with that capability."""
        self._lacks("classify")

    def transcribe(self, audio: Any) -> Transcript:
        """What is said in a recording, for models with that capability."""
        self._lacks("transcribe")

    def _lacks(self, capability: str) -> NoReturn:
        kind = self.checkpoint.config.get("model_type")
        able = ", ".join(self.capabilities)
        declared = declared_classifier(self.checkpoint.config)
        if capability.startswith("classify") and declared and "embed" in self.capabilities:
            raise UnsupportedError(
                f"model {self.name!r} ({kind}) cannot {capability}, though config.json declares a"
                f" classifier ({declared}): its weights are not stored; fetch the checkpoint again"
            )
        raise UnsupportedError(
            f"model {self.name!r} ({kind}) cannot {capability}; it can {able}: load a model that"
            f" can {capability}"
        )


def _stop_texts(stop: Any) -> tuple[str, ...]:
    if not isinstance(stop, Sequence) or not all(isinstance(one, str) for one in stop):
        raise UsageError(f"stop {stop!r}: must be a text or a list of texts")
    return tuple(stop)


def _sampling(given: Mapping[str, Any]) -> SamplingOptions:
    known = [one.name for one in fields(SamplingOptions)]
    for name in given:
        if name not in known:
            raise UsageError(unknown_name("option", name, known))
    return SamplingOptions(**given)


def padded_length(length: int, context: int) -> int:
    """What ``forward`` pads ``length`` to (a power of two), so that few programs serve all."""
    return min(context, max(8, 1 << (length - 1).bit_length()))
