"""Recipe T6: the output distribution at temperature > 0 equals the target's, and planted faults are caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from support_distribution import continuations, marginal, p_value
from support_drafters import TableDrafter
from support_engine import request, serve
from support_targets import tiny_model

from specbench.engine.target import Target
from specbench.kernels.probs import process_logits
from specbench.types import RunTrace, Sampling

VOCABULARY = 8
PROMPT = (3, 1, 4, 1, 5)
DRAWS = 4000


@cache
def toy() -> Target:
    return Target(tiny_model("llama", vocab_size=VOCABULARY, scale=2.0, pad_token_id=None))


@cache
def table() -> torch.Tensor:
    return torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(5)) * 1.5


@cache
def exact(sampling: Sampling, length: int) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of ``length`` tokens."""
    model = tiny_model("llama", vocab_size=VOCABULARY, scale=2.0, pad_token_id=None)
    return continuations(model, PROMPT, sampling, length=length)


def run(sampling: Sampling, drafter: Any, *, seed: int = 0, draws: int = DRAWS, **options: Any) -> RunTrace:
    requests = [request(n, PROMPT, max_new_tokens=4, sampling=sampling, seed=seed) for n in range(draws)]
    return serve(toy(), drafter, requests, k=3, rows=500, max_context=16, **options)


def tail(trace: RunTrace, start: int, stop: int) -> Counter[tuple[int, ...]]:
    return Counter(r.output_ids[start:stop] for r in trace.requests)


SAMPLINGS = [
    Sampling(0.7),
    Sampling(1.0),
    Sampling(1.5),
    Sampling(1.0, top_p=0.8),
    Sampling(1.0, top_k=4),
    Sampling(1.2, top_p=0.9, top_k=5),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_t6_output_distribution_is_the_targets(sampling: Sampling) -> None:
    trace = run(sampling, TableDrafter(table()))
    joint = exact(sampling, 4)
    assert p_value(tail(trace, 1, 4), marginal(joint, 1, 4)) > 1e-4
    for position in (1, 2, 3):
        assert p_value(tail(trace, position, position + 1), marginal(joint, position, position + 1)) > 1e-4


@pytest.mark.parametrize("ids", [[0, 2, 3, 5], [1, 4, 7]])
def test_t6_reduced_draft_vocabulary_stays_exact(ids: list[int]) -> None:
    drafter = TableDrafter(table()[:, ids].contiguous(), id_map=torch.tensor(ids))
    trace = run(Sampling(1.0), drafter)
    assert {t for r in trace.rounds for t in r.draft_ids} <= set(ids)
    assert p_value(tail(trace, 1, 4), marginal(exact(Sampling(1.0), 4), 1, 4)) > 1e-4


def test_t6_point_mass_drafts_stay_exact() -> None:
    trace = run(Sampling(1.0), TableDrafter(table(), greedy=True))
    assert p_value(tail(trace, 1, 4), marginal(exact(Sampling(1.0), 4), 1, 4)) > 1e-4


def test_t6_acceptance_is_the_overlap_of_the_distributions() -> None:
    sampling = Sampling(1.0)
    trace = run(sampling, TableDrafter(table()))
    joint = exact(sampling, 2)
    first = marginal(joint, 0, 1)
    q = torch.softmax(table(), dim=-1)
    expected = 0.0
    for (token,), p in first.items():
        conditional = torch.tensor([joint.get((token, x), 0.0) / p for x in range(VOCABULARY)])
        expected += p * float(torch.minimum(conditional, q[token]).sum())
    rounds = [r for r in trace.rounds if r.round == 0]
    seen = sum(r.accepted >= 1 for r in rounds) / len(rounds)
    assert abs(seen - expected) < 4 * (expected * (1 - expected) / len(rounds)) ** 0.5


def test_same_tokens_in_any_batch_at_temperature() -> None:
    requests = [request(n, PROMPT, max_new_tokens=8, sampling=Sampling(1.0)) for n in range(9)]
    alone = serve(toy(), TableDrafter(table()), requests, k=3, rows=1, max_context=16)
    together = serve(toy(), TableDrafter(table()), requests, k=3, rows=9, max_context=16)
    assert [r.output_ids for r in alone.requests] == [r.output_ids for r in together.requests]


class TruncatedDraftOnly(TableDrafter):
    """A planted fault: the draft is truncated to its two likeliest tokens, but its full distribution is reported."""

    def propose(self, rows: Any, *, limits: Any, rng: Any) -> Any:
        honest = super().propose(rows, limits=limits, rng=rng)
        assert honest.draft is not None
        top = honest.draft.logits.topk(2, dim=-1).indices
        pick = (rng.draft(rows, honest.tokens.shape[1]) > 0.5).long()
        tokens = top.gather(2, pick[..., None]).squeeze(2)
        return type(honest)(tokens, honest.counts, honest.draft)


class KeepsNoiseByPosition:
    """A planted fault: random numbers keyed by position alone, so a rejected position sees its old noise again."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def _fixed(self, rows: Any, offsets: int, purpose: int) -> Any:
        from specbench.kernels.rng import uniform

        return torch.cat(
            [uniform(rows.seed, rows.number, rows.lengths + 1 + k, offsets=1, purpose=purpose) for k in range(offsets)],
            dim=1,
        )

    def draft(self, rows: Any, offsets: int) -> Any:
        return self._fixed(rows, offsets, 0)

    def accept(self, rows: Any, offsets: int) -> Any:
        return self._fixed(rows, max(offsets, 1), 1)[:, :offsets]

    def next(self, rows: Any) -> Any:
        return self.rng.next(rows)


@pytest.mark.parametrize("fault", [TruncatedDraftOnly])
def test_planted_draft_faults_are_caught(fault: Callable[[torch.Tensor], Any]) -> None:
    trace = run(Sampling(1.0), fault(table()))
    assert p_value(tail(trace, 1, 4), marginal(exact(Sampling(1.0), 4), 1, 4)) < 1e-6


def test_top_p_on_the_draft_only_is_caught() -> None:
    """T6: the target judges without the truncation that the draft was sampled with, and q is reported without it."""
    honest, cut = Sampling(1.0), Sampling(1.0, top_p=0.6)

    class DraftCutOnly(TableDrafter):
        def propose(self, rows: Any, *, limits: Any, rng: Any) -> Any:
            found = super().propose(rows, limits=limits, rng=rng)
            assert found.draft is not None
            b, g, v = found.draft.logits.shape
            flat = found.draft.logits.reshape(b * g, v)
            ones = torch.ones(b * g)
            processed, normaliser = process_logits(
                flat, temperature=ones, top_p=ones * cut.top_p, top_k=torch.full((b * g,), v), any_truncated=True
            )
            from specbench.kernels.sample import sample

            u = rng.draft(rows, g).reshape(-1)
            return type(found)(sample(processed, normaliser, u).view(b, g), found.counts, found.draft)

    trace = run(honest, DraftCutOnly(table()))
    assert p_value(tail(trace, 1, 4), marginal(exact(honest, 4), 1, 4)) < 1e-6
