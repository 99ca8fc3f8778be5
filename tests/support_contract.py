"""What every drafter must keep to, checked at each call; and the rounds of a run, to be compared between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.api import Drafter, Random
from specbench.types import Features, Load, Proposal, Rows, Verdict, VerifyPlan

TOLERANCE = 1e-4  # of probabilities and confidences, float32
Key = tuple[int, int]  # (Request.number, position of the anchor): one round of one request


@dataclass(frozen=True, slots=True)
class Round:
    """What a drafter proposed to one row. ``probability`` [count, V] over target ids where drafts were sampled."""

    limit: int
    tokens: tuple[int, ...]
    probability: Tensor | None
    confidence: Tensor | None  # [count]


# ------------------------------------------------------------------------------------------ one proposal


def check_proposal(found: Proposal, rows: Rows, limits: Tensor, *, vocab_size: int, stop_ids: frozenset[int]) -> None:
    """Assert that a proposal is one; each message says what a drafter has to mend."""
    assert isinstance(found, Proposal), f"propose() must return a Proposal, it returned {type(found).__name__}"
    tokens, counts, batch = found.tokens, found.counts, len(rows)
    assert tokens.dtype == torch.int64, f"Proposal.tokens must be int64 target ids, they are {tokens.dtype}"
    assert tokens.dim() == 2, f"Proposal.tokens must be [B, G], their shape is {tuple(tokens.shape)}"
    assert tokens.shape[0] == batch, f"Proposal.tokens has {tokens.shape[0]} rows for the step's {batch}"
    widest = int(limits.max())
    assert tokens.shape[1] <= widest, f"Proposal.tokens is {tokens.shape[1]} wide, the largest limit is {widest}"
    assert counts.dtype == torch.int64, f"Proposal.counts must be int64, they are {counts.dtype}"
    assert counts.shape == (batch,), f"Proposal.counts must be [{batch}], their shape is {tuple(counts.shape)}"
    assert bool((counts >= 0).all()), f"Proposal.counts has negative entries: {counts.tolist()}"
    assert bool((counts <= limits).all()), (
        f"Proposal.counts {counts.tolist()} exceed the limits {limits.tolist()}: the policy decides how many"
    )
    assert bool((counts <= tokens.shape[1]).all()), (
        f"Proposal.counts {counts.tolist()} exceed the {tokens.shape[1]} drafts that Proposal.tokens holds"
    )
    real = torch.arange(tokens.shape[1])[None] < counts[:, None]  # [B, G]
    drafted = tokens[real]
    assert bool(((drafted >= 0) & (drafted < vocab_size)).all()), (
        f"drafts {sorted(set(drafted.tolist()))} leave the target's vocabulary of {vocab_size}: Proposal.tokens are "
        "target ids, map draft ids first"
    )
    for row, count in enumerate(counts.tolist()):
        early = set(tokens[row, : max(count - 1, 0)].tolist()) & stop_ids
        assert not early, f"drafts go on past the stop token {early}: end a row's counts with truncate_at_stop()"
    _check_confidence(found, real)
    _check_distribution(found, rows, real, vocab_size=vocab_size)


def _check_confidence(found: Proposal, real: Tensor) -> None:
    confidence = found.confidence
    if confidence is None:
        return
    shape = tuple(found.tokens.shape)
    assert confidence.dtype == torch.float32, f"Proposal.confidence must be float32, it is {confidence.dtype}"
    assert confidence.shape == shape, f"Proposal.confidence is {tuple(confidence.shape)}, the drafts are {shape}"
    inside = confidence[real]
    assert bool(((inside >= 0) & (inside <= 1)).all()), (
        f"confidences {inside.tolist()} are not probabilities: they lie outside 0..1 or are NaN"
    )


def _check_distribution(found: Proposal, rows: Rows, real: Tensor, *, vocab_size: int) -> None:
    draft = found.draft
    if draft is None:
        return
    assert not rows.all_greedy, "every row is greedy: leave Proposal.draft None, a point mass needs no distribution"
    batch, width = found.tokens.shape
    size = draft.logits.shape[-1]
    assert draft.logits.dtype == torch.float32, f"DraftLogits.logits must be float32, they are {draft.logits.dtype}"
    assert draft.logits.shape == (batch, width, size), (
        f"DraftLogits.logits is {tuple(draft.logits.shape)}, it must cover all drafts: [{batch}, {width}, Vd]"
    )
    normaliser = draft.log_normaliser
    assert normaliser.dtype == torch.float32, f"DraftLogits.log_normaliser must be float32, it is {normaliser.dtype}"
    assert normaliser.shape == (batch, width), (
        f"DraftLogits.log_normaliser must be [{batch}, {width}], its shape is {tuple(normaliser.shape)}"
    )
    ids = draft.id_map
    if ids is None:
        assert size <= vocab_size, f"DraftLogits has {size} ids for a vocabulary of {vocab_size}; give an id_map"
        ids = torch.arange(size)
    assert ids.dtype == torch.int64, f"DraftLogits.id_map must be int64, it is {ids.dtype}"
    assert ids.shape == (size,), f"DraftLogits.id_map has {ids.numel()} ids, the logits have {size} columns"
    assert bool((ids.diff() > 0).all()), "DraftLogits.id_map must be strictly increasing: the verifier searches in it"
    assert int(ids.min()) >= 0, "DraftLogits.id_map has a negative id"
    assert int(ids.max()) < vocab_size, f"DraftLogits.id_map names {int(ids.max())} of a vocabulary of {vocab_size}"
    sampled = real & (rows.temperature > 0)[:, None]
    logits, tokens = draft.logits[sampled], found.tokens[sampled]  # [n, Vd], [n]
    assert bool((torch.logsumexp(logits, dim=-1) - normaliser[sampled]).abs().lt(1e-4).all()), (
        "DraftLogits.log_normaliser is not the log of the sum over exp(logits): the ratio p/q would be wrong"
    )
    assert bool(torch.isin(tokens, ids).all()), "a sampled draft is not among DraftLogits.id_map, so it has no q"
    column = torch.searchsorted(ids, tokens)
    assert bool(logits.gather(1, column[:, None]).isfinite().all()), (
        "a sampled draft has q = 0 in DraftLogits: the drafts were not drawn from the distribution that is reported"
    )


def _rounds(found: Proposal, rows: Rows, limits: Tensor, *, vocab_size: int) -> dict[Key, Round]:
    out = {}
    keys = zip(rows.number.tolist(), rows.lengths_host, found.counts.tolist(), limits.tolist(), strict=True)
    for row, (number, anchor, count, limit) in enumerate(keys):
        if limit == 0:  # whether propose() is called at all then depends on the other rows
            continue
        probability = None
        if found.draft is not None and float(rows.temperature[row]) > 0:
            q = (found.draft.logits[row, :count] - found.draft.log_normaliser[row, :count, None]).exp()
            ids = torch.arange(q.shape[1]) if found.draft.id_map is None else found.draft.id_map
            probability = torch.zeros(count, vocab_size).index_copy_(1, ids, q)
        confidence = None if found.confidence is None else found.confidence[row, :count].clone()
        out[number, anchor] = Round(limit, tuple(found.tokens[row, :count].tolist()), probability, confidence)
    return out


# ------------------------------------------------------------------------------------------ a drafter under watch


class Watched:
    """A drafter whose every call is checked, and whose proposals are kept: the first of each request and anchor."""

    options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, drafter: Drafter, *, vocab_size: int, stop_ids: frozenset[int] = frozenset()) -> None:
        self.drafter, self.vocab_size, self.stop_ids = drafter, vocab_size, stop_ids
        self.taps, self.trained_length = drafter.taps, drafter.trained_length
        self.max_context = drafter.max_context
        self.rounds: dict[Key, Round] = {}

    def begin(self, rows: Rows) -> None:
        self.drafter.begin(rows)

    def prefill(self, rows: Rows, features: Features) -> None:
        before = _copies(rows, features)
        self.drafter.prefill(rows, features)
        _check_unchanged(before, "prefill")

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        before = [*_copies(rows), (limits, limits.clone())]
        found = self.drafter.propose(rows, limits=limits, rng=rng)
        _check_unchanged(before, "propose")
        check_proposal(found, rows, limits, vocab_size=self.vocab_size, stop_ids=self.stop_ids)
        self.rounds = _rounds(found, rows, limits, vocab_size=self.vocab_size) | self.rounds
        return found

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        before = [*_copies(rows, features), *((t, t.clone()) for t in (verdict.accepted, verdict.next_token))]
        self.drafter.commit(rows, verdict=verdict, features=features)
        _check_unchanged(before, "commit")

    def release(self, slots: Sequence[int]) -> None:
        self.drafter.release(slots)

    def state_bytes(self) -> int:
        return self.drafter.state_bytes()


def _copies(*records: Any) -> list[tuple[Tensor, Tensor]]:
    values = [getattr(record, name) for record in records for name in type(record).__slots__]
    return [(value, value.clone()) for value in values if isinstance(value, Tensor)]


def _check_unchanged(before: list[tuple[Tensor, Tensor]], call: str) -> None:
    assert all(now.equal(then) for now, then in before), (
        f"{call}() changed a tensor that it was given; the engine and the other rows still need it: work on a copy"
    )


# ------------------------------------------------------------------------------------------ comparing runs


def difference(one: Mapping[Key, Round], other: Mapping[Key, Round]) -> str | None:
    """The first round in which two runs differ, in words; None where every round is the same."""
    for key in sorted(set(one) | set(other)):
        where = f"request {key[0]}, anchor at position {key[1]}"
        if key not in one or key not in other:
            return f"{where}: only {'the second' if key not in one else 'the first'} run has this round"
        a, b = one[key], other[key]
        if a.tokens != b.tokens:
            return f"{where}: drafts {a.tokens} and {b.tokens}"
        for name in ("probability", "confidence"):
            x, y = getattr(a, name), getattr(b, name)
            if (x is None) != (y is None):
                return f"{where}: only one of the two has a {name}"
            if x is not None and x.numel() and float((x - y).abs().max()) > TOLERANCE:
                return f"{where}: {name} differs by {float((x - y).abs().max()):.1e} for the same drafts {a.tokens}"
    return None


class Patchy:
    """Limits and verified lengths that change from round to round, 0 among them, by the anchor's position alone."""

    causal: ClassVar[bool] = True

    def __init__(self, draft_length: int) -> None:
        self.draft_length, self.name = draft_length, "test-patchy"

    def draft_limits(self, rows: Rows, *, load: Load) -> Tensor:
        k = self.draft_length
        pattern = torch.tensor([k, 0, max(k - 1, 1), k, 0, 0, 1, k])
        return pattern[(rows.lengths + rows.number) % len(pattern)]

    def plan(self, rows: Rows, *, proposal: Proposal, load: Load) -> VerifyPlan:
        cut = (rows.lengths + 2 * rows.number) % 3 == 0  # a third of the rounds verify one draft less
        return VerifyPlan((proposal.counts - cut.long()).clamp(min=0))

    def observe(self, rows: Rows, *, plan: VerifyPlan, verdict: Verdict) -> None: ...


class Replay:
    """The limits that recorded rounds had; 0 in any other round."""

    causal: ClassVar[bool] = True

    def __init__(self, limits: Mapping[Key, int]) -> None:
        self.limits = limits
        self.draft_length, self.name = max(limits.values()), "test-replay"

    def draft_limits(self, rows: Rows, *, load: Load) -> Tensor:
        keys = zip(rows.number.tolist(), rows.lengths_host, strict=True)
        return torch.tensor([self.limits.get(key, 0) for key in keys])

    def plan(self, rows: Rows, *, proposal: Proposal, load: Load) -> VerifyPlan:
        return VerifyPlan(proposal.counts)

    def observe(self, rows: Rows, *, plan: VerifyPlan, verdict: Verdict) -> None: ...
