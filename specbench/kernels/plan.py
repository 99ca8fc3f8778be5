"""How many drafts of each row to verify: survival, ranking, admission; plain torch, each function its own definition.

A candidate is one draft position of one row, K the number of admitted candidates. A step that verifies them sends
R + K tokens (and whatever prompt tokens ride along) to the target and is expected to commit tau(K) = R + the sum of
the K admitted survivals; its throughput is theta(K) = tau(K) * rate(K), with rate in steps a second (DSpark,
arXiv 2607.05147, section on confidence-scheduled verification). Nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.kernels.dispatch import uses_triton


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates by falling survival; ties by row, then by position, so that a row's own order is never broken."""

    scores: Tensor  # [R * G] float64, survival in rank order, 0 where the position was not drafted
    place: Tensor  # [R, G] int64, the rank of each candidate; positions that were not drafted come last
    inside: Tensor  # [R, G] bool, which positions were drafted
    row: Tensor  # [R * G] int64, the row of the candidate at each rank

    @property
    def count(self) -> Tensor:
        """[] int64: how many candidates there are."""
        return self.inside.sum()


@dataclass(frozen=True, slots=True)
class Choice:
    """How many candidates to admit and the throughput that is expected of it, in tokens a second."""

    admitted: Tensor  # [] int64
    theta: Tensor  # [] float64


def survival(confidence: Tensor, counts: Tensor) -> Tensor:
    """Probability that a draft and all before it are accepted: the running product of the confidences.

    Args:
        confidence: [R, G], each given that all before it were accepted; NaN counts as 0, values are cut to [0, 1].
        counts: [R] int64, how many positions were drafted.

    Returns:
        [R, G] float64, non-increasing along a row, 0 beyond its count.
    """
    if uses_triton(confidence):
        from specbench.kernels._triton import plan as twin

        return twin.survival(confidence, counts)
    clean = confidence.to(torch.float64).nan_to_num(nan=0.0).clamp(0.0, 1.0)
    return torch.where(_drafted(clean, counts), clean, torch.zeros_like(clean)).cumprod(dim=1)


def _drafted(like: Tensor, counts: Tensor) -> Tensor:
    return torch.arange(like.shape[1], device=like.device)[None, :] < counts[:, None]  # [R, G]


def rank(scores: Tensor, counts: Tensor) -> Ranking:
    """Rank all candidates by ``scores`` [R, G] (a survival: non-increasing along each row)."""
    if uses_triton(scores):
        from specbench.kernels._triton import plan as twin

        return twin.rank(scores, counts)
    inside = _drafted(scores, counts)
    key = torch.where(inside, -scores, torch.full_like(scores, torch.inf)).flatten()
    order = torch.argsort(key, stable=True)  # row-major before sorting, so ties keep (row, position)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.shape[0], device=order.device)
    ordered = torch.where(inside, scores, torch.zeros_like(scores)).flatten()[order]
    width = max(scores.shape[1], 1)
    return Ranking(ordered, place.view_as(inside), inside, order // width)


def theta_path(ranking: Ranking, rates: Tensor, *, expected: Tensor | None = None) -> Tensor:
    """[R * G + 1] float64: expected throughput after admitting the first 0, 1, 2, ... candidates.

    ``rates`` [R * G + 1] float64 are the steps a second with that many candidates in the batch; ``expected`` [] the
    tokens committed without any of them, None for one a row. Entries beyond the number of candidates are meaningless.
    """
    gained = torch.nn.functional.pad(ranking.scores.cumsum(dim=0), (1, 0))
    return (gained + (ranking.inside.shape[0] if expected is None else expected)) * rates


def early_stop(ranking: Ranking, rates: Tensor, *, expected: Tensor | None = None) -> Choice:
    """Algorithm 1 of the DSpark paper: admit in rank order, stop at the first that does not raise the throughput.

    Stopping there is what keeps it exact with current scores: whether a draft is admitted then depends on nothing that
    was computed from that draft or a later one of its row. Arguments as of `theta_path`.
    """
    theta = theta_path(ranking, rates, expected=expected)
    better = (theta[1:] > theta[:-1]) & (torch.arange(theta.shape[0] - 1, device=theta.device) < ranking.count)
    admitted = better.to(torch.int64).cumprod(dim=0).sum()
    return Choice(admitted, _at(theta, admitted))


def best_capacity(scores: Tensor, rates: Tensor) -> Choice:
    """The number of candidates with the highest expected throughput, over a curve as jagged as it may be.

    ``scores`` [R, G] are the survivals of all candidates, 0 where there is none (it is then admitted only where more
    tokens are cheaper). The first maximum wins. With current scores this looks back at the drafts that it decides on
    and is biased (appendix A of the paper); it may only see scores of earlier cycles.
    """
    if uses_triton(scores):
        from specbench.kernels._triton import plan as twin

        return twin.best_capacity(scores, rates)
    ordered = scores.flatten().sort(descending=True).values
    theta = (torch.nn.functional.pad(ordered.cumsum(dim=0), (1, 0)) + scores.shape[0]) * rates
    admitted = theta.argmax()
    return Choice(admitted, _at(theta, admitted))


def _at(values: Tensor, index: Tensor) -> Tensor:
    """values[index] for a scalar index on the device; plain indexing would fetch the index to the host."""
    return values.flatten().gather(0, index[None]).squeeze(0)


def admit(ranking: Ranking, admitted: Tensor) -> Tensor:
    """[R] int64: drafts of each row among the first ``admitted`` candidates; always a prefix of the row."""
    if uses_triton(admitted):
        from specbench.kernels._triton import plan as twin

        return twin.admit(ranking, admitted)
    return ((ranking.place < admitted) & ranking.inside).sum(dim=1)


def lookup(tokens: Tensor, *, at: Tensor, values: Tensor, linear: bool) -> Tensor:
    """A measured curve read at ``tokens`` (any shape, int64): float64 of that shape.

    ``at`` [P] is increasing, ``values`` [P] were measured there. Without ``linear`` the value at the largest measured
    point that is not beyond ``tokens`` holds (the first one below it); with it, straight lines join the points and the
    ends go on flat.
    """
    if uses_triton(tokens):
        from specbench.kernels._triton import plan as twin

        return twin.lookup(tokens, at=at, values=values, linear=linear)
    below = (torch.searchsorted(at, tokens, right=True) - 1).clamp(min=0)
    if not linear or at.shape[0] == 1:
        return values[below]
    left = below.clamp(max=at.shape[0] - 2)
    span = (at[left + 1] - at[left]).to(torch.float64)
    share = ((tokens - at[left]).to(torch.float64) / span).clamp(0.0, 1.0)
    return values[left] + share * (values[left + 1] - values[left])
