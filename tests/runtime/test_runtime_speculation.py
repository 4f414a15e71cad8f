"""Speculation: the tokens of plain decoding, whatever is proposed, in as few steps as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers.models import WordLevel

import ptir
from proposals import PROPOSALS, Told
from ptir.errors import UsageError
from ptir.runtime import Model, speculation
from ptir.runtime.generate import GenerationRun
from ptir.runtime.generation import GenerationStats
from ptir.runtime.session import WIDTHS, Session
from ptir.runtime.speculation import DraftModel, Payoff, PromptLookup
from running import REF, llama_folder

PROMPT = [3, 96, 0, 41, 41, 7, 63, 12, 88, 20, 5]
NEW = 40
HOT = {"temperature": 1.5, "seed": 11}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return ptir.load_model(llama_folder(tmp_path_factory.mktemp("llama")), backend=REF)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify proposals in steps of all widths, whatever they cost here."""
    widths = cycle((1, *WIDTHS))
    monkeypatch.setattr(Payoff, "width", lambda self: next(widths))


def told(model: Model, whole: Sequence[int], how: str, **options: Any) -> GenerationRun:
    run = model.run([PROMPT], max_tokens=NEW, ignore_eos=True, **options)
    run._proposer = Told(whole, PROPOSALS[how])
    for _ in run:
        pass
    return run


@pytest.mark.parametrize("how", PROPOSALS)
@pytest.mark.parametrize("sampling", [{}, HOT, {**HOT, "top_k": 7, "top_p": 0.9}])
def test_tokens_are_those_of_plain_decoding(
    model: Model, how: str, sampling: dict[str, Any]
) -> None:
    plain = model.generate(PROMPT, max_tokens=NEW, ignore_eos=True, **sampling)
    run = told(model, [*PROMPT, *plain.token_ids], how, **sampling)
    (found,) = run.results
    assert found.token_ids == plain.token_ids
    stats = run.stats
    assert stats.proposed_tokens > NEW // 3
    if how == "right":
        assert stats.accepted_tokens == stats.proposed_tokens
    elif how == "wrong":
        assert stats.accepted_tokens == 0
    else:
        assert 0 < stats.accepted_tokens < stats.proposed_tokens


def test_log_probabilities_are_those_of_plain_decoding(model: Model) -> None:
    plain = model.generate(PROMPT, max_tokens=NEW, ignore_eos=True, logprobs=2)
    run = told(model, [*PROMPT, *plain.token_ids], "right but for every third", logprobs=2)
    found = run.results[0].logprobs
    assert found is not None
    assert plain.logprobs is not None
    for one, other in zip(found, plain.logprobs, strict=True):
        assert one["token_id"] == other["token_id"]
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-5)


