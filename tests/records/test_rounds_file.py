"""Traces as parquet: nothing lost, nothing damaged accepted."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_traces import example_trace, make_trace, simulate_trace, traces

from specbench.errors import RecordError
from specbench.metrics._identities import check_identities
from specbench.records.rounds import decode, encode
from specbench.types import RunTrace


@settings(max_examples=60, deadline=None)
@given(traces())
def test_every_trace_comes_back_equal(trace: RunTrace) -> None:
    assert decode(encode(trace, check=check_identities), where="here") == trace


def test_an_empty_run_comes_back() -> None:
    trace = make_trace([], prefill_steps=())
    assert decode(encode(trace, check=check_identities), where="here") == trace


def test_the_file_is_compressed_and_small() -> None:
    data = encode(simulate_trace(0.8, gamma=5, rounds=2000), check=check_identities)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    assert metadata.row_group(1).column(0).compression == "ZSTD"
    assert len(data) / 2000 < 60  # bytes a round


def test_rounds_read_as_a_table_by_other_tools() -> None:
    table = pq.read_table(io.BytesIO(encode(example_trace(), check=check_identities)))
    rounds = table.filter([name == "round" for name in table.column("table").to_pylist()])
    assert rounds.column("round_accepted").to_pylist() == [3, 1, 0, 3]
    assert rounds.column("request_id").null_count == 4


def test_an_inconsistent_trace_is_not_written() -> None:
    trace = example_trace()
    with pytest.raises(RecordError, match="round 0"):
        encode(replace(trace, rounds=(replace(trace.rounds[0], accepted=2), *trace.rounds[1:])), check=check_identities)


def test_values_beyond_the_file_are_refused() -> None:
    trace = example_trace()
    request = replace(trace.requests[0], seed=2**70)
    with pytest.raises(RecordError, match="cannot be written") as caught:
        encode(replace(trace, requests=(request,)), check=check_identities)
    assert "\n" not in str(caught.value)


WHOLE = encode(simulate_trace(0.5, gamma=2, rounds=50), check=check_identities)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(WHOLE) - 1))
def test_truncated_files_are_refused(length: int) -> None:
    with pytest.raises(RecordError, match=r"here: no readable rounds file") as caught:
        decode(WHOLE[:length], where="here")
    assert "\n" not in str(caught.value)


def test_other_files_and_newer_layouts_are_refused() -> None:
    with pytest.raises(RecordError, match="no readable rounds file"):
        decode(b"PAR1 but not really PAR1", where="here")
    table = pq.read_table(io.BytesIO(WHOLE))
    for metadata, message in (({}, "no readable rounds file"), ({b"specbench": b'{"layout": 9}'}, "upgrade")):
        sink = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(metadata), sink)
        with pytest.raises(RecordError, match=message):
            decode(sink.getvalue(), where="here")
