"""A server's own counters: Prometheus text at two moments, and what happened between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from specbench.server_trace import ServerCounts

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+([^\s]+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

PREFIXES = {"vllm": "vllm:", "sglang": "sglang:", "llama.cpp": "llamacpp:", "tensorrt-llm": "trtllm_"}
"""How the names of each engine's metrics begin."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the text."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = 0.0


def parse(text: str) -> list[Sample]:
    """All samples; lines that are none (comments, other formats' marks) and values that are no numbers are left out."""
    found = []
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if value == value and abs(value) != float("inf"):
            found.append(Sample(match[1], dict(_LABEL.findall(match[2] or "")), value))
    return found


def engine_of(samples: list[Sample]) -> str | None:
    """The engine whose names these are; None where no engine's are among them."""
    for engine, prefix in PREFIXES.items():
        if any(sample.name.startswith(prefix) for sample in samples):
            return engine
    return None


def read_counts(samples: list[Sample]) -> ServerCounts | None:
    """What the counters stand at; None for an engine that has none of acceptance, or is not known."""
    engine = engine_of(samples)
    reader = _READERS.get(engine) if engine is not None else None
    return None if reader is None else reader(samples)


def difference(before: ServerCounts | None, after: ServerCounts | None) -> ServerCounts | None:
    """What was counted between two moments; None where a counter fell, as after a restart of the server.

    Counters of acceptance come up with the first draft: one that was absent before stood at 0.
    """
    if after is None or before is None:
        return None
    found: dict[str, int | tuple[int, ...] | None] = {}
    for name in (f.name for f in fields(ServerCounts)):
        old, new = getattr(before, name), getattr(after, name)
        if new is None:
            found[name] = None
        elif isinstance(new, tuple):
            old = (*(old or ()), *(0,) * len(new))
            found[name] = tuple(n - o for n, o in zip(new, old))
        else:
            found[name] = new - (old or 0)
    values = [
        v for value in found.values() if value is not None for v in (value if isinstance(value, tuple) else [value])
    ]
    return ServerCounts(**found) if min(values, default=0) >= 0 else None  # type: ignore[arg-type]


def _total(samples: list[Sample], name: str, keep: Callable[[Sample], bool] = lambda sample: True) -> int | None:
    """The sum over a counter's series; its name may have lost the ending that Prometheus gives counters."""
    bare = name.removesuffix("_total")
    values = [sample.value for sample in samples if sample.name in (name, bare) and keep(sample)]
    return int(sum(values)) if values else None


def _positions(samples: list[Sample], name: str) -> tuple[int, ...] | None:
    numbers = [s.labels["position"] for s in samples if s.name in (name, name.removesuffix("_total"))
               and s.labels.get("position", "").isdecimal()]  # fmt: skip
    if not numbers:
        return None
    size = max(map(int, numbers)) + 1
    return tuple(_total(samples, name, lambda s, k=k: s.labels.get("position") == str(k)) or 0 for k in range(size))  # type: ignore[misc]


def _like_vllm(prefix: str, generated: str) -> Callable[[list[Sample]], ServerCounts]:
    """vLLM's names, which llama.cpp took over: steps without a draft are not counted."""
    spec = f"{prefix}spec_decode_num_"

    def read(samples: list[Sample]) -> ServerCounts:
        return ServerCounts(
            generated=_total(samples, f"{prefix}{generated}"),
            draft_steps=_total(samples, f"{spec}drafts_total"),
            drafted=_total(samples, f"{spec}draft_tokens_total"),
            accepted=_total(samples, f"{spec}accepted_tokens_total"),
            accepted_at=_positions(samples, f"{spec}accepted_tokens_per_pos_total"),
        )

    return read


def _sglang(samples: list[Sample]) -> ServerCounts:
    """Each tensor-parallel rank counts the same calls: one of them is taken."""

    def first_rank(sample: Sample) -> bool:
        return sample.labels.get("tp_rank", "0") == "0"

    return ServerCounts(
        generated=_total(samples, "sglang:generation_tokens_total", first_rank),
        steps=_total(samples, "sglang:spec_verify_calls_total", first_rank),
    )


_READERS: dict[str, Callable[[list[Sample]], ServerCounts]] = {
    "vllm": _like_vllm("vllm:", "generation_tokens_total"),
    "llama.cpp": _like_vllm("llamacpp:", "tokens_predicted_total"),
    "sglang": _sglang,
}
