"""Prometheus text of each engine, and its differences over a run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specbench.server_trace import ServerCounts
from specbench.serving.counters import difference, engine_of, parse, read_counts

VLLM = """# HELP vllm:spec_decode_num_drafts_total Drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a b\\"c"} 3.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="x"} 4.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="x"} 1.796e+09
vllm:spec_decode_num_draft_tokens_total{engine="0"} 12.0
vllm:spec_decode_num_accepted_tokens{engine="0"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 1.0
vllm:generation_tokens_total{engine="0"} 40.0
"""


def test_vllm_sums_its_engines_and_takes_names_without_their_ending():
    assert engine_of(parse(VLLM)) == "vllm"
    assert read_counts(parse(VLLM)) == ServerCounts(40, None, 7, 12, 5, (4, 1))


def test_llama_cpp_has_the_same_words():
    text = VLLM.replace("vllm:", "llamacpp:").replace("generation_tokens", "tokens_predicted")
    assert read_counts(parse(text)) == ServerCounts(40, None, 7, 12, 5, (4, 1))


def test_sglang_is_counted_on_one_rank():
    text = 'sglang:generation_tokens_total{tp_rank="0"} 30\nsglang:generation_tokens_total{tp_rank="1"} 30\n'
    text += 'sglang:spec_verify_calls_total{tp_rank="0"} 9\nsglang:spec_accept_length{tp_rank="0"} 3.2\n'
    assert read_counts(parse(text)) == ServerCounts(generated=30, steps=9)


def test_others_have_no_counts():
    assert read_counts(parse("trtllm_spec_decode_acceptance_length 2.5\n")) is None
    assert read_counts(parse("python_gc_objects_collected_total 7\n")) is None
    assert parse("no metric {here\nx NaN\ny +Inf\nz 1e3 1700000\n<html>") == parse("z 1000")


def test_differences_start_at_nothing_and_refuse_a_restart():
    before, after = ServerCounts(generated=10), ServerCounts(40, None, 7, 12, 5, (4, 1))
    assert difference(before, after) == ServerCounts(30, None, 7, 12, 5, (4, 1))
    assert difference(after, before) is None
    assert difference(None, after) is None
    assert difference(after, None) is None


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text):
    read_counts(parse(text))
    read_counts(parse(f"vllm:generation_tokens_total 1\n{text}"))
