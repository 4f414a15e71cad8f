"""safetensors files: ours and the library's read each other; damaged headers are refused."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptir.checkpoint import (
    MappedSource,
    load_archive,
    open_checkpoint,
    read_header,
    save_folder,
    write_safetensors,
)
from ptir.errors import CheckpointError
from ptir.params import ArraySource
from ptir.runtime import load_model
from ptir.types import DTYPES, spec
from running import REF, small_checkpoint

EVERY = {
    name: np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype.numpy) for name, dtype in DTYPES.items()
}

HEADER_NAMES = {
    "bool": "BOOL",
    "f8e4m3fn": "F8_E4M3",
    "f8e5m2": "F8_E5M2",
} | {n: n.upper() for n in DTYPES if n != "bool" and not n.startswith("f8")}


def write(path: Path, arrays: dict, metadata: dict | None = None) -> None:
    source = ArraySource(arrays)
    types = {name: source.type(name) for name in source.names()}
    write_safetensors(path, arrays.items(), types, metadata)


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_every_dtype_reads_back_bit_for_bit_without_copying(tmp_path: Path) -> None:
    write(tmp_path / "a", EVERY, {"note": "é"})
    source = MappedSource([tmp_path / "a"])
    assert source.names() == tuple(EVERY)
    for name, array in EVERY.items():
        read = source.read(name)
        assert read.dtype == array.dtype
        assert read.tobytes() == array.tobytes()
        assert read.shape == array.shape
        assert not read.flags.writeable
        assert not read.flags.owndata
        assert np.shares_memory(read, source.read(name))
    assert source.counters.loads["f32"] == 2
    assert source.counters.bytes_read == 2 * sum(array.nbytes for array in EVERY.values())
    assert read_header(tmp_path / "a").metadata == {"note": "é"}


def test_the_library_reads_every_dtype_we_write(tmp_path: Path) -> None:
    write(tmp_path / "a", EVERY, {"note": "é"})
    theirs = dict(safetensors.deserialize((tmp_path / "a").read_bytes()))
    assert {name: found["dtype"] for name, found in theirs.items()} == HEADER_NAMES
    for name, array in EVERY.items():
        assert bytes(theirs[name]["data"]) == array.tobytes()
        assert theirs[name]["shape"] == [2, 3]
    with safetensors.safe_open(tmp_path / "a", "np") as file:
        assert file.metadata() == {"note": "é"}


def test_we_read_every_dtype_the_library_writes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(safetensors.numpy.save(EVERY, {"k": "v"}))
    source = MappedSource([tmp_path / "a"])
    assert set(source.names()) == set(EVERY)
    for name, array in EVERY.items():
        assert source.read(name).dtype == array.dtype
        assert source.read(name).tobytes() == array.tobytes()
    assert read_header(tmp_path / "a").metadata == {"k": "v"}


@given(
    st.dictionaries(
        st.text(max_size=6).filter(lambda name: name != "__metadata__"),
        st.sampled_from(sorted(DTYPES)).flatmap(
            lambda name: hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3).map(
                lambda shape: np.ones(shape, DTYPES[name].numpy)
            )
        ),
        max_size=5,
    )
)
def test_any_shapes_survive_and_the_library_agrees(tmp_path_factory, arrays: dict) -> None:
    path = tmp_path_factory.mktemp("any") / "a"
    write(path, arrays)
    source = MappedSource([path])
    assert {n: source.read(n).shape for n in source.names()} == {
        n: a.shape for n, a in arrays.items()
    }
    assert all(source.read(n).tobytes() == a.tobytes() for n, a in arrays.items())
    assert all(source.read(n).flags.aligned for n in arrays)
    assert {name for name, _ in safetensors.deserialize(path.read_bytes())} == set(arrays)


def test_strided_and_big_endian_arrays_are_written_by_value(tmp_path: Path) -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    write(tmp_path / "a", {"t": base.T, "s": base[::2, ::-1], "b": base.astype(">f4")})
    source = MappedSource([tmp_path / "a"])
    assert np.array_equal(source.read("t"), base.T)
    assert np.array_equal(source.read("s"), base[::2, ::-1])
    assert np.array_equal(source.read("b"), base)


def test_unaligned_tensors_are_copied_and_right(tmp_path: Path) -> None:
    text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    text += b" " * ((1 - 8 - len(text)) % 4)
    values = np.array([1.5, -2], np.float32)
    (tmp_path / "a").write_bytes(raw(text, values.tobytes()))
    read = MappedSource([tmp_path / "a"]).read("a")
    assert read.flags.aligned
    assert not read.flags.writeable
    assert read.tolist() == [1.5, -2]


@pytest.mark.skipif(sys.platform != "linux", reason="resident pages are read from /proc")
def test_releasing_a_tensor_drops_its_resident_pages(tmp_path: Path) -> None:
    path = tmp_path / "resident.safetensors"
    write(path, {"a": np.ones(1 << 20, np.float32), "b": np.ones(1 << 20, np.float32)})
    source = MappedSource([path])

    def resident() -> int:
        lines = Path("/proc/self/smaps").read_text().split("\n")
        start = next(i for i, line in enumerate(lines) if line.endswith(path.name))
        return next(int(row.split()[1]) for row in lines[start:] if row.startswith("Rss:"))

    total = source.read("a").sum() + source.read("b").sum()
    assert resident() >= 8 << 10
    source.release("a")
    assert 4 << 10 <= resident() < 5 << 10
    source.release("b")
    assert resident() < 1 << 10
    assert source.read("a").sum() + source.read("b").sum() == total


DATA8 = b"\0" * 8
META = "__metadata__"
DAMAGED = {
    "empty": (b"", "is no safetensors file but an empty file"),
    "cut length": (b"\0" * 7, "7 bytes; a safetensors file"),
    "length past the end": (b"\x10" + b"\0" * 7 + b"{}", "header of 16 bytes in a file of 10"),
    "huge length": (b"\xff" * 8 + b"{}", "header of 18446744073709551615 bytes; the limit"),
    "not an object": (raw(b"[]"), r"header starts with b'\['"),
    "leading space": (raw(b" {}"), "header starts with b' '"),
    "not json": (raw(b"{nope}"), "header is not valid JSON"),
    "not utf-8": (raw(b'{"\xff": 1}'), "header is not valid JSON"),
    "lone surrogate": (raw(b'{"\\ud800":{}}'), "header is not valid JSON: .*surrogates"),
    "nested": (raw(b'{"a":' + b"[" * 200000), "header is not valid JSON: nested too deeply"),
    "long integer": (raw(b'{"a":' + b"9" * 5000 + b"}"), "header is not valid JSON"),
    "duplicate name": (raw(b'{"a":1,"a":1}'), "duplicate key 'a'"),
    "duplicate field": (raw(b'{"a":{"dtype":1,"dtype":1}}'), "duplicate key 'dtype'"),
    "metadata list": (raw({META: []}), r"__metadata__ is \[\]; it must map"),
    "metadata number": (raw({META: {"k": 1}}), "__metadata__ 'k' is 1; it must be a string"),
    "entry number": (raw({"a": 1}), "tensor 'a': entry has 1; it must have dtype"),
    "missing field": (raw({"a": {"dtype": "F32"}}), r"tensor 'a': entry has \['dtype'\]"),
    "more fields": (raw({"a": {**entry(), "x": 1}}, DATA8), "tensor 'a': entry has .*'x'"),
    "dtype": (raw({"a": entry("F31")}, DATA8), r"'a': unknown dtype .*F31.*nearest: F32"),
    "dtype list": (raw({"a": entry([])}, DATA8), "tensor 'a': unknown dtype"),
    "negative": (raw({"a": entry(shape=[-1, -2])}, DATA8), r"shape \[-1, -2\]: must list"),
    "fraction": (raw({"a": entry(shape=[2.0])}, DATA8), r"shape \[2.0\]: must list"),
    "bool shape": (raw({"a": entry(shape=[True, 2])}, DATA8), r"shape \[True, 2\]: must list"),
    "not a number": (raw(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}'), "nan"),
    "rank": (raw({"a": entry(shape=[1] * 33)}, DATA8), "must list at most 32"),
    "big axis": (raw({"a": entry(shape=[1 << 63])}, DATA8), r"in 0\.\.2\^63-1"),
    "overflow": (raw({"a": entry(shape=[1 << 32, 1 << 32])}, DATA8), "overflows"),
    "hidden overflow": (raw({"a": entry(shape=[0, 1 << 62, 4], offsets=[0, 0])}), "overflows"),
    "offsets": (raw({"a": entry(offsets=[0])}, DATA8), r"data_offsets \[0\]: must be"),
    "backwards": (raw({"a": entry(offsets=[8, 0])}, DATA8), r"data_offsets \[8, 0\]: must be"),
    "size": (raw({"a": entry(shape=[3])}, DATA8), r"0\.\.8 hold 8 bytes, f32\[3\] 12"),
    "cut data": (raw({"a": entry()}, DATA8[:7]), r"0\.\.8 leave the 7 data bytes"),
    "left over": (raw({"a": entry()}, DATA8 + b"x"), r"bytes 8\.\.9 behind the last tensor belong"),
    "nobody's": (raw({}, b"x"), r"data bytes 0\.\.1 behind the last tensor belong to no tensor"),
    "leading hole": (
        raw({"a": entry(offsets=[4, 12])}, DATA8 + DATA8),
        r"data bytes 0\.\.4 before tensor 'a' belong to no tensor",
    ),
    "hole": (
        raw({"a": entry(), "b": entry(offsets=[12, 20])}, DATA8 * 3),
        r"data bytes 8\.\.12 behind tensor 'a' and before tensor 'b' belong to no tensor",
    ),
    "overlap": (
        raw({"a": entry(), "b": entry(offsets=[4, 12])}, DATA8 + DATA8[:4]),
        r"tensor 'b': offsets 4\.\.12 overlap tensor 'a' at 0\.\.8; no byte may have two owners",
    ),
    "shared": (
        raw({"b": entry(), "a": entry()}, DATA8),
        r"tensor 'a': offsets 0\.\.8 overlap tensor 'b' at 0\.\.8",
    ),
    "empty inside another": (
        raw({"z": entry(shape=[0], offsets=[4, 4]), "a": entry()}, DATA8),
        r"tensor 'z': offsets 4\.\.4 overlap tensor 'a' at 0\.\.8",
    ),
}
FOREIGN_FILES = {
    "gguf": (b"GGUF\3\0\0\0" + b"\0" * 16, r"a GGUF file \(version 3\), which is a model of its"),
    "gguf, big-endian": (
        b"GGUF\0\0\0\3",
        r"a GGUF file \(version 3\).*give the path of that file",
    ),
    "gguf, cut": (b"GGUF", "a GGUF file, which"),
    "zip of PyTorch": (
        b"PK\3\4\0\0\x08\x08" + b"\0" * 90,
        r"a zip archive \(of PyTorch or NumPy\), which can run code when loaded",
    ),
    "old PyTorch": (b"\x80\2\x8a\nl\xfc\x9cF\xf9 j", "a pickle, which can run code when loaded"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file, which ptir does not read; give the folder"),
    "onnx": (b"\x08\x07\x12\x07pytorch", "an ONNX model, which ptir does not read"),
    "npy": (b"\x93NUMPY\1\0", "a NumPy array, which names no tensors"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid",
        "a pointer of Git LFS.*`git lfs pull`",
    ),
    "page": (b"<!DOCTYPE html><html>", "a web page, which a server sent.*fetch it again"),
    "json": (b'{"model_type": "gpt2"}', "JSON text, which holds no tensors; give the folder"),
}


PAGE = "a web page, which a server sent in place of the file; fetch it again, from its /resolve/"
OLD = "a GGML file of before GGUF, which GGUF replaced .*; fetch the same model as GGUF, or as a"
SPOILT = {
    "empty": (b"", "an empty file, which a download left that did not go on; fetch it again"),
    "zeros": (bytes(100), "zeros at its beginning, which stand for what a download did not bring"),
    "page behind white space": (b"\xef\xbb\xbf\r\n <html lang='en'>" + b" " * 90, PAGE),
    "page of storage": (b"<?xml version='1.0'?><Error>" + b" " * 90, PAGE),
    "answer": (
        b"Entry not found",
        r"text \('Entry not found'...\), perhaps what a server answered; ",
    ),
    "error": (
        b'{"error":"Repository not found"}',
        "an error in JSON, which a server sent in place",
    ),
    "gzip": (b"\x1f\x8b\x08" + bytes(90), r"a compressed file \(gzip\), which must be unpacked"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(90), r"a compressed file \(zstd\), which must be unp"),
    "session": (b"nsgg" + bytes(90), "a session that llama.cpp saved, which holds no weights"),
    "adapter": (b"algg" + bytes(90), r"an adapter \(LoRA\) of llama.cpp before GGUF, which is no"),
    **{name: (name.encode() + bytes(90), OLD) for name in ("ggml", "lmgg", "ggmf", "fmgg")},
    **{name: (name.encode() + bytes(90), OLD) for name in ("ggjt", "tjgg")},
}


@pytest.mark.parametrize("name", ["bad.safetensors", "bad.gguf", "bad.bin"])
@pytest.mark.parametrize("case", SPOILT)
def test_what_downloads_leave_is_named_with_the_next_step(
    tmp_path: Path, case: str, name: str
) -> None:
    content, message = SPOILT[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: is no .* file but {message}"):
        open_checkpoint(tmp_path / name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "version https://git-lfs.github.com/spec/v1\noid",
            r"a pointer of Git LFS, .*`git lfs pul",
        ),
        ("\n<!doctype html>", PAGE),
        ("", "an empty file, which a download left"),
    ],
)
def test_what_downloads_leave_in_place_of_settings_is_named(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    folder = save_folder(small_checkpoint(), tmp_path / "m")
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=rf"{name} is no JSON but {said}"):
        load_model(folder, backend=REF)


def test_a_safetensors_file_called_gguf_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, {"a": np.zeros(8, np.float32)})
    with pytest.raises(CheckpointError, match=r"a safetensors file, .*call it NAME\.safetensors"):
        open_checkpoint(path)


def test_a_file_of_a_folder_is_what_its_beginning_says(tmp_path: Path) -> None:
    (tmp_path / "ggml-model-q4_0.bin").write_bytes(b"tjgg" + bytes(90))
    with pytest.raises(CheckpointError, match=r"it holds ggml-model-q4_0\.bin, a GGML file of bef"):
        open_checkpoint(tmp_path)


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    """A device or a pipe must stay what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(CheckpointError, match="cannot be written: it is not a regular file"):
            write_safetensors(path, [], {})
    assert pipe.is_fifo() and [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_a_file_cut_while_it_is_in_use_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    """Reading pages beyond the end of a mapped file would end the process."""
    path = tmp_path / "x.safetensors"
    write(path, {"a": np.arange(8, dtype=np.float32), "b": np.arange(4096, dtype=np.float32)})
    source = MappedSource([path])
    assert source.read("b")[-1] == 4095
    os.truncate(path, 1000)
    with pytest.raises(CheckpointError, match=r"tensor 'b': the file was cut from \d+ to 1000 byt"):
        source.read("b").sum()
    replacement = tmp_path / "new"
    write(path, {"a": np.ones(8, np.float32)})
    kept = MappedSource([path])
    write(replacement, {"a": np.zeros(1, np.float32)})
    os.replace(replacement, path)
    assert kept.read("a").sum() == 8  # renaming over the file leaves what is mapped alone


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_headers_are_refused_by_file_tensor_and_rule(tmp_path: Path, case: str) -> None:
    content, message = DAMAGED[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        MappedSource([path])
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < len(str(path)) + 400


@pytest.mark.parametrize("case", FOREIGN_FILES)
def test_files_of_other_formats_are_told_by_how_they_begin(tmp_path: Path, case: str) -> None:
    content, message = FOREIGN_FILES[case]
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"is no safetensors file but {message}"):
        read_header(path)


@pytest.mark.parametrize("length", [ord("{"), 0x120708])
def test_a_header_whose_length_looks_like_another_format_is_read(tmp_path: Path, length) -> None:
    """A length is bytes too: 123 is written as ``{``, 1181448 as an ONNX model begins."""
    (tmp_path / "a").write_bytes(raw(b"{}" + b" " * (length - 2)))
    assert read_header(tmp_path / "a").entries == {}


def test_bool_bytes_other_than_0_and_1_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(raw({"a": entry("BOOL", [2], [0, 2])}, b"\0\2"))
    with pytest.raises(CheckpointError, match="tensor 'a': bool byte 2; bytes must be 0 or 1"):
        MappedSource([path]).read("a")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            MappedSource([path])


def test_empty_tensors_may_lie_wherever_another_ends(tmp_path: Path) -> None:
    empty = entry(shape=[0])
    header = {"a": entry(), **{f"z{at}": {**empty, "data_offsets": [at, at]} for at in (0, 8)}}
    (tmp_path / "a").write_bytes(raw(header, DATA8))
    safetensors.deserialize((tmp_path / "a").read_bytes())
    assert [read_header(tmp_path / "a").entries[f"z{at}"].begin for at in (0, 8)] == [0, 8]


@pytest.mark.parametrize("reader", [load_archive, open_checkpoint])
def test_every_reader_refuses_bytes_with_two_owners_or_none(tmp_path: Path, reader) -> None:
    config = {META: {"config.json": "{}"}}
    for case, header in {
        "overlap tensor 'a'": {"a": entry(), "b": entry()},
        "belong to no tensor": {"a": entry(offsets=[4, 12])},
    }.items():
        (tmp_path / "x.safetensors").write_bytes(raw({**config, **header}, DATA8 + DATA8[:4]))
        with pytest.raises(CheckpointError, match=case):
            reader(tmp_path / "x.safetensors")


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("1", "2"):
        write(tmp_path / name, {"w": np.zeros(1)})
    with pytest.raises(CheckpointError, match=r"2: tensor 'w': also stored in .*1; keep one"):
        MappedSource([tmp_path / "1", tmp_path / "2"])


SMALL = {"a": np.arange(3, dtype=np.float32), "mask": np.array([True, False])}
HEADER_TEXT = st.sampled_from(
    [*b'{}[]":,-0123456789eE.\\u \n', *(ord(c) for c in "dtypeshaF32BOOLnulltrue")]
)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 400), st.integers(0, 255)),
        st.tuples(st.just("set"), st.integers(0, 400), HEADER_TEXT),
        st.tuples(st.just("insert"), st.integers(0, 400), HEADER_TEXT),
        st.tuples(st.just("delete"), st.integers(0, 400), st.integers(1, 20)),
        st.tuples(st.just("cut"), st.integers(0, 400), st.just(0)),
    ),
    min_size=1,
    max_size=4,
)


