"""The example plugin, built as a wheel and installed by pip, on a model that it does not know."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ptir
from tiny_distributions import pip_install

pytestmark = pytest.mark.turns(3)

MODULE = "ptir_plugin_sigmoid"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / MODULE.replace("_", "-")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the wheel, which is built from a copy."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "plugin")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run([*command, str(folder / "plugin")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    target = tmp_path_factory.mktemp("installed")
    pip_install(target, [*folder.glob("*.whl")])
    return target


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = {**os.environ, "PYTHONPATH": path, "PTIR_CACHE_DIR": str(installed / "cache")}
    program = "import sys; from ptir.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-W", "error", "-c", program, *arguments, "--backend", "ref"]
    done = subprocess.run(command, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_a_model_takes_the_implementation_and_the_sink_tells(
    installed: Path, tmp_path: Path
) -> None:
    asked = ("--dump-dir", str(tmp_path), "--dump-mode", "compile")
    given = run(installed, "run", "demo", "-p", "ROMEO:", "-n", "4", "--temp", "0", *asked)
    assert given.stdout.split() == ["I", "have", "a"]
    used = json.loads((tmp_path / "used.json").read_text(encoding="utf-8"))
    assert "gelu=sigmoid" in used["implementations"]
    assert not {one for one in used["implementations"] if one.startswith("gelu=")} - {
        "gelu=sigmoid"
    }
    assert used["rules"]["sign of a product"] > 0


def test_it_is_listed_with_who_asked_and_loses_to_the_command_line(installed: Path) -> None:
    said = json.loads(run(installed, "overrides", "--json").stdout)
    (asked,) = said["in_force"]
    assert asked == {
        "target": "gelu[approximate=tanh]",
        "policy": "force=sigmoid",
        "origin": "sigmoid",
    }
    (gelu,) = (one for one in said["functionals"] if one["functional"] == "gelu")
    assert [one["name"] for one in gelu["implementations"]] == ["portable", "sigmoid"]
    other = json.loads(run(installed, "overrides", "--json", "--override", "gelu=default").stdout)
    assert [one["origin"] for one in other["in_force"]] == ["command line"]


def test_it_is_gelu_in_float64_and_the_model_computes_with_it(installed: Path) -> None:
    spec = importlib.util.spec_from_file_location("sigmoid_example", EXAMPLE / f"{MODULE}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = np.linspace(-9, 9, 501, dtype=np.float32)
    found = module.by_sigmoid(ptir.tensor(x, backend="ref"), approximate="tanh").numpy()
    wide = x.astype("f8")
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    np.testing.assert_allclose(found, wide * 0.5 * (1 + np.tanh(inner)), rtol=3e-5, atol=1e-7)
    given = ("forward", "demo", "-p", "ROMEO:", "--json")
    mine, plain = (
        run(installed, *given, *more).stdout for more in ((), ("--override", "gelu=default"))
    )
    assert json.loads(mine)["outputs"] != json.loads(plain)["outputs"]
