"""A model's own head proposes what it should, and tokens stay those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from nextn_witness import Head, proposals
from ptir.checkpoint import Checkpoint, save_folder
from ptir.cli.model import PROPOSERS as NAMED
from ptir.errors import UnsupportedError, UsageError
from ptir.functional import full
from ptir.models.nextn import Predicting
from ptir.models.table import definition, presets
from ptir.params.source import ArraySource, RandomSource
from ptir.runtime import Model
from ptir.runtime.session import WIDTHS, Session
from ptir.runtime.specs import parameter_types
from ptir.runtime.speculation import PROPOSERS, Payoff, PromptLookup
from recurrent_models import QWEN
from running import REF, Command, assert_close, command, llama_folder

__all__ = ["command"]

pytestmark = pytest.mark.turns(3)

Array = np.ndarray[Any, Any]
CONFIG = {**QWEN, "mtp_num_hidden_layers": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
PROMPT = [3, 96, 0, 41, 41, 7, 63, 12, 88, 20, 5]
NEW = 24
HOT = {"temperature": 1.5, "seed": 11}
PLAIN: dict[str, Any] = {"max_tokens": NEW, "ignore_eos": True}
Proposed = list[tuple[list[int], list[int]]]


def arrays_of(config: dict[str, Any]) -> dict[str, Array]:
    """Weights so large that what every layer adds matters for the next token."""
    model = definition(config["model_type"])
    source = RandomSource(
        parameter_types(model, {**model.defaults, **config}),
        3,
        lambda name, type: 0.3,
        lambda name, type: float("norm.w" in name),
    )
    return {name: source.read(name) for name in source.names()}


def agreeing(arrays: dict[str, Array]) -> dict[str, Array]:
    """Weights of a model that looks at the last token alone, and of a head that does the same."""
    changed = {name: one.copy() for name, one in arrays.items()}
    for name, one in changed.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            one[:] = 0
    changed["mtp.fc.weight"][:] = np.eye(*changed["mtp.fc.weight"].shape)
    changed["mtp.pre_fc_norm_embedding.weight"][:] = 0
    changed["mtp.norm.weight"][:] = changed["norm.weight"]
    return changed


def folder_of(arrays: dict[str, Array], path: Path, **config: Any) -> Path:
    source = ArraySource(arrays)
    return save_folder(Checkpoint(path, {**CONFIG, **config}, {}, {}, source, None, ()), path / "m")


@pytest.fixture(scope="module")
def arrays() -> dict[str, Array]:
    return arrays_of(CONFIG)


@pytest.fixture(scope="module")
def model(arrays: dict[str, Array], tmp_path_factory: pytest.TempPathFactory) -> Model:
    return ptir.load_model(folder_of(arrays, tmp_path_factory.mktemp("head")), backend=REF)


@pytest.fixture(scope="module")
def sure(arrays: dict[str, Array], tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = folder_of(agreeing(arrays), tmp_path_factory.mktemp("sure"))
    return ptir.load_model(path, backend=REF)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify proposals in steps of all widths, whatever they cost here."""
    widths = cycle((1, *WIDTHS, 1, 1))
    monkeypatch.setattr(Payoff, "width", lambda self: next(widths))


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> Proposed:
    """Every text that a session's head was asked about, and what it said."""
    found: Proposed = []
    propose = Session.propose

    def noted(self: Session, text: Sequence[int], count: int) -> list[int]:
        said = propose(self, text, count)
        found.append((list(text), said))
        return said

    monkeypatch.setattr(Session, "propose", noted)
    return found


def hidden_of(model: Model, text: Sequence[int]) -> Array:
    """What the model's output reads for every token of a text."""
    tokens = ptir.tensor(np.array([text], np.int32), backend=REF)
    zero, count = full((1,), 0, "i32"), full((1,), len(text), "i32")
    types = model.state_types(1, len(text))
    state = tuple(tuple(full(one.shape, 0, one.dtype.name) for one in some) for some in types)
    x = model.module.hidden(tokens, state, zero, count)[0]
    return np.asarray(model.module.norm(x).numpy()[0])


