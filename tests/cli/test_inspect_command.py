"""``inspect``, ``export`` and the rows of ``list drafters``, through typer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import support_checkpoints as made
import support_formats as formats
import typer
from specbench_drafters.formats.load import load_checkpoint
from typer.testing import CliRunner

from specbench.cli.inspect import export, inspect, published_rows
from specbench.errors import CheckpointError, ConfigError, UnknownNameError

FIXTURES = Path(__file__).parent.parent / "data" / "fixtures"

app = typer.Typer(pretty_exceptions_enable=False)
app.command("inspect")(inspect)
app.command("export")(export)
runner = CliRunner()


def test_inspect_prints_what_it_found(tmp_path: Path) -> None:
    result = runner.invoke(app, ["inspect", str(made.deepspec_dspark(tmp_path / "c"))])
    assert result.exit_code == 0
    for words in ("DeepSpec DSpark", "slot k predicts anchor + k + 1", "sequential head", "sha256"):
        assert words in result.stdout


def test_inspect_json_holds_the_whole_report(tmp_path: Path) -> None:
    path = made.safeailab_eagle3(tmp_path / "c")
    result = runner.invoke(app, ["inspect", str(path), "--json", "--set", "taps=2,4,5"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["usable"] is True
    assert found["spec"]["taps"] == [2, 4, 5]
    assert found["spec"]["draft_vocabulary"] == {"tokens": 12, "first": 0, "last": 38}
    assert found["parameters"]["head"] == 12 * made.HIDDEN


def test_inspect_of_an_unusable_checkpoint_exits_with_2(tmp_path: Path) -> None:
    path = formats.refused(tmp_path / "c", "P-EAGLE")
    result = runner.invoke(app, ["inspect", str(path)])
    assert result.exit_code == 2
    assert "P-EAGLE is not supported" in " ".join(result.stdout.split())


def test_inspect_check_compares_readings() -> None:
    arguments = ["--target", str(FIXTURES / "target"), "--check", "--tokens", "24", "--json"]
    result = runner.invoke(app, ["inspect", str(FIXTURES / "dflash"), *arguments])
    assert result.exit_code == 0
    check = json.loads(result.stdout)["check"]
    assert [outcome["reading"] for outcome in check["outcomes"]][:2] == ["chosen", "layer ids +1"]
    assert check["warnings"] == []


def test_check_needs_a_target(tmp_path: Path) -> None:
    result = runner.invoke(app, ["inspect", str(made.deepspec_dflash(tmp_path / "c")), "--check"])
    assert isinstance(result.exception, ConfigError)


def test_malformed_set(tmp_path: Path) -> None:
    result = runner.invoke(app, ["inspect", str(made.deepspec_dflash(tmp_path / "c")), "--set", "taps"])
    assert isinstance(result.exception, ConfigError)
    assert "--set taps=2,18,33" in str(result.exception)


def test_export_writes_a_folder_that_loads(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = FIXTURES / "dspark_rnn"
    target = ["--target", str(FIXTURES / "target")]
    result = runner.invoke(app, ["export", str(path), str(out), "-l", "specbench", *target])
    assert result.exit_code == 0, result.exception
    assert "dspark in the specbench layout" in " ".join(result.stdout.split())
    compact = load_checkpoint(out)
    assert (compact.spec.embed_from, compact.spec.head_from, compact.spec.markov) == ("target", "target", "rnn")
    back = tmp_path / "back"
    result = runner.invoke(app, ["export", str(out), str(back), "-l", "deepspec", *target])
    assert result.exit_code == 0, result.exception
    assert set(load_checkpoint(back).tensors) == set(load_checkpoint(path).tensors)


def test_export_refuses_in_one_line(tmp_path: Path) -> None:
    path = made.speculators_dspark(tmp_path / "c")
    result = runner.invoke(app, ["export", str(path), str(tmp_path / "out"), "--layout", "deepspec"])
    assert isinstance(result.exception, CheckpointError)
    assert "export to speculators instead" in str(result.exception)


def test_published_rows() -> None:
    assert published_rows("Qwen/Qwen3-4B", "dspark")[0] == (
        "dspark for Qwen/Qwen3-4B",
        "deepseek-ai/dspark_qwen3_4b_block7 (deepspec; trained with thinking off)",
    )
    assert len(published_rows()) > 60
    assert published_rows("smollm2-135m") == []
    with pytest.raises(UnknownNameError, match="Qwen/Qwen3-4B"):
        published_rows("Qwen/Qwen3-4C")
