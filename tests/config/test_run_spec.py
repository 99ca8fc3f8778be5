from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.config import MethodSpec, RunSpec, build_run, parse_bytes, parse_method, parse_value
from specbench.errors import ConfigError, SpecbenchError, UnknownNameError


def test_defaults_make_one_method_a_complete_run():
    spec = build_run(flags={"methods": ["dspark"]})
    assert spec.target == "smollm2-135m"
    assert spec.tasks == ("starter-math", "starter-code", "starter-chat")
    assert (spec.num_prompts, spec.max_new_tokens, spec.temperature, spec.concurrency) == (10, 128, 0.0, 1)
    assert [m.label for m in spec.cells()] == ["vanilla", "dspark"]
    assert spec.length_of(spec.cells()[1]) is None  # the drafter's trained length decides


def test_methods_repeat_and_split_at_commas():
    spec = build_run(flags={"methods": ["ngram:5,mtp-1", "draft_model"]})
    assert spec.methods == (MethodSpec(name="ngram", draft_length=5), MethodSpec(name="mtp", draft_length=1),
                            MethodSpec(name="draft-model"))  # fmt: skip


def test_baseline_is_measured_once_and_first_or_only_when_asked():
    assert [m.name for m in build_run(flags={"methods": "ngram,vanilla"}).cells()] == ["vanilla", "ngram"]
    assert [m.name for m in build_run(flags={"methods": "ngram", "baseline": False}).cells()] == ["ngram"]
    assert [m.name for m in build_run(flags={"methods": "ngram,vanilla", "baseline": False}).cells()] == [
        "vanilla",
        "ngram",
    ]


def test_draft_length_of_a_method_beats_the_common_one():
    spec = build_run(flags={"methods": "ngram:5,eagle3", "draft_length": 3})
    assert [spec.length_of(m) for m in spec.cells()] == [0, 5, 3]


def test_flags_beat_set_and_set_beats_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('methods = ["ngram"]\nseed = 1\ntemperature = 0.1\ntop_p = 0.9\n[options.ngram]\nmax_window = 2\n')
    spec = build_run(
        config=file, sets=["temperature=0.2", "top_p=0.8", "ngram.max_window=4"], flags={"temperature": 0.3}
    )
    assert (spec.seed, spec.temperature, spec.top_p) == (1, 0.3, 0.8)
    assert spec.options == {"ngram": {"max_window": 4}}


def test_all_prompts(tmp_path):
    assert build_run(flags={"methods": "ngram", "num_prompts": "all"}).num_prompts is None
    assert build_run(flags={"methods": "ngram", "num_prompts": "7"}).num_prompts == 7


def test_policy_parts():
    assert build_run(flags={"methods": "ngram"}).policy_parts == ("fixed", None)
    assert build_run(flags={"methods": "ngram", "policy": "fixed:5"}).policy_parts == ("fixed", "5")


@pytest.mark.parametrize(
    ("flags", "sets", "says"),
    [
        ({"methods": "ngram", "temperature": -1}, [], "temperature"),
        ({"methods": "ngram", "temperature": float("nan")}, [], "temperature"),
        ({"methods": "ngram", "top_p": 0}, [], "top_p"),
        ({"methods": "ngram", "num_prompts": 0}, [], "num_prompts"),
        ({"methods": "ngram", "seed": 1.5}, [], "seed"),
        ({"methods": "ngram", "dtype": "f8"}, [], "'auto', 'bfloat16' or 'float32'"),
        ({"methods": "ngram", "kv_memory": "2 parsec"}, [], "2GiB"),
        ({"methods": "ngram:x"}, [], "ngram:5"),
        ({"methods": "ngram,ngram"}, [], "twice"),
        ({"methods": "vanilla:3"}, [], "drafts nothing"),
        ({"methods": "ngram", "tasks": ["a", "a"]}, [], "twice"),
        ({"methods": "ngram", "drafters": {"mtp": "x"}}, [], "--method mtp"),
        ({"methods": "ngram", "device": "gpu"}, [], "device"),
        ({"methods": "ngram"}, ["temperature"], "KEY=VALUE"),
        ({"methods": "ngram"}, ["ngram=3"], "ngram"),
        ({}, [], "--method"),
    ],
)
def test_faults_are_one_line_and_name_what_is_wrong(flags, sets, says):
    with pytest.raises(SpecbenchError) as caught:
        build_run(flags=flags, sets=sets)
    text = str(caught.value)
    assert says in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("sets", "near"),
    [(["tempreture=1"], "temperature"), (["ngarm.max_window=1"], "ngram"), (["num_prompt=3"], "num_prompts")],
)
def test_unknown_settings_are_refused_with_the_nearest_name(sets, near):
    with pytest.raises(UnknownNameError, match=f"did you mean.*{near}"):
        build_run(flags={"methods": "ngram"}, sets=sets)


def test_unknown_key_in_a_file_is_refused(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('methods = ["ngram"]\nconcurency = 2\n')
    with pytest.raises(UnknownNameError, match="concurrency"):
        build_run(config=file)


def test_broken_or_missing_file_is_named(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("methods = [\n")
    with pytest.raises(ConfigError, match=r"run\.toml"):
        build_run(config=file)
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        build_run(config=tmp_path / "missing.toml")


def test_sizes():
    assert parse_bytes("2GiB") == 2 * 2**30
    assert parse_bytes("1.5 MB") == 1_500_000
    assert parse_bytes(77) == 77


def test_values_of_set_follow_toml_and_fall_back_to_text():
    assert [parse_value(v) for v in ("3", "0.5", "true", "[1, 2]", "abc", "")] == [3, 0.5, True, [1, 2], "abc", ""]


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused_as_a_method(text):
    try:
        method = parse_method(text)
    except ConfigError:
        return
    assert method.name
    assert parse_method(method.label) == method


@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_set_is_applied_or_refused(sets):
    try:
        spec = build_run(flags={"methods": ["ngram"]}, sets=sets)
    except SpecbenchError:
        return
    assert isinstance(spec, RunSpec)
