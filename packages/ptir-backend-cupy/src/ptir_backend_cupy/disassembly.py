"""Machine code as instructions, by ``nvdisasm`` from pip: what a kernel really does."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from ptir.errors import BackendUnavailable
from ptir_backend_cupy.platforms import nvidia_folders

NAME: Final = "nvdisasm"
_FUNCTION: Final = re.compile(r"^\.text\.(\w+):", re.M)
_INSTRUCTION: Final = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)")


def find() -> str:
    """The program, from pip or the toolkit; raises ``BackendUnavailable``."""
    for folder in nvidia_folders():
        for place in sorted(folder.glob(f"*/bin/{NAME}")):
            return str(place)
    if found := shutil.which(NAME):
        return found
    raise BackendUnavailable(f"cupy: {NAME} is not found: `pip install nvidia-cuda-nvdisasm`")


def instructions(code: bytes) -> dict[str, list[str]]:
    """The instructions of each kernel of a cubin, such as ``LDG.E.128`` and ``HMMA.16816.F32``."""
    program = find()
    with tempfile.TemporaryDirectory(prefix="ptir-cupy-") as folder:
        file = Path(folder, "kernels.cubin")
        file.write_bytes(code)
        done = subprocess.run(
            [program, "--print-code", str(file)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise BackendUnavailable(f"cupy: {program} failed: {done.stderr.strip()[:200]}")
    names = list(_FUNCTION.finditer(done.stdout))
    ends = [*(name.start() for name in names), len(done.stdout)][1:]
    return {
        name[1]: _INSTRUCTION.findall(done.stdout[name.end() : end])
        for name, end in zip(names, ends, strict=True)
    }
