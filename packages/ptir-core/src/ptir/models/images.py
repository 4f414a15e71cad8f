"""What families of models that take images share: their definition, labels and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ptir.errors import CheckpointError, short
from ptir.models.fields import whole
from ptir.models.key_layouts import KeyLayout, arranged, layout_of
from ptir.models.table import SEES, Described, ModelDefinition, define_model
from ptir.params.source import ParamSource

Config = Mapping[str, Any]

IMAGENET: Final = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 256},
    "resample": 2,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
"""The preparation of images that most models trained on ImageNet are evaluated with."""


def define_image_model(
    model_type: str,
    *,
    build: Callable[[Config], Any],
    layouts: Sequence[KeyLayout],
    head: str,
    ignored: tuple[str, ...] = (),
    defaults: Config,
    presets: Mapping[str, Config],
    preprocessing: Config = IMAGENET,
    capabilities: tuple[str, ...] = SEES,
    context: Callable[[Config], int] = lambda config: 0,
    prepare: Callable[[Config], Config] = dict,
    tokenizer: str = "",
    stored: Callable[[Config, ParamSource], Config] = lambda config, source: {},
    overrides: Mapping[str, str] = MappingProxyType({}),
) -> ModelDefinition:
    """Define a family that classifies and embeds images.

    ``layouts`` are the keys of other libraries than the one whose keys its attributes are, and
    ``head`` is the weight of its classifier, [classes, features]. ``stored`` gives keys for
    ``build`` that tensors decide, and no file's configuration. The rest is as in
    ``ModelDefinition``.
    """

    def arrange(config: Config, source: ParamSource) -> Described:
        layout = layout_of(layouts, source.names())
        if layout is not None:
            config, source = {**layout.defaults, **config}, arranged(source, layout)
        config = {**defaults, **config}
        config |= {"num_labels": stored_classes(config, source, head)}
        return {**config, **stored(config, source)}, source

    return define_model(
        ModelDefinition(
            model_type,
            build=build,
            context=context,
            ignored=ignored,
            presets=presets,
            tokenizer=tokenizer,
            prepare=prepare,
            capabilities=capabilities,
            arrange=arrange,
            preprocessing=preprocessing,
            key_layouts=tuple(layouts),
            overrides=overrides,
        )
    )


def stored_classes(config: Config, source: ParamSource, head: str) -> int:
    """How many classes the stored head tells apart; a configuration that differs is an error."""
    if head not in source.names():
        return 0
    stored = source.type(head).shape[0] if source.type(head).rank else 0
    if config.get("num_labels") is not None:
        said, key = whole(config, "num_labels"), "num_labels"
    elif isinstance(config.get("id2label"), Mapping):
        said, key = len(config["id2label"]), "labels in id2label"
    else:
        return stored
    if said != stored:
        raise CheckpointError(
            f"config.json says {said} {key}, and the classifier {head} has {stored} outputs;"
            " correct it, or fetch the file again"
        )
    return said


def declared_classifier(config: Config) -> str:
    """What of a configuration declares a classifier, for messages; empty where nothing does.

    Labels count where no class is named: a model without its classifier may keep them.
    """
    named = config.get("architectures")
    names = [str(one) for one in named] if isinstance(named, list) else []
    if names:
        return next((one for one in names if one.endswith("Classification")), "")
    if config.get("num_labels"):
        return f"{short(config['num_labels'])} labels"
    labels = config.get("id2label")
    return f"{len(labels)} labels" if isinstance(labels, Mapping) and labels else ""


def one_of(config: Config, key: str, known: Sequence[str], default: str) -> str:
    """The name at ``key``, which must be one of ``known``."""
    found = config.get(key, default)
    if found not in known:
        raise CheckpointError(
            f"{config.get('model_type')}: {key} {short(found)} is not implemented;"
            f" {', '.join(known)} {'are' if len(known) > 1 else 'is'}"
        )
    return str(found)


def preset(model_type: str, **sizes: Any) -> dict[str, Any]:
    """The configuration of a model with the thousand classes of ImageNet."""
    return {"model_type": model_type, "num_channels": 3, "num_labels": 1000, **sizes}
