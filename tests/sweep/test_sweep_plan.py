"""From axes to cells: no cell twice, every combination unless it is excluded, in one and the same fair order."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_models import tiny_llama_dir
from support_runs import write_prompts

from specbench.errors import SpecbenchError
from specbench.sweep_plan import Group, expand, label, select, varying
from specbench.sweep_spec import GROUP_AXES, build_sweep

VALUES: dict[str, list[Any]] = {
    "target": ["smollm2-135m", "qwen3-4b"],
    "task": ["starter-math", "starter-code", ["starter-math", "starter-chat"]],
    "concurrency": [1, 4, 16],
    "temperature": [0, 0.7],
    "seed": [0, 7],
    "draft_length": [2, 5],
    "policy": ["fixed", "threshold:0.5"],
}
METHODS = ["vanilla", "ngram", "draft-model", "mtp"]


@st.composite
def sweeps(draw: st.DrawFn) -> dict[str, Any]:
    methods = draw(st.lists(st.sampled_from(METHODS), min_size=1, max_size=3, unique=True))
    axes: dict[str, Any] = {"method": methods}
    for name in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True)):
        if name not in ("draft_length", "policy") or methods != ["vanilla"]:
            axes[name] = draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3, unique_by=str))
    rules = []
    for _ in range(draw(st.integers(0, 2))):
        used = draw(st.lists(st.sampled_from(sorted(axes)), min_size=1, max_size=2, unique=True))
        rules.append({name: draw(st.sampled_from(axes[name])) for name in used})
    places = sorted(set(axes) & set(GROUP_AXES))
    special = []
    for number in range(draw(st.integers(0, 2)) if places else 0):
        used = draw(st.lists(st.sampled_from(places), min_size=1, max_size=2, unique=True))
        named = {name: text(draw(st.sampled_from(axes[name]))) for name in used}
        setting = draw(st.sampled_from(["num_prompts", "max_new_tokens"]))
        special.append({**named, "set": {setting: 20 + number}})
    return {
        "axes": axes,
        "where": special,
        "exclude": [{n: v if not isinstance(v, list) else "+".join(v) for n, v in rule.items()} for rule in rules],
        "base": {"baseline": draw(st.booleans())},
        "repeats": draw(st.integers(1, 3)),
        "order_seed": draw(st.integers(0, 3)),
    }


def text(value: Any) -> str:
    return "+".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, int | float) else value


def expected(document: dict[str, Any]) -> set[tuple[tuple[str, str], ...]]:
    """Every combination by brute force, as sets of what the axes say of a cell."""
    axes, found = document["axes"], set()
    shared = [axis for axis in GROUP_AXES if axis in axes]
    arms = [axis for axis in ("method", "draft_length", "policy") if axis in axes]

    def excluded(said: dict[str, str]) -> bool:
        rules = document["exclude"]
        return any(all(axis in said and said[axis] == text(value) for axis, value in rule.items()) for rule in rules)

    for place in product(*(axes[axis] for axis in shared)):
        where = dict(zip(shared, map(text, place)))
        here = set()
        for values in product(*(axes[axis] for axis in arms)):
            said = where | dict(zip(arms, map(text, values)))
            if said["method"] != "vanilla" and not excluded(said):
                here.add(tuple(sorted(said.items())))
        plain = where | {"method": "vanilla"}
        explicit = "vanilla" in axes["method"] and not excluded(plain)
        if explicit or (here and document["base"]["baseline"]):
            here.add(tuple(sorted(plain.items())))
        found |= here
    return found


def special_settings(document: dict[str, Any], cell: Any) -> tuple[int, int]:
    """(num_prompts, max_new_tokens) of a cell by brute force."""
    found = {"num_prompts": 10, "max_new_tokens": 128}
    for rule in document["where"]:
        if all(cell.settings[axis] == value for axis, value in rule.items() if axis != "set"):
            found |= rule["set"]
    return found["num_prompts"], found["max_new_tokens"]


def said_of(cell: Any, axes: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    said = {axis: cell.settings[axis] for axis in axes if axis in cell.settings}
    said["method"] = cell.method.name
    if cell.is_control:
        said.pop("draft_length", None)
    return tuple(sorted(said.items()))


@settings(max_examples=60, deadline=None)
@given(sweeps())
def test_every_combination_once_a_repeat_and_no_cell_twice(document: dict[str, Any]) -> None:
    wanted = expected(document)
    spec = build_sweep(document, name="property")
    if not wanted:
        with pytest.raises(SpecbenchError, match="leave out every cell"):
            expand(spec)
        return
    groups = expand(spec)
    cells = [cell for group in groups for cell in group.cells]
    assert len({cell.key for cell in cells}) == len(cells) == len(wanted) * document["repeats"]
    for repeat in range(document["repeats"]):
        assert {said_of(c, document["axes"]) for c in cells if c.repeat == repeat} == wanted
    again = expand(build_sweep(json.loads(json.dumps(document)), name="property"))
    assert [cell.key for group in again for cell in group.cells] == [cell.key for cell in cells]
    for group in groups:
        assert {cell.group for cell in group.cells} == {group.key}
        assert len({cell.run.model_copy(update={"methods": ()}).sampling for cell in group.cells}) == 1
        assert group.control is None or group.control.key == group.key
        asked = {(cell.run.num_prompts, cell.run.max_new_tokens) for cell in group.cells}
        assert asked == {special_settings(document, cell) for cell in group.cells}
        assert len(asked) == 1
    order = [group.run.target for group in groups]
    assert len(list(dict.fromkeys(order))) == sum(a != b for a, b in zip([None, *order], order))  # loaded once each


def test_arms_and_groups_rotate_so_that_each_is_first_once() -> None:
    document = {
        "axes": {"method": ["vanilla", "ngram"], "draft_length": [2, 5], "seed": [0, 1, 2]},
        "repeats": 3,
    }
    groups = expand(build_sweep(document, name="rotation"))
    by_seed: dict[str, list[Group]] = {}
    for group in groups:
        by_seed.setdefault(group.cells[0].settings["seed"], []).append(group)
    assert [group.cells[0].repeat for group in groups] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for mine in by_seed.values():
        for position in range(3):
            assert len({group.cells[position].settings["method"] for group in mine}) == 3
    for position in range(3):  # and each group is at each place of a block once
        assert len({groups[block * 3 + position].cells[0].settings["seed"] for block in range(3)}) == 3
    other = expand(build_sweep({**document, "order_seed": 1}, name="rotation"))
    assert {c.key for g in other for c in g.cells} == {c.key for g in groups for c in g.cells}
    assert [g.key for g in other] != [g.key for g in groups]


def keys(folder: Path, **base: Any) -> list[str]:
    settings_ = {"target": str(folder / "tiny-llama"), "tasks": [str(folder / "prompts.jsonl")], **base}
    document = {"base": settings_, "axes": {"method": ["ngram:3"]}}
    return sorted(cell.key for group in expand(build_sweep(document, name="keys")) for cell in group.cells)


def test_a_key_is_of_content_not_of_names(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    tiny_llama_dir(tmp_path / "here")
    write_prompts(tmp_path / "here" / "prompts.jsonl")
    first = keys(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    assert keys(moved) == first
    assert keys(moved, out="elsewhere", trust_remote_code=True) == first
    assert keys(moved, max_new_tokens=128) == first  # the default, said aloud
    assert not set(keys(moved, max_new_tokens=64)) & set(first)
    assert not set(keys(moved, options={"vanilla": {}, "ngram": {"max_ngram": 2}})) >= set(first)
    write_prompts(moved / "prompts.jsonl", [["another prompt"]])
    assert not set(keys(moved)) & set(first)
    write_prompts(moved / "prompts.jsonl")
    weights = moved / "tiny-llama" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert not set(keys(moved)) & set(first)


def test_plain_decoding_is_one_cell_whatever_the_drafts_are() -> None:
    def controls(**axes: Any) -> list[str]:
        document = {"axes": {"method": ["ngram"], **axes}, "base": {"options": {"ngram": {"max_ngram": 2}}}}
        return [c.key for g in expand(build_sweep(document, name="x")) for c in g.cells if c.is_control]

    assert controls() == controls(draft_length=[2, 5]) == controls(policy=["fixed", "threshold:0.5"])
    assert len(controls(draft_length=[2, 5], policy=["fixed", "threshold:0.5"])) == 1


def sample() -> list[Group]:
    axes = {"method": ["ngram", "mtp"], "draft_length": [2, 5], "temperature": [0, 0.5], "task": ["gsm8k", "mbpp"]}
    return expand(build_sweep({"axes": axes, "repeats": 2}, name="sample"))


def chosen(*expressions: str) -> set[str]:
    groups = sample()
    axes = varying(groups)
    return {label(cell, axes) for group in select(groups, expressions) for cell in group.cells}


def test_only_chooses_cells_and_their_controls() -> None:
    assert chosen("method=mtp:2", "task=gsm8k", "temperature=0.5", "repeat=2") == {
        "vanilla task=gsm8k temperature=0.5 repeat=2", "mtp:2 task=gsm8k temperature=0.5 repeat=2",
    }  # fmt: skip
    assert len(chosen("method=ngram")) == 2 * 2 * 2 * 3
    assert chosen("method!=mtp") == chosen("method=ngram") == chosen("method=ngram:2,ngram:5")
    assert chosen("temperature=0.50") == chosen("temperature!=0")
    assert chosen("draft-length=5", "method=mtp") == chosen("method=mtp:5")
    for wrong, says in (
        ("method", "AXIS=VALUE"), ("methd=ngram", "did you mean method"), ("method=ngarm", "did you mean ngram"),
        ("temperature=0.6", "value of 'temperature'"), ("=3", "AXIS=VALUE"),
    ):  # fmt: skip
        with pytest.raises(SpecbenchError) as refused:
            chosen(wrong)
        assert says in str(refused.value)
    with pytest.raises(SpecbenchError, match="no cell is"):
        chosen("method=ngram", "method=mtp")
