"""What a training leaves on disk so that it can be killed at any point and go on as if it had not been."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.errors import TrainDataError
from specbench.train.manifest import sync_folder, write_durably

CHECKPOINT, BEST, RECIPE, SUMMARY = "checkpoint.pt", "best.pt", "recipe.json", "summary.json"
VERSION = 2  # of both files; 2: the checkpoint holds the states of several optimisers


@dataclass(slots=True)
class State:
    """Where a training stands after ``step`` steps. ``best`` are step and value of the best evaluation so far."""

    step: int
    module: dict[str, Any]
    optimiser: dict[str, Any]
    random: torch.Tensor
    best_step: int | None = None
    best_value: float | None = None
    seconds: float = 0.0  # spent in steps, of all sessions
    predictions: float = 0.0
    anchors: float = 0.0
    flops: float = 0.0


def save_state(folder: Path, state: State) -> None:
    """Replace the checkpoint in one step; after the return it survives a power cut."""
    fields = {name: getattr(state, name) for name in State.__slots__}
    _replace(folder / CHECKPOINT, {"version": VERSION, **fields})


def load_state(folder: Path, *, device: str) -> State | None:
    """The checkpoint of an earlier session, None where there is none. Errors: TrainDataError for a damaged one."""
    found = _read(folder / CHECKPOINT, device=device)
    if found is None:
        return None
    if found.pop("version") == 1:
        found["optimiser"] = {"0": found["optimiser"]}
    found["random"] = found["random"].cpu()
    return State(**found)


def save_best(folder: Path, module: Mapping[str, Any], *, step: int, values: Mapping[str, Any]) -> None:
    """Keep the weights of the best evaluation so far, with what it measured."""
    _replace(folder / BEST, {"version": VERSION, "module": dict(module), "step": step, "values": dict(values)})


def load_best(folder: Path, *, device: str) -> dict[str, Any]:
    """``module``, ``step`` and ``values`` of the best evaluation. Errors: TrainDataError when there was none."""
    found = _read(folder / BEST, device=device)
    if found is None:
        raise TrainDataError(f"{folder} holds no {BEST}: no evaluation was reached; run `specbench train fit` on it")
    return found


def _replace(path: Path, document: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        torch.save(document, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def _read(path: Path, *, device: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # whatever a damaged archive makes the reader raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TrainDataError(f"{path} is damaged ({reason[:120]}); delete it and begin again") from error
    if not isinstance(found, dict) or found.get("version") not in range(1, VERSION + 1):
        raise TrainDataError(f"{path} was written by another version of this program; delete it and begin again")
    return found


class Curve:
    """A CSV file of one row a step, which a resumed session continues as if nothing had happened."""

    def __init__(self, path: Path, columns: Sequence[str], *, upto: int) -> None:
        """Keep the rows of steps up to ``upto``; later ones will be written again."""
        self._path, self._columns = path, ("step", *columns)
        kept = [row for row in read_curve(path) if int(row["step"]) <= upto]
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
        write_durably(path, text.getvalue().encode())
        self._file = path.open("a", encoding="utf-8", newline="")
        self._writer = csv.DictWriter(self._file, self._columns, lineterminator="\n")

    def add(self, step: int, values: Mapping[str, float | int | None]) -> None:
        """One row; a value that is not known stays empty."""
        row: dict[str, Any] = {"step": step}
        row |= {name: "" if values.get(name) is None else repr(values[name]) for name in self._columns[1:]}
        self._writer.writerow(row)

    def flush(self) -> None:
        """Everything added so far is in the file."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        self._file.close()


def read_curve(path: Path) -> list[dict[str, str]]:
    """The whole rows of a curve file; a row that a kill cut short is left out. Empty where there is no file."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(whole)))
    return [row for row in rows if row["step"].isdecimal() and None not in row.values()]
