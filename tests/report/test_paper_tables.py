"""LaTeX and Markdown tables: same cells, one table a comparability group, every number leads back to its record."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support_records import KEY, make_record, save_run
from support_traces import example_trace, plain_trace, simulate_trace

from specbench.records.schema import EstimateRow, Record
from specbench.report import latex, markdown, numbers
from specbench.report.latex import to_latex
from specbench.report.markdown import to_markdown
from specbench.report.paper import paper_tables, row_labels

NASTY = r"a_b%c&d#e$f~g^h\i{j}k [l] *m* <n> |o| `p` --q"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def records(folder: Path) -> list[Record]:
    """Plain decoding and a method on two domains."""
    trace = simulate_trace(0.7, gamma=3, rounds=40)
    plain = plain_trace(trace)
    control = save_run(folder, plain)
    return [control, save_run(folder, trace, baseline=(control, plain))]


def other_group(**fields: Any) -> Record:
    key = copy.deepcopy(KEY) | {"load": "closed:8"}
    tau = EstimateRow(metric="tau", value=2, unit="tokens per round", n=9, n_of="rounds", low=1.5, high=2.5)
    return make_record(**{"key": key, "estimates": [tau], **fields})


# ------------------------------------------------------------------------------------------ reading LaTeX


_COMMAND = re.compile(r"\\(?:ensuremath\{\\[a-z]+\}|[a-zA-Z]+\d*(?:\{\})?|[{}_%&#$])")


def assert_plain(text: str) -> None:
    """Nothing in it means anything to LaTeX but the commands that the escapes use."""
    rest = _COMMAND.sub(" ", text).replace("{[}", "").replace("{]}", "").replace("{*}", "").replace("-{}", "")
    assert not set(rest) & set('\\{}_%&#$~^[]*<>|`"\n\r'), rest
    assert "--" not in rest


def rows_of(text: str) -> list[list[str]]:
    """Cells of the lines of all tabulars, comments cut off."""
    found = []
    for line in text.splitlines():
        code = re.split(r"(?<!\\)%", line)[0].rstrip()
        if code.endswith(r"\\"):
            found.append([cell.strip() for cell in re.split(r"(?<!\\)&", code.removesuffix(r"\\"))])
    return found


def check_document(text: str) -> None:
    """Environments and braces close, and every line of a tabular has its columns."""
    code = "\n".join(re.split(r"(?<!\\)%", line)[0] for line in text.splitlines())
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", code):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    bare = re.sub(r"\\[{}]", "", code)
    assert bare.count("{") == bare.count("}")
    for body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", code, re.DOTALL):
        for line in body[1].splitlines():
            if line.rstrip().endswith(r"\\") and "multicolumn" not in line:
                assert len(re.findall(r"(?<!\\)&", line)) == len(body[0]) - 1, line


@settings(max_examples=200, deadline=None)
@example("-<-")  # a command between two dashes parts them
@given(st.text(max_size=40) | st.text(alphabet=NASTY + "τé中\u202e\udcff", max_size=40))
def test_any_text_is_escaped(text: str) -> None:
    assert_plain(latex.escape(text))
    line = markdown.escape(text)
    assert "\n" not in line
    assert not re.search(r"(?<!\\)(\\\\)*[|`*_\[\]$~]", line)
    assert not re.search("[<>]", line)


def test_escapes_print_what_was_written() -> None:
    assert latex.escape("a_b 50% & #1 $x ~y ^z \\n {k}") == (
        r"a\_b 50\% \& \#1 \$x \textasciitilde{}y \textasciicircum{}z \textbackslash{}n \{k\}"
    )
    assert latex.escape("é τ 中\n--x") == r"é \ensuremath{\tau} {[}U+4E2D{]} -{}-x"
    assert latex.escape("[a] *b*") == "{[}a{]} {*}b{*}"
    assert markdown.escape("a|b_c <d> & `e`") == r"a\|b\_c &lt;d&gt; &amp; \`e\`"


# ------------------------------------------------------------------------------------------ the tables


def test_a_table_holds_tau_and_speed_up_with_n_and_intervals(records: list[Record]) -> None:
    (table,) = paper_tables(records)
    assert [block.title for block in table.blocks] == ["code", "math", "all"]
    record = records[1]
    for block, scope in zip(table.blocks, ({"domain": "code"}, {"domain": "math"}, {})):
        row = block.rows[1]
        tau, speed = record.find("tau", **scope), record.find("speed_up", **scope)
        assert tau is not None
        assert speed is not None
        assert speed.low is not None
        assert row.label == "toy:3"
        assert row.cells[:3] == (f"{tau.value:.2f}", f"[{tau.low:.2f}, {tau.high:.2f}]", str(tau.n))
        assert row.cells[3:6] == (f"{speed.value:.2f}", f"[{speed.low:.2f}, {speed.high:.2f}]", str(speed.n))
        assert row.cells[6:] == (numbers.number(record.find("decode_tokens_per_s", **scope)), "pass")
    assert table.blocks[0].rows[0].cells[3:6] == ("-", "-", "-")
    assert "paired bootstrap over prompts" in table.legend
    assert "rounds (tau), requests in both arms (speed-up)" in table.legend


def test_latex_and_markdown_write_the_same_cells(records: list[Record]) -> None:
    (table,) = paper_tables(records)
    in_latex, in_markdown = rows_of(to_latex(records)), to_markdown(records)
    check_document(to_latex(records))
    for row in [*(row for block in table.blocks for row in block.rows), *table.counted]:
        assert [row.label, *row.cells] in in_latex
        assert f"| {' | '.join([row.label, *row.cells, row.run_id])} |" in in_markdown


def test_every_row_leads_from_a_number_to_its_record(records: list[Record], folder: Path) -> None:
    """As a reader would: the number's line, the run id in it, the file of that name, the value in the file."""
    lines = [line for line in to_latex(records).splitlines() if re.match(r"(vanilla|toy:3) &", line)]
    assert len(lines) == 2 * (3 + 1)
    for line in lines:
        said = re.search(r"% run ([0-9a-f]{16}); (.*)$", line)
        assert said is not None
        text = (folder / f"{said[1]}.json").read_text(encoding="utf-8")
        assert json.loads(text)["run_id"] == said[1]
        pairs = [part.split() for part in said[2].split("; ")]
        assert pairs
        for name, value in pairs:
            assert value in text, f"{name} {value}"
    assert all(record.run_id in to_markdown(records) for record in records)


