"""Groups of one form get one text; what differs in anything that is written gets its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from paper import TARGET, PaperDevice, optimized

import ptir
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.capture.plan import PLANS
from ptir.codegen.families import FAMILIES
from ptir.codegen.families.linear.parts import RoundedActivations
from ptir.codegen.fusion.renumber import Position, Value, renumbered
from ptir.codegen.planning import deduplicate
from ptir.codegen.planning.deduplicate import structural_key, write_kernels
from ptir.codegen.planning.fuse import FusionPlan, fuse
from ptir.codegen.schedules.family import Family
from ptir.codegen.schedules.kernel import EmitContext, Kernel
from ptir.codegen.schedules.tiles import Tiles
from ptir.errors import VerifyError
from ptir.ir.program import Block, Port, Program
from ptir.types import spec
from random_programs import random_program
from together import together


def one_by_one(fused: FusionPlan, site: EmitContext) -> list[Kernel | None]:
    """Every kernel written for its own group."""
    return [
        FAMILIES[group.family].kernel(group, site)
        if any(fused.graph.type(value).size for value in group.outputs)
        else None
        for group in fused.fusions
    ]


def site_of(fused: FusionPlan) -> EmitContext:
    device = PaperDevice()
    return EmitContext(fused.graph, fused.is_stored, device.dialect, device.traits, Tiles())


def facts(kernel: Kernel | None) -> Any:
    """All of a kernel; groups by identity."""
    if kernel is None:
        return None
    fields = {name: value for name, value in vars(kernel).items() if name != "group"}
    return fields, id(kernel.fusion)


def check(block: Block) -> tuple[int, int]:
    """Compares all kernels; the number of groups and of forms."""
    fused = fuse(block)
    found, wanted = write_kernels(fused, site_of(fused)), one_by_one(fused, site_of(fused))
    for kernel, other in zip(found, wanted, strict=True):
        assert facts(kernel) == facts(other)
    return len(fused.fusions), len({structural_key(fused, group)[0] for group in fused.fusions})


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

    kernel_of = Family.kernel

    def counting(family: Family, *given: Any) -> Kernel:
        nonlocal count
        count += 1
        return kernel_of(family, *given)

    monkeypatch.setattr(Family, "kernel", counting)

    def layers(x: Any, *ws: Any) -> Any:
        for w in ws:
            x = F.gelu(F.layer_norm(x, ws[0][0], ws[0][0]) @ w)
        return x

    w = spec("f32", 64, 64)
    program = ptir.capture(layers, spec("f32", 32, 64), *[w] * 7)
    fused = fuse(optimized(program).main)
    kernels = write_kernels(fused, site_of(fused))
    assert len(kernels) == len(fused.fusions) > 8
    assert (
        count
        == len({structural_key(fused, group)[0] for group in fused.fusions})
        < len(kernels) / 2
    )


def forms(body: Callable[..., Any], *types: Any) -> list[Any]:
    """The forms of a program's groups."""
    fused = fuse(optimized(ptir.capture(body, *types)).main)
    return [structural_key(fused, group)[0] for group in fused.fusions]


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


def alike_layers() -> FusionPlan:
    """A program whose layers are alike, and read packed weights."""

    def layers(x: Any, *ws: Any) -> Any:
        for w in ws:
            x = F.gelu(F.linear(F.softmax(x), w, layout="io"))
        return x

    made = ptir.capture(layers, spec("f32", 32, 64), *[spec("f32", 64, 64)] * 4)
    ports = Port("x"), *(Port(f"w{n}", "parameter") for n in range(4))
    return fuse(optimized(Program(made.main, ports, made.version)).main)


def test_reused_kernels_are_written_anew_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = alike_layers()
    monkeypatch.setenv("PTIR_VERIFY", "1")
    write_kernels(fused, site_of(fused))

    def without_types(fused: FusionPlan, group: Any) -> Any:
        (family, instructions, *_), values = structural_key(fused, group)
        return (family, tuple((i[0], *i[4:]) for i in instructions)), values

    def rows(x: Any, y: Any) -> Any:
        return F.softmax(x) + 1.0, F.softmax(y) + 1.0

    fused = fuse(optimized(ptir.capture(rows, spec("f32", 3, 40), spec("f32", 3, 48))).main)
    write_kernels(fused, site_of(fused))
    monkeypatch.setattr(deduplicate, "structural_key", without_types)
    said = (
        r"a row_reduction kernel was reused .*: it says `array kept0, f32, 40` instead of `.*, 48`;"
        r" the key of a fusion \(`structural_key`\)"
    )
    with pytest.raises(VerifyError, match=said):
        write_kernels(fused, site_of(fused))
    monkeypatch.setenv("PTIR_VERIFY", "0")
    write_kernels(fused, site_of(fused))


def test_a_form_holds_all_of_a_detail() -> None:
    fused = alike_layers()
    products = [group for group in fused.fusions if group.family == "linear"]
    assert len({structural_key(fused, group)[0] for group in products}) < len(products) == 4
    group = products[1]
    form, detail, other = structural_key(fused, group)[0], group.detail, products[2]
    changed = {
        "position": other.detail.position,
        "lhs": other.detail.lhs,
        "packed": other.detail.packed,
        "panels": replace(detail.panels, stride=99),
        "rows": detail.rows + 1,
        "rounded": RoundedActivations("dot_bytes"),
    }
    assert changed.keys() | {"quantized"} == {field.name for field in dataclasses.fields(detail)}
    for name, value in changed.items():
        one = replace(group, detail=replace(detail, **{name: value}))
        assert structural_key(fused, one)[0] != form, name
    assert structural_key(fused, replace(group, prologue=other))[0] != form


@dataclass(frozen=True)
class Detail:
    """A record of a family."""

    value: Value
    position: Position
    size: int
    scale: float = 0.0
    several: tuple[Value, ...] = ()
    pairs: Mapping[Value, Value] = dataclasses.field(default_factory=dict)
    inner: Detail | None = None


def test_values_and_instructions_are_renumbered_and_nothing_else() -> None:
    one = Detail(3, 3, 3, -0.0, (3, -1), {}, Detail(4, 4, 4))
    found: Any = renumbered(one, lambda role, n: (role, n + 1))
    assert found[1:] == (
        ("value", 4),
        ("position", 4),
        3,
        "-0x0.0p+0",
        (("value", 4), -1),
        frozenset(),
        (Detail, ("value", 5), ("position", 5), 4, "0x0.0p+0", (), frozenset(), None),
    )

    @dataclass(frozen=True)
    class Both:
        both: tuple[Value, Position]

    with pytest.raises(AssertionError, match="holds values and instructions"):
        renumbered(Both((1, 2)), lambda role, n: n)
