"""Architectures, one per file, found by the checkpoint's ``model_type``."""

from ptir.models.table import MODELS, CausalModel, ModelDefinition, define_model, definition

__all__ = ["MODELS", "CausalModel", "ModelDefinition", "define_model", "definition"]
