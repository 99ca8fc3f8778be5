"""Trace files: what is read, what is refused with file and line, which prompts a replay sends."""

from __future__ import annotations

import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.config import build_run
from specbench.errors import ConfigError, SpecbenchError, UnknownNameError
from specbench.runner import check_names
from specbench.types import Prompt
from specbench.workloads._trace_file import read_trace_file
from specbench.workloads.patterns import load_label, load_options, open_load


def written(tmp_path, text: str | bytes, name: str = "arrivals.jsonl"):
    file = tmp_path / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def prompts(**tasks: int) -> list[Prompt]:
    return [Prompt(f"{task}{i}", task, task, ("x",)) for task, count in tasks.items() for i in range(count)]


def arranged(file, available, **options):
    return [(p.task, p.id) for p in load_options("trace", {"file": str(file), **options}).arrange(available)]


# ------------------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"time_s": 1, "task": "math", "prompt": "p"}\n\n{"timestamp": 2.5, "tokens": 7}\n2.5\n'),
        ("a.jsonl", '\ufeff{"time": 1, "task": "math", "prompt": "p"}\r\n{"time_s": "2.5", "tokens": 7}\r\n2.5'),
        ("a.csv", "time_s,task,prompt,tokens\n1,math,p,3\n2.5,,,7\n2.5,,,\n"),
        ("a.CSV", 'TIMESTAMP, Task ,prompt,tokens\r\n1,math,"p",3\r\n\r\n2.5,,,7\r\n2.5,,,'),
    ],
)
def test_both_formats_say_the_same(tmp_path, name, text):
    found = read_trace_file(written(tmp_path, text, name))
    assert [(line.time_s, line.task, line.prompt) for line in found.lines] == [
        (1.0, "math", "p"), (2.5, None, None), (2.5, None, None),
    ]  # fmt: skip
    assert found.ignored == ("tokens",)


@pytest.mark.parametrize(
    ("name", "text", "line", "says"),
    [
        ("a.jsonl", '{"time_s": 1}\n{"time_s": 3}\n{"time_s": 2}\n', 3, "2 s comes after 3 s of line 2"),
        ("a.jsonl", '{"time_s": -0.5}\n', 1, "negative"),
        ("a.jsonl", '{"time_s": 1}\n{"time_s": "soon"}\n', 2, "'soon' is no time"),
        ("a.jsonl", '{"time_s": NaN}\n', 1, "no time"),
        ("a.jsonl", '{"time_s": 1e999}\n', 1, "no time"),
        ("a.jsonl", '{"time_s": true}\n', 1, "no time"),
        ("a.jsonl", '{"time_s": null}\n', 1, "no time"),
        ("a.jsonl", '{"time_s": [1]}\n', 1, "no time"),
        ("a.jsonl", '1\n{"when": 1}\n', 2, "names no time"),
        ("a.jsonl", '{"time": 1, "time_s": 1}\n', 1, "two times"),
        ("a.jsonl", "1\nsoon\n", 2, "no JSON"),
        ("a.jsonl", '1\n{"time_s": 2\n', 2, "no JSON"),
        ("a.jsonl", '{"time_s": 1, "task": 3}\n', 1, "the task '3'"),
        ("a.jsonl", b'1\n{"time_s": 2, "task": "\xff"}\n', 2, "UTF-8"),
        ("a.jsonl", "[" * 100_000, 1, "no JSON"),
        ("a.csv", "time_s\n1\nlater\n", 3, "'later' is no time"),
        ("a.csv", "time_s\n2\n1\n", 3, "1 s comes after 2 s of line 2"),
        ("a.csv", "time_s,task\n1\n", 2, "1 cells, and the header names 2"),
        ("a.csv", "1.5\n2.5\n", 2, "names no time"),
        ("a.csv", 'time_s\n"1\n', 2, "no CSV"),
        ("a.csv", "time_s\n\n", None, "holds no request"),
        ("a.csv", "", None, "holds no request"),
        ("a.jsonl", "\n \n", None, "holds no request"),
    ],
)
def test_a_bad_line_is_named_before_anything_loads(tmp_path, name, text, line, says):
    file = written(tmp_path, text, name)
    spec = build_run(flags={"methods": "ngram", "workload": "trace", "load": {"file": str(file)}})
    with pytest.raises(ConfigError) as caught:
        check_names(spec)
    found = str(caught.value)
    assert says in found
    assert str(file) in found
    assert f"line {line}:" in found if line is not None else "line" in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("load", "says"),
    [
        ({}, "load.file is missing"),
        ({"file": "nowhere.jsonl"}, "nowhere.jsonl: No such file"),
        ({"file": "."}, "cannot read"),
        ({"file": "a\0b"}, "cannot read"),
        ({"file": "x", "sped": 2}, "did you mean speed"),
        ({"file": "x", "speed": 0}, "load.speed"),
        ({"file": "x", "limit": 0}, "load.limit"),
        ({"file": "x", "rate": 1}, "unknown option of load pattern trace 'rate'"),
    ],
)
def test_bad_options_of_a_replay(load, says):
    spec = build_run(flags={"methods": "ngram", "workload": "trace", "load": load})
    with pytest.raises(SpecbenchError, match=says) as caught:
        check_names(spec)
    assert "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), st.sampled_from(["a.jsonl", "a.csv"]))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, data, name):
    file = written(tmp_path_factory.mktemp("any"), data, name)
    try:
        found = read_trace_file(file)
    except ConfigError as error:
        said = str(error)
    else:
        said = ""
    assert len(said.splitlines()) == bool(said)
    if said:
        return
    times = [line.time_s for line in found.lines]
    assert times == sorted(times)
    assert times[0] >= 0


