"""Importing a graph: names to tensors, node by node, into one program.

A name that a graph does not define is looked up in the graph around it. An operator without a
builder is replaced by the body that ONNX defines for it, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from ptir.capture import Tensor, call
from ptir.errors import CaptureError
from ptir.ir.attributes import Literal
from ptir.ir.graph import Ref, freeze, reachable
from ptir_testsuite.witnesses.enclosure import evaluate
from ptir_testsuite.witnesses.onnx_import.table import (
    Array,
    Node,
    NotImported,
    Reason,
    builder,
    element,
)

GRAPH_KINDS: Final = ("g", "graphs")
UNAVAILABLE: Final[dict[str, Reason]] = {
    **dict.fromkeys(("StringNormalizer", "StringConcat", "StringSplit"), Reason.STRINGS),
    **dict.fromkeys(("RegexFullMatch", "TfIdfVectorizer", "LabelEncoder"), Reason.STRINGS),
    **dict.fromkeys(("SequenceMap", "SequenceEmpty", "SequenceInsert"), Reason.SEQUENCES),
    **dict.fromkeys(("SequenceLength", "SequenceAt", "SequenceConstruct"), Reason.SEQUENCES),
    **dict.fromkeys(("SequenceErase", "SplitToSequence", "ConcatFromSequence"), Reason.SEQUENCES),
    **dict.fromkeys(("Optional", "OptionalHasElement", "OptionalGetElement"), Reason.SEQUENCES),
    **dict.fromkeys(("Adagrad", "Adam", "Momentum", "Gradient"), Reason.TRAINING),
    **dict.fromkeys(("Bernoulli", "RandomUniformLike", "RandomNormalLike"), Reason.RANDOM),
    **dict.fromkeys(("RandomUniform", "RandomNormal", "Multinomial"), Reason.RANDOM),
    **dict.fromkeys(("NonZero", "Unique", "Compress", "NonMaxSuppression"), Reason.SHAPE),
}


class Scope:
    """The values of one graph by name; ``feeds`` are the inputs' arrays, for what is static."""

    def __init__(
        self,
        opset: dict[str, int],
        inputs: Sequence[Ref],
        feeds: Sequence[Array],
        outer: Scope | None = None,
    ) -> None:
        self.opset = opset
        self.inputs = inputs
        self.feeds = feeds
        self.outer = outer
        self.values: dict[str, Tensor | None] = {"": None}
        self.known: dict[tuple[int, int], tuple[Tensor, Array]] = {}

    def lookup(self, name: str) -> Tensor | None:
        """The value called ``name``, here or in a graph around this one."""
        if name in self.values:
            return self.values[name]
        if self.outer is None:
            raise NotImported(Reason.NOT_ATTEMPTED, f"no value is called {name!r}")
        return self.outer.lookup(name)

    def static(self, tensor: Tensor) -> Array:
        """The value that ``tensor`` has in this case, as the op records define it."""
        key = tensor.ref.key
        if key not in self.known:
            try:
                block = freeze([tensor.ref], self.inputs)
            except CaptureError as error:
                raise NotImported(Reason.SHAPE, "a shape changes inside a loop") from error
            self.known[key] = tensor, evaluate(block, self.feeds)[0]
        return self.known[key][1]

    def literal(self, value: int) -> Tensor:
        """An i64 scalar."""
        return constant(np.array(value, np.int64))

    def fixed(self, tensor: Tensor) -> bool:
        """Whether a value is the same in every case: it needs no input."""
        return not any(node.is_source for node in reachable([tensor.ref]))

    def captured(self, graphs: Iterable[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What inner graphs read of this one: values to hand in, and constants to repeat inside."""
        names = sorted({name for graph in graphs for name in free_names(graph)})
        found = {name: value for name in names if (value := self.lookup(name)) is not None}
        fixed = {n: constant(self.static(v)) for n, v in found.items() if self.fixed(v)}
        return {n: v for n, v in found.items() if n not in fixed}, fixed

    def child(self) -> Scope:
        """A scope for a graph inside this one."""
        return Scope(self.opset, self.inputs, self.feeds, self)

    def graph(self, graph: Any) -> list[Tensor]:
        """Import a graph whose inputs are in ``values`` already; its outputs."""
        for initializer in graph.initializer:
            self.values.setdefault(initializer.name, constant(to_array(initializer)))
        self.nodes(graph.node)
        outputs = [self.lookup(output.name) for output in graph.output]
        return [output for output in outputs if output is not None]

    def nodes(self, nodes: Iterable[Any]) -> None:
        """Import nodes in order."""
        for node in nodes:
            self.node(node)

    def node(self, raw: Any) -> None:
        """Import one node and name its results."""
        if raw.op_type in UNAVAILABLE:
            raise NotImported(UNAVAILABLE[raw.op_type], raw.op_type)
        version = self.opset.get(raw.domain, 1)
        build = builder(raw.op_type, version)
        operands = tuple(self.lookup(name) for name in raw.input)
        node = Node(raw.op_type, version, operands, attributes(raw), len(raw.output), self)
        results = None if build is None else build(node)
        if results is None:
            self._body(raw, version)
        else:
            self.bind(raw.output, results if isinstance(results, tuple) else (results,))

    def bind(self, names: Iterable[str], results: Sequence[Tensor | None]) -> None:
        """Name results; those that nobody asked for have no name."""
        self.values |= {name: value for name, value in zip(names, results, strict=False) if name}

    def _body(self, raw: Any, version: int) -> None:
        """Import the nodes that ONNX defines an operator by; raises ``NotImported``."""
        function = function_body(raw, version, [self.lookup(name) for name in raw.input])
        if function is None:
            raise NotImported(Reason.NOT_ATTEMPTED, raw.op_type)
        opset = self.opset | {o.domain: o.version for o in function.opset_import}
        inner = Scope(opset, self.inputs, self.feeds)
        for index, name in enumerate(function.input):
            inner.values[name] = self.lookup(raw.input[index]) if index < len(raw.input) else None
        inner.nodes(bound(function, raw, version))
        asked = [name for name, given in zip(function.output, raw.output, strict=False) if given]
        self.bind(filter(None, raw.output), [inner.lookup(name) for name in asked])


def free_names(graph: Any) -> set[str]:
    """The names that a graph reads but does not define."""
    defined = {value.name for value in (*graph.input, *graph.initializer)}
    free: set[str] = set()
    for node in graph.node:
        inner = [g for a in node.attribute for g in (a.g, *a.graphs)]
        read = {*node.input, *(name for g in inner for name in free_names(g))}
        free |= read - defined
        defined |= set(node.output)
    return (free | {value.name for value in graph.output} - defined) - {""}


def to_array(tensor: Any) -> Array:
    """The elements of a TensorProto; raises ``NotImported`` for types that we do not have."""
    element(tensor.data_type)
    return np.asarray(numpy_helper.to_array(tensor))


def constant(array: Array) -> Tensor:
    """A constant with an array's elements."""
    return call("constant", value=Literal.of(np.asarray(array)))


def attributes(raw: Any) -> dict[str, Any]:
    """A node's attributes as Python values; tensors as arrays, graphs as they are."""
    return {a.name: _value(a) for a in raw.attribute}


def _value(attribute: Any) -> Any:
    found = onnx.helper.get_attribute_value(attribute)
    if isinstance(found, bytes):
        return found.decode()
    if isinstance(found, onnx.TensorProto):
        return to_array(found)
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [text.decode() for text in found]
    return found


def function_body(raw: Any, version: int, operands: Sequence[Tensor | None]) -> Any:
    """The FunctionProto that defines an operator, for operands of these types; or None."""
    if not onnx.defs.has(raw.op_type, raw.domain):
        return None
    schema: Any = onnx.defs.get_schema(raw.op_type, version, raw.domain)
    if schema.has_function:
        text = schema.get_function_with_opset_version(
            _newest(schema.function_opset_versions, version)
        )
    elif schema.has_context_dependent_function:
        usable = _newest(schema.context_dependent_function_opset_versions, version)
        types = [_type_proto(o).SerializeToString() for o in operands]
        text = schema.get_context_dependent_function_with_opset_version(
            usable, raw.SerializeToString(), types
        )
    else:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    return function


def _newest(versions: Sequence[int], version: int) -> int:
    return max([v for v in versions if v <= version] or [min(versions)])


def _type_proto(operand: Tensor | None) -> Any:
    if operand is None:
        return onnx.TypeProto()
    number = onnx.helper.np_dtype_to_tensor_dtype(operand.dtype.numpy)
    return onnx.helper.make_tensor_type_proto(number, operand.shape)


def bound(function: Any, raw: Any, version: int) -> list[Any]:
    """A function's nodes with the attributes of the calling node in place."""
    schema: Any = onnx.defs.get_schema(raw.op_type, version, raw.domain)
    defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}
    given = defaults | {a.name: a for a in function.attribute_proto}
    given |= {a.name: a for a in raw.attribute}
    return [_bound(node, given) for node in function.node]


def _bound(node: Any, given: dict[str, Any]) -> Any:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept = copy.attribute.add()
            kept.CopyFrom(attribute)
            for graph in [*kept.graphs, kept.g]:
                nodes = [_bound(inner, given) for inner in graph.node]
                del graph.node[:]
                graph.node.extend(nodes)
        elif attribute.ref_attr_name in given:
            kept = copy.attribute.add()
            kept.CopyFrom(given[attribute.ref_attr_name])
            kept.name = attribute.name
    return copy
