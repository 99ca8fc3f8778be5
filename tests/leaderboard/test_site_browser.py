"""The site as a reader meets it: in a browser, from the disk. One browser serves all tests of this file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specbench_leaderboard.build import build
from support_browser import Session, after, browser_session, ready, rows_of, unfold
from support_golden import table_holds
from support_site import HOSTILE, cell, hostile, search, sweep, write_all

from specbench.records import sla_result
from specbench.records.schema import Record
from specbench.report import board, numbers, series

KINDS = ("index", "charts", "sla.html", "data.html", "metrics/index.html", "metrics/acceptance.html", "group", "run")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [*sweep(), hostile()]


@pytest.fixture(scope="module")
def session(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("site")
    with browser_session(folder / "out") as found:  # skips before anything is built
        write_all(folder / "records", records)
        sla_result.write(folder / "records", search(records))
        build(folder / "records", out=folder / "out")
        yield found


def _tick(page: Any, facet: str, value: str) -> None:
    page.click(f'[data-facet="{facet}"] summary')
    after(page, lambda: page.check(f'[data-facet="{facet}"] input[value="{value}"]'))
    page.keyboard.press("Escape")


def test_filters_meet_the_records_and_stand_in_the_address(session: Session, records: list[Record]) -> None:
    with session.page("index.html") as page:
        ready(page)
        _tick(page, "load", "closed:1")
        _tick(page, "temperature", "0")
        _tick(page, "target", "smollm2-135m")
        _tick(page, "policy", "threshold")
        wanted = {r.run_id for r in records if str(r.spec["policy"]).startswith("threshold")}
        assert {row["run"] for row in rows_of(page)} == wanted
        assert "policy=threshold" in page.url
        assert page.inner_text("#summary").startswith(f"{len(wanted)} rows in 1 group")
        with session.page(page.url.rpartition("/")[2]) as again:  # a permalink, opened elsewhere
            ready(again)
            assert rows_of(again) == rows_of(page)
            assert again.is_checked('[data-facet="policy"] input[value="threshold"]')
        after(page, lambda: page.click("#reset"))
        assert "#" not in page.url
        assert len(rows_of(page)) > len(wanted)


def test_sorting_a_column_says_so_and_orders_ranked_rows_before_the_others(session: Session) -> None:
    with session.page("index.html#load=closed%3A1&temperature=0") as page:
        ready(page)
        after(page, lambda: page.click('[data-sort="tau"]'))
        assert page.get_attribute("th:has([data-sort=tau])", "aria-sort") == "descending"
        assert page.get_attribute("th:has([data-sort=speed_up])", "aria-sort") is None
        after(page, lambda: page.keyboard.press("Enter"))  # the focus stays on the column
        assert page.get_attribute("th:has([data-sort=tau])", "aria-sort") == "ascending"
        first = page.eval_on_selector("#board table", "table => [...table.tBodies[0].rows].map(row => row.dataset.run)")
        rows = {row["run"]: row for row in rows_of(page)}
        values = [(rows[run]["place"] == "–", rows[run]["cells"][3]["value"]) for run in first]
        keys = [(unranked, float("inf") if value is None else float(value)) for unranked, value in values]
        assert keys == sorted(keys)
        assert "sort=tau%3Aasc" in page.url


def test_every_row_that_is_not_ranked_says_why(session: Session, records: list[Record]) -> None:
    reasons = {row.record.run_id: row.reasons for group in board.groups(records) for row in group.rows}
    with session.page("index.html#load=closed%3A1&temperature=0") as page:
        unfold(page)
        rows = rows_of(page)
    words = " ".join(row["text"] for row in rows)
    for kind in ("failed", "verdict is fail", "inconclusive", "synthetic", "uncommitted", "newest", "compared with",
                 "other processes used 1.0 of 2 processors: its times are not ranked"):  # fmt: skip
        assert kind in words
    for row in rows:
        assert (row["place"] == "–") == ("Not ranked: " in row["text"])
        for reason in reasons[row["run"]]:
            assert reason in row["text"]


def test_every_number_of_the_table_is_the_record_s_in_the_reports_spelling(
    session: Session, records: list[Record]
) -> None:
    by_id = {record.run_id: record for record in records}
    checked = 0
    for domain in ("", "math"):
        with session.page(f"index.html#load=closed%3A1{f'&domain={domain}' if domain else ''}") as page:
            unfold(page)
            checked += table_holds(rows_of(page), by_id, domain=domain)
    assert checked > 250


def test_downloads_hold_what_is_shown_with_all_digits(session: Session, records: list[Record]) -> None:
    by_id = {record.run_id: record for record in records}
    with session.page("index.html#drafter=ngram&rank=tau") as page:
        ready(page)
        texts = {}
        for kind in ("csv", "json"):
            with page.expect_download() as waiting:
                page.click(f"#{kind}")
            texts[kind] = Path(waiting.value.path()).read_text(encoding="utf-8")
    listed = json.loads(texts["json"])
    table = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert {row["run_id"] for row in listed} == {r.run_id for r in records if r.method == "ngram"}
    assert [row["run_id"] for row in table] == [row["run_id"] for row in listed]
    for plain, row in zip(table, listed):
        record = by_id[row["run_id"]]
        for column in board.COLUMNS:
            wanted = record.find(column.metric, **dict(column.scope))
            assert row[column.key] == (wanted.value if wanted else None)
            assert row[f"{column.key}_low"] == (wanted.low if wanted else None)
            assert plain[column.key] == "" if wanted is None else float(plain[column.key]) == wanted.value
        assert (row["rank"] is None) == (row["not_ranked_because"] is not None)


def test_the_floor_moves_the_line_and_the_table_follows(session: Session, records: list[Record]) -> None:
    family = series.families(records)[0]
    with session.page("charts.html#floor=100") as page:
        page.wait_for_selector("#charts[data-drawn]")
        for floor in (100.0, 180.0):
            if floor != 100.0:
                page.fill("#floor", str(floor))
                page.keyboard.press("Tab")
            page.wait_for_function(
                "floor => document.querySelector('#frontier .plot').layout.shapes[0].x0 === floor", arg=floor
            )
            script = "rows => rows.map(row => [row.cells[4].textContent, row.cells[1].textContent])"
            shown = page.eval_on_selector_all("#frontier .numbers tbody tr", script)
            usable = [p for p in family.points if not p.reasons and {"user", "throughput"} <= set(p.values)]
            able = [p for p in usable if p.values["user"].value >= floor]
            best = max(able, key=lambda p: p.values["throughput"].value)
            assert shown[0] == [best.record.run_id, best.values["throughput"].text]
            assert ["", "not attainable"] in shown
            assert f"floor={floor:g}" in page.url
        page.focus("#floor-range")
        page.keyboard.press("ArrowRight")
        assert page.input_value("#floor") == "180.1"
        page.evaluate("Plotly.relayout(document.querySelector('#frontier .plot'), {'shapes[0].x0': 120})")  # a drag
        page.wait_for_function("document.getElementById('floor').value === '120'")
        assert page.eval_on_selector_all("section.chart:not([hidden])", "all => all.map(one => one.id)") == [
            "frontier", "length", "position", "concurrency", "threshold", "time", "reliability",
        ]  # fmt: skip
        assert HOSTILE in page.inner_text("#frontier .numbers")
        page.locator("#position").scroll_into_view_if_needed()
        page.wait_for_selector("#position .legendtext")
        legend = page.eval_on_selector_all("#position .legendtext", "all => all.map(one => one.textContent)")
        assert any(HOSTILE in text for text in legend)


def test_repeats_of_a_load_are_marks_and_the_line_goes_through_their_mean(session: Session) -> None:
    twice = [cell("dspark"), cell("dspark", seed=1, created="2026-01-03T03:04:05Z")]
    points = [series.point_of(run).values for run in twice]
    values = [[one["user"].value, one["throughput"].value] for one in points]
    with session.page("charts.html") as page:
        page.wait_for_selector("#frontier .plot .legendtext")
        script = "plot => plot.data.map(t => ({name: t.name, mode: t.mode, at: t.x.map((x, i) => [x, t.y[i]])}))"
        traces = page.eval_on_selector("#frontier .plot", script)
    marks, line = (next(t["at"] for t in traces if t["mode"] == mode and values[0] in marks_of(traces, t["name"]))
                   for mode in ("markers", "lines"))  # fmt: skip
    assert all(value in marks for value in values)
    assert len(line) == len(marks) - 1
    assert line[0] == pytest.approx([sum(part) / 2 for part in zip(*values)])


def marks_of(traces: list[dict[str, Any]], name: str) -> list[list[float]]:
    return [place for trace in traces if trace["name"] == name and trace["mode"] == "markers" for place in trace["at"]]


def test_names_from_records_are_text_on_every_page(session: Session, records: list[Record]) -> None:
    record = records[-1]
    for path in ("index.html", f"runs/{record.run_id}.html", f"groups/{record.comparability_sha256[:12]}.html"):
        with session.page(path) as page:
            if path == "index.html":
                ready(page)
                after(
                    page,
                    lambda page=page: page.evaluate("location.hash = 'device=' + encodeURIComponent('<b>GPU</b>')"),
                )
                assert len(rows_of(page)) == 1
            assert HOSTILE in page.inner_text("main")
            assert page.evaluate("window.hacked") is None
            assert page.locator("img, main b").count() == 0


def _path(kind: str, records: list[Record]) -> str:
    """Pages of each kind, with little enough on them to be judged quickly."""
    record = next(r for r in records if r.method == "ngram" and r.spec["temperature"])
    few = {
        "index": "index.html#load=closed%3A1&temperature=0&drafter=ngram&drafter=vanilla",
        "charts": "charts.html#drafter=ngram",
        "run": f"runs/{record.run_id}.html",
        "group": f"groups/{record.comparability_sha256[:12]}.html",
    }
    return few.get(kind, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing_serious(kind: str, session: Session, records: list[Record]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with session.page(_path(kind, records), color_scheme="dark" if kind == "run" else "light") as page:
        if kind in ("index", "charts"):
            page.wait_for_selector("[data-drawn]")
        drawn = {"exclude": [[".plot"]]}  # an image to assistive technology; its numbers are in the tables
        found = (
            Axe().run(page, context=drawn, options={"preload": False}).response["violations"]
        )  # it may fetch nothing
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert [(v["id"], v["nodes"][0]["html"]) for v in serious] == []


def test_without_scripts_the_ranking_is_a_plain_table(session: Session, records: list[Record]) -> None:
    with session.page("index.html", java_script_enabled=False) as page:
        found = page.locator("#board table")
        assert found.count() == 1
        group = board.groups(records)[0]
        assert found.locator("tbody tr").count() == len(group.rows)
        text = found.inner_text()
        best = group.rows[0].record.find("speed_up")
        assert numbers.bounded(best).split(" ")[0] in text
        assert "Not ranked: " in text
        assert page.locator("#groups tbody tr").count() == len(board.groups(records))
        assert not page.is_visible("#filters")


def test_a_phone_scrolls_tables_and_not_the_page(session: Session, records: list[Record]) -> None:
    for kind in ("index", "run"):
        with session.page(_path(kind, records), viewport={"width": 380, "height": 800}) as page:
            if kind == "index":
                ready(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_the_theme_button_wins_over_the_system(session: Session) -> None:
    with session.page("data.html", color_scheme="dark") as page:
        shade = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(shade)
        page.click("#theme")
        assert page.inner_text("#theme") == "Theme: light"
        assert page.evaluate(shade) != dark


def test_no_page_asked_the_network_or_complained(session: Session) -> None:
    assert len(session.requests) > 100  # the pages of the tests before this one
    assert session.strangers == []
    assert session.complaints == []
