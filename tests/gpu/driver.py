"""Runs the sections in a child process, keeps what they find, and survives what they do to the device.

A section can hang in a driver's call or leave the device unusable for its process. So the sections run in a child;
one that stops answering is ended, and the sections that are left go on in a fresh child. Whatever a section wrote is in
``results.json`` and ``report.md`` as soon as it is written. Standard library only: it runs before the wheels are there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import findings, report, wheels
from tests.gpu.sections import DRY_END_S, DRY_TOTAL_S, GRACE_S, SECTIONS, TOTAL_S

ARCHIVE_BYTES = 14 * 2**20  # a file of results stays under 16 MB
MAX_ARCHIVES = 5  # with the results and the report at most eight files
CONFIGURATION_ERROR = 2
_POLL_S = 0.2


@dataclass(slots=True)
class Check:
    """One run of the check. ``state`` is a temporary folder in which the child leaves what it finds."""

    names: tuple[str, ...]
    out: Path
    state: Path
    dry: bool
    total_s: float = 0.0  # for everything
    started_s: float = field(default_factory=time.monotonic)
    environment: dict[str, str] = field(default_factory=dict)
    refused: bool = False  # the child said that this machine or request will not do
    _seen: float = 0.0

    def spent_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started_s

    @property
    def end_s(self) -> float:
        """Seconds after which what still runs is ended."""
        return DRY_END_S if self.dry else self.total_s + GRACE_S

    # ------------------------------------------------------------------------------------------ running

    def run(self) -> int:
        """All sections; 0 when every one ended well, 1 when one failed, 2 when nothing could be run."""
        waiting = list(self.names)
        while waiting and not self.refused:
            process = self._start(waiting)
            try:
                stopped = self._watch(process)
            except BaseException:
                _end(process)
                self._settle(waiting, "interrupted")
                self.write()
                raise
            if process.returncode == CONFIGURATION_ERROR and len(waiting) == len(self.names):
                self.refused = True
                break
            waiting = self._settle(waiting, stopped or f"the process ended with code {process.returncode}")
        self.write()
        if self.refused:
            return CONFIGURATION_ERROR
        return int(any(section["status"] != "ok" for section in self.collected()["sections"]))

    def _start(self, waiting: list[str]) -> subprocess.Popen[bytes]:
        (self.state / "current").unlink(missing_ok=True)
        command = [
            sys.executable, str(Path(__file__).parent), "--child", "--state", str(self.state),
            "--only", ",".join(waiting), "--left", f"{self.total_s - self.spent_s():.1f}",
            *(["--dry"] if self.dry else []),
        ]  # fmt: skip
        return subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL)

    def _watch(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait for the child, writing results as they come; why it was ended, None where it ended by itself."""
        current, since, patience = "", time.monotonic(), self._patience_s(None)
        while process.poll() is None:
            time.sleep(_POLL_S)
            now, (name, seconds) = time.monotonic(), _current(self.state)
            if name != current:
                current, since, patience = name, now, self._patience_s(seconds)
            if self._changed():
                self.write()
            if self.spent_s() > self.end_s:
                _end(process)
                return f"ended: the whole run took {self.spent_s():.0f} s"
            if now - since > patience:
                _end(process)
                return f"ended: it had not come to an end after {now - since:.0f} s"
        return None

    def _settle(self, waiting: list[str], reason: str) -> list[str]:
        """Mark what the ended child left unfinished; the sections that are still to be run."""
        current, _ = _current(self.state)
        rest = [name for name in waiting if not self._finished(name)]
        blamed = [current] if current in rest else []
        if not current and len(rest) == len(waiting):  # it never came to its first section: nor will another child
            blamed = rest
        for name in blamed:
            self._fail(name, reason, findings.read(self.state, name))
        rest = [name for name in rest if name not in blamed]
        if self.spent_s() < (self.end_s if self.dry else self.total_s):
            return rest
        for name in rest:
            self._fail(name, f"not run: {self.spent_s():.0f} s were spent before", None)
        return []

    def _patience_s(self, seconds: float | None) -> float:
        """How long a section of this budget, or without one the start of the child, may go on."""
        if self.dry:
            return self.end_s
        return 60.0 if seconds is None else 1.5 * seconds + GRACE_S

    def _finished(self, name: str) -> bool:
        found = findings.read(self.state, name)
        return found is not None and found["status"] != "running"

    def _fail(self, name: str, reason: str, found: dict[str, Any] | None) -> None:
        document = {**_empty(name), **(found or {}), "status": "failed", "error": reason}
        (self.state / f"{name}.json").write_text(json.dumps(document, indent=1), encoding="utf-8")

    # ------------------------------------------------------------------------------------------ results

    def _changed(self) -> bool:
        newest = max((path.stat().st_mtime for path in self.state.glob("*.json")), default=0.0)
        changed, self._seen = newest != self._seen, newest
        return changed

    def collected(self) -> dict[str, Any]:
        """Everything so far."""
        about = {section.name: section.about for section in SECTIONS}
        sections = []
        for name in self.names:
            found = findings.read(self.state, name)
            if found is not None:
                sections.append({**found, "about": about[name]})
        seconds = round(time.monotonic() - self.started_s, 1)
        return {
            "format": "specbench-gpu-check",
            "version": 1,
            "dry": self.dry,
            "seconds": seconds,
            "sections": sections,
        }

    def write(self) -> None:
        """``results.json``, ``report.md`` and the records, each replaced whole."""
        packed, left_out = archives(self.state / "records")
        results = self.collected() | {"records_left_out": left_out}
        _replace(self.out / "results.json", (json.dumps(results, indent=1) + "\n").encode())
        _replace(self.out / "report.md", report.to_markdown(results).encode())
        for name, data in packed:
            _replace(self.out / name, data)


