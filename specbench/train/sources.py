"""Prompts for training: from tasks, prompt files and data sets; what must not be among them; what is seen twice."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from specbench import registry
from specbench.errors import ConfigError, TaskError
from specbench.session import load_task
from specbench.train.dedup import EvaluationIndex, NearDuplicates, prompt_text
from specbench.train.manifest import write_durably
from specbench.train.spec import PrepareSpec
from specbench.types import Prompt

HUB_FILE = "hub-prompts.jsonl"
_CONVERSATION = ("turns", "conversations", "messages", "prompt", "question", "instruction", "system")


@dataclass(slots=True)
class Sieve:
    """Lets a prompt through once, and never one that an evaluation task holds. Counts what it refuses, and why."""

    evaluation: EvaluationIndex
    seen: NearDuplicates = field(default_factory=NearDuplicates)
    refused: Counter[str] = field(default_factory=Counter)

    def admits(self, prompt: Prompt) -> bool:
        """Whether the prompt is new and foreign to the evaluation; then it counts as seen."""
        for turn in prompt.turns:
            found = self.evaluation.find(turn)
            if found is not None:
                self.refused[f"{found.kind} as in {found.task}"] += 1
                return False
        if self.seen.add(prompt_text(prompt)) is not None:
            self.refused["near copy of another prompt"] += 1
            return False
        return True


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is kept out of training: ``tasks`` by name with version and count; ``absent`` ones could not be had."""

    index: EvaluationIndex
    tasks: dict[str, dict[str, Any]]
    absent: dict[str, str]

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {"tasks": self.tasks, "absent": sorted(self.absent)}


def load_evaluation(names: Sequence[str] | None) -> Evaluation:
    """The evaluation prompts of the named tasks or files; None: of every registered task that can be had.

    Errors: TaskError, UnknownNameError when a named one cannot be had.
    """
    wanted = [n for n in registry.names("tasks") if n != "file"] if names is None else list(names)
    index = EvaluationIndex()
    tasks: dict[str, dict[str, Any]] = {}
    absent: dict[str, str] = {}
    for name in wanted:
        try:
            task = load_task(name)
            tasks[task.name] = {"version": task.version, "prompts": index.add(task.name, task.prompts())}
        except TaskError as error:
            if names is not None:
                raise
            absent[name] = str(error)
    return Evaluation(index, tasks, absent)


def load_prompts(spec: PrepareSpec, *, folder: Path) -> tuple[list[Prompt], dict[str, str]]:
    """Prompts of the tasks, files and data set of a run, mixed, and the version of each source.

    Rows of a data set are copied to ``folder`` first, so that a resumed run reads the same. Errors: TaskError.
    """
    names = [*spec.tasks]
    if spec.hub is not None:
        path = folder / HUB_FILE
        if not path.is_file():
            copy_rows(spec.hub, split=spec.hub_split, limit=spec.num_prompts, path=path)
        names.append(str(path))
    tasks = [load_task(name) for name in names]
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            raise ConfigError(f"two sources are called '{name}'; rename one of the files")
    columns = [task.prompts(limit=spec.num_prompts, seed=spec.seed) for task in tasks]
    mixed = [prompt for prompt in chain.from_iterable(zip_longest(*columns)) if prompt is not None]
    return mixed, {task.name: task.version for task in tasks}


def copy_rows(name: str, *, split: str, limit: int | None, path: Path) -> int:
    """Write the conversations of a data set (hub id or folder) as JSON lines; how many.

    Errors: TaskError when it cannot be had, has no such split, or holds no conversations.
    """
    try:
        rows = _stream(name, split)
        lines = list(_lines(rows, limit=limit))
        del rows  # with the reader's threads, which abort the process where they outlive Arrow (datasets issue 7566)
        gc.collect()
    except TaskError:
        raise
    except Exception as error:  # the data-set library raises whatever its readers and the network raise
        reason = " ".join(str(error).split())[:200]
        raise TaskError(
            f"data set '{name}': {type(error).__name__}: {reason}; give a folder with its files, or --prompts FILE"
        ) from error
    if not lines:
        raise TaskError(f"data set '{name}' has no rows with one of {', '.join(_CONVERSATION[:-1])}; give another")
    write_durably(path, "".join(lines).encode())
    return len(lines)


def _stream(name: str, split: str) -> Iterable[Mapping[str, Any]]:
    import datasets

    if Path(name).is_dir() and any((Path(name) / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
        found = datasets.load_from_disk(name)
        if not isinstance(found, datasets.Dataset):
            if split not in found:
                raise TaskError(f"data set '{name}' has no split '{split}'; it has {', '.join(map(str, found))}")
            found = found[split]
    else:
        found = datasets.load_dataset(name, split=split, streaming=True)
    rows: Iterable[Mapping[str, Any]] = found
    return rows


def _lines(rows: Iterable[Mapping[str, Any]], *, limit: int | None) -> Iterable[str]:
    count = 0
    for number, row in enumerate(rows):
        kept = {key: row[key] for key in _CONVERSATION if row.get(key) is not None}
        if not kept or list(kept) == ["system"]:
            continue
        if limit is not None and count >= limit:
            return
        count += 1
        yield json.dumps({"id": f"row-{number}", **kept}, ensure_ascii=True) + "\n"
