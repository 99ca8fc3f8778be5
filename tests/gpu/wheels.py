"""Packages that a machine without a network lacks, installed from a folder of wheels into a temporary one.

Standard library only. `missing` names what the check imports and this interpreter cannot find.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

NEEDED = {
    "torch": "torch", "transformers": "transformers", "tokenizers": "tokenizers", "safetensors": "safetensors",
    "numpy": "numpy", "scipy": "scipy", "pandas": "pandas", "pyarrow": "pyarrow", "psutil": "psutil",
    "pydantic": "pydantic", "pydantic_core": "pydantic_core", "jinja2": "Jinja2", "pytest": "pytest",
    "hypothesis": "hypothesis", "triton": "triton",
}  # fmt: skip
"""Module: distribution. What specbench and the reused tests import on the way of the check."""


class WheelError(Exception):
    """One line: what is wrong with the folder of wheels, and what to do."""


def missing() -> list[str]:
    """Distributions that the check needs and this interpreter does not have."""
    return [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]


def install(folder: Path, *, into: Path) -> int:
    """Unpack every wheel of ``folder``; how many there were. No index is asked and nothing of Python's own is changed.

    Errors: WheelError.
    """
    found = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if not found:
        raise WheelError(
            f"no wheels in '{folder}'; make them with 'make gpu-wheels' where a package index can be asked"
        )
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir",
        "--disable-pip-version-check", "--target", str(into), *map(str, found),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
        raise WheelError(f"the wheels in '{folder}' cannot be installed here: {lines[-1].strip()}")
    return len(found)
