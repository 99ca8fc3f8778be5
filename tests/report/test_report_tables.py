"""What the terminal shows, from records alone."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console, RenderableType
from support_records import make_record, save_run
from support_traces import plain_trace, simulate_trace

from specbench.records.schema import Record, SampleText, VerdictRow
from specbench.report.tables import histogram, show_record, summary


def text_of(renderable: RenderableType, *, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def run(tmp_path: Path) -> list[Record]:
    trace = simulate_trace(0.8, gamma=3, rounds=200)
    plain = plain_trace(trace)
    control = save_run(tmp_path, plain)
    return [control, save_run(tmp_path, trace, baseline=(control, plain))]


def test_the_closing_table_shows_every_method_in_every_domain(tmp_path: Path) -> None:
    records = run(tmp_path)
    text = text_of(summary(records))
    for domain in ("code", "math", "all"):
        assert domain in text
    assert text.count("toy:3") == 3
    assert text.count("vanilla") == 3
    for row in (records[1].find("tau", domain="math"), records[1].find("speed_up")):
        assert row is not None
        assert row.low is not None
        assert row.high is not None
        assert f"{row.value:.2f} [{row.low:.2f},{row.high:.2f}]" in text
    assert "10.00" in text  # T_draft in ms
    assert text.count("pass") == 3
    assert text.count("control") == 3


def test_the_closing_table_fits_a_terminal_of_80_columns(tmp_path: Path) -> None:
    records = run(tmp_path)
    text = text_of(summary(records), width=80)
    assert "…" not in text
    for word in ("method", "lossless", "T_verify", "control", "vanilla", "10.00"):
        assert word in text


def test_output_lengths_are_printed_at_temperature(tmp_path: Path) -> None:
    warm = run(tmp_path)[1].model_copy(update={"spec": {"temperature": 1.0}})
    assert "toy:3: output lengths: " in text_of(summary([warm]))
    assert "output lengths" not in text_of(summary(run(tmp_path)))


def test_one_domain_needs_no_block_for_all(tmp_path: Path) -> None:
    record = save_run(tmp_path, simulate_trace(0.8, gamma=3, rounds=100, domains=("math",)))
    text = text_of(summary([record]))
    assert "math" in text
    assert "all" not in text.split()


def test_failures_and_verdicts_are_spelled_out(tmp_path: Path) -> None:
    failed = make_record(status="failed", error={"kind": "DrafterError", "message": "another tokenizer"})
    verdict = VerdictRow(
        outcome="fail", rule="greedy", reason="2 of 4 texts differ", requests_compared=4, rounds_with_drafts=40
    )
    bad = save_run(tmp_path, simulate_trace(0.8, gamma=3, rounds=100)).model_copy(update={"verdict": verdict})
    text = text_of(summary([failed, bad]))
    assert "toy:3: failed: another tokenizer" in text
    assert "losslessness fail: 2 of 4 texts differ" in text


def test_histogram_has_a_bar_for_every_length(tmp_path: Path) -> None:
    record = save_run(tmp_path, simulate_trace(0.8, gamma=3, rounds=100))
    assert len(histogram(record)) == 4
    assert histogram(make_record()) == "-"


def test_show_holds_header_positions_verdict_and_samples(tmp_path: Path) -> None:
    record = run(tmp_path)[1]
    sample = SampleText(request="r0", task="math-task", prompt="2 + 2?", text="It is [bold]4[/bold].")
    text = text_of(show_record(record.model_copy(update={"samples": [sample], "notes": ["busy machine"]})))
    for piece in (
        record.run_id,
        "tau_counters",
        "conditional",
        "greedy",
        "It is [bold]4[/bold].",
        "busy machine",
        "fff",
    ):
        assert piece in text
    assert text_of(show_record(make_record(estimates=[]))).strip()
