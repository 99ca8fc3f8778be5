"""Row ids and refusals: what must agree, and in which words it is said."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from support_records import KEY, make_record

from specbench.errors import RecordError
from specbench.records.keys import (
    build_key,
    dataset_sha256,
    differences,
    obstacles,
    prompt_set_key,
    require_rankable,
    row_differences,
    row_id,
)
from specbench.records.schema import AlarmRow, Identity, Record, VerdictRow


def passed() -> VerdictRow:
    return VerdictRow(outcome="pass", rule="greedy", reason="equal", requests_compared=10, rounds_with_drafts=99)


def key_with(path: str, value: object) -> dict[str, Any]:
    key = deepcopy(KEY)
    *parents, last = path.split(".")
    inner = key
    for part in parents:
        inner = inner[part]
    inner[last] = value
    return key


def row(path: str | None = None, value: object = None, **fields: Any) -> Record:
    key = KEY if path is None else key_with(path, value)
    return make_record(key=key, **{"verdict": passed(), **fields})


# ------------------------------------------------------------------------------------------ identity of a row


def test_one_weight_byte_one_dataset_row_or_the_template_changes_the_row_and_is_named() -> None:
    rows = [("p1", ["What is 2 + 2?"]), ("p2", ["And 3 + 3?"])]
    edited = [rows[0], ("p2", ["And 3 + 4?"])]
    base = row("rendering.dataset", dataset_sha256(rows))
    cases = {
        "dataset content": row("rendering.dataset", dataset_sha256(edited)),
        "target weights": row("target_weights", "1" + "a" * 63),
        "chat template": row("rendering.template", "1" * 64),
    }
    for word, other in cases.items():
        reference = base if word == "dataset content" else row()
        assert row_id(other) != row_id(reference)
        assert any(text.startswith(f"{word}: ") for text in row_differences(reference, other))
        assert len(row_differences(reference, other)) == 1


def test_a_drafter_byte_changes_the_row_but_not_its_comparability() -> None:
    other = row(drafter=Identity(name="toy", sha256="8" * 64, source="folder"))
    assert row_id(other) != row_id(row())
    assert row_differences(row(), other) == ["drafter weights: 999999999999 against 888888888888"]
    require_rankable([row(), other], timings=True)


def test_repeats_share_the_row_and_not_the_run() -> None:
    later = row(created="2027-01-01T00:00:00Z")
    assert row_id(later) == row_id(row())
    assert row_differences(row(), later) == []
    assert later.run_id != row().run_id


def test_spec_differences_are_named() -> None:
    other = row(spec={"temperature": 0.0, "concurrency": 1, "dtype": "float32", "tasks": ["starter-code"]})
    assert row_differences(row(), other) == ["spec tasks: ['starter-math'] against ['starter-code']"]


def test_prompt_sets_know_order_and_members() -> None:
    one, other = prompt_set_key(["a", "b"]), prompt_set_key(["b", "a"])
    assert one.ids == other.ids
    assert one.order != other.order
    assert prompt_set_key(["a", "c"]).ids != one.ids
    assert prompt_set_key(["ab", "c"]).ids != prompt_set_key(["a", "bc"]).ids


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("target_weights", "7" * 64, "target weights: aaaaaaaaaaaa against 777777777777"),
        ("acceptance_rule", "typical", "acceptance rule: rejection against typical"),
        ("draft_sampling", "greedy", "draft sampling"),
        ("sampling.temperature", 1.0, "temperature: 0.0 against 1.0"),
        ("sampling.top_k", 20, "top-k: none against 20"),
        ("gamma_means", "block size", "meaning of gamma"),
        ("rendering.thinking", "on", "thinking mode"),
        ("prompt_set.count", 11, "number of prompts: 10 against 11"),
        ("max_new_tokens", 128, "max new tokens: 64 against 128"),
        ("stop_ids", [0, 1], "stop ids"),
        ("ignore_eos", True, "ignore-eos"),
        ("dtype", "bfloat16", "dtype: float32 against bfloat16"),
        ("engine", "another", "engine"),
        ("load", "closed:8", "load"),
        ("metrics_version", "0", "metrics version"),
    ],
)
def test_rows_that_differ_are_refused_and_the_difference_named(path: str, value: object, words: str) -> None:
    with pytest.raises(RecordError, match="cannot be ranked together") as caught:
        require_rankable([row(), row(path, value)], timings=False)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hardware", "another"),
        ("kv_budget_bytes", 1),
        ("row_limit", 8),
        ("threads", 2),
        ("torch", "2.9"),
        ("driver", "1"),
    ],
)
def test_the_machine_matters_for_timings_only(name: str, value: object) -> None:
    pair = [row(), row(f"timing.{name}", value)]
    require_rankable(pair, timings=False)
    with pytest.raises(RecordError):
        require_rankable(pair, timings=True)


def test_other_kernels_are_named_and_older_keys_stay_as_they_are() -> None:
    torch_kernels, triton_kernels = (build_key(key_with("timing.kernels", name)) for name in ("torch", "triton 3.6.0"))
    told = differences(torch_kernels.as_dict(), triton_kernels.as_dict(), timings=True)
    assert told == ["kernels: torch against triton 3.6.0"]
    assert build_key(KEY).as_dict()["timing"] == KEY["timing"]
    assert build_key(key_with("timing.kernels", None)).sha256() == build_key(KEY).sha256()


def test_every_field_of_the_key_has_a_word() -> None:
    text = differences(build_key(KEY).as_dict(), {}, timings=True)
    assert not any("." in phrase.split(":")[0] or "_" in phrase.split(":")[0] for phrase in text)
    assert len(text) >= 24  # those that are None on both sides do not differ


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": "interrupted"}, "the run is interrupted"),
        ({"verdict": None}, "verdict is absent"),
        ({"verdict": passed().model_copy(update={"outcome": "inconclusive"})}, "verdict is inconclusive"),
        ({"verdict": passed().model_copy(update={"outcome": "fail"})}, "verdict is fail"),
        ({"provenance": {"git_sha": "unknown"}}, "commit is unknown"),
        ({"provenance": {}}, "commit is unknown"),
        ({"provenance": {"git_sha": "1", "not_rankable_because": ["it is Monday"]}}, "it is Monday"),
        ({"alarms": [AlarmRow(name="invalid-row", message="half failed")]}, "half failed"),
    ],
)
def test_rows_that_never_rank(fields: dict[str, Any], reason: str) -> None:
    record = row(**fields)
    assert any(reason in text for text in obstacles(record))
    with pytest.raises(RecordError, match="cannot be ranked"):
        require_rankable([record], timings=False)


def test_synthetic_acceptance_never_ranks() -> None:
    assert obstacles(row("synthetic_acceptance", True)) == ["acceptance is synthetic"]


def test_plain_decoding_needs_no_verdict() -> None:
    control = row(method="vanilla", verdict=None, drafter=None, draft_length=0)
    assert obstacles(control) == []
    require_rankable([control, row()], timings=True)


def test_a_key_with_missing_or_unknown_fields_is_refused() -> None:
    short = {name: value for name, value in KEY.items() if name != "dtype"}
    with pytest.raises(RecordError, match="dtype"):
        build_key(short)
    with pytest.raises(RecordError, match="colour"):
        build_key({**KEY, "colour": "blue"})
    with pytest.raises(RecordError, match=r"sampling\.top_p"):
        build_key(key_with("sampling.top_p", "high"))
