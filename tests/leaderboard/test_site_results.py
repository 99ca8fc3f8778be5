"""The site of the results that come with the repository: every number on its pages is a record's."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from specbench_leaderboard.build import Built, build
from support_browser import Session, browser_session, rows_of, unfold
from support_golden import run_page_holds, table_holds

from specbench.records import sla_result, store, tidy
from specbench.records.schema import EstimateRow, Record

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    found, broken = store.scan(RESULTS)
    assert not broken
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(RESULTS, out=tmp_path_factory.mktemp("results") / "site")


@pytest.fixture(scope="module")
def session(site: Built) -> Iterator[Session]:
    with browser_session(site.index.parent) as found:
        yield found


def searched() -> dict[str, list[EstimateRow]]:
    """For each run that a search for SLA-bound throughput ended at, what the search found."""
    found: dict[str, list[EstimateRow]] = {}
    for path in RESULTS.rglob(f"{sla_result.PREFIX}*.json"):
        result = sla_result.read(path)
        probes = {(probe.method, probe.load): probe for probe in result.probes}
        for search in result.searches:
            if search.throughput is not None and search.best is not None:
                for run in probes[search.method, search.best].runs:
                    found.setdefault(run.run_id, []).append(search.throughput)
    return found


def test_every_record_has_its_page_with_every_estimate(site: Built, records: list[Record]) -> None:
    assert site.unreadable == ()
    assert site.records == len(records)
    for record in records:
        run_page_holds(site.index.parent, record)


def test_the_table_of_all_data_is_the_export_of_the_records(site: Built, records: list[Record]) -> None:
    with (site.index.parent / "downloads" / "estimates.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    assert sorted(table) == sorted(csv.reader(tidy.csv_lines(records)))


def test_every_number_of_the_ranking_is_the_record_s(session: Session, records: list[Record]) -> None:
    by_id = {record.run_id: record for record in records}
    domains = {row.scope["domain"] for record in records for row in record.estimates if set(row.scope) == {"domain"}}
    shown: set[str] = set()
    for domain in ("", *sorted(domains)):
        with session.page(f"index.html{f'#domain={domain}' if domain else ''}") as page:
            unfold(page)
            rows = rows_of(page)
        assert table_holds(rows, by_id, domain=domain, searched=searched()) > 0
        shown |= {row["run"] for row in rows}
    assert shown == set(by_id)
    assert not session.complaints
    assert not session.strangers
