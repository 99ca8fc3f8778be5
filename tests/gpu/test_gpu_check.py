"""The GPU check on a CPU: its sections at tiny shapes, and what the driver does when one of them fails."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.records import keys, schema
from specbench.report.paper_values import paper_values
from specbench.types import Taps
from tests.gpu import driver, findings, report, wheels
from tests.gpu.acceptance import DOMAIN, expected_tau, paper_rates
from tests.gpu.child import _section
from tests.gpu.child import main as child
from tests.gpu.context import Context
from tests.gpu.engines import seated
from tests.gpu.findings import Findings
from tests.gpu.forwards import Forward, compiled, make_pool
from tests.gpu.models import fingerprint, random_target
from tests.gpu.roofline import cached_bytes, forward_work, product_weights
from tests.gpu.scales import DRY, QWEN3_4B, QWEN3_8B, TINY, TINY_UNTIED
from tests.gpu.seating import rounds
from tests.gpu.section_graphs import union_length
from tests.gpu.section_head import without_heads
from tests.gpu.sections import NAMES, TOTAL_S, budgets
from tests.gpu.sessions import confidence_temperatures
from tests.gpu.timing import Budget, summary

ROOT = Path(__file__).parents[2]


# --------------------------------------------------------------------------------------------------- sections


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the least of each section found, in this process, and the folder of the records."""
    state = tmp_path_factory.mktemp("state")
    names = ("device", "cycle", "head", "graphs", "load")
    assert child(["--state", str(state), "--only", ",".join(names), "--left", "0.5", "--dry"]) == 0
    found = {name: findings.read(state, name) for name in names}
    return {**found, "records": state / "records"}


def test_every_section_ends_well_and_says_what_it_left_out(dry: dict[str, Any]) -> None:
    for name in ("device", "cycle", "head", "graphs", "load"):
        assert dry[name]["status"] == "ok", dry[name]["error"]
        assert all(table["rows"] for table in dry[name]["tables"])
    assert any("least wanted" in text for text in dry["cycle"]["cut"])
    assert {aim["met"] for name in ("cycle", "head") for aim in dry[name]["aims"]} == {None}  # a CPU meets no aim


