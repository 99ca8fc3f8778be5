"""Tasks whose data is a public data set: a local copy, the package that carries it, or the hub.

``SPECBENCH_DATASETS`` names a folder that is looked at first. For task NAME with data set OWNER/REPO it may hold

- ``OWNER__REPO/``: what ``save_to_disk`` wrote, or a copy of the repository (parquet or JSON lines), or
- ``NAME.jsonl``: rows with ``turns``, or rows with the data set's own columns.
"""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from specbench.errors import TaskError
from specbench.types import Prompt
from specbench_tasks._files import parse, records
from specbench_tasks._prompts import content_hash, sample

PROBE_SECONDS = 4.0
TRUE_WORDS = frozenset({"1", "ON", "YES", "TRUE"})


@dataclass(frozen=True, slots=True)
class HubSource:
    """Where a data set is published. ``files`` are JSON-lines files of the repository, read in place of its splits;
    ``columns`` are those that the task reads.
    """

    repo: str
    split: str
    columns: tuple[str, ...]
    config: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data set. ``number`` counts from 0."""

    task: HubTask
    number: int
    values: Mapping[str, Any]

    def text(self, column: str) -> str:
        """A column that must be a non-empty string. Errors: TaskError."""
        value = self.values.get(column)
        if not isinstance(value, str) or not value.strip():
            raise self._error(column, "a non-empty string")
        return value

    def optional_text(self, column: str) -> str | None:
        """A column that may be missing or empty. Errors: TaskError when it is not a string."""
        value = self.values.get(column)
        if value is None or value == "":
            return None
        return self.text(column)

    def texts(self, column: str) -> tuple[str, ...]:
        """A column that must be a non-empty list of non-empty strings. Errors: TaskError."""
        value = self.values.get(column)
        if not isinstance(value, list) or not value or not all(isinstance(v, str) and v.strip() for v in value):
            raise self._error(column, "a non-empty list of strings")
        return tuple(value)

    def pick(self, *columns: str) -> dict[str, Any]:
        """The columns among these that the row has, for a prompt's reference."""
        return {column: self.values[column] for column in columns if self.values.get(column) is not None}

    def prompt(self, *turns: str, id: str | None = None, reference: Mapping[str, Any] | None = None) -> Prompt:
        """A prompt of this task; ``id`` defaults to the task's name and the row's number in the published split."""
        return Prompt(
            id=id if id is not None else f"{self.task.name}-{self.number}",
            task=self.task.name,
            domain=self.task.domain,
            turns=turns,
            reference=dict(reference or {}),
        )

    def _error(self, column: str, expected: str) -> TaskError:
        seen = "is missing" if column not in self.values else f"is {str(self.values[column])[:40]!r}"
        where = f"task '{self.task.name}': row {self.number} of {self.task.source.repo}"
        columns = ", ".join(map(str, self.values)) or "none"
        return TaskError(f"{where}: column '{column}' {seen}; expected {expected} (columns: {columns})")


@dataclass(frozen=True, slots=True)
class HubTask:
    """A published data set as a task. ``convert`` turns a row into a prompt in the field's usual wording; ``packaged``
    gives the rows of an installed package that carries the data, or None.
    """

    name: str
    domain: str
    source: HubSource
    convert: Callable[[Row], Prompt]
    packaged: Callable[[], Iterable[Mapping[str, Any]] | None] | None = None

    @property
    def version(self) -> str:
        """The wording's generation and the hash of the content; loads the data. Errors: TaskError."""
        return f"1-{content_hash(self._all())}"

    def prompts(self, *, limit: int | None = None, seed: int = 0) -> list[Prompt]:
        """At most ``limit`` prompts in the data set's order, a seeded sample if fewer than all. Errors: TaskError."""
        sample((), limit=limit, seed=seed)  # a bad limit is said before anything is downloaded
        return sample(self._all(), limit=limit, seed=seed)

    def _all(self) -> tuple[Prompt, ...]:
        return _load(self, os.environ.get("SPECBENCH_DATASETS") or None)


@lru_cache(maxsize=16)
def _load(task: HubTask, root: str | None) -> tuple[Prompt, ...]:
    prompts = _local(task, Path(root)) if root else None
    if prompts is None:
        rows = task.packaged() if task.packaged is not None else None
        prompts = _convert(task, rows) if rows is not None else _from_hub(task)
    return prompts


def _convert(task: HubTask, rows: Iterable[Mapping[str, Any]]) -> tuple[Prompt, ...]:
    prompts = tuple(task.convert(Row(task, number, values)) for number, values in enumerate(rows))
    if not prompts:
        raise TaskError(
            f"task '{task.name}': data set {task.source.repo} is empty; expected rows in '{task.source.split}'"
        )
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise TaskError(f"task '{task.name}': {task.source.repo} has id '{prompt.id}' twice; expected unique ids")
        seen.add(prompt.id)
    return prompts


# ----------------------------------------------------------------------------------------------------- local copies


