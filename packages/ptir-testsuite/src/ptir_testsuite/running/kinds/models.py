"""What a model comes to on a target: logits within a bound, and the very tokens."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

import ptir
from ptir.checkpoint import save_folder
from ptir.errors import UnsupportedError
from ptir_testsuite.corpus.models import (
    BOUND,
    KINDS,
    NEW,
    QUANTIZED,
    SPOKEN,
    ModelRun,
    checkpoint,
    expected,
    features,
    prompts,
)
from ptir_testsuite.corpus.profiles import names_of, profiles_of_dtypes
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.running import raised
from ptir_testsuite.running.execute import Failed, Setting
from ptir_testsuite.running.outcomes import Outcome, Row

T = TypeVar("T")


def profiles(item: ModelRun) -> frozenset[str]:
    """All profiles of a row: the ops of models are core's."""
    return item.profiles | {"core"} | profiles_of_dtypes(names_of(item.dtypes))


def run_model(item: ModelRun, setting: Setting) -> Row:
    """Run the model and compare; outside the claims it may be refused."""
    start = time.perf_counter()
    mine = profiles(item)
    claimed = mine <= setting.claims
    row = Row(item.id, "model", item.call, item.dtypes, tuple(sorted(mine)), Outcome.PASS)
    row = replace(row, claimed=claimed, facts={"turns": _turns(setting)})
    try:
        row = replace(row, worst_share=_checked(item, setting))
    except Failed as failed:
        text = f"{item.call}: {failed.message}\n  case {item.id}"
        row = failed.ended(row, text)
    except UnsupportedError as error:
        row = replace(row, outcome=Outcome.UNSUPPORTED, phase="compile", message=str(error))
    return replace(row, seconds=time.perf_counter() - start)


def told(item: ModelRun) -> Iterator[str]:
    """Everything about a row, as lines of text."""
    yield f"{item.call}: {KINDS[item.kind]}"
    config = item.subject.config
    levels = f"; weights are whole numbers up to {item.subject.levels} times a power of two"
    yield f"model: {dict(config) if config else 'ships with ptir'}{levels if config else ''}"
    yield (
        f"rule: a logit may be off by {BOUND:.3g} of the greatest at its position, a"
        " log probability by twice that, a token not at all; PyTorch computed them in float64"
    )
    for number, prompt in enumerate(prompts(item.name)):
        yield f"prompt {number}: {prompt}"
        if item.kind not in ("vectors", "heard"):
            yield f"expected {number}: {expected(item.name, 'tokens')[number].tolist()}"


def _turns(setting: Setting) -> int:
    return setting.target.backend.runs_per_call(setting.target.device)


def _guarded(phase: str, action: Callable[[], T]) -> T:
    """The action's value; its exceptions become the outcome ``error``, but for refusals."""
    try:
        return action()
    except UnsupportedError:
        raise
    except Exception as error:
        raise Failed(Outcome.ERROR, phase, raised.told(phase, error)) from error


def _checked(item: ModelRun, setting: Setting) -> float:
    """The worst error as a share of its bound; raises ``Failed``."""
    backend, device = setting.target.backend, setting.target.device
    fallbacks = backend.stats(device).host_fallback_ops
    with _loaded(item, setting) as model:
        share = _CHECKS[item.kind](item, model)
    fallbacks = backend.stats(device).host_fallback_ops - fallbacks
    if fallbacks:
        text = f"{fallbacks} ops ran on the host, by the backend's own counters"
        raise Failed(Outcome.ERROR, "execute", text)
    return share


@contextmanager
def _loaded(item: ModelRun, setting: Setting) -> Iterator[Any]:
    """The model on the target, read from a folder as its users' models are."""
    quantized = item.storage in QUANTIZED
    with tempfile.TemporaryDirectory(prefix="ptir-model-") as folder:
        where: str | Path = item.name
        if item.subject.config is not None:
            where = save_folder(checkpoint(item.name), Path(folder) / item.name)
        model = _guarded(
            "load",
            lambda: ptir.load_model(
                where,
                backend=setting.target,
                dtype="f32" if quantized else item.storage,
                quant=item.storage if quantized else None,
            ),
        )
        if item.subject.room is not None:
            for block in model.module.layers:
                block.state = replace(block.state, room=item.subject.room)
        yield model


# --- kinds of rows ---


def _logits(item: ModelRun, model: Any) -> float:
    prompt = max(prompts(item.name), key=len)
    found = _guarded("execute", lambda: model.forward(prompt))
    positions, wanted = (expected(item.name, what) for what in ("positions", "logits"))
    if found.shape != (len(prompt), wanted.shape[1]):
        text = f"logits have shape {found.shape}, not {(len(prompt), wanted.shape[1])}"
        raise Failed(Outcome.MISMATCH, "compare", text)
    bounds = BOUND * np.abs(wanted).max(axis=1, keepdims=True)
    places = ("position", positions), ("token", np.arange(wanted.shape[1]))
    return _share("the logit", found[positions], wanted, bounds, places)


def _tokens(item: ModelRun, model: Any) -> float:
    """With log probabilities steps are taken one by one; without, as many at once as can be."""
    given = prompts(item.name)
    rows = _guarded("execute", lambda: _continued(model, given, logprobs=0))
    _same_tokens(item, rows, "with log probabilities")
    found = np.array([[one["logprob"] for one in row.logprobs or ()] for row in rows])
    bounds = 2 * BOUND * expected(item.name, "scales")
    places = ("prompt", np.arange(len(given))), ("new token", np.arange(NEW))
    wanted = expected(item.name, "logprobs")
    share = _share("the log probability", found, wanted, bounds, places)
    rows = _guarded("execute", lambda: _continued(model, given))
    _same_tokens(item, rows, "without log probabilities")
    return share