def test_the_ways_of_counting_are_those_of_the_worked_example(tmp_path: Path) -> None:
    """The trace of metrics.md: four rounds, prefill of one token, a stop in the last."""
    record = save_run(tmp_path, example_trace())
    (table,) = paper_tables([record])
    assert table.counted[0].cells[:5] == ("2.25 (4)", "2.25 (4)", "2.75 (4)", "2.50 (4)", "1.80 (5)")
    head = "| method | tau | DeepSpec | vLLM | SGLang | SPEED-Bench | DFlash | run |"
    assert head in to_markdown([record]).replace("\\-", "-")


def test_one_table_for_each_comparability_group(records: list[Record]) -> None:
    both = [*records, other_group(), other_group(created="2026-05-05T00:00:00Z", method="other")]
    tables = paper_tables(both)
    assert [len(table.counted) for table in tables] == [2, 2]
    text = to_latex(both)
    check_document(text)
    assert text.count(r"\begin{table}") == 2
    assert all(f"tab:specbench-{table.group}" in text for table in tables)
    assert "load closed:8" in text


def test_rows_of_one_name_are_told_apart_by_what_differs() -> None:
    seeds = [other_group(spec={"seed": n, "policy": "fixed:3"}) for n in (1, 2)]
    assert sorted(row_labels(seeds).values()) == ["toy:3 (seed 1)", "toy:3 (seed 2)"]
    repeats = [other_group(created=f"2026-01-0{n}T00:00:00Z") for n in (1, 2)]
    assert sorted(row_labels(repeats).values()) == sorted(f"toy:3 (run {record.run_id})" for record in repeats)
    policies = [other_group(spec={"policy": name}) for name in ("fixed:3", "load-aware:lag=2")]
    assert set(row_labels(policies).values()) == {"toy:3", "toy:3 load-aware:lag=2"}
    options = [other_group(spec={"options": {"max_ngram": n}}) for n in (2, 4)]
    assert set(row_labels(options).values()) == {"toy:3 (max_ngram 2)", "toy:3 (max_ngram 4)"}


def test_failures_and_alarms_stand_below_the_table(records: list[Record]) -> None:
    failed = make_record(status="failed", error={"kind": "DrafterError", "message": "a\nb"}, method="bad_one", key=KEY)
    synthetic = other_group(key=copy.deepcopy(KEY) | {"synthetic_acceptance": True})
    alarmed = other_group(alarms=[{"name": "low-diversity", "message": "one sentence"}], created="2026-03-03T00:00:00Z")
    text = to_latex([*records, failed, synthetic, alarmed])
    check_document(text)
    assert r"bad\_one:3: failed: a b" in text
    assert "acceptance is synthetic" in text
    assert "low-diversity: one sentence" in text
    assert "failed: a b" in to_markdown([failed])
    assert "no row has a result" in to_latex([failed])


@settings(max_examples=25, deadline=None)
@given(st.text(min_size=1, max_size=20) | st.sampled_from([NASTY, "%", "\\", "[x]", "*", "中文", "a\nb\rc\u2028d"]))
def test_hostile_names_anywhere_leave_a_whole_document(name: str) -> None:
    name = name.encode(errors="replace").decode()
    record = other_group(
        method=name,
        target={"name": name, "sha256": "a" * 64, "source": "folder"},
        spec={"tasks": [name], "policy": f"x:{name}"},
        provenance={"git_sha": name, "device_name": name},
        alarms=[{"name": name, "message": name}],
        key=copy.deepcopy(KEY) | {"load": name},
        estimates=[
            EstimateRow(metric="tau", value=2, unit="u", n=1, n_of=name, interval=name, low=1, high=3, scope=scope)
            for scope in ({}, {"domain": name})
        ],
    )
    text = to_latex([record])
    check_document(text)
    for line in rows_of(text):
        for cell in line:
            if "multicolumn" not in cell and cell not in (r"$\tau$", r"95\,\%", "$n$"):
                assert_plain(cell.replace("[1, 3]", ""))
    for line in to_markdown([record]).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) in (8 + 1, 11 + 1)
