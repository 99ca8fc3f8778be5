"""Where prompts come from, what is refused, and how texts are compared."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.errors import ConfigError, TaskError
from specbench.session import load_task
from specbench.train.dedup import EvaluationIndex, NearDuplicates, share_of_hash, shingles, text_hash
from specbench.train.openers import OPENERS, SLOTS, draw_opener, openers_hash
from specbench.train.sources import Sieve, copy_rows, load_evaluation, load_prompts
from specbench.train.spec import PrepareSpec
from specbench.types import Prompt

MARBLES = "Mira has twice as many marbles as Jon. Together they have 87. How many does each of them have?"


def prompt(text: str, *more: str, id: str = "p") -> Prompt:
    return Prompt(id=id, task="t", domain="math", turns=(text, *more))


def evaluation_of(*texts: str) -> EvaluationIndex:
    index = EvaluationIndex()
    index.add("held", [prompt(text, id=str(i)) for i, text in enumerate(texts)])
    return index


# ------------------------------------------------------------------------------------------------------ alike


def test_a_copy_differs_in_case_width_and_spacing_only() -> None:
    assert text_hash("What  is\n2 + 2 ?") == text_hash("what is 2+2?")
    assert text_hash("What is 2 + 2?") != text_hash("What is 2 + 3?")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (MARBLES, "same"),
        (MARBLES.upper(), "same"),
        ("Please help me with this. " + MARBLES + " Thank you very much!", "near"),
        (MARBLES.replace("marbles", "stamps"), "near"),
        ("Mira has twice as many marbles as Jon. Together they have 87.", "near"),
        ("Ben bought three books and gave one of them to his sister. How many has he now?", None),
        ("How many marbles does Jon have?", None),
    ],
)
def test_copies_and_near_copies_of_an_evaluation_prompt(text: str, kind: str | None) -> None:
    found = evaluation_of(MARBLES, "Name the capital of Mongolia and its river.").find(text)
    assert (found.kind if found else None) == kind
    if found:
        assert (found.task, found.prompt) == ("held", "0")


def test_the_wording_that_a_task_puts_around_every_prompt_is_not_its_content() -> None:
    ending = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    topics = ["whales", "bridges", "tea", "chess", "maps", "soap", "paper", "jazz", "bees", "snow", "salt", "glass"]
    index = evaluation_of(*(f"How heavy is all the {t} in the world?" + ending for t in topics))
    assert index.find("What is the sum of the first nine odd numbers?" + ending) is None
    assert index.find("How heavy is all the jazz in the world?") is not None


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_text_is_like_itself_and_added_once(text: str) -> None:
    seen = NearDuplicates()
    assert shingles(text)
    assert seen.add(text) is None
    assert seen.add(text + " ") == 0
    assert len(seen) == 1


def test_near_copies_among_training_prompts_are_found_and_others_are_not() -> None:
    text = "the quick brown fox jumps over a lazy dog while nine small birds sing in an old apple tree near the river"
    words = text.split()
    seen = NearDuplicates()
    assert seen.add(" ".join(words)) is None
    changed = [*words[:-1], "lake"]
    assert seen.find(" ".join(changed)) == 0
    assert seen.find(" ".join(words[::-1])) is None


def test_shares_by_hash_are_even_and_stable() -> None:
    drawn = [share_of_hash("x", str(i)) for i in range(4000)]
    assert 0.48 < sum(drawn) / len(drawn) < 0.52
    assert share_of_hash("x", "1") == drawn[1] != share_of_hash("y", "1")


# ---------------------------------------------------------------------------------------------------- openers


def test_openers_are_the_same_everywhere_and_use_known_slots() -> None:
    first = [draw_opener(d, seed=3, number=n) for d in OPENERS for n in range(300)]
    assert first == [draw_opener(d, seed=3, number=n) for d in OPENERS for n in range(300)]
    assert first != [draw_opener(d, seed=4, number=n) for d in OPENERS for n in range(300)]
    assert len({one.text for one in first}) > 300
    assert len(openers_hash()) == 16
    assert all(len(words) == len(set(words)) or name == "language" for name, words in SLOTS.items())


def test_openers_do_not_repeat_the_starter_tasks() -> None:
    kept_out = load_evaluation(["starter-math", "starter-code", "starter-chat", "starter-edit"]).index
    whole = [o for d in OPENERS for n in range(400) if (o := draw_opener(d, seed=0, number=n)).whole]
    assert len(whole) > 200
    assert sum(kept_out.find(o.text) is not None for o in whole) <= len(whole) // 50
    followed = {o.then for d in OPENERS for n in range(400) if (o := draw_opener(d, seed=0, number=n)).then}
    assert len(followed) > 10
    assert not [text for text in followed if text is not None and kept_out.find(text)]


# ---------------------------------------------------------------------------------------------------- sources


def test_the_sieve_counts_why_it_refuses() -> None:
    sieve = Sieve(evaluation_of(MARBLES))
    other = "Describe how a lighthouse works and why ships need it at night."
    assert sieve.admits(prompt(other))
    assert not sieve.admits(prompt(other + " Please."))
    assert not sieve.admits(prompt("Write a poem about a blue teapot.", MARBLES))
    assert sieve.refused == {"near copy of another prompt": 1, "same as in held": 1}


def test_evaluation_is_every_task_that_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = load_evaluation(None)
    assert {"starter-math", "starter-code", "starter-chat", "starter-edit", "humaneval"} <= set(found.tasks)
    assert "file" not in found.tasks
    assert "offline" in found.absent["gsm8k"].lower()
    with pytest.raises(TaskError, match="gsm8k"):
        load_evaluation(["gsm8k"])


def write_parquet(folder: Path, rows: list[dict[str, object]]) -> Path:
    folder.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(str(folder / "train-00000-of-00001.parquet"))
    return folder


CHATS = [
    {
        "conversations": [{"from": "human", "value": f"Tell me about {t}."}, {"from": "gpt", "value": "No."}],
        "source": "x",
    }
    for t in ("owls", "mice", "frogs")
]


def test_a_data_set_in_a_folder_becomes_a_prompt_file(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "blend", CHATS)
    assert copy_rows(str(folder), split="train", limit=2, path=tmp_path / "two.jsonl") == 2
    assert [p.turns for p in load_task(str(tmp_path / "two.jsonl")).prompts()] == [
        ("Tell me about owls.",),
        ("Tell me about mice.",),
    ]
    spec = PrepareSpec(out=tmp_path, hub=str(folder), tasks=("starter-math",), num_prompts=3)
    prompts, versions = load_prompts(spec, folder=tmp_path)
    assert [p.task for p in prompts] == ["starter-math", "hub-prompts"] * 3
    assert set(versions) == {"starter-math", "hub-prompts"}
    (folder / "train-00000-of-00001.parquet").unlink()
    assert load_prompts(spec, folder=tmp_path)[0] == prompts  # the copy is what counts from now on


def test_a_saved_data_set_is_read_by_its_split(tmp_path: Path) -> None:
    data = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(CHATS), "test": datasets.Dataset.from_list(CHATS[:1])}
    )
    data.save_to_disk(str(tmp_path / "saved"))
    assert copy_rows(str(tmp_path / "saved"), split="test", limit=None, path=tmp_path / "one.jsonl") == 1
    with pytest.raises(TaskError, match="no split 'dev'; it has train, test"):
        copy_rows(str(tmp_path / "saved"), split="dev", limit=None, path=tmp_path / "none.jsonl")


def test_data_sets_without_conversations_or_at_all(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "odd", [{"picture": "a"}])
    with pytest.raises(TaskError, match="has no rows with one of turns"):
        copy_rows(str(folder), split="train", limit=None, path=tmp_path / "x.jsonl")
    with pytest.raises(TaskError, match="give a folder with its files, or --prompts FILE"):
        copy_rows(str(tmp_path / "absent"), split="train", limit=None, path=tmp_path / "x.jsonl")


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.jsonl").write_text(json.dumps({"prompt": "Hello there."}) + "\n")
    spec = PrepareSpec(out=tmp_path, tasks=(str(tmp_path / "a/own.jsonl"), str(tmp_path / "b/own.jsonl")))
    with pytest.raises(ConfigError, match="two sources are called 'own'"):
        load_prompts(spec, folder=tmp_path)