def test_right_proposals_save_steps(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = model.generate(PROMPT, max_tokens=NEW, ignore_eos=True)
    steps: list[int] = []
    verify = Session.verify

    def counted(self: Session, last: int, proposed: Sequence[int], *rest: Any) -> Any:
        steps.append(len(proposed) + 1)
        return verify(self, last, proposed, *rest)

    monkeypatch.setattr(Session, "verify", counted)
    monkeypatch.setattr(Payoff, "width", lambda self: 4)
    told(model, [*PROMPT, *plain.token_ids], "right")
    assert len(steps) <= NEW // 4 + 1


def test_the_end_of_a_text_within_a_verified_step_ends_it(model: Model) -> None:
    plain = model.generate(PROMPT, max_tokens=NEW, ignore_eos=True)
    end = plain.token_ids[NEW // 2]
    first = plain.token_ids.index(end)
    config = {**model.checkpoint.config, "eos_token_id": end}
    ending = replace(model, checkpoint=replace(model.checkpoint, config=config))
    run = ending.run([PROMPT], max_tokens=NEW)
    run._proposer = Told([*PROMPT, *plain.token_ids], PROPOSALS["right"])
    for _ in run:
        pass
    (found,) = run.results
    assert (found.token_ids, found.finish_reason) == (plain.token_ids[:first], "stop")


def test_lookup_goes_on_as_the_text_did() -> None:
    lookup = PromptLookup()
    assert lookup.propose([1, 2, 3, 4, 5], 3) == []
    assert lookup.propose([1, 2, 3, 4, 5, 9, 2, 3], 3) == [4, 5, 9]
    assert lookup.propose([1, 2, 3, 4, 5, 9, 2, 3, 4, 7, 7, 3, 4], 6) == [7, 7, 3, 4, 7, 7]
    assert PromptLookup().propose([1, 8, 8, 8], 3) == [8, 8, 8]
    # Four tokens that stood there before count more than the latest place of two.
    text = [1, 2, 3, 4, 5, 6, 8, 3, 4, 9, 1, 2, 3, 4]
    assert PromptLookup().propose(text, 2) == [5, 6]


@pytest.mark.parametrize("sampling", [{}, HOT])
def test_lookup_and_a_draft_leave_tokens_as_they_are(
    model: Model, sampling: dict[str, Any]
) -> None:
    repeated = PROMPT[:6] * 3
    plain = model.generate(repeated, max_tokens=NEW, ignore_eos=True, **sampling)
    for speculate in ("lookup", model):
        found = model.generate(
            repeated, max_tokens=NEW, ignore_eos=True, speculate=speculate, **sampling
        )
        assert found.token_ids == plain.token_ids
        if speculate is model and not sampling:  # the best of all drafts
            assert found.stats.accepted_tokens == found.stats.proposed_tokens > NEW // 2


def test_a_context_that_is_full_takes_no_more(model: Model) -> None:
    room = model.context - len(PROMPT)
    plain = model.generate(PROMPT, max_tokens=room, ignore_eos=True)
    found = model.generate(PROMPT, max_tokens=room, ignore_eos=True, speculate=model)
    assert found.token_ids == plain.token_ids


def test_what_cannot_be_speculated_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="speculate with 2 prompts"):
        model.run([[1], [2]], speculate="lookup")
    with pytest.raises(UsageError, match=r"speculate with repetition_penalty 1\.2"):
        model.run([[1]], speculate="lookup", repetition_penalty=1.2)
    with pytest.raises(UsageError, match="speculate 'look': must be one of 'lookup', 'nextn'"):
        model.run([[1]], speculate="look")
    other = ptir.load_model(llama_folder(tmp_path, vocab_size=50), backend=REF)
    with pytest.raises(UsageError, match=r"has 50 tokens and .* 97, and not the same; they must"):
        model.run([[1]], speculate=other)


def words(folder: Path, names: Sequence[str], **config: Any) -> Model:
    """A model of a vocabulary of words."""
    tokenizer = tokenizers.Tokenizer(WordLevel({name: n for n, name in enumerate(names)}, "w0"))
    return ptir.load_model(llama_folder(folder, tokenizer.to_str(), **config), backend=REF)


WORDS = [f"w{number}" for number in range(90)]


@pytest.mark.parametrize("rows", [90, 128])
def test_a_draft_may_have_more_or_fewer_rows_for_the_same_tokens(rows: int, tmp_path: Path) -> None:
    """As those of Qwen2.5 have, which pad theirs to other sizes; random models choose padding."""
    model = words(tmp_path / "model", WORDS)
    draft = words(tmp_path / "draft", [*WORDS[:89], "renamed"], vocab_size=rows)
    for sampling in ({}, HOT):
        plain = model.generate(PROMPT[:1], max_tokens=NEW, ignore_eos=True, **sampling)
        found = model.generate(
            PROMPT[:1], max_tokens=NEW, ignore_eos=True, speculate=draft, **sampling
        )
        assert found.token_ids == plain.token_ids
        assert found.stats.proposed_tokens
    proposed = [DraftModel(draft, model).propose([first], 4) for first in range(0, 90, 9)]
    assert any(proposed) and max(map(max, filter(None, proposed))) < 97


def test_a_draft_computes_what_is_new_alone_when_a_text_goes_on(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = ptir.load_model(llama_folder(tmp_path, num_hidden_layers=1), backend=REF)
    taken: list[int] = []
    prefill = Session.prefill

    def counted(self: Session, prompts: Any, progress: Any = None) -> Any:
        taken.extend(map(len, prompts if self._steps is draft.steps else ()))
        return prefill(self, prompts, progress)

    monkeypatch.setattr(Session, "prefill", counted)
    state = model.new_state(1, 64)
    first = model.generate(PROMPT, max_tokens=8, ignore_eos=True, speculate=draft, state=state)
    assert max(taken) > len(PROMPT)
    taken.clear()
    longer = [*PROMPT, *first.token_ids, 5]
    found = model.generate(longer, max_tokens=8, ignore_eos=True, speculate=draft, state=state)
    assert taken and max(taken) < len(PROMPT)
    assert found.token_ids == model.generate(longer, max_tokens=8, ignore_eos=True).token_ids


def test_a_draft_of_as_many_other_tokens_is_refused(tmp_path: Path) -> None:
    model = words(tmp_path / "model", WORDS)
    draft = words(tmp_path / "draft", [*reversed(WORDS)])
    with pytest.raises(UsageError, match=r"has 97 tokens and .* 97, and not the same; they must"):
        model.run([[1]], speculate=draft)


# --- when it pays ---


@pytest.fixture
def payoff(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, float], float, int], list[int]]:
    monkeypatch.undo()

    def widths(costs: dict[int, float], right: float, steps: int) -> list[int]:
        """The widths of so many steps that cost this, where such a share of proposals is right."""
        learned, found = Payoff(), []
        chance = np.random.default_rng(0)
        for _ in range(steps):
            width = learned.width()
            found.append(width)
            learned.stepped(width, costs[width] * chance.uniform(0.9, 1.1))
            if width > 1:
                wrong = np.flatnonzero(chance.random(width - 1) >= right)
                learned.verified(width - 1, int(wrong[0]) if wrong.size else width - 1)
        return found

    return widths


