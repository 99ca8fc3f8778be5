"""When two rows may be ranked together, and in words why not (metrics.md, "Comparability key")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from specbench.errors import RecordError
from specbench.records.schema import Record, digest


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Rendering(_Strict):
    """How prompts became token ids. Hashes are of content; ``turns`` counts user turns over all prompts."""

    dataset: str
    template: str
    thinking: str
    turns: int


class SamplingKey(_Strict):
    """How tokens are drawn."""

    temperature: float
    top_p: float
    top_k: int | None


class PromptSetKey(_Strict):
    """Which prompts: a hash of the ids as a set, one of their order, and how many."""

    ids: str
    order: str
    count: int


class TimingKey(_Strict):
    """What must agree beyond the rest before times are compared."""

    hardware: str
    kv_budget_bytes: int | None
    row_limit: int
    threads: int
    torch: str
    driver: str | None
    graphs: bool = False  # steps in fixed shapes, captured on a CUDA device
    kernels: str | None = None  # on a CUDA device: the kernels of its operations


class ComparabilityKey(_Strict):
    """Rows with equal keys may be ranked together; ``timing`` matters only where times are ranked."""

    target_weights: str
    rendering: Rendering
    sampling: SamplingKey
    acceptance_rule: str
    draft_sampling: str
    gamma_means: str = "drafts"
    prompt_set: PromptSetKey
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    ignore_eos: bool
    dtype: str
    engine: str
    load: str
    metrics_version: str
    synthetic_acceptance: bool = False
    timing: TimingKey

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, as kept in a record. Older keys have no ``graphs`` and ``kernels``: only where used."""
        plain = self.model_dump(mode="json")
        for name in ("graphs", "kernels"):
            if not plain["timing"][name]:
                del plain["timing"][name]
        return plain

    def sha256(self) -> str:
        """Hash of the whole key."""
        return digest(self.as_dict())


_WORDS = {
    "target_weights": "target weights",
    "rendering.dataset": "dataset content",
    "rendering.template": "chat template",
    "rendering.thinking": "thinking mode",
    "rendering.turns": "turns",
    "sampling.temperature": "temperature",
    "sampling.top_p": "top-p",
    "sampling.top_k": "top-k",
    "acceptance_rule": "acceptance rule",
    "draft_sampling": "draft sampling",
    "gamma_means": "meaning of gamma",
    "prompt_set.ids": "prompt ids",
    "prompt_set.order": "prompt order",
    "prompt_set.count": "number of prompts",
    "prompt_set.tasks": "tasks",
    "max_new_tokens": "max new tokens",
    "stop_ids": "stop ids",
    "ignore_eos": "ignore-eos",
    "dtype": "dtype",
    "engine": "engine",
    "load": "load",
    "metrics_version": "metrics version",
    "synthetic_acceptance": "synthetic acceptance",
    "timing.hardware": "hardware",
    "timing.kv_budget_bytes": "KV budget",
    "timing.row_limit": "row limit",
    "timing.threads": "threads",
    "timing.torch": "torch version",
    "timing.driver": "driver version",
    "timing.graphs": "steps in fixed shapes",
    "timing.kernels": "kernels",
}


def build_key(fields: Mapping[str, Any]) -> ComparabilityKey:
    """The key from a mapping with exactly the fields of `ComparabilityKey`.

    Errors: RecordError naming the first field that is missing, unknown or malformed.
    """
    try:
        return ComparabilityKey.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise RecordError(f"comparability key: field '{name}': {first['msg']}; give exactly its fields") from error


def prompt_set_key(ids: Sequence[str]) -> PromptSetKey:
    """The key of prompts run in this order."""
    return PromptSetKey(ids=digest(sorted(ids)), order=digest(list(ids)), count=len(ids))


def dataset_sha256(rows: Iterable[tuple[str, object]]) -> str:
    """Hash of (prompt id, its content as JSON values) in order: one changed row changes it."""
    return digest([[name, content] for name, content in rows])


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in value.items():
        if isinstance(part, Mapping):
            found.update(_flat(part, f"{prefix}{name}."))
        else:
            found[prefix + name] = part
    return found


