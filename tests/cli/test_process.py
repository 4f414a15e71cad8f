"""How a command's process ends: with all that a program may rely on, in Python's order."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ptir.cli import main
from ptir.cli.process import UNFLUSHED

ENDING = """
import atexit, sys, threading, time, weakref
from ptir.cli.process import end_process

class Held:
    def __del__(self):
        print("taken apart")

held = Held()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.stderr.write("told")
print("said")
{end}({code})
"""


def ended(end: str, code: int) -> subprocess.CompletedProcess[str]:
    program = ENDING.format(end=end, code=code)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize("code", [0, 3])
def test_threads_callbacks_and_streams_are_waited_for_but_objects_are_not(code: int) -> None:
    found, python = ended("end_process", code), ended("sys.exit", code)
    assert found.returncode == python.returncode == code
    assert found.stdout == "said\nthread\nat exit\n"
    assert python.stdout == found.stdout + "taken apart\n"
    assert found.stderr == python.stderr == "told"


def test_output_that_cannot_be_written_is_a_failure() -> None:
    program = "from ptir.cli.process import end_process\nprint('lost')\nend_process(0)"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, env=buffered)
    assert done.returncode == UNFLUSHED


def test_the_script_ends_with_the_commands_code(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = list[int]()
    monkeypatch.setattr(main, "end_process", codes.append)
    monkeypatch.setattr(sys, "argv", ["ptir", "--version"])
    main.script()
    monkeypatch.setattr(sys, "argv", ["ptir", "no-such-command"])
    main.script()
    assert codes == [0, 2]
