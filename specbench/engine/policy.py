"""What verification policies share: what they are told, how their options are written, and the scored policy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from specbench.engine.cost_table import CostTable, Floats
from specbench.engine.scores import OnlineCalibrator, Scores
from specbench.engine.upload import upload
from specbench.errors import ConfigError, unknown_name
from specbench.kernels.plan import survival
from specbench.types import Load, Proposal, Rows, Verdict, VerifyPlan

VERIFY_ALL = "verify-all"
"""Reason of a round that verified everything because its turn had come; `specbench.metrics.calibration` reads it."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What a policy is told when it is made.

    ``temperatures`` scale the drafter's confidences, one a position; empty leaves them as they are. ``num_domains``
    bounds the domains that are told apart; those beyond share the last one's estimate.
    """

    max_rows: int
    device: torch.device
    method: str = ""
    cost: CostTable | None = None
    temperatures: tuple[float, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    num_domains: int = 32


# ----------------------------------------------------------------------------------------------------- options


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a policy's argument. ``kind``: how its text is read ("share", "count", "positive", "switch")."""

    kind: str
    default: Any
    help: str


SHARED = {
    "explore": Option("share", 0.01, "share of rounds that verify everything, chosen by the anchor's position"),
    "online": Option("switch", False, "keep adapting the confidences to what is accepted"),
    "forget": Option("share", 0.002, "forgetting rate of what is learned while running, per observed draft"),
    "step": Option("positive", 0.05, "largest change of an online parameter in one cycle"),
}


def _value(policy: str, name: str, kind: str, text: str) -> Any:
    if kind == "switch":
        if text not in ("on", "off"):
            raise ConfigError(f"policy '{policy}': {name} is on or off, not '{text}'")
        return text == "on"
    if kind == "count":
        if not text.isdecimal():
            raise ConfigError(f"policy '{policy}': {name} is a whole number from 0 on, not '{text}'")
        return int(text)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if kind == "share" and not 0 <= number <= 1:
        raise ConfigError(f"policy '{policy}': {name} is a number from 0 to 1, not '{text}'")
    if kind == "positive" and not 0 < number < math.inf:
        raise ConfigError(f"policy '{policy}': {name} is a number above 0, not '{text}'")
    return number


def parse_options(
    policy: str, argument: str | None, known: Mapping[str, Option], *, bare: str | None = None
) -> dict[str, Any]:
    """Options of ``NAME:a=1,b=on``; a first part without ``=`` is the option called ``bare``.

    Errors: ConfigError for a value out of range, a repeat or another shape; UnknownNameError with the nearest option.
    """
    found: dict[str, Any] = {}
    for index, part in enumerate(argument.split(",") if argument else []):
        name, equals, text = (piece.strip() for piece in part.partition("="))
        if not equals and index == 0 and bare is not None:
            name, text = bare, name
        elif not equals:
            raise ConfigError(
                f"policy '{policy}': '{part}' is not OPTION=VALUE; options are {', '.join(sorted(known))}"
            )
        if name not in known:
            raise unknown_name(f"option of policy {policy}", name, known)
        if name in found:
            raise ConfigError(f"policy '{policy}': {name} is given twice; give it once")
        found[name] = _value(policy, name, known[name].kind, text)
    return {name: found.get(name, option.default) for name, option in known.items()}


def canonical(policy: str, options: Mapping[str, Any], *, bare: str | None = None) -> str:
    """The policy's name with every option that counts, as records keep it and as ``--policy`` reads it again."""
    parts = [_shown(options[bare])] if bare is not None else []
    hidden = {bare} if options["online"] else {bare, "step"}
    parts += [f"{name}={_shown(value)}" for name, value in options.items() if name not in hidden]
    return f"{policy}:{','.join(parts)}"


