"""The folder that ``specbench report figures`` writes: images, tables, data, LaTeX, and one page that holds all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from specbench.records.schema import Record
from specbench.records.store import write_atomic
from specbench.report import beside, latex, numbers, paper_values, plots, sheet, table1
from specbench.report.beside import Line
from specbench.report.entries import gather
from specbench.report.figures import figures
from specbench.report.paper_values import PaperValue
from specbench.report.sheet import Figure, Sheet

INDEX = "index.html"
_TEMPLATE = Path(__file__).with_name("figures.html")
_OURS = re.compile(
    r"(?:fig[2-8]|tau)(-[0-9a-f]{12}\.(png|svg|pdf)|\.csv)|table1\.(csv|tex|md)|figures\.tex|comparison\.csv"
)
_GENERATOR = '<meta name="generator" content="specbench report figures">'
_LONG_LIST = 4  # runs named in a cell; the CSV names all


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: how many records of how many, which figures, and which not and why."""

    index: Path
    records: int
    drawn: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def write(
    records: Sequence[Record], out: Path, *, inconclusive: bool = False, say: Callable[[str], None] = lambda _: None
) -> Written:
    """Draw everything that the records hold; files of an earlier call that are not written again are removed.

    ``inconclusive`` also draws runs whose verdict could not tell, and marks them.

    Errors: ConfigError without matplotlib, RecordError when the folder cannot be written.
    """
    plots.require()
    entries, notes = gather(records, unsure=inconclusive)
    tables = table1.tables(entries)
    made = [table1.picture(tables), *figures(entries)]
    files: dict[str, bytes] = {}
    for figure in (figure for figure in made if figure.sheets):
        say(f"{name_of(figure.key)}: {len(figure.sheets)} image{'s' if len(figure.sheets) > 1 else ''}")
        files[f"{figure.key}.csv"] = _encoded(sheet.to_csv(figure))
        for one in figure.sheets:
            for form, data in plots.draw(one, title=f"{name_of(figure.key)}: {figure.title}").items():
                files[f"{_stem(figure, one)}.{form}"] = data
    if tables:
        for ending, text in (("csv", table1.to_csv), ("tex", table1.to_latex), ("md", table1.to_markdown)):
            files[f"{table1.KEY}.{ending}"] = _encoded(text(tables))
    lines = beside.beside(entries)
    files["comparison.csv"] = _encoded(beside.to_csv(lines))
    files["figures.tex"] = _encoded(_latex(made))
    parts = [_table_part(tables), *(_part(figure) for figure in made)]
    runs = sum(len(entry.records) for entry in entries)
    page = _page(parts=parts, lines=[shown(line) for line in lines], notes=notes, records=len(records), runs=runs)
    _replace(out, files, _encoded(page))
    missing = tuple((part["name"], part["missing"]) for part in parts if part["missing"])
    drawn = tuple(part["name"] for part in parts if not part["missing"])
    return Written(out / INDEX, len(records), drawn, missing, tuple(notes))


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _replace(out: Path, files: dict[str, bytes], page: bytes) -> None:
    """Write all files, the page last; what an earlier page of ours had beside them and this one has not is removed."""
    index = out / INDEX
    ours = index.is_file() and _GENERATOR.encode() in index.read_bytes()[:2000]
    old = [path for path in out.iterdir() if _OURS.fullmatch(path.name) and path.name not in files] if ours else []
    for name, data in files.items():
        write_atomic(out / name, data)
    write_atomic(index, page)
    for path in old:
        path.unlink(missing_ok=True)


def name_of(key: str) -> str:
    """``Figure 2`` of "fig2"."""
    return "Table 1 drawn" if key == table1.PICTURE else key.replace("fig", "Figure ").replace("table", "Table ")


def _stem(figure: Figure, one: Sheet) -> str:
    return f"{figure.key}-{one.id}"


# -------------------------------------------------------------------------------------------------------- LaTeX


