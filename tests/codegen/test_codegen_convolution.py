"""Convolutions in the generator: what is one kernel, what is packed, and how work is cut."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from paper import GroupsDevice, PaperDevice, compiled, families, optimized

import ptir
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.capture import call
from ptir.codegen.compile import compile_block
from ptir.codegen.context import Context
from ptir.codegen.families.convolution.match import Detail, choose_tiling
from ptir.codegen.families.convolution.winograd import choose_blocks, tiled
from ptir.codegen.schedules import tuned_tiles
from ptir.codegen.schedules.tiles import TILES, Tiles
from ptir.codegen.weights.filters import PackedFilters
from ptir.codegen.weights.pack import pack
from ptir.ir.program import Port, Program
from ptir.types import spec

IMAGE = spec("f32", 2, 14, 14, 32)
FILTERS = spec("f32", 3, 3, 32, 64)


def kernels(function: Any, *types: Any) -> list[str]:
    return families(compiled(ptir.capture(function, *types)))


def test_bias_batch_norm_relu_and_residual_join_a_convolution() -> None:
    def body(x: Any, weight: Any, vector: Any, skip: Any) -> Any:
        made = F.conv2d(x, weight, vector, padding=1)
        return F.maximum(F.batch_norm(made, *(vector,) * 4) + skip, 0.0)

    types = (IMAGE, FILTERS, spec("f32", 64), spec("f32", 2, 14, 14, 64))
    assert kernels(body, *types) == ["map", "convolution"]  # the map: 64 factors


@pytest.mark.parametrize("groups", [2, 32])
def test_grouped_and_depthwise_convolutions_are_one_kernel(groups: int) -> None:
    weight = spec("f32", 3, 3, 32 // groups, 32)
    made = kernels(lambda x, w: F.conv2d(x, w, groups=groups, padding=1), IMAGE, weight)
    assert made == ["convolution"]


@pytest.mark.parametrize(
    ("image", "filters"),
    [
        ((1, 31, 5, 48), (1, 1, 48, 72)),  # read where it is, pieces of 8 rows
        ((1, 9, 3, 16), (3, 3, 16, 40)),  # pieces of a tile of rows
        ((1, 50, 50, 40), (3, 3, 1, 40)),  # copied, pieces of two panels of channels
    ],
)
def test_pieces_that_are_not_whole_stay_inside_of_their_memories(
    image: tuple[int, ...], filters: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_VERIFY", "1")
    groups = image[3] // filters[2]
    types = spec("f32", *image), spec("f32", *filters)
    assert kernels(lambda x, w: F.conv2d(x, w, groups=groups), *types) == ["convolution"]


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_patches_times_weights_are_one_kernel(spatial: int) -> None:
    def body(x: Any, weight: Any) -> Any:
        patches = call("extract_patches", x, window=(2,) * spatial, low=(1,) * spatial)
        inner = tuple(range(spatial + 1, 2 * spatial + 2))
        return call(
            "dot_general",
            patches,
            weight,
            lhs_contract=inner,
            rhs_contract=tuple(range(spatial + 1)),
        )

    types = spec("f32", 1, *(9,) * spatial, 16), spec("f32", *(2,) * spatial, 16, 32)
    assert kernels(body, *types) == ["convolution"]


def stored(function: Any, *types: Any) -> Program:
    """A program whose inputs but the first are parameters."""
    program = ptir.capture(function, *types)
    first, *rest = program.ports
    ports = (first, *(Port(port.name, "parameter") for port in rest))
    return Program(program.main, ports, program.version)


def test_a_packed_weight_is_read_where_it_is() -> None:
    program = stored(lambda x, w: F.conv2d(x, w, padding=1), IMAGE, FILTERS)
    assert len(pack(program, 1 << 40)[1]) == 1
    (kernel,) = compiled(program).kernels
    assert kernel is not None
    detail: Detail = kernel.fusion.detail
    assert detail.panels is not None and detail.packed == 1
    assert kernel.scratch[1].size == 1  # no panels of its own


def test_a_depthwise_weight_is_packed_by_channels() -> None:
    weight = spec("f32", 32, 1, 3, 3)
    program = stored(lambda x, w: F.conv2d(x, w, groups=32, layout="oihw"), IMAGE, weight)
    packed, _ = pack(program, 1 << 40)
    assert packed.inputs[1].shape == (2, 9, 16, 1)


def test_filters_that_fill_no_panel_stay_as_they_are() -> None:
    program = stored(lambda x, w: F.conv2d(x, w), IMAGE, spec("f32", 3, 3, 32, 8))
    assert pack(program, 1 << 40)[1] == {}


def test_an_operand_without_padding_is_not_copied() -> None:
    def scratch(padding: int) -> int:
        program = ptir.capture(lambda x, w: F.conv2d(x, w, padding=padding), IMAGE, FILTERS)
        (kernel,) = compiled(program).kernels
        assert kernel is not None
        return kernel.scratch[0].size

    assert scratch(0) == 1 < scratch(1)


@pytest.mark.parametrize("device_class", ["cpu-avx512", "cpu-avx2"])
@pytest.mark.parametrize("size", [7, 14, 56])
def test_work_is_cut_into_as_many_pieces_as_are_wanted(size: int, device_class: str) -> None:
    weight = spec("f32", 3, 3, 512, 512)
    program = ptir.capture(
        lambda x, w: F.conv2d(x, w, padding=1), spec("f32", 1, size, size, 512), weight
    )
    (kernel,) = compiled(program).kernels
    assert kernel is not None
    units, tiles = PaperDevice.traits.compute_units, TILES[device_class]
    one = choose_tiling(kernel.fusion.detail.shape, units, 8, copied=True, tiles=tiles)
    assert one.wide * one.high * one.panels <= {"cpu-avx512": 28, "cpu-avx2": 6}[device_class]
    assert one.row_pieces * one.tile_pieces >= 8
    assert one.rows * one.row_pieces >= size and one.tiles * one.tile_pieces >= 16


Fetches = list[tuple[int, int, int]]


def fetched_ahead(
    tiles: int, image: tuple[int, ...], filters: tuple[int, ...], **how: Any
) -> Fetches:
    """What a convolution's kernel fetches: elements for each channel, for each row, and how far.

    Its weights are a parameter.
    """
    device = PaperDevice()
    device.traits = replace(device.traits, identity=f"fetches {tiles} tiles ahead")
    tuned_tiles.remember(device, Tiles(convolution_tiles_ahead=tiles))
    types = spec("f32", *image), spec("f32", *filters)
    made = optimized(stored(lambda x, w: F.conv2d(x, w, **how), *types)).main
    kernels = compile_block(made, Context.of(device), Options()).source.partition("__kernel")[2]
    found = set[tuple[int, int, int]]()
    for place, ahead in re.findall(r"FETCH_AHEAD\(b\d \+ \((.*)\) \+ (\d+)\);", kernels):
        channel, row = (re.search(form, place) for form in (r"\bk\*(\d+)", r"^\w+\*(\d+)\+\w+\*"))
        assert channel is not None, "each channel fetches a part"
        found.add((int(channel[1]), int(row[1]) if row else 0, int(ahead)))
    return sorted(found)


@pytest.mark.parametrize(
    ("image", "filters", "how", "wanted"),
    [
        ((4, 56, 56, 40), (1, 1, 40, 32), {}, [(14, 0, 14 * 40)]),  # pixels of the next tile
        ((64, 33, 11, 24), (1, 1, 24, 32), {}, [(11, 0, 11 * 24)]),
        (  # and two panels, of which a tile of 2 rows fetches as many lines as there are channels
            (1, 7, 7, 40),
            (1, 1, 40, 96),
            {},
            [(7, 0, 7 * 40), (14, 0, 14 * 40), (16, 7 * (40 // 14) * 16, 2 * 40 * 16)],
        ),
        (  # a copy: panels alone
            (1, 8, 8, 40),
            (3, 3, 40, 640),
            {"padding": 1},
            [(16, 8 * (360 // 8) * 16, 2 * 360 * 16)],
        ),
        ((4, 56, 56, 40), (1, 1, 40, 32), {"strides": 2}, []),  # pixels that lie apart
        ((4, 56, 56, 40), (3, 3, 40, 32), {"padding": 1}, []),
        (  # a panel is a long stream
            (1, 7, 7, 600),
            (1, 1, 600, 960),
            {},
            [(7, 0, 7 * 600), (14, 0, 14 * 600)],
        ),
    ],
    ids=str,
)
def test_what_comes_next_is_fetched_ahead(
    image: tuple[int, ...], filters: tuple[int, ...], how: dict[str, Any], wanted: Fetches
) -> None:
    assert fetched_ahead(1, image, filters, **how) == wanted
    assert fetched_ahead(0, image, filters, **how) == []


def bottleneck(
    size: int = 28,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    both: bool = False,
    computed: bool = False,
    coop: bool = False,
) -> list[str]:
    """The kernels of a depthwise convolution of 96 channels behind one that makes them of 16."""

    def body(x: Any, wide: Any, weight: Any) -> Any:
        x = x * 2.0 + 1.0 if computed else x
        made = F.maximum(F.conv2d(x, wide, strides=stride, groups=groups), 0.0)
        found = F.conv2d(made, weight, groups=96, padding=1)
        return (found, made) if both else found

    wide = spec("f32", kernel, kernel, 16 // groups, 96)
    types = spec("f32", 1, size, size, 16), wide, spec("f32", 3, 3, 1, 96)
    program = optimized(stored(body, *types))
    device = GroupsDevice() if coop else PaperDevice()
    return families(compile_block(program.main, Context.of(device), Options()))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"stride": 2, "size": 56},
        {"kernel": 2},  # 64 products, done again where pieces overlap
        {"groups": 1, "kernel": 2, "stride": 2, "size": 56},
    ],
    ids=str,
)
def test_a_depthwise_convolution_computes_the_wide_image_before_it(how: dict[str, Any]) -> None:
    assert bottleneck(**how) == ["convolution"]


@pytest.mark.parametrize(
    "how",
    [
        {"size": 16},  # 98 kB stay in the cache
        {"kernel": 3},  # 144 products
        {"groups": 2},
        {"computed": True},  # what it is made of is not in memory
        {"both": True},  # the wide image is an output
        {"coop": True},  # a thread has a result, not rows
    ],
    ids=str,
)
def test_other_images_in_front_of_it_are_stored(how: dict[str, Any]) -> None:
    assert bottleneck(**how) == ["convolution", "convolution"]


@pytest.mark.parametrize("device_class", ["cpu-avx512", "cpu-avx2"])
@pytest.mark.parametrize("image", [(1, 56, 64), (8, 28, 128), (1, 14, 256), (1, 7, 512), (1, 1, 8)])
def test_tiles_of_winograd_are_cut_so_that_all_are_computed(
    image: tuple[int, int, int], device_class: str
) -> None:
    batch, size, channels = image
    types = spec("f32", batch, size, size, channels), spec("f32", 3, 3, channels, channels)
    with ptir.overrides(conv2d="force=winograd"):
        program = ptir.capture(lambda x, w: F.conv2d(x, w, padding=1), *types)
        *_, kernel = compiled(program).kernels
    assert kernel is not None and kernel.family == "convolution"
    shape, tiles = tiled(kernel.fusion.detail.shape), TILES[device_class]
    one = choose_blocks(shape, PaperDevice.traits.compute_units, tiles)
    across = -(-size // 2)
    assert one.high * one.panels <= tiles.convolution_pixels * tiles.convolution_panels
    assert one.rows * one.row_pieces >= batch * across and one.held >= one.rows * across
    assert one.tiles * one.tile_pieces >= one.across >= channels / 16 / one.panels


def test_packing_and_unpacking_name_each_other() -> None:
    program = stored(lambda x, w: F.conv2d(x, w), IMAGE, FILTERS)
    from ptir.codegen.weights.filters import convolution, packed_filters

    shape = convolution(program.main.instructions[0], program.main.types, {}.get)
    assert shape is not None
    form = packed_filters(FILTERS, shape)
    assert isinstance(form, PackedFilters)
    assert form.block().output_types == (form.packed,)
    assert form.block().types[0] == FILTERS
