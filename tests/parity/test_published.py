"""What families are called in Transformers."""

from __future__ import annotations

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ptir.models.published import class_of
from ptir.models.table import GENERATES, MODULES, definition

NESTED = ("mistral3", "gemma3", "gemma4")
"""Texts of models that also see, whose configuration is another."""


GENERATING = [one for one in MODULES if definition(one).capabilities == GENERATES]


@pytest.mark.parametrize("model_type", [one for one in GENERATING if one not in NESTED])
def test_the_class_of_a_family_is_the_one_that_transformers_take(model_type: str) -> None:
    assert class_of(model_type) == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
