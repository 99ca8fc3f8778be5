from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support_runs import TinyRun, tiny_run, write_prompts

from specbench.records import store
from specbench.report.recompute import verify_record

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(str(ROOT / name) for name in (".", "drafters", "tasks", "leaderboard"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyRun:
    return tiny_run(tmp_path_factory.mktemp("tiny"))


def test_run_prints_a_table_and_where_the_records_are(tiny, tmp_path, specbench):
    code, out, _ = specbench(*tiny.arguments(tmp_path, "-m", "ngram:3"))
    assert code == 0
    assert "speed-up" in out
    assert "ngram:3" in out
    records = store.load_all(tmp_path)
    assert sorted(record.method for record in records) == ["ngram", "vanilla"]
    for record in records:
        assert str(tmp_path / f"{record.run_id}.json") in out
        assert record.command[:2] == ["specbench", "run"]
        assert verify_record(tmp_path, record.run_id) == []
    assert (tmp_path / "estimates.csv").is_file()


def test_show_prints_a_record_and_checks_it(tiny, tmp_path, specbench):
    specbench(*tiny.arguments(tmp_path, "-m", "ngram:3", "--no-baseline"))
    (record,) = store.load_all(tmp_path)
    code, out, _ = specbench("show", record.run_id[:8], "--in", str(tmp_path), "--check")
    assert code == 0
    assert record.run_id in out
    assert "every number follows from the rounds" in out


def test_toml_file_and_flags(tiny, tmp_path, specbench):
    file = tmp_path / "run.toml"
    file.write_text('methods = ["ngram:2"]\nmax_new_tokens = 24\nseed = 5\nbaseline = false\n')
    code, _, _ = specbench(*tiny.arguments(tmp_path / "out", "--config", str(file), "--seed", "6"))
    assert code == 0
    (record,) = store.load_all(tmp_path / "out")
    assert (record.method, record.draft_length, record.spec["seed"]) == ("ngram", 2, 6)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", ["vanilla", "ngram", "draft-model"]),
        ("tasks", ["starter-math", "starter-code", "starter-chat", "humaneval", "PATH.jsonl"]),
        ("targets", ["smollm2-135m"]),
    ],
)
def test_list(specbench, what, names):
    code, out, _ = specbench("list", what)
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines()]
    assert set(names) <= set(listed)
    assert all(len(line.split()) > 1 for line in out.splitlines())  # each with a line of explanation


def test_list_drafters(specbench):
    code, out, _ = specbench("list", "drafters")
    assert code == 0
    assert out.strip()


def test_fetch_of_a_folder_prints_its_hash(tiny, specbench):
    code, out, _ = specbench("fetch", str(tiny.target))
    assert code == 0
    assert "weights" in out


def test_usage_errors_exit_with_2(specbench):
    assert specbench("run", "--no-such-flag")[0] == 2
    assert specbench("list", "nonsense")[0] == 2


def test_help_and_lists_import_nothing_heavy():
    code = (
        "import sys; before = set(sys.modules); sys.argv = ['specbench', *{args!r}]\n"
        "from specbench.cli import main\n"
        "try: main.run()\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "outside = {{name.split('.')[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names\n"
        "print('IMPORTED', *sorted(outside))\n"
    )
    light = {"specbench", "specbench_drafters", "specbench_tasks", "typer", "click", "rich", "shellingham", "pygments"}
    light |= {"pydantic", "pydantic_core", "annotated_doc", "annotated_types", "attr", "attrs", "markdown_it", "mdurl"}
    for args in (["--help"], ["run", "--help"], ["list", "methods"], ["list", "tasks"]):
        done = subprocess.run(
            [sys.executable, "-c", code.format(args=args)],
            capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        mark, *imported = done.stdout.splitlines()[-1].split()
        assert mark == "IMPORTED"
        heavy = {name for name in imported if not name.startswith(("_", "typing"))} - light
        assert not heavy, heavy


def test_ctrl_c_leaves_a_valid_record(tiny, tmp_path):
    task = write_prompts(tmp_path / "many.jsonl", [[f"question {i}: {'why ' * (i % 7)}"] for i in range(100)])
    out = tmp_path / "out"
    command = tiny.arguments(out, "-m", "ngram:3", "-t", str(task), "--num-prompts", "all", "--max-new-tokens", "64")
    process = subprocess.Popen(
        [sys.executable, "-m", "specbench.cli.main", *command, "--ignore-eos", "--no-baseline"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=ROOT,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:  # the last step before measuring starts
            if line.startswith("checking ngram"):
                break
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    (record,) = store.load_all(out)
    assert record.status == "interrupted"
    assert 0 < record.counts["ok"] < 100
    assert verify_record(out, record.run_id) == []
    assert json.loads((out / f"{record.run_id}.json").read_text())["counts"]["interrupted"] == 1
