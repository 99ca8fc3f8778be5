"""``load-aware``: the capacity comes from the scores of earlier cycles, this cycle's scores only rank the drafts.

The production form of the DSpark paper (arXiv 2607.05147): with L the lag, the number K of drafts that the step
verifies maximises the throughput expected from the scores of L cycles ago, over the whole jagged cost table; the K
drafts that look best now are verified. K owes nothing to the drafts that it decides on, and a draft's rank nothing to
later drafts of its row, so each request's distribution stays exact. With lag 0 the search looks back at what it
decides on: a diagnostic, biased (appendix A of the paper), which never ranks.

Scores come to the host with the copy that ends their cycle, so K is known there before anything is drafted; a padded
step can then run a forward of the size that K needs.

``draft-cost=on`` puts the price of drafting into the objective and lets rows skip it while they are not expected to
pay for it (the early exit that the paper leaves to future work): see `specbench.engine.forecast`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.engine.forecast import Chosen, Floats, Forecast
from specbench.engine.lagged import LaggedScores
from specbench.engine.lagged import best_capacity as best_known_capacity
from specbench.engine.policy import (
    SHARED,
    Decision,
    Drafted,
    Option,
    PolicyContext,
    ScoredPolicy,
    canonical,
    needed_cost,
    parse_options,
)
from specbench.engine.upload import upload
from specbench.errors import ConfigError
from specbench.kernels.plan import Choice, admit, best_capacity, rank
from specbench.types import Load, Rows

OPTIONS = {
    "lag": Option("count", 2, "age in cycles of the scores that set the capacity"),
    "draft-cost": Option("switch", False, "count the price of drafting, and skip drafting that does not pay"),
    **SHARED,
}


class LoadAwarePolicy(ScoredPolicy):
    """Lagged capacity, fresh ranking."""

    def __init__(
        self, draft_length: int, options: dict[str, Any], name: str, *, context: PolicyContext | None = None
    ) -> None:
        self._cost = needed_cost("load-aware", context)
        super().__init__(name, draft_length, options, context)
        self._lag: int = options["lag"]
        self.capped = self._lag > 0
        self._history = LaggedScores(self._lag, positions=draft_length) if self._lag else None

    def most_drafts(self, capacity: int, num_whole: int) -> int:
        """Drafts that a step verifies at most, known before they are drafted.

        Rounds that verify everything, ``num_whole`` of them, are served first out of the capacity, and in full also
        where it does not hold them.
        """
        return max(capacity, num_whole * self.draft_length)

    def _decide(self, rows: Rows, drafted: Drafted, load: Load) -> Decision:
        scores, counts = drafted.survival, drafted.counts
        fresh = torch.nn.functional.pad(scores, (0, self.draft_length - scores.shape[1]))  # [B, G of the policy]
        if drafted.whole is not None:  # rows that verify everything come first: the capacity holds for all together
            scores = torch.where(drafted.whole[:, None], 2.0, scores)
        ranking, label = rank(scores, counts), f"lag={self._lag}"
        if self._history is None:
            rates = self._cost.rates(len(rows), riding=load.prefill_tokens, candidates=fresh.numel())
            choice = best_capacity(fresh, rates)
            return Decision(admit(ranking, choice.admitted), _facts(choice), label)
        known = self._history.read(_numbers(rows), load.step)  # while the device drafts
        rates_known = self._cost.host_rates(len(rows), riding=load.prefill_tokens, candidates=known.size)
        capacity, theta = best_known_capacity(known, rates_known)
        admitted = torch.full((), capacity, dtype=torch.int64, device=scores.device)
        label += f" capacity={capacity:.6g} theta={theta:.6g}"
        kept, tell = self._keep(rows, load.step, fresh)
        most = self.most_drafts(capacity, drafted.num_whole)
        return Decision(admit(ranking, admitted), {}, label, kept, tell, most)

    def _keep(self, rows: Rows, step: int, fresh: Tensor) -> tuple[Tensor, Callable[[Sequence[float]], None]]:
        """Scores for later cycles, and whom to tell of them when they are on the host."""
        history = self._history
        assert history is not None, "lag 0 keeps nothing"
        history.write(_numbers(rows), step, fresh)
        return fresh, lambda scores: history.tell(step, scores)


def _numbers(rows: Rows) -> tuple[int, ...]:
    """Request numbers of the rows; the engine's rows hold them on the host."""
    return tuple(rows.number.tolist()) if rows.numbers_host is None else rows.numbers_host


def _domains(rows: Rows) -> tuple[int, ...]:
    """Domains of the rows, as their numbers."""
    return tuple(rows.domain_id.tolist()) if rows.domains_host is None else rows.domains_host


def _facts(choice: Choice) -> dict[str, Tensor]:
    return {"capacity": choice.admitted, "theta": choice.theta}


