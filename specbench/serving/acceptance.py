"""How often a server accepted drafts, read from its reply: every engine by the signature of its own fields.

An engine that shows nothing gives nothing: chunks of a stream are not steps, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A server's counts of one request, as `specbench.server_trace.ServedTrace` explains them."""

    engine: str
    drafted: int | None = None
    accepted: int | None = None
    steps: int | None = None
    draft_steps: int | None = None
    histogram: tuple[int, ...] | None = None
    step_accepted: tuple[int, ...] | None = None
    step_drafted: tuple[int, ...] | None = None
    draft_length: int | None = None  # the most that a step drafts, where it is told


def read_acceptance(reply: Mapping[str, Any]) -> Acceptance | None:
    """From one chunk of a stream, or a whole reply; None where it has no engine's fields."""
    for reader in _READERS:
        found = reader(reply)
        if found is not None:
            return found
    return None


def _choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _at(value: object, *path: str) -> Mapping[str, Any] | None:
    """The object at a path of keys, None where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else None


def _count(fields: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that holds a whole number."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
            return int(value)
    return None


def _counts(values: object) -> tuple[int, ...] | None:
    """A list of counts, or a histogram as an object with numbers as keys."""
    if isinstance(values, Mapping):
        if not all(str(key).isdecimal() for key in values):
            return None
        size = max((int(key) for key in values), default=-1) + 1
        dense: list[object] = [values.get(str(i), values.get(i, 0)) for i in range(size)]
        values = dense
    if not isinstance(values, Sequence) or isinstance(values, str):
        return None
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return None
    return tuple(values)


def _vllm(reply: Mapping[str, Any]) -> Acceptance | None:
    """vLLM with --per-request-spec-decode-metrics; before that was merged, statistics of the choice.

    ``num_spec_steps`` leaves out steps without a draft.
    """
    fields = _at(reply, "metrics", "speculative_decoding") or _at(_choice(reply), "speculative_decoding_stats")
    if fields is None or _count(fields, "num_spec_steps") is None:
        return None
    return Acceptance(
        "vllm",
        drafted=_count(fields, "num_draft_tokens"),
        accepted=_count(fields, "num_accepted_draft_tokens", "num_accepted_tokens"),
        draft_steps=_count(fields, "num_spec_steps"),
        histogram=_counts(fields.get("acceptance_histogram")),
        step_accepted=_counts(fields.get("per_step_accepted")),
        step_drafted=_counts(fields.get("per_step_drafted")),
        draft_length=_count(fields, "num_spec_tokens"),
    )


def _tensorrt_llm(reply: Mapping[str, Any]) -> Acceptance | None:
    """TensorRT-LLM with per_request_spec_decode_stats: in the choice that ends the stream."""
    fields = _at(_choice(reply), "speculative_decoding")
    if fields is None or _count(fields, "total_draft_tokens") is None:
        return None
    return Acceptance(
        "tensorrt-llm",
        drafted=_count(fields, "total_draft_tokens"),
        accepted=_count(fields, "total_accepted_draft_tokens"),
        draft_steps=_count(fields, "num_spec_steps"),
        histogram=_counts(fields.get("acceptance_histogram")),
        draft_length=_count(fields, "num_spec_tokens"),
    )


def _sglang(reply: Mapping[str, Any]) -> Acceptance | None:
    """SGLang with return_spec_tokens_details, or its meta_info. Every decode step is a verify step of its count.

    The proposed drafts are nominal: the block size times the steps, even where its scheduler verified fewer.
    """
    choice = _choice(reply)
    places = [_at(held, "sglext", "spec_tokens_details") for held in (reply, choice)]
    places += [_at(held, "meta_info") for held in (choice, reply)]
    fields = next((place for place in places if place is not None and "spec_verify_ct" in place), None)
    steps = _count(fields, "spec_verify_ct") if fields is not None else None
    if fields is None or steps is None:
        return None
    return Acceptance(
        "sglang",
        drafted=_count(fields, "spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
        accepted=_count(fields, "spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        steps=steps,
        draft_steps=steps,
        histogram=_counts(fields.get("spec_correct_drafts_histogram", fields.get("spec_accept_histogram"))),
    )


def _llama_cpp(reply: Mapping[str, Any]) -> Acceptance | None:
    """llama.cpp's timings. Without ``draft_n`` nothing was drafted for this request, which counts as well."""
    fields = _at(reply, "timings")
    if fields is None or _count(fields, "predicted_n", "draft_n") is None:
        return None
    if _count(fields, "draft_n") is None:
        return Acceptance("llama.cpp", drafted=0, accepted=0)
    return Acceptance("llama.cpp", drafted=_count(fields, "draft_n"), accepted=_count(fields, "draft_n_accepted"))


_READERS: tuple[Callable[[Mapping[str, Any]], Acceptance | None], ...] = (_vllm, _tensorrt_llm, _sglang, _llama_cpp)
