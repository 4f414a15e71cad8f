"""An op made up in one file of a plugin gets everything an op of ours has, without an edit."""

from __future__ import annotations

import json
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import ptir
from comparing import assert_same
from evaluation import awkward, evaluate
from ptir import functional, ops, plugins
from ptir.capture import call
from ptir.cli.main import main
from ptir.errors import TypeRuleError, VerifyError
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.ops.record import OPS
from ptir.ops.verify import verify
from ptir.passes import PassContext
from ptir.passes.legalize import legalize
from ptir.rewrite.engine import rewrite
from ptir.rewrite.rules import EXACT
from ptir.types import spec
from running import REF
from test_generated_docs import generator
from tiny_backend import ONE, TinyBackend
from tiny_distributions import Site, site

__all__ = ["site"]

HYPOT2 = textwrap.dedent('''
    """x*x + y*y as an op."""

    from ptir import ops
    from ptir.ops.classes import NUMERIC
    from ptir.ops.record import Array, define, refusals, sample
    from ptir.plugins import hookimpl

    TWO = ("x", "y")

    def rule(call):
        x, y = call.types
        call.require(x == y, "match", f"x is {x} and y is {y}; make them equal")
        return x

    hypot2 = define(
        "hypot2",
        "x y",
        dtypes=NUMERIC,
        rule=rule,
        reference=lambda xp, x, y: xp.add(xp.mul(x, x), xp.mul(y, y)),
        doc="x*x + y*y, each step rounded.",
        traits="elementwise",
        accuracy="rounded",
        decomposition=lambda x, y: ops.add(ops.mul(x, x), ops.mul(y, y)),
        samples=(
            sample(Array("f32", [3, -1.5]), Array("f32", [4, 0]), gives=Array("f32", [25, 2.25])),
            sample(Array("i8", [12]), Array("i8", [1]), gives=Array("i8", [-111])),
        ),
        bad_calls=refusals("x y", NUMERIC, "f32[2]", "f32[2]"),
    )

    @hookimpl
    def ptir_ops():
        return [hypot2]
''')


@pytest.fixture
def hypot2(site: Site) -> Iterator[ops.Op]:
    site.plugin("hypot2", HYPOT2)
    installed = plugins.install()
    assert installed.failures() == ()
    yield OPS["hypot2"]
    del OPS["hypot2"]


def test_builder_type_rule_and_verifier(hypot2: ops.Op) -> None:
    x, y = source(spec("f32", 2)), source(spec("f32", 2))
    block = freeze([ops.hypot2(x, y)], [x, y])
    assert block.output_types == (spec("f32", 2),)
    program = Program(block, (Port("x"), Port("y")))
    verify(program)
    assert ptir.parse(str(program)) == program
    with pytest.raises(TypeRuleError, match=r"hypot2\(f32\[2\], f32\[3\]\): x is f32\[2\] and y"):
        ops.hypot2(x, source(spec("f32", 3)))
    (instruction,) = block.instructions
    longer = replace(block, instructions=(replace(instruction, types=(spec("f32", 3),)),))
    with pytest.raises(VerifyError, match=r"the result is \(?f32\[2\]\)?, not \(?f32\[3\]"):
        verify(replace(program, main=longer))


def test_tensors_functional_and_reference_backend(hypot2: ops.Op) -> None:
    x = ptir.tensor(np.array([3, -1.5], np.float32), backend=REF)
    assert call("hypot2", x, x + 1).numpy().tolist() == [25.0, 2.5]
    assert functional.hypot2(x, 2).numpy().tolist() == [13.0, 6.25]
    assert "hypot2" in dir(functional)
    small = ptir.tensor(np.array([12], np.int8), backend=REF)
    assert functional.hypot2(small, 1).numpy().tolist() == [-111]
    replayed = ptir.jit(lambda a: functional.hypot2(a, a) + 1)
    assert replayed(x).numpy().tolist() == [19.0, 5.5]


def test_constants_fold(hypot2: ops.Op) -> None:
    constants = [
        OPS["constant"](value=ops.record.literal(np.array(v, np.float32))) for v in ([3.0], [4.0])
    ]
    (folded,) = rewrite(freeze([ops.hypot2(*constants)], []), EXACT, {}).instructions
    assert folded.op == "constant"
    assert folded.attributes["value"].numpy().tolist() == [25.0]


def test_backend_that_refuses_it_gets_the_decomposition(hypot2: ops.Op) -> None:
    class Refuses(TinyBackend):
        def refusal(self, query, device):
            return "unknown" if query.op == "hypot2" else None

    x, y = source(spec("bf16", 256)), source(spec("bf16", 256))
    program = Program(freeze([ops.hypot2(x, y)], [x, y]), (Port("x"), Port("y")))
    lowered = legalize(program, PassContext(Refuses(), ONE[0]))
    assert [i.op for i in lowered.main.instructions] == ["mul", "mul", "add"]
    inputs = awkward(program.inputs)
    with np.errstate(all="ignore"):
        found, wanted = evaluate(lowered.main, inputs), evaluate(program.main, inputs)
    assert_same(found, wanted)


def test_documentation_and_command_line(hypot2: ops.Op, capsys: pytest.CaptureFixture[str]) -> None:
    page = generator().pages()["reference/ops.md"]
    assert "| [hypot2](#hypot2) | numeric | rounded | core | yes |" in page
    assert 'check("hypot2", f32([3, -1.5]), f32([4, 0]),' in page
    assert main(["ops", "hypot2"]) == 0
    assert "x*x + y*y, each step rounded." in capsys.readouterr().out
    assert main(["ops", "--json"]) == 0
    assert "hypot2" in [record["name"] for record in json.loads(capsys.readouterr().out)]


def test_op_of_a_taken_name_is_one_broken_plugin(site: Site) -> None:
    site.plugin("sine", HYPOT2.replace('"hypot2"', '"sin"'))
    (failure,) = plugins.install().failures()
    assert (failure.name, failure.status) == ("sine", "broken")
    assert "op 'sin' is defined twice; choose another name" in failure.reason
    assert OPS["sin"].operands == ("operand",)


def test_loading_a_model_from_python_loads_plugins(site: Site) -> None:
    site.plugin("hypot2", HYPOT2)
    site.plugin("sick", "raise OSError('no disk')")
    words = "plugin sick of tiny-sick 1.0 is broken: import of tiny_sick failed: OSError: no disk"
    try:
        with pytest.warns(RuntimeWarning, match=words):
            ptir.load_model("random:gpt2-tiny", backend=REF)
        assert "hypot2" in OPS
        with warnings.catch_warnings(action="error"):  # said once
            ptir.load_model("random:gpt2-tiny", backend=REF)
    finally:
        OPS.pop("hypot2", None)


def test_the_command_line_lists_it_without_anything_loaded_before(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.plugin("hypot2", HYPOT2)
    try:
        assert main(["ops", "hypot2"]) == 0
    finally:
        OPS.pop("hypot2", None)
    assert "x*x + y*y, each step rounded." in capsys.readouterr().out
