"""What a kernel-level backend imports: **every name** of level 2, and nothing else of it.

Beside this module stand the contract of every level (``ptir.backend``, ``ptir.backend.contract``),
``ptir.errors`` and ``ptir.types``. All other modules of the generator change without notice.

- To spell a language: ``Language``, which writes whole kernels, or ``Dialect``, which spells texts,
  or ``CLike`` with the tables of ``clike``; ``Spelling`` is a row
  of them, ``Argument`` what a kernel takes, ``ChangingVectors`` how wide variables that change are
  spelled where that differs. ``WorkgroupPrimitives``, ``MmaInstruction`` and
  ``PersistentPrimitives`` say how workgroups, matrix instructions and persistent kernels are
  written.
- To run kernels: ``KernelDevice`` with its ``Traits`` and ``CommandBuffer``; ``built`` builds a
  source file once, ``cache_folder`` and ``replace_file`` keep others, ``processor`` tells of the
  one at hand. On a ``PaperDevice`` nothing runs.
- Behind a driver: ``DriverDevice`` with its ``Failures`` makes errors of the contract of the
  driver's, ``in_kernel`` names the kernel that does not build.
- Where memory is an address: ``Addressed`` memory, an ``AddressedDevice``, an ``AddressedKernel``;
  a ``Block`` holds what kernels launched together are bound to.
- Where kernels read mapped files: ``mapping_of`` an array is the file's, and ``note_cut`` says that
  it was cut meanwhile.
- To be found: ``KernelBackend``; ``DeviceBuffer`` is a handle over a device's memory.
- For preludes: ``exponentials``, ``read_with`` and the names in ``EXPONENTIALS``.
"""

from ptir.backend import clike
from ptir.backend.addresses import Addressed, AddressedDevice, AddressedKernel, Block
from ptir.backend.clike import CLike, Spelling
from ptir.backend.failures import DriverDevice, Failures, in_kernel
from ptir.backend.folders import cache_folder, replace_file
from ptir.backend.kernel import (
    Argument,
    ChangingVectors,
    CommandBuffer,
    Dialect,
    KernelDevice,
    Language,
    PersistentPrimitives,
    Traits,
    WorkgroupPrimitives,
)
from ptir.backend.mma import MmaInstruction
from ptir.backend.paper import PaperDevice
from ptir.codegen import processor
from ptir.codegen.artifact.binaries import built
from ptir.codegen.backend import KernelBackend
from ptir.codegen.expressions.exponentials import EXPONENTIALS, exponentials, read_with
from ptir.codegen.launching.memory import DeviceBuffer
from ptir.params.mapped_files import note_cut
from ptir.params.pages import mapping_of
from ptir.switches import THREADS

__all__ = [
    "EXPONENTIALS",
    "THREADS",
    "Addressed",
    "AddressedDevice",
    "AddressedKernel",
    "Argument",
    "Block",
    "CLike",
    "ChangingVectors",
    "CommandBuffer",
    "DeviceBuffer",
    "Dialect",
    "DriverDevice",
    "Failures",
    "KernelBackend",
    "KernelDevice",
    "Language",
    "MmaInstruction",
    "PaperDevice",
    "PersistentPrimitives",
    "Spelling",
    "Traits",
    "WorkgroupPrimitives",
    "built",
    "cache_folder",
    "clike",
    "exponentials",
    "in_kernel",
    "mapping_of",
    "note_cut",
    "processor",
    "read_with",
    "replace_file",
]
