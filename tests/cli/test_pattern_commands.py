"""What is raised, what each pass did, and what is computed once: three views of the compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ptir
from devices import device
from ptir.cli.folded import folded
from ptir.runtime.explain import decode_step
from running import Command, command, llama_folder, model

__all__ = ["command"]
pytestmark = pytest.mark.turns(2)


def test_patterns_are_listed_with_what_a_target_takes(command: Command) -> None:
    listed = command("patterns")
    assert listed.code == 0
    assert "by logarithm" in listed.out
    records = {r["functional"]: r for r in command("patterns", "--target", "ref", "--json").value}
    assert records["attention"]["attributes"] == ["scale", "soft_cap", "causal", "window"]
    assert records["softmax"]["refusal"] is None
    assert any("lowering" in (r["refusal"] or "") for r in records.values())
    assert records["rope"]["operands"] == "x[B,H,T,D] positions:i32[B,T] frequencies[P]"
    assert all(spelling["doc"] for r in records.values() for spelling in r["spellings"])


def test_dump_shows_each_pass_and_where_rules_fired(command: Command, tmp_path: Path) -> None:
    folder = llama_folder(tmp_path, num_hidden_layers=1)
    text = command("dump", folder, "--passes", "--context", 8).out
    heads = [line for line in text.splitlines() if line.startswith("# ")]
    assert heads[0].startswith("# 01 canonicalize: ")
    assert any(head.startswith("# 04 raise: nothing changed") for head in heads)
    assert "reshape reshape on reshape at" in text
    runs = command("dump", folder, "--passes", "--context", 8, "--json").value
    assert [run["pass"] for run in runs][:4] == ["canonicalize", "cse", "dce", "raise"]
    assert {"rule", "op", "location"} == set(runs[0]["firings"][0])
    # Nobody wrote what a command calls: lines are those of the model, and not of click.
    files = {Path(one["location"]["file"]).name for run in runs for one in run["firings"]}
    assert "llama.py" in files and "core.py" not in files
    last = text[text.rindex("ptir 1.0") :].partition("\n#")[0]
    assert ptir.parse(last) == ptir.parse(
        command("dump", folder, "--optimized", "--context", 8).out
    )
    refused = command("dump", folder, "--passes", "--optimized")
    assert (refused.code, "give one of them" in refused.err) == (2, True)


def test_folded_parameters_have_ids_bytes_and_sources(command: Command) -> None:
    loaded = model(dtype="auto")
    found = command("explain", "demo", "--folded", "--json").value
    assert found == folded(loaded, decode_step(loaded, 64, 0))
    told = command("explain", "demo", "--folded").out
    assert "values are computed once" in told


def test_folded_parameters_of_a_packing_backend() -> None:
    device("c")
    loaded = ptir.load_model("demo", backend="c")
    records = folded(loaded, decode_step(loaded, 64, 0))
    assert records
    assert {one["id"].partition(":")[0] for one in records} == {"derived"}
    assert len({one["id"] for one in records}) == len(records)
    panel = next(one for one in records if one["of"] == ["h.0.mlp.c_fc.weight"])
    assert panel["bytes"] > 0
    assert panel["computed"][-1] in ("transpose", "reshape")
    assert json.dumps(records)
