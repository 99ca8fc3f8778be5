"""Builds the site: static pages and data files that open from a disk, from records alone."""

from __future__ import annotations

import csv
import importlib.util
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import RecordError
from specbench.records import sla_result, store, tidy
from specbench.records.schema import Record
from specbench.records.sla_result import SlaResult
from specbench.report import board, series
from specbench_leaderboard import _pages, _shards

SOURCE = Path(__file__).parent / "site"
MARK = ".specbench-site"  # says that a folder was written by this builder, so that it may write it again


@dataclass(frozen=True, slots=True)
class Built:
    """What was written: the first page, how many of each kind, and why some records are not on the site."""

    index: Path
    records: int
    groups: int
    pages: int
    unreadable: tuple[str, ...]


def build(folder: Path, *, out: Path) -> Built:
    """Write the site of all records in ``folder`` and below into ``out``, replacing an earlier site there.

    Errors: RecordError when ``folder`` does not exist, or ``out`` holds something else or cannot be written.
    """
    files, unreadable = _read(folder)
    searches = _searches(folder, unreadable)
    records = sorted(files.values(), key=lambda record: (record.created, record.run_id))
    _prepare(out)
    groups, families = board.groups(records), series.families(records)
    board.place_sla(groups, searches)
    try:
        _copy_assets(out)
        _write_data(out, groups, families)
        _write_downloads(out, files)
        pages = 0
        for name, text in _all_pages(records, groups, searches, unreadable):
            path = out / name
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            pages += 1
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(f"cannot write {out}: {reason}; choose another folder or free some space") from error
    return Built(out / "index.html", len(records), len(groups), pages, tuple(unreadable))


PLUGIN = build


def _read(folder: Path) -> tuple[dict[Path, Record], list[str]]:
    """Every record once, by the first file that holds it, and why other files hold none."""
    found: dict[Path, Record] = {}
    unreadable = []
    seen: set[str] = set()
    for path in store.record_files(folder):
        try:
            record = store.read(path)
        except RecordError as error:
            unreadable.append(str(error).replace(f"{folder}/", ""))  # the folder is no business of the site's readers
            continue
        if record.run_id not in seen:
            seen.add(record.run_id)
            found[path] = record
    return found, unreadable


def _searches(folder: Path, unreadable: list[str]) -> list[SlaResult]:
    """Every search for SLA-bound throughput, the newest first; files that hold none are added to ``unreadable``."""
    found: dict[str, SlaResult] = {}
    for path in sorted(folder.rglob(f"{sla_result.PREFIX}*.json")):
        try:
            result = sla_result.read(path)
        except RecordError as error:
            unreadable.append(str(error).replace(f"{folder}/", ""))
            continue
        found[result.sla_id] = result
    return sorted(found.values(), key=lambda result: (result.created, result.sla_id), reverse=True)


def _prepare(out: Path) -> None:
    """An empty folder with the builder's mark; an earlier site is removed, anything else is left alone."""
    try:
        if out.is_dir() and any(out.iterdir()):
            if not (out / MARK).is_file():
                raise RecordError(f"{out} holds files that are no site of this tool; choose an empty or new folder")
            for path in out.iterdir():
                if path.name != MARK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in ("data", "runs", "groups", "metrics", "records", "downloads"):
            (out / name).mkdir(parents=True, exist_ok=True)
        (out / MARK).write_text("written by 'specbench leaderboard build'\n", encoding="ascii")
        (out / ".nojekyll").write_text("", encoding="ascii")
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(f"cannot write {out}: {reason}; choose another folder or free some space") from error


def _copy_assets(out: Path) -> None:
    for name in ("css", "js"):
        shutil.copytree(SOURCE / name, out / name)
    spec = importlib.util.find_spec("plotly")  # found, not imported: one of its files is all that is needed
    assert spec is not None
    assert spec.origin is not None
    shutil.copyfile(Path(spec.origin).parent / "package_data" / "plotly.min.js", out / "js" / "plotly.min.js")


def _write_data(out: Path, groups: Sequence[board.Group], families: Sequence[series.Family]) -> None:
    for shard in _shards.index_shards(groups, families):
        shard.write(out / "data")
    for group in groups:
        for shard in _shards.group_shards(group):
            shard.write(out / "data")
    for family in families:
        for shard in _shards.family_shards(family):
            shard.write(out / "data")


def _write_downloads(out: Path, files: Mapping[Path, Record]) -> None:
    """Every record as its own file and all in one, byte for byte; every estimate in one table."""
    with (out / "downloads" / "records.json").open("wb") as whole:
        for number, (path, record) in enumerate(files.items()):
            text = path.read_bytes()
            (out / "records" / f"{record.run_id}.json").write_bytes(text)
            whole.write((b",\n" if number else b"[\n") + text.strip())
        whole.write(b"\n]\n" if files else b"[]\n")
    table = out / "downloads" / "estimates.csv"
    with table.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=tidy.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(tidy.rows(list(files.values())))


def _all_pages(
    records: Sequence[Record],
    groups: Sequence[board.Group],
    searches: Sequence[SlaResult],
    unreadable: Sequence[str],
) -> Iterator[tuple[str, str]]:
    pages = _pages.Pages()
    yield "index.html", pages.ranking(groups)
    yield "charts.html", pages.charts(len(records))
    yield "sla.html", pages.sla(searches, {record.run_id for record in records})
    yield "data.html", pages.data(records, groups, unreadable)
    for group in groups:
        yield f"groups/{group.id}.html", pages.group(group)
    by_group = {row.record.run_id: (group, row) for group in groups for row in group.rows}
    same = _same_contestant(records)
    for record in records:
        group, row = by_group[record.run_id]
        others = [other for other in same[board.contestant_in_group(record)] if other.run_id != record.run_id]
        yield f"runs/{record.run_id}.html", pages.run(record, group, row, others)
    yield from pages.metrics({row.metric for record in records for row in record.estimates})


def _same_contestant(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(board.contestant_in_group(record), []).append(record)
    return found
