from __future__ import annotations

import io

from rich.console import Console

from specbench.cli.live import LiveProgress
from specbench.runner import RunProgress


def event(done: int) -> RunProgress:
    return RunProgress(
        cell=1, cells=2, label="ngram:3", done_turns=done, total_turns=10, tokens=100 * done, elapsed_s=2.0
    )


def test_bar_on_a_terminal_shows_cell_count_and_speed():
    text = io.StringIO()
    with LiveProgress(Console(file=text, force_terminal=True, width=140)) as live:
        live.update(event(6))
        live.update(event(7))
        live.warn("the machine is busy")
    shown = text.getvalue()
    assert "ngram:3 (cell 2 of 2)" in shown
    assert "7/10" in shown
    assert "350 tok/s" in shown
    assert "warning: the machine is busy" in shown


def test_no_bar_elsewhere():
    text = io.StringIO()
    with LiveProgress(Console(file=text)) as live:
        live.update(event(6))
    assert text.getvalue() == ""
