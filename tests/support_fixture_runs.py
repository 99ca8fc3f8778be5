"""Recorded reference generations run again through the engine, and counted as the reference counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from support_drafting import FIXTURES, expected
from support_engine import request, serve

from specbench.api import Drafter
from specbench.engine.target import Target
from specbench.types import Load, Proposal, RoundTrace, Rows, Verdict, VerifyPlan


@cache
def fixture_target(folder: str = "target") -> Target:
    """The fixture target behind the engine, float32."""
    return Target.load(FIXTURES / folder, dtype="float32")


def engine_drafter(plugin: Any, name: str, *, rows: int = 4, stop_ids: Sequence[int] = (), **options: Any) -> Drafter:
    """A fixture drafter for `fixture_target`. Without ``stop_ids`` it does not know of any, as the reference."""
    from dataclasses import replace

    view = fixture_target().view(max_rows=rows, max_context=200)
    view = replace(view, stop_ids=frozenset(stop_ids))
    drafter: Drafter = plugin.load(FIXTURES / name, target=view, options=options)
    return drafter


class Threshold:
    """Drafts all, verifies the prefix before the first confidence below a threshold (DeepSpec's static mode)."""

    causal: ClassVar[bool] = True

    def __init__(self, length: int, threshold: float) -> None:
        self.draft_length, self.name, self.threshold = length, f"test-threshold:{threshold}", threshold

    def draft_limits(self, rows: Rows, *, load: Load) -> torch.Tensor:
        return torch.full_like(rows.lengths, self.draft_length)

    def plan(self, rows: Rows, *, proposal: Proposal, load: Load) -> VerifyPlan:
        assert proposal.confidence is not None
        kept = (proposal.confidence >= self.threshold).to(torch.int64).cumprod(dim=1).sum(dim=1)
        return VerifyPlan(torch.minimum(kept, proposal.counts))

    def observe(self, rows: Rows, *, plan: VerifyPlan, verdict: Verdict) -> None: ...


@dataclass(frozen=True)
class Counted:
    """One generation in the reference's counting: cycles past the length limit kept, output cut."""

    output: tuple[int, ...]
    rounds: tuple[RoundTrace, ...]
    acceptance: tuple[int, ...]
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]


def run_again(
    drafter: Drafter, name: str, runs: Sequence[dict[str, Any]], *, drafts: int, policy: Any = None
) -> list[Counted]:
    """Greedy ``runs`` of a fixture, all in one ragged batch of four rows.

    The reference runs one cycle more at the length limit, and does not shorten the last proposals: the requests get
    ``drafts + 1`` tokens more, and cycles are kept while at most ``max_new_tokens`` tokens were out before them.
    """
    prompts = expected(name)["prompts"]
    requests = []
    for number, run in enumerate(runs):
        ids = run["input_ids"] if run.get("prompt") is None else prompts[run["prompt"]]["input_ids"]
        stops = frozenset(run.get("stop_token_ids") or ())
        requests.append(request(number, ids, max_new_tokens=run["max_new_tokens"] + drafts + 1, stop_ids=stops))
    trace = serve(fixture_target(), drafter, requests, k=drafts, policy=policy)
    assert trace.status == "ok"
    counted = []
    for number, run in enumerate(runs):
        served = next(r for r in trace.requests if r.number == number)
        out, kept = served.first_token, []
        for found in (r for r in trace.rounds if r.request == served.id):
            if out > run["max_new_tokens"]:
                break
            out += found.committed
            kept.append(found)
        # A stop among the accepted drafts ends the count there, without the target's token.
        inside = [r.stop_reason == "stop" and r.committed <= r.accepted for r in kept]
        counted.append(
            Counted(
                output=served.output_ids[: min(out, run["max_new_tokens"])],
                rounds=tuple(kept),
                acceptance=tuple(r.committed for r in kept),
                proposed=tuple(r.committed if cut else r.verified for r, cut in zip(kept, inside)),
                accepted=tuple(r.committed if cut else r.accepted for r, cut in zip(kept, inside)),
            )
        )
    return counted


def metrics_row(runs: Sequence[Counted], *, drafts: int) -> dict[str, Any]:
    """The reference's row over several generations (see the fixtures' definitions); None where nothing was proposed."""
    acceptance = [a for run in runs for a in run.acceptance]
    proposed = [p for run in runs for p in run.proposed]
    accepted = [a for run in runs for a in run.accepted]
    row: dict[str, Any] = {}
    for k in range(drafts):
        reached = sum(p > k for p in proposed)
        row[f"accept_rate@{k}"] = sum(a > k for a in accepted) / reached if reached else None
    return row | {
        "draft_tokens_per_proposal": sum(proposed) / len(proposed),
        "acceptance_length": sum(acceptance) / len(acceptance),
        "verify_rate": sum(acceptance) / (sum(proposed) + len(proposed)),
    }


def recorded_row(run: dict[str, Any]) -> dict[str, Any]:
    """A recorded ``metrics_row`` under the names of `metrics_row`."""
    theirs = dict(run["metrics_row"])
    rates = theirs.pop("accept_rates_by_position")
    del theirs["dataset"], theirs["num_samples"]
    return theirs | {f"accept_rate@{k}": rate for k, rate in enumerate(rates)}