def assert_as_the_witness(model: Model, arrays: dict[str, Array], proposed: Proposed) -> None:
    head = Head(arrays, CONFIG)
    known: tuple[list[int], Array] = [], np.zeros((0, 0))
    table, output = arrays["embed_tokens.weight"], arrays["lm_head.weight"]
    for text, said in sorted(proposed, key=lambda one: one[0], reverse=True):
        if known[0][: len(text)] != text:  # it does not begin a text that was computed already
            known = text, hidden_of(model, text)
        hidden = known[1][: len(text) - 1]
        assert said == proposals(head, table, output, text, hidden, len(said)), text
    assert len({token for _, said in proposed for token in said}) > 4


@pytest.mark.parametrize("sampling", [{}, HOT], ids=["greedy", "sampled"])
def test_a_head_proposes_what_the_witness_says_and_tokens_stay(
    model: Model, arrays: dict[str, Array], proposed: Proposed, sampling: dict[str, Any]
) -> None:
    plain = model.generate(PROMPT, **PLAIN, **sampling)
    found = model.generate(PROMPT, **PLAIN, speculate="nextn", **sampling)
    assert found.token_ids == plain.token_ids
    assert 0 < found.stats.proposed_tokens == sum(len(said) for _, said in proposed)
    assert_as_the_witness(model, arrays, proposed)


def test_a_state_that_goes_on_keeps_what_the_head_has_read(
    model: Model, arrays: dict[str, Array], proposed: Proposed
) -> None:
    state = model.new_state(1, 64, heads=True)
    first = model.generate(PROMPT, **PLAIN, state=state)  # without speculation
    longer = [*PROMPT, *first.token_ids, 17, 4]
    edited = [*PROMPT, 9, 9]
    for prompt, held in (longer, True), (edited, True), ([5], False):
        plain = model.generate(prompt, **PLAIN)
        found = model.generate(prompt, **PLAIN, speculate="nextn", state=state)
        assert found.token_ids == plain.token_ids
        assert (found.stats.cached_tokens > 0) == held
    assert_as_the_witness(model, arrays, proposed)


def test_each_row_keeps_its_hidden_states(model: Model) -> None:
    state = model.new_state(2, 64, heads=True)
    prompts = [PROMPT, PROMPT[:3]]
    # The second row's prompt ends within the first chunk: it takes nothing in from the second.
    long = [[*PROMPT * 4], PROMPT[:3]]
    for rows in (prompts, long):
        model.generate_batch(rows, max_tokens=1, state=state)
        for row, text in enumerate(rows):
            kept = state.tensors[-1][0].numpy()[row, 0, : len(text)]
            assert_close(kept, hidden_of(model, text))


