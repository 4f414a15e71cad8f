"""The page of weight formats: what each takes, how it is computed with, and what holds it to that.

Sizes and forms come from the records. What a format is compared with, and where its kernels run, is
read from the tests themselves, so the page can claim nothing that no test has.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import prove

from ptir.checkpoint.gguf import READABLE
from ptir.checkpoint.quantized import METHODS
from ptir.checkpoint.quantized.source import method_of, quantized_source
from ptir.models.table import definition
from ptir.params.source import ArraySource, stored_formats
from ptir.runtime.specs import parameter_types
from ptir.weights import WeightFormat
from ptir.weights.affine_form import affine_form, held_as
from ptir.weights.formats import OTHERS, OWN, PACKED_BITS
from ptir.weights.gguf import GGUF
from ptir_testsuite.corpus.composites import CALLS

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
RUNS: Final = "tests/runtime/test_runtime_gguf.py"
PARITY: Final = "tests/parity/test_gguf_formats.py"
RESULTS: Final = Path(__file__).resolve().parent.parent / "benchmarks/results"
PROCESSORS: Final = {"AMD EPYC": "AMD EPYC", "Intel(R) Xeon(R) Processor": "Intel Xeon"}
"""What processors are called in a narrow column."""
FIGURES: Final = {
    "ptir: decode": "{:.0f}",
    "decode, x llama.cpp": "{:.2f}",
    "prefill, x llama.cpp": "{:.2f}",
    "ptir --fast: prefill, x llama.cpp": "{:.2f}",
}
"""The figures of a measurement that have a column, and how they are shown."""
KERNELS: Final = "tests/c/test_c_weights.py"
FOLDERS: Final = "tests/runtime/test_runtime_quantized_folders.py"
DECODED: Final = "tests/weights/test_weights_decode.py"
SEEN: Final = 64
BLOCKS: Final = 128
"""Inputs and outputs of a weight that is encoded to see its record, also of one in blocks."""
OPENED: Final = {'backend="c"': "c", "backend=REF": "ref"}
"""What stands in a test that opens models on a backend, the one that it is about first."""

INTRO = """
# Weight formats

Which formats of weights the engine knows, what each takes in a file and in memory, how it is
computed with, and which test holds it to that. Every number comes from the records ([weight formats
inside](../internals/weights.md)), every claim of a test from the test. [GGUF](gguf.md) and
[quantized folders](quantized-folders.md) say which files are read.

*Bits* are those of one weight, scales and minima included. A *group* is the inputs that share a
scale. What is computed with *words* is multiplied as values of {sizes} bits with a scale, and
perhaps a minimum, for each group; what is computed with *floats* is expanded to `--dtype` (f32,
bf16 or f16) when it is loaded. No number changes either way, but for what `--dtype` rounds. Plain
floats, F32, F16, BF16 and F64, are kept as `--dtype` says.

## GGUF

*Beside* is who else decodes {blocks:,} random blocks of the type to the same bits, by
`ptir.weights.decode` and as words (stage `blocks` of `make prove`). Stages `kernels` take as many
through the kernels of prompts, of decoding and of lookups. *Logits* of a model whose matrices have
the type are those of the dequantized model in Transformers on these backends, to 1e-4 of the
largest. A product and a lookup in each type belong to the conformance corpus, so every stage that
runs it whole runs them: {stages}.

| type | bits in the file | in memory | group | computed with | beside | logits |
|---|---|---|---|---|---|---|
"""

GGUF_END = """
A row again, with its name for `Q4_K`:

```text
python tests/fuzz_blocks.py --type Q4_K
python tests/fuzz_kernels.py --backend c --type Q4_K
ptir-conformance run --backend opencl -k weights-Q4_K
pytest {parity} {runs} -k Q4_K
```
{speed}
## Quantized while they load

`--quant NAME` makes these of floats. Kernels read their words as they are stored, in every
schedule.

| format | bits | group | runs on | kernels read it |
|---|---|---|---|---|
"""

SPEED = """
### Speed

Decoding and a prompt of 512 as multiples of llama.cpp's speed on the same file, as many threads,
two processors, alternating in one run: medians ({docs} says what bounds each). *Exact* products
round as f32 does, `--fast` rounds activations to bytes. A row again:
`python benchmarks/gguf_speed.py --models llama-0.5b --types Q4_K_M --fast`.

| model | type | processor | tok/s | decoding | prompt, exact | prompt, `--fast` |
|---|---|---|---|---|---|---|
"""

WORDS = """
## Words on devices

What words of a size are multiplied with, by format. `quantized_linear` in words of {bits} bits
belongs to the corpus, which each of these stages of `make prove` runs whole: {stages}.

