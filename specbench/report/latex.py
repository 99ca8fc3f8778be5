"""LaTeX tables (booktabs) from records; every row ends in a comment with its run id and the exact values."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from specbench.records.schema import Record
from specbench.report.paper import COUNTED_HEADINGS, HEADINGS, PaperRow, PaperTable, paper_tables

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\char96{}",
    '"': r"\char34{}",
    "[": "{[}",  # behind a line's end it would be read as that line's extra space
    "]": "{]}",
    "*": "{*}",  # likewise
    "…": r"\ldots{}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "·": r"\ensuremath{\cdot}",
    "×": r"\ensuremath{\times}",
    "±": r"\ensuremath{\pm}",
    "µ": r"\ensuremath{\mu}",
}
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "θ": "theta", "λ": "lambda", "μ": "mu",
    "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ω": "omega",
}  # fmt: skip
_HEADS = {"tau": r"$\tau$", "95 %": r"95\,\%", "n": "$n$"}


def escape(text: str) -> str:
    """Any text as LaTeX that prints it, whatever it holds.

    Accented Latin letters stay; characters that pdfLaTeX does not know are named by their code point, as in [U+4E2D],
    so that the file compiles with every engine and nothing vanishes. Line breaks become spaces.
    """
    joined = "".join(_character(character) for character in " ".join(text.split()))
    return re.sub("-(?=-)", "-{}", joined)  # two of them would become one dash


def _character(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if character in _GREEK:
        return rf"\ensuremath{{\{_GREEK[character]}}}"
    plain = character.isascii() and character.isprintable()
    latin = "\u00c0" <= character <= "\u017f" and unicodedata.category(character) in ("Lu", "Ll")
    return character if plain or latin else f"{{[}}U+{ord(character):04X}{{]}}"


def escape_paragraphs(text: str) -> str:
    """As `escape`, with the empty lines between paragraphs kept."""
    return "\n\n".join(escape(part) for part in text.split("\n\n")) + "\n"


def comment(text: str) -> str:
    """One line that LaTeX does not read."""
    shown = "".join(c if c.isprintable() else f"[U+{ord(c):04X}]" for c in " ".join(text.split()))
    return f"% {shown}"


def to_latex(records: Sequence[Record]) -> str:
    """A ``table`` environment for each comparability group; needs ``\\usepackage{booktabs}``."""
    tables = paper_tables(records)
    head = [comment("needs \\usepackage{booktabs}; the comment behind a row names its run and its exact values")]
    return "\n".join([*head, *(line for table in tables for line in _table(table))]) + "\n"


def _table(table: PaperTable) -> list[str]:
    facts = "; ".join(f"{name}: {value}" for name, value in table.facts.items())
    lines = ["", comment(f"comparability group {table.group}: {facts}"), r"\begin{table}[t]", r"\centering"]
    lines += [rf"\caption{{{_caption(table)}}}", rf"\label{{tab:specbench-{table.group}}}", r"\small"]
    if table.blocks:
        lines += _main(table)
        lines += [r"\par\medskip", r"Accepted length as other projects count it, $n$ in brackets:\par\smallskip"]
        lines += _counted(table)
    else:
        lines.append("no row has a result")
    lines += [rf"\par\smallskip\footnotesize {escape(note)}" for note in table.notes]
    return [*lines, r"\end{table}"]


def _caption(table: PaperTable) -> str:
    facts = table.facts
    what = f"{facts['target']} on {facts['device']}, {facts['sampling']}, load {facts['load']}, {facts['dtype']}; "
    what += f"prompts: {facts['prompts']}; at most {facts['output limit']}."
    legend = table.legend[:1].upper() + table.legend[1:]
    return f"{escape(what)} {escape(legend)}." if legend else escape(what)


def _main(table: PaperTable) -> list[str]:
    columns = len(HEADINGS) + 1
    lines = [r"\begin{tabular}{l" + "r" * (len(HEADINGS) - 1) + "l}", r"\toprule"]
    lines.append(_line(["method", *(_HEADS.get(name, escape(name)) for name in HEADINGS)]))
    for block in table.blocks:
        lines += [r"\midrule", rf"\multicolumn{{{columns}}}{{l}}{{\emph{{{escape(block.title)}}}}} \\"]
        lines += [_row(row) for row in block.rows]
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _counted(table: PaperTable) -> list[str]:
    lines = [r"\begin{tabular}{l" + "r" * len(COUNTED_HEADINGS) + "}", r"\toprule"]
    lines += [_line(["method", *(_HEADS.get(name, escape(name)) for name in COUNTED_HEADINGS)]), r"\midrule"]
    return [*lines, *(_row(row) for row in table.counted), r"\bottomrule", r"\end{tabular}"]


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _row(row: PaperRow) -> str:
    behind = [f"run {row.run_id}", *(f"{metric} {value!r}" for metric, value in row.exact)]
    if row.baseline is not None:
        behind.append(f"baseline {row.baseline}")
    return f"{_line([escape(row.label), *(_cell(cell) for cell in row.cells)])} {comment('; '.join(behind))}"


def _cell(text: str) -> str:
    # brackets of an interval stand behind a column's mark, where they mean nothing to LaTeX
    return escape(text).replace("{[}", "[").replace("{]}", "]")
