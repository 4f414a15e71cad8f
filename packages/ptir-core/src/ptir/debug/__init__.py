"""Where results differ: between two backends, between two traces, and from which instruction on."""

from ptir.debug.bisect import Finding, bisect
from ptir.debug.difference import Difference, Tolerance, difference
from ptir.debug.layers import LayerDifference, Verification, verify_layers
from ptir.debug.subject import (
    Subject,
    subject_of_images,
    subject_of_model,
    subject_of_program,
    subject_of_speech,
    subject_of_texts,
)
from ptir.debug.traces import (
    Trace,
    TraceDifference,
    diff_traces,
    read_trace,
    trace_image,
    trace_model,
    write_trace,
)

__all__ = [
    "Difference",
    "Finding",
    "LayerDifference",
    "Subject",
    "Tolerance",
    "Trace",
    "TraceDifference",
    "Verification",
    "bisect",
    "diff_traces",
    "difference",
    "read_trace",
    "subject_of_images",
    "subject_of_model",
    "subject_of_program",
    "subject_of_speech",
    "subject_of_texts",
    "trace_image",
    "trace_model",
    "verify_layers",
    "write_trace",
]
