"""Peers in processes of their own: their threads and memory do not meet those of others.

A worker is this file run as a script. It makes one peer and answers calls of its methods: a line
of JSON in, a line of JSON out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self


class Worker:
    """A peer in another process: ``call`` runs a method of it.

    As a context it ends with its block, in the middle of a call too where an exception ends that.
    """

    def __init__(
        self,
        kind: str,
        of: int | None = None,
        cache: str = "",
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """``of`` so many threads of the C backend; ``cache`` is the folder of what is built."""
        self.kind = kind
        environment = {**os.environ, **(environment or {})}
        if of is not None:
            environment["PTIR_C_THREADS"] = str(of)
        if cache:
            environment["PTIR_CACHE_DIR"] = cache
            environment["POCL_CACHE_DIR"] = str(Path(cache) / "pocl")  # it has one of its own
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps({"kind": kind, **options})],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._answer()
        except BaseException:  # nobody has the worker yet, to end it
            self._kill()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method; raises ``RuntimeError`` where the process ends."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._died()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._died()
        return json.loads(line)

    def _died(self) -> NoReturn:
        self.close()
        code = self._process.returncode
        raise RuntimeError(f"the {self.kind} worker ended with code {code}: see above")

    def close(self) -> None:
        """End the process and wait for it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self._kill()

    def _kill(self) -> None:
        """End the process in whatever it is at: nobody waits for the answer."""
        self._process.kill()
        self.close()


def make(kind: str, **options: Any) -> Any:
    """The peer of a kind."""
    if kind == "llama.cpp":
        from measuring.llama import Llama

        return Llama(Path(options["path"]), options["threads"])
    if kind == "ik_llama.cpp":
        from measuring.ik_llama import IkLlama

        return IkLlama(Path(options["path"]), options["threads"])
    if kind == "ptir":
        from measuring.ours import Ours

        return Ours(**options)
    if kind == "steps":
        from measuring.captured import Captured

        return Captured(**options)
    if kind == "unhooked":
        from measuring.unhooked import Unhooked

        return Unhooked(**options)
    from measuring.rows import RowKernels

    return RowKernels(**options)


def main() -> None:
    """Answer calls until stdin ends; whatever a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = make(**json.loads(sys.argv[1]))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(peer, method)(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
