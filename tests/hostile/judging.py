"""What becomes of a model that may be damaged: it is refused with an error of ptir, or it runs.

It is opened as ``ptir inspect`` and ``ptir run`` open it. Everything else is a ``Fault``: another
exception, an error that does not say which file is meant, time or memory beyond a small bound.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ptir
from ptir.checkpoint import DescribedTokenizer, open_checkpoint
from ptir.cli.main import group
from ptir.errors import CheckpointError, PtirError
from ptir.params.source import stored_formats
from ptir.runtime.image_model import ImageModel
from ptir.runtime.speech.speech_model import SpeechModel
from ptir.weights.affine_form import held_as
from ptir_testsuite.running.kinds.edited import Late, limited
from running import REF

PATIENCE = 5.0
"""Seconds of the processor's that one model may take."""
REFUSING = 1.0
"""Seconds in which one that is refused is refused."""
PIXELS = (64, 64, 3)
"""An image that models of images are given."""
MEMORY = 96 << 20
"""Bytes by which a model may raise what the process takes; right ones need a third of them."""
ADDRESSES = 1 << 30
"""Bytes that a process may map beyond what it had before its first model."""
LONGEST = 1200
"""Letters of a message beside the file's name."""
TEXT = "the an A é 12 new 3"
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Fault(Exception):  # noqa: N818  of the engine's, whatever it raised
    """Something that no file may bring about."""


def judged(path: Path) -> str:
    """How a model ended: ``ran``, or ``refused`` and while what; raises ``Fault``."""
    doing = ["open"]
    began, spent = _memory(reset=True), time.process_time()
    try:
        with _quiet(), limited(PATIENCE):
            for name, step in STEPS.items():
                doing[0] = name
                step(path)
        ended = "ran"
    except PtirError as error:
        _check_told(path, doing[0], error)
        if (took := time.process_time() - spent) > REFUSING:
            raise Fault(f"{doing[0]}: refused after {took:.1f} s: {error}") from error
        ended = f"refused ({doing[0]})"
    except Late as error:
        raise Fault(f"{doing[0]}: took more than {PATIENCE:g} s") from error
    except Exception as error:
        said = "".join(traceback.format_exception(error)[-6:])
        raise Fault(f"{doing[0]}: {type(error).__name__}: {error}\n{said}") from error
    grown = _memory() - began
    if grown > MEMORY:
        raise Fault(f"{doing[0]}: took {grown >> 20} MiB")
    return ended


def _check_told(path: Path, doing: str, error: PtirError) -> None:
    """An error says which file or folder is meant, in a few lines, and is the checkpoint's."""
    text = str(error)
    if not isinstance(error, CheckpointError):
        raise Fault(f"{doing}: {type(error).__name__}, not CheckpointError: {text}") from error
    if str(path if path.is_dir() else path.parent) not in text:
        raise Fault(f"{doing}: does not name the file: {text}") from error
    if len(text) > LONGEST + 2 * len(str(path)):
        raise Fault(f"{doing}: {len(text)} letters: {text[:LONGEST]}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Numbers of random bytes overflow; a tokenizer beside a file is warned of."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def _inspected(path: Path) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        group.main(["inspect", str(path), "--json"], standalone_mode=False)
    json.loads(out.getvalue())


def _described(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    for format in stored_formats(checkpoint.source).values():
        held_as(format)


def _told(path: Path) -> None:
    """A tokenizer that cannot be built is no error; why is kept for whoever gives a text."""
    model = _loaded(path)
    if isinstance(model, ImageModel):
        return
    loaded = model.text.loaded
    if loaded.tokenizer is None:
        if isinstance(model.checkpoint.tokenizer, DescribedTokenizer) and not loaded.lack:
            raise Fault("nothing says why there is no tokenizer")
        return
    loaded.tokenizer.decode(loaded.tokenizer.encode(TEXT))


def _read(path: Path) -> None:
    source = open_checkpoint(path).source
    for name in source.names():
        array, type = source.read(name), source.type(name)
        if array.shape != type.shape or array.dtype != type.dtype.numpy:
            raise Fault(f"{name!r} is {array.dtype}{array.shape}, and said to be {type}")
        source.release(name)


def _ran(path: Path) -> None:
    model = _loaded(path)
    if isinstance(model, ImageModel):
        model.forward(np.zeros(PIXELS, np.float32))
        return
    if isinstance(model, SpeechModel):
        settings = model.settings
        model.forward([0], np.zeros((settings.frames, settings.mels), np.float32))
        return
    size = int(model.checkpoint.config["vocab_size"])
    if model.reads_texts:
        model.forward([index % size for index in range(min(5, model.context))])
        return
    prompt: Any = TEXT if model.tokenizer is not None else [index % size for index in range(5)]
    prompt = [size - 1] if isinstance(prompt, str) and not model.encode(prompt) else prompt
    if len(model.encode(prompt)) >= model.context:
        model.forward([0])  # there is no room for what would follow
        return
    model.generate(prompt, max_tokens=1, temperature=0.0)


def _cut(path: Path) -> None:
    """A model whose files are cut while it is open: nothing of them is read any more."""
    checkpoint = open_checkpoint(path)
    for file in checkpoint.files:
        os.truncate(file, file.stat().st_size // 2)
    for name in checkpoint.source.names():
        _refused(path, lambda name=name: checkpoint.source.read(name))
    if isinstance(checkpoint.tokenizer, DescribedTokenizer):
        _refused(path, checkpoint.tokenizer.vocabulary.plain)


def _refused(path: Path, read: Callable[[], object]) -> None:
    try:
        read()
    except CheckpointError as error:
        _check_told(path, "cut", error)
    else:
        raise Fault("cut: something was read of a file that was cut since it was opened")


def _loaded(path: Path) -> Any:
    return ptir.load_model(path, backend=REF)


STEPS: dict[str, Callable[[Path], None]] = {
    "inspect": _inspected,
    "formats": _described,
    "text": _told,
    "read": _read,
    "run": _ran,
    "cut": _cut,
}
"""What is done with a model, in this order; a refusal ends it."""


def _memory(*, reset: bool = False) -> int:
    """Most bytes that this process took, since it was last asked with ``reset`` where that works.

    Elsewhere the most it ever took: then only what passes all before it is seen.
    """
    if reset:
        with contextlib.suppress(OSError):
            RESET.write_text("5")
    if not STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def bounded() -> None:
    """From now on this process cannot map much more than it has: what asks gets no memory."""
    now = 0
    if STATUS.exists():
        lines = STATUS.read_text().splitlines()
        now = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESSES, resource.RLIM_INFINITY))
