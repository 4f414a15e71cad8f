"""`ptir chat` and templates in `ptir run`: what goes where, commands, Ctrl-C, a real terminal."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from chat_models import PLAY, chat_folder
from ptir.cli.chat_answers import Rendered, cut_blocks
from ptir.cli.chat_messages import Messages
from ptir.runtime.chat import AnswerPiece
from ptir.text import Tokenizer
from running import Command, Script, command, model, script

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

import record_chat
from pseudo_terminal import Pseudo, screen

__all__ = ["command", "script"]

GREEDY = ("--temp", "0", "-n", "4")


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("play"))


def demo_tokenizer() -> Tokenizer:
    found = model().tokenizer
    assert found is not None
    return found


def test_every_line_of_stdin_is_answered_and_stdout_carries_answers_alone(
    play: Path, command: Command
) -> None:
    done = command("chat", play, *GREEDY, "--json", stdin=b"Who art thou?\n\nWhat news?\n")
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [set(one) for one in answers] == [{"text", "reasoning", "finish_reason", "stats"}] * 2
    assert answers[1]["stats"]["cached_tokens"] > answers[0]["stats"]["prompt_tokens"]
    plain = command("chat", play, *GREEDY, stdin=b"Who art thou?\n\nWhat news?")
    assert plain.code == 0
    assert plain.out == "".join(one["text"] + "\n" for one in answers)
    assert len([line for line in plain.err.splitlines() if "tok/s" in line]) == 2
    assert "prompt tokens in" in plain.err and ">>>" not in plain.err


def test_answers_are_sampled_as_the_model_asks(tmp_path: Path, command: Command) -> None:
    folder = chat_folder(tmp_path)
    options = ("chat", folder, "--json", "--seed", "1", "-n", "4")
    said = command(*options, "--temp", "1.5", "--top-k", "20", stdin=b"What news?")
    asking = folder / "generation_config.json"
    ends = json.loads(asking.read_text()) if asking.exists() else {}
    asking.write_text(json.dumps({**ends, "temperature": 1.5, "top_k": 20}))
    found = command(*options, stdin=b"What news?")
    assert json.loads(found.out)["text"] == json.loads(said.out)["text"]
    assert "sampling as the model asks: temperature 1.5, top_k 20; " in found.err
    assert "sampling" not in said.err


def test_messages_of_several_lines() -> None:
    text = 'a\\\nb\\\n\n"""\nc\n\nd"""\n  """e"""\n/x\n"""f\n'
    found = list(Messages(io.StringIO(text)))
    assert found == ["a\nb\n", "c\n\nd", "e", "/x", "f"]


