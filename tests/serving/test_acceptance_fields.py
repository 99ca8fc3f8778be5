"""Each engine's own fields, told apart by their signature; what is none of them gives nothing."""

from __future__ import annotations

import pytest

from specbench.metrics._served_identities import count_trouble
from specbench.server_trace import ServedTrace
from specbench.serving.acceptance import read_acceptance

VLLM = {
    "mean_acceptance_length": 3.57, "draft_acceptance_rate": 0.64, "acceptance_histogram": [1, 0, 2, 2, 2],
    "num_spec_steps": 7, "num_accepted_draft_tokens": 18, "num_draft_tokens": 28, "num_spec_tokens": 4,
    "per_step_accepted": [0, 2, 2, 3, 3, 4, 4], "per_step_drafted": [4] * 7,
}  # fmt: skip


def test_vllm_counts_the_steps_that_had_a_draft():
    found = read_acceptance({"choices": [], "metrics": {"speculative_decoding": VLLM}})
    assert found is not None
    assert (found.engine, found.draft_steps, found.accepted, found.drafted, found.draft_length) == (
        "vllm",
        7,
        18,
        28,
        4,
    )
    assert found.steps is None  # steps without a draft are in none of its fields
    assert found.histogram == (1, 0, 2, 2, 2)
    assert found.step_accepted == (0, 2, 2, 3, 3, 4, 4)


def test_vllm_before_the_field_had_its_name():
    old = {
        "num_spec_steps": 2,
        "num_accepted_tokens": 3,
        "num_draft_tokens": 4,
        "acceptance_histogram": {"1": 1, "2": 1},
    }
    found = read_acceptance({"choices": [{"text": "", "speculative_decoding_stats": old}]})
    assert found is not None
    assert (found.engine, found.draft_steps, found.accepted, found.histogram) == ("vllm", 2, 3, (0, 1, 1))


def test_tensorrt_llm_is_told_by_its_choice():
    fields = {"acceptance_histogram": [0, 2], "num_spec_steps": 2, "total_accepted_draft_tokens": 2,
              "total_draft_tokens": 6, "num_spec_tokens": 3}  # fmt: skip
    found = read_acceptance({"choices": [{"text": "", "finish_reason": "stop", "speculative_decoding": fields}]})
    assert found is not None
    assert (found.engine, found.draft_steps, found.accepted, found.drafted) == ("tensorrt-llm", 2, 2, 6)


SGLANG = {"completion_tokens": 12, "spec_verify_ct": 4, "spec_num_correct_drafts": 7, "spec_num_proposed_drafts": 12,
          "spec_correct_drafts_histogram": [1, 0, 2, 1]}  # fmt: skip


@pytest.mark.parametrize(
    "reply",
    [
        {"sglext": {"spec_tokens_details": SGLANG}},
        {"choices": [{"sglext": {"spec_tokens_details": SGLANG}}]},
        {"choices": [{"meta_info": SGLANG}]},
        {"meta_info": {"spec_verify_ct": 4, "spec_accepted_drafts": 7, "spec_proposed_drafts": 12,
                       "spec_accept_histogram": [1, 0, 2, 1]}},
    ],
)  # fmt: skip
def test_sglang_counts_every_step(reply):
    found = read_acceptance(reply)
    assert found is not None
    assert (found.engine, found.steps, found.accepted, found.drafted) == ("sglang", 4, 7, 12)
    assert found.histogram == (1, 0, 2, 1)


def test_llama_cpp_without_drafts_counts_none():
    timings = {"predicted_n": 20, "draft_n": 15, "draft_n_accepted": 15}
    found = read_acceptance({"timings": timings})
    assert found is not None
    assert (found.engine, found.drafted, found.accepted, found.draft_steps) == ("llama.cpp", 15, 15, None)
    none = read_acceptance({"timings": {"predicted_n": 20}})  # else tau would leave out what was not drafted for
    assert none is not None
    assert (none.drafted, none.accepted) == (0, 0)
    assert read_acceptance({"timings": {}}) is None


@pytest.mark.parametrize(
    "reply",
    [
        {}, {"choices": []}, {"choices": "x"}, {"choices": [3]}, {"metrics": None}, {"timings": []},
        {"metrics": {"speculative_decoding": None}}, {"metrics": {"speculative_decoding": {"num_spec_steps": "many"}}},
        {"timings": {"draft_n": 1.5}}, {"sglext": {"spec_tokens_details": {"spec_verify_ct": None}}},
        {"usage": {"completion_tokens": 9}},
    ],
)  # fmt: skip
def test_what_is_no_engines_gives_nothing(reply):
    assert read_acceptance(reply) is None


def entry(**counts: object) -> ServedTrace:
    return ServedTrace("r", "server", (1,), 1, 200, "length", **counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "counts",
    [
        {"drafted": 3, "accepted": 4}, {"drafted": -1}, {"steps": 2, "draft_steps": 3},
        {"draft_steps": 3, "accepted": 2, "accepted_histogram": (1, 1)},
        {"draft_steps": 2, "accepted": 2, "accepted_histogram": (1, 1)},
        {"accepted": 2, "step_accepted": (1, 2)}, {"drafted": 4, "step_drafted": (3, 3)},
    ],
)  # fmt: skip
def test_counts_that_contradict_each_other_are_found(counts):
    assert count_trouble(entry(**counts)) is not None


def test_counts_that_agree_are_left_alone():
    whole = {"draft_steps": 3, "drafted": 9, "accepted": 4, "accepted_histogram": (1, 0, 2), "step_accepted": (0, 2, 2)}
    assert count_trouble(entry(**whole, step_drafted=(3, 3, 3))) is None
    assert count_trouble(entry()) is None
