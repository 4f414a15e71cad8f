"""Identities of parameters: stable where they must be, distinct where they must be."""

import copy
import pickle

import pytest

from ptir.errors import UsageError
from ptir.params import BaseParamId, NamespaceId, ParamKey, derived


def test_a_name_has_the_same_id_in_every_process() -> None:
    assert str(BaseParamId.of("wte.weight")) == "95aed7177efe6f3c7ed9f2eeb9dadc80"
    assert len(BaseParamId.of("").value) == 16


def test_names_have_distinct_ids() -> None:
    names = [f"h.{i}.attn.c_attn.{part}" for i in range(50) for part in ("weight", "bias")]
    assert len({BaseParamId.of(name) for name in names}) == 100


def test_every_load_has_its_own_namespace_and_keys() -> None:
    one, two = NamespaceId(), NamespaceId()
    assert one != two
    assert ParamKey.of(one, "w") != ParamKey.of(two, "w")
    assert ParamKey.of(one, "w") == ParamKey.of(one, "w")


@pytest.mark.parametrize("store", [pickle.dumps, copy.deepcopy])
def test_a_namespace_cannot_be_stored(store) -> None:
    with pytest.raises(UsageError, match="cannot be stored; key stored data by its content"):
        store(ParamKey.of(NamespaceId(), "w"))


def test_a_derived_key_depends_on_key_transform_and_backend() -> None:
    space = NamespaceId()
    one, other = ParamKey.of(space, "a"), ParamKey.of(space, "b")
    keys = [
        one,
        derived(one, "pack", "ref"),
        derived(other, "pack", "ref"),
        derived(one, "packr", "ef"),
        derived(one, "transpose", "ref"),
        derived(derived(one, "pack", "ref"), "pack", "ref"),
        derived(ParamKey.of(NamespaceId(), "a"), "pack", "ref"),
    ]
    assert len(set(keys)) == len(keys)
    assert derived(one, "pack", "ref") == keys[1]
    assert keys[1].namespace == space
