"""Which implementation runs: the definition on a CPU, the twin on a CUDA device, as the environment allows."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from specbench.errors import ConfigError
from specbench.kernels import dispatch


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    monkeypatch.setattr(dispatch, "_new_enough", lambda device: True)
    dispatch._choice.cache_clear()


def on_cuda(*, requires_grad: bool = False) -> Tensor:
    """All that is asked of a tensor there."""
    return cast("Tensor", SimpleNamespace(device=SimpleNamespace(type="cuda"), requires_grad=requires_grad))


def found(monkeypatch: pytest.MonkeyPatch, triton: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: triton if name == "triton" else None)


def test_twins_run_on_cuda_devices_where_triton_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, object())
    assert dispatch.uses_triton(on_cuda())
    assert not dispatch.uses_triton(torch.zeros(1))
    monkeypatch.setenv(dispatch.VARIABLE, "torch")
    assert not dispatch.uses_triton(on_cuda())


def test_definitions_run_where_triton_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, None)
    assert not dispatch.uses_triton(on_cuda())
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    with pytest.raises(ConfigError, match="triton is not installed; install triton or unset SPECBENCH_KERNELS"):
        dispatch.uses_triton(on_cuda())


def test_tensors_that_want_gradients_get_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, object())
    assert not dispatch.uses_triton(on_cuda(requires_grad=True))
    with torch.no_grad():
        assert dispatch.uses_triton(on_cuda(requires_grad=True))


def test_definitions_run_on_devices_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, object())
    monkeypatch.setattr(dispatch, "_new_enough", lambda device: False)
    assert not dispatch.uses_triton(on_cuda())
    assert dispatch.kernels_on(torch.device("cuda")) == "torch"


def test_records_say_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, object())
    assert dispatch.kernels_on(torch.device("cpu")) is None
    assert dispatch.kernels_on(torch.device("cuda")) == f"triton {importlib.metadata.version('triton')}"
    monkeypatch.setenv(dispatch.VARIABLE, "torch")
    assert dispatch.kernels_on(torch.device("cuda")) == "torch"


def test_a_misspelt_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "tritn")
    with pytest.raises(ConfigError, match="SPECBENCH_KERNELS is 'tritn'; use 'triton'"):
        dispatch.uses_triton(on_cuda())


def test_only_what_runs_a_twin_imports_it() -> None:
    for path in Path(dispatch.__file__).parent.glob("*.py"):
        for statement in ast.parse(path.read_text()).body:  # not those inside functions
            if isinstance(statement, ast.Import | ast.ImportFrom):
                assert "triton" not in ast.unparse(statement).replace("uses_triton", ""), path.name
