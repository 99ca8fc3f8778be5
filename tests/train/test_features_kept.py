"""Features kept while the answers are written are those of a second pass, and survive kills together with them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from support_answers import prompt_file, read_rows, run_prepare
from support_kill import exists, killed_when, run_here
from support_models import tiny_llama_dir
from support_targets import SMALL, tiny_model

from specbench.engine.scheduler import Scheduler
from specbench.engine.sequence import Sequence
from specbench.engine.target import Target
from specbench.errors import ConfigError, TrainDataError
from specbench.train.bind import data_hash
from specbench.train.capture import HeadNormaliser, StateKeeper
from specbench.train.check import check_answers
from specbench.train.features import FeatureForward, make_features
from specbench.train.shards import write_token_shard
from specbench.train.spec import FeaturesSpec, PrepareSpec
from specbench.train.store import FeatureStore


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    prompt_file(folder, count=7, second=3)
    run_prepare(folder, features=folder / "features", taps=(0, 2))
    return folder


def test_kept_states_are_those_of_a_second_pass(made: Path) -> None:
    spec = FeaturesSpec(
        data=(made / "answers",), out=made / "again", target=str(made / "tiny-llama"), taps=(0, 2), threads=1,
        dtype="float32",
    )  # fmt: skip
    make_features(spec)
    kept, again = FeatureStore.open(made / "features", verify=True), FeatureStore.open(made / "again")
    np.testing.assert_array_equal(kept.token_ids[:], again.token_ids[:])
    np.testing.assert_array_equal(kept.loss_mask[:], again.loss_mask[:])
    np.testing.assert_array_equal(kept.sequences, again.sequences)
    assert list(kept.split("heldout")) == list(again.split("heldout"))
    assert kept.meta["data_sha256"] == again.meta["data_sha256"]
    assert (kept.meta["states"], again.meta["states"]) == ("kept", "recomputed")
    for sequence in range(kept.num_sequences):
        mine, theirs = kept.gather([sequence]), again.gather([sequence])
        for name in ("hidden", "last_hidden", "log_normaliser"):
            a, b = getattr(mine, name).float(), getattr(theirs, name).float()
            torch.testing.assert_close(a[:-1], b[:-1], atol=2e-2, rtol=2e-2)
        assert not mine.hidden[-1].any()
        assert not mine.last_hidden[-1].any()


def test_what_repeats_a_held_out_prompt_of_another_part_is_left_out(made: Path, tmp_path: Path) -> None:
    manifest = json.loads((made / "answers" / "manifest.json").read_text())
    rows = read_rows(made / "answers", manifest)
    one = next(row for row in rows if not row.heldout)
    other = tmp_path / "answers"
    other.mkdir()
    entry = write_token_shard(other / "answers-00000.parquet", [replace(one, conversation="own/again", heldout=True)])
    (other / "manifest.json").write_text(json.dumps({**manifest, "shards": [{**entry, "prompts": 1, "skipped": {}}]}))
    make_features(
        FeaturesSpec(data=(other,), out=tmp_path / "two", target=str(made / "tiny-llama"), taps=(0, 2), threads=1)
    )
    shutil.copytree(made / "features", tmp_path / "one")
    parts, stores = [other, made / "answers"], [tmp_path / "two", tmp_path / "one"]
    assert len(check_answers(parts, evaluation=["starter-math"]).faults) == 1
    before = FeatureStore.open(*stores)
    for _ in range(2):  # again, it finds the same
        found = check_answers(parts, features=stores, evaluation=["starter-math"])
        assert found.faults == ()
        assert found.left_out == (f"{one.conversation}: its prompt is on both sides of the split",)
        after = FeatureStore.open(*stores)
        gone = {1 + number for number, row in enumerate(rows) if row.conversation == one.conversation}
        assert set(before.split("train")) - set(after.split("train")) == gone
        assert list(after.split("heldout")) == list(before.split("heldout"))
    assert after.meta["left_out"] == sorted(gone)
    assert data_hash(after) != data_hash(before)
    assert data_hash(FeatureStore.open(tmp_path / "two")) == data_hash(FeatureStore.open(*stores[:1]))
    with pytest.raises(TrainDataError, match="in the order of --data"):
        check_answers(parts, features=stores[::-1], evaluation=["starter-math"])
    with pytest.raises(TrainDataError, match="name one for each"):
        check_answers(parts, features=stores[:1], evaluation=["starter-math"])


def test_keeping_changes_no_answer(made: Path) -> None:
    plain, _ = run_prepare(made, "plain")
    kept = json.loads((made / "answers" / "manifest.json").read_text())
    assert [e["sha256"] for e in plain["shards"]] == [e["sha256"] for e in kept["shards"]]


def test_requests_that_were_recomputed_keep_their_states(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pages for few sequences the engine takes rows back and computes them again."""
    preempted: list[str] = []
    original = Scheduler._preempt

    def watched(self: Scheduler, victim: Sequence) -> int:
        preempted.append(victim.request.id)
        return original(self, victim)

    monkeypatch.setattr(Scheduler, "_preempt", watched)
    run_prepare(made, "tight", features=made / "tight-features", taps=(0, 2), rows=6, block=7, kv_memory=60_000)
    wide, tight = FeatureStore.open(made / "features"), FeatureStore.open(made / "tight-features")
    np.testing.assert_array_equal(wide.token_ids[:], tight.token_ids[:])
    a = wide.gather(range(wide.num_sequences)).hidden.float()
    b = tight.gather(range(wide.num_sequences)).hidden.float()
    torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)
    assert preempted


