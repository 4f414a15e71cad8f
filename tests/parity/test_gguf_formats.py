"""A Llama in every type of GGUF, beside the dequantized one in Transformers, on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ptir
from gguf_models import kind_named, kind_of_matrices, write
from ptir.checkpoint import open_checkpoint
from ptir.checkpoint.gguf import READABLE
from running import LLAMA, llama_folder

WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
"""What blocks of 256 divide."""
TOKENS = np.random.default_rng(2).integers(0, LLAMA["vocab_size"], 40)
TYPES = [name for name in READABLE if name not in ("I8", "I16", "I32", "I64", "F64")]
"""Those that matrices of weights have, and that ``gguf`` writes."""
BACKENDS = ("ref", "c", "opencl")


def theirs(config: dict[str, Any], weights: dict[str, Any]) -> Any:
    """The logits of the numbers that the file stands for."""
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(
        made, attn_implementation="eager", dtype=torch.float32
    ).eval()
    named = {
        name if name.startswith("lm_head") else f"model.{name}": value
        for name, value in weights.items()
    }
    model.load_state_dict({name: torch.tensor(value) for name, value in named.items()})
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TYPES)
def test_logits_are_those_of_the_dequantized_model(name: str, backend: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama_folder(tmp_path, **WIDE))
    written = write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(kind_named(name)))
    wanted = theirs(dict(checkpoint.config), written.weights)
    found = ptir.load_model(written.path, backend=backend).forward(TOKENS)
    assert np.abs(wanted).max() > 0.01
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
