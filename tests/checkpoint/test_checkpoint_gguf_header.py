"""GGUF headers: what ``gguf`` writes is read as it reads it; what is wrong is refused by name."""

from __future__ import annotations

import os
import random
import resource
import time
from pathlib import Path

import gguf as witness
import numpy as np
import pytest

from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    U8,
    U16,
    U32,
    U64,
    entry,
    gguf,
    items,
    mutated,
    pair,
    text,
    u32,
    u64,
    whole,
)
from ptir.checkpoint.gguf import READABLE, TYPES, GgufFile, Strings
from ptir.checkpoint.gguf.header import VERSIONS
from ptir.checkpoint.gguf.metadata import shortest
from ptir.checkpoint.gguf.tensor_types import REMOVED
from ptir.errors import CheckpointError
from ptir.weights.gguf import GGUF


def opened(path: Path, content: bytes) -> GgufFile:
    path.write_bytes(content)
    return GgufFile(path)


def test_what_the_witness_writes_is_read_as_it_was_written(tmp_path: Path) -> None:
    writer = witness.GGUFWriter(tmp_path / "m.gguf", "llama")
    values = {"u8": 200, "i8": -3, "u16": 1 << 15, "i16": -300, "u32": 1 << 31, "i32": -70000}
    values |= {"u64": 1 << 63, "i64": -(1 << 62), "bool": True, "f32": 0.25, "f64": 1e300}
    for name, add in (
        *(("u8", writer.add_uint8), ("i8", writer.add_int8), ("u16", writer.add_uint16)),
        *(("i16", writer.add_int16), ("u32", writer.add_uint32), ("i32", writer.add_int32)),
        *(("u64", writer.add_uint64), ("i64", writer.add_int64), ("bool", writer.add_bool)),
        *(("f32", writer.add_float32), ("f64", writer.add_float64)),
    ):
        add(name, values[name])
    writer.add_string("s", "é\0b")
    writer.add_array("words", ["", "a", "日本"])
    writer.add_array("scores", [0.5, -1.0])
    writer.add_array("flags", [True, False])
    writer.add_array("ids", [1, -2, 3])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    writer.add_tensor("x", x)
    writer.add_tensor("h", x.astype(np.float16))
    blocks = np.arange(68, dtype=np.uint8).reshape(2, 34)
    writer.add_tensor("q", blocks, raw_dtype=witness.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufFile(tmp_path / "m.gguf")
    assert found.version == 3
    assert {name: found.metadata[name] for name in values} == values
    assert {name: type(found.metadata[name]) for name in values} == {
        name: type(value) for name, value in values.items()
    }
    assert found.metadata["s"] == "é\0b"
    words = found.metadata["words"]
    assert isinstance(words, Strings)
    assert (list(words), words[-1], words[:2]) == (["", "a", "日本"], "日本", ["", "a"])
    assert found.metadata["scores"].tolist() == [0.5, -1.0]
    assert found.metadata["flags"].tolist() == [True, False]
    assert found.metadata["ids"].tolist() == [1, -2, 3]
    read = {one.name: one for one in witness.GGUFReader(tmp_path / "m.gguf").tensors}
    for name, tensor in found.tensors.items():
        assert found.raw(name).tobytes() == read[name].data.tobytes()
        assert tensor.type.name == read[name].tensor_type.name
        assert list(tensor.shape) == read[name].shape.tolist()[::-1]
    assert found.raw("q").tobytes() == blocks.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        found.raw("q")[0] = 1


def test_types_have_the_witness_s_ids_and_sizes() -> None:
    theirs = {
        int(kind): (kind.name, *size) for kind, size in witness.constants.GGML_QUANT_SIZES.items()
    }
    ours = {number: (one.name, one.block, one.nbytes) for number, one in TYPES.items()}
    assert {number: ours[number] for number in theirs} == theirs
    assert not REMOVED.keys() & TYPES.keys()
    assert {one.name for one in GGUF} < set(READABLE)


def test_both_versions_are_read(tmp_path: Path) -> None:
    for version in VERSIONS:
        assert opened(tmp_path / "v", gguf(version=u32(version))).version == version


DATA = bytes(512)
HUGE = 10**12
DAMAGED = {
    "empty": (b"", "is no GGUF file but an empty file"),
    "cut": (b"GGUF" + u32(3), "8 bytes; a GGUF file has at least 24; .*fetch it again"),
    "version 1": (gguf(version=u32(1)), "version 1, whose lengths have 32 bits; versions 2 and 3"),
    "version 4": (gguf(version=u32(4)), "version 4; versions 2 and 3, little-endian, are read"),
    "version 0": (gguf(version=u32(0)), "version 0; versions 2 and 3"),
    "big-endian": (
        gguf(version=b"\0\0\0\3"),
        "version 3 in big-endian order; .*little-endian file",
    ),
    "tensors": (gguf(counts=(HUGE, 0)), f"number of tensors: {HUGE}: at most 65536 may be"),
    "few tensors": (gguf(counts=(9, 0)), "number of tensors: 9 of at least 24 bytes do not fit"),
    "keys": (gguf(counts=(0, 1 << 63)), "number of keys: 9223372036854775808: at most 65536"),
    "few keys": (gguf(counts=(0, 9)), "number of keys: 9 of at least 13 bytes do not fit"),
    "no key": (gguf([pair("", U8, 1)]), "key 0: is empty; a key must have a name"),
    "key twice": (gguf([pair("k", U8, 1)] * 2), "key 'k': stands there twice"),
    "long key": (
        gguf([text(b"k", 65536) + bytes(70000)]),
        "length of key 0: 65536 bytes; at most 65535 may be",
    ),
    "key is no text": (gguf([pair(b"\xff", U8, 1)]), r"key 0: b'\\xff' is not UTF-8"),
    "huge string": (
        gguf([text("k") + u32(STRING) + text("abc", HUGE)]),
        f"length of key 'k': {HUGE} bytes; at most 67108864 may be, and .* are left",
    ),
    "string beyond the end": (
        gguf([text("k") + u32(STRING) + text("abc", 1000)]),
        "length of key 'k': 1000 bytes;.* left; the file is cut",
    ),
    "type of a value": (
        gguf([text("k") + u32(13) + u64(0)]),
        "key 'k': type: 13 is no type of val",
    ),
    "bool": (gguf([pair("k", BOOL, b"\2")]), "key 'k': bool byte 2; it must be 0 or 1"),
    "bools": (
        gguf([pair("k", ARRAY, items(BOOL, (1, 3)))]),
        "key 'k': bool byte 3; bytes must be 0 or 1",
    ),
    "nested": (
        gguf([pair("k", ARRAY, items(ARRAY, ()) + u32(U8) + u64(0))]),
        "key 'k': an array of arrays; elements must be numbers or strings",
    ),
    "array of what": (
        gguf([pair("k", ARRAY, u32(99) + u64(0))]),
        "key 'k': an array of type 99; elements must be",
    ),
    "huge array": (
        gguf([pair("k", ARRAY, items(F32, (1,), HUGE))]),
        f"key 'k': number of f32: {HUGE}: at most 1073741824",
    ),
    "array beyond the end": (
        gguf([pair("k", ARRAY, items(F32, (1,), 1000))]),
        "key 'k': number of f32: 1000 of at least 4 bytes do not fit the .* left",
    ),
    "huge array of strings": (
        gguf([pair("k", ARRAY, items(STRING, ("a",), HUGE))]),
        f"key 'k': number of strings: {HUGE}: at most 4194304",
    ),
    "strings beyond the end": (
        gguf([pair("k", ARRAY, items(STRING, ("x" * 60,), 8))]),
        "key 'k': string [1-4] of 8 ends behind the",
    ),
    "huge string in an array": (
        gguf([pair("k", ARRAY, items(STRING, ("a", "b"))[:-9] + text("b", HUGE))]),
        "key 'k': string 1 of 2 ends behind the",
    ),
    "longest string in an array": (
        gguf([pair("k", ARRAY, u32(STRING) + u64(2) + u64((1 << 64) - 1) + u64(0))]),
        "key 'k': string 0 of 2 ends behind the",
    ),
    "alignment's type": (
        gguf([pair("general.alignment", U64, 32)]),
        "key 'general.alignment': 32 is of type 10; it must be u32",
    ),
    "alignment's array": (
        gguf([pair("general.alignment", ARRAY, items(U32, (32,)))]),
        "key 'general.alignment': .* is of type 9; it must be u32",
    ),
    "alignment 0": (
        gguf([pair("general.alignment", U32, 0)]),
        "key 'general.alignment': 0 is not a power of two",
    ),
    "alignment 48": (
        gguf([pair("general.alignment", U32, 48)]),
        "key 'general.alignment': 48 is not a power of two",
    ),
    "alignment beyond the end": (
        gguf([pair("general.alignment", U32, 1 << 31)], [entry("t")], DATA),
        r"tensor 't': F32\[2,32\] ends at byte 2147483904 of a file of",
    ),
    "long name": (
        gguf((), [entry("n" * 64)], DATA),
        "length of name of tensor 0: 64 bytes; at most 63 may be",
    ),
    "name twice": (
        gguf((), [entry("t"), entry("t", offset=256)], DATA),
        "tensor 't': stands there twice; names must be unique",
    ),
    "axes": (gguf((), [entry("t", (1,) * 5)], DATA), "tensor 't': 5 axes; at most 4 may be"),
    "size": (
        gguf((), [entry("t", (1 << 63,))], DATA),
        r"tensor 't': sizes \[92233.*more than 2\^63",
    ),
    "elements": (
        gguf((), [entry("t", (1 << 32, 1 << 31))], DATA),
        r"tensor 't': sizes .*are of more than 2\^63 - 2 elements",
    ),
    "hidden by a 0": (
        gguf((), [entry("t", (0, 1 << 62, 2))], DATA),
        r"tensor 't': sizes .*are of more than 2\^63 - 2 elements",
    ),
    "type": (
        gguf((), [entry("t", kind=43)], DATA),
        "tensor 't': type 43 is not known; known are 0 to",
    ),
    "signed type": (
        gguf((), [entry("t", kind=(1 << 32) - 1)], DATA),
        "type 4294967295 is not known",
    ),
    "removed": (
        gguf((), [entry("t", kind=31)], DATA),
        r"tensor 't': type 31 \(Q4_0_4_4\) was removed from GGUF; quantize the model anew",
    ),
    "row": (
        gguf((), [entry("t", (48, 2), 2)], DATA),
        "tensor 't': rows of 48 elements are not whole blocks of 32, as Q4_0 has",
    ),
    "scalar of blocks": (
        gguf((), [entry("t", (), 2)], DATA),
        "rows of 1 elements are not whole blo",
    ),
    "hole": (
        gguf((), [entry("t"), entry("s", offset=288)], DATA),
        "tensor 's': offset 288 leaves a hole before it; .* at 256",
    ),
    "overlap": (
        gguf((), [entry("t"), entry("s", offset=224)], DATA),
        "tensor 's': offset 224 overlaps the one before; .* at 256",
    ),
    "another order": (
        gguf((), [entry("t", offset=256), entry("s")], DATA),
        "tensor 't': offset 256 leaves a hole before it",
    ),
    "misaligned": (
        gguf((), [entry("t", (3,)), entry("s", offset=12)], DATA),
        "tensor 's': offset 12 overlaps the one before; .* at 32",
    ),
    "huge offset": (
        gguf((), [entry("t", offset=1 << 63)], DATA),
        "offset 9223372036854775808 leaves",
    ),
    "cut tensor": (
        gguf((), [entry("t")], DATA[:255]),
        r"tensor 't': F32\[2,32\] ends at byte \d+ of a file of \d+; the file is cut",
    ),
    "huge tensor": (
        gguf((), [entry("t", (1 << 40,))], DATA),
        r"tensor 't': F32\[1099511627776\] ends at byte .* of a file of",
    ),
    "a web page": (b"<!DOCTYPE html>" + bytes(99), "is no GGUF file but a web page"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused_by_field_value_and_rule(tmp_path: Path, case: str) -> None:
    content, message = DAMAGED[case]
    path = tmp_path / "bad.gguf"
    with pytest.raises(CheckpointError, match=message) as caught:
        opened(path, content)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < len(str(path)) + 400


@pytest.mark.parametrize(
    ("kind", "count", "message"),
    [
        (F32, 1 << 27, "number of f32: 134217728 of at least 4 bytes do not fit the 2684"),
        (BOOL, 1 << 29, "number of bool: 536870912 of at least 1 bytes do not fit the 2684"),
    ],
)
def test_a_file_of_holes_is_not_read_through(
    tmp_path: Path, kind: int, count: int, message: str
) -> None:
    """A file may say to have a terabyte and take a page."""
    path = tmp_path / "x"
    path.write_bytes(gguf([pair("k", ARRAY, items(kind, (), count))]))
    os.truncate(path, 1 << 40)
    with pytest.raises(CheckpointError, match=message):
        GgufFile(path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    content = whole()
    last = opened(tmp_path / "x", content).tensors["z"]
    for size in range(1, last.start + last.nbytes):
        with pytest.raises(CheckpointError):
            opened(tmp_path / "x", content[:size])


def test_a_string_that_is_no_text_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    found = opened(tmp_path / "x", gguf([pair("k", ARRAY, items(STRING, ("a", b"\xc3")))]))
    words = found.metadata["k"]
    assert isinstance(words, Strings) and words[0] == "a"
    for ask in (lambda: words[1], lambda: list(words)):
        with pytest.raises(CheckpointError, match="x: key 'k': string 1 is not UTF-8"):
            ask()


def test_strings_are_those_that_are_there(tmp_path: Path) -> None:
    said = {"none": (), "some": ("a", "", "\u0120na\u00efve"), "one": ("",)}
    pairs = [pair(key, ARRAY, items(STRING, words)) for key, words in said.items()]
    found = opened(tmp_path / "x", gguf(pairs)).metadata
    for key, words in said.items():
        assert [*found[key]] == [*words] == [found[key][n] for n in range(len(words))], key


def test_mutated_headers_open_or_are_refused_and_take_no_memory_or_time(tmp_path: Path) -> None:
    """More of them: ``python tests/checkpoint/test_checkpoint_gguf_header.py 100000``."""
    count = fuzz(tmp_path / "x.gguf", int(os.environ.get("PTIR_SLICE", "0")), 1500)
    assert count["refused"] > 500 and count["opened"] > 50


def fuzz(path: Path, seed: int, count: int) -> dict[str, int]:
    """Open mutated files; anything but a file or a ``CheckpointError`` is raised."""
    rng, right = random.Random(seed), whole()
    ends = {"refused": 0, "opened": 0}
    for number in range(count):
        path.write_bytes(mutated(right, rng))
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            read_all(GgufFile(path))
            ends["opened"] += 1
        except CheckpointError as error:
            assert str(error).startswith(f"{path}: "), (seed, number, error)
            ends["refused"] += 1
        spent = time.process_time() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64_000 and spent < 2, (seed, number, grown, spent)
    return ends


def read_all(file: GgufFile) -> None:
    """Every value and every tensor's bytes."""
    for value in file.metadata.values():
        list(value) if isinstance(value, Strings) else np.sum(value == value)
    for name, tensor in file.tensors.items():
        assert file.raw(name).size == tensor.nbytes


def test_headers_of_other_types_of_numbers_are_read(tmp_path: Path) -> None:
    """Arrays at odd places are read as they lie."""
    keys = [pair("k", U8, 1), pair("a", ARRAY, items(U16, (1, 65535)))]
    assert opened(tmp_path / "x", gguf(keys)).metadata["a"].tolist() == [1, 65535]


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
        print(fuzz(Path(folder) / "x.gguf", int(sys.argv[2]) if len(sys.argv) > 2 else 0, wanted))


@pytest.mark.parametrize("number", [1e-5, 1e-6, 0.1, 1e6, -0.0, 3.4028235e38, 1.4013e-45])
def test_a_number_of_f32_is_the_shortest_that_gives_it(number: float) -> None:
    """What a file says of a model came from a text such as 1e-05: that is what a folder gets."""
    held = float(np.float32(number))
    assert repr(shortest(held)) == repr(number) and np.float32(shortest(held)) == held


def test_every_f32_comes_back() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, np.uint64).astype(np.uint32)
    numbers = bits.view(np.float32)
    found = np.array([shortest(float(one)) for one in numbers]).astype(np.float32)
    np.testing.assert_array_equal(found, numbers)
