"""What a record keeps beside the rounds: coverage of a reduced draft vocabulary, and the device's telemetry."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from specbench_drafters.formats.record import DraftKind
from support_contestants import HIDDEN, LAYERS, own
from support_nvml import FakeNvml
from support_runs import TinyRun, tiny_run

from specbench import cell
from specbench.config import build_run
from specbench.records import schema, store
from specbench.records.schema import Record
from specbench.report.recompute import verify_record
from specbench.report.tables import summary
from specbench.runner import run_cells
from specbench.telemetry import DeviceSampler
from specbench.types import RunTrace

VOCAB = 261  # of the tiny target
IDS = torch.arange(0, VOCAB, 2)


class Meter(FakeNvml):
    """A device that has used one more joule each time it is asked."""

    def _answer(self, name: str) -> Any:
        if name == "millijoules":
            self.device[name] += 1000
        return super()._answer(name)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return tiny_run(tmp_path_factory.mktemp("tiny"), hidden_size=HIDDEN, num_layers=LAYERS)


def run_one(tiny: TinyRun, out: Path, **flags: Any) -> Record:
    done = run_cells(build_run(flags=tiny.flags(out, baseline=False, max_new_tokens=12, **flags)))
    assert done.exit_code == 0, done.results[-1].error
    return done.results[-1].record


@pytest.fixture(scope="module")
def watched(tiny: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record, Meter]:
    """A run of a drafter with half the vocabulary on a device with a meter."""
    folder, nvml = tmp_path_factory.mktemp("watched"), Meter(reasons=0x4)

    def opened(device: str, *, clock: Any) -> DeviceSampler:
        assert device == "cpu"
        nvml.nvmlInit()
        return DeviceSampler(nvml, "handle", clock, period_s=0.002, name="a device")

    weights = own(folder / "rnn", vocab=VOCAB, kind=DraftKind.DSPARK, markov="rnn", markov_rank=4, d2t=IDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell, "open_sampler", opened)
        record = run_one(tiny, folder, methods="dspark-rnn:3", drafters={"dspark-rnn": str(weights)})
    return folder, record, nvml


def trace_of(watched: tuple[Path, Record, Meter]) -> RunTrace:
    return store.read_trace(watched[0], watched[1])


def test_coverage_of_a_reduced_vocabulary_is_recorded_and_printed(watched: tuple[Path, Record, Meter]) -> None:
    record, trace = watched[1], trace_of(watched)
    warm = {request.id for request in trace.requests if request.warmup}
    tokens = [token for entry in trace.rounds if entry.request not in warm for token in entry.committed_ids]
    inside = sum(token % 2 == 0 for token in tokens)
    known = record.draft_vocabulary
    assert known is not None
    assert (known.size, known.target_size, known.committed, known.inside) == (len(IDS), VOCAB, len(tokens), inside)
    assert 0 < inside < len(tokens)
    estimate = record.find("draft_vocabulary_coverage")
    assert estimate is not None
    assert (estimate.value, estimate.n) == (inside / len(tokens), len(tokens))
    screen = io.StringIO()
    Console(file=screen, width=160).print(summary([record]))
    share = f"{100 * inside / len(tokens):.1f} %"
    assert f"draft vocabulary of 131 of 261 tokens, which holds {share} of those committed" in screen.getvalue()


def test_the_depth_of_the_drafter_is_recorded(watched: tuple[Path, Record, Meter]) -> None:
    drafter = watched[1].drafter
    assert drafter is not None
    assert drafter.details == {"layers": 2}


def test_telemetry_of_the_measured_window_is_recorded(watched: tuple[Path, Record, Meter]) -> None:
    _, record, nvml = watched
    found = record.telemetry
    assert found is not None
    assert nvml.running == 0
    measured = [request for request in trace_of(watched).requests if not request.warmup]
    assert found.start_s == pytest.approx(min(request.arrival_s for request in measured))
    assert found.end_s == pytest.approx(max(request.finish_s or 0 for request in measured))
    assert found.tokens == sum(len(request.output_ids) for request in measured)
    assert found.samples > 1
    assert found.throttled == {"software power cap": 1.0}
    assert found.energy_j is not None
    joules = record.find("joules_per_token")
    assert joules is not None
    assert (joules.value, joules.n) == (found.energy_j / found.tokens, found.tokens)


def test_both_are_computed_again_and_a_block_of_other_rounds_is_found_out(
    watched: tuple[Path, Record, Meter], tmp_path: Path
) -> None:
    folder, record, _ = watched
    assert verify_record(folder, record.run_id) == []
    assert record.telemetry is not None
    document = record.model_dump(exclude={"run_id"})
    document["telemetry"]["end_s"] = (record.telemetry.start_s + record.telemetry.end_s) / 2
    changed = schema.build(**document)
    store.write(tmp_path, changed, rounds_data=store.rounds_path(folder, record.run_id).read_bytes())
    assert any("joules_per_token" in line for line in verify_record(tmp_path, changed.run_id))


def test_where_there_is_nothing_to_say_nothing_is_said(tiny: TinyRun, tmp_path: Path) -> None:
    record = run_one(tiny, tmp_path, methods="ngram")
    assert record.draft_vocabulary is None
    assert record.telemetry is None  # no GPU: absent, not zero
    assert not {"telemetry", "draft_vocabulary"} & set(record.model_dump())
    assert not {"joules_per_token", "draft_vocabulary_coverage"} & {row.metric for row in record.estimates}
