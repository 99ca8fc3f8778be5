"""Policies beside the best fixed length at one load: by hand, paired by repeat, and refusals."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.special import stdtrit
from support_records import KEY, make_record
from typer.testing import CliRunner

from specbench.cli.main import app
from specbench.errors import RecordError
from specbench.records import schema, store
from specbench.records.schema import EstimateRow, Record
from specbench.report.loads import at_loads, loads_table


def verdict(outcome: str) -> dict[str, Any]:
    return {"outcome": outcome, "rule": "greedy", "reason": "", "requests_compared": 9, "rounds_with_drafts": 9}


def cell(policy: str | None, users: int, rate: float, *, repeat: int = 0, budget: float = 1.0, **fields: Any) -> Record:
    """A run of dspark:7 under a policy, or of plain decoding where there is none."""
    key = deepcopy(KEY)
    key["load"], key["timing"]["row_limit"] = f"closed:{users}", users
    key["prompt_set"]["count"] = 6 * users
    rows = [("steady_tokens_per_s", rate, {}), ("verification_budget", budget, {})]
    rows += [("tokens_per_s_user", rate / users, {"stat": "mean"})]
    estimates = [
        EstimateRow(metric=name, value=value, unit="tokens/s", n=9, n_of="requests", scope=scope)
        for name, value, scope in rows
    ]
    plain: dict[str, Any] = {"method": "vanilla", "draft_length": 0, "drafter": None}
    drafting: dict[str, Any] = {"method": "dspark", "draft_length": 7}
    spec = {"concurrency": users, "temperature": 0.0, "seed": 0, "tasks": ["a"], "policy": policy or "fixed"}
    more = {**(plain if policy is None else {**drafting, "verdict": verdict("pass")}), "estimates": estimates, **fields}
    provenance = {"git_sha": "f" * 40, "git_dirty": False, "sweep": {"repeat": repeat}}
    created = f"2026-01-02T03:04:{repeat:02}Z"
    return make_record(key=key, spec=spec, provenance=provenance, created=created, **more)


RATES: dict[str | None, list[float]] = {
    None: [100.0, 104.0, 96.0],
    "fixed:1": [110.0, 112.0, 102.0],
    "fixed:7": [80.0, 84.0, 79.0],
    "load-aware": [112.0, 116.0, 103.0],
}


def sweep(users: int = 8, rates: dict[str | None, list[float]] = RATES) -> list[Record]:
    return [
        cell(policy, users, rate, repeat=n, budget=2.5) for policy, held in rates.items() for n, rate in enumerate(held)
    ]


def test_a_policy_is_held_against_the_best_fixed_length_repeat_by_repeat() -> None:
    (found,), notes = at_loads(list(reversed(sweep())))
    assert notes == []
    assert [row.label for row in found.rows] == ["dspark:7 load-aware", "dspark:7 fixed:1", "vanilla", "dspark:7"]
    assert found.best.label == "dspark:7 fixed:1"
    ours, theirs = RATES["load-aware"], RATES["fixed:1"]
    row = found.rows[0]
    logs = np.log(np.array(ours) / np.array(theirs))
    half = stdtrit(2, 0.975) * logs.std(ddof=1) / np.sqrt(3)
    assert row.ratio.value == pytest.approx(np.mean(ours) / np.mean(theirs))
    assert (row.ratio.low, row.ratio.high) == pytest.approx(tuple(np.exp([logs.mean() - half, logs.mean() + half])))
    assert row.budget == 2.5
    assert row.throughput.value == pytest.approx(np.mean(ours))
    assert len(row.run_ids) == 3


def test_repeats_are_paired_by_number_and_not_by_their_order() -> None:
    records = sweep()
    late = [record for record in records if record.provenance["sweep"]["repeat"] != 0 or record.method == "vanilla"]
    (found,), _ = at_loads(late)
    row = next(row for row in found.rows if row.label == "dspark:7 fixed:1")
    assert row.best
    plain = next(row for row in found.rows if row.label == "vanilla")
    assert plain.ratio is not None
    assert plain.ratio.n == 2, "its first repeat has no partner"
    assert plain.ratio.value == pytest.approx((104 + 96) / (112 + 102)), "and is no part of the ratio"
    apart = [cell("fixed:1", 8, 110.0, repeat=0), cell("load-aware", 8, 90.0, repeat=1)]
    (lone,), _ = at_loads(apart)
    assert lone.rows[1].ratio is None


def test_rows_that_may_not_be_ranked_are_named() -> None:
    bad = cell("fixed:3", 8, 130.0, verdict=verdict("fail"))
    (found,), notes = at_loads([*sweep(rates={None: [100.0], "fixed:1": [110.0]}), bad])
    assert [row.label for row in found.rows if row.best] == ["dspark:7 fixed:1"]
    assert found.rows[0].label == "dspark:7 fixed:3"
    assert notes == [f"run {bad.run_id} (dspark:7 fixed:3) cannot be ranked: the losslessness verdict is fail"]


def test_what_ran_on_a_busy_machine_is_not_the_best_and_is_named() -> None:
    fast = cell("fixed:3", 8, 130.0)
    load = {"others_cores": 0.8, "busy": "other processes use 0.8 of 2 processors"}
    busy = fast.model_copy(update={"provenance": {**fast.provenance, "load": load, "cpu": {"logical_cores": 2}}})
    (found,), notes = at_loads([*sweep(rates={None: [100.0], "fixed:1": [110.0]}), busy])
    assert [row.label for row in found.rows if row.best] == ["dspark:7 fixed:1"]
    assert [note.partition("cannot be ranked: ")[2] for note in notes] == [
        "other processes used 0.8 of 2 processors: its times are not ranked"
    ]


def test_plain_decoding_may_be_the_best_and_loads_have_their_own() -> None:
    light, heavy = dict(RATES), {**RATES, None: [140.0, 143.0, 139.0]}
    found, _ = at_loads([*sweep(64, heavy), *sweep(2, light)])
    assert [(one.load, one.best.label) for one in found] == [("closed:2", "dspark:7 fixed:1"), ("closed:64", "vanilla")]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(loads_table(found))
    text = console.export_text()
    assert "vanilla *" in text
    assert "dspark:7 load-aware: least ratio" in text
    assert "above 1 at" in text
    assert "closed:2 a" not in text
    both = [changed for r in sweep() for changed in (r, with_task(r, "b"))]
    found, _ = at_loads(both)
    console.print(loads_table(found))
    told = console.export_text()
    assert "closed:8 a" in told
    assert "closed:8 b" in told


def with_task(record: Record, task: str) -> Record:
    document = record.model_dump(mode="json", exclude={"run_id"})
    return schema.build(**{**document, "spec": {**document["spec"], "tasks": [task]}})


def test_what_cannot_be_compared_is_noted_or_refused(tmp_path: Path) -> None:
    lonely = cell("load-aware", 4, 50.0)
    found, notes = at_loads([*sweep(), lonely])
    assert len(found) == 1
    assert notes == [f"run {lonely.run_id} (dspark:7 load-aware): no fixed length was run beside it"]
    with pytest.raises(RecordError, match="nothing to compare at a load"):
        at_loads([lonely])
    store.write(tmp_path, lonely)
    refused = CliRunner().invoke(app, ["loads", str(tmp_path)])
    assert isinstance(refused.exception, RecordError)
    for record in sweep():
        store.write(tmp_path, record)
    shown = CliRunner().invoke(app, ["loads", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "dspark:7 fixed:1 *" in shown.output
