"""Proof that answers may be trained on: no evaluation prompt among them, no held-out prompt among the trained ones.

Parts that were written apart may hold nearly the same prompt on both sides of the split. Where their features are
named, the trained one is left out there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import TrainDataError
from specbench.resolve import silent_step
from specbench.session import Step
from specbench.train.dedup import NearDuplicates, prompt_text, text_hash
from specbench.train.manifest import read_manifest
from specbench.train.progress import Screen, Silence
from specbench.train.shards import ANSWERS_VERSION, check_file, read_token_shard
from specbench.train.sources import Evaluation, load_evaluation
from specbench.train.store import leave_out
from specbench.types import Prompt

_COLUMNS = ("conversation", "domain", "system", "turns", "prompt_hash", "heldout", "temperature", "loss_mask")


@dataclass(frozen=True, slots=True)
class Findings:
    """What a check saw. ``faults`` is empty when the data may be trained on."""

    conversations: int
    heldout: int
    target_tokens: int
    greedy_tokens: int
    by_domain: dict[str, int]
    faults: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # conversations, and why


def check_answers(
    folders: Sequence[Path],
    *,
    features: Sequence[Path] = (),
    evaluation: Sequence[str] | None = None,
    screen: Screen | None = None,
    step: Step = silent_step,
) -> Findings:
    """Read all shards again and compare every prompt with the evaluation tasks and with the other side of the split.

    ``features`` are the stores of ``folders``, in their order: what repeats a held-out prompt is left out there.

    Errors: TrainDataError when a shard is absent or damaged, or the features are not those of the answers; TaskError
    when a named evaluation task cannot be had.
    """
    if features and len(features) != len(folders):
        raise TrainDataError(f"{len(folders)} folders of answers and {len(features)} of features; name one for each")
    screen = screen or Silence()
    with step("reading evaluation tasks"):
        kept_out = load_evaluation(evaluation)
    with step("reading answers"):
        rows = [row for folder in folders for row in _rows(folder)]
    faults = _unknown_tasks(folders, kept_out)
    faults += _from_evaluation(rows, kept_out)
    faults += _wrong_hashes(rows)
    repeats = _across_split(rows)
    for folder, store in zip(folders, features):
        mine = [row for row in rows if row["folder"] == str(folder)]
        numbers = [number for number, row in enumerate(mine) if (row["folder"], row["conversation"]) in repeats]
        leave_out(store, numbers, rows=len(mine))
    domains: Counter[str] = Counter()
    for row in rows:
        domains[row["domain"]] += row["target_tokens"]
    told = tuple(repeats.values())
    kept = ", ".join(f"{name} ({task['prompts']})" for name, task in kept_out.tasks.items())
    screen.say(f"compared with the prompts of {kept}")
    return Findings(
        conversations=len({(row["folder"], row["conversation"]) for row in rows}),
        heldout=len({(row["folder"], row["conversation"]) for row in rows if row["heldout"]}),
        target_tokens=sum(row["target_tokens"] for row in rows),
        greedy_tokens=sum(row["target_tokens"] for row in rows if row["temperature"] == 0),
        by_domain=dict(sorted(domains.items())),
        faults=(*faults, *(() if features else told)),
        left_out=told if features else (),
    )


def _rows(folder: Path) -> list[dict[str, Any]]:
    found = []
    for entry in read_manifest(folder, kind="answers", version=ANSWERS_VERSION)["shards"]:
        check_file(folder, entry, command="prepare")
        for row in read_token_shard(folder / entry["name"], columns=_COLUMNS).to_pylist():
            row["target_tokens"] = sum(row.pop("loss_mask"))
            found.append({**row, "folder": str(folder)})
    return found


def _prompt(row: dict[str, Any]) -> Prompt:
    return Prompt(row["conversation"], "answers", row["domain"], tuple(row["turns"]), system=row["system"])


def _unknown_tasks(folders: Sequence[Path], kept_out: Evaluation) -> list[str]:
    """Tasks that the answers were kept apart from and that cannot be compared with here."""
    told: set[str] = set()
    for folder in folders:
        told |= set(read_manifest(folder, kind="answers", version=ANSWERS_VERSION)["evaluation"]["tasks"])
    missing = sorted((told & set(kept_out.absent)) - set(kept_out.tasks))
    return [f"evaluation task {name} cannot be had here, so it was not compared with" for name in missing]


def _from_evaluation(rows: Sequence[dict[str, Any]], kept_out: Evaluation) -> list[str]:
    faults = []
    for row in rows:
        for turn in row["turns"]:
            match = kept_out.index.find(turn)
            if match is not None:
                faults.append(f"{row['conversation']} is {match.kind} as {match.prompt} of {match.task}")
                break
    return faults


def _wrong_hashes(rows: Sequence[dict[str, Any]]) -> list[str]:
    wrong = [row for row in rows if text_hash(prompt_text(_prompt(row))) != row["prompt_hash"]]
    return [f"{row['conversation']}: its prompt's hash is that of another text" for row in wrong]


def _across_split(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Trained conversations, by folder and name, that repeat or nearly repeat a held-out prompt; what they repeat."""
    heldout = NearDuplicates()
    names: list[str] = []
    hashes = {row["prompt_hash"] for row in rows if row["heldout"]}
    for row in rows:
        if row["heldout"] and heldout.add(prompt_text(_prompt(row))) is None:
            names.append(row["conversation"])
    repeats = {}
    for row in rows:
        if row["heldout"]:
            continue
        found = heldout.find(prompt_text(_prompt(row)))
        same = row["prompt_hash"] in hashes
        if same or found is not None:
            name = row["conversation"]
            repeats[row["folder"], name] = (
                f"{name}: its prompt is on both sides of the split"
                if same or found is None
                else f"{name} nearly repeats {names[found]}, which is held out"
            )
    return repeats
