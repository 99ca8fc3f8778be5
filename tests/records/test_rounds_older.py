"""Rounds files from before a field existed."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from support_traces import simulate_trace

from specbench.records import rounds


@pytest.mark.parametrize("paced", [True, False])
def test_the_pace_of_a_load_survives_the_file(paced):
    trace = replace(simulate_trace(0.5, gamma=2, rounds=4), paced=paced)
    assert rounds.decode(rounds.encode(trace, check=lambda t: None), where="here") == trace


def test_files_without_the_pace_are_read_as_closed_loops():
    trace = simulate_trace(0.5, gamma=2, rounds=4)
    table = pq.read_table(io.BytesIO(rounds.encode(trace, check=lambda t: None)))
    run = json.loads(table.schema.metadata[b"specbench"])
    del run["paced"]
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({b"specbench": json.dumps(run).encode()}), sink)
    assert rounds.decode(sink.getvalue(), where="here") == trace
