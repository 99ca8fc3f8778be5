"""Kernels compiled for GPUs that are not here: nothing spills, and the table says what each takes."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import support_twins  # noqa: F401  (kernels are interpreted here)

from specbench.kernels._triton.compile import main as compile_kernels

SPILLS: dict[tuple[str, str, str], int] = {}  # (kernel, dtype, target): stack bytes a thread that are put up with
RUN = ("--first", "--target", "90")  # `make kernels`, which CI runs too, compiles all variants for three GPUs


def compiled(folder: Path) -> list[dict[str, str]]:
    """The rows of the table that a process of its own makes: here Triton interprets."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(folder / "cache")
    call = [*RUN, "--jobs", "1", "--out", str(folder / "kernels.csv")]
    code = f"from specbench.kernels._triton.compile import main\nmain({call!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True)
    return list(csv.DictReader((folder / "kernels.csv").read_text().splitlines()))


def test_every_kernel_compiles_and_none_spills(tmp_path: Path) -> None:
    rows = compiled(tmp_path)
    spilling = {
        (row["kernel"], row["dtype"], row["target"]): int(row["stack_bytes"])
        for row in rows
        if int(row["stack_bytes"]) > SPILLS.get((row["kernel"], row["dtype"], row["target"]), 0)
    }
    assert not spilling
    assert {"attend_kernel", "merge_kernel", "scatter_kernel"} < {row["kernel"] for row in rows}
    assert {row["target"] for row in rows} == {"sm_90"}
    for row in rows:
        assert 0 < int(row["registers"]) <= 255
        assert int(row["shared_bytes"]) <= 163 * 1024, "an A100 has no more for one program"
        assert int(row["bytes_fewest"]) <= int(row["bytes_moved"])


def test_interpreted_kernels_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_kernels([]) == 2
    told = capsys.readouterr().err
    assert told == "error: TRITON_INTERPRET is set, and interpreted kernels cannot be compiled; unset it\n"
