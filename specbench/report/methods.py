"""A paragraph for a paper's section on methods, from records alone: a sentence stands only where its facts do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specbench.records.schema import EstimateRow, Record
from specbench.report import numbers
from specbench.report.board import facts_of, sampling_text
from specbench.report.paper import row_labels, row_notes
from specbench.report.tables import vocabulary_remarks

PACKAGES = ("torch", "transformers")


def methods_text(records: Sequence[Record]) -> str:
    """One paragraph for each comparability group, its runs named at the end; plain text."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.comparability_sha256, []).append(record)
    return "\n\n".join(_paragraph(members) for members in groups.values()) + "\n"


def _paragraph(records: Sequence[Record]) -> str:
    labels = row_labels(records)
    sentences: list[str] = []
    for part in (_target, _machine, _prompts, _sampling, _load, _software):
        sentences += part(records)
    for record in records:
        sentences += _contestant(record, labels[record.run_id])
    sentences += _intervals(records)
    runs = ", ".join(f"{record.run_id} ({labels[record.run_id]})" for record in records)
    return " ".join([*sentences, f"Runs: {runs}."])


def _each(records: Sequence[Record], value_of: Callable[[Record], Any]) -> str | None:
    """The values that the records hold, each once; None where none holds one."""
    found = [value for value in map(value_of, records) if value not in (None, "")]
    return _listed(str(value) for value in found) or None


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _sentence(text: str) -> str:
    """With a full stop, and no break in it."""
    return f"{' '.join(text.split()).rstrip('.')}."


def _target(records: Sequence[Record]) -> list[str]:
    def named(record: Record) -> str:
        revision = record.target.details.get("revision")
        known = f"; revision {revision}" if revision else ""
        return f"{record.target.name} (weights sha256 {record.target.sha256}{known})"

    dtype = _each(records, lambda record: record.comparability.get("dtype"))
    return [_sentence(f"Target: {_listed(map(named, records))}{f', in {dtype}' if dtype else ''}")]


def _machine(records: Sequence[Record]) -> list[str]:
    def gpu(record: Record, name: str) -> Any:
        return (record.provenance.get("gpu") or {}).get(name)

    parts = [_each(records, lambda record: record.provenance.get("device_name"))]
    threads = _each(records, lambda record: record.spec.get("threads"))
    driver = _each(records, lambda record: gpu(record, "driver"))
    limit = _each(records, lambda record: gpu(record, "power_limit_w"))
    parts += [f"torch threads: {threads}" if threads else None, f"driver {driver}" if driver else None]
    parts += [f"power limit {limit} W" if limit else None]
    told = [part for part in parts if part]
    return [_sentence(f"Hardware: {'; '.join(told)}")] if told else []


def _prompts(records: Sequence[Record]) -> list[str]:
    facts, key = facts_of(records[0]), records[0].comparability
    count = (key.get("prompt_set") or {}).get("count")
    if count is None:
        return []
    rendering = key.get("rendering") or {}
    text = f"Prompts: {facts['prompts']}"
    text += f", {rendering['turns']} user turns" if "turns" in rendering else ""
    text += f" (content sha256 {rendering['dataset'][:12]})" if rendering.get("dataset") else ""
    text += f"; thinking mode {rendering['thinking']}" if rendering.get("thinking") else ""
    text += f"; at most {facts['output limit']} a turn" if key.get("max_new_tokens") is not None else ""
    measured = _each(records, lambda record: record.counts.get("ok"))
    text += f"; requests measured: {measured}" if measured else ""
    warm = _each(records, lambda record: record.counts.get("warmup"))
    return [_sentence(text + (f", after {warm} for warm-up" if warm else ""))]


def _sampling(records: Sequence[Record]) -> list[str]:
    key = records[0].comparability
    parts = [sampling_text(key["sampling"])] if key.get("sampling") else []
    parts += [f"acceptance: {key['acceptance_rule']}"] if key.get("acceptance_rule") else []
    parts += [f"draft sampling: {key['draft_sampling']}"] if key.get("draft_sampling") else []
    parts += ["acceptance was forced, not the drafter's own"] if key.get("synthetic_acceptance") else []
    seeds = _each(records, lambda record: record.spec.get("seed"))
    parts += [f"seed {seeds}"] if seeds else []
    return [_sentence(f"Sampling: {'; '.join(parts)}")] if parts else []