| words | scales and minima, each for so many inputs | formats |
|---|---|---|
"""

FOLDERS_INTRO = """
## Folders

A row is a way of storing that the tests write, by plain loops over numbers that share nothing with
the readers; all {weights:,} weights of a model's projections must be those numbers, and its logits
on {runs} theirs. *Record* is the name that `ptir inspect` shows. Bits are of rows of {seen} inputs
({blocks} where scales are for blocks); longer ones have less of what an output has once.

| way | record | bits in the file | in memory | group | computed with | runs on |
|---|---|---|---|---|---|---|
"""

FOLDERS_END = """
A row again:

```text
pytest {folders} -k awq
```

## Other records

Arrays that some checkpoints hold, as records by themselves; those of folders are made of their
configuration.

| format | bits | computed with | compared in | kernels read it |
|---|---|---|---|---|
"""

END = """
The record of a row, and how it is held:

```python
from ptir.weights import FORMATS
from ptir.weights.affine_form import affine_form, held_as

format = FORMATS["Q6_K"]
form = affine_form(format)
print(format.stored_bits, form.held_bits, form.group, held_as(format))
```

The command that proves it, but for the million blocks:

```text
pytest tests/weights tests/c/test_c_weights.py tests/runtime -k "weights or gguf or folders"
```
"""


def page(note: str) -> str:
    """The whole page."""
    return note + "".join(
        (
            INTRO.format(
                blocks=_module("fuzz_blocks").BLOCKS,
                sizes=_among(PACKED_BITS),
                stages=", ".join(_stages()),
            ),
            *map(_gguf_row, GGUF),
            GGUF_END.format(runs=RUNS, parity=PARITY, speed="".join(_speed())),
            *map(_own_row, OWN),
            WORDS.format(bits=_among(_corpus_bits()), stages=", ".join(_stages())),
            *_word_rows(),
            FOLDERS_INTRO.format(
                weights=_weights_of_a_folder(), runs=_folder_targets()[0], seen=SEEN, blocks=BLOCKS
            ),
            *_folder_rows(),
            FOLDERS_END.format(folders=FOLDERS),
            *map(_other_row, OTHERS),
            END,
        )
    )


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


def _among(values: Sequence[int]) -> str:
    return f"{', '.join(map(str, values[:-1]))} and {values[-1]}"


# --- what tests say ---


@cache
def _module(name: str) -> ModuleType:
    """A module of the tests, by its path there."""
    for folder in (TESTS, (TESTS / name).parent):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return importlib.import_module(Path(name).stem)


def _parameters(path: str, test: str) -> list[Any]:
    """What a test is parametrized with, first mark."""
    function = getattr(_module(path.removeprefix("tests/").removesuffix(".py")), test)
    marks = [mark for mark in function.pytestmark if mark.name == "parametrize"]
    return list(marks[-1].args[1])


def _target(path: str, test: str) -> str:
    """The backend that a test runs on: what its text opens."""
    source = inspect.getsource(getattr(_module(path.removeprefix("tests/")[:-3]), test))
    return next(target for text, target in OPENED.items() if text in source)


def _read_by_kernels(name: str) -> str:
    """Whose kernels read stored blocks of a format in a test."""
    cases = _module(KERNELS.removeprefix("tests/").removesuffix(".py")).CASES
    return "c" if name in cases else "-"


def _logits_on(name: str) -> str:
    """The backends on which logits of a type are compared with those of Transformers."""
    text = (TESTS.parent / PARITY).read_text(encoding="utf-8")
    (backends,) = re.findall(r"^BACKENDS = (\(.*\))$", text, re.MULTILINE)
    left_out = ast.literal_eval(re.findall(r"not in (\(.*\))\]$", text, re.MULTILINE)[0])
    assert name in READABLE and name not in left_out, name
    return ", ".join(ast.literal_eval(backends))


def _corpus_bits() -> list[int]:
    return sorted({call[1]["bits"] for call in CALLS["quantized_linear"]})


def _stages() -> list[str]:
    """The stages that run the whole corpus."""
    return [f"`{name}`" for name, stage in prove.STAGES.items() if stage.report]


def _speed() -> Iterator[str]:
    """What was measured of each type, the newest of a processor."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    measured = [json.loads(path.read_text()) for path in RESULTS.glob("gguf-*.json")]
    for one in sorted(measured, key=lambda one: str(one["date"])):
        for row in one["rows"]:
            model, kind = row["subject"].split(" ", 1)
            if row["figure"] in FIGURES:
                key = model, kind, PROCESSORS[one["processor"]]
                found.setdefault(key, {})[row["figure"]] = row["median"]
    yield SPEED.format(docs="[the log](../results/performance.md)")
    for key, figures in sorted(found.items()):
        if "decode, x llama.cpp" in figures:
            shown = (f.format(figures[n]) if n in figures else "-" for n, f in FIGURES.items())
            yield _row(*key, *shown)


