"""A recommendation on the screen: the choice first, then every setting that was weighed, then what was left out."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.report import numbers
from specbench.report.recommend import Candidate, Recommendation


def recommend_table(found: Recommendation) -> RenderableType:
    """The choice with its reasons, and the settings by rank."""
    chosen = found.chosen
    if chosen is None:
        head = f"no setting attains {found.level.label}"
    else:
        rate = numbers.bounded(chosen.throughput)
        head = f"run {chosen.label} at {chosen.load}: {rate} tokens/s, {numbers.bounded(chosen.speed)} tok/s/user"
    reasons = found.reasons if chosen is not None else found.reasons[1:]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    for name in ("setting", "load"):
        table.add_column(name, no_wrap=True)
    names = list(dict.fromkeys(name for candidate in found.candidates for name in candidate.bounds))
    for name in ("holds", "tok/s [95%]", *names, "runs"):
        table.add_column(name, justify="right")
    for candidate in found.candidates:
        table.add_row(*_cells(candidate, names))
    return Group(
        Text(head, style="bold"),
        *(Text(f"- {reason}") for reason in reasons),
        table,
        *(Text(f"left out: {note}", style="dim") for note in found.left_out),
    )


def _cells(candidate: Candidate, names: list[str]) -> list[str]:
    cells = [candidate.label, candidate.load, "yes" if candidate.holds else "no", numbers.bounded(candidate.throughput)]
    for name in names:
        bound = candidate.bounds.get(name)
        scale, unit = (1.0, "") if bound is not None and bound.at_least else (1000.0, " ms")
        text = numbers.ABSENT if bound is None else f"{numbers.general(bound.value * scale)}{unit}"
        cells.append(text if bound is None or bound.holds else f"{text} !")
    return [*cells, str(len(candidate.records))]
