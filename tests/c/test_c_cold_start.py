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


def test_a_second_process_loads_nothing_that_writes_kernels(c: Target, tmp_path: Path) -> None:
    def process() -> str:
        environment = {**os.environ, "PTIR_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", ONE_TOKEN],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert "ptir.codegen.compile" in process()
    assert process() == "[]"
