"""GGUF files that ptir writes: read back by its own reader and by the package ``gguf``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from ptir.checkpoint.gguf import LAYOUTS, GgufFile, Outgoing, write_gguf
from ptir.checkpoint.gguf.fields import plain
from ptir.checkpoint.gguf.metadata import shortest
from ptir.errors import CheckpointError

Array = np.ndarray[Any, Any]
NUMBERS: list[Any] = [
    *(np.uint8(200), np.int8(-3), np.uint16(65535), np.int16(-300), np.uint32(1 << 31)),
    *(np.int32(-70000), np.float32(0.1), np.uint64(1 << 63), np.int64(-(1 << 62)), np.float64(0.1)),
]
METADATA: dict[str, Any] = {f"number.{one.dtype}": one for one in NUMBERS}
METADATA |= {f"array.{one.dtype}": np.array([one, one * 0, one]) for one in NUMBERS}
METADATA |= {
    "general.architecture": "nobody's",
    "true": True,
    "false": np.bool_(False),
    "flags": np.array([True, False]),
    "text": "naïve 猫",
    "texts": ["", "a b", "▁x"],
    "none": [],
    "whole": 7,
    "real": 0.25,
}


def tensors() -> dict[str, tuple[str, Array, tuple[int, ...]]]:
    """By name: type, what is written and the shape."""
    rng = np.random.default_rng(5)
    blocks = gguf.quants.quantize(
        rng.standard_normal((3, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
    )
    return {
        "one": ("F32", np.array([1.5, -2, 3], np.float32), (3,)),
        "halves": ("F16", rng.standard_normal((5, 7)).astype(np.float16), (5, 7)),
        "brains": ("BF16", rng.standard_normal((2, 3, 4)).astype(ml_dtypes.bfloat16), (2, 3, 4)),
        "blocks": ("Q8_0", blocks, (3, 64)),
        "wholes": ("I32", np.array([[1, -2]], np.int32), (1, 2)),
    }


def outgoing(name: str, kind: str, array: Array, shape: tuple[int, ...]) -> Outgoing:
    """Row by row, as large tensors are written."""
    return Outgoing(name, kind, shape, lambda: iter(array))


def written(path: Path, **options: int) -> Path:
    write_gguf(path, METADATA, [outgoing(n, *one) for n, one in tensors().items()], **options)
    return path


def same(found: Any, wanted: Any) -> bool:
    return type(found) is type(wanted) and found == wanted


@pytest.mark.parametrize("alignment", [32, 64, 8])
def test_our_reader_finds_what_was_written(tmp_path: Path, alignment: int) -> None:
    file = GgufFile(written(tmp_path / "m.gguf", alignment=alignment))
    found = {key: plain(value) for key, value in file.metadata.items() if "alignment" not in key}
    assert set(found) == set(METADATA)
    for key, value in METADATA.items():
        wanted = value.tolist() if hasattr(value, "tolist") else value
        wanted = shortest(wanted) if isinstance(value, np.float32) else wanted
        assert same(found[key], wanted), key
    for name, (kind, array, shape) in tensors().items():
        tensor = file.tensors[name]
        assert (tensor.type.name, tensor.shape) == (kind, shape)
        assert tensor.start % alignment == 0
        assert file.raw(name).tobytes() == array.tobytes()


def test_the_package_gguf_finds_what_was_written(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(written(tmp_path / "m.gguf", alignment=64))
    for key, value in METADATA.items():
        found = reader.fields[key].contents()
        wanted = value.tolist() if hasattr(value, "tolist") else value
        assert found == wanted, key
    kinds = {f"number.{one.dtype}": one.dtype for one in NUMBERS}
    for key, dtype in kinds.items():
        assert reader.fields[key].parts[-1].dtype == dtype
    assert [one.name for one in reader.tensors] == [*tensors()]
    for tensor in reader.tensors:
        kind, array, shape = tensors()[tensor.name]
        assert tensor.tensor_type.name == kind
        assert tuple(reversed(tensor.shape.tolist())) == shape
        assert tensor.data.tobytes() == array.tobytes()


def _broken() -> Iterator[Array]:
    yield np.zeros(2, np.float32)
    raise CheckpointError("the source was cut")


ZEROS = np.zeros(4, np.float32)
WRONG: dict[str, tuple[dict[str, Any], list[Outgoing], str]] = {
    "no key": ({"": 1}, [], "key '': 0 bytes"),
    "too large": ({"a": 1 << 32}, [], "key 'a': 4294967296 does not fit u32; give a number"),
    "complex": ({"a": np.array([1j])}, [], "key 'a': elements are complex128"),
    "matrix": ({"a": np.zeros((2, 2))}, [], "key 'a': 2 axes; arrays have one"),
    "mixed": ({"a": ["x", 1]}, [], "key 'a': .* must be a number, a text, texts"),
    "twice": ({}, [outgoing("t", "F32", ZEROS, (4,))] * 2, "tensor 't': stands there twice"),
    "long name": ({}, [outgoing("t" * 64, "F32", ZEROS, (4,))], "a name of 64 bytes; 1 to 63"),
    "type": ({}, [outgoing("t", "F33", ZEROS, (4,))], "tensor 't': type 'F33' is none of GGUF's"),
    "axes": ({}, [outgoing("t", "F32", ZEROS, (1, 1, 1, 1, 4))], "5 axes; at most 4 may be"),
    "row": ({}, [outgoing("t", "Q8_0", ZEROS, (1, 33))], "rows of 33 are not whole blocks of 32"),
    "few": ({}, [outgoing("t", "F32", ZEROS[:3], (4,))], r"F32\[4\] has 16 bytes and 12 came"),
    "many": ({}, [outgoing("t", "F32", ZEROS, (3,))], r"F32\[3\] has 12 bytes and more came"),
    "source": ({}, [Outgoing("t", "F32", (4,), _broken)], "the source was cut"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, case: str) -> None:
    metadata, held, message = WRONG[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"before")
    with pytest.raises(CheckpointError, match=message):
        write_gguf(path, metadata, held)
    assert path.read_bytes() == b"before" and [*tmp_path.iterdir()] == [path]


def test_an_alignment_is_a_power_of_two(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="alignment 48 must be a power of two"):
        write_gguf(tmp_path / "m.gguf", {}, [], alignment=48)


CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_kv_heads": 2}
CONFIG |= {"num_hidden_layers": 12, "mtp_num_hidden_layers": 1, "num_heads": 4, "n_groups": 2}


@pytest.mark.parametrize("name", LAYOUTS)
def test_names_of_tensors_lead_both_ways(name: str) -> None:
    layout = LAYOUTS[name]
    stored = [f"{stem}.weight" for stem in layout.outside]
    stored += [f"blk.11.{stem}.{kind}" for stem in layout.inside for kind in ("weight", "bias")]
    stored = [name for name in stored if name.removeprefix("blk.11.") not in layout.named]
    stored += [f"blk.11.{name}" for name in layout.named]
    for tensor in stored:
        ((parameter, part),) = layout.parts({tensor: None}, CONFIG).items()  # type: ignore[dict-item]
        assert layout.part(parameter, CONFIG) == part and part.tensor == tensor
    for stem in layout.head:
        tensor = f"blk.12.{stem}.weight"
        ((parameter, part),) = layout.parts({tensor: None}, CONFIG).items()  # type: ignore[dict-item]
        assert parameter.startswith("mtp.") and layout.part(parameter, CONFIG) == part
    unknowns = ("nothing.weight", f"{layout.layer}3.nothing.weight", "weight", layout.layer)
    for unknown in ("mtp.layers.x.fc.weight", *unknowns):
        assert layout.part(unknown, CONFIG) is None


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "layers.0.self_attn.q_proj.weight"),
        ("gptneox", "layers.0.attention.query_key_value.weight"),
        ("falcon", "h.0.self_attention.query_key_value.bias"),
    ],
)
def test_rows_are_put_back_in_the_order_that_is_stored(architecture: str, name: str) -> None:
    part = LAYOUTS[architecture].part(name, CONFIG)
    assert part is not None and (part.heads == 4 or part.grouped is not None)
    stored = np.arange(48)
    assert stored[part.rows(48)].tolist() != stored.tolist()
    assert stored[part.rows(48)][part.stored_order(48)].tolist() == stored.tolist()
