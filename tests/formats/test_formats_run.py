"""Every published layout drafts through the engine, and drafts the same after an export and a reload."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import support_checkpoints as made
import support_formats as formats
import torch
import transformers
from specbench_drafters.formats.export import export
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.vanilla import VanillaDrafter
from support_engine import outputs, prompts, request, serve

from specbench import registry
from specbench.engine.target import Target
from specbench.errors import ConfigError, DrafterError
from specbench.types import RunTrace

BLOCK_AND_CHAIN = [name for name, form in formats.FORMATS.items() if form.target is None and "gemma4" not in name]
NATIVE = ["deepseek-v3", "glm4-moe"]  # the families whose targets have attention layers only
REQUESTS = [request(n, p, max_new_tokens=14) for n, p in enumerate(prompts(3, seed=1, high=made.VOCAB - 2, longest=9))]


def spread(model: Any) -> Any:
    """Larger weights, so that greedy choices are no near ties."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)
    return model.eval()


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Path]:
    """A target of the made checkpoints' sizes, in memory and on disk."""
    torch.manual_seed(0)
    fields = {k: v for k, v in made.TARGET_CONFIG.items() if k not in ("architectures", "model_type", "rope_theta")}
    config = transformers.Qwen3Config(**fields, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    model = spread(transformers.Qwen3ForCausalLM(config).float())
    folder = tmp_path_factory.mktemp("target") / "toy"
    model.save_pretrained(folder)
    return Target(model), folder


def run(target: Target, method: str, checkpoint: Path) -> RunTrace:
    view = target.view(max_rows=3, max_context=40)
    drafter = registry.load("drafters", method).load(checkpoint, target=view, options={})
    return serve(target, drafter, REQUESTS, k=min(drafter.trained_length, 3), rows=3, max_context=40)


def rounds(trace: RunTrace) -> list[tuple[Any, ...]]:
    return [(r.request, r.round, r.draft_ids, r.accepted, r.committed_ids) for r in trace.rounds]


@pytest.mark.parametrize("name", BLOCK_AND_CHAIN)
def test_a_format_runs_and_runs_the_same_after_export(name: str, tmp_path: Path, qwen3: tuple[Target, Path]) -> None:
    target, folder = qwen3
    form = formats.FORMATS[name]
    path = form.make(tmp_path / "made")
    first = run(target, form.kind, path)
    plain = serve(target, VanillaDrafter(), REQUESTS, k=0, rows=3, max_context=40)
    assert outputs(first) == outputs(plain)
    assert sum(r.drafted for r in first.rounds) > 0
    loaded = load_checkpoint(path, target_config=target.config)
    for layout in form.exports:
        again = tmp_path / layout
        export(loaded, again, layout=layout, target=folder, target_name="toy/target")
        if layout == "deepspec" and form.layout != "deepspec":
            continue  # holds the target's tables, which the made checkpoint may not use: its drafts may differ
        assert rounds(run(target, form.kind, again)) == rounds(first), layout


@pytest.mark.parametrize("name", NATIVE)
def test_native_layers_run_from_the_targets_own_folder(name: str, tmp_path: Path) -> None:
    path = formats.FORMATS[name].make(tmp_path / "made")
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(path)
    model = spread(transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32))
    target = Target(model)
    first = run(target, "mtp", path)
    plain = serve(target, VanillaDrafter(), REQUESTS, k=0, rows=3, max_context=40)
    assert outputs(first) == outputs(plain)
    assert sum(r.drafted for r in first.rounds) > 0
    again = tmp_path / "exported"
    export(load_checkpoint(path, target_config=model.config), again, layout="specbench", target=path)
    assert rounds(run(target, "mtp", again)) == rounds(first)


def test_a_drafter_of_another_method_is_refused_in_one_line(tmp_path: Path, qwen3: tuple[Target, Path]) -> None:
    path = formats.FORMATS["zlab-dflash"].make(tmp_path / "made")
    with pytest.raises(DrafterError) as refused:
        run(qwen3[0], "eagle3", path)
    assert "dflash" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_users_reading_reaches_the_block_drafters(tmp_path: Path, qwen3: tuple[Target, Path]) -> None:
    path = formats.FORMATS["deepspec-dspark"].make(tmp_path / "made")
    view = qwen3[0].view(max_rows=1, max_context=30)
    plugin = registry.load("drafters", "dspark")
    as_stored = plugin.load(path, target=view, options={})
    read = plugin.load(path, target=view, options={"taps": "2,3,5", "slot_shift": 0})
    assert (read.taps.boundaries, read.trained_length) == ((2, 3, 5), as_stored.trained_length - 1)
    assert as_stored.taps.boundaries != read.taps.boundaries
    with pytest.raises(ConfigError, match="slot_shift"):
        plugin.load(path, target=view, options={"slot_shift": 7})
