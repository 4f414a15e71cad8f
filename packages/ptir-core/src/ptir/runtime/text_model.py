"""``TextModel``: the handle of an encoder, which embeds, classifies or ranks texts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from ptir.capture.jit import jit
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, UsageError, short, unknown_name
from ptir.models.encoder import OF_TEXTS, OF_TOKENS
from ptir.models.pooling import SentenceModules
from ptir.nn.module import recording
from ptir.runtime.batches import Batch, batches
from ptir.runtime.filling import Masked, likeliest_tokens, mask_token, masked, places_of
from ptir.runtime.finite import check_numbers
from ptir.runtime.handle import Array, Model
from ptir.text import EncodedText
from ptir.text.found import Filled, Ranked, TokenLabel
from ptir.vision.labels import Label, check_top_k, class_names, likeliest, read_labels

if TYPE_CHECKING:
    from ptir.capture.plan import Plan

Text: TypeAlias = str | tuple[str, str]
"""A text, or two that are read together."""
_ABLE: Final = {
    "": ("embed", "rerank", "forward", "trace"),
    OF_TEXTS: ("classify", "forward", "trace"),
    OF_TOKENS: ("classify_tokens", "forward", "trace"),
}
"""What a model can do by what its head scores."""
_ACTIVATIONS: Final[dict[str, Callable[[float], float]]] = {
    "torch.nn.modules.linear.Identity": lambda score: score,
    "torch.nn.modules.activation.Sigmoid": lambda score: 0.5 * (1 + math.tanh(0.5 * score)),
}
"""What sentence-transformers' cross-encoders make of the one score that they give."""


