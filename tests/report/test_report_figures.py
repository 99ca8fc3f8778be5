"""The paper's figures from records: what is drawn, what is not and why; every number leads back to a record."""

from __future__ import annotations

import contextlib
import csv
import io
import struct
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from support_figures import NASTY, changed, full_set, row, table_cell
from support_site import BUSY, HOSTILE, HOSTILE_TARGET, cell, write_all

from specbench.cli import main
from specbench.errors import ConfigError
from specbench.records import schema
from specbench.records.schema import EstimateRow, Record
from specbench.report import figure_folder, plots, sheet, table1
from specbench.report.entries import gather
from specbench.report.figures import figures
from specbench.report.sheet import Figure, Mark, Panel, Series, Sheet

Call = Callable[..., tuple[int, str, str]]


def read_csv(data: bytes | str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data if isinstance(data, str) else data.decode())))


def made(records: list[Record]) -> dict[str, Figure]:
    return {figure.key: figure for figure in figures(gather(records)[0])}


def runs_of(sheet: Sheet) -> set[str]:
    return {run for panel in sheet.panels for series in panel.series for mark in series.marks for run in mark.run_ids}


class Page(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records with a hostile name, what the command made of them in out/, and what it said."""
    where = tmp_path_factory.mktemp("figures")
    write_all(where / "runs", full_set())
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setattr(sys, "argv", ["specbench", "report", "figures", str(where / "runs"), "--out", str(where / "out")])
        with pytest.raises(SystemExit) as ended:
            main.run()
    assert not ended.value.code
    (where / "said").write_text(said.getvalue(), encoding="utf-8")
    return where


@pytest.fixture
def no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the images, for tests of the page."""
    monkeypatch.setattr(plots, "draw", lambda sheet, title: dict.fromkeys(plots.FORMATS, b"drawn"))


# ---------------------------------------------------------------------------------------------- through the command


def test_every_figure_is_written_and_valid(folder: Path) -> None:
    records, out, said = full_set(), folder / "out", (folder / "said").read_text(encoding="utf-8")
    assert "not drawn" not in said
    assert "1 of 11 records may not be ranked" in said
    names = {path.name for path in out.iterdir()}
    for key in ("tau", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8"):
        assert f"{key}.csv" in names
        assert [name for name in names if name.startswith(f"{key}-") and name.endswith(".png")]
    for path in out.glob("*.png"):
        data = path.read_bytes()
        width, height = struct.unpack(">II", data[16:24])
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert 400 < width < 3000
        assert 300 < height < 3000
    for path in out.glob("*.svg"):
        assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert b"<dc:date>" not in path.read_bytes()
    for path in out.glob("*.pdf"):
        data = path.read_bytes()
        assert data.startswith(b"%PDF-")
        assert data.rstrip().endswith(b"%%EOF")
        assert b"CreationDate" not in data
    page = Page((out / "index.html").read_text(encoding="utf-8"))
    shown = [attributes["src"] for attributes in page.all("img")]
    assert set(shown) == {name for name in names if name.endswith(".svg")}
    assert all(len(attributes["alt"] or "") > 40 for attributes in page.all("img"))
    links = {str(attributes["href"]) for attributes in page.all("a")}
    assert {link for link in links if not link.startswith("#")} <= names
    assert not [a for _, a in page.tags for v in (a.get("src"), a.get("href")) if "//" in (v or "")]  # no network
    assert len(page.all("caption")) == len(page.all("table")) == 2
    (left_out,) = [record for record in records if record.draft_length == 9]
    assert left_out.run_id in page.text
    assert all(left_out.run_id not in path.read_text(encoding="utf-8") for path in out.glob("*.csv"))


def test_without_matplotlib_one_line_says_what_to_install(
    specbench: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = specbench("report", "figures", tmp_path, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "pip install matplotlib" in err
    with pytest.raises(ConfigError, match="matplotlib"):
        figure_folder.write([cell("vanilla")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_records_is_refused(specbench: Call, tmp_path: Path) -> None:
    code, _, err = specbench("report", "figures", tmp_path, "--out", tmp_path / "out")
    assert code == 2
    assert "no records" in err


# ------------------------------------------------------------------------------------------------------- the numbers


def test_every_number_of_the_csv_is_the_records(tmp_path: Path) -> None:
    records = full_set()
    held = {record.run_id: record for record in records}
    count = 0
    for figure in made(records).values():
        for line in read_csv(sheet.to_csv(figure)):
            (run,) = line["run_ids"].split(";")
            scope = dict(part.split("=") for part in line["scope"].split(";")) if line["scope"] else {}
            found = held[run].find(line["metric"], **scope)
            assert found is not None
            assert float(line["value"]) == found.value
            assert line["low"] == ("" if found.low is None else str(found.low))
            assert int(line["n"]) == found.n
            if line["figure"] == "fig7":
                speed = held[run].find("tokens_per_s_user", stat="mean")
                assert speed is not None
                assert float(line["x"]) == speed.value
            count += 1
    assert count > 100


def test_table_1_holds_tau_by_task_in_three_formats() -> None:
    records = [
        table_cell("dspark", 6.25, target="Qwen/Qwen3-4B", drafter="a"),
        table_cell("dspark", 4.75, target="Qwen/Qwen3-4B", drafter="a", task="alpaca"),
        table_cell("eagle3", 5.25, target="other", drafter="b"),
        cell("vanilla"),
    ]
    (found,) = table1.tables(gather(records)[0])
    assert [found.heading(column) for column in found.columns] == ["GSM8K", "Alpaca"]
    assert [block.title for block in found.blocks] == ["Qwen/Qwen3-4B", "other"]
    latex, markdown = table1.to_latex([found]), table1.to_markdown([found])
    assert r"dspark:7 & 6.25 {[}6.15,6.35{]} & 4.75 {[}4.65,4.85{]} \\" in latex
    assert r"eagle3:7 & 5.25 {[}5.15,5.35{]} & - \\" in latex
    assert records[0].run_id in latex
    assert r"\toprule" in latex
    assert "| GSM8K | Alpaca |" in markdown
    cells = {(line["method"], line["task"]): line for line in read_csv(table1.to_csv([found]))}
    assert float(cells["dspark:7", "alpaca"]["value"]) == 4.75
    assert cells["eagle3:7", "gsm8k"]["run_ids"] == records[2].run_id


def test_runs_that_could_not_be_judged_are_drawn_when_asked_for_and_marked() -> None:
    records = [
        table_cell("dspark", 6.25, target="one", drafter="a"),
        table_cell("eagle3", 5.25, target="one", drafter="b", outcome="inconclusive"),
        table_cell("dflash", 5.0, target="one", drafter="c", outcome="fail"),
    ]
    usual, notes = gather(records)
    assert [line.label for line in table1.tables(usual)[0].blocks[0].lines] == ["dspark:7"]
    assert len(notes) == 2
    more, notes = gather(records, unsure=True)
    lines = table1.tables(more)[0].blocks[0].lines
    assert [line.label for line in lines] == ["dspark:7", "eagle3:7 (inconclusive)"]
    assert len(notes) == 1
    assert "verdict is fail" in notes[0]
    loads = [cell("dspark", users=n, outcome="inconclusive") for n in (1, 8)] + [cell("mtp", users=n) for n in (1, 8)]
    drawn = {figure.key: figure for figure in figures(gather(loads, unsure=True)[0])}
    for key in ("fig7", "fig8"):
        assert [one.label for one in drawn[key].sheets[0].panels[0].series] == ["dspark:7 (inconclusive)", "mtp:7"]


def test_the_picture_of_table_1_has_its_cells() -> None:
    records = [
        table_cell("dspark", 6.25, target="one", drafter="a"),
        table_cell("dspark", 4.75, target="one", drafter="a", task="alpaca"),
        table_cell("eagle3", 5.25, target="one", drafter="b", task="alpaca"),
        table_cell("eagle3", 3.5, target="other", drafter="c"),
    ]
    figure = table1.picture(table1.tables(gather(records)[0]))
    (one,) = figure.sheets
    assert [(panel.title, panel.names) for panel in one.panels] == [("one", ("GSM8K", "Alpaca")), ("other", ("GSM8K",))]
    drawn = {(line["panel"], line["series"], line["x"]): line for line in read_csv(sheet.to_csv(figure))}
    assert {place: float(line["value"]) for place, line in drawn.items()} == {
        ("one", "dspark:7", "GSM8K"): 6.25,
        ("one", "dspark:7", "Alpaca"): 4.75,
        ("one", "eagle3:7", "Alpaca"): 5.25,
        ("other", "eagle3:7", "GSM8K"): 3.5,
    }
    assert drawn["one", "eagle3:7", "Alpaca"]["run_ids"] == records[2].run_id
    assert "dspark:7: 6.25 at GSM8K, 4.75 at Alpaca" in sheet.described(one)


def test_long_names_and_many_contestants_are_drawn_apart() -> None:
    rows = [row("tau", 1.5 + 0.1 * number, unit="tokens") for number in range(12)]
    series = tuple(
        Series(f"method {n}", tuple(Mark(float(x), EstimateRow(**values), ("r",)) for x in range(5)))
        for n, values in enumerate(rows)
    )
    names = tuple(f"{number} {'a task with a name like a whole sentence ' * 2}" for number in range(5))
    panels = tuple(Panel(title, "task", "tau", series, names=names) for title in ("one target", "another target"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that does not fit is only warned of
        drawn = plots.draw(Sheet("s", {}, panels), title="t")
    width, height = struct.unpack(">II", drawn["png"][16:24])
    assert 800 < width < 3000
    assert 800 < height < 3000


def test_series_at_one_name_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []
    marks = plots._marks
    monkeypatch.setattr(
        plots, "_marks", lambda *given, beside: (drawn.append(round(beside, 3)), marks(*given, beside=beside))
    )
    found = tuple(
        Series(name, (Mark(0.0, EstimateRow(**row("tau", 2.0, unit="tokens")), ("r",)),)) for name in ("a", "b", "c")
    )
    plots.draw(Sheet("s", {}, (Panel("p", "task", "tau", found, names=("only",)),)), title="t")
    assert drawn == [-0.12, 0.0, 0.12]


def test_repeats_are_one_point_with_the_interval_of_runs() -> None:
    runs = [cell("dspark", k=k, seed=seed, detail=False) for k in (3, 7) for seed in (0, 1, 2)]
    (drawn,) = made(runs)["fig4"].sheets
    (series,) = drawn.panels[-2].series  # tau of all prompts
    values = [[run.find("tau").value for run in runs if run.draft_length == k] for k in (3, 7)]  # type: ignore[union-attr]
    assert [mark.row.value for mark in series.marks] == pytest.approx([np.mean(part) for part in values])
    assert [len(mark.run_ids) for mark in series.marks] == [3, 3]
    assert {mark.row.interval for mark in series.marks} == {"run to run"}


def test_times_of_a_busy_machine_are_not_drawn_and_its_counts_are() -> None:
    provenance = {"git_sha": "f" * 40, "git_dirty": False, **BUSY}
    busy, idle, other = cell("dspark", k=3, provenance=provenance), cell("dspark", k=7), cell("dspark", k=5)
    entries, notes = gather([busy, idle, other])
    assert [note for note in notes if busy.run_id in note and "times are not ranked" in note]
    drawn = {figure.key: {run for one in figure.sheets for run in runs_of(one)} for figure in figures(entries)}
    assert busy.run_id in drawn["fig2"]
    assert idle.run_id in drawn["fig4"]
    assert not any(busy.run_id in drawn[key] for key in ("fig4", "fig7", "fig8"))


# ------------------------------------------------------------------------------------------------- what is kept apart


def test_what_may_not_be_compared_stands_on_different_sheets() -> None:
    machines = ("a processor", "another one")
    records = [
        cell(method, k=k, users=users, hardware=machine, temperature=temperature, detail=False)
        for method in ("vanilla", "dspark", "dflash")
        for k in (3, 7)
        for users in (1, 4)
        for machine in machines
        for temperature in (0.0, 1.0)
    ]
    records = list({record.run_id: record for record in records}.values())
    held = {record.run_id: record for record in records}
    found = made(records)
    assert [len(found[key].sheets) for key in ("fig4", "fig7", "fig8")] == [8, 4, 4]
    for key in ("fig4", "fig7", "fig8"):
        for one in found[key].sheets:
            marks = [mark for panel in one.panels for series in panel.series for mark in series.marks]
            runs = [held[name] for mark in marks for name in mark.run_ids]
            facts = {(run.provenance["device_name"], run.spec["temperature"]) for run in runs}
            assert len(facts) == 1
            assert len({run.comparability["load"] for run in runs}) == (1 if key == "fig4" else 2)


def test_prompts_of_another_set_are_another_sheet_and_another_column() -> None:
    ours = table_cell("dspark", 6.0, target="t", drafter="a")
    other = dict(ours.comparability) | {"prompt_set": {"ids": "1" * 64, "order": "2" * 64, "count": 10}}
    theirs = changed(ours, comparability=other, comparability_sha256=schema.digest(other), spec={"seed": 0})
    entries, _ = gather([ours, theirs])
    assert len(entries) == 2  # one seed, two sets of prompts: no repeats
    (found,) = table1.tables(entries)
    assert len({found.heading(column) for column in found.columns}) == 2


def test_closed_and_open_loops_do_not_share_a_line() -> None:
    closed = [cell("dspark", users=users, detail=False) for users in (2, 8)]
    open_ones = []
    for rate in (1.0, 2.0):
        key = dict(closed[0].comparability) | {"load": f"poisson:2,rate={rate:g}"}
        more = {"workload": "poisson", "load": {"rate": rate}}
        open_ones.append(changed(closed[0], comparability=key, comparability_sha256=schema.digest(key), spec=more))
    sheets = made([*closed, *open_ones])["fig8"].sheets
    assert [[mark.at for mark in one.panels[0].series[0].marks] for one in sheets] in (
        [[2.0, 8.0], [1.0, 2.0]], [[1.0, 2.0], [2.0, 8.0]],
    )  # fmt: skip


def test_what_the_records_lack_is_named_and_not_drawn(tmp_path: Path) -> None:
    written = figure_folder.write([cell("vanilla"), cell("dspark", outcome="fail")], tmp_path)
    assert [name for name, _ in written.missing] == [
        "Table 1",
        "Table 1 drawn",
        *(f"Figure {number}" for number in range(2, 9)),
    ]
    assert all(reason for _, reason in written.missing)
    assert written.drawn == ()
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "comparison.csv", "figures.tex"}
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert page.text.count("Not drawn: ") == 9
    assert "verdict is fail" in page.text


def test_files_of_an_earlier_call_go_and_others_stay(tmp_path: Path, no_images: None) -> None:
    figure_folder.write([cell("vanilla"), cell("dspark")], tmp_path)
    assert list(tmp_path.glob("fig2-*.svg"))
    (tmp_path / "fig2-mine.svg").write_text("mine")
    figure_folder.write([cell("vanilla")], tmp_path)
    assert [path.name for path in tmp_path.glob("fig2*")] == ["fig2-mine.svg"]


# ---------------------------------------------------------------------------------------------------------- the names


def test_names_in_images_are_text(folder: Path) -> None:
    (deep,) = [record for record in full_set() if record.drafter is not None and record.drafter.name == NASTY]
    assert deep.run_id in (folder / "out" / "fig3.csv").read_text(encoding="utf-8")
    for path in (folder / "out").glob("*.svg"):
        tags = {element.tag.rpartition("}")[2] for element in ET.parse(path).iter()}
        assert not tags & {"script", "img", "image", "foreignObject"}


def test_names_are_text_in_the_page_and_in_latex(tmp_path: Path, no_images: None) -> None:
    tasks = {"tasks": [NASTY]}
    ours = changed(cell("dspark", drafter=NASTY, target=HOSTILE_TARGET, hardware=NASTY), spec=tasks)
    other = changed(cell("dspark", drafter="plain", target=HOSTILE_TARGET, hardware=NASTY), spec=tasks)
    figure_folder.write([ours, other, cell("dspark", drafter=NASTY, outcome="fail")], tmp_path)
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert page.all("script") == []
    assert all((attributes["src"] or "").startswith(("fig", "tau")) for attributes in page.all("img"))
    assert HOSTILE in page.text
    latex = "".join((tmp_path / name).read_text(encoding="utf-8") for name in ("table1.tex", "figures.tex"))
    read = "\n".join(line.partition(" % ")[0] for line in latex.splitlines() if not line.startswith("%"))
    assert r"\frac" not in read
    assert r"\$\textbackslash{}frac" in read
    assert read.count("$") == read.count(r"\$")
    assert r"\$\\frac" in (tmp_path / "table1.md").read_text(encoding="utf-8")


def test_a_label_of_an_image_is_one_line_that_the_font_has() -> None:
    assert plots.shown("a\nb\x00 中 τ é") == "a b[U+0000] [U+4E2D] τ é"
    assert plots.shown("\ud800") == "[U+D800]"
    assert len(plots.shown("x" * 500)) == 60
    assert plots.shown("x" * 500 + "end").endswith("end")


def test_a_formula_in_a_name_is_not_set_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FORMATS", ("png",))
    name = r"$\nosuch{$"  # as mathematics it would be an error
    held = row("tau", 2.0, "tokens per round")
    series = Series(name, (Mark(1.0, EstimateRow(**held), ("0" * 16,)),))
    drawn = plots.draw(Sheet("0" * 12, {}, (Panel(name, name, name, (series,)),)), title=name)
    assert drawn["png"].startswith(b"\x89PNG")


def test_the_same_records_give_the_same_bytes(folder: Path) -> None:
    figure = made(full_set())["fig7"]
    (one,) = figure.sheets
    for form, data in plots.draw(one, title=f"Figure 7: {figure.title}").items():
        assert (folder / "out" / f"fig7-{one.id}.{form}").read_bytes() == data
