"""Killed, stopped and shared among processes: the same curve as a training that nothing happened to."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from support_fit_process import KILLED, SHARED, begun, first_gradients, fit_shared, fit_slowly, store
from support_training import bound, folder_names, recipe

from specbench.errors import TrainDataError
from specbench.train.checkpoint import CHECKPOINT, load_best, load_state, read_curve
from specbench.train.distributed import World
from specbench.train.fit import run
from specbench.train.progress import Silence
from specbench.train.recipe import Recipe


def train(folder: Path, wanted: Recipe, *, stop_after: int | None = None) -> None:
    model, texts = store()
    seen: list[int] = []

    def stop() -> bool:
        seen.append(1)
        return len(seen) == stop_after

    run(
        wanted,
        texts,
        bound(model, texts, wanted),
        out=folder,
        dtype="float32",
        world=World(),
        screen=Silence(),
        stop=stop,
    )


def same_training(one: Path, other: Path) -> None:
    for name in ("curve.csv", "heldout.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    first, second = (load_best(folder, device="cpu") for folder in (one, other))
    assert first["step"] == second["step"]
    for name, tensor in first["module"].items():
        torch.testing.assert_close(tensor, second["module"][name], atol=0, rtol=0)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_killed_training_goes_on_to_the_same_curve(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = begun(fit_slowly, killed, "dspark")
    wanted = recipe("dspark", **KILLED)
    train(whole, wanted)
    deadline = time.monotonic() + 60
    while not (killed / CHECKPOINT).is_file():
        assert time.monotonic() < deadline
        assert process.is_alive()
        time.sleep(0.01)
    time.sleep(0.08)  # a few steps past the checkpoint, whose rows will be written again
    process.kill()
    process.join(timeout=30)
    assert process.exitcode == -signal.SIGKILL
    state = load_state(killed, device="cpu")
    assert state is not None
    assert 0 < state.step < 26
    train(killed, wanted)
    assert len(read_curve(killed / "curve.csv")) == 26
    same_training(killed, whole)


def test_a_checkpoint_of_one_optimiser_is_still_read(tmp_path: Path) -> None:
    """What was saved before an update could be that of several optimisers."""
    wanted = recipe("mtp")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, wanted, stop_after=4)
    path = tmp_path / CHECKPOINT
    saved = torch.load(path, weights_only=True)
    torch.save({**saved, "version": 1, "optimiser": saved["optimiser"]["0"]}, path)
    state = load_state(tmp_path, device="cpu")
    assert state is not None
    assert state.optimiser.keys() == {"0"}
    train(tmp_path, wanted)
    whole = tmp_path / "whole"
    train(whole, wanted)
    same_training(tmp_path, whole)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_stopped_training_saves_and_goes_on(tmp_path: Path, kind: str) -> None:
    wanted = recipe("eagle3", optimiser={"kind": kind, "lr": 1e-3})
    train(tmp_path / "whole", wanted)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", wanted, stop_after=5)
    state = load_state(tmp_path / "stopped", device="cpu")
    assert state is not None
    assert state.step == 5
    train(tmp_path / "stopped", wanted)
    same_training(tmp_path / "stopped", tmp_path / "whole")
    assert {"curve.csv", "heldout.csv", "best.pt", "checkpoint.pt", "recipe.json", "summary.json"} <= folder_names(
        tmp_path / "stopped"
    )
    assert not [name for name in folder_names(tmp_path / "stopped") if name.endswith(".partial")]


def test_another_recipe_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    train(tmp_path, recipe("mtp", checkpoint_every=4))
    train(tmp_path, recipe("mtp", checkpoint_every=9))  # how often it saves does not matter
    with pytest.raises(TrainDataError, match="was begun with optimiser"):
        train(tmp_path, recipe("mtp", optimiser={"lr": 1e-4}))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    wanted = recipe("dflash", phases=[{"steps": 2, "sequences": 2, "anchors": 4}])
    train(tmp_path, wanted)
    (tmp_path / CHECKPOINT).write_bytes(b"PK\x03\x04 not whole")
    with pytest.raises(TrainDataError, match=r"checkpoint\.pt is damaged"):
        train(tmp_path, wanted)


def test_two_processes_have_the_gradients_and_the_curve_of_one(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    launcher = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [begun(fit_shared, tmp_path, "dspark", {**launcher, "RANK": str(rank)}) for rank in range(2)]
    wanted = recipe("dspark", **SHARED)
    alone = first_gradients(wanted, tmp_path / "alone", World())
    train(tmp_path / "alone", wanted)
    for process in processes:
        process.join(timeout=90)
    assert [process.exitcode for process in processes] == [0, 0]
    shared = torch.load(tmp_path / "gradients.pt", weights_only=True)
    assert shared.keys() == alone.keys()
    for name, gradient in alone.items():
        torch.testing.assert_close(shared[name], gradient, atol=1e-6, rtol=1e-5)
    for name in ("curve.csv", "heldout.csv"):
        rows, others = (read_curve(tmp_path / part / name) for part in ("alone", "run"))
        assert len(rows) == len(others) > 0
        for row, other in zip(rows, others):
            assert row.keys() == other.keys()
            for column in row:
                if row[column]:
                    assert float(row[column]) == pytest.approx(float(other[column]), rel=2e-3, abs=1e-5), column
