"""Shared settings: one torch thread (the suite runs beside other work), kernels interpreted, Ctrl-C as usual."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported: kernels run here without a GPU
sys.path.insert(0, str(Path(__file__).parent))
# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def specbench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: (exit code, stdout, stderr)."""
    from specbench.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["specbench", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main.run()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call