def test_a_head_reads_once_what_came_since_it_was_asked(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain steps leave it alone: it reads what they took in together, when it is asked again."""
    sizes: list[int] = []
    read = Predicting.read

    def noted(self: Predicting, tokens: Any, *rest: Any) -> Any:
        sizes.append(tokens.shape[1])
        return read(self, tokens, *rest)

    widths = iter([*[1] * 9, 2, *[1] * NEW])
    monkeypatch.setattr(Payoff, "width", lambda self: next(widths))
    monkeypatch.setattr(Predicting, "read", noted)  # a program is captured the first time
    model.head_steps._jitted.clear()
    found = model.generate(PROMPT, **PLAIN, speculate="nextn")
    assert found.token_ids == model.generate(PROMPT, **PLAIN).token_ids
    assert sizes == [32] and found.stats.proposed_tokens == 1


@pytest.mark.parametrize("sampling", [{}, {**HOT, "top_k": 1}], ids=["greedy", "sampled"])
def test_a_head_that_is_right_saves_steps(
    sure: Model, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
) -> None:
    taken: list[int] = []
    step = Session._taken

    def counted(self: Session, given: Sequence[int], *rest: Any) -> Any:
        taken.append(len(given))
        return step(self, given, *rest)

    plain = sure.generate(PROMPT, **PLAIN, **sampling)
    monkeypatch.setattr(Session, "_taken", counted)
    monkeypatch.setattr(Payoff, "width", lambda self: 4)
    found = sure.generate(PROMPT, **PLAIN, speculate="nextn", **sampling)
    assert found.token_ids == plain.token_ids
    assert found.stats.accepted_tokens == found.stats.proposed_tokens > NEW // 2
    assert taken == [4] * 5 + [3]


@pytest.mark.parametrize("name", ["qwen3.5-moe-tiny", "qwen3_next-tiny"])
def test_heads_with_experts_propose_and_tokens_stay(name: str, tmp_path: Path) -> None:
    family, preset = presets()[name]
    config = {**family.defaults, **preset, "mtp_num_hidden_layers": 1}
    source = ArraySource(arrays_of(config))
    path = save_folder(Checkpoint(tmp_path, config, {}, {}, source, None, ()), tmp_path / "m")
    found = ptir.load_model(path, backend=REF)
    assert any(name.startswith("mtp.layers.0.mlp.experts.") for name in found.store.source.names())
    plain = found.generate(PROMPT, **PLAIN)
    other = found.generate(PROMPT, **PLAIN, speculate="nextn")
    assert other.token_ids == plain.token_ids and other.stats.proposed_tokens > 0


def test_a_talk_goes_on_with_a_head(model: Model) -> None:
    assert model.has_head
    state = model.new_state(1, 64)
    with pytest.raises(UsageError, match=r"new_state\(\.\.\., heads=True\)"):
        model.run([PROMPT], speculate="nextn", state=state)


def test_the_head_is_chosen_where_there_is_one(model: Model, tmp_path: Path) -> None:
    found = model.generate(PROMPT, **PLAIN, speculate="auto")
    assert found.stats.proposed_tokens > 0  # the text does not repeat itself
    assert tuple(PROPOSERS) == NAMED
    other = ptir.load_model(llama_folder(tmp_path), backend=REF)
    assert isinstance(other.run([PROMPT], speculate="auto")._proposer, PromptLookup)


WITHOUT: dict[str, Callable[[dict[str, Array]], dict[str, Array]]] = {
    "none": lambda arrays: {n: one for n, one in arrays.items() if not n.startswith("mtp.")},
    "its own embedding": lambda arrays: {
        **arrays,
        "mtp.embed_tokens.weight": arrays["embed_tokens.weight"],
    },
}


@pytest.mark.parametrize("how", [*WITHOUT, "two"])
def test_a_model_without_a_head_says_so(how: str, arrays: dict[str, Array], tmp_path: Path) -> None:
    count = {"mtp_num_hidden_layers": 2 if how == "two" else 1}
    path = folder_of(WITHOUT.get(how, dict)(arrays), tmp_path, **count)
    found = ptir.load_model(path, backend=REF)
    assert not found.has_head
    with pytest.raises(UnsupportedError, match=r"\(qwen3_5_text\) has no head that predicts"):
        found.run([PROMPT], speculate="nextn")
    assert found.generate(PROMPT, max_tokens=2).token_ids


@pytest.mark.parametrize("name", ["mtp.fc.weight", "mtp.layers.0.self_attn.k_norm.weight"])
def test_a_head_that_is_stored_in_part_is_left_out_with_a_warning_that_names_the_rest(
    name: str, arrays: dict[str, Array], tmp_path: Path
) -> None:
    lacking = {name, "mtp.norm.weight"}
    rest = {key: one for key, one in arrays.items() if key not in lacking}
    path = folder_of(rest, tmp_path, mtp_num_hidden_layers=1)
    with pytest.warns(UserWarning, match=r"/m: the head .*, since 2 of its tensors") as said:
        found = ptir.load_model(path, backend=REF)
    assert all(one in str(said[0].message) for one in lacking) and len(said) == 1
    assert not found.has_head
    with pytest.raises(UnsupportedError, match=r"\(qwen3_5_text\) has no head that predicts"):
        found.run([PROMPT], speculate="nextn")
    assert found.generate(PROMPT, max_tokens=2).token_ids


def test_the_command_says_so_too(command: Command) -> None:
    done = command("run", "demo", "-p", "ROMEO:", "-n", 2, "--speculate", "nextn")
    assert done.code == 4
    assert "'demo' (gpt2) has no head that predicts further tokens" in done.err