def archives(folder: Path) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Complete records with their rounds in archives of at most `ARCHIVE_BYTES`, and the records that had no room."""
    groups: list[list[Path]] = []
    room = 0
    for record in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        files = [record, *folder.glob(f"{record.stem}.*.parquet")]
        size = sum(path.stat().st_size for path in files)
        if not groups or size > room:
            groups.append([])
            room = ARCHIVE_BYTES
        groups[-1] += files
        room -= size
    packed = [(f"records-{index + 1}.zip", _zip(files)) for index, files in enumerate(groups[:MAX_ARCHIVES])]
    return packed, [path.stem for files in groups[MAX_ARCHIVES:] for path in files if path.suffix == ".json"]


def _zip(files: list[Path]) -> bytes:
    with tempfile.TemporaryFile() as handle:
        with zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.name)
        handle.seek(0)
        return handle.read()


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def _current(state: Path) -> tuple[str, float | None]:
    """The section under way and its budget; no name between sections."""
    try:
        name, seconds = (state / "current").read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # there is none, or it is being written
        return "", None
    return name, float(seconds)


def _empty(name: str) -> dict[str, Any]:
    head = {"name": name, "status": "failed", "seconds": 0.0, "budget_s": 0.0, "error": None}
    return {**head, "tables": [], "aims": [], "notes": [], "cut": [], "facts": {}}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(
    names: tuple[str, ...], *, out: Path, dry: bool, wheel_folder: Path | None, seconds: float | None = None
) -> int:
    """Install the wheels where there are any, run the sections, say where the results lie."""
    total_s = seconds or (DRY_TOTAL_S if dry else TOTAL_S)
    started_s = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("records-*.zip"), out / "results.json", out / "report.md"):
        old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="specbench-gpu-") as held:
        try:
            environment = _environment(Path(held), wheel_folder, dry=dry)
        except wheels.WheelError as error:
            print(f"error: {error}", file=sys.stderr)
            return CONFIGURATION_ERROR
        state = Path(held) / "state"
        state.mkdir()
        code = Check(names, out, state, dry, total_s, started_s, environment).run()
    if code != CONFIGURATION_ERROR:
        print(f"\n{(out / 'report.md').read_text(encoding='utf-8')}\nresults: {out}", flush=True)
    return code


def _environment(held: Path, wheel_folder: Path | None, *, dry: bool) -> dict[str, str]:
    """Of the child. Errors: WheelError when something that it imports is still missing."""
    site = held / "site"
    if wheel_folder is not None:
        count = wheels.install(wheel_folder, into=site)
        print(f"{count} wheels installed into a temporary folder", flush=True)
        sys.path.insert(0, str(site))
    lacking = wheels.missing()
    if lacking:
        raise wheels.WheelError(f"this interpreter lacks {', '.join(lacking)}; give wheels of them: WHEELS=DIR")
    # the wheels first, then what the caller gave, then the support modules of the tests
    places = (str(site), os.environ.get("PYTHONPATH"), str(Path(__file__).parent.parent))
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TQDM_DISABLE": "1",
        "TMPDIR": str(held),
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "SPECBENCH_HOME": str(held / "home"),
        "TRITON_INTERPRET": "1" if dry else "0",  # said before the tests' support modules ask for the interpreter
    }
