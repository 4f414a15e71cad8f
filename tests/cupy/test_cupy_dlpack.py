"""Tensors of another library on the GPU: used where they lie, in order, and kept until done."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy
from foreign import Foreign

import ptir
from ptir.backend.contract import Target
from ptir.capture import lazy
from ptir.capture.creation import tensor
from ptir.errors import TypeRuleError, UnsupportedError
from ptir_backend_cupy import dlpack

X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture(autouse=True)
def default(cupy: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments go to the pretended GPU."""
    monkeypatch.delenv("PTIR_BACKEND", raising=False)
    monkeypatch.setattr(lazy, "_best", lambda: cupy)


def opened(target: Target) -> Any:
    return target.backend.opened(target.device).device  # type: ignore[attr-defined]


@pytest.mark.parametrize("versions", [True, False])
def test_an_argument_is_used_where_it_lies_once_its_library_is_done(
    cupy: Target, fake: FakeCupy, versions: bool
) -> None:
    given = Foreign(fake, X, versions=versions)
    addresses: list[int] = []
    device = opened(cupy)
    binder = device.binder

    def noting(arguments: Any) -> Any:
        bind = binder(arguments)
        return lambda memory: (addresses.append(memory.address), bind(memory))

    device.binder = noting
    uploads = fake.calls.count("memcpyAsync")
    result = ptir.jit(lambda x: x * 2.0 + 1.0)(given)
    assert given.address in addresses
    assert fake.calls.count("memcpyAsync") == uploads, "nothing is copied"
    assert given.streams == [device.stream.ptr]
    assert given.stream.done == 0, "the host waits for nobody"
    np.testing.assert_array_equal(result.numpy(), X * 2 + 1)


def test_it_is_kept_until_the_queue_is_done(cupy: Target, fake: FakeCupy) -> None:
    given = Foreign(fake, X)
    freed = given.freed
    result = ptir.jit(lambda x: x * 2.0)(given)
    del given
    gc.collect()
    assert not freed, "kernels that read it are queued"
    np.testing.assert_array_equal(result.numpy(), X * 2)
    gc.collect()
    assert freed, "nothing keeps it for longer"


def test_a_tensor_made_of_it_is_a_copy_on_the_device(cupy: Target, fake: FakeCupy) -> None:
    given = Foreign(fake, X)
    own, cast = tensor(given), tensor(given, "i32")
    assert "synchronize" not in fake.calls
    given.queue(lambda: given.base.fill(0))  # later, by its owner
    opened(cupy).finish()
    given.stream.synchronize()
    np.testing.assert_array_equal(own.numpy(), X)
    assert cast.numpy().tolist() == X.astype(int).tolist()


def test_it_is_never_written_to(fake: FakeCupy) -> None:
    given = Foreign(fake, X)

    def step(x: Any) -> Any:
        return x + 1.0

    np.testing.assert_array_equal(ptir.jit(step, donate=("x",))(given).numpy(), X + 1)
    np.testing.assert_array_equal(given.array, X)


@pytest.mark.parametrize(
    "kind", ["bool", "i8", "i32", "i64", "u8", "u32", "f16", "f32", "f64", "bf16", "f8e4m3fn"]
)
def test_every_element_type_comes_in(fake: FakeCupy, kind: str) -> None:
    array = (np.arange(12) % 2).astype(ptir.types.dtype(kind).numpy)
    codes = {"bf16": (dlpack.BFLOAT, np.uint16), "f8e4m3fn": (dlpack.E4M3FN, np.uint8)}
    code, seen = codes.get(kind, (None, array.dtype))
    found = tensor(Foreign(fake, array.view(seen), code=code))
    assert str(found.dtype) == kind
    np.testing.assert_array_equal(found.numpy(), array)


def test_what_begins_between_16_bytes_is_copied_on_the_device(cupy: Target, fake: FakeCupy) -> None:
    given = Foreign(fake, X, skip=4)
    result = ptir.jit(lambda x: x * 2.0)(given)
    assert "synchronize" not in fake.calls
    np.testing.assert_array_equal(result.numpy(), X * 2)


def test_nothing_comes_in_as_nothing(fake: FakeCupy) -> None:
    found = ptir.jit(lambda x: x * 2.0)(Foreign(fake, np.zeros((3, 0), np.float32)))
    assert found.numpy().shape == (3, 0)


def test_axes_of_one_element_have_any_stride(fake: FakeCupy) -> None:
    given = Foreign(fake, X[:1])
    given.array = np.lib.stride_tricks.as_strided(given.array, (1, 6), (4, 4))
    np.testing.assert_array_equal(tensor(given).numpy(), X[:1])


def test_what_is_not_dense_is_refused_with_what_to_do(fake: FakeCupy) -> None:
    given = Foreign(fake, X)
    given.array = given.array.T
    with pytest.raises(
        UnsupportedError, match=r"shape \(6, 4\) with strides \(1, 6\) is not dense"
    ):
        tensor(given)
    with pytest.raises(UnsupportedError, match="type code 5 with 32 bits and 1 lanes; cast it"):
        tensor(Foreign(fake, X, code=5))
    with pytest.raises(UnsupportedError, match=r"version 2\.\d; 1\.x and older are read: export"):
        tensor(Foreign(fake, X, major=2))


def test_a_capsule_that_somebody_has_taken_is_refused_with_what_to_do(
    fake: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    capsule = X.copy().__dlpack__()

    class Taken:
        def __dlpack__(self, **options: Any) -> Any:
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    np.from_dlpack(Taken())
    monkeypatch.setattr(Foreign, "__dlpack__", Taken.__dlpack__)
    said = r"called b'used_dltensor' was used already; call `__dlpack__` again for another"
    with pytest.raises(UnsupportedError, match=said):
        tensor(Foreign(fake, X))


def test_what_its_library_does_not_lend_is_refused_with_what_to_do(
    fake: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Foreign, **given: Any) -> None:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

    monkeypatch.setattr(Foreign, "__dlpack__", refuses)
    with pytest.raises(UnsupportedError, match=r"Foreign is not lent: Can't .*`detach\(\)`"):
        tensor(Foreign(fake, X))


def test_a_tensor_of_another_device_is_not_taken_for_one_of_this(
    cupy: Target, fake: FakeCupy
) -> None:
    there = Target(cupy.backend, cupy.backend.devices()[1])
    given = Foreign(fake, X, number=1)
    np.testing.assert_array_equal(tensor(given, backend=there).numpy(), X)
    with pytest.raises(
        TypeRuleError, match=r"tensor\(Foreign\): NumPy cannot read it where it lies"
    ):
        tensor(given, backend=cupy)
    assert cupy.backend.adopt(X, cupy.device) is None
