"""From prompts to a checkpoint at the command line, with a store and without one; what users get wrong; the recipes."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support_models import tiny_llama_dir
from support_training import METHODS, trained_target, view_of
from typer.testing import CliRunner

from specbench import registry
from specbench.cli.main import app
from specbench.engine.target import Target
from specbench.errors import ConfigError
from specbench.session import choose_dtype
from specbench.train.checkpoint import read_curve
from specbench.train.recipe import packaged_recipes, read_recipe

RECIPE = """
name = "tiny"
method = "dspark"
target = "{target}"
vocabulary = 200
checkpoint_every = 4

[drafter]
layers = 1
block = 3
taps = [1]
mask_token = 3
intermediate = 32
markov_rank = 4

[loss]
soft_ce = 1.0
tv = 0.5
confidence = 0.5
decay = 4.0

[optimiser]
lr = 5e-3

[[phases]]
steps = 4
sequences = 3
drafts = 1

[[phases]]
epochs = 1
sequences = 3
anchors = 4

[evaluate]
every = 4
sequences = 4
anchors = 4
"""


def command(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["train", *(str(a) for a in arguments)])
    assert done.exit_code == code, done.output + str(done.exception)
    return done.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, its answers, their features and a recipe."""
    folder = tmp_path_factory.mktemp("made")
    target = tiny_llama_dir(folder)
    lines = [json.dumps({"turns": [f"Say something about number {i} of {i * i}."]}) + "\n" for i in range(14)]
    (folder / "own.jsonl").write_text("".join(lines))
    own = ["--target", target, "--threads", 1]
    command(
        "prepare", "--prompts", folder / "own.jsonl", "--max-new-tokens", 14, "--heldout-share", 0.3, "--evaluation",
        "starter-math", "--out", folder / "answers", *own,
    )  # fmt: skip
    command("features", "--data", folder / "answers", "--taps", "1", "--out", folder / "features", *own)
    (folder / "recipe.toml").write_text(RECIPE.format(target=target))
    return folder


def test_prompts_become_a_checkpoint_that_drafts(made: Path, tmp_path: Path) -> None:
    text = command(
        "fit", "--recipe", made / "recipe.toml", "--data", made / "features", "--out", tmp_path / "run", "--threads", 1,
        "--set", "optimiser.lr=4e-3", "--set", "phases.0.steps=6",
    )  # fmt: skip
    for said in ("parameters", "draft vocabulary: 200 tokens name", "phase 1: 6 steps", "held-out tau", "anchors/s",
                 f"of a large {choose_dtype('auto', device='cpu')} product", "peak memory", "of disk"):  # fmt: skip
        assert said in text, text
    settings = json.loads((tmp_path / "run" / "recipe.json").read_text())["settings"]
    assert settings["optimiser"]["lr"] == 4e-3
    rows = read_curve(tmp_path / "run" / "curve.csv")
    assert {row["phase"] for row in rows} == {"1", "2"}
    assert all(float(row["loss"]) > 0 for row in rows)
    text = command(
        "export", "--run", tmp_path / "run", "--data", made / "features", "--out", tmp_path / "out", "--threads", 1
    )
    assert "held-out tau" in text
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["draft_vocabulary"] == 200
    assert 1.0 <= card["heldout"]["tau"] <= 4.0
    target = Target.load(made / "tiny-llama", dtype="float32")
    drafter = registry.load("drafters", "dspark").load(
        tmp_path / "out", target=target.view(max_rows=2, max_context=64), options={}
    )
    assert drafter.trained_length == 3
    assert "exists and is not empty" in refused(
        "export", "--run", tmp_path / "run", "--data", made / "features", "--out", tmp_path / "out"
    )


def test_online_is_the_store_without_the_disk(made: Path, tmp_path: Path) -> None:
    for name, source in (("stored", [made / "features"]), ("online", [made / "answers", "--online"])):
        command(
            "fit", "--recipe", made / "recipe.toml", "--data", *source, "--out", tmp_path / name, "--threads", 1,
        )  # fmt: skip
    stored, online = (read_curve(tmp_path / name / "curve.csv") for name in ("stored", "online"))
    assert len(stored) == len(online) > 4
    for row, other in zip(stored, online):
        assert float(row["loss"]) == pytest.approx(float(other["loss"]), rel=2e-3)


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["train", *(str(a) for a in arguments)])
    assert done.exit_code != 0
    text = str(done.exception)
    assert "\n" not in text
    return text


