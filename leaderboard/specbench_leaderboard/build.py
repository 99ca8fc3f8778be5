"""Builds the site: static pages and data files that open from a disk, from records alone."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specbench.errors import RecordError
from specbench.records import sla_result, store, tidy
from specbench.records.schema import Record
from specbench.records.sla_result import SlaResult
from specbench.report import board, series
from specbench_leaderboard import _pages, _shards
from specbench_leaderboard._parallel import run_all, without_collection

SOURCE = Path(__file__).parent / "site"
_FEW = 200  # more records are worth several processes
_STRIDES = 4
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
    with without_collection():
        return _build(folder, out)


PLUGIN = build


def _build(folder: Path, out: Path) -> Built:
    files, unreadable = _read(folder)
    searches = _searches(folder, unreadable)
    records = sorted(files.values(), key=lambda record: (record.created, record.run_id))
    _prepare(out)
    groups = board.groups(records)
    board.place_sla(groups, searches)
    try:
        _copy_assets(out)
        site = _Site(out, records, groups, searches, tuple(unreadable))
        strides = [partial(site.write_runs, start) for start in range(_STRIDES)]
        jobs: list[Callable[[], int]] = [partial(site.write_downloads, files), *strides, site.write_pages]
        jobs.append(site.write_data)
        pages = run_all(jobs, parallel=len(records) > _FEW)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(f"cannot write {out}: {reason}; choose another folder or free some space") from error
    return Built(out / "index.html", len(records), len(groups), pages, tuple(unreadable))


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


@dataclass(frozen=True, slots=True)
class _Site:
    """What is written where; each method returns how many pages it wrote."""

    out: Path
    records: Sequence[Record]
    groups: Sequence[board.Group]
    searches: Sequence[SlaResult]
    unreadable: tuple[str, ...]

    def write_data(self) -> int:
        """What scripts load."""
        families = series.families(self.records)
        for shard in _shards.index_shards(self.groups, families):
            shard.write(self.out / "data")
        for group in self.groups:
            for shard in _shards.group_shards(group):
                shard.write(self.out / "data")
        for family in families:
            for shard in _shards.family_shards(family):
                shard.write(self.out / "data")
        return 0

    def write_downloads(self, files: Mapping[Path, Record]) -> int:
        """Every record as its own file and all in one, byte for byte; every estimate in one table."""
        with (self.out / "downloads" / "records.json").open("wb") as whole:
            for number, (path, record) in enumerate(files.items()):
                text = path.read_bytes()
                (self.out / "records" / f"{record.run_id}.json").write_bytes(text)
                whole.write((b",\n" if number else b"[\n") + text.strip())
            whole.write(b"\n]\n" if files else b"[]\n")
        table = self.out / "downloads" / "estimates.csv"
        with table.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.writelines(tidy.csv_lines(files.values()))
        return 0

    def write_pages(self) -> int:
        """Every page but those of the runs."""
        pages = _pages.Pages()
        found = [
            ("index.html", pages.ranking(self.groups)),
            ("charts.html", pages.charts(len(self.records))),
            ("sla.html", pages.sla(self.searches, {record.run_id for record in self.records})),
            ("data.html", pages.data(self.records, self.groups, self.unreadable)),
            *((f"groups/{group.id}.html", pages.group(group)) for group in self.groups),
            *pages.metrics({row.metric for record in self.records for row in record.estimates}),
        ]
        for name, text in found:
            self._write(name, text)
        return len(found)

    def write_runs(self, start: int) -> int:
        """The pages of every so many runs, from the one numbered ``start``."""
        pages = _pages.Pages()
        rows = [(group, row) for group in self.groups for row in group.rows]
        same: dict[str, list[Record]] = {}
        for _, row in rows:
            same.setdefault(row.contestant, []).append(row.record)
        mine = rows[start::_STRIDES]
        for group, row in mine:
            others = [other for other in same[row.contestant] if other.run_id != row.record.run_id]
            self._write(f"runs/{row.record.run_id}.html", pages.run(row.record, group, row, others))
        return len(mine)

    def _write(self, name: str, text: str) -> None:
        (self.out / name).write_text(text, encoding="utf-8", errors="backslashreplace")
