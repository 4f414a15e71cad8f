"""Whole models: prompts and tokens on a backend, against what PyTorch computed in float64."""

from ptir_testsuite.models.check import profiles as model_profiles
from ptir_testsuite.models.check import run_model, told
from ptir_testsuite.models.table import KINDS, ModelRun, model_runs

__all__ = ["KINDS", "ModelRun", "model_profiles", "model_runs", "run_model", "told"]
