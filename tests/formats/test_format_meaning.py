"""What a loader makes of each layout: layer ids, slots, norms, tables, rotary base, and the real fixture folders."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import support_checkpoints as made
import support_formats as formats
import support_mtp_checkpoints as mtp
import torch
from specbench_drafters.formats.files import open_folder
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.record import DrafterSpec

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"


def spec_of(name: str, folder: Path) -> DrafterSpec:
    path = formats.FORMATS[name].make(folder / name)
    return load_checkpoint(path, target_config=formats.target_of(name, path)).spec


def edit(path: Path, **changes: Any) -> Path:
    """Change keys of a folder's configuration; None removes one."""
    config = json.loads((path / "config.json").read_text())
    config = {key: value for key, value in (config | changes).items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    return path


BLOCKS = {  # taps, gamma, rows, shift
    "deepspec-dspark": ((1, 3, 5), 5, 5, 1),
    "deepspec-dflash": ((1, 3, 5), 5, 5, 1),
    "zlab-dflash": ((2, 3, 4), 5, 6, 0),
    "zlab-sliding": ((2, 4, 5, 6), 3, 4, 0),
    "specforge-dspark": ((2, 4, 6), 5, 5, 1),
    "speculators-dflash": ((2, 4, 6), 5, 6, 0),
    "speculators-dspark": ((2, 4, 6), 6, 6, 1),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_taps_and_slots_of_blocks(name: str, tmp_path: Path) -> None:
    spec = spec_of(name, tmp_path)
    assert (spec.taps, spec.gamma, spec.block_inputs, spec.slot_shift) == BLOCKS[name]
    assert spec.mask_token_id == made.MASK


EAGLES = {  # taps, gamma, residual_normed, pre_fc_norm, recycle
    "deepspec-eagle3": ((1, 3, 4, 5, 7), 7, False, "none", "pre_norm"),
    "safeailab-eagle3": ((2, 4, 5), 7, False, "none", "pre_norm"),
    "specforge-eagle31": ((2, 4, 5), 7, False, "per_tap", "post_norm"),
    "modelopt-eagle3": ((2, 5, 8), 7, True, "concat", "pre_norm"),
    "speculators-eagle3": ((2, 4, 5), 3, False, "none", "pre_norm"),
}


@pytest.mark.parametrize("name", EAGLES)
def test_taps_and_norms_of_eagle3(name: str, tmp_path: Path) -> None:
    spec = spec_of(name, tmp_path)
    assert (spec.taps, spec.gamma, spec.residual_normed, spec.pre_fc_norm, spec.recycle) == EAGLES[name]
    assert spec.concat_order == "embedding,hidden"


MTP = {  # concat order, zero at position 0, 1 + w norms
    "deepseek-v3": ("embedding,hidden", True, False),
    "glm4-moe": ("embedding,hidden", True, False),
    "qwen3-next": ("embedding,hidden", False, True),
    "qwen3.5": ("embedding,hidden", False, True),
    "mimo": ("hidden,embedding", True, False),
}


@pytest.mark.parametrize("name", MTP)
def test_conventions_of_mtp_families(name: str, tmp_path: Path) -> None:
    spec = spec_of(name, tmp_path)
    assert (spec.concat_order, spec.zero_embedding_at_position_0, spec.one_plus_norm) == MTP[name]
    assert (spec.gamma, spec.taps, spec.tap_final_norm, spec.recycle) == (1, (), True, "post_norm")
    assert (spec.embed_from, spec.head_from) == ("target", "target")


def test_experts_are_fused_in_order(tmp_path: Path) -> None:
    loaded = load_checkpoint(mtp.deepseek_v3(tmp_path / "v3"))
    fused = loaded.tensors["layers.0.mlp.experts.gate_up_proj"]  # [E, 2I, d]
    stored = {name: made.random(8, made.HIDDEN, seed=200 + index) for index, name in enumerate("0123")}
    assert fused.shape == (4, 16, made.HIDDEN)
    for index, name in enumerate("0123"):
        assert torch.equal(fused[index, :8], stored[name])
    down = loaded.tensors["layers.0.mlp.experts.down_proj"]
    assert torch.equal(down[3], made.random(made.HIDDEN, 8, seed=203))


def test_scaled_float8_matrices_are_expanded(tmp_path: Path) -> None:
    source = mtp.deepseek_v3(tmp_path / "v3")
    plain = load_checkpoint(source).tensors
    folder = open_folder(source)
    tensors = folder.read(folder.names)
    block = (8, 16)
    for name in ("model.layers.3.eh_proj.weight", "model.layers.3.mlp.experts.1.up_proj.weight"):
        weight = tensors[name]
        rows, columns = (math.ceil(size / width) for size, width in zip(weight.shape, block, strict=True))
        scale = torch.arange(1, rows * columns + 1).reshape(rows, columns) * 0.01
        wide = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: weight.shape[0], : weight.shape[1]]
        tensors[name] = (weight / wide).to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scale
    config = folder.config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": list(block)}}
    loaded = load_checkpoint(made.write(tmp_path / "fp8", config, tensors))
    assert loaded.tensors["input_proj.weight"].dtype == torch.bfloat16
    for name in ("input_proj.weight", "layers.0.mlp.experts.gate_up_proj"):
        assert torch.allclose(loaded.tensors[name].float(), plain[name], atol=0.02)
    assert loaded.unused == ()


def test_both_spellings_of_the_rotary_base(tmp_path: Path) -> None:
    new = spec_of("deepspec-dspark", tmp_path)
    old = load_checkpoint(edit(made.deepspec_dspark(tmp_path / "old"), rope_parameters=None, rope_theta=1e6)).spec
    assert new.backbone.rope == old.backbone.rope
    assert spec_of("safeailab-eagle3", tmp_path).backbone.rope.theta == 10000
    scaled = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    rope = load_checkpoint(edit(made.zlab_dflash(tmp_path / "yarn"), rope_scaling=scaled)).spec.backbone.rope
    assert rope.scaling == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def test_gemma4_keys(tmp_path: Path) -> None:
    spec = spec_of("deepspec-gemma4", tmp_path)
    assert spec.backbone.family == "gemma4"
    assert (spec.backbone.head_dim, spec.backbone.num_kv_heads) == (made.HEAD_DIM, made.KV_HEADS)
    assert spec.backbone.rope.partial_factor == 0.25
    assert spec.backbone.rope.scaling == {"rope_type": "proportional"}
    assert spec.embed_scale == pytest.approx(math.sqrt(made.HIDDEN))
    assert spec.softcap == 30.0
    assert spec.backbone.activation == "gelu_pytorch_tanh"


CAUSAL: dict[str, tuple[Callable[[Path], Path], tuple[bool, ...], tuple[int | None, ...]]] = {
    "full layers are bidirectional": (made.zlab_dflash, (False, False), (None, None)),
    "sliding layers are causal": (made.zlab_sliding, (True, False), (8, None)),
    "is_causal rules": (lambda at: edit(made.zlab_sliding(at), is_causal=False), (False, False), (8, None)),
    "speculators sliding": (made.speculators_dflash, (True, False), (8, None)),
    "speculators non-causal": (
        lambda at: edit(made.speculators_dflash(at), sliding_window_non_causal=True),
        (False, False),
        (8, None),
    ),
}


@pytest.mark.parametrize("case", CAUSAL)
def test_attention_inside_a_block(case: str, tmp_path: Path) -> None:
    make, causal, window = CAUSAL[case]
    backbone = load_checkpoint(make(tmp_path / "c")).spec.backbone
    assert (backbone.causal, backbone.window) == (causal, window)


def test_absent_sample_from_anchor_means_unshifted(tmp_path: Path) -> None:
    spec = load_checkpoint(made.speculators_dspark(tmp_path / "old", sample_from_anchor=None)).spec
    assert (spec.slot_shift, spec.gamma, spec.block_inputs) == (0, 5, 6)
    assert any("predates the key" in note for note in spec.notes)


def test_absent_residual_key_of_speculators_means_normed(tmp_path: Path) -> None:
    spec = load_checkpoint(edit(made.speculators_eagle3(tmp_path / "s"), norm_before_residual=None)).spec
    assert spec.residual_normed
    assert any("norm_before_residual" in note for note in spec.notes)


def test_nested_layer_ids_are_boundaries_only_for_modelopt(tmp_path: Path) -> None:
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    plain = edit(made.safeailab_eagle3(tmp_path / "plain"), eagle_config=nested)
    assert load_checkpoint(plain, target_config=made.TARGET_CONFIG).spec.taps == (2, 4, 5)
    by_owner = edit(made.safeailab_eagle3(tmp_path / "nvidia" / "x"), eagle_config=nested)
    assert load_checkpoint(by_owner, target_config=made.TARGET_CONFIG).spec.taps == (1, 3, 4)
    top = edit(made.safeailab_eagle3(tmp_path / "top"), eagle_aux_hidden_state_layer_ids=[1, 3, 4])
    assert load_checkpoint(top, target_config=made.TARGET_CONFIG).spec.taps == (1, 3, 4)


def test_embedding_id_minus_one(tmp_path: Path) -> None:
    path = made.deepspec_dspark(tmp_path / "c", target_layer_ids=[-1, 2, 4])
    assert load_checkpoint(path).spec.taps == (0, 3, 5)


def test_absolute_maps_are_recognised(tmp_path: Path) -> None:
    absolute = torch.tensor(made.DRAFT_IDS)
    with_mask = made.write(tmp_path / "a", made.eagle3_config(), made.eagle3() | made.maps() | {"d2t": absolute})
    spec = load_checkpoint(with_mask, target_config=made.TARGET_CONFIG).spec
    assert spec.d2t is not None
    assert tuple(spec.d2t.tolist()) == made.DRAFT_IDS
    without = made.write(tmp_path / "b", made.eagle3_config(), made.eagle3() | {"d2t": absolute})
    spec = load_checkpoint(without, target_config=made.TARGET_CONFIG).spec
    assert spec.d2t is not None
    assert tuple(spec.d2t.tolist()) == made.DRAFT_IDS


def test_unordered_maps_move_the_rows_along(tmp_path: Path) -> None:
    order = torch.tensor([3, 0, 2, 1, *range(4, len(made.DRAFT_IDS))])
    ids = torch.tensor(made.DRAFT_IDS)[order]
    tensors = made.eagle3() | made.maps()
    tensors |= {"lm_head.weight": tensors["lm_head.weight"][order], "d2t": ids - torch.arange(len(ids))}
    loaded = load_checkpoint(
        made.write(tmp_path / "c", made.eagle3_config(), tensors), target_config=made.TARGET_CONFIG
    )
    assert loaded.spec.d2t is not None
    assert tuple(loaded.spec.d2t.tolist()) == made.DRAFT_IDS
    assert torch.equal(loaded.tensors["lm_head.weight"], made.eagle3()["lm_head.weight"])


def test_a_full_map_is_no_map(tmp_path: Path) -> None:
    maps = {"d2t": torch.zeros(made.VOCAB, dtype=torch.int64), "t2d": torch.ones(made.VOCAB, dtype=torch.bool)}
    config = made.eagle3_config(draft_vocab_size=made.VOCAB)
    path = made.write(tmp_path / "c", config, made.eagle3(draft_vocab=made.VOCAB) | maps)
    assert load_checkpoint(path, target_config=made.TARGET_CONFIG).spec.d2t is None


def test_mask_embedding_of_a_separate_file(tmp_path: Path) -> None:
    loaded = load_checkpoint(made.zlab_mask_file(tmp_path / "c"))
    assert torch.equal(loaded.tensors["mask_embedding"], made.random(made.HIDDEN, seed=18))
    assert loaded.spec.mask_token_id == made.MASK


@pytest.mark.parametrize(
    ("folder", "target", "count", "taps", "gamma"),
    [
        ("dspark_markov", "target", 31, (1, 3, 5), 5),
        ("dspark_gated", "target", 33, (1, 3, 5), 5),
        ("dspark_rnn", "target", 33, (1, 3, 5), 5),
        ("dflash", "target", 27, (1, 3, 5), 5),
        ("zlab_dflash", "target", 25, (2, 3, 4), 5),
        ("eagle3", "target", 16, (1, 2, 3, 4, 5), 5),
        ("eagle3_safeailab", "eagle3_safeailab/target", 13, (2, 4, 5), 7),
    ],
)
def test_reference_folders_load(folder: str, target: str, count: int, taps: tuple[int, ...], gamma: int) -> None:
    config = json.loads((FIXTURES / target / "config.json").read_text())
    loaded = load_checkpoint(FIXTURES / folder, target_config=config)
    assert len(loaded.tensors) == count
    assert (loaded.spec.taps, loaded.spec.gamma) == (taps, gamma)
    assert loaded.unused == ()
    assert loaded.spec.num_target_layers == config["num_hidden_layers"]


def test_the_hash_follows_the_content(tmp_path: Path) -> None:
    first = load_checkpoint(made.deepspec_dflash(tmp_path / "a"))
    same = load_checkpoint(made.deepspec_dflash(tmp_path / "b"))
    assert first.sha256 == same.sha256
    other = made.block(taps=3, tables=True)
    other["norm.weight"][0] += 1
    changed = load_checkpoint(made.write(tmp_path / "c", made.deepspec_config(), other))
    assert changed.sha256 != first.sha256
    assert load_checkpoint(edit(tmp_path / "b", num_anchors=17)).sha256 != first.sha256
