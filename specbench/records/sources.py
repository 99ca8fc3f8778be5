"""Records by what a user names: files, run ids, folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import RecordError
from specbench.records import store
from specbench.records.schema import Record


@dataclass(frozen=True, slots=True)
class Collected:
    """Records by time of creation, each run once; the files that they came from; what a folder held besides."""

    records: tuple[Record, ...]
    files: tuple[Path, ...]
    broken: tuple[RecordError, ...]


def collect(names: Sequence[str], *, folder: Path) -> Collected:
    """The records of files, of folders and what is below them, and of run ids (or their beginnings) in ``folder``.

    Without names: everything in ``folder``. Errors: RecordError for a name that leads nowhere, a named file that
    cannot be read, or where nothing is left; files in folders that cannot be read are in ``broken``.
    """
    found: dict[str, Record] = {}
    files: list[Path] = []
    broken: list[RecordError] = []
    for name in names or [str(folder)]:
        inside = Path(name).is_dir() or not names
        for path in store.record_files(Path(name)) if inside else [_file(name, folder)]:
            files.append(path)
            try:
                record = store.read(path)
            except RecordError as error:
                if not inside:
                    raise
                broken.append(error)
                continue
            found.setdefault(record.run_id, record)
    if not found:
        unread = f", {len(broken)} that cannot be read: {broken[0]}" if broken else ""
        where = ", ".join(names) or folder
        raise RecordError(f"no records in {where}{unread}; give a folder that 'specbench run' wrote")
    ordered = sorted(found.values(), key=lambda record: (record.created, record.run_id))
    return Collected(tuple(ordered), tuple(files), tuple(broken))


def _file(name: str, folder: Path) -> Path:
    given = Path(name)
    if not given.exists() and (given.parent != Path(".") or not folder.is_dir()):
        raise RecordError(f"cannot read {name}: no such folder or file, and no run id in {folder}; check the path")
    return given if given.suffix == ".json" or given.is_file() else store.find(folder, name)
