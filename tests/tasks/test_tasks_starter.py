from __future__ import annotations

import re
from itertools import combinations

import pytest

from specbench import registry
from specbench.errors import TaskError
from specbench.types import Prompt

STARTERS = {"starter-math": "math", "starter-code": "code", "starter-chat": "chat", "starter-edit": "edit"}
LEAST = {"starter-math": (40, 6), "starter-code": (40, 6), "starter-chat": (40, 6), "starter-edit": (20, 0)}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def shingles(text: str, width: int = 5) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i : i + width]) for i in range(max(1, len(found) - width + 1))}


@pytest.mark.parametrize("name", sorted(STARTERS))
def test_counts_domains_and_ids(name: str) -> None:
    task = registry.load("tasks", name)
    prompts = task.prompts()
    least, two_turns = LEAST[name]
    assert (task.name, task.domain) == (name, STARTERS[name])
    assert len(prompts) >= least
    assert sum(len(p.turns) == 2 for p in prompts) >= two_turns
    assert {len(p.turns) for p in prompts} <= {1, 2}
    assert len({p.id for p in prompts}) == len(prompts)
    assert {(p.task, p.domain) for p in prompts} == {(name, STARTERS[name])}
    assert re.fullmatch(r"1-[0-9a-f]{16}", task.version)


def test_edit_has_twenty_prompts_with_a_text_of_its_own() -> None:
    prompts = registry.load("tasks", "starter-edit").prompts()
    assert len(prompts) == 20
    for prompt in prompts:
        instruction, text = prompt.turns[0].split("\n\n", 1)
        assert len(words(instruction)) < 50, prompt.id
        assert 100 <= len(words(text)) <= 260, prompt.id


def test_lengths_vary() -> None:
    for name in ("starter-math", "starter-code", "starter-chat"):
        lengths = sorted(len(words(p.turns[0])) for p in registry.load("tasks", name).prompts())
        assert lengths[-1] >= 4 * lengths[0], name
        assert len(set(lengths)) >= 15, name


def near_duplicates(prompts: list[Prompt], share: float) -> list[tuple[str, str]]:
    """Pairs of turns whose shorter one has more than ``share`` of its 5-word shingles in the longer one."""
    turns = [(f"{p.id}/{i}", shingles(turn)) for p in prompts for i, turn in enumerate(p.turns)]
    return [
        (a, b)
        for (a, first), (b, second) in combinations(turns, 2)
        if len(first & second) > share * min(len(first), len(second))
    ]


def test_all_prompts_are_distinct_and_none_nearly_repeats_another() -> None:
    prompts = [p for name in STARTERS for p in registry.load("tasks", name).prompts()]
    assert len({turn for p in prompts for turn in p.turns}) == sum(len(p.turns) for p in prompts)
    assert near_duplicates(prompts, share=0.6) == []


def test_the_near_duplicate_check_sees_a_changed_word() -> None:
    text = "A bakery packs muffins in boxes of six and this morning it baked eight trays of fifteen muffins"
    texts = [text, text.replace("trays", "tins")]
    pair = [Prompt(id=str(i), task="t", domain="d", turns=(t,)) for i, t in enumerate(texts)]
    assert near_duplicates(pair, share=0.6) == [("0/0", "1/0")]


@pytest.mark.parametrize("name", sorted(STARTERS))
def test_sample_is_stable_nested_seeded_and_in_order(name: str) -> None:
    task = registry.load("tasks", name)
    everything = task.prompts()
    ids = [p.id for p in everything]
    assert task.prompts(limit=len(ids) + 5, seed=3) == everything
    small, large = task.prompts(limit=5, seed=3), task.prompts(limit=12, seed=3)
    assert len(small) == 5
    assert {p.id for p in small} < {p.id for p in large}
    assert [p.id for p in large] == [i for i in ids if i in {p.id for p in large}]
    assert task.prompts(limit=5, seed=3) == small
    assert len({tuple(p.id for p in task.prompts(limit=5, seed=s)) for s in range(20)}) >= 18


def test_every_prompt_is_reached_by_some_seed() -> None:
    task = registry.load("tasks", "starter-edit")
    reached = {p.id for seed in range(60) for p in task.prompts(limit=3, seed=seed)}
    assert reached == {p.id for p in task.prompts()}


def test_the_sample_of_seed_0_never_moves() -> None:
    """Records of other days name these prompts; a new hash would silently compare different ones."""
    chosen = [p.id for p in registry.load("tasks", "starter-edit").prompts(limit=4, seed=0)]
    assert chosen == ["edit-05", "edit-09", "edit-12", "edit-18"]


@pytest.mark.parametrize("limit", [0, -1])
def test_zero_prompts_is_an_error(limit: int) -> None:
    with pytest.raises(TaskError, match=f"number of prompts is {limit}; give at least 1"):
        registry.load("tasks", "starter-math").prompts(limit=limit)