def edited(content: bytes, edits: list[tuple[str, int, int]], fix_length: bool) -> bytes:
    body = bytearray(content)
    for kind, at, value in edits:
        at = min(at, len(body))
        if kind == "set":
            body[at : at + 1] = bytes([value])
        elif kind == "insert":
            body[at:at] = bytes([value])
        else:
            del body[at : at + value if kind == "delete" else None]
    if fix_length and len(body) > 22:
        body[:8] = (len(body) - 8 - 14).to_bytes(8, "little")
    return bytes(body)


@given(EDITS, st.booleans())
def test_edited_files_read_or_raise_one_checkpoint_error(
    tmp_path_factory, edits: list[tuple[str, int, int]], fix_length: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    write(folder / "good", SMALL, {"format": "pt"})
    path = folder / "edited"
    path.write_bytes(edited((folder / "good").read_bytes(), edits, fix_length))
    try:
        source = MappedSource([path])
        read = {name: source.read(name) for name in source.names()}
    except CheckpointError as error:
        assert str(error).startswith(str(path))
        return
    assert sum(array.nbytes for array in read.values()) <= os.path.getsize(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
SIZES = st.lists(st.integers(-1, 4) | st.integers(0, 1 << 64) | JSON, max_size=3)
ENTRY = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "I8", "BF16", "BOOL"]) | JSON, "shape": SIZES | JSON},
    optional={"data_offsets": SIZES | JSON, "x": JSON},
)
HEADER = st.dictionaries(st.sampled_from(["a", "b", META]) | st.text(max_size=2), ENTRY | JSON)


