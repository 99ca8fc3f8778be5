"""A whole plan on a tiny target, stopped and taken up again; its jobs as processes; what users get wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_answers import prompt_file
from support_models import tiny_llama_dir
from typer.testing import CliRunner

from specbench.cli.main import app
from specbench.errors import CapacityError, ConfigError, TrainDataError, UnknownNameError
from specbench.train import plan as plans
from specbench.train.jobs import Job, run_jobs
from specbench.train.pack import pack
from specbench.train.plan_spec import packaged_plans, read_plan
from specbench.train.progress import Silence

RECIPE = """
name = "tiny-{method}"
method = "{method}"
target = "{target}"
vocabulary = 60
[drafter]
{options}
[loss]
soft_ce = 1.0
[optimiser]
lr = 1e-3
[[phases]]
steps = 4
sequences = 2
anchors = 4
[evaluate]
every = 2
sequences = 3
anchors = 3
"""
OPTIONS = {
    "dflash": "layers = 1\nblock = 3\ntaps = [1]\nmask_token = 3\nintermediate = 16",
    "mtp": "block = 2\nintermediate = 16",
}
PLAN = """
name = "tiny"
target = "{target}"
parts = 2
seeds = [1, 0]
[prepare]
tasks = ["{prompts}"]
evaluation = ["starter-math"]
block = 4
rows = 4
max_new_tokens = 10
heldout_share = 0.4
dtype = "float32"
taps = [1]
[search]
rates = [1e-3, 1e-2]
share = 0.5
[[drafters]]
name = "dflash"
recipe = "{folder}/dflash.toml"
[[drafters]]
name = "mtp"
recipe = "{folder}/mtp.toml"
"""


def write_plan(folder: Path) -> Path:
    target, prompts = tiny_llama_dir(folder), prompt_file(folder, count=10, second=0)
    for method, options in OPTIONS.items():
        (folder / f"{method}.toml").write_text(RECIPE.format(method=method, target=target, options=options))
    path = folder / "plan.toml"
    path.write_text(PLAN.format(target=target, prompts=prompts, folder=folder))
    return path


def in_this_process(begun: list[str], *, stop_before: str | None = None) -> Any:
    """`run_jobs` without processes; it is interrupted before the named job."""

    def run(jobs: Sequence[Job], **_: Any) -> None:
        for job in jobs:
            if job.done():
                continue
            if job.name == stop_before:
                raise KeyboardInterrupt
            begun.append(job.name)
            outcome = CliRunner().invoke(app, list(job.arguments))
            assert outcome.exit_code == 0, (job.name, outcome.output, outcome.exception)
            assert job.done(), job.name

    return run


def test_a_plan_goes_on_after_a_stop_and_lists_every_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plan(tmp_path)
    begun: list[str] = []
    monkeypatch.setattr(plans, "run_jobs", in_this_process(begun, stop_before="final-mtp-s1"))
    first = CliRunner().invoke(app, ["train", "plan", str(path), "--out", str(tmp_path / "work"), "--device", "cpu"])
    assert first.exit_code == 130
    assert begun[:3] == ["part-0", "part-1", "check"]
    assert begun[3:7] == [f"search-{name}-lr{rate}" for rate in ("0.001", "0.01") for name in ("dflash", "mtp")]
    before = len(begun)
    monkeypatch.setattr(plans, "run_jobs", in_this_process(begun))
    arguments = ["train", "plan", str(path), "--out", str(tmp_path / "work"), "--device", "cpu"]
    second = CliRunner().invoke(app, [*arguments, "--pack", str(tmp_path / "packed")])
    assert second.exit_code == 0, second.output
    assert begun[before:] == ["final-mtp-s1", "final-dflash-s0", "final-mtp-s0", "export-dflash", "export-mtp"]
    document = json.loads((tmp_path / "work" / "runs.json").read_text())
    rows = document["runs"]
    assert [(r["stage"], r["drafter"], r["steps"]) for r in rows] == [
        *[("search", name, 2) for _ in range(2) for name in ("dflash", "mtp")],
        *[("final", name, 4) for _ in range(2) for name in ("dflash", "mtp")],
    ]
    assert all(r["anchors_per_s"] > 0 and r["peak_bytes"] > 10**6 for r in rows)
    for name in ("dflash", "mtp"):
        tried = {r["lr"]: r["heldout_tau"] for r in rows if r["drafter"] == name and r["stage"] == "search"}
        trained = [r for r in rows if r["drafter"] == name and r["stage"] == "final"]
        assert {r["lr"] for r in trained} == {max(tried, key=lambda lr: (tried[lr], -lr))}
        chosen = [r for r in trained if r["chosen"]]
        assert [r["seed"] for r in chosen] == [1], "the first seed's, not the luckiest's"
        card = json.loads((tmp_path / "work" / "weights" / name / "card.json").read_text())
        assert card["recipe"]["seed"] == chosen[0]["seed"]
    assert len((tmp_path / "work" / "runs.csv").read_text().splitlines()) == 9
    assert len((tmp_path / "work" / "curves.csv").read_text().splitlines()) == 1 + 4 * 1 + 4 * 2
    names = sorted(p.name for p in (tmp_path / "packed").iterdir())
    assert names == ["curves.tar.gz", "dflash.tar", "logs.tar.gz", "mtp.tar", "runs.json"]
    with tarfile.open(tmp_path / "packed" / "dflash.tar") as archive:
        held = {Path(member.name).name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert held == {p.name: p.read_bytes() for p in (tmp_path / "work" / "weights" / "dflash").iterdir()}
    with tarfile.open(tmp_path / "packed" / "curves.tar.gz") as archive:
        assert sum(name.endswith("heldout.csv") for name in archive.getnames()) == 8


def test_what_cannot_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainDataError, match="holds no finished plan"):
        pack(tmp_path / "work", tmp_path / "packed", runs=("runs.json",))
    weights = tmp_path / "work" / "weights" / "mtp"
    weights.mkdir(parents=True)
    (weights / "card.json").write_bytes(b"0" * 5000)
    (tmp_path / "work" / "runs.json").write_text("{}")
    assert len(pack(tmp_path / "work", tmp_path / "packed", runs=("runs.json",))) == 4
    monkeypatch.setattr("specbench.train.pack.MAX_BYTES", 4000)
    with pytest.raises(CapacityError, match=r"mtp.tar is \d+.* kB, at most 8 files of 4.0 kB"):
        pack(tmp_path / "work", tmp_path / "packed", runs=("runs.json",))


def test_a_folder_of_another_plan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plan(tmp_path)
    monkeypatch.setattr(plans, "run_jobs", in_this_process([], stop_before="part-0"))
    arguments = ["train", "plan", str(path), "--out", str(tmp_path / "work"), "--device", "cpu"]
    assert CliRunner().invoke(app, arguments).exit_code == 130
    recipe = tmp_path / "mtp.toml"
    recipe.write_text(recipe.read_text().replace("soft_ce = 1.0", "soft_ce = 0.5"))
    assert CliRunner().invoke(app, arguments).exit_code == 130, "data do not depend on recipes"
    (tmp_path / "work" / "search").mkdir()
    recipe.write_text(recipe.read_text().replace("soft_ce = 0.5", "soft_ce = 0.25"))
    outcome = CliRunner().invoke(app, arguments)
    assert isinstance(outcome.exception, TrainDataError)
    assert "was begun with recipe mtp" in str(outcome.exception)
    (tmp_path / "work" / "search").rmdir()
    path.write_text(path.read_text().replace('name = "tiny"', 'name = "other"'))
    named = CliRunner().invoke(app, arguments)
    assert isinstance(named.exception, TrainDataError)
    assert 'was begun with name = "tiny"' in str(named.exception)


def test_weights_of_another_seed_are_not_taken_for_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_plan(tmp_path)
    plan = read_plan(str(path))
    for entry, seed in (("dflash", 1), ("mtp", 0)):
        folder = tmp_path / "work" / "weights" / entry
        folder.mkdir(parents=True)
        (folder / "card.json").write_text(json.dumps({"recipe": {"seed": seed}}))
    run = plans._Run(plan, plan.check(), tmp_path / "work", 1, "cpu", Silence())
    outcomes = [plans.Outcome(name, "final", 1e-3, 1, 1.5, f"final/{name}-s1", {}) for name in ("dflash", "mtp")]
    ours, others = (run.export_job(outcome) for outcome in outcomes)
    assert ours.done()
    with pytest.raises(TrainDataError, match="mtp holds the drafter of another seed than 1"):
        others.done()


def test_parts_may_differ_in_size(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    path.write_text(path.read_text().replace("[prepare]", "[prepare]\ntarget_tokens = [30, 20]"))
    plan = read_plan(str(path))
    assert [plan.part(n, out=tmp_path, device="cpu").target_tokens for n in range(2)] == [30, 20]


def test_a_rate_that_is_known_is_not_searched(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    path.write_text(path.read_text().replace('name = "mtp"\n', 'name = "mtp"\nrate = 0.05\n'))
    plan = read_plan(str(path))
    run = plans._Run(plan, plan.check(), tmp_path / "work", 1, "cpu", Silence())
    assert [(t.entry.name, t.rate) for t in run.searches()] == [("dflash", 1e-3), ("dflash", 1e-2)]
    for trial, tau in zip(run.searches(), (1.2, 1.1)):
        run.folder(trial).mkdir(parents=True)
        (run.folder(trial) / "summary.json").write_text(json.dumps({"tau": tau}))
    rates = run.best_rates()
    assert rates == {"mtp": 0.05, "dflash": 1e-3}
    assert {(t.entry.name, t.rate) for t in run.finals(rates)} == {("mtp", 0.05), ("dflash", 1e-3)}


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("seeds = [1, 0]", "seeds = [1, 1]", ConfigError, "seed 1 is listed twice"),
        ("rates = [1e-3, 1e-2]", "rates = []", ConfigError, "search.rates"),
        ("[prepare]", "[prepare]\nseed = 3", ConfigError, "prepare.seed is set by the plan itself"),
        ("[prepare]", "[prepare]\nrow = 3", UnknownNameError, "row"),
        ("[prepare]", "[prepare]\ntarget_tokens = [3]", ConfigError, "lists 1 sizes for 2 parts"),
        ('name = "mtp"\n', 'name = "dflash"\n', ConfigError, "drafter name dflash is listed twice"),
        ("/mtp.toml", "/none", UnknownNameError, "unknown recipe"),
    ],
)
def test_what_is_wrong_in_a_plan(tmp_path: Path, old: str, new: str, error: type[Exception], message: str) -> None:
    path = write_plan(tmp_path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(error, match=message):
        plans.run_plan(read_plan(str(path)), out=tmp_path / "work", device="cpu")
    assert not (tmp_path / "work" / "data").exists()


def test_a_recipe_of_another_target_is_refused(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    recipe = tmp_path / "mtp.toml"
    recipe.write_text(recipe.read_text().replace(str(tmp_path / "tiny-llama"), "elsewhere"))
    with pytest.raises(ConfigError, match="tiny-mtp trains a drafter for elsewhere"):
        plans.run_plan(read_plan(str(path)), out=tmp_path / "work", device="cpu")


def test_packaged_plans_can_be_read_and_name_packaged_recipes() -> None:
    assert "smollm2-135m" in packaged_plans()
    for name in packaged_plans():
        plan = read_plan(name)
        assert plan.check().keys() == {entry.name for entry in plan.drafters}
        plan.part(0, out=Path("work"), device="cpu")
    listed = CliRunner().invoke(app, ["train", "plan", "list"])
    said = " ".join(listed.output.split())
    assert "smollm2-135m-gpu smollm2-135m: mtp, eagle3, dflash, dspark, dspark-rnn; 3 rates, 2 seeds" in said
    assert "smollm2-135m smollm2-135m: dspark, dflash, eagle3, mtp, dspark-rnn; 2 rates, 2 seeds" in said


# ------------------------------------------------------------------------------------------------------- processes

WORK = """
import pathlib, sys, time
kind, path = sys.argv[1:]
if kind == "fails":
    print("some words"); sys.exit("error: the disk is full")