def _load(records: Sequence[Record]) -> list[str]:
    load = records[0].comparability.get("load")
    rows = _each(records, lambda record: record.spec.get("concurrency"))
    if not load:
        return []
    return [_sentence(f"Load: {load}{f', batches of at most {rows}' if rows else ''}")]


def _software(records: Sequence[Record]) -> list[str]:
    def version(name: str) -> str | None:
        return _each(records, lambda record: (record.provenance.get("packages") or {}).get(name))

    own = version("specbench-llm")
    engine = records[0].comparability.get("engine")
    parts = [f"engine {engine}"] if engine else []
    parts += [f"specbench-llm {own}"] if own else []
    parts += [f"commit {_listed(filter(None, map(_commit, records)))}"] if any(map(_commit, records)) else []
    parts += [f"metrics version {_each(records, lambda record: record.metrics_version)}"]
    parts += [f"record schema {_each(records, lambda record: record.schema_version)}"]
    python = _each(records, lambda record: record.provenance.get("python"))
    parts += [f"Python {python}"] if python else []
    for name in PACKAGES:
        found = version(name)
        parts += [f"{name} {found}"] if found else []
    dates = sorted({record.created[:10] for record in records})
    parts += [f"measured {dates[0]}" if len(dates) == 1 else f"measured {dates[0]} to {dates[-1]}"]
    return [_sentence(f"Software: {', '.join(parts)}")]


def _commit(record: Record) -> str | None:
    sha = record.provenance.get("git_sha")
    if not sha:
        return None
    return f"{sha} with uncommitted changes" if record.provenance.get("git_dirty") is True else str(sha)


def _contestant(record: Record, label: str) -> list[str]:
    """What one row is and came to."""
    base = f" (run {record.baseline})" if record.baseline else ""
    parts: list[str | None] = [f"{label}: {'plain decoding' if record.method == 'vanilla' else _drafting(record)}"]
    parts += [_value(record.find("tau"), "tau"), _value(record.find("speed_up"), f"speed-up over plain decoding{base}")]
    parts += [_verdict(record), _energy(record), *vocabulary_remarks(record)]
    text = "; ".join(part for part in parts if part)
    return [_sentence(text), *(_sentence(note) for note in row_notes(record, label))]


def _drafting(record: Record) -> str:
    parts = [f"at most {record.draft_length} drafts a round"]
    if record.drafter is not None:
        parts.append(f"drafter {record.drafter.name} (weights sha256 {record.drafter.sha256})")
    if record.spec.get("policy"):
        parts.append(f"policy {record.spec['policy']}")
    options = record.spec.get("options") or {}
    parts += [f"{name} {value}" for name, value in options.items()]
    return ", ".join(parts)


def _value(row: EstimateRow | None, word: str) -> str | None:
    if row is None:
        return None
    return f"{word} {numbers.bounded(row)} (n = {numbers.count(row.n)} {row.n_of})"


def _verdict(record: Record) -> str | None:
    found = record.verdict
    if found is None:
        return None
    judged = f", judged against run {found.control}" if found.control else ""
    compared = f"{numbers.count(found.requests_compared)} requests compared"
    return f"losslessness {found.outcome} ({found.rule}: {found.reason}; {compared}{judged})"


def _energy(record: Record) -> str | None:
    known, row = record.telemetry, record.find("joules_per_token")
    if known is None:
        return None
    how = f"{known.device} sampled every {known.period_s:g} s through {known.source}"
    if row is None:
        return how
    source = {"counter": "the driver's energy counter", "power": "power over time"}[known.energy_from or "power"]
    return f"{how}; {numbers.number(row)} J a token (n = {numbers.count(row.n)} {row.n_of}), by {source}"


def _intervals(records: Sequence[Record]) -> list[str]:
    shown = [row for record in records for name in ("tau", "speed_up") if (row := record.find(name)) is not None]
    kinds = _listed(row.interval for row in shown if row.interval)
    return [_sentence(f"Brackets are 95 % intervals: {kinds}")] if kinds else []