def _local(task: HubTask, root: Path) -> tuple[Prompt, ...] | None:
    if not root.is_dir():
        raise TaskError(f"SPECBENCH_DATASETS is '{root}', which is not a folder; point it to a folder of data sets")
    folder = root / task.source.repo.replace("/", "__")
    if folder.is_dir():
        with _as_task_error(task, f"folder {folder}"):
            return _convert(task, _folder_rows(task, folder))
    for name in (task.name, task.name.replace("-", "_")):
        path = root / f"{name}.jsonl"
        if path.is_file():
            return _file_prompts(task, path)
    return None


def _file_prompts(task: HubTask, path: Path) -> tuple[Prompt, ...]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"task '{task.name}': {path} cannot be read: {error}; give a readable file") from None
    rows = [value for _, value in records(data, source=str(path))]
    # Rows that are already prompts stay as they are; wording a data set's own rows is this task's job.
    if rows and all(isinstance(row, Mapping) and "turns" not in row for row in rows):
        return _convert(task, rows)
    prompts, _ = parse(data, source=str(path), task=task.name, domain=task.domain)
    return tuple(prompts)


def _folder_rows(task: HubTask, folder: Path) -> Iterable[Mapping[str, Any]]:
    import datasets

    source = task.source
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        data = datasets.load_from_disk(str(folder))
        return data if isinstance(data, datasets.Dataset) else _split(task, data, folder)
    if source.files:
        return _json_rows(task, [str(folder / name) for name in source.files])
    if source.config is not None and (folder / source.config).is_dir():
        folder = folder / source.config
    return _split(task, datasets.load_dataset(str(folder)), folder)


def _split(task: HubTask, data: Mapping[str, Any], folder: Path) -> Iterable[Mapping[str, Any]]:
    if task.source.split not in data:
        have = ", ".join(map(str, data)) or "none"
        raise TaskError(
            f"task '{task.name}': {folder} has no split '{task.source.split}' (splits: {have}); "
            f"name its file {task.source.split}.parquet or {task.source.split}.jsonl"
        )
    rows: Iterable[Mapping[str, Any]] = data[task.source.split]
    return rows


def _json_rows(task: HubTask, paths: list[str]) -> Iterable[Mapping[str, Any]]:
    import datasets

    missing = [path for path in paths if not Path(path).is_file()]
    if missing:
        raise TaskError(f"task '{task.name}': {missing[0]} is missing; expected all of {', '.join(task.source.files)}")
    # Streamed, because the unit tests in some of these files weigh gigabytes and are never looked at.
    data = datasets.load_dataset("json", data_files=paths, split="train", streaming=True)
    rows: Iterable[Mapping[str, Any]] = data.select_columns(list(task.source.columns))
    return rows


# ------------------------------------------------------------------------------------------------------------ the hub


def _from_hub(task: HubTask) -> tuple[Prompt, ...]:
    offline = _why_offline()
    source = task.source
    with _forced_offline() if offline else nullcontext(), _as_task_error(task, f"data set {source.repo}", offline):
        if source.files:
            from huggingface_hub import hf_hub_download

            paths = [hf_hub_download(source.repo, name, repo_type="dataset") for name in source.files]
            return _convert(task, _json_rows(task, paths))
        import datasets

        return _convert(task, datasets.load_dataset(source.repo, name=source.config, split=source.split))


@contextmanager
def _as_task_error(task: HubTask, what: str, offline: str | None = None) -> Iterator[None]:
    try:
        yield
    except TaskError:
        raise
    # The data-set library raises whatever its readers, the file system and the network raise.
    except Exception as error:
        alternative = (
            f"use --task path/to/file.jsonl, or set SPECBENCH_DATASETS to a folder with {task.name}.jsonl "
            f"or {task.source.repo.replace('/', '__')}/"
        )
        if offline:
            raise TaskError(f"task '{task.name}': {what} is not cached and {offline}; {alternative}") from error
        reason = " ".join(str(error).split())[:200]
        raise TaskError(f"task '{task.name}': {what}: {type(error).__name__}: {reason}; {alternative}") from error


def _why_offline() -> str | None:
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in TRUE_WORDS:
            return f"{variable} is set"
    from huggingface_hub import constants

    return None if _reachable(constants.ENDPOINT) else "the hub cannot be reached"


@cache
def _reachable(endpoint: str) -> bool:
    """Whether ``endpoint`` answers within ``PROBE_SECONDS``, through the proxies of the environment."""
    return probe(endpoint, seconds=PROBE_SECONDS)


def probe(endpoint: str, *, seconds: float) -> bool:
    """Whether an HTTP endpoint answers anything within ``seconds``, name look-up included."""
    answered = threading.Event()

    def ask() -> None:
        try:
            request = urllib.request.Request(endpoint, method="HEAD")
            with urllib.request.urlopen(request, timeout=seconds):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()  # it answered, though not kindly
        except (OSError, ValueError):
            pass

    # A thread, because the name look-up knows no timeout; a daemon, so that it never holds up the exit.
    thread = threading.Thread(target=ask, daemon=True, name="specbench-hub-probe")
    thread.start()
    thread.join(seconds)
    return answered.is_set()


@contextmanager
def _forced_offline() -> Iterator[None]:
    """Caches only, no retries: both libraries read these flags at each call."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