if kind == "sleeps":
    pathlib.Path(path + ".begun").touch(); time.sleep(60)
time.sleep(0.1)
if kind != "idle":
    pathlib.Path(path).touch()
"""


def job(folder: Path, name: str, kind: str = "works") -> Job:
    return Job(name, (kind, str(folder / name)), (folder / name).is_file)


def test_jobs_run_once_and_a_failure_names_its_log(tmp_path: Path) -> None:
    command = ("-c", WORK)
    jobs = [job(tmp_path, name) for name in ("a", "b", "c")]
    run_jobs(jobs, at_once=2, logs=tmp_path / "logs", screen=Silence(), command=command)
    assert all(one.done() for one in jobs)
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in "abc"}
    with pytest.raises(TrainDataError, match=r"^bad ended with code 1: the disk is full \(log: .*bad.log\)$"):
        run_jobs(
            [*jobs, job(tmp_path, "bad", "fails")], at_once=2, logs=tmp_path / "logs", screen=Silence(), command=command
        )
    assert times == {name: (tmp_path / name).stat().st_mtime_ns for name in "abc"}
    with pytest.raises(TrainDataError, match="idle ended with code 0"):
        run_jobs([job(tmp_path, "idle", "idle")], at_once=1, logs=tmp_path / "logs", screen=Silence(), command=command)


def test_other_jobs_end_when_one_fails(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "long", "sleeps"), job(tmp_path, "bad", "fails")]
    begun = time.monotonic()
    with pytest.raises(TrainDataError, match="bad ended"):
        run_jobs(jobs, at_once=2, logs=tmp_path / "logs", screen=Silence(), command=("-c", WORK))
    assert time.monotonic() - begun < 30


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from pathlib import Path
        from specbench.train.jobs import Job, run_jobs
        from specbench.train.progress import Silence
        folder = Path({str(tmp_path)!r})
        run_jobs([Job("long", ("sleeps", str(folder / "long")), (folder / "long").is_file)], at_once=1,
                 logs=folder / "logs", screen=Silence(), command=("-c", {WORK!r}))
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "long.begun").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) != 0
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path / "long") in (p.info["cmdline"] or ())]