# ------------------------------------------------------------------------------------------------------- replay


def test_times_count_from_the_first_line_and_speed_divides_them(tmp_path):
    file = written(tmp_path, "100\n101\n105\n")
    arrivals = open_load("trace", concurrency=1, options={"file": str(file), "speed": 2, "limit": 2}, seed=0)
    assert (arrivals.next_s(), arrivals.due(0.0, in_flight=0)) == (0.0, 1)
    assert (arrivals.next_s(), arrivals.due(0.6, in_flight=0)) == (0.5, 1)
    assert arrivals.next_s() is None  # the third line is beyond the limit


def test_a_record_names_the_content_not_the_place(tmp_path):
    one, other = written(tmp_path, "1\n2\n", "one.jsonl"), written(tmp_path, "1\n2\n", "other.jsonl")
    changed = written(tmp_path, "1\n3\n", "changed.jsonl")
    described = [load_options("trace", {"file": str(f)}).described() for f in (one, other, changed)]
    assert described[0] == described[1] != described[2]
    label = load_label("trace", concurrency=4, load=described[0])
    assert label == f"trace:4,sha256={described[0]['sha256'][:12]}"


def test_a_file_that_changes_during_a_run_is_noticed(tmp_path):
    file = written(tmp_path, "1\n2\n")
    planned = load_options("trace", {"file": str(file)}).described()
    open_load("trace", concurrency=1, options={"file": str(file)}, seed=0, planned=planned)
    written(tmp_path, "1\n3\n")
    with pytest.raises(ConfigError, match="changed while the run"):
        open_load("trace", concurrency=1, options={"file": str(file)}, seed=0, planned=planned)


@pytest.mark.filterwarnings("ignore:the trace file has")
def test_lines_choose_prompts_tasks_or_nothing(tmp_path):
    lines = [{"prompt": "code1"}, {"task": "math"}, {}, {"task": "math"}, {"task": "code", "prompt": "code0"}]
    file = written(tmp_path, "".join(json.dumps({"time_s": 1, **line}) + "\n" for line in lines))
    assert arranged(file, prompts(math=2, code=2)) == [
        ("code", "code1"), ("math", "math0"), ("math", "math0#2"), ("math", "math1"), ("code", "code0"),
    ]  # fmt: skip


def test_a_long_trace_repeats_prompts_and_says_so(tmp_path):
    file = written(tmp_path, "1\n" * 5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = arranged(file, prompts(math=2))
    assert [name for _, name in found] == ["math0", "math1", "math0#2", "math1#2", "math0#3"]
    assert "5 requests and the run's tasks 2 prompts: 3 requests repeat" in str(caught[0].message)


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        ({"task": "mth"}, UnknownNameError, "line 2: unknown task 'mth'; did you mean math"),
        ({"prompt": "math9"}, UnknownNameError, "line 2: unknown prompt 'math9'; did you mean"),
        ({"task": "code", "prompt": "math0"}, UnknownNameError, "unknown prompt"),
        ({"prompt": "same"}, ConfigError, "in 2 tasks; name its task"),
    ],
)
def test_a_line_that_asks_for_what_the_run_has_not(tmp_path, line, error, says):
    file = written(tmp_path, f"0\n{json.dumps({'time_s': 1, **line})}\n")
    available = [*prompts(math=2, code=1), *(Prompt("same", task, "d", ("x",)) for task in ("math", "code"))]
    with pytest.raises(error, match=says) as caught:
        arranged(file, available)
    assert "\n" not in str(caught.value)
