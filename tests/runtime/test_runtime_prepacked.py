"""What one process packed the next one maps: the same results, and nothing computed again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import ptir
from gguf_models import kind_of_matrices, write
from ptir.backend.disk_cache import DiskCache
from ptir.checkpoint import open_checkpoint
from ptir.runtime import Model, prepacked
from ptir.runtime.prepacked import PAGE, WEIGHTS, PrepackedWeights
from running import REF, llama_folder

TOKENS = list(range(0, 60, 3))
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, which takes small models too."""
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(prepacked, "LEAST", 1)
    monkeypatch.delenv("PTIR_REBUILD_KERNELS", raising=False)
    return tmp_path / "cache" / "weights"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A GGUF file whose matrices are in blocks."""
    checkpoint = open_checkpoint(llama_folder(tmp_path, num_hidden_layers=1))
    return write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(Kind.Q4_0)).path


def loaded(path: Path, **options: Any) -> tuple[Model, Array]:
    """A model, and logits for which its parameters were needed."""
    model = ptir.load_model(path, backend=REF, **options)
    return model, model.forward(TOKENS)


def bytes_read(model: Model) -> int:
    """What was read of the model's file, or computed from it."""
    return model.store.source.counters.bytes_read


def test_the_second_process_computes_nothing(file: Path, folder: Path) -> None:
    first, wanted = loaded(file)
    assert len(list(folder.iterdir())) == 1
    second, found = loaded(file)
    np.testing.assert_array_equal(found, wanted)
    assert bytes_read(first) > 1000
    assert bytes_read(second) == 0
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_weights_that_are_quantized_on_loading(tmp_path: Path, folder: Path, quant: str) -> None:
    path = llama_folder(tmp_path, num_hidden_layers=1)
    first, wanted = loaded(path, quant=quant)
    second, found = loaded(path, quant=quant)
    np.testing.assert_array_equal(found, wanted)
    assert bytes_read(second) == 0 < bytes_read(first)
    assert bytes_read(loaded(path, quant="int4" if quant == "int8" else "int8")[0]) > 0


def test_of_plain_floats_what_is_joined_is_kept(tmp_path: Path, folder: Path) -> None:
    """Queries, keys and values of a layer are one weight; all others are mapped as they are."""
    path = llama_folder(tmp_path, num_hidden_layers=1)
    first, wanted = loaded(path)
    second, found = loaded(path)
    np.testing.assert_array_equal(found, wanted)
    assert 0 < bytes_read(second) < bytes_read(first)
    (kept,) = folder.iterdir()
    joined = bytes_read(first) - bytes_read(second)
    assert joined <= kept.stat().st_size < joined + 4 * PAGE


def test_a_file_that_changed_is_another(file: Path) -> None:
    loaded(file)
    later = file.stat().st_mtime_ns + 1000
    os.utime(file, ns=(later, later))
    assert bytes_read(loaded(file)[0]) > 0


def test_another_state_of_the_code_packs_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(file)
    monkeypatch.setattr(prepacked, "code_states", lambda *made: ["changed"])
    assert bytes_read(loaded(file)[0]) > 0
    monkeypatch.setattr(prepacked, "code_states", lambda *made: None)
    assert prepacked.prepacked([file], REF) is None


def test_the_switch_that_rebuilds_looks_at_nothing(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(file)
    shutil.rmtree(folder)
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    assert bytes_read(loaded(file)[0]) > 0
    assert not folder.exists()


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def another_begin(content: bytes) -> bytes:
    return b"ptir-weights 0\n" + content[15:]


def garbage(content: bytes) -> bytes:
    return content[:-20] + b"\xff" * 12 + content[-8:]


def long_index(content: bytes) -> bytes:
    return content[:-8] + (1 << 60).to_bytes(8, "little")


def outside(content: bytes) -> bytes:
    """An entry that begins further behind; the index keeps its length."""
    digits = str(PAGE).encode()
    start = len(content) - 8 - int.from_bytes(content[-8:], "little")
    return content[:start] + content[start:].replace(b", " + digits, b", " + b"9" * len(digits))


def empty(content: bytes) -> bytes:
    return b""


DAMAGES = [cut, another_begin, garbage, long_index, outside, empty]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_a_warning(
    file: Path, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    _, wanted = loaded(file)
    (kept,) = folder.iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    with pytest.warns(UserWarning, match=rf"{kept.name} cannot be used .*packed again"):
        model, found = loaded(file)
    np.testing.assert_array_equal(found, wanted)
    assert bytes_read(model) > 0
    assert bytes_read(loaded(file)[0]) == 0  # it was written again


def test_a_folder_that_cannot_be_written_is_a_warning(file: Path, folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_bytes(b"a file is in its place")
    with pytest.warns(UserWarning, match=r"packed weights: .* cannot be written .*PTIR_CACHE_DIR"):
        loaded(file)


def test_nothing_is_written_on_a_disk_without_room(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(file.parent)._replace(free=100)
    monkeypatch.setattr(prepacked.shutil, "disk_usage", lambda path: full)
    loaded(file)
    assert not folder.exists() or not list(folder.iterdir())


def test_small_files_and_few_bytes_cost_nothing(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process that opens a small model would look at all files of the code first."""
    monkeypatch.setattr(prepacked, "LEAST", 1 << 30)
    monkeypatch.setattr(prepacked, "code_states", lambda *made: pytest.fail("looked at the code"))
    assert prepacked.prepacked([file], REF) is None
    kept = PrepackedWeights("m")
    kept.add("all", 100, lambda: np.zeros(100, np.uint8))
    kept.save()
    assert not folder.exists()


def test_what_was_used_least_recently_leaves(folder: Path) -> None:
    """Room is made when a file comes; what is too large for all of it is not written."""
    cache = DiskCache(WEIGHTS.name, WEIGHTS.format, limit=7 * PAGE)  # three files of two pages

    def save(name: str, pages: int = 1) -> None:
        kept = PrepackedWeights(name, cache)
        kept.add("all", pages * PAGE, lambda: np.zeros(pages * PAGE, np.uint8))
        kept.save()

    for number, name in enumerate("abc"):
        save(name)
        for path in folder.glob(f"{name}-*"):
            os.utime(path, ns=(number, number))
    assert PrepackedWeights("a", cache).find("all") is not None  # which is a use
    save("d")
    assert [path.name[0] for path in sorted(folder.iterdir())] == ["a", "c", "d"]
    save("huge", 8)
    assert not list(folder.glob("huge*"))


def test_what_is_above_the_limit_of_the_environment_is_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, written in (("4kB", 0), ("0", 0), ("1MiB", 1)):
        monkeypatch.setenv("PTIR_WEIGHTS_LIMIT", limit)
        kept = PrepackedWeights("m", least=0)
        kept.add("all", 2 * PAGE, lambda: np.zeros(2 * PAGE, np.uint8))
        kept.save()
        assert len(WEIGHTS.files()) == written


@pytest.mark.parametrize("dtype", ["u4", "i1", "f4", "f2", "?"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4)])
def test_arrays_come_back_as_they_were(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    kept = PrepackedWeights("m")
    kept.add("one", 1, lambda: array)
    kept.add("two", 1, lambda: np.arange(5000.0))
    kept.save()
    found = PrepackedWeights("m").find("one")
    assert found is not None
    assert found.dtype == array.dtype
    assert found.ctypes.data % PAGE == 0 or not array.size
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, array)
    assert PrepackedWeights("m").find("three") is None