@given(HEADER, st.integers(0, 16))
def test_invented_headers_read_or_raise_one_checkpoint_error(
    tmp_path_factory, header: dict, count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "invented"
    path.write_bytes(raw(header, b"\1" * count))
    try:
        source = MappedSource([path])
        assert sum(source.read(name).nbytes for name in source.names()) == count
    except CheckpointError as error:
        assert str(error).startswith(str(path))


TYPES = {"a": spec("f32", 2), "b": spec("i8", 3)}
GOOD = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.int8)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([("a", GOOD["a"])], "no values came for 'b'"),
        ([*GOOD.items(), ("a", GOOD["a"])], "tensor 'a' was written already"),
        ([*GOOD.items(), ("c", GOOD["a"])], "tensor 'c' was not announced"),
        ([("a", np.zeros(3, np.float32))], r"'a' is f32\[3\], announced as f32\[2\]"),
    ],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, arrays: list, message: str
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(CheckpointError, match=message):
        write_safetensors(path, arrays, TYPES)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_tensors_may_arrive_in_any_order_one_at_a_time(tmp_path: Path) -> None:
    alive = []

    def arrive():
        for name in ("b", "a"):
            alive.append(name)
            yield name, GOOD[name]

    write_safetensors(tmp_path / "a", arrive(), TYPES)
    assert MappedSource([tmp_path / "a"]).names() == ("a", "b")
    assert alive == ["b", "a"]


@pytest.mark.parametrize(
    ("types", "metadata", "message"),
    [
        ({META: spec("f32", 0)}, {}, "a tensor cannot be called '__metadata__'"),
        ({"\udc80": spec("f32", 0)}, {}, "names and metadata must be Unicode"),
        ({}, {"k": "x" * 100_000_001}, "header of .* bytes; limit 100000000"),
    ],
)
def test_headers_nobody_could_read_are_not_written(tmp_path, types, metadata, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        write_safetensors(tmp_path / "a", [], types, metadata)
    assert not os.listdir(tmp_path)


def test_writing_into_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none/a: cannot be written: No such file"):
        write(tmp_path / "none" / "a", GOOD)
