"""The pool of threads: races, idling, forks, interrupts and the end of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gate
import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.creation import tensor
from ptir_backend_c import compiler
from ptir_backend_c.prelude import SOURCES

pytestmark = pytest.mark.turns(2)

HERE = Path(__file__).parent
MISSING = ("cannot find", "unsupported option", "unrecognized", "not supported")


def compiled(folder: Path, *options: str) -> Path:
    """The race of ``pool_race.c``; skips where the compiler lacks the sanitizer."""
    made = folder / "race"
    sources = [str(SOURCES / "pool.c"), str(HERE / "pool_race.c")]
    command = [*compiler.find().command, "-g", "-O1", *options, *sources, "-o", str(made)]
    done = subprocess.run([*command, "-pthread"], capture_output=True, text=True)
    if done.returncode and any(word in done.stderr for word in MISSING):
        pytest.skip(f"this compiler has no {' '.join(options)}")
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.slice(1)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_callers_and_threads_do_not_race(c: Target, tmp_path: Path, sanitizer: str) -> None:
    runs = 400 if gate.seed() is None else 40
    race = compiled(tmp_path, f"-fsanitize={sanitizer}", f"-DRUNS={runs}")
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run([race], capture_output=True, text=True, env=environment, timeout=300)
    if "unexpected memory mapping" in done.stderr:  # the sanitizer, on kernels with more entropy
        pytest.skip(done.stderr.strip().splitlines()[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "every item was run once and in order"


def work(target: Target) -> Callable[[], Any]:
    """A program of several launches that every thread of the pool takes part in."""
    x = tensor(np.linspace(-1, 1, 256 * 1024, dtype=np.float32).reshape(256, 1024), backend=target)
    step = ptir.jit(lambda x: F.softmax(F.softmax(F.tanh(x)) * 3.0))
    return lambda: step(x).numpy()


def own_threads() -> set[Path]:
    return set(Path("/proc/self/task").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_sleep_when_nothing_runs(c: Target) -> None:
    from ptir_backend_c.device import CDevice

    before = own_threads()
    device = CDevice(compiler.find(), 3)
    built = device.build("void nothing(void *const *buffers, const int item) {}")
    device.launch(device.kernel(built, "nothing", 0), 9)
    started = own_threads() - before
    assert len(started) == 2

    def states() -> set[str]:
        return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in started}

    deadline = time.monotonic() + 30
    while states() != {"S"} and time.monotonic() < deadline:
        os.sched_yield()
    assert states() == {"S"}
    spent = [(task / "schedstat").read_text().split()[0] for task in started]
    for _ in range(2000):  # long enough for a thread that looks for work to be seen
        os.sched_yield()
    assert [(task / "schedstat").read_text().split()[0] for task in started] == spent


def test_more_threads_than_processors_give_the_same(c: Target) -> None:
    from ptir_backend_c.device import CDevice

    wanted = work(c)()
    opened = c.backend.opened(c.device)
    crowded = CDevice(compiler.find(), 7)
    before, opened.device._runtime = opened.device._runtime, crowded._runtime
    try:
        for _ in range(20):
            np.testing.assert_array_equal(work(c)(), wanted)
    finally:
        opened.device._runtime = before


def test_an_interrupt_leaves_the_device_as_it_was(c: Target) -> None:
    run = work(c)
    wanted = run()
    main = threading.main_thread().ident
    assert main is not None
    began, ended = threading.Event(), threading.Event()

    def interrupt() -> None:
        began.wait()
        signal.pthread_kill(main, signal.SIGINT)
        while not ended.wait(2):  # Python drops an interrupt that arrives in a __del__
            signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    # A process that a shell started in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            while True:
                run()
                began.set()
        ended.set()
        sender.join()
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(run(), wanted)


def script(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program of its own that has ``run`` and ``wanted``."""
    start = f"""
import os, sys, threading, warnings
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
import numpy as np
from ptir.backend import registry
from test_c_pool import work
run = work(registry.get("c"))
wanted = run()
"""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + text],
        env={**os.environ, "PTIR_C_THREADS": "3", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_child_process_starts_threads_of_its_own(c: Target) -> None:
    done = script("""
child = os.fork()
if child == 0:
    same = np.array_equal(run(), wanted)
    tasks = len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 3
    os._exit(0 if same and tasks == 3 else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert np.array_equal(run(), wanted)
print("child", status)
""")
    assert done.stdout == "child 0\n", done.stderr


def test_a_process_may_fork_while_another_thread_runs(c: Target) -> None:
    done = script("""
device = registry.get("c").backend.opened(registry.get("c").device).device
built = device.build("void count(void *const *buffers, const int item) {"
                     " long *all = buffers[0]; for (int i = 0; i < 999; ++i) all[item] += 1; }")
def launcher():
    counts = np.zeros(40, np.int64)
    kernel = device.kernel(built, "count", 1)
    device.bind(kernel, 0, device.borrow(counts))
    def launch():
        counts[:] = 0
        device.launch(kernel, 40)
        return bool((counts == 999).all())
    return launch
other, mine = launcher(), launcher()
stop = threading.Event()
def busy():
    while not stop.is_set():
        assert other()
thread = threading.Thread(target=busy)
thread.start()
codes = set()
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if mine() else 1)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert mine()
stop.set()
thread.join()
print(codes)
""")
    assert done.stdout == "{0}\n", done.stderr


def test_a_process_ends_while_a_thread_is_running(c: Target) -> None:
    done = script("""
began = threading.Event()
def busy():
    while True:
        run()
        began.set()
threading.Thread(target=busy, daemon=True).start()
began.wait()
print("end")
""")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_one_thread_gives_the_same_as_three(c: Target) -> None:
    one, three = (
        script("print(wanted.sum(), hash(wanted.tobytes()))", PYTHONHASHSEED="1", PTIR_C_THREADS=n)
        for n in ("1", "3")
    )
    assert one.stdout and one.stdout == three.stdout, one.stderr + three.stderr
