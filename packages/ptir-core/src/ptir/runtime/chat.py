"""Talking with a model: messages become a prompt, and what was computed is kept between answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ptir.errors import UsageError, short
from ptir.notebook import Card, Displayed
from ptir.runtime.generate import GenerationRun
from ptir.runtime.generation import FinishReason, Generation, GenerationStats
from ptir.runtime.session import capacity_for
from ptir.runtime.speculation import reads_head
from ptir.text.chat_template import REASONING, Message, checked
from ptir.text.reasoning import AnswerPart, AnswerSplitter

if TYPE_CHECKING:
    from ptir.runtime.handle import Model
    from ptir.runtime.session_state import SessionState

CONTEXT: Final = 4096
"""Positions of a conversation where nothing else is said: what they take is memory."""


class AnswerPiece(NamedTuple):
    """One step of an answer: its token, and the text and the reasoning that became certain."""

    text: str
    reasoning: str
    token_id: int


@dataclass(frozen=True)
class Answer(Displayed):
    """A model's answer: its ``text``, the ``reasoning`` before it, and what was generated."""

    text: str
    reasoning: str
    result: Generation

    @property
    def message(self) -> dict[str, str]:
        """The answer as a message of a history."""
        said = {"role": "assistant", "content": self.text}
        return said | ({REASONING[0]: self.reasoning} if self.reasoning else {})

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ended."""
        return self.result.finish_reason

    @property
    def stats(self) -> GenerationStats:
        """What it cost."""
        return self.result.stats

    def __repr__(self) -> str:
        return f"Answer({short(self.text)}, {self.finish_reason})"

    def card(self) -> Card:
        """What a notebook shows: the reasoning, the text, why it ended and what it cost."""
        facts = [("finish reason", self.finish_reason), *self.stats.facts()]
        thought = [("reasoning", self.reasoning)] if self.reasoning else []
        return Card("Answer", [*thought, *facts], text=self.text)


class ChatPrompt(NamedTuple):
    """Messages as a template writes them, their tokens, and the tokens that end an answer."""

    text: str
    token_ids: list[int]
    ends: tuple[int, ...]


def chat_prompt(
    model: Model,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template: str | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> ChatPrompt:
    """What ``messages`` are to ``model``, up to where its answer begins.

    Special tokens that they spell (``<|im_start|>``) are text, so that none can begin a message.
    Raises ``UsageError`` and ``CheckpointError`` as ``ChatTemplates.render`` does.
    """
    templates = model.text.templates
    chosen = templates.chosen(template, tools=tools is not None)
    model.encode("")  # a model without a tokenizer says so
    tokenizer = model.tokenizer
    assert tokenizer is not None
    text, quoted = templates.render_quoting(
        messages, tokenizer.control, tools=tools, template=template, options=template_options
    )
    ids = model.encode(tokenizer.encode(text, add_special_tokens=False, quoted=quoted))
    return ChatPrompt(text, ids, model.text.answer_ends(chosen))


class AnswerRun:
    """Iterate to run; afterwards, or when it is cut short, ``answer`` holds what was said.

    ``done`` is told the answer.
    """

    def __init__(
        self, model: Model, run: GenerationRun, prompt: str, done: Callable[[Answer], None]
    ) -> None:
        self._model, self._run, self._done = model, run, done
        self._splitter = AnswerSplitter(prompt)
        self._parts: list[AnswerPart] = []
        self._length = 0  # of the text that pieces held
        self._answer: Answer | None = None
        self._pieces = self._split()

    def __iter__(self) -> Iterator[AnswerPiece]:
        return self

    def __next__(self) -> AnswerPiece:
        return next(self._pieces)

    @property
    def answer(self) -> Answer:
        """What was said; asking before the end ends the run."""
        if self._answer is None:
            self._finish()
        assert self._answer is not None
        return self._answer

    def finished(self) -> Answer:
        """The whole answer: what is left of it is run."""
        for _ in self:
            pass
        return self.answer

    def _split(self) -> Iterator[AnswerPiece]:
        tokenizer = self._model.tokenizer
        assert tokenizer is not None
        last = 0
        for piece in self._run:
            last = piece.token_id
            special = tokenizer.token(last) if last in tokenizer.special_ids else ""
            self._length += len(piece.text)
            part = self._splitter.push(piece.text, special)
            self._parts.append(part)
            yield AnswerPiece(*part, last)
            if self._answer is not None:
                return
        rest = self._finish()
        if rest != AnswerPart("", ""):
            yield AnswerPiece(*rest, last)

    def _finish(self) -> AnswerPart:
        """End the run; returns what was held back."""
        found = self._run.results[0]
        ends = self._splitter.push(found.text[self._length :]), self._splitter.flush()
        rest = AnswerPart("".join(e.text for e in ends), "".join(e.reasoning for e in ends))
        parts = [*self._parts, rest]
        reasoning = "".join(part.reasoning for part in parts).strip()
        self._answer = Answer("".join(part.text for part in parts), reasoning, found)
        self._done(self._answer)
        return rest


def _role(message: Any) -> Any:
    """Of a message, which may be anything until it is checked."""
    return message.get("role") if isinstance(message, Mapping) else None


class Conversation:
    """A talk with a model: ``messages`` so far, and what the model computed of them.

    ``system`` is the first message, ``messages`` what was said before, ``tools`` JSON schemas of
    functions, ``template`` a template's name and ``template_options`` what it takes besides (such
    as ``enable_thinking``). A prompt and its answer have at most ``context`` tokens (4096 without a
    number, or the model's if those are fewer). Other options are those of ``Model.run``; each
    answer has a seed of its own, counted from ``seed``. Raises ``UsageError`` where the model has
    no chat template.
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        messages: Sequence[Message] = (),
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        context: int | None = None,
        max_tokens: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if context is not None and not (
            isinstance(context, Integral) and 1 <= context <= model.context
        ):
            raise UsageError(
                f"context {context!r}: must be an integer from 1 to the model's {model.context}"
            )
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
            raise UsageError(
                f"messages are {type(messages).__name__}; give a list of objects, each with a"
                " 'role' and a 'content'"
            )
        model.text.templates.chosen(template, tools=tools is not None)
        self._model = model
        self._template = {
            "tools": tools,
            "template": template,
            "template_options": template_options,
        }
        self._context = context or min(CONTEXT, model.context)
        self._max_tokens, self._seed, self._options = max_tokens, seed, options
        self._state: SessionState | None = None
        self._run: object = None  # the one whose answer becomes a message
        self.messages: list[Message] = [*messages]
        if system is not None:
            self.system = system

    @property
    def system(self) -> str | None:
        """The system message, if there is one; setting it changes the first message."""
        first = self.messages[0] if self.messages else {}
        return str(first.get("content") or "") if _role(first) == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages if self.system is None else self.messages[1:]
        self.messages = [*([{"role": "system", "content": text}] if text else []), *rest]

    def ask(self, content: Any, **options: Any) -> Answer:
        """The answer to one more message of the user; both are messages afterwards."""
        return self.stream(content, **options).finished()

    def stream(self, content: Any, **options: Any) -> AnswerRun:
        """The same to be iterated; a run that is cut short keeps what was said until then.

        Nothing of one is kept that another has overtaken, or that ``clear`` came before.
        """
        asked = {"role": "user", "content": content}
        return self._started([*self.messages, asked], options)

    def regenerate(self, **options: Any) -> AnswerRun:
        """Another answer to the last message of the user; the one there was is dropped.

        Raises ``UsageError`` where nothing was asked yet.
        """
        last = max((n for n, m in enumerate(self.messages) if _role(m) == "user"), default=-1)
        if last < 0:
            raise UsageError("there is no message to answer again; ask something first")
        return self._started(self.messages[: last + 1], options)

    def run(self, **options: Any) -> AnswerRun:
        """The answer to the messages as they are."""
        return self._started(self.messages, options)

    def clear(self) -> None:
        """Forget all messages but the system's."""
        system, self._run = self.system, None
        self.messages = []
        self.system = system

    def _started(self, messages: Sequence[Message], options: Mapping[str, Any]) -> AnswerRun:
        checked(messages)
        before = [*self.messages]
        prompt = chat_prompt(self._model, messages, **self._template)  # type: ignore[arg-type]
        room = self._room(prompt)
        wanted = {"max_tokens": self._max_tokens, "seed": self._seed, **self._options, **options}
        most = wanted.pop("max_tokens")
        heads = reads_head(wanted.get("speculate"), self._model)
        run = self._model.run(
            [prompt.token_ids],
            max_tokens=room if most is None else min(most, room),
            state=self._held(len(prompt.token_ids), heads),
            ends=prompt.ends,
            **wanted,
        )
        self._seed = (self._seed + 1) % 2**64
        self._run = run

        def done(answer: Answer) -> None:
            if self._run is run:
                said = answer.text or answer.reasoning
                self.messages = [*messages, answer.message] if said else before

        return AnswerRun(self._model, run, prompt.text, done)

    def _room(self, prompt: ChatPrompt) -> int:
        """How many tokens an answer may have."""
        room = self._context - len(prompt.token_ids)
        if room < 1:
            longer = f" or take a longer context (the model's is {self._model.context})"
            raise UsageError(
                f"the messages are {len(prompt.token_ids)} tokens and the context of this"
                f" conversation is {self._context}: drop some of them (/clear)"
                + (longer if self._context < self._model.context else "")
            )
        return room

    def _held(self, needed: int, heads: bool) -> SessionState:
        """The state there is, or a new one where the model's head is wanted and it has none."""
        if self._state is None or (heads and not self._state.heads):
            capacity = capacity_for(needed, self._model.context)
            self._state = self._model.new_state(1, capacity, heads=heads)
        return self._state
