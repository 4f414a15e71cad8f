"""Models that run on the reference backend, and the `ptir` command with that backend alone."""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import ptir
import ptir_backend_ref
from ptir.backend.contract import Target
from ptir.checkpoint import Checkpoint, save_folder
from ptir.cli.main import main
from ptir.models.table import definition
from ptir.params.source import ParamSource, RandomSource
from ptir.runtime import Model, generate
from ptir.runtime.session import Session
from ptir.runtime.specs import parameter_types
from tiny_distributions import forget

REF = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])
DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "shakespeare-expected.json").read_text(encoding="utf-8"))["cases"]
ROMEO = CASES[0]
GREEDY = ("run", "demo", "ROMEO:", "--temp", "0")
SMALL = {
    "model_type": "gpt2",
    "vocab_size": 97,
    "n_positions": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 100.0,
}


@functools.cache
def model(spec: str = "demo", dtype: str = "f32", seed: int = 0) -> Model:
    return ptir.load_model(spec, backend=REF, dtype=dtype, seed=seed)


def small_checkpoint(source: ParamSource | None = None, **config: Any) -> Checkpoint:
    """A checkpoint with random weights at the shapes of ``SMALL`` changed by ``config``."""
    full = SMALL | config
    types = parameter_types(definition("gpt2"), full)
    means = RandomSource(
        types,
        seed=3,
        scale_fn=lambda name, type_: 0.3,
        offset_fn=lambda name, type_: float("ln_" in name and name.endswith("weight")),
    )
    return Checkpoint(Path("small"), full, {}, {}, source or means, None, ())


def small(folder: Path, **config: Any) -> Model:
    """A loaded model with random weights at the shapes of ``SMALL`` changed by ``config``."""
    save_folder(small_checkpoint(**config), folder / "small")
    return ptir.load_model(folder / "small", backend=REF)


def llama_folder(folder: Path, tokenizer: str | None = None, **config: Any) -> Path:
    """A checkpoint with random weights at the shapes of ``LLAMA`` changed by ``config``."""
    full = {**LLAMA, **config}
    source = RandomSource(
        parameter_types(definition(str(full["model_type"])), full),
        seed=3,
        scale_fn=lambda name, type_: 0.3,
        offset_fn=lambda name, type_: float("norm" in name),
    )
    return save_folder(Checkpoint(folder, full, {}, {}, source, tokenizer, ()), folder / "small")


def assert_close(found: Any, expected: Any, share: float = 1e-5) -> None:
    """Every difference is at most ``share`` of the greatest expected magnitude."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= share * np.abs(expected).max()


class Scripted(Session):
    """A session that chooses the tokens of ``script``, whatever the model says."""

    script: ClassVar[list[list[int]]] = []
    interrupt_at: ClassVar[int | None] = None

    def prefill(self, prompts: Any, progress: Any = None) -> Any:
        self.step = 0
        return np.zeros((self.batch, 1), np.float32)

    def pick(self, logits: Any) -> Any:
        return np.array([row[self.step] for row in self.script])

    def advance(self, active: Any, logits_too: bool = False, ahead: bool = False) -> Any:
        self.step += 1
        if self.step == self.interrupt_at:
            raise KeyboardInterrupt
        return self.pick(None), None


Script = Callable[..., None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Lets every generation choose the given tokens, one list per row; Ctrl-C at a step."""

    def follow(*rows: Sequence[int], interrupt_at: int | None = None) -> None:
        longest = max(map(len, rows))
        padded = [[*row, *[1] * (longest - len(row) + 300)] for row in rows]
        kind = type("Follows", (Scripted,), {"script": padded, "interrupt_at": interrupt_at})
        monkeypatch.setattr(generate, "Session", kind)

    return follow


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The JSON value that is all of stdout."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs ``ptir ARGUMENTS --backend ref`` where no other distribution is installed."""
    info = tmp_path / "site" / "ptir_backend_ref-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ptir-backend-ref\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ptir.backends]\nref = ptir_backend_ref:backend\n")
    only_here = partial(metadata.distributions, path=[str(info.parent)])
    monkeypatch.setattr(metadata, "distributions", only_here)
    for name in [name for name in os.environ if name.startswith("PTIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PTIR_BACKEND", "ref")
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    forget()

    def run(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    yield run
    forget()
