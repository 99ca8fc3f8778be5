from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("specbench", "specbench_drafters", "specbench_tasks", "specbench_leaderboard")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("specbench_llm-*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    info = {top for top in tops if top.endswith(".dist-info")}
    assert tops - info == set(PACKAGES)
    for package in PACKAGES:
        assert f"{package}/py.typed" in wheel.namelist()
        assert f"{package}/__init__.py" in wheel.namelist()
    assert [n for n in wheel.namelist() if n.endswith("/licenses/LICENSE")]


def test_every_source_and_data_file_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    roots = {
        "specbench": ROOT,
        "drafters": ROOT / "drafters",
        "tasks": ROOT / "tasks",
        "leaderboard": ROOT / "leaderboard",
    }
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: what belongs to the project cannot be listed")
    tracked = [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    ours = [path for path in tracked if path.parts[0] in roots]
    names = {str((ROOT / path).relative_to(roots[path.parts[0]])) for path in ours}
    expected = {name for name in names if name.split("/")[0] in PACKAGES}
    assert expected - set(wheel.namelist()) == set()
    assert [name for name in expected if name.startswith("specbench_tasks/data/")]  # the starter prompts


def test_the_wheel_offers_the_command(wheel: zipfile.ZipFile) -> None:
    (entry,) = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    assert "specbench = specbench.cli.main:run" in wheel.read(entry).decode()


LIGHT = ("specbench.cli.main", "specbench.records", "specbench.report", "specbench.resolve", "specbench.provenance")


@pytest.mark.parametrize("module", [*LIGHT, "specbench.registry", "specbench_tasks", "specbench_leaderboard"])
def test_reading_and_help_need_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'datasets'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_loads_no_torch_and_names_the_commands() -> None:
    code = (
        "import sys\nfrom specbench.cli.main import run\nsys.argv = ['specbench', '--help']\n"
        "try:\n    run()\nexcept SystemExit as end:\n    code = end.code\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules), 'heavy imports'\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for command in ("run", "list", "fetch", "show"):
        assert command in done.stdout


def test_the_import_contracts_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    if not tool.exists():
        pytest.skip("import-linter is not installed beside this interpreter")
    done = subprocess.run([str(tool), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_direct_requirement_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    needed = [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]
    names = {_name(requirement) for requirement in needed} - {"specbench-llm"}
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    exact = [pin for pin in pins if not pin.startswith("triton>=")]  # a build of torch decides which triton it takes
    assert all(pin.count("==") == 1 and "+" not in pin for pin in exact)  # a local version exists on one index only
    assert names - {_name(pin) for pin in pins} == set()


def _name(requirement: str) -> str:
    name = requirement
    for end in "=<>!~[; ":
        name = name.split(end)[0]
    return name.lower().replace("_", "-")
