"""``load-aware``: the capacity comes from the scores of earlier cycles, this cycle's scores only rank the drafts.

The production form of the DSpark paper (arXiv 2607.05147): with L the lag, the number K of drafts that the step
verifies maximises the throughput expected from the scores of L cycles ago, over the whole jagged cost table; the K
drafts that look best now are verified. K owes nothing to the drafts that it decides on, and a draft's rank nothing to
later drafts of its row, so each request's distribution stays exact. With lag 0 the search looks back at what it
decides on: a diagnostic, biased (appendix A of the paper), which never ranks.

``draft-cost=on`` puts the price of drafting into the objective and lets rows skip it while they are not expected to
pay for it (the early exit that the paper leaves to future work). A row that skips has no fresh scores: what was known
of it fades into the estimate for its domain.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

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
from specbench.kernels.plan import Drafting, admit, best_capacity, best_drafting, rank, survival
from specbench.types import Load, Rows

FADE = 0.5  # what is left of an old score after a cycle without drafting

OPTIONS = {
    "lag": Option("count", 2, "age in cycles of the scores that set the capacity"),
    "draft-cost": Option("switch", False, "count the price of drafting, and skip drafting that does not pay"),
    **SHARED,
}


class ScoreHistory:
    """Survivals of the last L cycles by slot, read L cycles later by the request that wrote them."""

    def __init__(self, lag: int, *, slots: int, positions: int, device: torch.device) -> None:
        self._lag, self._slots = lag, slots
        self._scores = torch.zeros(lag * slots, positions, dtype=torch.float64, device=device)
        self._writer = torch.full((lag * slots, 2), -1 - lag, dtype=torch.int64, device=device)  # step, request number
        # steps count from 0, so a reader looks for -lag at the earliest: nobody has written what is there at first

    def read(self, rows: Rows, step: int) -> Tensor:
        """[B, G] float64 of ``lag`` cycles ago; all ones for a request that was not decoding then."""
        at = self._places(rows, step)
        held = self._scores.index_select(0, at)
        own = (self._writer.index_select(0, at) == self._signature(rows, step - self._lag)).all(dim=1, keepdim=True)
        return torch.where(own, held, 1.0)

    def write(self, rows: Rows, step: int, scores: Tensor) -> None:
        """Keep ``scores`` [B, G] of this cycle."""
        at = self._places(rows, step)
        self._scores.index_copy_(0, at, scores)
        self._writer.index_copy_(0, at, self._signature(rows, step))

    def _places(self, rows: Rows, step: int) -> Tensor:
        return rows.slots + step % self._lag * self._slots

    def _signature(self, rows: Rows, step: int) -> Tensor:
        return torch.stack([torch.full_like(rows.number, step), rows.number], dim=1)  # [B, 2]


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
        self._history = ScoreHistory(
            max(self._lag, 1), slots=self.context.max_rows, positions=draft_length, device=self.context.device
        )
        self._known: Tensor | None = None  # [B, G] this step's lagged survivals
        self._drafting: Drafting | None = None  # this step's choice of rows, with draft-cost=on
        self._asked: Tensor | None = None  # [B] bool, the rows that were let draft, with draft-cost=on

    def draft_limits(self, rows: Rows, *, load: Load) -> Tensor:
        """[B] int64: the full length, or 0 where drafting is not expected to pay."""
        self._known = self._history.read(rows, load.step)
        if not self._priced:
            return super().draft_limits(rows, load=load)
        rates = self._cost.rates(len(rows), riding=load.prefill_tokens, candidates=self._known.numel())
        self._drafting = best_drafting(
            self._known,
            draft_seconds=self._cost.draft_seconds(self.context.method, len(rows)),
            verify_seconds=1.0 / rates,
        )
        chosen = self._drafting.rows
        everything = self.exploring(rows)
        if everything is not None:
            chosen = chosen | upload(everything, dtype=torch.bool, device=chosen.device)
        self._asked = chosen
        return torch.where(chosen, self.draft_length, 0)

    def _decide(self, rows: Rows, drafted: Drafted, load: Load) -> Decision:
        scores, counts = drafted.survival, drafted.counts
        assert self._known is not None, "limits come before the plan"
        known, drafting, asked = self._known, self._drafting, self._asked
        self._known = self._drafting = self._asked = None
        fresh = torch.nn.functional.pad(scores, (0, known.shape[1] - scores.shape[1]))  # [B, G of the policy]
        if self._lag:
            self._keep(rows, load.step, known, fresh, asked)
        if drafting is not None:
            choice = drafting.choice
        else:
            basis = known if self._lag else fresh
            rates = self._cost.rates(len(rows), riding=load.prefill_tokens, candidates=basis.numel())
            choice = best_capacity(basis, rates)
        facts = {"capacity": choice.admitted, "theta": choice.theta}
        if drafting is not None:
            facts["drafting"] = drafting.rows.sum()
        if drafted.whole is not None:  # rows that verify everything come first: the capacity holds for all together
            scores = torch.where(drafted.whole[:, None], 2.0, scores)
        return Decision(admit(rank(scores, counts), choice.admitted), facts, label=f"lag={self._lag}")

    def _keep(self, rows: Rows, step: int, known: Tensor, fresh: Tensor, asked: Tensor | None) -> None:
        if asked is not None:
            everyone = torch.full_like(rows.lengths, known.shape[1])
            usual = survival(self.scores.expected(rows, known.shape[1]), everyone)
            fresh = torch.where(asked[:, None], fresh, FADE * known + (1 - FADE) * usual)
        self._history.write(rows, step, fresh)


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
