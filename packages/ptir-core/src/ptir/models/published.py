"""What Transformers calls the class of a language model: ``architectures`` of a config.json."""

from __future__ import annotations

from typing import Final

NAMES: Final = {
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "opt": "OPTForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "stablelm": "StableLmForCausalLM",
}
"""By ``model_type``, where it is not what the others are called by."""


def class_of(model_type: str) -> str:
    """The class of a family that generates: ``Qwen3_5MoeForCausalLM`` of ``qwen3_5_moe_text``."""
    if model_type in NAMES:
        return NAMES[model_type]
    parts = model_type.removesuffix("_text").split("_")
    named = (f"_{part}" if part.isdigit() else part.capitalize() for part in parts)
    return f"{''.join(named)}ForCausalLM"
