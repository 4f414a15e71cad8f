"""What each distribution must do where it was installed alone: one table, read by release.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Smoke:
    """A command, and the exit code and the texts that it must give.

    ``says`` is a pattern for stdout and ``warns`` one for stderr. ``beside`` are distributions of
    ours that are installed first: what the command needs and its distribution does not state,
    because the choice is the user's.
    """

    command: tuple[str, ...]
    says: str = ""
    warns: str = ""
    code: int = 0
    beside: tuple[str, ...] = ()

    def fault(self, code: int, stdout: str, stderr: str) -> str:
        """Why this is not what the command should have given, or nothing."""
        if code != self.code:
            return f"ended with {code}, not with {self.code}"
        for name, told, wanted in (("stdout", stdout, self.says), ("stderr", stderr, self.warns)):
            if not re.search(wanted, told):
                return f"does not say {wanted!r} on {name}"
        return ""


def _generates(backend: str) -> Smoke:
    """The demo model says what it says everywhere; the kernels are built on the spot."""
    options = ("-p", "ROMEO:", "-n", "8", "--temp", "0", "--backend", backend)
    return Smoke(("ptir", "run", "demo", *options), r"\A\nI have a moon,\n\Z")


def _python(statement: str, says: str = r"\A\Z") -> Smoke:
    return Smoke(("python", "-W", "error", "-c", statement), says)


SMOKE: Final[dict[str, tuple[Smoke, ...]]] = {
    "ptir-core": (
        Smoke(("ptir", "--help"), "Commands:"),
        Smoke(("ptir", "--version"), r"\Aptir \d"),
        Smoke(("ptir", "ops"), "dot_general"),
        _python("import ptir; print(ptir.spec('f32', 2, 3))", r"\Af32\[2,3\]\n\Z"),
        Smoke(("ptir", "run", "demo", "-p", "a"), warns="pip install ptir-backend-", code=3),
    ),
    "ptir-backend-ref": (
        Smoke(("ptir", "backends"), "ref +ptir-backend-ref +.* ok "),
        _generates("ref"),
    ),
    "ptir-backend-c": (_python("import ptir_backend_c"), _generates("c")),
    "ptir-backend-opencl": (_python("import ptir_backend_opencl"), _generates("opencl")),
    "ptir-backend-cupy": (
        _python("import ptir_backend_cupy"),
        Smoke(("ptir", "backends"), r'cupy .* unavailable .*pip install "ptir-backend-cupy\['),
        Smoke(("ptir", "run", "demo", "-p", "a", "--backend", "cupy"), warns="cupy: ", code=3),
    ),
    "ptir-testsuite": (
        _python("import ptir_testsuite"),
        Smoke(("ptir-conformance", "--help"), "Commands:"),
        Smoke(("ptir", "conformance", "--help"), "Usage: ptir conformance"),
        Smoke(("ptir-conformance", "run", "--backend", "ref"), warns="ptir-backend-ref", code=3),
        Smoke(
            ("ptir-conformance", "run", "--backend", "ref", "-k", "add and f32 and wired"),
            r"attempted ([1-9]\d*)/\d+: \1 pass; incomplete",
            code=3,  # a part of the corpus, whatever came of it
            beside=("ptir-backend-ref",),
        ),
    ),
}