def _shown(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else f"{value:g}"


# -------------------------------------------------------------------------------------------------------- cost


class StepCost:
    """A cost table on the device: rates by the number of drafts that a step verifies."""

    def __init__(self, table: CostTable, device: torch.device) -> None:
        self.table = table
        self._device = device
        self._known: dict[tuple[int, int, int], Tensor] = {}
        self._prices: dict[tuple[str, int, int], Floats] = {}
        self._host: dict[tuple[int, int, int], Floats] = {}

    def rates(self, rows: int, *, riding: int, candidates: int) -> Tensor:
        """[candidates + 1] float64: steps a second with 0, 1, ... drafts beside ``rows`` anchors.

        ``riding`` tokens are in the batch whatever is decided: prompt chunks, and rounds that verify everything.
        """
        key = (rows, riding, candidates)
        found = self._known.get(key)
        if found is None:
            host = self.host_rates(rows, riding=riding, candidates=candidates)
            found = upload(host.tolist(), dtype=torch.float64, device=self._device)
            if riding == 0:  # prompt chunks come in any size: what is kept stays bounded
                self._known[key] = found
        return found

    def host_rates(self, rows: int, *, riding: int, candidates: int) -> Floats:
        """`rates` on the host."""
        key = (rows, riding, candidates)
        found = self._host.get(key)
        if found is None:
            found = self.table.rate(rows + riding + np.arange(candidates + 1), rows=rows)
            if riding == 0:
                self._host[key] = found
        return found

    def host_draft_seconds(self, method: str, rows: int, *, drafts: int) -> Floats:
        """[drafts, rows + 1] float64: price of drafting 1, 2, ... tokens for each of 0, 1, ... rows."""
        found = self._prices.get((method, rows, drafts))
        if found is None:
            price, counts = self.table.draft[method], range(1, rows + 1)
            found = np.zeros((drafts, rows + 1))
            for length in range(1, drafts + 1):
                found[length - 1, 1:] = price.at(counts, drafts=length)
            self._prices[method, rows, drafts] = found
        return found


def needed_cost(policy: str, context: PolicyContext | None) -> StepCost:
    """The context's cost table on its device. Errors: ConfigError when there is none."""
    if context is None or context.cost is None:
        raise ConfigError(
            f"policy '{policy}' plans by what a step costs and no cost table is given; measure one with "
            "'specbench profile' and name it with --set cost_table=PATH"
        )
    return StepCost(context.cost, context.device)


# ------------------------------------------------------------------------------------------------------ policy


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a policy decides on: scores of the B rows' drafts, and the rows whose turn it is to verify everything."""

    conditional: Tensor  # [B, G] float64, given that all before it were accepted
    survival: Tensor  # [B, G] float64, running product, 0 beyond the counts
    counts: Tensor  # [B] int64
    num_whole: int = 0
    whole: Tensor | None = None  # [B] bool; None where there is none


@dataclass(frozen=True, slots=True)
class Decision:
    """Verified drafts of each row, and facts about the whole step that explain them (device scalars).

    ``label`` is what the host knows of the reason. ``tell`` is given ``scores``, row after row, once they are on the
    host. ``most``: see `VerifyPlan`.
    """

    lengths: Tensor  # [B] int64
    facts: Mapping[str, Tensor]
    label: str = ""
    scores: Tensor | None = None  # [B, G] float64
    tell: Callable[[Sequence[float]], None] | None = None
    most: int | None = None


class ScoredPolicy(ABC):
    """Plans by the probability that each draft is accepted, and learns from what was.

    The scores are the drafter's confidences after calibration or, where it gives none, estimates by position and
    domain. A share of the rounds verifies everything, so that the scores can be judged without selection; which ones
    follows from the anchor's position alone.
    """

    causal: ClassVar[bool] = True
    capped: bool = False  # plans say how many drafts a step verifies at most, often fewer than there are

    def __init__(self, name: str, draft_length: int, options: Mapping[str, Any], context: PolicyContext | None) -> None:
        if context is None:
            raise ConfigError(f"policy '{name}' must be told of rows and device; make it with a PolicyContext")
        online = None
        if options["online"]:
            online = OnlineCalibrator(draft_length, context.device, forget=options["forget"], max_step=options["step"])
        self.name = name
        self.draft_length = draft_length
        self.context = context
        self.explore = float(options["explore"])
        self.scores = Scores(
            draft_length,
            context.device,
            temperatures=context.temperatures,
            online=online,
            stop_ids=context.stop_ids,
            num_domains=context.num_domains,
            forget=options["forget"],
        )

    def draft_limits(self, rows: Rows, *, load: Load) -> Tensor:
        """[B] int64: the full length; what is drafted is a matter of `plan`."""
        return torch.full_like(rows.lengths, self.draft_length)

    def plan(self, rows: Rows, *, proposal: Proposal, load: Load) -> VerifyPlan:
        """Lengths from the scores of what was drafted; everything in rounds whose turn it is."""
        conditional = self.scores.conditional(rows, proposal)  # [B, G] float64
        chosen = self.exploring(rows)
        drafted = Drafted(
            conditional,
            survival(conditional, proposal.counts),
            proposal.counts,
            num_whole=0 if chosen is None else sum(chosen),
            whole=None if chosen is None else upload(chosen, dtype=torch.bool, device=conditional.device),
        )
        decision = self._decide(rows, drafted, load)
        lengths = decision.lengths
        if drafted.whole is not None:
            lengths = torch.where(drafted.whole, proposal.counts, lengths)
        parts = [value.to(torch.float64)[None] for value in decision.facts.values()]
        if decision.scores is not None:
            parts.append(decision.scores.flatten())
        return VerifyPlan(
            lengths,
            explain=_explainer(decision, chosen, len(rows)),
            facts=torch.cat(parts) if parts else None,
            most=decision.most,
        )

    def observe(self, rows: Rows, *, plan: VerifyPlan, verdict: Verdict) -> None:
        """Learn from the drafts that were verified and reached."""
        self.scores.observe(rows, lengths=plan.lengths, accepted=verdict.accepted)

    def exploring(self, rows: Rows) -> list[bool] | None:
        """Which rows verify everything this round; None where none does. A counter decides: the anchor's position."""
        if self.explore == 0:
            return None
        chosen = [math.floor((n + 1) * self.explore) > math.floor(n * self.explore) for n in rows.lengths_host]
        return chosen if any(chosen) else None

    @abstractmethod
    def _decide(self, rows: Rows, drafted: Drafted, load: Load) -> Decision:
        """Verified lengths; those of rows that verify everything are overridden."""


def _explainer(
    decision: Decision, everything: Sequence[bool] | None, rows: int
) -> Callable[[Sequence[float]], Sequence[str]]:
    names = tuple(decision.facts)

    def explain(facts: Sequence[float]) -> Sequence[str]:
        parts = [decision.label] if decision.label else []
        parts += [f"{name}={value:.6g}" for name, value in zip(names, facts[: len(names)], strict=True)]
        if decision.tell is not None:
            decision.tell(facts[len(names) :])
        text = " ".join(parts)
        return [VERIFY_ALL if everything is not None and everything[row] else text for row in range(rows)]

    return explain