def _shown(value: object) -> str:
    text = "none" if value is None else str(value)
    hashed = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    return text[:12] if hashed else text


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, timings: bool) -> list[str]:
    """What two keys (as kept in records) disagree on, one phrase each; ``timings`` includes the machine's part."""
    left, right = _flat(ours), _flat(theirs)
    names = [*_WORDS, *sorted((set(left) | set(right)) - set(_WORDS))]
    found = []
    for name in names:
        if name.startswith("timing.") and not timings:
            continue
        one, other = left.get(name), right.get(name)
        if one != other:
            found.append(f"{_WORDS.get(name, name)}: {_shown(one)} against {_shown(other)}")
    return found


def row_id(record: Record) -> str:
    """Address of what a row stands for: its key, method, draft length and drafter. Repeats of a cell share it."""
    parts = [record.comparability, record.method, record.draft_length, _weights(record), record.spec]
    return digest(parts)[:16]


def row_differences(ours: Record, theirs: Record) -> list[str]:
    """Why two rows have different ids, one phrase each; empty where their ids are equal."""
    found = differences(ours.comparability, theirs.comparability, timings=True)
    for word, one, other in (
        ("method", ours.method, theirs.method),
        ("draft length", ours.draft_length, theirs.draft_length),
        ("drafter weights", _weights(ours), _weights(theirs)),
    ):
        if one != other:
            found.append(f"{word}: {_shown(one)} against {_shown(other)}")
    left, right = _flat(ours.spec), _flat(theirs.spec)
    for name in sorted(set(left) | set(right)):
        if left.get(name) != right.get(name):
            found.append(f"spec {name}: {_shown(left.get(name))} against {_shown(right.get(name))}")
    return found


def _weights(record: Record) -> str | None:
    return record.drafter.sha256 if record.drafter is not None else None


def obstacles(record: Record) -> list[str]:
    """Why the row may not be ranked at all, one phrase each; empty when it may."""
    found = []
    if record.status != "ok":
        found.append(f"the run is {record.status}")
    if record.comparability.get("synthetic_acceptance"):
        found.append("acceptance is synthetic")
    if record.method != "vanilla":  # plain decoding is the control itself
        outcome = record.verdict.outcome if record.verdict is not None else "absent"
        if outcome != "pass":
            found.append(f"the losslessness verdict is {outcome}")
    found += [str(reason) for reason in record.provenance.get("not_rankable_because", [])]
    if "git_sha" not in record.provenance or record.provenance["git_sha"] == "unknown":
        found.append("the code's commit is unknown")
    found += [f"{alarm.name}: {alarm.message}" for alarm in record.alarms if alarm.name == "invalid-row"]
    return list(dict.fromkeys(found))


def timing_obstacles(record: Record) -> list[str]:
    """Why its times may not be ranked although its counts may: the machine had other work when the run began."""
    load = record.provenance.get("load") or {}
    if "busy" not in load:
        return []
    others, cores = load.get("others_cores"), (record.provenance.get("cpu") or {}).get("logical_cores")
    used = (
        "other processes kept the machine busy"
        if others is None or cores is None
        else (f"other processes used {others:.1f} of {cores} processors")
    )
    return [f"{used}: its times are not ranked"]


def require_rankable(records: Sequence[Record], *, timings: bool) -> None:
    """Refuse to rank rows that must not be, or not together. Errors: RecordError saying which and why."""
    for record in records:
        reasons = obstacles(record) + (timing_obstacles(record) if timings else [])
        if reasons:
            which = f"run {record.run_id} ({record.method})"
            raise RecordError(f"{which} cannot be ranked: {'; '.join(reasons)}; leave it out")
    for record in records[1:]:
        found = differences(records[0].comparability, record.comparability, timings=timings)
        if found:
            raise RecordError(
                f"runs {records[0].run_id} and {record.run_id} cannot be ranked together: {'; '.join(found)}; "
                "compare rows that agree on these"
            )
