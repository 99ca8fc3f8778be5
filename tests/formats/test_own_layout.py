"""specbench's compact layout: written for each method, read strictly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import support_checkpoints as made
import torch
from specbench_drafters.formats.compare import spec_differences, tensor_differences
from specbench_drafters.formats.export import export
from specbench_drafters.formats.inspect import inspect
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.record import Backbone, DrafterSpec, DraftKind, LoadedCheckpoint, Rope
from specbench_drafters.formats.shapes import required
from specbench_drafters.formats.source import make_spec

from specbench.errors import CheckpointError

BACKBONE = Backbone(
    family="llama",
    num_layers=1,
    hidden_size=made.HIDDEN,
    num_heads=made.HEADS,
    num_kv_heads=made.KV_HEADS,
    head_dim=made.HEAD_DIM,
    intermediate_size=made.INNER,
    norm_eps=1e-5,
    activation="silu",
    attention_bias=False,
    qk_norm=False,
    rope=Rope(1e5, {"rope_type": "linear", "factor": 2.0}, 0.5),
    causal=(True,),
    window=(None,),
    max_position=128,
)
COMMON: dict[str, Any] = {
    "layout": "specbench",
    "vocab_size": made.VOCAB,
    "target_hidden_size": made.HIDDEN,
    "num_target_layers": made.DEPTH,
    "d2t": torch.tensor(made.DRAFT_IDS),
}
TWO = replace(BACKBONE, family="qwen3", num_layers=2, qk_norm=True, causal=(False, True), window=(None, 16))
SPECS: dict[str, DrafterSpec] = {
    "mtp": make_spec(
        kind=DraftKind.MTP, backbone=BACKBONE, taps=(), tap_final_norm=True, gamma=1, recycle="post_norm", **COMMON
    ),
    "eagle3": make_spec(
        kind=DraftKind.EAGLE3, backbone=BACKBONE, taps=(2, 4, 5), gamma=4, head_from="checkpoint", **COMMON
    ),
    "dflash": make_spec(
        kind=DraftKind.DFLASH,
        backbone=TWO,
        taps=(1, 4),
        gamma=7,
        block_inputs=8,
        slot_shift=0,
        mask_token_id=made.MASK,
        softcap=20.0,
        **COMMON,
    ),
    "dspark-rnn": make_spec(
        kind=DraftKind.DSPARK,
        backbone=TWO,
        taps=(1, 4, 8),
        gamma=5,
        block_inputs=5,
        mask_token_id=0,
        markov="rnn",
        markov_rank=made.RANK,
        confidence="hidden+markov",
        confidence_bias=True,
        sts_temperatures=(1.0, 1.2, 1.4, 1.6, 1.8),
        **COMMON,
    ),
}


def written(name: str, folder: Path) -> tuple[LoadedCheckpoint, Path]:
    spec = SPECS[name]
    tensors = {key: made.random(*shape, seed=i) for i, (key, shape) in enumerate(required(spec).items())}
    loaded = LoadedCheckpoint(spec, tensors, (), (), folder, "")
    return loaded, export(loaded, folder / name, layout="specbench")


@pytest.mark.parametrize("name", SPECS)
def test_written_and_read_back(name: str, tmp_path: Path) -> None:
    loaded, path = written(name, tmp_path)
    again = load_checkpoint(path, target_config=made.TARGET_CONFIG)
    assert spec_differences(loaded.spec, again.spec) == []
    assert tensor_differences(loaded.tensors, again.tensors) == []
    assert again.unused == ()
    report = inspect(path, target_config=made.TARGET_CONFIG)
    assert report.usable
    assert report.spec is not None
    assert report.spec["draft_vocabulary"] == {"tokens": 12, "first": 0, "last": 38}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "later version": ({"specbench_drafter": 2}, "written for version 2"),
    "unknown key": ({"gama": 5}, "unknown key 'gama'"),
    "missing key": ({"slot_shift": None}, "no 'slot_shift'"),
    "wrong word": ({"markov": "lstm"}, "none or vanilla or gated or rnn"),
    "no layers": ({"backbone": {"num_layers": 1}}, "backbone.causal"),
    "no backbone": ({"backbone": None}, "no 'num_layers'"),
    "taps beyond": ({"taps": [1, 4, 9]}, "tap 9 is beyond the target's 8 layers"),
    "text": ({"gamma": "five"}, "'gamma' must be a whole number"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_strictly_read(case: str, tmp_path: Path) -> None:
    change, told = FAULTS[case]
    _, path = written("dspark-rnn", tmp_path)
    config = json.loads((path / "config.json").read_text()) | change
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path)
    assert told in str(error.value)


@pytest.mark.parametrize("ids", [[0] * 12, [3, 2, 1, *range(4, 13)], [*range(11), 40], [-1, *range(11)]])
def test_damaged_map(ids: list[int], tmp_path: Path) -> None:
    loaded, path = written("dflash", tmp_path)
    config = json.loads((path / "config.json").read_text())
    made.write(path, config, loaded.tensors | {"d2t": torch.tensor(ids)})
    with pytest.raises(CheckpointError, match="strictly increasing ids below 40"):
        load_checkpoint(path)


def test_a_lost_map_does_not_become_the_full_vocabulary(tmp_path: Path) -> None:
    loaded, path = written("eagle3", tmp_path)
    made.write(path, json.loads((path / "config.json").read_text()), loaded.tensors)
    with pytest.raises(CheckpointError, match="no 'd2t' map says which"):
        load_checkpoint(path)
