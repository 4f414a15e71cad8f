"""The example backend, built as a wheel and installed by pip: small, independent and right."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import tokenize
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from ptir.cli.new_backend import LEVELS, rendered
from tiny_distributions import pip_install

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "ptir-backend-toy"
MODULE, TEST = "ptir_backend_toy.py", "test_ptir_backend_toy.py"
SOURCE = (EXAMPLE / MODULE).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy, so that nothing is left behind."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "toy")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run([*command, str(folder / "toy")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the wheel."""
    target = tmp_path_factory.mktemp("installed")
    pip_install(target, [wheel])
    return target


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -W error ARGUMENTS`` in a folder, where what pip installed is on the path."""
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def ptir(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from ptir.cli.main import main; sys.exit(main())"
    return run(installed, folder, "-c", program, *arguments)


def slice_of_the_corpus() -> str:
    """The words that the example's own test selects cases by."""
    for node in ast.parse((EXAMPLE / TEST).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SLICE":
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"{TEST} has no SLICE")


def lines_of_code(source: str) -> int:
    """Lines with anything on them but comments and docstrings."""
    described = (ast.Module, ast.FunctionDef, ast.ClassDef)
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, described)]
    texts = [n.body[0] for n in nodes if ast.get_docstring(n) is not None]
    skipped = {line for text in texts for line in range(text.lineno, (text.end_lineno or 0) + 1)}
    spaces = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = [t for t in tokens if t.type not in (*spaces, tokenize.ENDMARKER)]
    return len({line for t in code for line in range(t.start[0], t.end[0] + 1)} - skipped)


def test_lines_are_counted_without_comments_and_docstrings() -> None:
    source = '"""Doc."""\n\n# comment\nx = """a\nb"""  # comment\n\n\n'
    source += 'def f():\n    "Doc."\n    return (\n        x\n    )\n'
    assert lines_of_code(source) == 6


def test_the_backend_has_less_than_60_lines() -> None:
    assert lines_of_code(SOURCE) < 60


@pytest.mark.parametrize("level", LEVELS)
def test_lines_of_the_skeletons_are_what_the_texts_say(level: str) -> None:
    count = lines_of_code(rendered("mine", level)["ptir_backend_mine.py"])
    pages = ["docs/guides/write-a-backend.md", "CHANGELOG.md"]
    for page in pages + ["README.md"] * (level == "interpreter"):
        assert f"{count} lines of code" in " ".join((ROOT / page).read_text("utf-8").split()), page


def test_it_takes_only_the_base_class_from_ptir() -> None:
    imports = [n for n in ast.walk(ast.parse(SOURCE)) if isinstance(n, ast.Import | ast.ImportFrom)]
    wanted = {"import math", "import numpy as np", "from ptir.backend import Interpreter"}
    assert {ast.unparse(n) for n in imports} == wanted


def test_wheel_holds_the_module_and_an_entry_point(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert [name for name in texts if ".dist-info/" not in name] == [MODULE]
    declared = {name.split("/")[1]: text for name, text in texts.items() if "/" in name}
    entry = "toy = ptir_backend_toy:NumPyBackend"
    assert declared["entry_points.txt"].split("\n")[:2] == ["[ptir.backends]", entry]
    assert Parser().parsestr(declared["METADATA"])["License-Expression"] == "MIT"


def test_it_is_listed_with_its_distribution(installed: Path, tmp_path: Path) -> None:
    done = ptir(installed, tmp_path, "backends", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = (row for row in json.loads(done.stdout) if row["name"] == "toy")
    assert (found["distribution"], found["status"]) == ("ptir-backend-toy", "ok")


def test_it_generates_the_tokens_of_the_reference(installed: Path, tmp_path: Path) -> None:
    ids = []
    for backend in ("toy", "ref"):
        asked = ("demo", "-p", "ROMEO:", "-n", "16", "--temp", "0", "--backend", backend, "--json")
        done = ptir(installed, tmp_path, "run", *asked)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["stats"]["backend"] == backend
        assert result["stats"]["host_fallback_ops"] == 0
        ids.append(result["token_ids"])
    assert len(ids[0]) == 16
    assert ids[0] == ids[1]


@pytest.mark.slow
def test_its_own_tests_pass_on_what_was_installed(installed: Path, tmp_path: Path) -> None:
    for name in (TEST, "README.md"):
        shutil.copy(EXAMPLE / name, tmp_path)
    done = run(installed, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


FAULTS = {
    "take": ('np.take(x, indices, axis, mode="clip")', "np.take(x, indices % x.shape[axis], axis)"),
    "div": (" - (y == 0)", ""),
    "rem": ("np.where(y == 0, x + np.fmod(x, y), np.fmod(x, y))", "np.mod(x, y)"),
    "pow": ("np.where(y < 0, inverse, ", "np.where(y < 0, 0, "),
    "maximum": ("np.copysign(1e-300, x, dtype=float)", "np.float64(0)"),
    "reduce": ('{"initial": -np.inf}', '{"initial": -1.0}'),
    "dot_general": ("[*lhs_batch, *sorted({*left} ^ {*right})]", "sorted({*left} | {*right})"),
    "cast": ("x = np.nan_to_num", "x = x.astype(dtype) if 1 else np.nan_to_num"),
    "scatter_reduce": ("all(0 <= i < n", "all(-n <= i < n"),
    "shift_right": ("shift_right=right_shift", "shift_right=left_shift"),
    "round": ("round=rint", "round=trunc"),
    "iota": ("np.indices(shape)[axis]", "np.indices(shape)[0]"),
    "slice": ("strides or [1] * x.ndim", "[1] * x.ndim"),
}
"""By op, a piece of the module and what stands there instead: wrong, but it runs."""


@pytest.fixture(scope="module")
def mismatches(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The ops in which the slice finds wrong results when the module has all faults at once."""
    folder = tmp_path_factory.mktemp("faults")
    broken, report = folder / "broken", folder / "report.jsonl"
    shutil.copytree(installed, broken)
    source = SOURCE
    for right, wrong in FAULTS.values():
        assert source.count(right) == 1, f"{right!r} is not in {MODULE}, once"
        source = source.replace(right, wrong)
    (broken / MODULE).write_text(source, encoding="utf-8")
    words = f"({slice_of_the_corpus()}) and not program"
    options = ["--claims", "core", "--jobs", "0", "-k", words, "--json", str(report)]
    done = run(broken, folder, "-m", "ptir_testsuite", "run", "--backend", "toy", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = map(json.loads, report.read_text(encoding="utf-8").splitlines())
    return {row["op"] for row in rows if row.get("outcome") == "mismatch"}


@pytest.mark.slice(2)
@pytest.mark.slow
@pytest.mark.parametrize("op", FAULTS)
def test_slice_of_the_corpus_finds_a_wrong_op(op: str, mismatches: set[str]) -> None:
    assert op in mismatches


@pytest.mark.slow
def test_slice_of_the_corpus_says_nothing_of_ops_that_are_right(mismatches: set[str]) -> None:
    right = {"add", "mul", "exp", "erf", "compare", "concat", "transpose", "reshape", "bitcast"}
    assert not right & mismatches
