"""The detection table, the tensor-count fingerprints of published repositories, and the list of published drafters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import support_checkpoints as made
import support_formats as formats
import torch
from specbench_drafters.formats.detect import detect
from specbench_drafters.formats.files import open_folder
from specbench_drafters.formats.inspect import inspect
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.published import PUBLISHED, find, near_targets, pick, targets

from specbench import registry
from specbench.errors import CheckpointError

LAYOUTS = ["deepspec", "z-lab", "specforge", "speculators", "safeailab", "angelslim", "modelopt", "native-mtp"]
FAMILY = {"deepspec": "deepspec", "zlab": "zlab", "specforge-dspark": "specforge", "speculators": "speculators"}


@pytest.mark.parametrize("name", formats.FORMATS)
def test_family_and_reason(name: str, tmp_path: Path) -> None:
    found = detect(open_folder(formats.FORMATS[name].make(tmp_path / "c")))
    expected = next((family for start, family in FAMILY.items() if name.startswith(start)), None)
    if expected is None:
        expected = "eagle3" if "eagle3" in name else "native_mtp"
    assert found.family == expected
    assert found.refused == ""
    assert found.reason


@pytest.mark.parametrize("kind", formats.REFUSED)
def test_known_but_unsupported_formats_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = formats.refused(tmp_path / "c", kind)
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(path)
    line = str(refused.value)
    names = {"peagle": "P-EAGLE", "dflash2": "DFlash 2", "language model": "ordinary language model"}
    assert names.get(kind, kind) in line
    assert "is not supported" in line
    assert "\n" not in line
    report = inspect(path)
    assert not report.usable
    assert report.problem is not None
    assert names.get(kind, kind) in report.problem


def test_unknown_format_names_what_was_seen(tmp_path: Path) -> None:
    path = made.write(tmp_path / "c", {"architectures": ["SomethingElse"]}, {"weight": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"unknown checkpoint format \(architecture 'SomethingElse', 1 tensors"):
        load_checkpoint(path)


def test_a_block_drafter_is_never_read_as_eagle3(tmp_path: Path) -> None:
    tensors = made.block(taps=3, tables=True) | made.maps()
    path = made.write(tmp_path / "c", made.zlab_config(draft_vocab_size=made.DRAFT_VOCAB), tensors)
    with pytest.raises(CheckpointError, match="unknown checkpoint format"):
        load_checkpoint(path)


FINGERPRINTS = {  # tensors in a published repository with this many layers
    "z-lab DFlash": (lambda: made.block(taps=5, layers=5, tables=False), 58),
    "DeepSpec DFlash": (lambda: made.block(taps=5, layers=5, tables=True), 60),
    "DeepSpec DSpark": (lambda: made.block(taps=5, layers=5, tables=True) | made.heads("vanilla"), 64),
    "EAGLE-3": (lambda: made.eagle3() | made.maps(), 15),
    "DeepSpec EAGLE-3": (
        lambda: (
            made.eagle3(taps=5, at="layers.0.", draft_vocab=made.VOCAB, qk_norm=True)
            | {"embed_tokens.weight": made.random(made.VOCAB, made.HIDDEN)}
        ),
        16,
    ),
}
CONFIGS = {
    "z-lab DFlash": made.zlab_config(
        num_hidden_layers=5,
        layer_types=["full_attention"] * 5,
        dflash_config={"mask_token_id": made.MASK, "target_layer_ids": [1, 2, 3, 4, 5]},
    ),
    "DeepSpec DFlash": made.deepspec_config(num_hidden_layers=5, target_layer_ids=[0, 1, 2, 3, 4]),
    "DeepSpec DSpark": made.deepspec_config(
        num_hidden_layers=5, target_layer_ids=[0, 1, 2, 3, 4], markov_rank=made.RANK, enable_confidence_head=True
    ),
    "EAGLE-3": made.eagle3_config(),
    "DeepSpec EAGLE-3": made.deepspec_config(
        architectures=["Qwen3Eagle3Model"], num_hidden_layers=1, target_layer_ids=[0, 1, 2, 3, 4], ttt_length=7
    ),
}


@pytest.mark.parametrize("label", FINGERPRINTS)
def test_tensor_counts_of_published_repositories(label: str, tmp_path: Path) -> None:
    make, count = FINGERPRINTS[label]
    tensors = make()
    assert len(tensors) == count
    path = made.write(tmp_path / "c", CONFIGS[label], tensors)
    assert detect(open_folder(path)).label.startswith(label)
    loaded = load_checkpoint(path, target_config=made.TARGET_CONFIG)
    maps = sum(name in ("d2t", "t2d") for name in tensors)
    assert len(loaded.tensors) == count - maps
    assert loaded.unused == ()


def test_parameter_count_of_a_published_dspark() -> None:
    """deepseek-ai/dspark_qwen3_8b_block7 has about 2 371 million parameters; the shapes of our table give that."""
    from specbench_drafters.formats.record import Backbone, DraftKind, Rope
    from specbench_drafters.formats.shapes import required
    from specbench_drafters.formats.source import make_spec

    backbone = Backbone(
        family="qwen3",
        num_layers=5,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=12288,
        norm_eps=1e-6,
        activation="silu",
        attention_bias=False,
        qk_norm=True,
        rope=Rope(1e6),
        causal=(False,) * 5,
        window=(None,) * 5,
        max_position=40960,
    )
    spec = make_spec(
        kind=DraftKind.DSPARK,
        layout="deepspec",
        backbone=backbone,
        vocab_size=151936,
        taps=(2, 10, 18, 26, 34),
        target_hidden_size=4096,
        num_target_layers=36,
        gamma=7,
        block_inputs=7,
        embed_from="checkpoint",
        head_from="checkpoint",
        markov="vanilla",
        markov_rank=256,
        confidence="hidden+markov",
        confidence_bias=True,
    )
    shapes = required(spec)
    assert len(shapes) == 64
    assert round(sum(torch.Size(shape).numel() for shape in shapes.values()) / 1e6) == 2371


def test_published_drafters_by_target_and_method() -> None:
    found = find("qwen/qwen3-4b")
    assert {entry.method for entry in found} == {"dspark", "dflash", "eagle3"}
    assert pick("Qwen/Qwen3-4B", "dspark") == found[0]
    assert found[0].repository == "deepseek-ai/dspark_qwen3_4b_block7"
    assert [entry.repository for entry in find("Qwen/Qwen3-8B", "dflash")] == [
        "deepseek-ai/dflash_qwen3_8b_block7",
        "z-lab/Qwen3-8B-DFlash-b16",
    ]
    assert pick("Qwen/Qwen3-4B", "mtp") is None
    assert find("Qwen/Qwen3-Next-80B-A3B-Instruct", "mtp")[0].layout == "native-mtp"
    assert near_targets("Qwen/Qwen3-4b-it")[0] == "Qwen/Qwen3-4B"
    assert "google/gemma-4-12B-it" in targets()


def test_published_list_is_well_formed() -> None:
    keys = [(entry.repository, entry.method) for entry in PUBLISHED]
    assert len(set(keys)) == len(keys)
    for entry in PUBLISHED:
        assert entry.repository.count("/") == entry.target.count("/") == 1
        assert entry.method in ("dspark", "dflash", "eagle3", "mtp")
        assert entry.layout in (
            "deepspec",
            "z-lab",
            "specforge",
            "speculators",
            "safeailab",
            "angelslim",
            "modelopt",
            "native-mtp",
        )


def test_tools_are_reached_through_the_registry(tmp_path: Path) -> None:
    path = made.deepspec_dflash(tmp_path / "c")
    assert registry.load("formats", "inspect").inspect(path).usable
    assert registry.load("formats", "load").load(path).spec.gamma == 5
    assert registry.load("formats", "published").find("Qwen/Qwen3-4B", "dspark")
    assert registry.load("formats", "export").layouts == ("deepspec", "speculators", "specbench")


def test_inspect_reports_an_undecided_checkpoint(tmp_path: Path) -> None:
    report = inspect(made.safeailab_eagle3(tmp_path / "c"))
    assert not report.usable
    assert report.problem is not None
    assert "pass the target" in report.problem
    assert report.parameters["all tensors"] > 0


def test_inspect_lists_missing_unused_and_misshapen(tmp_path: Path) -> None:
    tensors = made.block(taps=3, tables=True)
    del tensors["layers.1.mlp.up_proj.weight"]
    tensors["norm.weight"] = torch.ones(made.HIDDEN + 1)
    tensors["something.else"] = torch.ones(2)
    report = inspect(made.write(tmp_path / "c", made.deepspec_config(), tensors))
    assert report.missing == ("layers.1.mlp.up_proj.weight",)
    assert report.unused == ("something.else",)
    assert report.wrong_shapes == ("'norm.weight' has shape [17], expected [16]",)
    assert not report.usable
    assert json.dumps(report.as_dict())


def test_official_medusa_folders_have_one_file(tmp_path: Path) -> None:
    torch.save({"0.0.linear.weight": torch.ones(2, 2)}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="Medusa is not supported"):
        load_checkpoint(tmp_path)
