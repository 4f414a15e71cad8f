"""The compiler: which one is found, what is said without one, its errors, and what is cached."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.codegen.artifact import binaries
from ptir.errors import BackendUnavailable, CompileError
from ptir.types import spec
from ptir_backend_c import CBackend, compiler
from ptir_backend_c.compiler import Compiler
from ptir_backend_c.device import CDevice
from ptir_backend_c.units import LEAST, parts

pytestmark = pytest.mark.turns(2)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of programs, and nothing else to be found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler, "_zig", lambda: None)
    monkeypatch.setattr(compiler, "target", lambda: "flags avx2 avx512f")
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


def program(folder: Path, name: str, text: str = "exit 0") -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(stat.S_IRWXU)
    return file


def test_the_systems_compilers_are_asked_for_in_order(tools: Path) -> None:
    for name in ("clang", "gcc", "cc"):
        program(tools, name)
        assert compiler.find().command == (str(tools / name),)


def test_cc_may_name_a_compiler_with_options(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tools, "cc")
    program(tools, "tuned")
    monkeypatch.setenv("CC", "tuned -pipe '-DA=B C'")
    found = compiler.find()
    assert found.command == ("tuned", "-pipe", "-DA=B C")
    assert found.file == tools / "tuned"


def test_a_processor_named_in_cc_is_the_one_that_is_compiled_for(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tools, "cc")
    native = [o for o in compiler.find().options if o.endswith("=native")]
    assert len(native) == 1
    monkeypatch.setenv("CC", "cc -march=x86-64-v3")
    assert not [o for o in compiler.find().options if o.endswith("=native")]
    assert "-march=x86-64-v3" in compiler.find().identity


def test_where_vectors_are_narrow_clang_comes_first(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "target", lambda: "flags avx2")
    gcc = program(tools, "gcc")
    (tools / "cc").symlink_to(gcc)
    assert compiler.find().file == gcc
    backend = CBackend()
    (finding,) = backend.findings()
    assert "apt-get install clang" in finding.fix and "ptir-backend-c[zig]" in finding.fix
    zig = program(tools, "zig")
    monkeypatch.setattr(compiler, "_zig", lambda: zig)
    assert compiler.find().command == (str(zig), "cc")
    clang = program(tools, "clang")
    assert compiler.find().file == clang
    (finding,) = CBackend().findings()
    assert finding.fix == ""


def test_zig_is_what_is_left(tools: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zig = program(tmp_path, "zig")
    monkeypatch.setattr(compiler, "_zig", lambda: zig)
    assert compiler.find().command == (str(zig), "cc")
    program(tools, "gcc")
    assert compiler.find().command == (str(tools / "gcc"),)


def test_without_a_compiler_one_line_says_what_to_install(tools: Path) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        CBackend().devices()
    message = str(caught.value)
    assert "\n" not in message
    assert "no C compiler (cc, gcc, clang) is found" in message
    assert "apt-get install gcc libc6-dev" in message
    assert "pip install 'ptir-backend-c[zig]'" in message


def test_a_compiler_that_is_not_there_is_named(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "mycc -O9")
    with pytest.raises(BackendUnavailable, match="CC=mycc -O9: 'mycc' is not found"):
        CBackend().devices()


def test_a_system_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(BackendUnavailable, match="not yet on win32; use ptir-backend-opencl"):
        CBackend().devices()


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import sys\nfrom ptir.cli.main import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_commands_work_without_a_compiler_and_name_the_fix(c: Target) -> None:
    nothing = {"CC": "no-such-compiler"}
    listed = command("backends", "--json", **nothing)
    (row,) = (row for row in json.loads(listed.stdout) if row["name"] == "c")
    assert row["status"] == "unavailable" and "no-such-compiler" in row["reason"]
    asked = command("run", "demo", "-p", "X", "-n", "1", "--backend", "c", **nothing)
    assert asked.returncode == 3
    assert "PTIR-402" in asked.stderr and "name a C compiler" in asked.stderr
    other = command("run", "demo", "-p", "X", "-n", "1", "--backend", "ref", **nothing)
    assert other.returncode == 0, other.stderr


def test_doctor_names_the_compiler_and_the_threads(c: Target) -> None:
    found = command("doctor", "--json", "--threads", "1")
    assert found.returncode == 0, found.stderr
    checks = {check["what"]: check for check in json.loads(found.stdout)}
    assert "ran the probe program" in checks["backend c:0"]["found"]
    assert "threads 1" in checks["backend c:0 capabilities"]["found"]
    assert str(compiler.find().file) in checks["backend c: compiler"]["found"]


def test_doctor_says_what_a_broken_compiler_needs(c: Target, tmp_path: Path) -> None:
    broken = program(tmp_path, "cc", "echo 'ld: cannot find crti.o: error' >&2; exit 1")
    found = command("doctor", CC=str(broken), PTIR_CACHE_DIR=str(tmp_path))
    (fix,) = (line for line in found.stdout.splitlines() if line.startswith("fix backend c:0"))
    assert "apt-get install libc6-dev" in fix


def test_an_error_names_the_kernel_and_the_reason(c: Target) -> None:
    text = "void good(void *const *buffers, const int item) {}\n"
    text += "void bad(void *const *buffers, const int item) {\n  int x = ;\n}\n"
    with pytest.raises(CompileError, match=r"c: \S+ failed in kernel 'bad': expected expression"):
        compiler.find().shared_object(text)


def test_a_compiler_that_does_not_start_is_an_error_of_ours(tmp_path: Path) -> None:
    gone = Compiler((str(tmp_path / "gone"),), tmp_path / "gone")
    with pytest.raises(CompileError, match="gone does not start: No such file"):
        gone.shared_object("")


# --- what is cached ---


@pytest.fixture
def cache(c: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    c.backend.opened(c.device)  # its pool is built and kept elsewhere
    folder = tmp_path / "cache"
    monkeypatch.setenv("PTIR_CACHE_DIR", str(folder))
    return folder / "kernels"


def run(target: Target) -> None:
    """A program of its own, as a process that built nothing yet runs it."""
    binaries.forget()
    made = ptir.capture(lambda x: F.exp(x) * 2.0, spec("f32", 40))
    executable = target.backend.compile(made, target.device, Options())
    x = np.linspace(-1, 1, 40, dtype=np.float32)
    (result,) = executable.run([target.backend.upload(x, target.device)])
    np.testing.assert_allclose(
        target.backend.download(result, target.device), np.exp(x) * 2, rtol=1e-6
    )


def test_what_was_built_is_loaded_without_the_compiler(
    c: Target, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(c)
    assert len(list(cache.iterdir())) == 1

    def started(self: Compiler, source: str, *options: str) -> bytes:
        raise AssertionError("the compiler was started")

    monkeypatch.setattr(Compiler, "shared_object", started)
    run(c)


def test_what_does_not_load_is_built_again(c: Target, cache: Path) -> None:
    run(c)
    (file,) = cache.iterdir()
    binaries.BINARIES.write(file.stem, b"not a shared object")
    with pytest.warns(UserWarning, match="refused by the driver"):
        run(c)
    assert b"not a shared object" not in file.read_bytes()


def test_another_processor_or_compiler_is_another_file(
    c: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = compiler.find()
    copied = Path(shutil.copy(one.file, tmp_path / "other"))
    assert Compiler((str(copied),), copied).identity != one.identity
    before = one.identity
    monkeypatch.setattr(compiler, "target", lambda: "another processor")
    assert one.identity != before


def test_a_process_killed_while_it_builds_leaves_nothing_half_written(
    c: Target, cache: Path, tmp_path: Path
) -> None:
    real = compiler.find().file
    kills = program(tmp_path, "kills", f'"{real}" "$@"; kill -9 $PPID')
    done = command("run", "demo", "-p", "X", "-n", "1", "--backend", "c", CC=str(kills))
    assert done.returncode == -9
    assert not cache.exists() or not list(cache.iterdir())
    # the kernel is there, its entry is being written
    code = (
        "import os, signal\nimport ptir.backend.folders as folders\n"
        "def killed(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        "folders.os.replace = killed\n"
        "from ptir.cli.main import main\nmain(['run', 'demo', '-p', 'X', '-n', '1',"
        " '--backend', 'c'])"
    )
    died = subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=300)
    assert died.returncode == -9
    assert [file.suffix for file in cache.iterdir()] == [".part"]
    run(c)
    assert sum(file.suffix == ".kernels" for file in cache.iterdir()) == 1


def test_a_temporary_folder_that_forbids_programs_is_named(
    c: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ptir_backend_c import device

    class Refused:
        def __init__(self, path: str) -> None:
            raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(device.ctypes, "CDLL", Refused)
    with pytest.raises(CompileError, match=r"failed to map segment.*set TMPDIR to a folder"):
        c.backend.opened(c.device).device.build("int x;")


def test_nothing_stays_in_the_temporary_folder(
    c: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    device = c.backend.opened(c.device).device
    assert isinstance(device, CDevice)
    built: Any = device.build("void f(void *const *buffers, const int item) {}")
    assert device.load("", built.binary) is not None
    with pytest.raises(CompileError):
        device.build("not C")
    assert list(tmp_path.iterdir()) == []


# --- in parts ---

KERNEL = "void {name}(void *const *buffers, const int item) {{\n  {body}\n}}\n\n"


def body(name: str, place: int) -> str:
    """A kernel of some length that stores its number."""
    return KERNEL.format(name=name, body=f"((int *)buffers[0])[{place}] = {place};" + " " * LEAST)


def test_long_sources_are_compiled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts define what the source does, and one call of the compiler makes each."""
    import ctypes

    names = [f"number_{n}" for n in range(5)]
    source = "typedef int whole;\n\n" + "".join(body(name, n) for n, name in enumerate(names))
    monkeypatch.setenv("PTIR_C_THREADS", "3")
    calls: list[list[str]] = []
    run = Compiler._run

    def counted(self: Compiler, command: list[str], folder: str | None) -> Any:
        calls.append(command)
        return run(self, command, folder)

    monkeypatch.setattr(Compiler, "_run", counted)
    made = CDevice(compiler.find(), 1).build(source)
    compiled = [call for call in calls if "-c" in call]
    assert len(compiled) == 3
    memory = (ctypes.c_int * 5)(*[-1] * 5)
    buffers = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    for name in names:
        getattr(made.library, name)(buffers, 0)
    assert list(memory) == [0, 1, 2, 3, 4]
    monkeypatch.setenv("PTIR_C_THREADS", "1")
    calls.clear()
    compiler.find().shared_object(source)
    assert len(calls) == 1 and "-c" not in calls[0]


def test_kernels_that_call_each_other_stay_together() -> None:
    one, other = body("one", 0), body("other", 1)
    helper = "static int twice(int x) { return 2 * x; }\n\n"
    caller = KERNEL.format(name="caller", body="one(buffers, item);" + " " * LEAST)
    uses = KERNEL.format(name="uses", body="twice(item);" + " " * LEAST)
    found = parts("typedef int whole;\n\n" + one + other + helper + caller + uses, 4)
    assert len(found) == 2 and all(part.startswith("typedef int whole;\n\n") for part in found)
    (first,) = (part for part in found if "void one(" in part)
    assert "void caller(" in first
    (second,) = (part for part in found if "static int twice" in part)
    assert "void uses(" in second and "void other(" in second and second is not first


def test_an_error_in_a_part_names_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTIR_C_THREADS", "2")
    bad = KERNEL.format(name="bad", body="int x = ;" + " " * LEAST)
    source = "".join(body(f"good_{n}", n) for n in range(3)) + bad
    assert len(parts(source, 2)) == 2
    with pytest.raises(CompileError, match="failed in kernel 'bad': expected expression"):
        compiler.find().shared_object(source)
