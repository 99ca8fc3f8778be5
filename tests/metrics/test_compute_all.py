"""Everything at once: fixed order, finite values, and no torch."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from support_traces import plain_trace, simulate_trace, traces

from specbench import registry
from specbench.errors import UnknownNameError
from specbench.metrics import METRICS_VERSION
from specbench.metrics._all import compute_all
from specbench.types import RunTrace

GROUPS = [
    *("acceptance", "alarms", "calibration", "latency", "losslessness", "positions", "served", "throughput"),
    "verification",
]


def test_every_group_is_registered_and_well_formed() -> None:
    assert registry.names("metrics") == GROUPS
    for name in GROUPS:
        plugin = registry.load("metrics", name)
        assert (plugin.name, plugin.version) == (name, METRICS_VERSION)
        assert plugin.better in ("higher", "lower", "neither")


def test_the_order_is_fixed_and_a_baseline_adds_the_comparison() -> None:
    trace = simulate_trace(0.7, gamma=3, rounds=60)
    alone = compute_all(trace)
    assert alone == compute_all(trace)
    both = compute_all(trace, baseline=plain_trace(trace))
    assert both[: len(alone)] == alone
    assert {e.metric for e in both[len(alone) :]} >= {"speed_up", "break_even_tau", "unpaired_requests"}
    assert compute_all(trace, names=["positions", "acceptance"])[0].metric == "tau"


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(UnknownNameError, match="acceptance"):
        compute_all(simulate_trace(0.5, gamma=1, rounds=10), names=["aceptance"])


@settings(max_examples=40, deadline=None)
@given(traces())
def test_every_estimate_is_finite_unique_and_has_samples(trace: RunTrace) -> None:
    found = compute_all(trace, baseline=plain_trace(trace))
    assert all(math.isfinite(e.value) for e in found)
    keys = [(e.metric, e.scope) for e in found]
    assert len(set(keys)) == len(keys)
    for e in found:
        assert e.n >= 0
        assert (e.low is None) == (e.high is None) == (e.interval is None)


def test_metrics_and_records_import_no_torch() -> None:
    code = (
        "import sys, specbench.metrics._all as a, specbench.records.tidy, specbench.records.keys;"
        "import specbench.report.tables, specbench.report.recompute;"
        "from specbench import registry; [registry.load('metrics', n) for n in registry.names('metrics')];"
        "print(sorted({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_records_loads_no_numeric_library() -> None:
    code = (
        "import sys, specbench.records.store, specbench.records.tidy, specbench.records.keys;"
        "print(sorted({'numpy', 'scipy', 'pyarrow', 'pandas', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
