"""What the command does when the shell gave it no stdin, stdout or stderr, or a full one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = shlex.quote(sys.executable)
OPS = f"{PYTHON} -c 'from ptir.cli.main import main; raise SystemExit(main([{{}}]))' "
FULL = Path("/dev/full")


def shell(text: str) -> tuple[int, str, str]:
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_a_closed_stdout_is_said() -> None:
    code, _, err = shell(OPS.format('"ops"') + ">&-")
    assert (code, err) == (
        2,
        "error [PTIR-501]: stdout is closed, so there is nowhere to write the result\n",
    )


def test_a_closed_stderr_loses_only_the_notes() -> None:
    assert shell(OPS.format('"ops", "neg"') + "2>&-")[:2] == shell(OPS.format('"ops", "neg"'))[:2]
    assert shell(OPS.format('"ops", "nosuch"') + "2>&-") == (2, "", "")


def test_a_closed_stdin_is_an_empty_one() -> None:
    code, out, _ = shell(OPS.format('"ops", "neg"') + "<&-")
    assert code == 0 and out.startswith("neg(")


@pytest.mark.skipif(not FULL.is_char_device(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line() -> None:
    code, _, err = shell(OPS.format('"ops"') + f"> {FULL}")
    assert (code, err) == (1, "error: the output: No space left on device\n")


def test_a_reader_that_leaves_ends_it_without_a_message() -> None:
    _, _, err = shell(OPS.format('"ops"') + "| head -c 1")
    assert err == ""