def test_commands_change_the_talk(play: Path, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    lines = ["/system", "/system Speak.", "Who art thou?", "/regenerate", f"/save {file}"]
    lines += ["/clear", f"/LOAD {file}", "/reasoning", "What news?", f"/save {file}"]
    lines += ["/system none", "/exit", "x"]
    done = command("chat", play, *GREEDY, stdin="\n".join(lines).encode())
    said = json.loads(file.read_text(encoding="utf-8"))
    assert done.code == 0
    assert [one["role"] for one in said] == ["system", *["user", "assistant"] * 2]
    assert said[0]["content"] == "Speak."
    first, again, second = done.out.splitlines()
    assert (first, again) == (said[2]["content"],) * 2 and second == said[4]["content"]
    assert done.err.count("system message: (none)") == 2
    for note in ("wrote 3 messages", "forgot", "took 3 messages", "has no reasoning"):
        assert note in done.err


WRONG = [
    ("/regenrate", "unknown command 'regenrate' (nearest: regenerate"),
    ("/save", "give the name of a file, such as /save talk.json"),
    ("/save {damaged}", "is there already and holds no talk"),
    ("/save /nowhere/x", "/nowhere/x: cannot be written: No such file"),
    ("/load /nowhere/x", "'/nowhere/x': cannot be read: No such file"),
    ("/load {damaged}", "is not JSON"),
    ("/load {wrong}", "message 1 is {'x': 1}"),
    ("/regenerate", "there is no message to answer again"),
    ("/load /dev/zero", "/dev/zero: has more than 64 MiB; give a file that /save has written"),
    ("word " * 300, "the context of this conversation is 256: drop some of them (/clear)"),
]


def test_what_goes_wrong_is_said_and_the_talk_goes_on(
    play: Path, command: Command, tmp_path: Path
) -> None:
    lines = "\n".join([*(line for line, _ in WRONG), "Who art thou?"])
    for name, text in (("damaged", "{"), ("wrong", '[{"x": 1}]')):
        (tmp_path / name).write_text(text, encoding="utf-8")
        lines = lines.replace(f"{{{name}}}", str(tmp_path / name))
    done = command("chat", play, *GREEDY, stdin=lines.encode())
    assert done.code == 0 and done.out.count("\n") == 1
    *errors, last = done.err.splitlines()
    for error, (_, says) in zip(errors, WRONG, strict=True):
        assert error.startswith("error [PTIR-501]: ") and says in error
    assert "tok/s" in last


def test_a_path_is_a_message_and_no_command(play: Path, command: Command) -> None:
    done = command("chat", play, *GREEDY, stdin=b"/usr/bin is what?\n")
    assert done.out.strip() and "unknown command" not in done.err


def test_help_names_every_command(play: Path, command: Command) -> None:
    done = command("chat", play, stdin=b"/help\n/bye\n")
    assert done.out == ""
    for name in ("help", "save F", "load F", "regenerate", "clear", "system [TEXT]", "exit"):
        assert f"/{name}" in done.err


def test_an_interrupted_answer_is_kept_and_the_talk_goes_on(
    play: Path, command: Command, script: Script, tmp_path: Path
) -> None:
    tokens = demo_tokenizer().encode("I am here, and there.")
    script(tokens, interrupt_at=3)
    file = tmp_path / "talk.json"
    lines = f"Where?\n/save {file}\n".encode()
    done = command("chat", play, *GREEDY, stdin=lines)
    text = demo_tokenizer().decode(tokens[:3])
    assert (done.code, done.out) == (0, text + "\n")
    assert "interrupted" in done.err
    assert json.loads(file.read_text(encoding="utf-8"))[-1]["content"] == text


def test_reasoning_is_folded(play: Path, command: Command, script: Script) -> None:
    script([*demo_tokenizer().encode("<think>\nHm, hm.\n</think>\n\nAy."), 0])
    done = command("chat", play, "--temp", 0, "-n", 200, stdin=b"Well?\n/reasoning\n")
    assert done.out == "Ay.\n"
    assert "reasoned in 7 characters; /reasoning shows them" in done.err
    assert "\nHm, hm.\n" in done.err


def test_options_of_templates(tmp_path: Path, command: Command) -> None:
    lists = [{"name": "default", "template": PLAY}, {"name": "loud", "template": "{{ how }}!"}]
    folder = chat_folder(tmp_path, lists)
    given = ("chat", folder, "--chat-template", "loud", "--json", *GREEDY)
    done = command(*given, "--chat-template-kwargs", '{"how": "ROMEO"}', stdin=b"Who?\n")
    assert done.value["stats"]["prompt_tokens"] == len(demo_tokenizer().encode("ROMEO!"))
    for wrong in ("{", "[1]"):
        bad = command(*given, "--chat-template-kwargs", wrong)
        assert bad.code == 2 and "--chat-template-kwargs" in bad.err
    assert "unknown chat template 'lout'" in command("chat", folder, "--chat-template", "lout").err


def test_a_model_without_a_template_is_refused_before_anything_is_asked(command: Command) -> None:
    done = command("chat", "demo", stdin=b"Who?\n")
    assert (done.code, done.out) == (2, "")
    assert "model 'demo' has no chat template" in " ".join(done.err.split())


def test_run_applies_a_template_and_says_so(play: Path, command: Command) -> None:
    asked = command("run", play, "Who art thou?", *GREEDY)
    written = "CITIZEN:\nWho art thou?\n\nROMEO:\n"
    assert asked.out == command("run", "demo", written, *GREEDY).out
    assert asked.err.count("is a message in the model's chat template; --raw") == 1
    with_system = command("run", play, "Who art thou?", "--system", "Speak.", *GREEDY, "--json")
    assert with_system.value["prompt_ids"] == demo_tokenizer().encode("Speak.\n\n" + written)
    raw = command("run", play, "Who art thou?", "--raw", *GREEDY)
    assert raw.out == command("run", "demo", "Who art thou?", *GREEDY).out
    assert "template" not in raw.err
    ids = command("run", play, "--tokens", "41,456", *GREEDY, "--json")
    assert ids.value["prompt_ids"] == [41, 456]


@pytest.mark.parametrize("given", [("demo", "x"), ("demo", "x", "--raw"), ("demo", "--tokens", 1)])
def test_a_system_message_without_a_template_is_refused(command: Command, given: Any) -> None:
    done = command("run", *given, "--system", "Speak.")
    assert done.code == 2 and "--system: a model's chat template writes it" in done.err


def test_blocks_of_markdown_are_cut_where_none_is_open() -> None:
    assert cut_blocks("a\n\nb") == ("a\n\n", "b")
    assert cut_blocks("a\nb") == ("", "a\nb")
    assert cut_blocks("a\n\n```\nx\n\ny") == ("a\n\n", "```\nx\n\ny")
    assert cut_blocks("```\nx\n\ny\n```\n\nz") == ("```\nx\n\ny\n```\n\n", "z")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_markdown_is_rendered_and_everything_is_there_in_the_end() -> None:
    out = Terminal()
    shown = Rendered(out)
    text = "# Title\n\nSome *words*, `code`.\nA verse.\n\n1. one\n2. two\n"
    shown.pieces(AnswerPiece(one, "", 1) for one in text)
    shown._print(shown._block)
    plain = out.getvalue()
    assert "*words*" not in plain.rpartition("\x1b[?25h")[2] and "\x1b[" in plain
    for word in ("Title", "words", "code", "one", "two"):
        assert word in plain
    lines = screen(plain.replace("\n", "\r\n")).split("\n")
    assert "A verse." in [line.strip() for line in lines]
    assert lines[[line.strip() for line in lines].index("A verse.") + 1] == ""


def test_a_short_session_on_a_real_terminal(play: Path, tmp_path: Path) -> None:
    talk = Pseudo(
        "chat", str(play), "--backend", "ref", "--temp", "0", "-n", "100",
        PTIR_CACHE_DIR=str(tmp_path),
    )  # fmt: skip
    try:
        assert f"talking with {play}; /help lists" in " ".join(talk.until(">>> ").split())
        talk.write("Who \x7f art thou?\\\n")
        talk.until("... ")
        talk.write("Speak!\n")
        talk.until("I")
        talk.write("\x03")  # Ctrl-C, which the terminal makes a signal of
        first = talk.until("]")
        assert "; interrupted]" in first and "tok/s" in first
        talk.until(">>> ")
        talk.write("z")
        talk.until("z")
        talk.until_edited()
        talk.write("\x03")  # at the prompt it drops what is written
        talk.until("Ctrl-D or /exit ends the talk")
        talk.until(">>> ")
        talk.write(f"/save {tmp_path / 'talk.json'}\n")
        talk.until("wrote 2 messages")
        talk.until(">>> ")
        talk.write("\x04")
        assert talk.process.wait(timeout=60) == 0
    finally:
        talk.close()
    said = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert said[0]["content"] == "Who art thou?\nSpeak!"
    assert said[1]["content"].startswith("I")


def test_the_recording_on_the_front_page_is_what_a_run_shows() -> None:
    written = record_chat.on_page(record_chat.PAGE.read_text(encoding="utf-8"))
    found = record_chat.recorded("--backend", "ref")
    assert record_chat.tokens_of(found) == record_chat.tokens_of(written), (
        "stale: run `python scripts/record_chat.py --write`"
    )


def test_a_second_interrupt_is_not_waited_for() -> None:
    from ptir.cli.chat_talk import interruptible

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible() as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked.is_set()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
