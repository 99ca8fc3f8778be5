"""One folder per published format: detected, loaded, exported, read back with an equal spec and equal tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import support_checkpoints as made
import support_formats as formats
import torch
from specbench_drafters.formats.compare import spec_differences, tensor_differences
from specbench_drafters.formats.export import export
from specbench_drafters.formats.files import open_folder
from specbench_drafters.formats.inspect import inspect, render
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.record import LoadedCheckpoint

from specbench.errors import CheckpointError

_TABLES = ("embed_tokens.weight", "lm_head.weight")


def load(name: str, folder: Path) -> LoadedCheckpoint:
    path = formats.FORMATS[name].make(folder / name)
    return load_checkpoint(path, target_config=formats.target_of(name, path))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.target_folder(tmp_path_factory.mktemp("target") / "toy")


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_format_is_recognised_and_read_completely(name: str, tmp_path: Path) -> None:
    loaded = load(name, tmp_path)
    spec, expected = loaded.spec, formats.FORMATS[name]
    assert (spec.layout, str(spec.kind)) == (expected.layout, expected.kind)
    assert loaded.missing == ()
    assert loaded.unused == ()
    assert spec.vocab_size == made.VOCAB
    assert all(bool(torch.isfinite(tensor).all()) for tensor in loaded.tensors.values())
    assert "layers.0.input_layernorm.weight" in loaded.tensors
    assert not any("midlayer" in tensor or tensor in ("d2t", "t2d") for tensor in loaded.tensors)
    if spec.d2t is not None:
        assert tuple(spec.d2t.tolist()) == made.DRAFT_IDS


@pytest.mark.parametrize("layout", ["specbench", "speculators", "deepspec"])
@pytest.mark.parametrize("name", formats.FORMATS)
def test_export_keeps_everything_or_refuses_in_one_line(name: str, layout: str, tmp_path: Path, target: Path) -> None:
    loaded = load(name, tmp_path)
    destination = tmp_path / "exported"
    if layout not in formats.FORMATS[name].exports:
        with pytest.raises(CheckpointError) as refused:
            export(loaded, destination, layout=layout, target=target)
        assert layout in str(refused.value)
        assert "\n" not in str(refused.value)
        assert not destination.exists()
        assert not list(tmp_path.glob(".exported*"))
        return
    export(loaded, destination, layout=layout, target=target, target_name="toy/target")
    again = load_checkpoint(destination, target_config=formats.target_of(name, tmp_path / name))
    assert again.spec.layout == layout
    ignore = {"embed_from", "head_from", "embed_scale", "layer_config"}
    assert spec_differences(loaded.spec, again.spec, ignore=ignore) == []
    if loaded.spec.layer_config:
        assert again.spec.layer_config["hidden_size"] == loaded.spec.layer_config["hidden_size"]
    kept = {key: value for key, value in again.tensors.items() if key not in _TABLES}
    assert tensor_differences({k: v for k, v in loaded.tensors.items() if k not in _TABLES}, kept) == []


@pytest.mark.parametrize("name", formats.FORMATS)
def test_inspect_tells_format_reason_and_plan(name: str, tmp_path: Path) -> None:
    path = formats.FORMATS[name].make(tmp_path / name)
    report = inspect(path, target_config=formats.target_of(name, path))
    assert report.usable
    assert report.problem is None
    assert report.reason
    assert report.parameters["total"] == sum(report.parameters.values()) - report.parameters["total"]
    assert any("reads from the target" in line for line in report.would_do)
    assert json.loads(json.dumps(report.as_dict()))["method"] == formats.FORMATS[name].kind
    assert render(report) is not None


def test_compact_layout_leaves_out_what_the_target_has(tmp_path: Path, target: Path) -> None:
    stored = load("deepspec-dspark", tmp_path)
    path = export(stored, tmp_path / "own", layout="specbench", target=target)
    names = open_folder(path).names
    assert not names & set(_TABLES)
    assert load_checkpoint(path).spec.head_from == "target"
    whole = export(stored, tmp_path / "whole", layout="specbench")
    assert set(_TABLES) <= open_folder(whole).names


def test_compact_layout_keeps_a_head_of_its_own(tmp_path: Path, target: Path) -> None:
    stored = load("safeailab-eagle3", tmp_path)
    path = export(stored, tmp_path / "own", layout="specbench", target=target)
    assert "lm_head.weight" in open_folder(path).names
    again = load_checkpoint(path)
    assert (again.spec.head_from, again.spec.embed_from) == ("checkpoint", "target")


def test_speculators_layout_gets_rows_of_the_targets_head(tmp_path: Path, target: Path) -> None:
    loaded = load("speculators-dspark", tmp_path)
    compact = load_checkpoint(export(loaded, tmp_path / "own", layout="specbench", target=target))
    assert compact.spec.head_from == "checkpoint"  # its head is the first rows, not the rows of its ids
    rows = made.random(made.VOCAB, made.HIDDEN, seed=102)[list(made.DRAFT_IDS)]
    sliced = LoadedCheckpoint(
        compact.spec, compact.tensors | {"lm_head.weight": rows}, (), (), compact.path, compact.sha256
    )
    smaller = load_checkpoint(export(sliced, tmp_path / "sliced", layout="specbench", target=target))
    assert smaller.spec.head_from == "target"
    again = load_checkpoint(export(smaller, tmp_path / "speculators", layout="speculators", target=target))
    assert torch.equal(again.tensors["lm_head.weight"], rows)
    folder = open_folder(tmp_path / "speculators")
    maps = folder.read(["d2t", "t2d"])
    assert (maps["d2t"] + torch.arange(len(made.DRAFT_IDS))).tolist() == list(made.DRAFT_IDS)
    assert maps["t2d"].nonzero().flatten().tolist() == list(made.DRAFT_IDS)


def test_export_to_deepspec_refuses_a_reduced_vocabulary(tmp_path: Path, target: Path) -> None:
    loaded = load("speculators-dspark", tmp_path)
    with pytest.raises(
        CheckpointError, match="full vocabulary, this drafter has 12 of 40 tokens; export to speculators"
    ):
        export(loaded, tmp_path / "out", layout="deepspec", target=target)


def test_export_needs_the_target_where_tables_are_not_stored(tmp_path: Path) -> None:
    loaded = load("specforge-dspark", tmp_path)
    with pytest.raises(CheckpointError, match=r"embedding and head, .* pass the target \(--target\)"):
        export(loaded, tmp_path / "out", layout="deepspec")


def test_export_does_not_write_into_a_filled_folder(tmp_path: Path) -> None:
    loaded = load("deepspec-dflash", tmp_path)
    with pytest.raises(CheckpointError, match="is not empty"):
        export(loaded, tmp_path / "deepspec-dflash", layout="specbench")


def test_tied_targets_lend_their_embedding_as_head(tmp_path: Path) -> None:
    loaded = load("specforge-dspark", tmp_path)
    tied = made.target_folder(tmp_path / "tied", tied=True)
    again = load_checkpoint(export(loaded, tmp_path / "out", layout="deepspec", target=tied))
    assert torch.equal(again.tensors["lm_head.weight"], again.tensors["embed_tokens.weight"])


def test_calibrated_temperatures_travel_with_the_compact_layout(tmp_path: Path, target: Path) -> None:
    path = export(load("deepspec-dspark", tmp_path), tmp_path / "own", layout="specbench", target=target)
    (path / "sts.json").write_text('{"temperatures": [1.0, 1.5, 2.0, 2.5, 3.0], "dataset": "x"}')
    loaded = load_checkpoint(path)
    assert loaded.spec.sts_temperatures == (1.0, 1.5, 2.0, 2.5, 3.0)
    again = load_checkpoint(export(loaded, tmp_path / "again", layout="specbench"))
    assert again.spec.sts_temperatures == loaded.spec.sts_temperatures
    (path / "sts.json").write_text('{"temperatures": [1.0, 0]}')
    with pytest.raises(CheckpointError, match="a list of 5 numbers above 0"):
        load_checkpoint(path)
