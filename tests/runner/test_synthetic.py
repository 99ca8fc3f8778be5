"""Recipe T15: forced acceptance at real cost, realised as asked for, marked, and never ranked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from specbench_drafters.draft_model import DraftModelDrafter
from support_engine import prompts, request, serve
from support_runs import tiny_run
from support_targets import tiny_model

from specbench.config import build_run, geometric_rate
from specbench.engine.target import Target
from specbench.errors import ConfigError
from specbench.records import keys
from specbench.runner import run_cells
from specbench.types import Sampling


def realised(tau: float, *, gamma: int, temperature: float) -> tuple[float, int]:
    target = Target(tiny_model("llama"))
    drafter = DraftModelDrafter(tiny_model("llama", seed=9), target.view(max_rows=16, max_context=200), greedy=False)
    rates = [geometric_rate(tau, draft_length=gamma)] * gamma
    wanted = [
        request(n, p, max_new_tokens=60, sampling=Sampling(temperature)) for n, p in enumerate(prompts(32, seed=1))
    ]
    trace = serve(target, drafter, wanted, k=gamma, rows=16, synthetic=rates)
    full = [r for r in trace.rounds if r.verified == gamma]
    return sum(r.accepted + 1 for r in full) / len(full), len(full)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_t15_realised_tau(temperature: float) -> None:
    tau, rounds = realised(2.6, gamma=3, temperature=temperature)
    assert rounds > 300
    assert abs(tau - 2.6) < 4 * 1.3 / rounds**0.5
    assert realised(1.0, gamma=3, temperature=temperature)[0] == 1.0
    assert realised(4.0, gamma=3, temperature=temperature)[0] == 4.0


def test_a_tau_out_of_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 4"):
        geometric_rate(4.5, draft_length=3)


def test_synthetic_cells_are_marked_and_never_rank(tmp_path: Path) -> None:
    tiny = tiny_run(tmp_path)
    flags: dict[str, Any] = tiny.flags(tmp_path / "out", methods="ngram:3", synthetic_tau=2.0)
    summary = run_cells(build_run(flags=flags))
    plain, forced = (r.record for r in summary.results)
    assert forced.comparability["synthetic_acceptance"] is True
    assert plain.comparability["synthetic_acceptance"] is False
    assert forced.verdict is not None
    assert forced.verdict.outcome == "inconclusive"
    assert any("synthetic" in text for text in keys.obstacles(forced))
