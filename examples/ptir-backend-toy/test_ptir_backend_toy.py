"""A program gives what NumPy gives, ops do what the suite says, the README what is claimed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import ptir
from ptir import functional as F

NAME = "toy"

# Every op on awkward values; `ptir-conformance run` without -k checks everything.
SLICE = "(combinations or awkward or iota) and not window and not patches"
HELD_TO = "core"  # profiles, of those that are claimed


def test_softmax_of_a_product_is_what_numpy_gives():
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype("f4") for shape in [(2, 3), (3, 4)])
    left, right = (ptir.tensor(array, backend=NAME) for array in (x, w))
    powers = np.exp(x.astype("f8") @ w)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(F.softmax(left @ right).numpy(), expected, rtol=1e-5)


def test_a_slice_of_the_corpus_passes():
    command = [sys.executable, "-m", "ptir_testsuite", "run", "--backend", NAME]
    command += ["--claims", HELD_TO, "-k", SLICE]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    # 3 is a part of the corpus without a failure, 0 would be all of it, 1 a failure.
    assert done.returncode == 3, done.stdout + done.stderr
    assert "incomplete: a part only" in done.stdout


def test_the_readme_names_the_profiles_that_are_claimed():
    claims = ", ".join(sorted(ptir.backend(NAME).backend.claims)) or "nothing"
    readme = Path(__file__).with_name("README.md").read_text("utf-8")
    line = f"It claims: {claims}."
    assert line in " ".join(readme.split()), f"README.md does not say {line!r}"