def _alone(item: ModelRun, model: Any) -> float:
    given = prompts(item.name)
    for number, prompt in enumerate(given):
        (row,) = _guarded("execute", lambda prompt=prompt: _continued(model, [prompt]))  # type: ignore[misc]
        _same_tokens(item, [row], "alone", number)
    return 0.0


def _vectors(item: ModelRun, model: Any) -> float:
    given = prompts(item.name)
    wanted = np.split(expected(item.name, "vectors"), np.cumsum([len(row) for row in given])[:-1])
    together = _guarded("execute", lambda: model.vectors(given))
    shares = [
        _vectors_share(number, *pair)
        for number, pair in enumerate(zip(together, wanted, strict=True))
    ]
    for number, row in enumerate(given):
        found = _guarded("execute", lambda row=row: model.forward(row))  # type: ignore[misc]
        shares.append(_vectors_share(number, found, wanted[number]))
    return max(shares)


def _vectors_share(number: int, found: Array, wanted: Array) -> float:
    if found.shape != wanted.shape:
        text = f"vectors of prompt {number} have shape {found.shape}, not {wanted.shape}"
        raise Failed(Outcome.MISMATCH, "compare", text)
    bounds = BOUND * np.abs(wanted).max(axis=1, keepdims=True)
    places = ("position", np.arange(len(wanted))), ("element", np.arange(wanted.shape[1]))
    return _share(f"the vector of prompt {number}", found, wanted, bounds, places)


def _heard(item: ModelRun, model: Any) -> float:
    """A decoder that attends to what an encoder gave: all at once, and token by token."""
    given, wanted = prompts(item.name), expected(item.name, "logits")
    ends = np.cumsum([len(row) for row in given])[:-1]
    shares = list[float]()
    for number, (prompt, logits) in enumerate(zip(given, np.split(wanted, ends), strict=True)):
        sound = features(item.name, number)
        found = _guarded("execute", lambda p=prompt, s=sound: model.forward(p, s))  # type: ignore[misc]
        if found.shape != logits.shape:
            text = f"logits of prompt {number} have shape {found.shape}, not {logits.shape}"
            raise Failed(Outcome.MISMATCH, "compare", text)
        bounds = BOUND * np.abs(logits).max(axis=1, keepdims=True)
        places = ("position", np.arange(len(prompt))), ("token", np.arange(logits.shape[1]))
        shares.append(_share(f"the logit of prompt {number}", found, logits, bounds, places))
    prompt = model.tokens.prompt(*SPOKEN, timestamps=False)
    chances = list[float]()
    for number, tokens in enumerate(expected(item.name, "tokens").tolist()):
        sound = features(item.name, number)
        window = _guarded(
            "execute",
            lambda s=sound: model.window(model.hear(s), prompt, timestamps=False),  # type: ignore[misc]
        )
        if [*window.tokens] != tokens:
            text = (
                f"the tokens of sound {number} differ\n  expected {tokens}"
                f"\n  got      {[*window.tokens]}"
            )
            raise Failed(Outcome.MISMATCH, "compare", text)
        chances.append(window.avg_logprob)
    bounds = 2 * BOUND * expected(item.name, "scales")
    wanted, number_of = expected(item.name, "logprobs"), [("sound", np.arange(len(chances)))]
    what = "the mean log probability"
    shares.append(_share(what, np.array(chances), wanted, bounds, number_of))
    return max(shares)


_CHECKS: Final[dict[str, Callable[[ModelRun, Any], float]]] = {
    "logits": _logits,
    "tokens": _tokens,
    "alone": _alone,
    "vectors": _vectors,
    "heard": _heard,
}


def _continued(model: Any, given: Sequence[Sequence[int]], **options: Any) -> list[Any]:
    found: list[Any] = model.generate_batch(given, max_tokens=NEW, ignore_eos=True, **options)
    return found


def _same_tokens(item: ModelRun, rows: Sequence[Any], how: str, first: int = 0) -> None:
    """Refuse other tokens than those expected of prompts ``first`` and on."""
    wanted = expected(item.name, "tokens")[first:]
    for number, (row, tokens) in enumerate(zip(rows, wanted, strict=False), first):
        for place, token in enumerate(tokens.tolist()):
            got = row.token_ids[place] if place < len(row.token_ids) else "nothing"
            if got != token:
                text = (
                    f"new token {place} of prompt {number} ({len(row.prompt_ids)} tokens), {how}:"
                    f" expected {token}, got {got}\n  expected {tokens.tolist()}"
                    f"\n  got      {list(row.token_ids)}"
                )
                raise Failed(Outcome.MISMATCH, "compare", text)


def _share(
    what: str,
    found: Array,
    wanted: Array,
    bounds: Array,
    places: Sequence[tuple[str, Array]],
) -> float:
    """The worst error over its bound; raises ``Failed`` above 1, naming where."""
    error = np.abs(found.astype(np.float64) - wanted)
    share = np.where(np.isnan(error), np.inf, error) / bounds
    worst = np.unravel_index(int(share.argmax()), share.shape)
    if share[worst] > 1:
        bound = np.broadcast_to(bounds, share.shape)[worst]
        where = ", ".join(f"{n} {p[i]}" for (n, p), i in zip(places, worst, strict=True))
        text = (
            f"{what} is wrong in {int((share > 1).sum())} of {share.size} places\n  worst, {where}:"
            f" expected {wanted[worst]:.7g}, got {found[worst]:.7g}; off by {error[worst]:.3g},"
            f" allowed {bound:.3g}"
        )
        raise Failed(Outcome.MISMATCH, "compare", text)
    return float(share[worst])
