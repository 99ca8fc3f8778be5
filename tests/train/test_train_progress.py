"""What a stage shows while it works, and what its commands say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specbench.cli.main import app
from specbench.errors import ConfigError, TrainDataError
from specbench.train.manifest import owned, read_manifest, readable_bytes, write_manifest
from specbench.train.progress import Meter, Progress, readable_seconds


def test_rate_and_time_left_are_of_this_session() -> None:
    seen: list[Progress] = []
    clock = iter([10.0, 12.0, 20.0])

    class Screen:
        def say(self, text: str) -> None:
            raise AssertionError(text)

        def show(self, progress: Progress) -> None:
            seen.append(progress)

    meter = Meter("answers", "tokens", 1000.0, Screen(), before=400.0, now=lambda: next(clock))
    meter.at(0)
    meter.at(100)
    assert seen[0].rate is None
    assert seen[0].line() == "answers: 400 of 1,000 tokens"
    assert (seen[1].done, seen[1].rate, seen[1].left_s) == (500.0, 10.0, 50.0)
    assert seen[1].line() == "answers: 500 of 1,000 tokens, 10.0 tokens/s, 50 s left"


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (61, "1 min"), (7260, "2 h 1 min")])
def test_times_as_people_say_them(seconds: float, text: str) -> None:
    assert readable_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(812, "812 B"), (4617, "4.6 kB"), (1.16e10, "11.6 GB"), (3.8e13, "38.0 TB")]
)
def test_sizes_as_people_say_them(size: float, text: str) -> None:
    assert readable_bytes(size) == text


def test_a_folder_is_worked_in_by_one_process(tmp_path: Path) -> None:
    with (
        owned(tmp_path / "a"),
        pytest.raises(TrainDataError, match="another process is working in"),
        owned(tmp_path / "a"),
    ):
        raise AssertionError("entered twice")
    with owned(tmp_path / "a"):
        assert (tmp_path / "a").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainDataError, match="cannot make"), owned(tmp_path / "file" / "b"):
        raise AssertionError("entered")


def test_manifests_of_other_kinds_and_versions(tmp_path: Path) -> None:
    with pytest.raises(TrainDataError, match="holds no training answers"):
        read_manifest(tmp_path, kind="answers", version=1)
    write_manifest(tmp_path, {"kind": "answers", "version": 7})
    with pytest.raises(TrainDataError, match="layout version 7, this program reads 1"):
        read_manifest(tmp_path, kind="answers", version=1)
    with pytest.raises(TrainDataError, match="holds answers, not training features"):
        read_manifest(tmp_path, kind="features", version=1)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(TrainDataError, match="cannot be read"):
        read_manifest(tmp_path, kind="answers", version=1)


def test_commands_refuse_what_makes_no_sense(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "prepare", "--out", str(tmp_path / "x")])
    assert isinstance(done.exception, ConfigError)
    assert "no prompts: give --task, --prompts, --hub or --synthesise N" in str(done.exception)
    done = CliRunner().invoke(app, ["train", "features", "--data", "x", "--out", "y", "--taps", "2,b"])
    assert isinstance(done.exception, ConfigError)
    done = CliRunner().invoke(app, ["train", "features", "--data", "x", "--out", "y", "--taps", "9,2"])
    assert isinstance(done.exception, ConfigError)
    done = CliRunner().invoke(app, ["train", "check", "--data", str(tmp_path)])
    assert isinstance(done.exception, TrainDataError)


def test_help_of_the_stages_imports_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from specbench.cli.main import app;"
        "out = CliRunner().invoke(app, ['train', 'prepare', '--help']).output;"
        "assert '--synthesise' in out, out; assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
