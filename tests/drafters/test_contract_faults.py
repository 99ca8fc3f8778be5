"""The contract test has teeth: drafters that break one rule each fail it, and are told which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_contract as contract
import torch
from support_contest import asked, contest
from support_contestants import CONTEXT, TOY_VOCAB, Case, Stable
from support_faulty_drafters import (
    ChangesFeatures,
    CutsAtTop2,
    ForgetsNothing,
    KeepsRejected,
    Misreports,
    ReplacesAtEveryChunk,
    SkipsUndraftedRows,
    Summing,
    TouchesNeighbours,
    with_draft,
    with_unlikely_tokens,
)

from specbench.types import DraftLogits, Proposal, Sampling

CASE = Case("summing", "")


class Planted(Stable):
    """Gives out drafters of ``kind`` whatever is asked for."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__(Path())
        self.kind = kind

    def drafter(self, case: Case, *, rows: int, vocab: int = 40, context: int = CONTEXT, **_: Any) -> Any:
        return self.kind(self.target(case, vocab=vocab).view(max_rows=rows, max_context=context))


def every_rule(kind: Callable[..., Any]) -> None:
    """All of the contract that concerns state and distribution."""
    stable = Planted(kind)
    contract.test_greedy_text_is_plain_decodings(CASE, stable)
    for scenario in contract.SCENARIOS:
        contract.test_t10_after_any_verdict_the_state_is_that_of_the_committed_text(CASE, scenario, stable)
    contract.test_t7_t11_same_rounds_however_requests_are_served(CASE, stable)


def test_an_honest_drafter_passes() -> None:
    every_rule(Summing)
    contract.test_t6_sampled_text_has_the_targets_distribution(CASE, Planted(Summing))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (ForgetsNothing, "begin\\(\\) must make a used slot new"),
        (KeepsRejected, "commit\\(\\) must leave exactly the committed tokens' state"),
        (SkipsUndraftedRows, "also for rows whose limit was 0"),
        (TouchesNeighbours, "differs from that of a fresh drafter|nothing may be written outside"),
        (ReplacesAtEveryChunk, "differs from that of a fresh drafter|prefill\\(\\) goes on where"),
        (ChangesFeatures, "\\(\\) changed a tensor that it was given"),
    ],
)
def test_faults_of_state_are_caught(kind: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        every_rule(kind)


def test_a_wrong_distribution_is_caught() -> None:
    with pytest.raises(AssertionError, match="do not follow the target"):
        contract.test_t6_sampled_text_has_the_targets_distribution(CASE, Planted(CutsAtTop2))


FAULTS: dict[str, Callable[[Proposal], Any]] = {
    "must return a Proposal": lambda p: p.tokens,
    "must be int64 target ids": lambda p: replace(p, tokens=p.tokens.int()),
    "must be \\[B, G\\]": lambda p: replace(p, tokens=p.tokens.flatten()),
    "rows for the step's": lambda p: replace(p, tokens=p.tokens[:1]),
    "the largest limit is": lambda p: replace(p, tokens=torch.cat((p.tokens, p.tokens), dim=1)),
    "counts must be int64": lambda p: replace(p, counts=p.counts.int()),
    "counts must be \\[3\\]": lambda p: replace(p, counts=p.counts[None]),
    "negative entries": lambda p: replace(p, counts=p.counts - 4),
    "exceed the limits": lambda p: replace(p, counts=p.counts + 1),
    "that Proposal.tokens holds": lambda p: replace(p, tokens=p.tokens[:, :1]),
    "leave the target's vocabulary": lambda p: replace(p, tokens=p.tokens + TOY_VOCAB),
    "confidence must be float32": lambda p: replace(p, confidence=torch.ones(3, 3, dtype=torch.float64)),
    "the drafts are \\(3, 3\\)": lambda p: replace(p, confidence=torch.ones(3, 2)),
    "are not probabilities": lambda p: replace(p, confidence=torch.full((3, 3), torch.nan)),
    "logits must be float32": lambda p: with_draft(p, logits=p.draft.logits.double()),
    "must cover all drafts": lambda p: with_draft(p, logits=p.draft.logits[:, :1]),
    "log_normaliser must be float32": lambda p: with_draft(p, log_normaliser=p.draft.log_normaliser.double()),
    "log_normaliser must be \\[3, 3\\]": lambda p: with_draft(p, log_normaliser=p.draft.log_normaliser[0]),
    "is not the log of the sum": lambda p: with_draft(p, log_normaliser=p.draft.log_normaliser + 0.1),
    "strictly increasing": lambda p: with_draft(p, id_map=torch.arange(TOY_VOCAB).flip(0)),
    "id_map must be int64": lambda p: with_draft(p, id_map=torch.arange(TOY_VOCAB).int()),
    "the logits have 8 columns": lambda p: with_draft(p, id_map=torch.arange(3)),
    "id_map names 8": lambda p: with_draft(p, id_map=torch.arange(TOY_VOCAB) + 1),
    "has q = 0": with_unlikely_tokens,
}


@pytest.mark.parametrize("says", FAULTS)
def test_faulty_proposals_are_caught(says: str) -> None:
    requests = asked(3, vocab=TOY_VOCAB, seed=1, tokens=(8,), sampling=Sampling(1.0))
    stable = Planted(lambda view: Misreports(view, FAULTS[says]))
    with pytest.raises(AssertionError, match=says):
        contest(stable, CASE, requests, rows=3, vocab=TOY_VOCAB, k=3)


def test_a_sampled_draft_outside_the_map_is_caught() -> None:
    def move(found: Proposal) -> Proposal:
        assert found.draft is not None
        logits = found.draft.logits[..., :6]
        cut = with_draft(found, logits=logits, log_normaliser=torch.logsumexp(logits, -1))
        return replace(cut, tokens=torch.full_like(found.tokens, 7))

    requests = asked(2, vocab=TOY_VOCAB, seed=1, sampling=Sampling(1.0))
    with pytest.raises(AssertionError, match="sampled draft is not among"):
        contest(Planted(lambda view: Misreports(view, move)), CASE, requests, vocab=TOY_VOCAB, k=3)


def test_a_distribution_at_temperature_0_is_caught() -> None:
    def add(found: Proposal) -> Proposal:
        logits = torch.zeros(*found.tokens.shape, TOY_VOCAB)
        return replace(found, draft=DraftLogits(logits, torch.logsumexp(logits, -1)))

    requests = asked(2, vocab=TOY_VOCAB, seed=1)
    with pytest.raises(AssertionError, match="every row is greedy"):
        contest(Planted(lambda view: Misreports(view, add)), CASE, requests, vocab=TOY_VOCAB, k=3)


def test_drafts_past_a_stop_are_caught() -> None:
    with pytest.raises(AssertionError, match="past the stop token"):
        contract.test_nothing_is_drafted_past_a_stop(CASE, Planted(Summing))


def test_a_method_without_a_maker_is_told_what_to_add() -> None:
    with pytest.raises(pytest.fail.Exception, match="add a maker to OWN, and one to PUBLISHED"):
        Stable(Path()).drafter(Case("eagle3", ""), rows=1)
