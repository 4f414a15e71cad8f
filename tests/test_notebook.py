"""What a notebook shows is escaped, bounded and computes nothing; errors name the user's line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture.creation import parameter
from ptir.capture.shown import MOST_DOWNLOADED
from ptir.capture.tensor import call
from ptir.errors import PtirError, UnsupportedError
from ptir.ir.program import Block, Instruction, Port, Program
from ptir.ir.text import literal_digest
from ptir.models.table import presets
from ptir.notebook import MOST_CELL, MOST_ROWS, MOST_TEXT, Card
from ptir.ops.policies import origin, parse_override
from ptir.ops.record import literal
from ptir.params import ArraySource
from ptir.params.store import ParamStore
from ptir.runtime import load_model
from ptir.runtime.chat import Answer
from ptir.runtime.generation import Generation, GenerationStats
from ptir.runtime.load import described
from ptir.runtime.specs import RANDOM, resolve
from tiny_backend import TinyBackend

HOSTILE = "<script>alert('&')</script>"
LIMIT = 60_000
"""Characters of HTML that nothing shown here exceeds."""


class Unread(TinyBackend):
    """Refuses ``tanh``, and to hand out values."""

    name = "unread"

    def download(self, handle, device):
        raise AssertionError("a value was downloaded")

    def refusal(self, query, device):
        return "no tanh here" if query.op == "tanh" else super().refusal(query, device)


UNREAD = Target(Unread(), Unread().devices()[0])


def hostile_program() -> Program:
    program = ptir.capture(lambda x: x + 1.0, ptir.spec("f32", 2))
    return Program(program.main, (Port(HOSTILE),))


def generation() -> Generation:
    stats = GenerationStats(2, 0.5, 3, 1.5, backend=HOSTILE, device="a & b")
    return Generation(HOSTILE, [1, 2, 3], [4, 5], "stop", stats)


def hostile_parameter() -> ptir.Tensor:
    source = ArraySource({HOSTILE: np.zeros(2, np.float32)})
    return parameter(ParamStore(source, UNREAD), HOSTILE)


SHOWN: dict[str, Callable[[], Any]] = {
    "tensor": hostile_parameter,
    "program": hostile_program,
    "override": lambda: parse_override("softmax=force=online", origin("plugin", HOSTILE)),
    "generation": generation,
    "answer": lambda: Answer(HOSTILE, HOSTILE, generation()),
    "card": lambda: Everything(),
}


class Everything:
    """A card with hostile text in every place."""

    def _repr_html_(self) -> str:
        return Card(HOSTILE, [(HOSTILE, HOSTILE)], [HOSTILE], [[HOSTILE]], HOSTILE, HOSTILE).html()


@pytest.mark.parametrize("kind", SHOWN)
def test_html_is_well_formed_and_all_text_in_it_escaped(kind: str) -> None:
    text = SHOWN[kind]()._repr_html_()
    assert len(text) < LIMIT
    root = ElementTree.fromstring(text)
    assert {e.tag for e in root.iter()} <= {"div", "b", "table", "tr", "td", "th", "pre"}
    assert {name for e in root.iter() for name in e.attrib} == {"style"}
    assert HOSTILE in "".join(root.itertext())


def test_html_sets_no_color_that_a_dark_or_light_page_could_hide() -> None:
    root = ElementTree.fromstring(Everything()._repr_html_())
    for element in root.iter():
        for rule in filter(None, element.get("style", "").split(";")):
            name, value = rule.split(":", 1)
            assert name not in ("color", "background") or value in ("inherit", "none")


def test_a_card_is_cut_where_it_is_long_and_says_so() -> None:
    rows = [["x" * 10_000, n] for n in range(10_000)]
    card = Card("t" * 10_000, [("f", "v" * 10_000)], ["name", "number"], rows, "y" * 10**6)
    for text in (card.plain(), card.html()):
        assert text.count("x" * MOST_CELL) == MOST_ROWS
        assert f"{10_000 - MOST_ROWS:,} more rows" in text
        assert f"{10**6 - MOST_TEXT:,} more characters" in text
        assert len(text) < LIMIT


def test_numbers_stand_to_the_right_and_text_to_the_left() -> None:
    lines = Card("t", columns=("a", "n"), rows=[("long name", 1), ("b", 1000)]).plain().split("\n")
    assert lines == ["t", "a              n", "long name      1", "b          1,000"]


def test_a_program_of_a_million_instructions_is_shown_bounded() -> None:
    f32 = ptir.spec("f32", 2)
    one = ptir.capture(lambda x: -x, f32).main.instructions[0]
    long = Instruction("neg", (0,), one.attributes, (f32,))
    count = 10**6
    program = Program(Block((f32,), (long,) * count, (count,)), (Port("x"),))
    assert len(repr(program)) < 200 and len(repr(program.main)) < 200
    assert f"{count:,}" in program._repr_html_() and len(program._repr_html_()) < LIMIT


def test_a_large_literal_in_a_program_is_shown_by_its_digest() -> None:
    held = literal(np.arange(100_000, dtype=np.float32))
    made = ptir.capture(lambda x: x + call("constant", value=held), ptir.spec("f32", 100_000))
    text = made._repr_html_()
    assert literal_digest(held) in text and len(text) < LIMIT


def test_a_tensor_that_is_large_is_not_downloaded() -> None:
    few, many = np.zeros(3, np.float32), np.zeros(MOST_DOWNLOADED // 4 + 1, np.float32)
    large = ptir.tensor(many, backend=UNREAD)
    for text in (repr(large), str(large), large._repr_html_()):
        assert "1.0 MB" in text and len(text) < 2_000
    with pytest.raises(AssertionError, match="downloaded"):
        repr(ptir.tensor(few, backend=UNREAD))  # what is small is


def test_showing_a_pending_tensor_runs_nothing() -> None:
    pending = ptir.tensor([1.0], backend=UNREAD) + 1.0
    assert repr(pending) == "Tensor(f32[1], pending)"
    assert "pending" in pending._repr_html_()
    assert not pending.ref.node.is_source


def test_showing_a_parameter_reads_nothing() -> None:
    shown = hostile_parameter()
    source = shown.ref.node.payload.store.source
    assert HOSTILE in repr(shown) and shown._repr_html_()
    assert source.counters.loads == {}


def test_showing_a_symbol_inside_a_capture_is_no_error() -> None:
    seen: list[str] = []
    ptir.capture(lambda x: seen.append((x + 1.0)._repr_html_()) or x, ptir.spec("f32", 2))
    assert "Tensor f32[2]" in seen[0]


# --- summaries ---


def test_a_summary_counts_what_the_checkpoint_stores_and_reads_none_of_it() -> None:
    model = load_model("random:gpt2-tiny", backend="ref", dtype="f32")
    source = model.store.source
    before = dict(source.counters.loads)
    found, text = model.summary(), model._repr_html_()
    assert dict(source.counters.loads) == before and len(text) < LIMIT
    types = [source.type(name) for name in source.names()]
    assert found.parameters == sum(math.prod(type.shape) for type in types)
    assert found.nbytes == 4 * found.parameters
    top = [part for part in found.parts if part.depth == 0]
    assert sum(part.parameters for part in top) == found.parameters
    assert ("h.0-1", 2) in [(part.name, part.count) for part in top]
    width, layers = 64, 2
    assert f"{2 * 4 * width * layers / 1000:.1f} kB a token" in str(found)
    assert repr(model).startswith("Model('random:gpt2-tiny', gpt2, ref:0")


@pytest.mark.parametrize("quant", ["int4", "int8"])
def test_a_summary_counts_the_values_of_quantized_weights(quant: str) -> None:
    plain = load_model("random:llama-tiny", backend="ref").summary()
    quantized = load_model("random:llama-tiny", backend="ref", quant=quant).summary()
    assert quantized.parameters == plain.parameters
    assert quantized.nbytes < plain.nbytes
    assert any(f"{quant[3:]} bits" in form for part in quantized.parts for form in part.forms)


@pytest.mark.slice(4)
@pytest.mark.parametrize("name", [name for name in presets() if name.endswith("-tiny")])
def test_a_summary_of_every_family_counts_all_that_it_declares(name: str) -> None:
    declared = described(resolve(f"{RANDOM}{name}")).module.parameters()
    model = load_model(f"{RANDOM}{name}", backend="ref")
    assert model.summary().parameters == sum(type.size for type in declared.values())
    assert len(model._repr_html_()) < LIMIT


def test_layers_of_two_kinds_are_folded_by_kind() -> None:
    parts = load_model("random:lfm2-tiny", backend="ref").summary().parts
    assert [part.name for part in parts if part.count > 1] == ["layers.0,2", "layers.1,3"]


# --- the user's line ---


def refused(read: Callable[[], object]) -> str:
    """The note of the error that reading something raises."""
    with pytest.raises(PtirError) as caught:
        read()
    assert isinstance(caught.value, UnsupportedError)
    (note,) = caught.value.__notes__
    return note


def line() -> int:
    """The number of the caller's line."""
    return inspect.stack()[1].lineno


