"""Programs compiled together: one build, each program its own results, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
import ptir_backend_ref
from ptir import events
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture.plan import PLANS
from ptir.codegen.artifact import binaries
from ptir.errors import DeviceError, UnsupportedError
from ptir.ir.program import Program
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir.types import spec
from random_programs import COLUMNS, ROWS, random_program
from running import llama_folder

REF = ptir_backend_ref.backend


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[events.KernelsBuilt]]:
    """What is built by a process that knows nothing and keeps nothing."""
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    binaries.forget()
    found: list[events.KernelsBuilt] = []
    remove = events.subscribe(
        lambda event: found.append(event) if isinstance(event, events.KernelsBuilt) else None
    )
    yield found
    remove()


def legal(program: Program, target: Target) -> Program:
    return legalize(program, PassContext(target.backend, target.device))


def loop(x: Any, y: Any) -> Any:
    start = F.full((), 0, "i32")
    count, found = F.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z * y + 1.0), start, x)
    return F.cond(found.sum() > 0.0, lambda z: z - y, lambda z: z + y, found), count


def looping() -> Program:
    type = spec("f32", ROWS, COLUMNS)
    return ptir.capture(loop, type, type)


def outputs(target: Target, executable: Any, arrays: list[Any]) -> list[Any]:
    backend, device = target.backend, target.device
    found = executable.run([backend.upload(array, device) for array in arrays])
    return [backend.download(handle, device) for handle in found]


def arrays_of(program: Program) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(type.shape).astype(np.float32) for type in program.inputs]


def test_programs_of_one_file_give_what_each_gives_alone(
    opencl: Target, builds: list[events.KernelsBuilt]
) -> None:
    programs = [legal(p, opencl) for p in (*map(random_program, range(3)), looping())]
    backend, device = opencl.backend, opencl.device
    backend.opened(device)  # which may build what is its own
    builds.clear()
    together = backend.compile_all([(p, Options()) for p in programs], device)
    assert len(builds) == 1
    alone = [backend.compile(p, device, Options()) for p in programs]
    assert len(builds) > len(programs)
    for program, one, other in zip(programs, together, alone, strict=True):
        arrays = arrays_of(program)
        for a, b in zip(outputs(opencl, one, arrays), outputs(opencl, other, arrays), strict=True):
            assert a.tobytes() == b.tobytes() and a.size


def test_all_that_weights_are_packed_by_is_one_file(
    opencl: Target, builds: list[events.KernelsBuilt], tmp_path: Path
) -> None:
    """Layers of several widths are packed by several programs, none of which is built alone."""
    opencl.backend.opened(opencl.device)
    builds.clear()
    PLANS.clear()
    model = ptir.load_model(llama_folder(tmp_path), backend=opencl)
    model.forward([1, 2, 3])
    (plan,) = PLANS._plans.values()
    assert len({derivation.block for derivation in plan.derived.values()}) > 2
    assert len(builds) == 2, "the model's program, and what packs its weights"
    model.forward([1] * 20)
    assert len(builds) == 3, "another program on the same weights"


def test_what_is_packed_is_not_built_again(
    opencl: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []
    build = opencl.backend.compile_all

    def counted(programs: Any, device: Any) -> Any:
        asked.append(len(programs))
        return build(programs, device)

    monkeypatch.setattr(opencl.backend, "compile_all", counted)
    model = ptir.load_model(llama_folder(tmp_path), backend=opencl)
    model.forward([1, 2, 3])
    handles = model.store._handles
    stored = {model.store.key(name) for name in model.store.source.names()}
    handles.pop(next(key for key in handles if key not in stored))
    model.forward([1] * 20)
    assert len(asked) == 2 and 0 < asked[1] < asked[0], asked


def test_each_program_keeps_its_options(opencl: Target) -> None:
    def pick(x: Any, i: Any) -> Any:
        return F.take(x, i, axis=0)

    program = legal(ptir.capture(pick, spec("f32", 3), spec("i32", 2)), opencl)
    backend, device = opencl.backend, opencl.device
    given = [np.float32([1, 2, 3]), np.int32([0, 7])]
    options = Options(), Options(check_indices=True)
    lax, strict = backend.compile_all([(program, o) for o in options], device)
    assert outputs(opencl, lax, given)[0][0] == 1
    with pytest.raises(DeviceError, match="7"):
        outputs(opencl, strict, given)


def test_what_is_unsupported_is_raised_and_the_backend_goes_on(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, device = opencl.backend, opencl.device
    program = legal(random_program(1), opencl)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "refusal", lambda query, device: f"no {query.op}")
        with pytest.raises(UnsupportedError, match="no "):
            backend.compile_all([(program, Options())], device)
    arrays = arrays_of(program)
    (again,) = backend.compile_all([(program, Options())], device)
    reference = Target(REF, REF.devices()[0])
    wanted = REF.compile(legal(random_program(1), reference), reference.device, Options())
    for a, b in zip(
        outputs(opencl, again, arrays), outputs(reference, wanted, arrays), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
