"""Passes: what happens to a program between capture and a backend, one pass per file."""

from ptir.passes.context import Derivation, Pass, PassContext
from ptir.passes.pipeline import PIPELINE, Stage, optimize, pipeline_key

__all__ = ["PIPELINE", "Derivation", "Pass", "PassContext", "Stage", "optimize", "pipeline_key"]
