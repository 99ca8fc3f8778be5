"""Ranking inside comparability groups only, and a reason for every row that holds no place."""

from __future__ import annotations

import pytest
from support_confidence import confident_trace
from support_records import save_run
from support_site import BUSY, cell, sweep
from support_traces import plain_trace, simulate_trace

from specbench.metrics._all import compute_all
from specbench.records import keys
from specbench.records.schema import Record
from specbench.report import board, glossary, series

SPEED_UP = next(column for column in board.COLUMNS if column.key == "speed_up")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return sweep()


def test_rows_of_a_group_agree_on_the_whole_key_and_groups_differ(records: list[Record]) -> None:
    groups = board.groups(records)
    assert sum(len(group.rows) for group in groups) == len(records)
    for group in groups:
        for row in group.rows:
            assert keys.differences(group.key, row.record.comparability, timings=True) == []
        near = next(other for other in groups if other.id == group.nearest)
        assert group.differences == keys.differences(group.key, near.key, timings=True) != []


def test_places_follow_the_values_and_only_rankable_rows_hold_one(records: list[Record]) -> None:
    for group in board.groups(records):
        for column in board.COLUMNS:
            for scope in ((), (("domain", "math"),)):
                cells = [(row, row.cells.get(scope, {}).get(column.key)) for row in group.rows]
                placed = [(c.rank, -c.value) for _, c in cells if c is not None and c.rank is not None]
                assert placed == [] or column.ranks
                assert [value for _, value in sorted(placed)] == sorted(value for _, value in placed)
                assert all(row.rankable for row, c in cells if c is not None and c.rank is not None)


def test_rows_that_cannot_be_ranked_are_kept_with_their_reasons(records: list[Record]) -> None:
    found = {row.record.run_id: row for group in board.groups(records) for row in group.rows}
    for record in records:
        row = found[record.run_id]
        assert set(keys.obstacles(record)) <= set(row.reasons)
        assert row.rankable or board.why_unplaced(row, SPEED_UP, ())
    plain = next(row for row in found.values() if row.record.method == "vanilla" and row.rankable)
    assert board.why_unplaced(plain, SPEED_UP, ()) == board.NO_CONTROL


def test_equal_values_share_a_place() -> None:
    one, two = cell("ngram", k=3, drafter="a"), cell("ngram", k=3, drafter="b")
    last = cell("ngram", k=1)
    (group,) = board.groups([one, two, last])
    places = {row.record.run_id: row.cells[()]["tau"].rank for row in group.rows}
    assert [places[record.run_id] for record in (one, two, last)] == [1, 1, 3]


def test_of_repeats_the_newest_that_may_be_ranked_is() -> None:
    old = cell("ngram", created="2026-01-01T00:00:00Z", seed=1)
    new = cell("ngram", created="2026-01-02T00:00:00Z", seed=2)
    broken = cell("ngram", created="2026-01-03T00:00:00Z", seed=3, outcome="inconclusive")
    (group,) = board.groups([old, new, broken])
    assert [row.record.run_id for row in group.ranked] == [new.run_id]
    reasons = {row.record.run_id: row.reasons for row in group.rows}
    assert reasons[old.run_id] == [f"an earlier run of the same contestant; {new.run_id} is the newest"]
    assert reasons[broken.run_id] == ["the losslessness verdict is inconclusive"]


def test_a_run_on_a_busy_machine_is_ranked_by_its_counts_and_not_by_its_times() -> None:
    busy, idle = cell("eagle3", k=6, provenance={"git_sha": "f" * 40, "git_dirty": False, **BUSY}), cell("dspark")
    (group,) = board.groups([busy, idle])
    rows = {row.record.run_id: row for row in group.rows}
    why = "other processes used 1.0 of 2 processors: its times are not ranked"
    for column in (column for column in board.COLUMNS if column.ranks):
        assert (rows[busy.run_id].cells[()][column.key].rank is None) == column.timed
        if column.timed:
            assert rows[idle.run_id].cells[()][column.key].rank == 1
            assert board.why_unplaced(rows[busy.run_id], column, ()) == why
    assert [column.key for column in board.COLUMNS if column.ranks and not column.timed] == ["tau"]
    (family,) = series.families([busy, idle])
    assert [point.record.run_id for point in family.points if point.on_frontier] == [idle.run_id]
    assert [point.record.run_id for point in family.points if point.untimed] == [busy.run_id]


def test_of_repeats_one_on_an_idle_machine_is_ranked() -> None:
    idle = cell("ngram", created="2026-01-01T00:00:00Z", seed=1)
    made_by = {"git_sha": "f" * 40, "git_dirty": False, **BUSY}
    busy = cell("ngram", created="2026-01-02T00:00:00Z", seed=2, provenance=made_by)
    (group,) = board.groups([idle, busy])
    assert [row.record.run_id for row in group.ranked] == [idle.run_id]
    reasons = {row.record.run_id: row.reasons for row in group.rows}[busy.run_id]
    assert reasons == [f"{keys.timing_obstacles(busy)[0]}; {idle.run_id} of the same contestant is"]


def test_the_frontier_holds_what_no_ranked_run_beats_and_nothing_else(records: list[Record]) -> None:
    for family in series.families(records):
        usable = [
            p for p in family.points if not p.reasons and not p.untimed and {"user", "throughput"} <= set(p.values)
        ]
        for point in family.points:
            x, y = (point.values["user"].value, point.values["throughput"].value) if point in usable else (0.0, 0.0)
            beaten = any(
                o.values["user"].value >= x and o.values["throughput"].value >= y
                and (o.values["user"].value, o.values["throughput"].value) != (x, y)
                for o in usable
            )  # fmt: skip
            assert point.on_frontier == (point in usable and not beaten)


def test_charts_hold_the_positions_and_bins_of_a_real_trace(tmp_path) -> None:
    trace = confident_trace((1.5, 1.5, 1.5), rounds=30)
    record = save_run(tmp_path, trace)
    point = series.point_of(record)
    assert list(point.conditional) == [1, 2, 3]
    for k, bins in point.reliability.items():
        assert sum(one.count for one in bins) == record.find("ece", k=str(k)).n
        assert point.ece[k].value == record.find("ece", k=str(k)).value
        assert [one.forecast for one in bins] == sorted(one.forecast for one in bins)
    worst = max(point.ece.values(), key=lambda found: found.value)
    assert board.row_of(record).cells[()]["ece"].value == worst.value


def test_every_estimate_has_a_definition_and_the_glossary_names_every_group(tmp_path) -> None:
    trace = simulate_trace(0.8, gamma=3, rounds=200)
    plain = plain_trace(trace)
    named = {e.metric for e in compute_all(trace, baseline=plain)}
    named |= {e.metric for e in compute_all(confident_trace((1.0, 1.0), rounds=30))}
    named |= {"joules_per_token", "draft_vocabulary_coverage"}
    assert {name for name in named if glossary.group_of(name) is None} == set()
    entries = {entry.name: entry for entry in glossary.entries()}
    assert set(glossary.DEFINITIONS) == set(entries)
    for entry in entries.values():
        assert entry.texts
        assert entry.version
        assert all(text.endswith(".") for text in entry.estimates.values())
