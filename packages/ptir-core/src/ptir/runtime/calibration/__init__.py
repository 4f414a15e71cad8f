"""Weights quantized for what they meet in a text: GPTQ and AWQ on a model's own activations."""

from ptir.runtime.calibration.calibrate import calibrate
from ptir.runtime.calibration.methods import METHODS
from ptir.runtime.calibration.record import Calibrated, Calibration

__all__ = ["METHODS", "Calibrated", "Calibration", "calibrate"]