def test_an_error_of_a_lazy_program_names_the_line_of_the_op() -> None:
    x = ptir.tensor([1.0], backend=UNREAD)
    y, where = F.tanh(x), line()
    z = y + 1.0
    assert refused(z.numpy).startswith(f"recorded at {__file__}:{where}")


def test_an_error_of_a_captured_function_names_the_line_inside_it() -> None:
    def function(x: ptir.Tensor) -> ptir.Tensor:
        return F.tanh(x) * 2.0

    where = function.__code__.co_firstlineno + 1
    x = ptir.tensor([1.0], backend=UNREAD)
    assert refused(lambda: ptir.jit(function)(x)).startswith(f"recorded at {__file__}:{where}")


def test_an_error_of_a_program_that_a_backend_is_given_names_the_line_inside_it() -> None:
    program, where = ptir.capture(F.tanh, ptir.spec("f32", 1)), line()
    backend, device = UNREAD.backend, UNREAD.device
    note = refused(lambda: backend.compile(program, device, Options()))
    assert note.startswith(f"recorded at {__file__}:{where}")


def test_an_error_of_a_forced_implementation_names_the_line_of_the_call() -> None:
    image = ptir.tensor(np.zeros((1, 8, 8, 1), np.float32), backend="ref")
    filters = ptir.tensor(np.zeros((1, 1, 1, 1), np.float32), backend="ref")
    with ptir.overrides(conv2d="force=winograd"):
        y, where = F.conv2d(image, filters), line()
        note = refused(y.numpy)
    assert note.startswith(f"recorded at {__file__}:{where}") and "conv2d" in note
