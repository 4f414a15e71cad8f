"""The tiles of schedules: the table, what is measured, and what kernels are written with."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paper import GroupsDevice, PaperDevice, compiled, optimized

import ptir
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.codegen.compile import compile_block
from ptir.codegen.context import Context
from ptir.codegen.schedules import tuned_tiles
from ptir.codegen.schedules.schedules import schedule_of
from ptir.codegen.schedules.tiles import TILES, Tiles, tiles_of
from ptir.errors import PluginError, UsageError
from ptir.ir.program import Port, Program
from ptir.switches import SCHEDULE
from ptir.types import spec


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    return tmp_path / "tiles.json"


class Again(PaperDevice):
    """The same device in another process."""


def test_a_device_starts_from_the_row_of_its_class() -> None:
    device = PaperDevice()
    device.traits = replace(device.traits, device_class="cpu-avx2")
    assert tuned_tiles.tiles_for(device) == TILES["cpu-avx2"] != TILES["cpu-avx512"]


def test_an_unknown_class_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(PluginError, match=r"cpu-avx51.*cpu-avx512"):
        tiles_of("cpu-avx51")


def test_what_was_measured_is_used_by_the_next_process_on_the_same_driver_only() -> None:
    best = Tiles(gemm_rows=5, accumulators=2)
    tuned_tiles.remember(PaperDevice(), best)
    assert tuned_tiles.tiles_for(Again()) == best
    other = Again()
    other.traits = replace(other.traits, identity="paper, next driver")
    assert tuned_tiles.tiles_for(other) == Tiles()
    tuned_tiles.remember(other, Tiles(gemm_rows=7))
    assert set(tuned_tiles.choices()) == {"paper", "paper, next driver"}


def test_nothing_ahead_is_a_choice_that_is_remembered() -> None:
    tuned_tiles.remember(PaperDevice(), Tiles(prefetch_bytes=0))
    assert tuned_tiles.tiles_for(Again()) == Tiles(prefetch_bytes=0)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": 2, "devices": {"paper": {"gemm_rows": 0}}}']
)
def test_a_damaged_file_is_a_warning_that_names_it(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.warns(UserWarning, match=r"tiles\.json: not a list of measured tiles"):
        assert tuned_tiles.tiles_for(PaperDevice()) == Tiles()


@pytest.mark.parametrize("change", [{"gemm_rows": None}, {"depth": 4}])
def test_a_choice_with_other_fields_is_of_another_version(
    file: Path, change: dict[str, int | None]
) -> None:
    tuned_tiles.remember(PaperDevice(), Tiles(gemm_rows=5))
    found = json.loads(file.read_text())
    for name, value in change.items():
        found["devices"]["paper"][name] = value
        if value is None:
            del found["devices"]["paper"][name]
    file.write_text(json.dumps(found))
    assert tuned_tiles.tiles_for(Again()) == Tiles()


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "not-a-folder").write_text("")
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "not-a-folder" / "x"))
    device = PaperDevice()
    with pytest.warns(UserWarning, match=r"tiles\.json.*PTIR_CACHE_DIR"):
        tuned_tiles.remember(device, Tiles(gemm_rows=5))
    assert tuned_tiles.tiles_for(device) == Tiles(gemm_rows=5)


def product(rows: int) -> Program:
    types = (spec("f32", rows, 64), spec("f32", 64, 96))
    program = ptir.capture(lambda x, weight: F.linear(x, weight, layout="io"), *types)
    ports = (Port("x"), Port("weight", "parameter"))
    return Program(program.main, ports, program.version)


@pytest.mark.parametrize(
    ("rows", "changed"),
    [
        (1, Tiles(accumulators=2)),
        (40, Tiles(gemm_rows=5)),
        (40, Tiles(gemm_panels=2)),
        (40, Tiles(min_work=1 << 30)),
    ],
)
def test_kernels_are_written_with_the_tiles_of_their_device(rows: int, changed: Tiles) -> None:
    program = optimized(product(rows)).main
    plain, other = PaperDevice(), PaperDevice()
    other.traits = replace(other.traits, identity="other")
    tuned_tiles.remember(other, changed)
    first, second = (
        compile_block(program, Context.of(device), Options()) for device in (plain, other)
    )
    assert [k.family for k in first.kernels if k] == ["linear"]
    launches = [
        (made.source, [k.workgroups for k in made.kernels if k]) for made in (first, second)
    ]
    assert launches[0] != launches[1]
    assert first.source == compiled(product(rows)).source


def test_streams_are_fetched_so_many_bytes_ahead() -> None:
    """Every word of a weight, and nothing else of the product, by its own distance in elements."""
    program = optimized(product(1)).main
    sources = {}
    for ahead in (0, 4096):
        device = PaperDevice()
        device.traits = replace(device.traits, identity=f"{ahead} bytes ahead")
        tuned_tiles.remember(device, Tiles(prefetch_bytes=ahead))
        sources[ahead] = compile_block(program, Context.of(device), Options()).source
    asked = re.findall(r"FETCH_AHEAD\((b\d+) \+ (.*)\);", sources[4096].partition("__kernel")[2])
    loads = re.findall(r"= vload16\(0, (b\d+) \+ (.*)\);", sources[4096])
    assert asked
    assert [(buffer, f"{at} + 1024") for buffer, at in loads if buffer == asked[0][0]] == asked
    assert "FETCH_AHEAD(" not in sources[0].partition("__kernel")[2]


@pytest.mark.parametrize("ahead", [0, 4096])
def test_weights_of_few_bits_are_fetched_by_a_distance_of_their_own(ahead: int) -> None:
    def body(x: Any, words: Any, scale: Any, bias: Any) -> Any:
        return F.quantized_linear(x, words, scale, bias, bits=4, group=32)

    types = (spec("f32", 1, 64), spec("u32", 48, 8), spec("f32", 48, 2), spec("f32", 48, 2))
    program = ptir.capture(body, *types)
    first, *rest = program.ports
    ports = (first, *(Port(port.name, "parameter") for port in rest))
    device = PaperDevice()
    device.traits = replace(device.traits, identity=f"few bits, {ahead} bytes ahead")
    both = {"prefetch_bytes": 4096 - ahead, "quantized_prefetch_bytes": ahead}
    tuned_tiles.remember(device, Tiles(**both))
    made = optimized(Program(program.main, ports, program.version)).main
    source = compile_block(made, Context.of(device), Options()).source
    assert ("FETCH_AHEAD(" in source.partition("__kernel")[2]) is (ahead > 0)


@pytest.mark.parametrize(("most", "schedule"), [(1, "serial"), (128, "serial"), (256, "coop")])
def test_a_gpu_of_small_workgroups_gets_serial_kernels(
    most: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = GroupsDevice()
    monkeypatch.setattr(device, "traits", replace(device.traits, max_workgroup_size=most))
    monkeypatch.delenv(SCHEDULE, raising=False)
    assert schedule_of(device) == schedule
    monkeypatch.setenv(SCHEDULE, "coop")
    if schedule == "serial":
        with pytest.raises(UsageError, match="and cooperative kernels need 256"):
            schedule_of(device)
