"""The rooms of each package: their order, which is the import rule, and what lives in each.

A module imports only from its own room and the rooms above it, and within a room that is divided
further (``INNER``) from its own part and those above. tests/test_layers.py holds modules to this
order, and the tables of docs/internals/layout.md are written from it.
"""

from __future__ import annotations

from typing import Final

PLANNED: Final = "planned: no files yet"

ROOMS: Final[dict[str, dict[str, str]]] = {
    "ptir": {
        "errors": "the error family, with codes and exit codes",
        "units": "bytes and seconds for people, and bytes as people write them",
        "switches": "the `PTIR_*` variables that switch something on: one row each in `SWITCHES` "
        "(1, 0 or unset; anything else is an error), and those that limit bytes: `LIMITS`",
        "files": "reading files that are given, up to a limit",
        "notebook": "what a notebook shows of an object: a card, as text and as HTML",
        "events": "records that capture, passes and executables emit",
        "types": "element types, tensor types",
        "weights": "one record per format of weights; the table of formats; see "
        "[weights.md](weights.md)",
        "ir": "attributes, blocks, programs; printer, parser, JSON, digests",
        "ops": "one record per op; numerics; the verifier; the table of implementations",
        "params": "parameter ids, sources, the store that loads on first use",
        "rewrite": "patterns, the table of rules, the engine; functionals found in ops, see "
        "[patterns.md](patterns.md)",
        "backend": "the contract, level-1 interpreter, level-2 dialect and device, discovery, "
        "trials, probe, the disk cache and the state of code that it holds for",
        "sharding": "which axes of ops go together, and ops on parts of values",
        "passes": "one pass per file, and the pipeline",
        "partition": "programs partitioned among workers, in phases; see "
        "[partition.md](partition.md)",
        "codegen": "programs to fused kernels, lowered to what a language has, planned and "
        "replayed; see [codegen.md](codegen.md)",
        "capture": "lazy tensors, `jit`, `capture`, plans, optimized programs on disk",
        "functional": "functions on tensors; composites and their implementations",
        "nn": "layers: declared parameters and one functional each",
        "models": "one architecture per file, by `model_type`",
        "checkpoint": "folders, single files, archives; `gguf`: GGUF files; `quantized`: "
        "folders whose weights are quantized; `gptrs`: files of gpt.rs",
        "stores": "models that other programs keep on this machine, or that lie in a folder, by "
        "name",
        "text": "tokenizers, also of GGUF files, stop strings; see [tokenizers.md](tokenizers.md); "
        "`chat_template`: messages as prompts",
        "vision": "opening images safely, preparing them as a checkpoint says, names of classes",
        "audio": "opening recordings safely, other rates, log-mel features",
        "plugins": "every hook, and the manager",
        "runtime": "loading, generation, conversations, the model handle, prepacked weights, "
        "calibration, the list of models",
        "debug": "what two backends, or two traces, differ in; bisection, with reproducers",
        "peers": "the same model in another library, which runs in a process of its own: outputs, "
        "layers, times",
        "trace": "sinks: dumps (and dumped programs, read again), statistics, profiles, timelines",
        "report": "pages of HTML that hold all that they show; `assets`: what draws them",
        "cli": "one file per command",
    },
    "ptir_testsuite": {
        "oracles": "exact numbers, what every op's results must be, and how far off they may be",
        "corpus": "what is run: cases derived from the op records, composites, programs, scripts, "
        "models",
        "running": "outcomes, one case phase by phase, judging, workers; `kinds`: one file per "
        "kind of item",
        "reports": "report files, verdicts, waivers, `verify`, tables, badges",
        "mutants": "planted faults and impostors, which grade the corpus",
        "witnesses": "other people's evidence: NumPy's tables, ONNX's node tests",
        "cli": "`ptir-conformance`",
        "plugin": "the pytest plugin",
        "hooks": "`ptir conformance`",
        "__main__": "`python -m ptir_testsuite`",
    },
}
"""By package, from the top: of each room, in a line, what it holds."""

INNER: Final[dict[str, tuple[str, ...]]] = {
    "ptir.codegen": (
        *("expressions", "kernel_ir", "lowering", "wgsl", "fusion", "weights", "schedules"),
        *("processor", "families", "planning", "artifact", "launching", "tuning", "context"),
        *("compile", "partitioned", "explain", "backend", "api"),
    ),
}
"""Rooms that have rooms of their own, from the top; the pages of these say what each holds."""

BEGIN: Final = (
    "<!-- Rooms of {package}, written by scripts/generate_docs.py from scripts/rooms.py -->"
)
END: Final = "<!-- end of rooms -->"


def with_tables(page: str) -> str:
    """``page`` with the table of every package written anew between its marks.

    Raises ``ValueError`` where a mark is missing.
    """
    for package in ROOMS:
        begin = BEGIN.format(package=package)
        before, opened, rest = page.partition(begin)
        _, closed, after = rest.partition(END)
        if not opened or not closed:
            raise ValueError(f"the page has no {begin if not opened else END}; put it back")
        page = f"{before}{begin}\n\n{table(package)}\n{END}{after}"
    return page


def table(package: str) -> str:
    """The rooms of a package as a table of the page."""
    rows = (f"| `{room}` | {holds} |\n" for room, holds in ROOMS[package].items())
    return f"| room | what lives there |\n|---|---|\n{''.join(rows)}"