class PricedPolicy(ScoredPolicy):
    """Lagged capacity and lagged choice of the rows that draft, fresh ranking."""

    may_skip: ClassVar[bool] = True  # a step may draft for no row at all

    def __init__(
        self, draft_length: int, options: dict[str, Any], name: str, *, context: PolicyContext | None = None
    ) -> None:
        self._cost = needed_cost("load-aware", context)
        super().__init__(name, draft_length, options, context)
        if self.context.method not in self._cost.table.draft:
            raise ConfigError(
                f"load-aware with draft-cost=on needs the price of drafting with '{self.context.method}', which the "
                f"cost table does not hold; measure it with 'specbench profile --method {self.context.method}'"
            )
        self._lag: int = options["lag"]
        self._forecast = Forecast(self._lag, positions=draft_length)
        self._chosen: Chosen | None = None
        self._whole: list[bool] | None = None

    def draft_limits(self, rows: Rows, *, load: Load) -> Tensor:
        """[B] int64: the length that pays best, or 0 where drafting is not expected to pay."""
        count = len(rows)
        chosen = self._forecast.choose(
            load.step,
            numbers=_numbers(rows),
            domains=_domains(rows),
            draft_seconds=self._cost.host_draft_seconds(self.context.method, count, drafts=self.draft_length),
            verify_seconds=self._verify_seconds(count, riding=load.prefill_tokens),
            uneven_seconds=self._cost.table.uneven(count),
        )
        drafting = chosen.rows.tolist()
        self._whole = super().exploring(rows)
        if self._whole is not None:  # of those that draft: a share of what is drafted, not a price of its own
            self._whole = [due and drafts for due, drafts in zip(self._whole, drafting, strict=True)]
        self._chosen = chosen
        allowed = [chosen.length if drafts else 0 for drafts in drafting]
        if self._whole is not None:
            allowed = [self.draft_length if whole else limit for whole, limit in zip(self._whole, allowed, strict=True)]
        return upload(allowed, dtype=torch.int64, device=rows.lengths.device)

    def _verify_seconds(self, rows: int, *, riding: int) -> Floats:
        """[rows * G + 1]: time of a step with 0, 1, ... drafts, without what its prompt tokens take.

        Prompts are to be run sooner or later whatever is decided. A step that takes long for them would otherwise
        make its other time look cheap, and drafting pay that does not. Where the table prices them apart, they change
        nothing about the rest: as tokens of the rows they would make these look fuller than they are.
        """
        candidates = rows * self.draft_length
        if self._cost.table.prompt is not None:
            riding = 0
        seconds = 1.0 / self._cost.host_rates(rows, riding=riding, candidates=candidates)
        if riding:
            seconds += 1.0 / self._cost.host_rates(rows, riding=0, candidates=candidates)[0] - seconds[0]
        return seconds

    def exploring(self, rows: Rows) -> list[bool] | None:
        """As `draft_limits` settled it for this step."""
        return self._whole if self._whole is not None and any(self._whole) else None

    def _decide(self, rows: Rows, drafted: Drafted, load: Load) -> Decision:
        chosen, self._chosen = self._chosen, None
        assert chosen is not None, "what is drafted was asked first"
        scores = drafted.survival
        fresh = torch.nn.functional.pad(scores, (0, self.draft_length - scores.shape[1]))  # [B, G of the policy]
        drafting = int(chosen.rows.sum())
        if drafted.whole is None and chosen.capacity == drafting * chosen.length:  # room for all: no order is needed
            planned = drafted.counts
        else:
            if drafted.whole is not None:  # rows that verify everything come first: the capacity holds for all together
                scores = torch.where(drafted.whole[:, None], 2.0, scores)
            admitted = torch.full((), chosen.capacity, dtype=torch.int64, device=scores.device)
            planned = admit(rank(scores, drafted.counts), admitted)
        label = f"lag={self._lag} capacity={chosen.capacity} theta={chosen.theta:.6g}"
        label += f" length={chosen.length} drafting={drafting}"
        self._forecast.write(load.step, numbers=_numbers(rows), domains=_domains(rows), chosen=chosen, scores=fresh)
        step = load.step
        return Decision(
            planned,
            {},
            label,
            fresh,
            lambda told: self._forecast.tell(step, told),
        )


class RetrospectivePolicy(LoadAwarePolicy):
    """Lag 0: the capacity is chosen with the scores of the drafts that it decides on. Biased, never ranked."""

    causal: ClassVar[bool] = False


def make(draft_length: int, argument: str | None = None, *, context: PolicyContext | None = None) -> ScoredPolicy:
    """The policy with its options, not causal at lag 0. Errors: ConfigError, UnknownNameError."""
    options = parse_options("load-aware", argument, OPTIONS)
    if options["lag"] == 0 and options["draft-cost"]:
        raise ConfigError(
            "load-aware decides on drafting before it has this cycle's scores; draft-cost=on needs lag >= 1"
        )
    kind: type[LoadAwarePolicy | PricedPolicy] = LoadAwarePolicy if options["lag"] else RetrospectivePolicy
    if options["draft-cost"]:
        kind = PricedPolicy
    return kind(draft_length, options, canonical("load-aware", options), context=context)


PLUGIN = make