def _latex(made: Sequence[Figure]) -> str:
    lines = [latex.comment("needs \\usepackage{graphicx}; images and their data (CSV, with run ids) lie beside it")]
    for figure in made:
        if figure.missing:
            lines += ["", latex.comment(f"{name_of(figure.key)} is not drawn: {figure.missing}")]
        for one in figure.sheets:
            stem = _stem(figure, one)
            text = f"{figure.title}. {figure.caption} {_facts(one)}. Bars: 95 % intervals."
            lines += ["", r"\begin{figure*}[t]", r"\centering", rf"\includegraphics[width=\linewidth]{{{stem}.pdf}}",
                      rf"\caption{{{latex.escape(text)}}}", rf"\label{{fig:specbench-{stem}}}",
                      r"\end{figure*}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def _facts(one: Sheet) -> str:
    return "; ".join(f"{name}: {text}" for name, text in one.facts.items())


# --------------------------------------------------------------------------------------------------------- the page


def _part(figure: Figure) -> dict[str, Any]:
    sheets = [
        {"id": one.id, "file": _stem(figure, one), "facts": _facts(one),
         "alt": f"{figure.title}. {sheet.described(one)}"}
        for one in figure.sheets
    ]  # fmt: skip
    return {"key": figure.key, "name": name_of(figure.key), "title": figure.title, "caption": figure.caption,
            "sheets": sheets, "missing": figure.missing, "notes": figure.notes, "tables": []}  # fmt: skip


def _table_part(tables: Sequence[table1.Table]) -> dict[str, Any]:
    shown = [
        {"id": table.id, "caption": table1.caption(table), "heads": [table.heading(c) for c in table.columns],
         "blocks": [{"title": block.title, "lines": [table1.texts(table, line) for line in block.lines]}
                    for block in table.blocks]}
        for table in tables
    ]  # fmt: skip
    missing = "" if tables else table1.LACKING
    return {"key": table1.KEY, "name": name_of(table1.KEY), "title": table1.TITLE, "missing": missing,
            "tables": shown, "sheets": [], "notes": []}  # fmt: skip


_WORDS = {
    "tau": "accepted length",
    "conditional": "conditional acceptance",
    "gain_over_dflash": "tau over DFlash's",
    "acceptance_lowest": "acceptance rate, lowest threshold",
    "acceptance_highest": "acceptance rate, highest threshold",
    "ece": "ECE",
    "auroc": "AUROC",
    "throughput_gain": "throughput over MTP-1's at equal tok/s/user",
    "speed_gain": "tok/s/user over MTP-1's at equal throughput",
    "budget": "verification budget",
}


def _what(value: PaperValue) -> str:
    parts = [paper_values.METHODS[value.method], _WORDS[value.quantity], value.target or ""]
    parts.append(paper_values.TASKS[value.task][0] if value.task is not None else value.domain or "")
    if value.at is not None:
        parts.append(f"{value.at:g} tok/s/user" if value.quantity == "throughput_gain" else f"position {value.at:g}")
    if value.calibrated is not None:
        parts.append("after STS" if value.calibrated else "before STS")
    if value.draft_length is not None:
        parts.append(f"{value.draft_length} draft{'s' if value.draft_length > 1 else ''}")
    if value.temperature is not None:
        parts.append(f"T = {value.temperature:g}")
    return ", ".join(part for part in parts if part)


def _number(number: float, unit: str) -> str:
    return f"{numbers.fixed(number, 1)} %" if unit == "%" else numbers.in_unit(number, unit)


def shown(line: Line) -> dict[str, str]:
    """A line of the comparison as the page writes it."""
    value, held = line.paper, line.measured
    unit = value.unit
    paper = _number(value.value, unit) + (f" to {_number(value.high, unit)}" if value.high is not None else "")
    apart = "not measured" if held is None else "; ".join(held.apart)
    cells = {"place": value.place, "what": _what(value), "paper": paper, "measured": numbers.ABSENT, "n": "",
             "difference": "", "apart": apart, "runs": ""}  # fmt: skip
    if held is None:
        return cells
    bounds = [_number(bound, unit) for bound in (held.low, held.high) if bound is not None]
    interval = f" [{', '.join(bounds)}]" if len(bounds) == 2 else ""
    more = len(held.run_ids) - _LONG_LIST
    cells |= {"measured": _number(held.value, unit) + interval, "n": held.n,
              "runs": ", ".join(held.run_ids[:_LONG_LIST]) + (f" and {more} more" if more > 0 else "")}  # fmt: skip
    if line.difference is not None:
        text = _number(line.difference, unit)
        cells["difference"] = text if text.startswith("-") else f"+{text}"
    return cells


def _remarks() -> Iterator[str]:
    gains = [value for value in paper_values.paper_values() if value.quantity == "throughput_gain"]
    nominal = [value for value in gains if value.at in paper_values.NOMINAL_AT]
    where = ", ".join(f"{value.target} at {value.at:g} tok/s/user" for value in nominal)
    yield f"{where}: {paper_values.NOMINAL}."
    yield paper_values.NOT_TIMED
    yield paper_values.NOT_KNOWN


def _page(**values: Any) -> str:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(source=paper_values.SOURCE, formats=plots.FORMATS, remarks=list(_remarks()), **values) + "\n"