# --- rows ---


def _bits(bits: float) -> str:
    return f"{bits:.3f}".rstrip("0").rstrip(".")


def _held(format: WeightFormat) -> tuple[str, object]:
    """Bits in memory, and the inputs of a group there."""
    form = affine_form(format)
    return ("16 or 32", "-") if form is None else (_bits(form.held_bits), form.group)


def _gguf_row(format: WeightFormat) -> str:
    name, (memory, group) = format.name, _held(format)
    beside = _module("fuzz_blocks").witness(name)
    sizes = _bits(format.stored_bits), memory, group
    return _row(name, *sizes, held_as(format), beside, _logits_on(name))


def _own_row(format: WeightFormat) -> str:
    stages = ", ".join(_stages())
    sizes = _bits(format.stored_bits), format.group
    return _row(format.name, *sizes, stages, _read_by_kernels(format.name))


def _word_rows() -> Iterator[str]:
    """Formats by what kernels see of them."""
    found: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    folders = {way: stored.format for way, stored in _folder_formats().items()}
    named = {**{one.name: one for one in GGUF}, **folders}
    for name, format in named.items():
        form = affine_form(format)
        if form is not None:
            parts = [f"{k.replace('_', ' ')} {t} / {n}" for k, (t, n) in form.parts.items()]
            found[form.bits, ", ".join(parts)].append(name)
    for (bits, parts), names in sorted(found.items()):
        yield _row(f"{bits} bits", parts, ", ".join(names))


def _other_row(format: WeightFormat) -> str:
    source = inspect.getsource(_module(DECODED.removeprefix("tests/").removesuffix(".py")))
    compared = DECODED if f'"{format.name}"' in source else "-"
    sizes = _bits(format.stored_bits), held_as(format)
    return _row(format.name, *sizes, compared, _read_by_kernels(format.name))


# --- folders ---


class Stored(NamedTuple):
    """The record of a way of storing, and the bits of a weight in the file."""

    format: WeightFormat
    bits: float


@cache
def _folder_formats() -> Mapping[str, Stored]:
    """Every way of storing that the tests write, by their name of it.

    What a file has once, whatever its size, is in the bytes of both weights that are encoded.
    """
    found = {}
    for way, case in _module("quantized_folders").CASES.items():
        inputs = BLOCKS if "block" in str(case.config) else SEEN
        one, two = (
            case.encode(np.random.default_rng(0), outputs, inputs)[0]
            for outputs in (inputs, 2 * inputs)
        )
        nbytes = [sum(array.nbytes for array in tensors.values()) for tensors in (one, two)]
        bits = 8 * (nbytes[1] - nbytes[0]) / inputs**2
        config = {"model_type": "llama", case.key: case.config}
        named = {f"m.{name}": array for name, array in one.items()}
        formats = stored_formats(quantized_source(config, ArraySource(named)))
        (format,) = formats.values()
        found[way] = Stored(format, bits)
    return found


def _method(way: str) -> str:
    case = _module("quantized_folders").CASES[way]
    method, _ = method_of({case.key: case.config})
    return next(name for name, one in METHODS.items() if one is method)


def _weights_of_a_folder() -> int:
    """Weights of the projections of the model that folders are written of."""
    folders = _module("quantized_folders")
    config = {**_module("running").LLAMA, **folders.SIZES}
    types = parameter_types(definition("llama"), config)
    return sum(type.size for name, type in types.items() if name.endswith("_proj.weight"))


def _folder_targets() -> tuple[str, Mapping[str, str]]:
    """Where every way runs, and by way where it runs besides."""
    every = "test_numbers_are_those_of_the_definition_and_so_are_the_logits"
    assert set(_parameters(FOLDERS, every)) == set(_module("quantized_folders").CASES)
    compiled = "test_compiled_kernels_read_the_same_numbers"
    beside = {way: _target(FOLDERS, compiled) for way in _parameters(FOLDERS, compiled)}
    return _target(FOLDERS, every), beside


def _folder_rows() -> Iterator[str]:
    every, beside = _folder_targets()
    for way, (format, bits) in _folder_formats().items():
        memory, group = _held(format)
        runs = f"{every}, {beside[way]}" if way in beside else every
        sizes = _bits(bits), memory, group
        yield _row(f"{_method(way)}: {way}", format.name, *sizes, held_as(format), runs)
