"""Experts under the names of their family: what is cut is what was put together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptir.checkpoint import open_checkpoint, save_folder
from ptir.models.table import definition
from ptir.params.source import ArraySource
from ptir.params.stacked import stacked
from ptir.params.unstacked import in_own_names, unstacked
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint

NAMES = {
    "mixtral-tiny": "block_sparse_moe.experts.4.w2.weight",
    "qwen3_moe-tiny": "mlp.experts.5.down_proj.weight",
    "granitemoe-tiny": "block_sparse_moe.input_linear.weight",
    "qwen3.5-moe-tiny": "mlp.experts.3.up_proj.weight",
    "qwen3_next-tiny": "mlp.experts.3.gate_proj.weight",
}
"""A preset, and the end of a name that its folders have."""


@pytest.mark.parametrize("preset", NAMES)
def test_experts_are_put_together_again(preset: str) -> None:
    given = random_checkpoint(preset, 0)
    rules = definition(str(given.config["model_type"])).stacked
    experts = given.config.get("num_local_experts", given.config.get("num_experts"))
    written = unstacked(given.source, rules, experts)
    assert any(name.endswith(NAMES[preset]) for name in written.names())
    assert not [*in_own_names(written, rules)] and [*in_own_names(given.source, rules)]
    again = stacked(written, rules)
    assert {*again.names()} == {*given.source.names()}
    for name in given.source.names():
        assert again.type(name) == given.source.type(name)
        assert np.array_equal(again.read(name), given.source.read(name)), name
    for name in written.names():
        assert written.type(name).shape == written.read(name).shape, name
        written.release(name)
    assert unstacked(written, rules, experts) is written


def test_experts_of_a_file_of_three_axes_are_cut_too(tmp_path: Path) -> None:
    given = random_checkpoint("mixtral-tiny", 0)
    back = with_files(open_checkpoint(save_gguf(given, tmp_path / "m.gguf")))
    opened = open_checkpoint(save_folder(back, tmp_path / "back")).source
    rows = given.source.read("layers.1.mlp.experts.up_proj.weight")
    found = opened.read("layers.1.block_sparse_moe.experts.3.w3.weight")
    assert np.array_equal(found, rows[3 * len(found) : 4 * len(found)])
    assert np.array_equal(
        opened.read("layers.1.block_sparse_moe.gate.weight"),
        given.source.read("layers.1.mlp.gate.weight"),
    )


def test_gate_and_up_of_a_file_are_one_where_their_family_has_them_so(tmp_path: Path) -> None:
    given = random_checkpoint("granitemoe-tiny", 0)
    back = with_files(open_checkpoint(save_gguf(given, tmp_path / "m.gguf")))
    assert "gate_up_parted" not in back.config
    opened = open_checkpoint(save_folder(back, tmp_path / "back")).source
    found = opened.read("layers.2.block_sparse_moe.input_linear.weight")
    wanted = given.source.read("layers.2.mlp.experts.gate_up_proj.weight")
    assert found.ndim == 3 and np.array_equal(found.reshape(wanted.shape), wanted)


def test_what_others_do_not_read_is_told(tmp_path: Path) -> None:
    wanted = (
        r"names that ptir reads and others do not \(layers\.0\..*\); for these, fetch the folder"
        " that the family's authors publish$"
    )
    with pytest.warns(UserWarning, match=wanted):
        with_files(random_checkpoint("gpt_oss-tiny", 0))


def test_what_is_no_expert_stays() -> None:
    arrays = {"norm.weight": np.ones(3, "f4"), "layers.0.mlp.gate.weight": np.ones((2, 3), "f4")}
    found = unstacked(ArraySource(arrays), definition("mixtral").stacked, 2)
    assert found.names() == ("norm.weight", "layers.0.block_sparse_moe.gate.weight")
    assert np.array_equal(found.read("norm.weight"), arrays["norm.weight"])
