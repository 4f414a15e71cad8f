"""Groups of one form get one text; what differs in anything that is written gets its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paper import TARGET, PaperDevice, optimized

import ptir
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.capture.plan import PLANS
from ptir.codegen import alike
from ptir.codegen.alike import form_of, written
from ptir.codegen.families import FAMILIES
from ptir.codegen.fuse import Fused, fuse
from ptir.codegen.kernel import Family, Kernel, Site
from ptir.codegen.tiles import Tiles
from ptir.ir.program import Block
from ptir.types import spec
from random_programs import random_program
from together import together


def one_by_one(fused: Fused, site: Site) -> list[Kernel | None]:
    """Every kernel written for its own group."""
    return [
        FAMILIES[group.family].write(group, site)
        if any(fused.graph.type(value).size for value in group.exits)
        else None
        for group in fused.groups
    ]


def site_of(fused: Fused) -> Site:
    device = PaperDevice()
    return Site(fused.graph, fused.is_stored, device.dialect, device.traits, Tiles())


def facts(kernel: Kernel | None) -> Any:
    """All of a kernel; groups by identity."""
    if kernel is None:
        return None
    fields = {name: value for name, value in vars(kernel).items() if name != "group"}
    return fields, id(kernel.group)


def check(block: Block) -> tuple[int, int]:
    """Compares all kernels; the number of groups and of forms."""
    fused = fuse(block)
    found, wanted = written(fused, site_of(fused)), one_by_one(fused, site_of(fused))
    for kernel, other in zip(found, wanted, strict=True):
        assert facts(kernel) == facts(other)
    return len(fused.groups), len({form_of(fused, group)[0] for group in fused.groups})


@together()
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_get_the_kernels_of_their_own_groups(seed: int) -> None:
    check(optimized(random_program(seed)).main)


@pytest.mark.slice(2)
@pytest.mark.parametrize(
    "given",
    ({}, {"dtype": "bf16"}, {"quant": "int8"}, {"quant": "int4"}),
    ids=("f32", "bf16", "int8", "int4"),
)
@pytest.mark.parametrize("name", ("gpt2-tiny", "llama-tiny"))
def test_models_get_the_kernels_of_their_own_groups(
    name: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANS.clear()  # another test may have compiled the same steps
    blocks = list[Block]()

    def seen(program: Any, device: Any, options: Options) -> Any:
        blocks.append(program.main)
        return compile(program, device, options)

    compile = TARGET.backend.compile
    monkeypatch.setattr(TARGET.backend, "compile", seen)
    model = ptir.load_model(f"random:{name}", backend=TARGET, **given)  # type: ignore[arg-type]
    model.generate(list(range(20)), max_tokens=3)
    largest = sorted(blocks, key=lambda block: -len(block.instructions))[:2]
    for block in largest:
        groups, forms = check(block)
        assert forms < groups, "two layers of a model are alike"


def test_a_form_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counting(family: Family) -> Family:
        def write(*given: Any) -> Kernel:
            nonlocal count
            count += 1
            return family.write(*given)

        return Family(family.name, family.match, write)

    monkeypatch.setattr(alike, "FAMILIES", {n: counting(f) for n, f in FAMILIES.items()})

    def layers(x: Any, *ws: Any) -> Any:
        for w in ws:
            x = F.gelu(F.layer_norm(x, ws[0][0], ws[0][0]) @ w)
        return x

    w = spec("f32", 64, 64)
    program = ptir.capture(layers, spec("f32", 32, 64), *[w] * 7)
    fused = fuse(optimized(program).main)
    kernels = written(fused, site_of(fused))
    assert len(kernels) == len(fused.groups) > 8
    assert count == len({form_of(fused, group)[0] for group in fused.groups}) < len(kernels) / 2


def forms(body: Callable[..., Any], *types: Any) -> list[Any]:
    """The forms of a program's groups."""
    fused = fuse(optimized(ptir.capture(body, *types)).main)
    return [form_of(fused, group)[0] for group in fused.groups]


def test_what_is_written_differently_has_another_form() -> None:
    x, y = spec("f32", 6, 8), spec("f32", 6, 8)

    def differing(x: Any, y: Any) -> Any:
        sums = (x * y, x * x, y * x * 2.0, y * x * 3.0, x - y)
        return tuple(F.exp(s) for s in sums), F.exp(x.reshape(8, 6)), F.exp(x[:, :4])

    found = forms(differing, x, y)
    assert len(set(found)) == len(found) == 7

    def same(x: Any, y: Any, z: Any) -> Any:
        return F.exp(x - y), F.exp(y - z), F.exp(z - x)

    assert len(set(forms(same, x, y, x))) == 1