def test_widths_follow_what_pays(payoff: Any) -> None:
    cheap = {1: 1.0, 2: 1.1, 4: 1.5, 8: 3.0}
    sure = payoff(cheap, 0.95, 60)[20:]
    assert sure.count(4) > 25, sure
    assert payoff({**cheap, 8: 1.6}, 1.0, 60)[40:].count(8) > 15
    never = payoff(cheap, 0.0, 400)
    assert sum(width > 1 for width in never) < 20, never
    dear = payoff({1: 1.0, 2: 2.5, 4: 5.0, 8: 9.0}, 0.9, 400)
    assert sum(width > 1 for width in dear) < 20, dear


def test_speculation_comes_back_when_the_text_repeats_itself(payoff: Any) -> None:
    learned = Payoff()
    costs = {1: 1.0, 2: 1.1, 4: 1.5, 8: 3.0}
    found = []
    for step in range(700):
        width = learned.width()
        found.append(width)
        learned.stepped(width, costs[width])
        if width > 1:
            learned.verified(width - 1, width - 1 if step > 100 else 0)
    assert sum(width > 1 for width in found[:100]) < 16
    assert sum(width > 1 for width in found[-200:]) > 190


class FourAtOnce:
    """A session that submits four steps a call; a step takes a second, all proposals are wrong."""

    room = 1000

    def __init__(self) -> None:
        self.clock, self.pending, self.verified = 0.0, 0, 0

    def advance(self, active: Any, logits_too: bool, ahead: int) -> tuple[Any, None]:
        if self.pending == 0:
            self.pending = min(1 + ahead, 4)
            self.clock += self.pending
        self.pending -= 1
        return np.zeros(1, np.int32), None

    def verify(
        self, last: int, proposed: Sequence[int], logits_too: bool
    ) -> tuple[list[int], None]:
        self.clock += 1.5
        self.verified += 1
        return [0], None


def test_steps_that_were_asked_for_and_not_submitted_do_not_count(
    payoff: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = FourAtOnce()
    monkeypatch.setattr(speculation.time, "perf_counter", lambda: session.clock)
    steps: Any = speculation.SpeculativeSteps(
        session, Told([7] * 400, PROPOSALS["right"]), lambda: [7, 7], GenerationStats()
    )
    for left in range(300, 0, -1):
        steps.advance(np.ones(1, bool), False, left - 1)
    assert steps._payoff._seconds[1].value == pytest.approx(1)
    assert session.verified < 12, session.verified


def test_what_is_dear_to_try_is_tried_less_often(payoff: Any) -> None:
    cheap, dear = ({1: 1.0, 2: two, 4: 9.0, 8: 9.0} for two in (1.2, 4.0))
    tries = [sum(width > 1 for width in payoff(costs, 0.0, 400)) for costs in (cheap, dear)]
    assert tries[1] < tries[0] < 14, tries


def test_eight_are_tried_where_two_do_not_pay(payoff: Any) -> None:
    assert payoff({1: 1.0, 2: 2.2, 4: 2.4, 8: 3.0}, 1.0, 100)[-50:].count(8) == 50