class TextModel(Model):
    """A loaded encoder of text; what it cannot do raises ``UnsupportedError``.

    Texts run in batches of few shapes (``ptir.runtime.batches``). One that has more tokens than
    ``limit`` is an error, unless ``truncate`` cuts it, with a warning.
    """

    def __post_init__(self) -> None:
        """Capture the network when it first runs, once for each shape of a batch."""
        self._embedded = jit(self.module.embedding)
        self._output = jit(self.module)
        self._filled = jit(self.module.fill)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What this model can do; a classifier of texts with one score ranks documents."""
        able = _ABLE[self.module.scored]
        if self.module.words is not None:
            able = (*able[:2], "fill", *able[2:])
        ranks = self.module.scored == OF_TEXTS and self.module.classes == 1
        return (*able[:1], "rerank", *able[1:]) if ranks else able

    @property
    def reads_texts(self) -> bool:
        """That it takes texts."""
        return True

    @property
    def said(self) -> SentenceModules:
        """What a sentence-transformers folder says of it, or what is meant where nothing does."""
        found: SentenceModules = self.module.sentence.said
        return found

    @property
    def says_pooling(self) -> bool:
        """Whether the checkpoint says how one vector is made of a text; else it is the mean."""
        return self.said.pooling is not None

    @property
    def limit(self) -> int:
        """The most tokens that a text may have, its marks included.

        As sentence-transformers has it: what the folder says of texts, else of the tokenizer.
        """
        said = self.said.max_length or self.checkpoint.tokenizer_config.get("model_max_length")
        if not isinstance(said, int) or isinstance(said, bool) or said < 1:
            return self.context
        return min(self.context, said)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What its classes are called."""
        return class_names(self.checkpoint.config, self.module.classes)

    def name_classes(self, path: Path) -> None:
        """Take the classes' names from a text file, one a line; raises ``UsageError``."""
        self.labels = read_labels(path, self.module.classes)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """What was compiled so far, the last one last."""
        return (*self._embedded.plans, *self._output.plans, *self._filled.plans)

    def embed(
        self, inputs: str | Sequence[str], *, prompt: str | None = None, truncate: bool = False
    ) -> Array:
        """A vector for each text, f32[N,E], pooled (and normalized) as the checkpoint says.

        ``prompt`` names one of the checkpoint's prompts, which then stands before every text
        instead of its default one. Raises ``UsageError``.
        """
        self.require("embed")
        front = self._prompt(prompt)
        rows = self.encode_texts(_texts(inputs), truncate=truncate, front=front)
        return self.embed_encoded(rows)

    def embed_encoded(self, rows: Sequence[EncodedText]) -> Array:
        """The same of texts as tokens, as ``encode_texts`` gives them."""
        return np.stack(self._run(self._embedded, rows))

    def classify(
        self,
        images: Text | Sequence[Text],
        *,
        top_k: int = 5,
        labels: Sequence[str] = (),
        truncate: bool = False,
    ) -> list[tuple[Label, ...]]:
        """The ``top_k`` likeliest classes of each text, or pair of texts, the likeliest first.

        Probabilities are over all classes, or of each class by itself where the model has one or
        its ``problem_type`` says that several may hold. Raises ``UsageError``.
        """
        self.require("classify")
        check_top_k(top_k)
        if labels:
            raise UsageError(
                f"model {self.name!r} has {self.module.classes} classes of its own; leave labels"
                " out"
            )
        given = [images] if isinstance(images, str | tuple) else [*images]
        rows = self.encode_texts(given, truncate=truncate)
        found = self._run(self._output, rows)
        alone = (
            self.module.classes == 1
            or self.checkpoint.config.get("problem_type") == "multi_label_classification"
        )
        return [likeliest(one, self.labels, int(top_k), alone=alone) for one in found]

    def classify_tokens(
        self, texts: str | Sequence[str], *, truncate: bool = False
    ) -> list[tuple[TokenLabel, ...]]:
        """The likeliest class of each token of each text, without the tokenizer's own marks."""
        self.require("classify_tokens")
        given = _texts(texts)
        rows = self.encode_texts(given, truncate=truncate)
        return [
            tuple(self._token_labels(text, row, scores))
            for text, row, scores in zip(given, rows, self._run(self._output, rows), strict=True)
        ]

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        truncate: bool = False,
    ) -> list[Ranked]:
        """``documents`` by how well they answer ``query``, the best first; of equal ones the first.

        A cross-encoder reads each together with the query. Any other embeds all, with the prompts
        ``query`` and ``document`` where it has them, and compares by the cosine. Raises
        ``UsageError``.
        """
        self.require("rerank")
        given = _texts(documents)
        if isinstance(documents, str):
            raise UsageError("documents must be a list of texts, not one text")
        if top_k is not None:
            check_top_k(top_k)
        if self.module.scored == OF_TEXTS:
            rows = self.encode_texts([(query, one) for one in given], truncate=truncate)
            activation = self._score_activation
            scores = [activation(float(one[0])) for one in self._run(self._output, rows)]
        else:
            scores = self._cosines(query, given, truncate)
        order = sorted(range(len(given)), key=lambda number: -scores[number])
        return [Ranked(n, scores[n], given[n]) for n in order[:top_k]]

    def fill(
        self, texts: str | Sequence[str], *, top: int = 5, truncate: bool = False
    ) -> list[tuple[tuple[Filled, ...], ...]]:
        """Of each text, for each masked word in it, the ``top`` likeliest tokens.

        A masked word is written as the model's tokenizer has it (``[MASK]``, ``<mask>``). Each is
        scored while all others of its text are masked too. Raises ``UsageError`` for a text without
        one, and for one of more than ``limit`` tokens unless ``truncate`` cuts it.
        """
        self.require("fill")
        if type(top) is not int or not 1 <= top <= self._vocabulary:
            raise UsageError(
                f"top {top!r}: must be an integer from 1 to the {self._vocabulary} tokens of the"
                " model"
            )
        given, tokenizer = _texts(texts), self.tokenizer
        if tokenizer is None:
            self._lacks_tokenizer()
        name = mask_token(tokenizer, self.checkpoint.tokenizer_config, self.name)
        rows = self.encode_texts(given, truncate=truncate)
        parts = masked(rows, given, tokenizer.id_of(name), name)
        found: list[list[tuple[Filled, ...]]] = [[] for _ in rows]
        for one, scores in zip(parts, self._fill(parts), strict=True):
            found[one.text] += [likeliest_tokens(tokenizer, row, top) for row in scores]
        return [tuple(words) for words in found]

    def _fill(self, parts: Sequence[Masked]) -> list[Array]:
        """Scores f32[M,V] of the masked words of each part."""
        found: list[Array] = [np.empty(0)] * len(parts)
        for batch in batches([len(one.row.ids) for one in parts], self.context):
            some = [parts[number] for number in batch.texts]
            inputs = (*self._padded([one.row for one in some], batch), places_of(some, batch.rows))
            with self.policies():
                output = self._filled(*map(self._tensor, inputs)).numpy()
            for place, (number, one) in enumerate(zip(batch.texts, some, strict=True)):
                found[number] = output[place, : len(one.places)]
                what = f"{self.name}: the scores for text {one.text}"
                check_numbers(found[number], what, self.checkpoint.source)
        return found

    def _cosines(self, query: str, documents: Sequence[str], truncate: bool) -> list[float]:
        known = self.said.prompts or {}
        asked, held = (name if name in known else None for name in ("query", "document"))
        first = self.embed(query, prompt=asked, truncate=truncate).astype(np.float64)
        others = self.embed(documents, prompt=held, truncate=truncate).astype(np.float64)
        lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(first)
        found: list[float] = ((others @ first[0]) / np.maximum(lengths, 1e-300)).tolist()
        return found

    @cached_property
    def _score_activation(self) -> Callable[[float], float]:
        config = self.checkpoint.config
        newer = config.get("sentence_transformers")
        said = newer.get("activation_fn") if isinstance(newer, dict) else None
        said = self.said.activation or said or config.get("sbert_ce_default_activation_function")
        name = "torch.nn.modules.activation.Sigmoid" if said is None else said
        if not (isinstance(name, str) and name in _ACTIVATIONS):
            raise CheckpointError(
                f"{self.checkpoint.path}: config.json: the activation of scores {short(name)} is"
                f" not implemented; {', '.join(_ACTIVATIONS)} are"
            )
        return _ACTIVATIONS[name]

    def encode_texts(
        self, texts: Sequence[Text], *, truncate: bool = False, front: str = ""
    ) -> list[EncodedText]:
        """Texts, or pairs of them, as tokens with the marks that the model was trained with.

        ``front`` stands before every text, or before the first one of a pair.
        Raises ``UsageError`` for an empty text, and for one of more than ``limit`` tokens unless
        ``truncate`` cuts it, which is told in a warning.
        """
        found = [self._encoded(n, text, truncate, front) for n, text in enumerate(texts)]
        if not found:
            raise UsageError("there is no text; give at least one")
        cut = [row.length for row in found if row.length > len(row.ids)]
        if cut:
            warnings.warn(
                f"{len(cut)} of {len(found)} texts had more than {self.limit} tokens (up to"
                f" {max(cut)}) and were cut",
                stacklevel=3,
            )
        return found

    def _encoded(self, number: int, text: Text, truncate: bool, front: str) -> EncodedText:
        parts = (text,) if isinstance(text, str) else text
        if not isinstance(parts, tuple) or not 1 <= len(parts) <= 2:
            raise UsageError(f"text {number} is {type(text).__name__}; give a text, or a pair")
        for part in parts:
            if not isinstance(part, str):
                raise UsageError(f"text {number} is {type(part).__name__}; give a text")
            if not part.strip():
                raise UsageError(f"text {number} is empty; leave it out")
        tokenizer = self.tokenizer
        if tokenizer is None:
            self._lacks_tokenizer()
        row = tokenizer.encode_text(
            front + parts[0], *parts[1:], limit=self.limit if truncate else None
        )
        self._check_ids(row.ids, self._vocabulary)
        if len(row.ids) > self.limit:
            said = "as its folder says" if self.limit < self.context else "its positions"
            raise UsageError(
                f"text {number} ({short(parts[-1])}) has {len(row.ids)} tokens, and model"
                f" {self.name!r} takes {self.limit} ({said}); shorten it, or have it cut"
                " (truncate=True, --truncate)"
            )
        kinds = int(self.checkpoint.config.get("type_vocab_size") or 0)
        if kinds and max(row.kinds) >= kinds:
            raise CheckpointError(
                f"{self.checkpoint.path}: the tokenizer tells {max(row.kinds) + 1} kinds of tokens"
                f" apart and the model {kinds}; they do not belong together: fetch both again"
            )
        return row

    def forward(self, tokens: Any) -> Array:
        """What the network gives for a text, or token ids in one row or [B,T].

        Scores f32[B,classes], or f32[B,T,classes] of tokens; of a model without a head the vectors
        of tokens f32[B,T,D]. Without the axis B for one row.
        """
        several, ids = self._token_rows(tokens)
        with self.policies():
            found: Array = self._output(*self._inputs(ids)).numpy()
        return found if several else found[0]

    def vectors(self, rows: Sequence[Sequence[int]]) -> list[Array]:
        """What ``forward`` gives for each of several rows of token ids, run in batches."""
        encoded = []
        for row in rows:
            self._token_rows(row)
            size = len(row)
            ids = tuple(map(int, row))
            encoded.append(EncodedText(ids, (0,) * size, ((0, 0),) * size, (False,) * size, size))
        return self._run(self._output, encoded)

    @property
    def network(self) -> Any:
        """What the model is for: scores of its head, or embeddings (``TextNetwork``)."""
        return self._output if self.module.classes else self._embedded

    def computed(self, tokens: Array) -> Array:
        """Of token ids i32[B,T] what ``network`` gives."""
        with self.policies():
            found: Array = self.network(*self._inputs(tokens)).numpy()
        return found

    def fill_computed(self, tokens: Array, places: Array) -> Array:
        """Scores f32[B,M,V] of all tokens at ``places`` i32[B,M] of token ids i32[B,T]."""
        with self.policies():
            found: Array = self._filled(*self._inputs(tokens), self._tensor(places)).numpy()
        return found

    def trace(self, tokens: Any) -> dict[str, Array]:
        """The output of every layer by name, and ``output``, what ``forward`` gives with B."""
        _, ids = self._token_rows(tokens)

        def traced(tokens: Tensor, kinds: Tensor, count: Tensor) -> dict[str, Tensor]:
            with recording() as outputs:
                output = self.module(tokens, kinds, count)
            return {**outputs, "output": output}

        with self.policies():
            found = jit(traced)(*self._inputs(ids))
            return {name: one.numpy() for name, one in found.items()}

    def _inputs(self, ids: Array) -> tuple[Tensor, Tensor, Tensor]:
        count = np.full(len(ids), ids.shape[1], np.int32)
        return self._tensor(ids), self._tensor(np.zeros_like(ids)), self._tensor(count)

    def _run(self, network: Any, rows: Sequence[EncodedText]) -> list[Array]:
        """What ``network`` gives for each row, in order; of tokens as many as it has."""
        found: list[Array] = [np.empty(0)] * len(rows)
        sizes = [len(row.ids) for row in rows]
        for batch in batches(sizes, self.context):
            inputs = self._padded([rows[number] for number in batch.texts], batch)
            with self.policies():
                output = network(*map(self._tensor, inputs)).numpy()
            for place, number in enumerate(batch.texts):
                one = output[place]
                found[number] = one[: sizes[number]] if self._per_token(network) else one
                what = f"{self.name}: the results for text {number}"
                check_numbers(found[number], what, self.checkpoint.source)
        return found

    def _padded(self, rows: Sequence[EncodedText], batch: Batch) -> tuple[Array, Array, Array]:
        """Rows in the shape of a batch: token ids, their kinds, and how many are real."""
        tokens = np.zeros((batch.rows, batch.length), np.int32)
        kinds, count = np.zeros_like(tokens), np.ones(batch.rows, np.int32)
        for place, row in enumerate(rows):
            size = count[place] = len(row.ids)
            tokens[place, :size] = row.ids
            kinds[place, :size] = row.kinds
        return tokens, kinds, count

    @property
    def _vocabulary(self) -> int:
        return int(self.checkpoint.config["vocab_size"])

    def _per_token(self, network: Any) -> bool:
        return network is self._output and self.module.scored != OF_TEXTS

    def _token_labels(self, text: str, row: EncodedText, scores: Array) -> Iterator[TokenLabel]:
        for number, (start, end) in enumerate(row.places):
            if row.added[number]:
                continue
            (best,) = likeliest(scores[number], self.labels, 1)
            yield TokenLabel(text[start:end], start, end, best.id, best.name, best.probability)

    def _prompt(self, name: str | None) -> str:
        known = self.said.prompts or {}
        name = self.said.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in known:
            raise UsageError(unknown_name("prompt", name, known))
        return known[name]


def _texts(given: Any) -> list[str]:
    """Several texts as a list; one alone is a list of one."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise UsageError(f"texts are {type(given).__name__}; give a text or a list of texts")
    return [*given]
