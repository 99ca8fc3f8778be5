"""Sheets as PNG, SVG and PDF. The same records give the same bytes: no time, no machine, no user's style in them.

Text from records is text: mathematics is off, and characters that the font lacks are named by their code point.
"""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specbench.errors import ConfigError
from specbench.records.schema import EstimateRow
from specbench.report.sheet import Mark, Panel, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

FORMATS = ("png", "svg", "pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's, no yellow
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p")
_STYLE = {
    "text.parse_math": False,
    "text.usetex": False,
    "svg.hashsalt": "specbench",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_TICK = 18  # characters of a name below an axis; the CSV has all of them
_LONGEST = 60  # characters of a label in an image; the CSV has all of them
_TAIL = 20  # of these, from its end, where labels are told apart
_COLUMNS, _WIDTH, _HEIGHT, _DPI = 3, 3.6, 2.9, 150  # inches a panel
_ALONE = 1.7  # times as large
_NAMES = 3  # of an axis, for panels side by side
_APART, _SHARE = 0.12, 0.7  # of the room of a name: between neighbours at most, and for all of them


def require() -> None:
    """Errors: ConfigError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "figures are drawn with matplotlib, which is not installed; run 'pip install matplotlib'"
        ) from error


def shown(text: str) -> str:
    """A name as one line that the font can print and that is short enough for a legend."""
    line = "".join(_character(character) for character in " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - _TAIL - 1]}…{line[-_TAIL:]}"


def _tick(name: str) -> str:
    text = shown(name)
    return text if len(text) <= _TICK else f"{text[: _TICK - 1]}…"


def _character(character: str) -> str:
    known = character.isascii() and character.isprintable()
    named = unicodedata.category(character) in ("Lu", "Ll") and character <= "\u03ff"  # Latin and Greek letters
    return character if known or named or character in "–—…·×±" else f"[U+{ord(character):04X}]"


def draw(sheet: Sheet, *, title: str) -> dict[str, bytes]:
    """The sheet as file contents by format. Errors: ConfigError without matplotlib."""
    require()
    from matplotlib.figure import Figure as Canvas

    with _own_style():
        most = max(len(panel.names) for panel in sheet.panels)
        columns = min(_COLUMNS if most <= _NAMES else 1, len(sheet.panels))
        lines = math.ceil(len(sheet.panels) / columns)
        labels = sheet.labels
        across = _legend_columns(labels, _WIDTH * (columns if columns > 1 else _ALONE))
        legend = 0.2 * math.ceil(len(labels) / across) + 0.15
        wide = _ALONE if columns == 1 else 1.0
        size = (wide * _WIDTH * columns, (wide if lines == 1 else 1.0) * _HEIGHT * lines + legend)
        canvas = Canvas(figsize=size, layout="constrained")
        places = [canvas.add_subplot(lines, columns, index + 1) for index in range(len(sheet.panels))]
        slots = {label: slot for slot, label in enumerate(labels)}
        for axes, panel in zip(places, sheet.panels):
            _panel(axes, panel, slots)
        _legend(canvas, labels, across)
        canvas.draw_without_rendering()
        canvas.set_layout_engine(None)  # every format keeps this layout, which is slow to find
        return {form: _bytes(canvas, form, title) for form in FORMATS}


@contextmanager
def _own_style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def _bytes(canvas: Canvas, form: str, title: str) -> bytes:
    metadata: dict[str, dict[str, Any]] = {
        "png": {"Software": None, "Title": shown(title)},
        "svg": {"Date": None, "Creator": None, "Title": shown(title)},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None, "Title": shown(title)},
    }
    file = io.BytesIO()
    canvas.savefig(file, format=form, dpi=_DPI, metadata=metadata[form])
    return file.getvalue()


def _panel(axes: Axes, panel: Panel, slots: dict[str, int]) -> None:
    for number, series in enumerate(panel.series):
        look = _look(slots[series.label])
        if panel.names:
            beside = (number - (len(panel.series) - 1) / 2) * min(_APART, _SHARE / len(panel.series))
            _marks(axes, series.marks, panel.scale, {**look, "linestyle": "none"}, beside=beside)
            continue
        kept = [mark for mark in series.marks if not mark.hollow]
        _marks(axes, kept, panel.scale, {**look, "linestyle": "-" if len(kept) > 1 else "none"})
        _marks(axes, [m for m in series.marks if m.hollow], panel.scale,
               {**look, "linestyle": "none", "markerfacecolor": "none"})  # fmt: skip
    if panel.diagonal:
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--", zorder=0)
    places = sorted({mark.at for series in panel.series for mark in series.marks})
    if panel.doubling and places[0] > 0:
        axes.set_xscale("log", base=2)
    if (panel.steps or panel.doubling) and len(places) <= 16:
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    if panel.names:
        axes.set_xticks(range(len(panel.names)), [_tick(name) for name in panel.names], rotation=30, ha="right")
        axes.set_xlim(-0.5, len(panel.names) - 0.5)
        axes.grid(visible=False, axis="x")
    axes.set_title(shown(panel.title), fontsize="medium")
    axes.set_xlabel(shown(panel.x_name))
    axes.set_ylabel(shown(panel.y_name))


def _look(slot: int) -> dict[str, Any]:
    return {"color": COLOURS[slot % len(COLOURS)], "marker": SHAPES[slot % len(SHAPES)]}


def _marks(axes: Axes, marks: Sequence[Mark], scale: float, look: dict[str, Any], *, beside: float = 0.0) -> None:
    if not marks:
        return
    across = [mark.x for mark in marks if isinstance(mark.x, EstimateRow)]
    axes.errorbar(
        [mark.at + beside for mark in marks],
        [scale * mark.row.value for mark in marks],
        yerr=_errors((mark.row for mark in marks), scale),
        xerr=_errors(across, 1.0) if len(across) == len(marks) else None,
        markersize=4.5,
        linewidth=1.1,
        elinewidth=0.8,
        capsize=2,
        **look,
    )


def _errors(rows: Iterable[EstimateRow], scale: float) -> list[list[float]] | None:
    """Distances from the values to their bounds, 0 where a value has none; None where none has."""
    held = list(rows)
    if all(row.low is None or row.high is None for row in held):
        return None
    down = [0.0 if row.low is None else scale * max(0.0, row.value - row.low) for row in held]
    up = [0.0 if row.high is None else scale * max(0.0, row.high - row.value) for row in held]
    return [down, up]


def _legend_columns(labels: Sequence[str], width: float) -> int:
    longest = max(len(shown(label)) for label in labels)
    return max(1, min(len(labels), 5, int(width / (0.35 + 0.075 * longest))))


def _legend(canvas: Canvas, labels: Sequence[str], columns: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], markersize=4.5, linewidth=1.1, **_look(slot)) for slot in range(len(labels))]
    places = [f"series {slot}" for slot in range(len(labels))]
    made = canvas.legend(handles, places, loc="outside lower center", ncols=columns, frameon=False)
    for text, label in zip(made.get_texts(), labels):  # a legend drops labels that begin with "_"; texts are kept
        text.set_text(shown(label))
