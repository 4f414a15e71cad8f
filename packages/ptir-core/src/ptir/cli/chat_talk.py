"""The loop of ``ptir chat``: messages are answered, lines that begin with a slash are commands."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ptir.cli import show
from ptir.errors import PtirError, UsageError, unknown_name
from ptir.files import read_path
from ptir.text.chat_template import checked

if TYPE_CHECKING:
    from ptir.cli.chat_answers import Shown
    from ptir.runtime.chat import Answer, AnswerPiece, AnswerRun, Conversation
    from ptir.text.chat_template import Message

COMMAND: Final = re.compile(r"/([a-zA-Z?]+)(?:\s+(.*))?", re.DOTALL)
"""A command and what it is given; a path (/usr/bin) is none."""
LARGEST: Final = 1 << 26
"""Bytes of a file of messages."""
NOTHING: Final = ('""', "''", "none")
"""What takes a system message away."""


class ChatCommand(NamedTuple):
    """A line that begins with a slash: what is written behind it, what it does, and how."""

    given: str
    help: str
    run: Callable[[Talk, str], None]


class Talk:
    """A conversation with somebody who writes messages."""

    def __init__(self, conversation: Conversation, shown: Shown) -> None:
        self.conversation: Final = conversation
        self._shown = shown
        self._last: Answer | None = None
        self._over = False

    def hold(self, messages: Iterable[str]) -> None:
        """Answer ``messages`` to their end, or to /exit; what is wrong with one is a note."""
        for message in messages:
            try:
                self._take(message)
            except PtirError as error:
                show.note(f"error [{error.code}]: {error}")
            if self._over:
                return

    def _take(self, message: str) -> None:
        found = COMMAND.fullmatch(message.strip())
        if found is None:
            self._answer(lambda: self.conversation.stream(message))
            return
        name, given = found[1].lower(), found[2]
        name = ALIASES.get(name, name)
        if name not in COMMANDS:
            raise UsageError(f"{unknown_name('command', name, COMMANDS)}: /help says what they do")
        COMMANDS[name].run(self, (given or "").strip())

    def _answer(self, started: Callable[[], AnswerRun]) -> None:
        with interruptible() as interrupted:
            run = started()
            try:
                self._shown.pieces(_until(run, interrupted))
            except KeyboardInterrupt:  # a second one, while the first waits for a step
                interrupted.set()
            self._last = run.answer
        self._shown.answer(self._last)
        show.note(_cost(self._last))

    def help(self, given: str) -> None:
        """List the commands."""
        for name, row in COMMANDS.items():
            show.note(f"{f'/{name} {row.given}':16}{row.help}")
        show.note('a line that ends with \\ goes on in the next; """ begins and ends several')

    def save(self, given: str) -> None:
        """Write the messages to a file, as JSON."""
        path = _path(given, "/save talk.json")
        if path.exists():
            _spare(path)
        text = json.dumps(self.conversation.messages, indent=2, ensure_ascii=False)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
        show.note(f"wrote {len(self.conversation.messages)} messages to {path}")

    def load(self, given: str) -> None:
        """Take the messages of a file instead of those there are."""
        path = _path(given, "/load talk.json")
        found = _messages(path)
        self.conversation.clear()
        self.conversation.messages = found
        show.note(f"took {len(found)} messages from {path} instead of those there were")

    def regenerate(self, given: str) -> None:
        """Answer the last message again."""
        self._answer(self.conversation.regenerate)

    def clear(self, given: str) -> None:
        """Forget the messages, but not the system's."""
        self.conversation.clear()
        show.note("forgot what was said")

    def system(self, given: str) -> None:
        """Say what the system message is, or change it."""
        if given:
            self.conversation.system = None if given.lower() in NOTHING else given
        show.note(f"system message: {self.conversation.system or '(none)'}")

    def reasoning(self, given: str) -> None:
        """Show what the last answer's reasoning was."""
        found = self._last.reasoning if self._last else ""
        show.note(found or "the last answer has no reasoning")

    def exit(self, given: str) -> None:
        """End the talk."""
        self._over = True


COMMANDS: Final = {
    "help": ChatCommand("", "this list", Talk.help),
    "save": ChatCommand("F", "write the messages to a file", Talk.save),
    "load": ChatCommand("F", "go on from the messages of a file", Talk.load),
    "regenerate": ChatCommand("", "answer the last message again", Talk.regenerate),
    "clear": ChatCommand("", "forget the messages, but not the system's", Talk.clear),
    "system": ChatCommand("[TEXT]", "show the system message, or change it (none)", Talk.system),
    "reasoning": ChatCommand("", "show the reasoning of the last answer", Talk.reasoning),
    "exit": ChatCommand("", "end the talk; so does Ctrl-D", Talk.exit),
}
ALIASES: Final = {"bye": "exit", "quit": "exit", "?": "help"}
"""What people write who come from elsewhere."""


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Inside, the first Ctrl-C sets the event that it yields, and another one interrupts.

    An answer ends between two steps then, so that what was computed is kept.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _until(run: AnswerRun, interrupted: threading.Event) -> Iterator[AnswerPiece]:
    for piece in run:
        yield piece
        if interrupted.is_set():
            return


def _path(given: str, example: str) -> Path:
    if not given:
        raise UsageError(f"give the name of a file, such as {example}")
    return Path(given).expanduser()


def _messages(path: Path) -> list[Message]:
    """The messages in a file that is one list of them, or an object with such a list."""
    text = read_path(path, LARGEST, UsageError, "give a file that /save has written")
    try:
        found: Any = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON: {error}") from error
    messages: Any = found.get("messages") if isinstance(found, dict) else found
    return list(checked(messages))


def _spare(path: Path) -> None:
    """Refuse a file that is there and holds something else than a talk."""
    try:
        _messages(path)
    except UsageError as error:
        raise UsageError(
            f"{path}: is there already and holds no talk, which would take its place ({error}):"
            " give another name"
        ) from error


def _cost(answer: Answer) -> str:
    """What an answer cost, and why it ended where that was not by itself."""
    stats = answer.stats
    # the first token comes with the prompt
    speed = max(stats.generated_tokens - 1, 0) / max(stats.generated_seconds, 1e-9)
    ended = {
        "stop": "",
        "interrupted": "; interrupted",
        "length": "; the room was used up (-n, -c)",
    }
    return (
        f"[{stats.generated_tokens} tokens, {speed:.1f} tok/s;"
        f" {stats.prompt_tokens - stats.cached_tokens} of {stats.prompt_tokens} prompt tokens in"
        f" {stats.prompt_seconds:.2f} s{ended[answer.finish_reason]}]"
    )
