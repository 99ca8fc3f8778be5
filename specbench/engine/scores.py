"""Where a policy's scores come from: calibrated confidences, kept adapting if asked, or estimates from outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.errors import ConfigError
from specbench.types import Proposal, Rows

CLAMP = 1e-8  # confidences are kept this far from 0 and 1 before their logit is taken
PRIOR_MEAN = 0.9  # a position that was never observed is expected to be accepted: new requests start at full length
PRIOR_WEIGHT = 2.0  # in observed drafts


def logit(confidence: Tensor) -> Tensor:
    """Log-odds in float64 of confidences cut to [CLAMP, 1 - CLAMP]; NaN counts as 0."""
    return torch.logit(confidence.to(torch.float64).nan_to_num(nan=0.0), eps=CLAMP)


def reached(lengths: Tensor, accepted: Tensor, live: Tensor) -> Tensor:
    """[B, G] bool: positions that were verified and whose every predecessor was accepted, none of them a stop token.

    ``live`` [B, G] says that no earlier draft of the row is a stop token. Only these positions show a conditional
    acceptance; `accepted` > k is their outcome.
    """
    k = torch.arange(live.shape[1], device=live.device)[None, :]
    return (k < lengths[:, None]) & (k <= accepted[:, None]) & live


class AcceptanceEstimator:
    """Conditional acceptance by domain and position, from counts that forget: for drafters without confidences.

    Counts are summed as whole numbers before they are added, so the result does not depend on the order of the rows.
    """

    def __init__(self, positions: int, device: torch.device, *, num_domains: int, forget: float = 0.002) -> None:
        self._keep = 1.0 - forget
        self._hits = torch.zeros(num_domains, positions, dtype=torch.float64, device=device)
        self._seen = torch.zeros_like(self._hits)

    def conditional(self, domain_id: Tensor, width: int) -> Tensor:
        """[B, width] float64."""
        row = self._index(domain_id)
        hits, seen = self._hits[row, :width], self._seen[row, :width]
        return (hits + PRIOR_WEIGHT * PRIOR_MEAN) / (seen + PRIOR_WEIGHT)

    def observe(self, domain_id: Tensor, *, shown: Tensor, accepted: Tensor) -> None:
        """Add outcomes. ``shown`` [B, G] bool from `reached`; ``accepted`` [B] int64."""
        k = torch.arange(shown.shape[1], device=shown.device)[None, :]
        row, width = self._index(domain_id), shown.shape[1]
        seen, hits = torch.zeros_like(self._seen), torch.zeros_like(self._seen)
        seen[:, :width].index_add_(0, row, shown.to(torch.float64))
        hits[:, :width].index_add_(0, row, (shown & (k < accepted[:, None])).to(torch.float64))
        keep = self._keep**seen
        self._seen.mul_(keep).add_(seen)
        self._hits.mul_(keep).add_(hits)

    def _index(self, domain_id: Tensor) -> Tensor:
        return domain_id.clamp(max=self._seen.shape[0] - 1)


class OnlineCalibrator:
    """Keeps a scale and a shift of the log-odds per position, adapted to outcomes as they come.

    A Newton step of logistic regression a cycle: curvature is summed over the observations and decays by the factor
    (1 - forget) with each one, which gives a memory of about 1 / forget observations; no parameter moves by more than
    ``max_step`` a cycle. There is no randomness: the same rounds give the same parameters.
    """

    RIDGE = 1.0  # curvature that stands for the start (scale 1, shift 0) and never decays
    SCALES = (0.05, 20.0)

    def __init__(self, positions: int, device: torch.device, *, forget: float = 0.002, max_step: float = 0.05) -> None:
        self._keep, self._max_step = 1.0 - forget, max_step
        self.parameters = torch.zeros(positions, 2, dtype=torch.float64, device=device)  # scale, shift
        self.parameters[:, 0] = 1.0
        self._curvature = torch.zeros(positions, 3, dtype=torch.float64, device=device)  # zz, z, 1

    def log_odds(self, z: Tensor) -> Tensor:
        """Adapted log-odds of ``z`` [B, G]."""
        scale, shift = self.parameters[: z.shape[1]].unbind(dim=1)
        return z * scale + shift

    def observe(self, z: Tensor, *, shown: Tensor, accepted: Tensor) -> None:
        """Move towards the outcomes of the positions ``shown``; ``z`` are log-odds before adapting; both [B, G]."""
        width = z.shape[1]
        k = torch.arange(width, device=z.device)[None, :]
        p = torch.sigmoid(self.log_odds(z))
        weight = shown.to(torch.float64)
        error = (p - (k < accepted[:, None]).to(torch.float64)) * weight
        bend = p * (1 - p) * weight
        n = weight.sum(dim=0)  # [G]
        fresh = torch.stack([(bend * z * z).sum(0), (bend * z).sum(0), bend.sum(0)], dim=1)
        curvature = self._curvature[:width] * (self._keep**n)[:, None] + fresh
        self._curvature[:width] = curvature
        zz, z1, one = curvature[:, 0] + self.RIDGE, curvature[:, 1], curvature[:, 2] + self.RIDGE
        by_scale, by_shift = (error * z).sum(0), error.sum(0)
        determinant = zz * one - z1 * z1
        step = torch.stack([one * by_scale - z1 * by_shift, zz * by_shift - z1 * by_scale], dim=1)
        step = (step / determinant[:, None]).clamp(-self._max_step, self._max_step)
        moved = self.parameters[:width] - step
        moved[:, 0] = moved[:, 0].clamp(*self.SCALES)
        self.parameters[:width] = moved


class Scores:
    """Conditional acceptance probabilities of a proposal, and what is learned from its outcome.

    Outcomes are counted by domain and position where the drafter gives no confidences.
    """

    def __init__(
        self,
        draft_length: int,
        device: torch.device,
        *,
        temperatures: Sequence[float] = (),
        online: OnlineCalibrator | None = None,
        stop_ids: frozenset[int] = frozenset(),
        num_domains: int = 32,
        forget: float = 0.002,
    ) -> None:
        if temperatures and len(temperatures) < draft_length:
            raise ConfigError(
                f"the calibration covers {len(temperatures)} positions and {draft_length} are drafted; calibrate at "
                "this draft length, or leave it out with --set calibration=off"
            )
        self.online = online
        self.estimator = AcceptanceEstimator(draft_length, device, num_domains=num_domains, forget=forget)
        self._temperatures = (
            torch.tensor(list(temperatures[:draft_length]), dtype=torch.float64, device=device)
            if temperatures
            else None
        )
        self._stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=device)
        self._seen: tuple[Tensor, Tensor | None, bool] | None = None
        """Drafts, log-odds before online adaptation, and whether the drafter gave confidences."""

    def conditional(self, rows: Rows, proposal: Proposal) -> Tensor:
        """[B, G] float64: probability that each draft is accepted given that all before it were."""
        if proposal.confidence is None or proposal.tokens.shape[1] == 0:
            self._seen = (proposal.tokens, None, proposal.confidence is not None)
            return self.estimator.conditional(rows.domain_id, proposal.tokens.shape[1])
        if self._temperatures is None and self.online is None:
            self._seen = (proposal.tokens, None, True)
            return proposal.confidence.to(torch.float64)
        z = logit(proposal.confidence)
        if self._temperatures is not None:
            z = z / self._temperatures[: z.shape[1]]
        self._seen = (proposal.tokens, z, True)
        return torch.sigmoid(z if self.online is None else self.online.log_odds(z))

    def observe(self, rows: Rows, *, lengths: Tensor, accepted: Tensor) -> None:
        """Learn from the proposal that `conditional` saw last: how many were verified and accepted, both [B]."""
        assert self._seen is not None, "outcomes follow a plan"
        tokens, z, confident = self._seen
        if tokens.shape[1] == 0:
            return
        adapts, counts = self.online is not None and z is not None, not confident
        if not adapts and not counts:
            return
        shown = reached(lengths, accepted, self._live(tokens))
        if counts:
            self.estimator.observe(rows.domain_id, shown=shown, accepted=accepted)
        if self.online is not None and z is not None:
            self.online.observe(z, shown=shown, accepted=accepted)

    def _live(self, tokens: Tensor) -> Tensor:
        """[B, G] bool: no stop token among the drafts before this one."""
        if self._stops.numel() == 0:
            return torch.ones_like(tokens, dtype=torch.bool)
        stopped = torch.isin(tokens, self._stops).to(torch.int64)
        return (stopped.cumsum(dim=1) - stopped) == 0