def test_rounds_are_measured_in_both_loops_against_the_roofline(dry: dict[str, Any]) -> None:
    (table,) = dry["cycle"]["tables"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert {row["loop"] for row in rows} == {"graphs", "plain"}
    for row in rows:
        phases = [row[f"T_{name} ms"] for name in ("draft", "schedule", "verify", "accept", "other")]
        assert all(value > 0 for value in phases)
        assert row["T_verify / floor"] == pytest.approx(row["T_verify ms"] / row["floor ms"])


def test_loads_leave_real_records_that_never_rank(dry: dict[str, Any]) -> None:
    paths = sorted(dry["records"].glob("*.json"))
    records = [schema.parse(json.loads(path.read_text()), where=str(path)) for path in paths]
    assert {(r.method, r.spec["policy"].partition(":")[0], r.spec.get("graphs", False)) for r in records} == {
        ("vanilla", "fixed", True), ("dspark", "fixed", True), ("dspark", "fixed", False),
        ("dspark", "load-aware", False), ("mtp", "fixed", True),
    }  # fmt: skip
    (table,) = dry["load"]["tables"]
    assert {row[-1] for row in table["rows"]} == {r.run_id for r in records}
    for record in records:
        assert record.find("steady_tokens_per_s") is not None
        if record.method != "vanilla":
            assert "acceptance is synthetic" in keys.obstacles(record)
            assert record.drafter is not None
            assert record.drafter.source == "random"


def test_a_section_that_raises_is_reported_and_the_next_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.gpu import section_device, section_numeric

    def broken(context: Context, found: Findings) -> None:
        found.table("before the fault", "value").add(1)
        raise ValueError("no such\ndevice")

    monkeypatch.setattr(section_device, "run", broken)
    monkeypatch.setattr(section_numeric, "run", lambda context, found: found.notes.append("ran"))
    assert child(["--state", str(tmp_path), "--only", "device,numeric", "--left", "9", "--dry"]) == 0
    first, second = (findings.read(tmp_path, name) for name in ("device", "numeric"))
    assert first is not None
    assert second is not None
    assert (first["status"], first["error"]) == ("failed", "ValueError: no such device")
    assert first["tables"][0]["rows"] == [[1]]
    assert (second["status"], second["notes"]) == ("ok", ["ran"])
    assert "ValueError" in capsys.readouterr().err


def test_no_section_is_begun_without_time_left(tmp_path: Path) -> None:
    context = Context(replace(DRY, dry=False), state=tmp_path)
    assert _section("sps", context, left_s=1.0, seconds=1.0)
    found = findings.read(tmp_path, "sps")
    assert found is not None
    assert (found["status"], found["error"]) == ("failed", "not run: no time is left in the whole run")


# ----------------------------------------------------------------------------------------------------- driver


class Scripted(driver.Check):
    """The driver with children that are given, one after the other."""

    scripts: list[str]

    def _start(self, waiting: list[str]) -> subprocess.Popen[bytes]:
        (self.state / "current").unlink(missing_ok=True)
        head = "import json, os, sys, time, pathlib\nstate = pathlib.Path(sys.argv[1])\n"
        head += (
            "def done(name, **more):\n    found = {'name': name, 'status': 'ok', 'seconds': 1.0, 'budget_s': 1.0, "
            "'error': None, 'tables': [], 'aims': [], 'notes': [], 'cut': [], 'facts': {}} | more\n"
            "    (state / f'{name}.json').write_text(json.dumps(found))\n"
            "    (state / 'current').unlink(missing_ok=True)\n"
            "def begin(name, patience=60):\n    (state / 'current').write_text(f'{name} {patience}')\n"
        )
        command = [sys.executable, "-S", "-c", head + textwrap.dedent(self.scripts.pop(0)), str(self.state)]
        return subprocess.Popen(command)

    def _patience_s(self, seconds: float | None) -> float:
        return 60.0 if seconds is None else seconds


def checked(tmp_path: Path, *scripts: str) -> tuple[int, dict[str, Any]]:
    state, out = tmp_path / "state", tmp_path / "out"
    state.mkdir()
    out.mkdir()
    check = Scripted(("device", "sps", "load"), out, state, False, 60.0)
    check.scripts = list(scripts)
    code = check.run()
    assert not check.scripts
    results = json.loads((out / "results.json").read_text())
    return code, {section["name"]: (section["status"], section["error"]) for section in results["sections"]}


def test_a_lost_device_is_left_behind_in_a_fresh_process(tmp_path: Path) -> None:
    code, found = checked(
        tmp_path,
        "begin('device'); done('device', status='failed', error='illegal access'); sys.exit(3)",
        "begin('sps'); done('sps'); begin('load'); done('load')",
    )
    assert code == 1
    assert found == {"device": ("failed", "illegal access"), "sps": ("ok", None), "load": ("ok", None)}


def test_a_process_that_dies_or_hangs_costs_one_section(tmp_path: Path) -> None:
    code, found = checked(
        tmp_path,
        "begin('device'); os.kill(os.getpid(), 9)",
        "begin('sps'); done('sps', status='running', notes=['half']); begin('sps', 0.3); time.sleep(60)",
        "begin('load'); done('load')",
    )
    assert code == 1
    assert found["device"] == ("failed", "the process ended with code -9")
    assert found["sps"][0] == "failed"
    assert "had not come to an end" in str(found["sps"][1])
    assert found["load"] == ("ok", None)
    assert "half" in (tmp_path / "out/report.md").read_text()


def test_a_process_that_cannot_start_is_not_tried_again(tmp_path: Path) -> None:
    code, found = checked(tmp_path, "sys.exit(1)")
    assert code == 1
    assert set(found.values()) == {("failed", "the process ended with code 1")}


def test_records_are_packed_into_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "ARCHIVE_BYTES", 250)
    for index in range(4):
        (tmp_path / f"{index:016d}.json").write_text("x" * 60)
        (tmp_path / f"{index:016d}.rounds.parquet").write_bytes(b"y" * 60)
    (tmp_path / f"{9:016d}.rounds.parquet").write_bytes(b"y")  # its record is not there yet
    packed = driver.archives(tmp_path)
    assert [name for name, _ in packed] == ["records-1.zip", "records-2.zip"]
    held = []
    for name, data in packed:
        (tmp_path / name).write_bytes(data)
        held += zipfile.ZipFile(tmp_path / name).namelist()
    assert len(held) == len(set(held)) == 8
    monkeypatch.setattr(driver, "MAX_ARCHIVES", 1)
    with pytest.raises(OSError, match="more than 1 archives"):
        driver.archives(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "sp"], "unknown section 'sp'; known: device"),
        (["--only", ","], "unknown section ''"),
        (["--seconds", "-1"], "--seconds is -1"),
        (["--wheels", "nowhere"], "no wheels in 'nowhere'"),
    ],
)
def test_a_wrong_request_is_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.gpu.__main__ import main

    assert main([*words, "--out", str(tmp_path), "--dry"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "NEEDED", {"json": "json", "no_such_module": "no-such-module"})
    assert wheels.missing() == ["no-such-module"]
    with pytest.raises(wheels.WheelError, match="lacks no-such-module"):
        driver._environment(tmp_path, None, dry=True)


def test_wheels_are_unpacked_without_an_index(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "carried-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("carried_module.py", "VALUE = 7\n")
        archive.writestr("carried-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        archive.writestr(
            "carried-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("carried-1.0.dist-info/RECORD", "")
    assert wheels.install(tmp_path, into=tmp_path / "site") == 1
    assert (tmp_path / "site/carried_module.py").exists()


def test_sections_share_the_time_that_is_left() -> None:
    whole = budgets(NAMES, dry=False, left_s=TOTAL_S)
    assert sum(whole.values()) <= TOTAL_S < 240
    alone = budgets(["load"], dry=False, left_s=TOTAL_S)["load"]
    assert whole["load"] < alone <= TOTAL_S
    assert sum(budgets(NAMES, dry=False, left_s=50).values()) == pytest.approx(50)


def test_the_report_shows_what_is_absent_and_escapes_what_is_not() -> None:
    found = Findings(notes=["a | b"], cut=["two points"])
    found.table("T | t", "name", "ms").add("x", None)
    found.table("numbers", "ms").add(0.00012345)
    found.aim("share", 1.0, limit=1.3, unit="%", judged=True)
    found.aim("ratio", 2.0, limit=1.3, unit="", judged=True)
    section = {"name": "head", "about": "heads", "status": "ok", "seconds": 1.0, "budget_s": 2.0, "error": None}
    section |= json.loads(json.dumps(findings.asdict(found)))
    text = report.to_markdown({"dry": False, "sections": [section]})
    assert "| x | n/a |" in text
    assert "| 0.0001234 |" in text or "| 0.0001235 |" in text
    assert "a \\| b" in text
    assert "| head | share | 1 % | 1.3 % | met |" in text
    assert "| head | ratio | 2 | 1.3 | missed |" in text
    assert "two points" in text


# ------------------------------------------------------------------------------------------- counts and rates


@cache
def tiny(untied: bool = False) -> Any:
    return random_target(TINY_UNTIED if untied else TINY, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("untied", [False, True])
def test_the_roofline_counts_the_weights_of_every_product(untied: bool) -> None:
    shape, model = (TINY_UNTIED if untied else TINY), tiny(untied).model
    matrices = {id(p): p.numel() for p in model.parameters() if p.dim() == 2}
    embedding = model.get_input_embeddings().weight.numel() if untied else 0
    assert product_weights(shape) == sum(matrices.values()) - embedding


def test_the_roofline_of_a_step_by_hand() -> None:
    work = forward_work(TINY, rows=2, tokens_per_row=3, context=10, itemsize=4)
    token = cached_bytes(TINY, itemsize=4)
    assert token == 3 * 2 * 2 * 16 * 4
    weights = product_weights(TINY)
    assert work.bytes_moved == 4 * weights + (2 * 10 + 2 * 3) * token + 2 * 3 * 499 * 4
    pairs = 2 * (11 + 12 + 13)
    assert work.operations == 2 * weights * 6 + 4 * 3 * 4 * 16 * pairs


def test_the_published_shapes_have_the_published_sizes() -> None:
    """Qwen3-4B has 3.6 billion weights without its embedding, Qwen3-8B 6.95 (the model cards)."""
    for shape, billions in ((QWEN3_4B, 3.6), (QWEN3_8B, 6.95)):
        assert (product_weights(shape) - shape.vocab * shape.hidden) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("method", ["eagle3", "dflash", "dspark"])
def test_rates_start_where_the_paper_says_and_give_its_accepted_length(method: str) -> None:
    rates = paper_rates(method, draft_length=7)
    table = [v.value for v in paper_values() if (v.place, v.method, v.target) == ("Table 1", method, "Qwen3-4B")
             and v.domain == DOMAIN]  # fmt: skip
    assert rates.tau == pytest.approx(sum(table) / len(table), abs=1e-9)
    (first,) = (v.value for v in paper_values() if (v.place, v.method, v.domain, v.at)
                == ("Figure 2", method, DOMAIN, 1))  # fmt: skip
    assert rates.conditional[0] == first
    assert paper_rates(method, draft_length=15).conditional[:7] == rates.conditional
    assert paper_rates(method, draft_length=3).conditional == rates.conditional[:3]


def test_expected_tau() -> None:
    assert expected_tau((0.5, 0.5)) == 1.75
    assert expected_tau(()) == 1.0


def test_confidences_say_the_forced_rates() -> None:
    rates = paper_rates("dspark", draft_length=7).conditional
    logit = torch.logit(torch.sigmoid(torch.tensor(2.0, dtype=torch.float64)))
    told = torch.sigmoid(logit / torch.tensor(confidence_temperatures(rates), dtype=torch.float64))
    assert told.tolist() == pytest.approx(rates)
    with pytest.raises(AssertionError):
        confidence_temperatures((0.4,))


def test_time_that_no_kernel_covers() -> None:
    assert union_length([(0, 2), (1, 3), (5, 6), (5.5, 5.8)]) == 4
    assert union_length([]) == 0


def test_medians_and_spread() -> None:
    assert summary([3.0, 1.0, 2.0]).median_s == 2.0
    assert summary([1.0, 2.0, 3.0]).spread == 0.5
    assert summary([4.0]).spread == 0.0


def test_a_fingerprint_sees_one_changed_weight_and_a_swap() -> None:
    weights = torch.arange(6.0).view(2, 3)
    first = fingerprint([("w", weights)])
    changed, swapped = weights.clone(), weights.flip(0)
    changed[1, 2] += 1
    assert (
        len({first, fingerprint([("w", changed)]), fingerprint([("w", swapped)]), fingerprint([("v", weights)])}) == 4
    )
    assert fingerprint([("w", weights.clone())]) == first


# -------------------------------------------------------------------------------------------- seats and heads


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return Context(DRY, state=tmp_path_factory.mktemp("context"))


def test_seated_rows_start_again_from_the_same_context(context: Context) -> None:
    bench = seated(context, TINY, "dspark", k=3, batches=(1, 3), cached=20)
    seen = []
    for rows in (3, 1, 3):
        bench.use(rows, graphs=False)
        steps = rounds(bench.engine, warmup=1, repeats=2, budget=Budget(9.0))
        assert [(step.decode_rows, step.decode_tokens) for step in steps] == [(rows, rows * 4)] * 2
        seen.append([r.anchor_position for r in bench.engine.recorder.rounds[-3 * rows :]][:rows])
    assert seen == [[20] * 3, [20], [20] * 3]
    bench.use(3, graphs=True)
    rounds(bench.engine, warmup=0, repeats=2, budget=Budget(9.0))
    assert bench.not_padded() is None


def test_a_round_without_heads_has_no_confidence_and_gets_them_back(context: Context) -> None:
    bench = seated(context, TINY, "dspark", k=3, batches=(2,), cached=8, graphs=False)
    with without_heads(bench.engine):
        rounds(bench.engine, warmup=0, repeats=1, budget=Budget(9.0))
    rounds(bench.engine, warmup=0, repeats=1, budget=Budget(9.0))
    bare, full = bench.engine.recorder.rounds[:2], bench.engine.recorder.rounds[2:]
    assert [r.confidence for r in bare] == [None, None]
    assert all(r.confidence is not None and len(r.confidence) == 3 for r in full)


def test_compiled_modules_give_the_same_logits_and_are_put_back(context: Context) -> None:
    target = context.target(TINY)
    target.lm.set_taps(Taps())
    pool = make_pool(target, rows=2, tokens=12)
    forward = Forward(target, rows=2, tokens_per_row=3, cached=8, pool=pool)
    plain = forward().clone()
    with compiled(target, backend="eager") as count:
        assert count == TINY.layers * 5 + 1  # an MLP and four norms a layer, and the last norm
        torch.testing.assert_close(forward(), plain)
    assert not any("forward" in vars(module) for module in target.model.modules())