def test_killed_in_both_writings_both_folders_are_the_same(made: Path, tmp_path: Path) -> None:
    def options(name: str) -> list[str]:
        return [
            "train", "prepare", "--target", str(made / "tiny-llama"), "--prompts", str(made / "own.jsonl"),
            "--evaluation", "starter-math", "--block", "2", "--rows", "2", "--max-new-tokens", "10", "--threads", "1",
            "--taps", "1", "--features", str(tmp_path / name / "f"), "--out", str(tmp_path / name / "a"),
        ]  # fmt: skip

    def content(name: str) -> list[Any]:
        return [json.loads((tmp_path / name / part / "manifest.json").read_text()) for part in ("a", "f")]

    run_here(options("whole"))
    broken = tmp_path / "broken"
    for awaited in (broken / "f/00000", broken / "a/answers-00001.parquet", broken / "f/.00002.partial"):
        killed_when(exists(awaited), options("broken"))
    run_here(options("broken"))
    assert content("broken") == content("whole")
    FeatureStore.open(broken / "f", verify=True)


def test_features_cannot_begin_in_the_middle(made: Path) -> None:
    with pytest.raises(TrainDataError, match=r"lacks \d shards that are answered already; leave --features out"):
        run_prepare(made, features=made / "late", taps=(1,))
    with pytest.raises(TrainDataError, match=r"was begun with taps = \[0, 2\], now it is \[1\]"):
        run_prepare(made, features=made / "features", taps=(1,))


def test_an_unfinished_store_opens_on_demand(tmp_path: Path) -> None:
    run_prepare(tmp_path, features=tmp_path / "features", taps=(1,), target_tokens=12)
    path = tmp_path / "features" / "manifest.json"
    path.write_text(path.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(TrainDataError, match="is unfinished"):
        FeatureStore.open(tmp_path / "features")
    assert FeatureStore.open(tmp_path / "features", unfinished=True).num_sequences >= 3


def test_the_head_alone_tells_the_normaliser_or_is_refused() -> None:
    target = Target(tiny_model("qwen3"))
    ids = np.arange(3, 40, dtype=np.int32)
    with FeatureForward(target, ()) as forward:
        found = forward.compute(ids, [37])
    normaliser = HeadNormaliser(target)
    torch.testing.assert_close(normaliser(found.last_hidden), found.log_normaliser)
    # a block's last states are thousands: never logits of all of them at once
    head, seen = normaliser._head, list[int]()
    normaliser._head = lambda states: seen.append(len(states)) or head(states)
    normaliser(found.last_hidden[:1].expand(700, -1))
    assert sum(seen) == 700
    assert max(seen) <= 256

    torch.manual_seed(0)
    config = tf.Gemma2Config(**{**SMALL, "head_dim": 16, "final_logit_softcapping": 0.5, "initializer_range": 0.5})
    capped = Target(tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    with pytest.raises(ConfigError, match="scales or caps its logits after the head"):
        HeadNormaliser(capped)


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    tiny_llama_dir(tmp_path)
    for change, says in (
        ({"taps": (1,)}, "give --features FOLDER as well"),
        ({"features": tmp_path / "f", "taps": (2, 1)}, "taps must be ascending"),
        ({"features": tmp_path / "f", "base_url": "http://x/v1", "server_model": "m"}, "a server keeps its states"),
    ):
        with pytest.raises(ValueError, match=says):
            PrepareSpec(out=tmp_path, tasks=("starter-math",), **change)
    view = Target(tiny_model("llama")).view(max_rows=1, max_context=8)
    with pytest.raises(ConfigError, match="not by a method of that name"):
        StateKeeper.load(None, target=view, options={})
