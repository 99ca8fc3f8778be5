"""Answers as sequences: what the target wrote, where the mask lies, and what the settings promise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support_answers import prompt_file, read_rows, run_prepare
from support_models import tiny_llama_dir
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.errors import ConfigError, TaskError, TrainDataError
from specbench.train.check import check_answers
from specbench.train.dedup import share_of_hash, text_hash
from specbench.train.prepare import prepare
from specbench.train.shards import TokenData, TokenRow, write_token_shard
from specbench.train.spec import PrepareSpec


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[TokenRow]]:
    folder = tmp_path_factory.mktemp("made")
    manifest, rows = run_prepare(folder)
    return folder, manifest, rows


def test_greedy_answers_are_those_of_transformers(made: tuple[Path, dict[str, Any], list[TokenRow]]) -> None:
    folder, _, rows = made
    model = AutoModelForCausalLM.from_pretrained(folder / "tiny-llama", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tiny-llama")
    greedy = [row for row in rows if row.temperature == 0]
    assert len(greedy) >= 2
    for row in greedy:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": row.turns[0]}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(asked, add_special_tokens=False).input_ids
        assert row.token_ids[: len(ids)] == tuple(ids)
        out = model.generate(torch.tensor([ids]), max_new_tokens=10, do_sample=False)[0].tolist()
        assert row.token_ids[len(ids) : len(out)] == tuple(out[len(ids) :])
        assert row.loss_mask[: len(ids)] == (False,) * len(ids)
        assert row.loss_mask[len(ids) : len(out)] == (True,) * (len(out) - len(ids))


def test_a_second_turn_goes_on_in_the_row_or_begins_another(made: tuple[Path, dict[str, Any], list[TokenRow]]) -> None:
    _, manifest, rows = made
    assert len({row.conversation for row in rows}) == 8
    turns = {name: [row.turns for row in rows if row.conversation == name] for name in ("own/q0", "own/q1", "own/q2")}
    assert len(turns["own/q2"]) == 1
    for name in ("own/q0", "own/q1"):
        assert len(turns[name][-1]) == 2
        written = sum(sum(row.loss_mask) for row in rows if row.conversation == name)
        assert 2 <= written <= 20
    assert sum(e["target_tokens"] for e in manifest["shards"]) == sum(sum(row.loss_mask) for row in rows)


def test_split_and_greedy_share_follow_from_hashes(made: tuple[Path, dict[str, Any], list[TokenRow]]) -> None:
    _, manifest, rows = made
    for row in rows:
        assert row.prompt_hash == text_hash(row.turns[0])
        assert row.heldout == (share_of_hash("heldout", row.prompt_hash) < 0.3)
        name = row.conversation.split("/")[1]
        assert (row.temperature == 0) == (share_of_hash("greedy", "0", "own", name) < 0.4)
    assert {row.heldout for row in rows} == {False, True}
    assert {row.temperature for row in rows} == {0.0, 1.0}
    assert manifest["complete"]
    assert not manifest["stopped_early"]


def test_answers_do_not_depend_on_rows_or_blocks(made: tuple[Path, dict[str, Any], list[TokenRow]]) -> None:
    folder, _, rows = made
    _, again = run_prepare(folder, "wide", rows=8, block=8)
    assert again == rows
    _, other = run_prepare(folder, "seeded", seed=1, rows=8, block=8, greedy_share=0.0)
    assert [row.token_ids for row in other] != [row.token_ids for row in rows]


def test_it_stops_when_enough_is_written_and_goes_on_for_more(tmp_path: Path, made: Any) -> None:
    folder, whole, rows = made
    manifest, some = run_prepare(folder, "early", target_tokens=12)
    assert manifest["stopped_early"]
    assert len(manifest["shards"]) == 1
    assert some == rows[: len(some)]
    manifest, all_of_them = run_prepare(folder, "early", target_tokens=10_000)
    assert all_of_them == rows
    assert [e["sha256"] for e in manifest["shards"]] == [e["sha256"] for e in whole["shards"]]
    assert run_prepare(folder, "early", target_tokens=10_000)[0] == manifest  # nothing left to do


def test_written_turns_become_prompts(tmp_path: Path) -> None:
    manifest, rows = run_prepare(
        tmp_path, tasks=(), synthesise=7, block=20, domains=("math", "chat"), max_turn_tokens=30
    )
    assert len(rows) >= 7
    assert len({row.conversation for row in rows}) == 7
    assert {row.domain for row in rows} <= {"math", "chat"}
    assert all(row.conversation.startswith("synthesised/") for row in rows)
    entry = manifest["prompt_shards"][0]
    assert entry["prompts"] + sum(entry["refused"].values()) == entry["candidates"] == 20


def test_what_the_check_finds(made: tuple[Path, dict[str, Any], list[TokenRow]], tmp_path: Path) -> None:
    folder, manifest, rows = made
    found = check_answers([folder / "answers"], evaluation=["starter-math", "starter-chat"])
    assert found.faults == ()
    assert (found.conversations, found.target_tokens) == (8, sum(sum(row.loss_mask) for row in rows))
    against = check_answers([folder / "answers"], evaluation=[str(folder / "own.jsonl")])
    assert len(against.faults) == len(rows)

    bad = tmp_path / "bad"
    bad.mkdir()
    one = next(row for row in rows if not row.heldout)
    near = f"{one.turns[0]} !"
    held = replace(one, heldout=True)
    odd = replace(one, conversation="own/near", turns=(near,), prompt_hash=text_hash(near))
    wrong = replace(one, conversation="own/wrong", turns=("Something quite different is asked for here.",))
    entry = write_token_shard(bad / "answers-00000.parquet", [one, held, odd, wrong])
    (bad / "manifest.json").write_text(json.dumps({**manifest, "shards": [entry]}))
    assert check_answers([bad], evaluation=["starter-math"]).faults == (
        "own/wrong: its prompt's hash is that of another text",
        f"{one.conversation}: its prompt is on both sides of the split",
        f"own/near nearly repeats {one.conversation}, which is held out",
        "own/wrong: its prompt is on both sides of the split",
    )


def test_evaluation_prompts_are_refused(tmp_path: Path) -> None:
    path = prompt_file(tmp_path, count=6, second=0)
    kept_out = tmp_path / "kept.jsonl"
    kept_out.write_text("\n".join(path.read_text().splitlines()[:2]) + "\n")
    manifest, rows = run_prepare(tmp_path, evaluation=(str(kept_out),))
    assert manifest["refused_given"] == {"same as in kept": 2}
    assert {row.conversation for row in rows} == {f"own/q{i}" for i in range(2, 6)}
    with pytest.raises(TaskError, match="all 6 prompts are refused"):
        run_prepare(tmp_path, "none", evaluation=(str(path),))


def test_prompts_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    path = prompt_file(tmp_path, count=3, second=0)
    with path.open("a") as file:
        file.write(json.dumps({"id": "long", "turns": ["word " * 200]}) + "\n")
    manifest, rows = run_prepare(tmp_path, max_context=120)
    assert sum((e["skipped"].get("no room in the context", 0)) for e in manifest["shards"]) == 1
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_new_tokens": 11}, "was begun with max_new_tokens = 10, now it is 11"),
        ({"seed": 5}, "was begun with seed = 0, now it is 5"),
        ({"evaluation": ("starter-code",)}, "was begun with evaluation"),
    ],
)
def test_a_folder_takes_one_kind_of_data(made: Any, change: dict[str, Any], says: str) -> None:
    with pytest.raises(TrainDataError, match=says):
        run_prepare(made[0], **change)


def test_another_target_in_the_same_folder(made: Any, tmp_path: Path) -> None:
    other = tiny_llama_dir(tmp_path, name="other", seed=9)
    with pytest.raises(TrainDataError, match="was begun with"):
        run_prepare(made[0], target=str(other))


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    manifest, _ = run_prepare(tmp_path)
    path = tmp_path / "answers" / manifest["shards"][1]["name"]
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    with pytest.raises(TrainDataError, match=r"answers-00001.parquet is missing or damaged"):
        run_prepare(tmp_path)
    with pytest.raises(TrainDataError, match=r"answers-00001.parquet is missing or damaged"):
        TokenData.open([tmp_path / "answers"])


def test_shards_lie_flat_behind_one_another(made: tuple[Path, dict[str, Any], list[TokenRow]]) -> None:
    folder, manifest, rows = made
    data = TokenData.open([folder / "answers", folder / "answers"])
    assert data.num_sequences == 2 * len(rows)
    assert data.num_tokens == 2 * sum(len(row.token_ids) for row in rows)
    for i, row in enumerate(rows):
        part = slice(data.sequences[i], data.sequences[i + 1])
        assert tuple(data.token_ids[part].tolist()) == row.token_ids
        assert tuple(data.loss_mask[part].tolist()) == row.loss_mask
        assert data.heldout[i] == row.heldout
    assert read_rows(folder / "answers", manifest) == rows


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    for change, says in (
        ({"tasks": ()}, "no prompts"),
        ({"tasks": ("a", "a")}, "listed twice"),
        ({"domains": "cooking"}, "no openers; known: math, code, chat"),
        ({"base_url": "http://localhost:1/v1"}, "needs --server-model"),
    ):
        with pytest.raises(ValueError, match=says):
            PrepareSpec(**{"out": tmp_path, "tasks": ("starter-math",), **change})


def test_turns_need_a_chat_template(tmp_path: Path) -> None:
    plain = tiny_llama_dir(tmp_path, name="plain", chat_template=None)
    with pytest.raises(ConfigError, match="no chat template"):
        prepare(
            PrepareSpec(out=tmp_path / "o", target=str(plain), synthesise=4, evaluation=("starter-math",), threads=1)
        )
