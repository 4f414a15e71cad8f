"""Which modules of a peer compute what layers of ours do."""

from __future__ import annotations

from ptir.peers.names import called_alike, of_the_same_parameters


def test_the_prefix_that_most_names_have_wins() -> None:
    theirs = ["model", "model.norm", "model.layers.0", "model.layers.0.mlp", "extra.norm"]
    found = called_alike(["layers.0", "layers.0.mlp", "norm", "pool"], ["lm_head", *theirs])
    assert found == {
        "layers.0": ("model.layers.0",),
        "layers.0.mlp": ("model.layers.0.mlp",),
        "norm": ("model.norm",),
    }


def test_a_name_is_whole_parts_between_dots() -> None:
    assert called_alike(["norm"], ["post_norm", "model.post_norm"]) == {}


OURS = ["emb", "blocks.0.qkv", "blocks.0.attn", "blocks.0.up", "blocks.0", "head"]
THEIRS = {
    "e.word.weight": ("emb.weight", None),
    "l.0.att.q.weight": ("blocks.0.qkv.weight", 0),
    "l.0.att.k.weight": ("blocks.0.qkv.weight", 1),
    "l.0.att.q.bias": ("blocks.0.qkv.bias", 0),
    "l.0.att.k.bias": ("blocks.0.qkv.bias", 1),
    "l.0.mid.dense.weight": ("blocks.0.up.weight", None),
    "c.weight": ("head.weight", None),
}
MODULES = ["e", "e.word", "l.0", "l.0.att", "l.0.att.q", "l.0.att.k", "l.0.mid", "l.0.mid.dense"]


def test_layers_with_the_same_parameters_are_the_same() -> None:
    found = of_the_same_parameters(OURS, [*MODULES, "c"], THEIRS)
    assert found == {
        "emb": ("e.word",),
        "blocks.0.qkv": ("l.0.att.q", "l.0.att.k"),
        "blocks.0.up": ("l.0.mid.dense",),  # not l.0.mid, which has an activation behind it
        "blocks.0": ("l.0",),
        "head": ("c",),
    }


def test_parts_stand_in_their_order() -> None:
    swapped = {k: (n, None if p is None else 1 - p) for k, (n, p) in THEIRS.items()}
    found = of_the_same_parameters(OURS, MODULES, swapped)
    assert found["blocks.0.qkv"] == ("l.0.att.k", "l.0.att.q")


def test_a_module_that_holds_more_is_none_of_ours() -> None:
    more = {**THEIRS, "l.0.norm.weight": ("elsewhere.weight", None)}
    assert "blocks.0" not in of_the_same_parameters(OURS, [*MODULES, "l.0.norm"], more)


def test_of_nested_modules_with_the_same_the_outermost_counts_unless_all_have_one() -> None:
    theirs = {"a.b.c.w": ("s.t.x.w", None), "a.b.d.w": ("s.t.y.w", None)}
    both = of_the_same_parameters(["s", "s.t"], ["a", "a.b"], theirs)
    assert both == {"s": ("a",), "s.t": ("a.b",)}
    assert of_the_same_parameters(["s", "s.t"], ["a"], theirs) == {"s": ("a",)}
    assert of_the_same_parameters(["s"], ["a", "a.b"], theirs) == {"s": ("a",)}
    deep = {"a.b.e.c.w": ("s.t.x.w", None), "a.b.e.d.w": ("s.t.y.w", None)}
    assert of_the_same_parameters(["s", "s.t"], ["a", "a.b", "a.b.e"], deep) == {"s": ("a",)}
