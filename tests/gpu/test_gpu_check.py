"""The GPU check on a CPU: its sections at tiny shapes, and what the driver does when one of them fails."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.records import keys, schema
from tests.gpu import driver, findings, report, wheels
from tests.gpu.child import _section
from tests.gpu.child import main as child
from tests.gpu.context import Context
from tests.gpu.findings import Findings
from tests.gpu.scales import DRY
from tests.gpu.sections import NAMES, TOTAL_S, budgets

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


def test_a_device_that_does_not_come_back_fails_what_is_left(tmp_path: Path) -> None:
    code, found = checked(tmp_path, "begin('device'); done('device'); sys.exit(3)", "sys.exit(2)")
    assert code == 1
    assert found["device"] == ("ok", None)
    assert found["sps"] == found["load"] == ("failed", "the process ended with code 2")


def test_a_machine_that_will_not_do_leaves_no_results_of_sections(tmp_path: Path) -> None:
    code, found = checked(tmp_path, "sys.exit(2)")
    assert (code, found) == (2, {})


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
    packed, left_out = driver.archives(tmp_path)
    assert left_out == []
    assert [name for name, _ in packed] == ["records-1.zip", "records-2.zip"]
    held = []
    for name, data in packed:
        (tmp_path / name).write_bytes(data)
        held += zipfile.ZipFile(tmp_path / name).namelist()
    assert len(held) == len(set(held)) == 8
    monkeypatch.setattr(driver, "MAX_ARCHIVES", 1)
    packed, left_out = driver.archives(tmp_path)
    assert [name for name, _ in packed] == ["records-1.zip"]
    assert left_out == [f"{2:016d}", f"{3:016d}"]
    assert left_out[0] in report.to_markdown({"dry": False, "sections": [], "records_left_out": left_out})


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
