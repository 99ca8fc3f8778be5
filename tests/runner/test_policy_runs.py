"""Runs whose policy plans by cost: what they find, refuse, record, and never rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support_runs import TinyRun, tiny_run

from specbench.config import build_run
from specbench.engine import cost_table
from specbench.errors import ConfigError
from specbench.planning import device_name, origin, table_path
from specbench.records import keys, store
from specbench.records.schema import Record
from specbench.runner import run_cells

STAIRCASE = Path(__file__).parents[1] / "data" / "cost_tables" / "gpu_staircase.json"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECBENCH_HOME", str(tmp_path_factory.mktemp("home")))
        yield tiny_run(tmp_path_factory.mktemp("tiny"))


def flags(tiny: TinyRun, out: Path, policy: str, **more: Any) -> dict[str, Any]:
    return tiny.flags(out, methods="ngram:3", policy=policy, **more)


def run_once(tiny: TinyRun, out: Path, policy: str, **more: Any) -> Record:
    return run_cells(build_run(flags=flags(tiny, out, policy, baseline=False, **more))).results[-1].record


def test_a_policy_that_needs_costs_says_how_to_get_them(tiny: TinyRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="specbench profile"):
        run_once(tiny, tmp_path, "load-aware")


def test_a_foreign_table_is_refused_and_forced(tiny: TinyRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="force_cost_table"):
        run_once(tiny, tmp_path, "load-aware", cost_table=STAIRCASE)
    record = run_once(tiny, tmp_path, "load-aware:lag=1", cost_table=STAIRCASE, force_cost_table=True)
    assert record.status == "ok"
    assert record.spec["policy"] == "load-aware:lag=1,draft-cost=off,explore=0.01,online=off,forget=0.002"
    assert record.spec["inputs"]["cost_table"] == cost_table.read(STAIRCASE).sha256()
    assert str(STAIRCASE.parent) not in json.dumps(record.model_dump(mode="json"))
    states = {r.policy_state for r in store.read_trace(tmp_path, record).rounds if r.drafted}
    assert states
    assert all(s == "verify-all" or s.startswith("lag=1 capacity=") for s in states)


def test_a_table_of_this_machine_is_found_by_itself(tiny: TinyRun, tmp_path: Path) -> None:
    plain = run_once(tiny, tmp_path, "fixed")
    weights = plain.spec["inputs"]["target_weights"]
    place = origin(device="cpu", weights_sha256=weights, dtype="float32", threads=1)
    table = cost_table.CostTable((1, 64), (100.0, 50.0), 64, origin=place)
    path = table_path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(cost_table.to_document(table)))
    record = run_once(tiny, tmp_path, "algorithm1")
    assert record.spec["inputs"]["cost_table"] == table.sha256()
    assert place.device == device_name("cpu")
    assert "cost_table" not in plain.spec["inputs"]
    path.unlink()


def test_a_policy_that_is_not_causal_never_ranks(tiny: TinyRun, tmp_path: Path) -> None:
    more = {"cost_table": STAIRCASE, "force_cost_table": True}
    honest, biased = (run_once(tiny, tmp_path, f"load-aware:lag={lag}", **more) for lag in (2, 0))
    assert biased.spec["causal"] is False
    assert any("not causal" in reason for reason in keys.obstacles(biased))
    assert not any("not causal" in reason for reason in keys.obstacles(honest))
