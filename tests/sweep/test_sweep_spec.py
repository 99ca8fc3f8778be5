"""Axes that contradict each other, and misspelt ones, are refused in one line before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specbench.config import MethodSpec, RunSpec
from specbench.errors import ConfigError, SpecbenchError, UnknownNameError
from specbench.sweep_plan import expand
from specbench.sweep_spec import build_sweep, read_sweep
from specbench.sweep_time import parse_duration

LOADS = {"method": ["ngram"], "concurrency": [1, 8]}


def build(**parts: Any) -> Any:
    return build_sweep({"axes": {"method": ["ngram"]}, **parts}, name="test")


def test_settings_of_some_combinations_are_those_of_all_their_cells() -> None:
    rules = [
        {"concurrency": [8, 32], "set": {"num_prompts": 40, "max_new_tokens": 16}},
        {"concurrency": 32, "task": "starter-math", "set": {"num_prompts": "all"}},
    ]
    axes = {"method": ["ngram"], "concurrency": [1, 8, 32], "task": ["starter-math", "starter-chat"]}
    spec = build(base={"num_prompts": 5}, axes=axes, where=rules)
    found = {}
    for group in expand(spec):
        asked = {(cell.run.num_prompts, cell.run.max_new_tokens) for cell in group.cells}
        assert len(asked) == 1, "what is compared was asked the same"
        found[group.run.concurrency, group.run.tasks[0]] = asked.pop()
    said = build_sweep({"axes": axes, "where": rules}, name="test", sets=["num_prompts=3"])
    assert {group.run.num_prompts for group in expand(said)} == {3}, "the command line goes before the file"
    assert {group.run.max_new_tokens for group in expand(said) if group.run.concurrency == 8} == {16}
    plain = RunSpec(methods=(MethodSpec(name="ngram"),)).max_new_tokens
    assert found == {
        (1, "starter-math"): (5, plain),
        (1, "starter-chat"): (5, plain),
        (8, "starter-math"): (40, 16),
        (8, "starter-chat"): (40, 16),
        (32, "starter-math"): (None, 16),
        (32, "starter-chat"): (40, 16),
    }


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"axes": {"method": ["ngram:3"], "draft_length": [3]}}, "draft length of 'ngram:3' is given twice"),
        ({"base": {"draft_length": 4}, "axes": {"method": ["ngram:3"]}}, "is given twice, by the method"),
        ({"base": {"seed": 1}, "axes": {"method": ["ngram"], "seed": [1, 2]}}, "'seed' is given twice"),
        ({"base": {"load": {"rate": 1.0}, "workload": "poisson"}, "axes": {"method": ["ngram"], "rate": [1]}}, "twice"),
        ({"axes": {"method": ["vanilla"], "draft_length": [3]}}, "'draft_length' has nothing to act on"),
        ({"axes": {"method": ["vanilla"], "policy": ["threshold:0.5"]}}, "'policy' has nothing to act on"),
        ({"axes": {"method": ["vanilla:4"]}}, "vanilla drafts nothing"),
        ({"axes": {"method": []}}, "axis is empty"),
        ({"axes": {"method": ["ngram"], "temperature": []}}, "axis is empty"),
        ({"axes": {"method": ["ngram"], "temperature": [0, 1, 1.0]}}, "lists 1 twice"),
        ({"axes": {"method": ["mtp-1", "mtp:1"]}}, "lists mtp:1 twice"),
        ({"axes": {"method": ["ngram"], "temperature": 1}}, "write it in brackets"),
        ({"axes": {"method": ["ngram"], "temperature": [-1]}}, "temperature"),
        ({"axes": {"method": ["ngram"], "temprature": [1]}}, "did you mean temperature"),
        ({"axes": {}}, "method = "),
        ({"base": {"tempature": 1}}, "did you mean temperature"),
        ({"base": {"methods": ["ngram"]}}, "methods are an axis"),
        ({"base": {"options": {"ngarm": {}}}}, "did you mean ngram"),
        ({"base": {"load": 3}}, "must be a table"),
        ({"base": 3}, "must be a table"),
        ({"base": {"top_p": 0.9}}, "top_p changes nothing"),
        ({"base": {"drafters": {"ngram": "x"}}, "axes": {"method": ["ngram"], "target": ["a/b", "c/d"]}}, "2 targets"),
        ({"drafters": {"a/b": {"ngram": "x"}}}, "target under [drafters]"),
        ({"axes": {"method": ["ngram"], "rate": [1, 2]}}, "contradicts the closed loop"),
        ({"axes": {"method": ["ngram"], "workload": ["closed"], "load": [{"think_time": 1}]}}, "drop axis 'workload'"),
        ({"axes": {"method": ["ngram"], "concurrency": [1], "load": [{"concurrency": 2}]}}, "is given twice"),
        ({"exclude": [{"method": "eagle3"}]}, "value of 'method' in [[exclude]]"),
        ({"exclude": [{"seed": 1}]}, "axis in [[exclude]]"),
        ({"exclude": [{}]}, "hold for everything"),
        ({"where": [{"set": {"threads": 1}}]}, "names no axis"),
        ({"axes": LOADS, "where": [{"concurrency": 1}]}, "needs the settings of its cells"),
        ({"axes": LOADS, "where": [{"concurrency": 3, "set": {"threads": 1}}]}, "value of 'concurrency' in [[where]]"),
        ({"axes": LOADS, "where": [{"concurrency": [], "set": {"threads": 1}}]}, "would never hold"),
        ({"axes": LOADS, "where": [{"seed": 1, "set": {"threads": 1}}]}, "axis in [[where]]"),
        ({"axes": LOADS, "where": [{"method": "ngram", "set": {"threads": 1}}]}, "in which compared cells differ"),
        ({"axes": LOADS, "where": [{"concurrency": 1, "set": {"policy": "fixed"}}]}, "cannot be set in [[where]]"),
        ({"axes": LOADS, "where": [{"concurrency": 1, "set": {"concurrency": 2}}]}, "cannot be set in [[where]]"),
        ({"axes": LOADS, "where": [{"concurrency": 1, "set": {"num_promts": 2}}]}, "did you mean num_prompts"),
        ({"interleave": True, "base": {"workload": "poisson", "load": {"rate": 1}}}, "would not wait for their turn"),
        ({"interleave": True, "base": {"backend": "openai"}}, "would not wait for their turn"),
        ({"repeats": 0}, "repeats"),
        ({"repeat": 2}, "did you mean repeats"),
    ],
)  # fmt: skip
def test_contradictions_are_one_clear_line(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecbenchError) as refused:
        build(**parts)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"exclude": [{"method": "ngram"}]}, "leave out every cell"),
        ({"base": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"base": {"synthetic_tau": 5.0}, "axes": {"method": ["ngram:2"]}}, "out of reach"),
        ({"base": {"mix": {"gsm8k": 1}}}, "mix"),
        ({"axes": {"method": ["ngram"], "load": [{"rate": 1, "rat": 1, "workload": "poisson"}]}}, "did you mean rate"),
        ({"axes": {"method": ["ngram"], "load": [{"workload": "closed"}, {"concurrency": 1}]}}, "there twice"),
        ({"axes": {"method": ["ngram"], "workload": ["poison"]}}, "did you mean poisson"),
    ],
)
def test_what_no_run_takes_is_found_when_the_cells_are_made(parts: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError)) as refused:
        expand(build(**parts))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_is_named_with_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[axes\n")
    with pytest.raises(ConfigError, match=r"my\.toml is not valid TOML"):
        read_sweep(path)
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        read_sweep(tmp_path / "nowhere.toml")
    path.write_text('[axes]\nmethod = ["ngram:2", "mtp-1"]\n')
    spec = read_sweep(path, sets=["num_prompts=3", "ngram.max_ngram=2"])
    assert (spec.name, spec.base["num_prompts"]) == ("my", 3)
    assert spec.base["options"] == {"ngram": {"max_ngram": 2}}
    assert spec.axes.method == (MethodSpec(name="ngram", draft_length=2), MethodSpec(name="mtp", draft_length=1))
    with pytest.raises(SpecbenchError, match="did you mean num_prompts"):
        read_sweep(path, sets=["num_promts=3"])


def test_lengths_of_time() -> None:
    assert [parse_duration(text) for text in ("45", "90s", "30m", "1h30m", "0.5h")] == [45, 90, 1800, 5400, 1800]
    for text in ("", "soon", "30 m", "m", "1h1h", "-5m", "0", "10 20"):
        with pytest.raises(ConfigError, match="time"):
            parse_duration(text)
