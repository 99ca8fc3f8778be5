"""Features against transformers, the store's promises, and the same features computed beside the drafter."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_answers import run_prepare
from support_targets import FAMILIES, tiny_model

from specbench.engine.target import Target
from specbench.errors import CapacityError, ConfigError, TrainDataError, UnknownNameError
from specbench.train import manifest as manifests
from specbench.train.bind import data_hash
from specbench.train.features import FeatureForward, default_taps, make_features
from specbench.train.online import OnlineFeatures
from specbench.train.shards import TokenData
from specbench.train.spec import FeaturesSpec
from specbench.train.store import FeatureStore, ShardedArray, bytes_per_token, flat_rows, in_batches
from specbench.types import Taps

TAPS = (0, 1, 2)


# ---------------------------------------------------------------------------------------------------- forward


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_hidden_states_of_transformers(family: str) -> None:
    plain, paged = tiny_model(family), tiny_model(family)
    generator = torch.Generator().manual_seed(1)
    lengths = [70, 3, 1, 24]
    texts = [torch.randint(3, 97, (n,), generator=generator) for n in lengths]
    with FeatureForward(Target(paged), TAPS, batch_tokens=40) as forward:
        found = forward.compute(torch.cat(texts).numpy().astype(np.int32), lengths)
    at = 0
    for text in texts:
        rows = slice(at, at + len(text))
        with torch.no_grad():
            out = plain(input_ids=text[None], output_hidden_states=True, use_cache=False)
        wanted = torch.cat([out.hidden_states[k][0] for k in TAPS], dim=-1)
        torch.testing.assert_close(found.hidden[rows].float(), wanted.bfloat16().float(), atol=2e-2, rtol=2e-2)
        last = out.hidden_states[-1][0].bfloat16()
        torch.testing.assert_close(found.last_hidden[rows].float(), last.float(), atol=2e-2, rtol=2e-2)
        normaliser = torch.logsumexp(out.logits[0], dim=-1)
        torch.testing.assert_close(found.log_normaliser[rows], normaliser, atol=6e-2, rtol=1e-2)
        at += len(text)


def test_the_normaliser_is_exact_for_the_state_as_stored() -> None:
    target = Target(tiny_model("llama"))
    ids = np.arange(3, 60, dtype=np.int32)
    with FeatureForward(target, (1,)) as forward:
        found = forward.compute(ids, [30, 27])
    logits = found.last_hidden.float() @ target.model.get_output_embeddings().weight.t()
    total = (logits - found.log_normaliser[:, None]).exp().sum(dim=-1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)


def test_pieces_of_a_batch_do_not_change_the_features() -> None:
    target = Target(tiny_model("qwen3"))
    ids = np.arange(5, 90, dtype=np.int32)
    with FeatureForward(target, TAPS) as forward:
        whole = forward.compute(ids, [85])
        forward.batch_tokens = 7
        pieces = forward.compute(ids, [85])
    torch.testing.assert_close(whole.hidden.float(), pieces.hidden.float(), atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(whole.log_normaliser, pieces.log_normaliser, atol=1e-2, rtol=1e-3)


def test_the_target_is_as_before_afterwards() -> None:
    target = Target(tiny_model("llama"))
    with FeatureForward(target, (1,)):
        pass
    assert not target.model.base_model._forward_hooks
    assert target.lm._taps == Taps()
    with pytest.raises(ConfigError, match="tap 9 asked for, but the target has 3 layers"):
        FeatureForward(target, (9,))


@pytest.mark.parametrize(
    ("layers", "taps"),
    [(36, (2, 10, 18, 26, 34)), (40, (2, 11, 20, 29, 38)), (30, (2, 9, 15, 21, 28)), (2, (1,))],
)
def test_default_taps(layers: int, taps: tuple[int, ...]) -> None:
    assert default_taps(layers) == taps
    assert layers not in default_taps(layers)


# ------------------------------------------------------------------------------------------------------ arrays


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.data())
@settings(max_examples=60, deadline=None)
def test_arrays_in_shards_read_as_one(lengths: list[int], data: st.DataObject) -> None:
    total = sum(lengths)
    whole = np.arange(total * 2, dtype=np.uint16).reshape(total, 2)
    sharded = ShardedArray(np.split(whole, np.cumsum(lengths)[:-1]))
    assert sharded.shape == whole.shape
    start, stop = data.draw(st.integers(-7, 30)), data.draw(st.integers(-7, 30))
    np.testing.assert_array_equal(sharded[start:stop], whole[start:stop])
    np.testing.assert_array_equal(np.asarray(sharded), whole)
    if total:
        index = data.draw(st.lists(st.integers(-total, total - 1), max_size=8))
        np.testing.assert_array_equal(sharded[np.array(index, dtype=int)], whole[np.array(index, dtype=int)])
        keep = np.array(data.draw(st.lists(st.booleans(), min_size=total, max_size=total)))
        np.testing.assert_array_equal(sharded[keep], whole[keep])
        with pytest.raises(IndexError):
            sharded[[total]]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 20))
def test_batches_hold_every_sequence_once_within_the_limit(lengths: list[int], limit: int) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths)])
    groups = list(in_batches(starts, range(len(lengths)), max_tokens=limit))
    assert [s for g in groups for s in g] == list(range(len(lengths)))
    assert all(len(g) == 1 or sum(lengths[s] for s in g) <= limit for g in groups)
    chosen = groups[-1][::-1]
    bounds, rows = flat_rows(starts, chosen)
    assert [b - a for a, b in pairwise(bounds)] == [lengths[s] for s in chosen]
    assert list(rows) == [r for s in chosen for r in range(starts[s], starts[s + 1])]


# ------------------------------------------------------------------------------------------------------- store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    run_prepare(folder)
    make_features(spec(folder))
    return folder


def spec(folder: Path, out: str = "features", **changes: Any) -> FeaturesSpec:
    given: dict[str, Any] = {
        "data": (folder / "answers",), "out": folder / out, "target": str(folder / "tiny-llama"), "taps": (1, 2),
        "threads": 1, "shard_tokens": 300, "dtype": "float32",
    }  # fmt: skip
    return FeaturesSpec(**{**given, **changes})


def test_the_store_holds_what_the_answers_say(made: Path) -> None:
    store, data = FeatureStore.open(made / "features", verify=True), TokenData.open([made / "answers"])
    assert store.num_tokens == data.num_tokens == len(store.hidden) == len(store.last_hidden)
    np.testing.assert_array_equal(store.sequences, data.sequences)
    np.testing.assert_array_equal(store.token_ids[:], data.token_ids)
    np.testing.assert_array_equal(store.loss_mask[:], data.loss_mask)
    assert store.taps == (1, 2)
    assert store.hidden.shape[1] == 2 * store.last_hidden.shape[1] == 2 * store.meta["hidden_size"] == 64
    assert store.hidden.dtype == store.last_hidden.dtype == np.uint16
    assert len(store.shards) > 1
    heldout = np.flatnonzero(data.heldout)
    assert list(store.split("heldout")) == list(heldout)
    assert sorted([*store.split("train"), *heldout]) == list(range(data.num_sequences))
    with pytest.raises(UnknownNameError, match="unknown split 'test'"):
        store.split("test")
    assert store.meta["bytes_per_token"] == bytes_per_token(num_taps=2, hidden_size=32) == 201
    assert sum(p.stat().st_size for p in (made / "features").glob("*/*.npy")) >= 201 * store.num_tokens


def test_gathered_sequences_are_views_of_the_arrays(made: Path) -> None:
    store = FeatureStore.open(made / "features")
    batch = store.gather([3, 0])
    a, b = store.sequences[3], store.sequences[4]
    assert batch.starts == (0, b - a, b - a + store.sequences[1])
    assert batch.token_ids[: b - a].tolist() == store.token_ids[a:b].tolist()
    bits = batch.hidden[: b - a].view(torch.uint16).numpy()
    np.testing.assert_array_equal(bits, store.hidden[a:b])
    assert batch.last_hidden.dtype == torch.bfloat16
    assert batch.loss_mask.dtype == torch.bool


def test_online_features_are_those_of_the_store(made: Path) -> None:
    store = FeatureStore.open(made / "features")
    target = Target.load(made / "tiny-llama", dtype="float32")
    with OnlineFeatures.open([made / "answers"], target=target, taps=(1, 2)) as online:
        assert online.num_tokens == store.num_tokens
        assert list(online.split("train")) == list(store.split("train"))
        assert {k: v for k, v in online.meta.items() if k != "online"}.items() <= store.meta.items()
        for chosen in ([2], [5, 1, 4]):
            mine, theirs = online.gather(chosen), store.gather(chosen)
            assert mine.starts == theirs.starts
            assert torch.equal(mine.token_ids, theirs.token_ids)
            assert torch.equal(mine.loss_mask, theirs.loss_mask)
            torch.testing.assert_close(mine.hidden.float(), theirs.hidden.float(), atol=2e-2, rtol=2e-2)
            torch.testing.assert_close(mine.last_hidden.float(), theirs.last_hidden.float(), atol=2e-2, rtol=2e-2)
            torch.testing.assert_close(mine.log_normaliser, theirs.log_normaliser, atol=2e-2, rtol=1e-2)
    assert not target.model.base_model._forward_hooks


def test_sizes_are_said_first_and_refused_when_the_disk_is_too_small(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Screen:
        def say(self, text: str) -> None:
            said.append(text)

        def show(self, progress: Any) -> None:
            """Nothing."""

    full = type("Usage", (), {"free": 300 * 2**20})
    monkeypatch.setattr(manifests.shutil, "disk_usage", lambda _: full)
    monkeypatch.setattr(manifests, "_MARGIN_BYTES", 300 * 2**20)
    with pytest.raises(CapacityError, match=r"the features of [\d,]+ tokens needs .* are free"):
        make_features(spec(made, "small"), screen=Screen())
    assert "201 bytes a token (2 taps and the last state of width 32, bfloat16)" in said[0]
    assert not list((made / "small").glob("*/*.npy"))


def test_a_store_belongs_to_one_setting(made: Path) -> None:
    with pytest.raises(TrainDataError, match=r"was begun with taps = \[1, 2\], now it is \[1\]"):
        make_features(spec(made, taps=(1,)))
    with pytest.raises(TrainDataError, match="holds features, not training answers"):
        TokenData.open([made / "features"])
    with pytest.raises(TrainDataError, match="holds no training features"):
        FeatureStore.open(made)


def test_unfinished_answers_need_a_word(tmp_path: Path) -> None:
    run_prepare(tmp_path, target_tokens=12)
    path = tmp_path / "answers" / "manifest.json"
    path.write_text(path.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(TrainDataError, match="unfinished; finish it with `specbench train prepare`, or pass"):
        make_features(spec(tmp_path))
    make_features(spec(tmp_path, unfinished=True))
    assert FeatureStore.open(tmp_path / "features").num_sequences >= 3


def test_damage_is_found_by_checksum(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made / "features", copy)
    victim = copy / "00001" / "hidden.npy"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(bytes(data))
    FeatureStore.open(copy)  # opening alone reads no data
    with pytest.raises(TrainDataError, match=r"hidden.npy is missing or damaged"):
        FeatureStore.open(copy, verify=True)
    victim.write_bytes(bytes(data[:200]))
    with pytest.raises(TrainDataError, match=r"hidden.npy cannot be read"):
        FeatureStore.open(copy)


def test_several_stores_are_read_as_one(made: Path) -> None:
    run_prepare(made, out="more", seed=5)
    make_features(spec(made, out="more-features", data=(made / "more",)))
    one, two = FeatureStore.open(made / "features"), FeatureStore.open(made / "more-features")
    both = FeatureStore.open(made / "features", made / "more-features", verify=True)
    assert both.num_tokens == one.num_tokens + two.num_tokens
    for name in ("train", "heldout"):
        assert list(both.split(name)) == [*one.split(name), *(two.split(name) + one.num_sequences)]
    last = two.num_sequences - 1
    mine, theirs = both.gather([1, one.num_sequences + last]), (one.gather([1]), two.gather([last]))
    assert torch.equal(mine.hidden, torch.cat([b.hidden for b in theirs]))
    assert torch.equal(mine.token_ids, torch.cat([b.token_ids for b in theirs]))
    assert both.meta["target_tokens"] == one.meta["target_tokens"] + two.meta["target_tokens"]
    hashes = {data_hash(store) for store in (one, two, both, FeatureStore.open(made / "features"))}
    assert len(hashes) == 3


def test_stores_that_do_not_go_together_are_refused(made: Path) -> None:
    with pytest.raises(TrainDataError, match=r"holds the same features as .*; name them once"):
        FeatureStore.open(made / "features", made / "features")
    make_features(spec(made, out="other-taps", taps=(0, 2)))
    with pytest.raises(TrainDataError, match=r"has taps \[0, 2\], .* has \[1, 2\]"):
        FeatureStore.open(made / "features", made / "other-taps")
    shutil.copytree(made / "features", made / "other-target")
    path = made / "other-target" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["target"]["weights_sha256"] = "0" * 64
    manifest["shards"] = manifest["shards"][:-1]
    path.write_text(json.dumps(manifest))
    with pytest.raises(TrainDataError, match="has target 0000"):
        FeatureStore.open(made / "features", made / "other-target")
