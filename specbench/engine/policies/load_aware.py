"""``load-aware``: the capacity comes from the scores of earlier cycles, this cycle's scores only rank the drafts.

The production form of the DSpark paper (arXiv 2607.05147): with L the lag, the number K of drafts that the step
verifies maximises the throughput expected from the scores of L cycles ago, over the whole jagged cost table; the K
drafts that look best now are verified. K owes nothing to the drafts that it decides on, and a draft's rank nothing to
later drafts of its row, so each request's distribution stays exact. With lag 0 the search looks back at what it
decides on: a diagnostic, biased (appendix A of the paper), which never ranks.

Scores come to the host with the copy that ends their cycle, so K is known there before anything is drafted (not with
``draft-cost=on``, which chooses on the device); a padded step can then run a forward of the size that K needs.

``draft-cost=on`` puts the price of drafting into the objective and lets rows skip it while they are not expected to
pay for it (the early exit that the paper leaves to future work). A row that skips has no fresh scores: what was known
of it fades into the estimate for its domain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.engine.lagged import Floats, LaggedScores
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
from specbench.kernels.plan import Choice, Drafting, admit, best_capacity, best_drafting, rank, survival
from specbench.types import Load, Rows

FADE = 0.5  # what is left of an old score after a cycle without drafting

OPTIONS = {
    "lag": Option("count", 2, "age in cycles of the scores that set the capacity"),
    "draft-cost": Option("switch", False, "count the price of drafting, and skip drafting that does not pay"),
    **SHARED,
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which rows were let draft, and why, with draft-cost=on."""

    known: Tensor  # [B, G] float64, lagged survivals
    drafting: Drafting
    rows: Tensor  # [B] bool, those whose turn it is to verify everything included


class LoadAwarePolicy(ScoredPolicy):
    """Lagged capacity, fresh ranking."""

    def __init__(
        self, draft_length: int, options: dict[str, Any], name: str, *, context: PolicyContext | None = None
    ) -> None:
        self._cost = needed_cost("load-aware", context)
        super().__init__(name, draft_length, options, context)
        self.scores.watch_outcomes = options["draft-cost"]  # a row that skips drafting falls back on its domain
        self._lag: int = options["lag"]
        self._priced: bool = options["draft-cost"]
        self.may_skip = self._priced  # a step may draft for no row at all
        if self._priced and self.context.method not in self._cost.table.draft:
            raise ConfigError(
                f"load-aware with draft-cost=on needs the price of drafting with '{self.context.method}', which the "
                f"cost table does not hold; measure it with 'specbench profile --method {self.context.method}'"
            )
        self.capped = self._lag > 0 and not self._priced
        self._history = LaggedScores(self._lag, positions=draft_length) if self._lag else None
        self._asked: _Asked | None = None

    def draft_limits(self, rows: Rows, *, load: Load) -> Tensor:
        """[B] int64: the full length, or 0 where drafting is not expected to pay."""
        if not self._priced:
            return super().draft_limits(rows, load=load)
        known = upload(self._known(rows, load.step), dtype=torch.float64, device=rows.lengths.device)  # [B, G]
        rates = self._cost.rates(len(rows), riding=load.prefill_tokens, candidates=known.numel())
        drafting = best_drafting(
            known,
            draft_seconds=self._cost.draft_seconds(self.context.method, len(rows)),
            verify_seconds=1.0 / rates,
        )
        chosen = drafting.rows
        everything = self.exploring(rows)
        if everything is not None:
            chosen = chosen | upload(everything, dtype=torch.bool, device=chosen.device)
        self._asked = _Asked(known, drafting, chosen)
        return torch.where(chosen, self.draft_length, 0)

    def _known(self, rows: Rows, step: int) -> Floats:
        """[B, G]: this step's lagged survivals."""
        assert self._history is not None, "lag 0 knows nothing before it drafts"
        return self._history.read(_numbers(rows), step)

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
        if self._asked is not None:
            asked, self._asked = self._asked, None
            kept, tell = self._keep(rows, load.step, self._faded(rows, fresh, asked))
            facts = _facts(asked.drafting.choice) | {"drafting": asked.drafting.rows.sum()}
            return Decision(admit(ranking, asked.drafting.choice.admitted), facts, label, kept, tell)
        known = self._known(rows, load.step)  # while the device drafts
        rates_known = self._cost.host_rates(len(rows), riding=load.prefill_tokens, candidates=known.size)
        capacity, theta = best_known_capacity(known, rates_known)
        admitted = torch.full((), capacity, dtype=torch.int64, device=scores.device)
        label += f" capacity={capacity:.6g} theta={theta:.6g}"
        kept, tell = self._keep(rows, load.step, fresh)
        most = self.most_drafts(capacity, drafted.num_whole)
        return Decision(admit(ranking, admitted), {}, label, kept, tell, most)

    def _faded(self, rows: Rows, fresh: Tensor, asked: _Asked) -> Tensor:
        """The scores of rows that drafted; of those that did not, what was known, fading."""
        everyone = torch.full_like(rows.lengths, self.draft_length)
        usual = survival(self.scores.expected(rows, self.draft_length), everyone)
        return torch.where(asked.rows[:, None], fresh, FADE * asked.known + (1 - FADE) * usual)

    def _keep(self, rows: Rows, step: int, fresh: Tensor) -> tuple[Tensor, Callable[[Sequence[float]], None]]:
        """Scores for later cycles, and whom to tell of them when they are on the host."""
        history = self._history
        assert history is not None, "lag 0 keeps nothing"
        history.write(_numbers(rows), step, fresh)
        return fresh, lambda scores: history.tell(step, scores)


def _numbers(rows: Rows) -> tuple[int, ...]:
    """Request numbers of the rows; the engine's rows hold them on the host."""
    return tuple(rows.number.tolist()) if rows.numbers_host is None else rows.numbers_host


def _facts(choice: Choice) -> dict[str, Tensor]:
    return {"capacity": choice.admitted, "theta": choice.theta}


class RetrospectivePolicy(LoadAwarePolicy):
    """Lag 0: the capacity is chosen with the scores of the drafts that it decides on. Biased, never ranked."""

    causal: ClassVar[bool] = False


def make(draft_length: int, argument: str | None = None, *, context: PolicyContext | None = None) -> LoadAwarePolicy:
    """The policy with its options, not causal at lag 0. Errors: ConfigError, UnknownNameError."""
    options = parse_options("load-aware", argument, OPTIONS)
    if options["lag"] == 0 and options["draft-cost"]:
        raise ConfigError(
            "load-aware decides on drafting before it has this cycle's scores; draft-cost=on needs lag >= 1"
        )
    kind = LoadAwarePolicy if options["lag"] else RetrospectivePolicy
    return kind(draft_length, options, canonical("load-aware", options), context=context)


PLUGIN = make
