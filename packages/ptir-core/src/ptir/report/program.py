"""A program that ran, as the data of a page's sections: graph, roofline, timeline, memory, fusion.

Instructions, values and parts go by their numbers; texts that come again stand once, in ``texts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ptir.backend.explanation import Explanation, functional_of
from ptir.ir.program import Block, Program
from ptir.report.memory import live_bytes
from ptir.report.page import Section, table
from ptir.runtime.layers import LayerPart
from ptir.trace.profile import ProgramProfile, Roofs

GRAPH = (
    "Layers in the order in which they run; open one to see its kernels, and a kernel to see what"
    " it computes. Arcs lead from what makes a value to what reads it."
)
ROOFLINE = (
    "A kernel's FLOPs a second over its FLOPs a byte, under the roofs that were measured. What is"
    " near a roof cannot become faster without doing less. Area: share of the time."
)
TIMELINE = "One run, kernel by kernel. Scroll to zoom, drag to move, click for details."
MEMORY = "Bytes of intermediate values that are needed while each kernel runs."
STORED = "Values that a kernel writes and others read: why they are not fused into one."


def program_sections(profile: ProgramProfile, roofs: Roofs) -> list[Section]:
    """The sections of a program whose parts were timed, or none where nobody can tell them."""
    explanation = profile.explanation()
    works = profile.works(profile.typical())
    if explanation is None:
        return []
    model = _Model(profile.plan.optimized, explanation, works)
    parts = model.parts()
    memory = live_bytes(profile.plan.optimized.main, explanation.parts)
    return [
        Section("graph", "Program", model.graph(), GRAPH),
        Section("roofline", "Roofline", {"roofs": asdict(roofs)}, ROOFLINE),
        Section("timeline", "Timeline", {}, TIMELINE),
        Section("memory", "Memory", {"live": memory, "arena": explanation.arena_bytes}, MEMORY),
        table(
            "Fused",
            ("kernel", "layer", "computes", "instructions", "µs"),
            [
                [p["name"], p["layer"], ", ".join(p["computes"]), len(p["members"]), p["us"]]
                for p in parts
                if len(p["members"]) > 1
            ],
            "Kernels of several instructions, and what is fused into each.",
        ),
        table("Not fused", ("value", "type", "made by", "read by", "why"), model.stored(), STORED),
    ]


class _Model:
    """Numbers for all that a page refers to."""

    def __init__(
        self,
        program: Program,
        explanation: Explanation,
        works: list[tuple[str, LayerPart]],
    ) -> None:
        self.block: Block = program.main
        self.program, self.explanation, self.works = program, explanation, works
        self.texts: dict[str, int] = {}
        self.maker = {v: n for n, (made, _) in enumerate(self.block.numbered()) for v in made}

    def text(self, text: str) -> int:
        """The number of a text."""
        return self.texts.setdefault(text, len(self.texts))

    def graph(self) -> dict[str, Any]:
        """Everything that the other drawings refer to, too."""
        instructions, parts = [*self._instructions()], self.parts()
        return {
            "instructions": instructions,
            "parts": parts,
            "ports": [
                {"name": port.name, "kind": port.kind, "type": str(type)}
                for port, type in zip(self.program.ports, self.block.inputs, strict=True)
            ],
            "outputs": [*self.block.outputs],
            "texts": [*self.texts],
        }

    def _instructions(self) -> Iterator[list[Any]]:
        """Name, type, place, functional, layer, operands and results of each."""
        for results, one in self.block.numbered():
            place = one.location
            yield [
                self.text(one.name),
                self.text(", ".join(map(str, one.types))),
                self.text(str(place)),
                self.text(functional_of(one)),
                self.text(place.layer or ""),
                [*one.operands],
                [*results],
            ]

    def parts(self) -> list[dict[str, Any]]:
        """Each part of a run, with its figures."""
        found = []
        for (layer, work), part in zip(self.works, self.explanation.parts, strict=True):
            found.append(
                {
                    "name": work.name,
                    "kind": work.kind,
                    "schedule": work.schedule,
                    "layer": layer,
                    "computes": [*work.fused],
                    "parameters": [*work.parameters],
                    "members": [*part.members],
                    "reads": [[a.value, a.nbytes] for a in part.reads],
                    "writes": [[a.value, a.nbytes] for a in part.writes],
                    "bytes": work.moved.total,
                    "weights": work.moved.weights,
                    "flops": work.flops,
                    "items": work.items,
                    "us": round((work.seconds or 0.0) * 1e6, 3),
                }
            )
        return found

    def stored(self) -> list[list[Any]]:
        """Values between parts: who makes each, who reads it, and why it is in memory."""
        readers: dict[int, list[str]] = {}
        makers: dict[int, str] = {}
        for (_, work), part in zip(self.works, self.explanation.parts, strict=True):
            for access in part.reads:
                readers.setdefault(access.value, []).append(work.name)
            for access in part.writes:
                makers.setdefault(access.value, work.name)
        whys: Mapping[int, str] = self.explanation.stored
        inputs, rows = len(self.block.inputs), []
        for value, maker in makers.items():
            if value < inputs or (value not in readers and value not in whys):
                continue
            position = self.maker[value]
            name = functional_of(self.block.instructions[position])
            why = whys.get(value, "this backend runs one op at a time")
            read = ", ".join(dict.fromkeys(readers.get(value, ["nobody here"])))
            rows.append([f"%{value} {name}", str(self.block.types[value]), maker, read, why])
        return rows
