"""The tests of the Triton twins, run against kernels compiled for this device.

Nothing is written again: the test modules of `tests/kernels` are imported, the twins that they name are replaced by
ones that take their tensors to the device and bring the results back, and every test that needs no fixture is called.
On a CPU the same tests run in Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

Check = Callable[[], None]
TESTS = Path(__file__).parents[1] / "kernels"
_TWINS = "specbench.kernels._triton."
_LAUNCH_NOTHING = ("test_triton_compile", "test_triton_variants")  # compiling ahead of time, and bytes counted by hand


def launching() -> list[Path]:
    """The test modules whose kernels are launched."""
    return [path for path in sorted(TESTS.glob("test_triton_*.py")) if path.stem not in _LAUNCH_NOTHING]


class OnDevice:
    """A twin's module whose functions run on ``device`` whatever device their tensors are on.

    Results come back to the CPU; what a function wrote into its arguments is copied back into them.
    """

    def __init__(self, module: ModuleType, device: torch.device) -> None:
        self.__dict__.update(_module=module, _device=device)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not isinstance(found, FunctionType):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            moved = _Moved(self._device)
            there = _mapped((args, kwargs), moved)
            result = found(*there[0], **there[1])
            moved.bring_back()
            return _mapped(result, lambda tensor: tensor.cpu())

        return call


class _Moved:
    """Tensors on the device with the strides and the shared memory that they have here."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # bytes here, and there

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        if key not in self._memory:
            here = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._memory[key] = here, here.to(self._device, copy=True)
        memory = self._memory[key][1].untyped_storage()
        there = torch.empty(0, dtype=tensor.dtype, device=self._device)
        return there.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())

    def bring_back(self) -> None:
        """Whatever was written there is seen here."""
        for here, there in self._memory.values():
            here.copy_(there)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with every tensor in it changed; modules are copied."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, nn.Module):
        copied = deepcopy(value)
        for tensor in (*copied.parameters(), *copied.buffers()):
            tensor.data = change(tensor.data)
        return copied
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, change) for part in value)
    if isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        return replace(value, **{name: _mapped(part, change) for name, part in parts.items()})
    return value


def checks(device: torch.device) -> Iterator[tuple[str, Check]]:
    """One test of every module, then the next of every module: the first of each is the most telling."""
    found = [list(_of(path, device)) for path in launching()]
    for turn in itertools.zip_longest(*found):
        yield from (entry for entry in turn if entry is not None)


def _of(path: Path, device: torch.device) -> Iterator[tuple[str, Check]]:
    module = _load(path)
    if device.type == "cuda":
        _replace_twins(module, device)
    for name, test in list(vars(module).items()):
        if name.startswith("test_") and callable(test):
            title = f"{path.stem.removeprefix('test_')}: {name.removeprefix('test_')}"
            for told, arguments in _cases(test):
                yield title + told, partial(_poisoned, test, arguments)


def _poisoned(test: Callable[..., None], arguments: dict[str, Any]) -> None:
    """The test with fresh memory full of NaN and of indices that point nowhere."""
    from support_twins import poisoned

    with poisoned():
        test(**arguments)


def _replace_twins(module: ModuleType, device: torch.device) -> None:
    """Every twin that the module names, as a module or as a function, runs on ``device``."""
    for name, value in list(vars(module).items()):
        if isinstance(value, ModuleType) and value.__name__.startswith(_TWINS):
            setattr(module, name, OnDevice(value, device))
        elif isinstance(value, FunctionType) and value.__module__.startswith(_TWINS):
            setattr(module, name, getattr(OnDevice(sys.modules[value.__module__], device), value.__name__))


def _load(path: Path) -> ModuleType:
    """The test module, afresh: it is changed here."""
    name = f"gpu_check_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _cases(test: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The arguments of every case of a test; none for tests that need fixtures (planted faults, copied to a folder)."""
    told: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            given = mark.args[0]
            names = [n.strip() for n in given.split(",")] if isinstance(given, str) else list(given)
            rows = [_row(value, single=len(names) == 1) for value in mark.args[1]]
            told = [{**one, **dict(zip(names, row, strict=True))} for one in told for row in rows]
    wanted = set(signature(test).parameters)
    for arguments in told:
        if wanted == set(arguments):
            yield (f" [{', '.join(map(str, arguments.values()))}]" if arguments else ""), arguments


def _row(value: Any, *, single: bool) -> tuple[Any, ...]:
    """The arguments of one case, plain or as pytest.param(...)."""
    if hasattr(value, "values") and hasattr(value, "marks"):
        return tuple(value.values)
    return (value,) if single else tuple(value)
