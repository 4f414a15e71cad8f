"""What a step or a download gives wrongly is said with the backend, the op and both types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ptir
from ptir.backend import raised
from ptir.backend.contract import Target
from ptir.cli.main import main
from ptir.errors import DeviceError, UnsupportedError
from ptir.types import spec
from tiny_backend import ONE, TinyBackend
from tiny_distributions import TINY, Site, site

__all__ = ["site"]

X = np.arange(6, dtype=np.float32).reshape(2, 3)
PROGRAM = ptir.capture(lambda x: x.transpose() + 1, spec("f32", 2, 3))


def fails(step):
    raise ValueError("no luck\nat all")


def refuses(step):
    raise UnsupportedError("not this one")


def gives(change, op="transpose"):
    """A target whose step gives ``change`` of the right results for one op."""

    class Changed(TinyBackend):
        def step(self, instruction, operands, device):
            right = super().step(instruction, operands, device)
            return change(right) if instruction.op == op else right

    return Target(Changed(), ONE[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda results: results[0], "gave ndarray; it must return a tuple of 1 handle"),
        (list, "gave list; it must return a tuple of 1 handle"),
        (lambda results: None, "gave NoneType; it must return a tuple of 1 handle"),
        (lambda results: results * 2, "gave a tuple of 2; it must return a tuple of 1 handle"),
    ],
)
def test_a_step_that_breaks_its_rules_is_an_error_naming_the_op(change, words) -> None:
    with pytest.raises(DeviceError) as raised:
        ptir.run_program(PROGRAM, {"x": X}, gives(change))
    assert str(raised.value) == f"tiny: step of transpose -> f32[3,2] {words}"


def test_the_cause_is_kept_and_errors_of_ptir_pass_as_they_are() -> None:
    with pytest.raises(DeviceError) as raised:
        ptir.run_program(PROGRAM, {"x": X}, gives(fails))
    assert type(raised.value.__cause__) is ValueError
    line = fails.__code__.co_firstlineno + 1
    assert str(raised.value) == (
        f"ValueError: no luck at test_checked.py:{line} in fails (tiny: step of transpose ->"
        " f32[3,2]); backends raise only errors of ptir.errors"
    )
    with pytest.raises(UnsupportedError, match=r"^not this one$"):
        ptir.run_program(PROGRAM, {"x": X}, gives(refuses))


def test_several_results_must_be_as_many_handles() -> None:
    program = ptir.capture(lambda x: ptir.functional.top_k(x, 1), spec("f32", 2, 3))
    words = (
        r"top_k -> f32\[2,1\], i32\[2,1\] gave a tuple of 1; it must return a tuple of 2 handles"
    )
    with pytest.raises(DeviceError, match=words):
        ptir.run_program(program, {"x": X}, gives(lambda results: results[:1], "top_k"))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda r: (r[0].astype("f8"),), "an array of float64[3, 2]"),
        (lambda r: (r[0].astype(">f4"),), "an array of >f4[3, 2]"),
        (lambda r: (r[0].reshape(2, 3),), "an array of float32[2, 3]"),
    ],
)
def test_an_output_of_another_type_is_refused_where_it_is_read(change, found) -> None:
    words = (
        f"tiny: download of f32[3,2] gave {found}; it must be float32[3, 2]."
        " `ptir-conformance run --backend tiny` names the op that is wrong"
    )
    target = gives(change, "add")
    with pytest.raises(DeviceError) as raised:
        ptir.run_program(PROGRAM, {"x": X}, target)
    assert str(raised.value) == words
    with pytest.raises(DeviceError) as raised:
        (ptir.tensor(X, backend=target).transpose() + 1).numpy()
    assert str(raised.value) == words


def test_a_download_must_be_an_array() -> None:
    class Lists(TinyBackend):
        def download(self, handle, device):
            return handle.tolist()

    with pytest.raises(DeviceError, match=r"gave list, not a NumPy array; it must be float32\[3"):
        ptir.run_program(PROGRAM, {"x": X}, Target(Lists(), ONE[0]))


def test_a_flag_of_control_flow_must_be_bool() -> None:
    program = ptir.capture(
        lambda x: ptir.functional.while_loop(lambda y: y[0, 0] < 3, lambda y: y + 1, x),
        spec("f32", 2, 3),
    )
    target = gives(lambda r: (r[0].astype("i4"),), "compare")
    with pytest.raises(DeviceError, match=r"download of bool\[\] gave an array of int32\[\]"):
        ptir.run_program(program, {"x": X}, target)


def test_debug_shows_the_traceback_of_the_step(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = TINY.replace("reference = OPS", "x = {}['take']; reference = OPS")
    assert source != TINY
    site.backend("bad", source)
    command = ["run", "demo", "-p", "x", "-n", "1", "--temp", "0", "--backend", "bad"]
    assert main(command) == 1
    said = capfd.readouterr().err
    assert "error [PTIR-203]: KeyError: 'take' at tiny_bad.py:" in said
    assert " in step (bad: step of " in said and "Traceback" not in said
    monkeypatch.setenv("PTIR_DEBUG", "1")
    assert main(command) == 1
    assert "x = {}['take']" in capfd.readouterr().err


def test_lines_of_core_are_nobody_elses_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "linked"
    link.symlink_to(raised.CORE.parent)
    code = (
        "from ptir.backend import raised; from ptir.types import parse_type\n"
        "try: parse_type('no type')\n"
        "except Exception as error: print(repr(raised.place(raised.frames(error))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(link)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "types.py" not in done.stdout, done.stdout
