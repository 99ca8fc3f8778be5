from __future__ import annotations

import pytest

from specbench import checkpoints


@pytest.fixture
def weights(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_root", lambda: tmp_path)
    return tmp_path


def make(folder, note: str = ""):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if note:
        (folder / "NOTE.txt").write_text(note)


def test_packaged_checkpoints_are_found_by_target_and_method(weights):
    make(weights / "smollm2-135m" / "draft_model", "trained on the starter tasks\nmore")
    make(weights / "smollm2-135m" / "eagle3")
    make(weights / "smollm2-135m" / "dspark-rnn")
    (weights / "smollm2-135m" / "unfinished").mkdir()
    found = checkpoints.packaged_checkpoints()
    assert [(c.target, c.method, c.note) for c in found] == [
        ("smollm2-135m", "draft-model", "trained on the starter tasks"),
        ("smollm2-135m", "dspark-rnn", ""),
        ("smollm2-135m", "eagle3", ""),
    ]
    assert checkpoints.packaged_for(target="smollm2-135m", method="dspark-rnn") == found[1]
    assert checkpoints.packaged_for(target="smollm2-135m", method="eagle3") == found[2]
    assert checkpoints.packaged_for(target="smollm2-135m", method="dspark") is None
    assert checkpoints.packaged_for(target="../smollm2-135m", method="eagle3") is None
    assert checkpoints.packaged_for(target="qwen3-8b", method="eagle3") is None


def test_root_lies_in_the_package_of_the_drafters():
    root = checkpoints._root()
    assert root is not None
    assert root.parts[-2:] == ("specbench_drafters", "weights")
