"""What a process loads that finds all its kernels on disk: nothing that writes or chooses them.

Nor what only some models or calls need: each module costs about a millisecond of every start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ptir.backend import Target

UNUSED = (
    *("ptir.codegen.compile", "ptir.codegen.kernel_ir", "ptir.codegen.partitioned"),
    *("ptir.partition", "ptir.rewrite.patterns", "ptir.rewrite.awkward", "ptir.passes.benchmark"),
    *("ptir.runtime.chat", "ptir.runtime.likelihood", "ptir.runtime.speculation"),
    *("ptir.text.chat_template", "ptir.capture.streamed", "ptir.params.streaming"),
    *("click", "html"),
)
ONE_TOKEN = f"""
import sys
import ptir

ptir.load_model("demo", backend="c").generate("x", max_tokens=1)
print([name for name in {UNUSED} if name in sys.modules])
"""


BACKEND = f"""
import sys
import ptir_backend_c.backend

print([name for name in {UNUSED} if name in sys.modules])
"""


def loaded(source: str, cache: Path) -> str:
    """Which of ``UNUSED`` a process loads that runs ``source`` with kernels kept in ``cache``."""
    environment = {**os.environ, "PTIR_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_second_process_loads_nothing_that_writes_kernels(c: Target, tmp_path: Path) -> None:
    assert "ptir.codegen.compile" in loaded(ONE_TOKEN, tmp_path)
    assert loaded(ONE_TOKEN, tmp_path) == "[]"


def test_the_backend_is_imported_without_what_writes_kernels(tmp_path: Path) -> None:
    assert loaded(BACKEND, tmp_path) == "[]"