def test_what_a_user_gets_wrong_is_said_in_one_line(made: Path, tmp_path: Path) -> None:
    base = ["fit", "--recipe", made / "recipe.toml", "--out", tmp_path / "run", "--threads", 1]
    assert "--data is missing" in refused(*base)
    assert "holds no training features" in refused(*base, "--data", tmp_path)
    assert "did you mean dspark" in refused(*base, "--data", made / "features", "--set", "method=dspak")
    assert "unknown setting 'optimizer'" in refused(*base, "--data", made / "features", "--set", "optimizer.lr=1")
    assert "there is no '7'" in refused(*base, "--data", made / "features", "--set", "phases.7.steps=1")
    assert "reads state 0 of the target, the features hold [1]" in refused(
        *base, "--data", made / "features", "--set", "drafter.taps=[0]"
    )
    assert "unknown recipe" in refused("fit", "--recipe", "smollm3-dspark", "--data", made / "features")
    assert "holds no training" in refused("export", "--run", tmp_path, "--data", made / "features", "--out", tmp_path)
    other = tiny_llama_dir(tmp_path, name="other", seed=4)
    assert "made by 'tiny-llama' with other weights" in refused(*base, "--data", made / "features", "--target", other)


def test_recipes_are_listed() -> None:
    text = command("fit", "--recipe", "list")
    assert "smollm2-135m-dspark-rnn" in text
    assert "qwen3-14b-eagle3" in text


SIZES = {  # layers, width, heads, key/value heads, head width, MLP, vocabulary
    "smollm2-135m": (30, 576, 9, 3, 64, 1536, 49152),
    "Qwen/Qwen3-4B": (36, 2560, 32, 8, 128, 9728, 151936),
    "Qwen/Qwen3-8B": (36, 4096, 32, 8, 128, 12288, 151936),
    "Qwen/Qwen3-14B": (40, 5120, 40, 8, 128, 17408, 151936),
}


def sized_view(target: str) -> Any:
    """A view of a target's sizes whose tables hold no memory."""
    from transformers import Qwen3Config

    layers, width, heads, kv_heads, head_dim, mlp, vocab = SIZES[target]
    config = Qwen3Config(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=head_dim, intermediate_size=mlp, vocab_size=vocab,
    )  # fmt: skip
    with torch.device("meta"):
        embed, head = torch.nn.Embedding(vocab, width), torch.nn.Linear(width, vocab, bias=False)
    return replace(
        view_of(trained_target()),
        config=config, embed=embed, head=head, vocab_size=vocab, hidden_size=width, num_layers=layers,
    )  # fmt: skip


@pytest.mark.parametrize("name", list(packaged_recipes()))
def test_packaged_recipes_are_valid(name: str) -> None:
    found = read_recipe(name)
    assert found.name == name
    method = registry.load("trainables", found.method)
    view = sized_view(found.target)
    drafts = method.drafts(found.drafter)
    objective = found.loss.objective(drafts)
    assert len(objective.position_weights) == drafts
    taps = method.taps(view, options=found.drafter)
    if found.target == "Qwen/Qwen3-14B" and found.method != "mtp":
        assert taps.boundaries == (2, 11, 20, 29, 38)
    if found.target.startswith("Qwen/"):
        assert found.optimiser.lr == 6e-4
        assert found.max_length == 4096
        assert [(p.epochs, p.sequences) for p in found.phases] == [(10, 512)]
        assert found.vocabulary is None
    if found.method in ("dspark", "dflash", "eagle3"):
        assert drafts == 7


def test_demo_drafters_are_small_and_train_on_as_much() -> None:
    """At most 10 MB a file and 40 MB together, and the same number of predictions a step for all methods."""
    total, predictions = 0, set()
    view = sized_view("smollm2-135m")
    for method in METHODS:
        found, own = read_recipe(f"smollm2-135m-{method}"), read_recipe(f"smollm2-135m-{method}-paper")
        assert found.model_dump(exclude={"loss", "name", "note"}) == own.model_dump(exclude={"loss", "name", "note"})
        assert found.loss != own.loss
        plugin = registry.load("trainables", found.method)
        made = plugin.build(
            view,
            options=found.drafter,
            objective=found.loss.objective(7),
            vocabulary=torch.arange(found.vocabulary or 0),
            feature_scale=None,
            seed=0,
        )
        stored = 2 * sum(p.numel() for p in made.module.parameters()) + 8 * (found.vocabulary or 0) + 10_000
        assert stored < 10e6, method
        total += stored
        whole = plugin.drafts(found.drafter)
        predictions.add(tuple((p.steps, p.sequences, (p.anchors or 1) * (p.drafts or whole)) for p in found.phases))
    assert total < 40e6
    assert len(predictions) == 1


def test_a_recipe_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    text = packaged_recipes()["smollm2-135m-dspark"].read_text()
    assert tomllib.loads(text)["method"] == "dspark"
    for change, message in (
        ("vocabulary = 8192", "unknown setting 'vocabluary'; did you mean vocabulary"),
        ("tv = 0.5", "loss.tv"),
    ):
        wrong = {"vocabulary = 8192": "vocabluary = 8192", "tv = 0.5": "tv = -1"}[change]
        path.write_text(text.replace(change, wrong))
        with pytest.raises(Exception, match=message):
            read_recipe(str(path))
    path.write_text("name = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_recipe(str(path))
