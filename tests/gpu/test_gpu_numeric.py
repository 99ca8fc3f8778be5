"""The GPU check's numeric section: the twins' own tests taken to a device, and how failures are told."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.gpu import kernel_checks, real_shapes, section_numeric
from tests.gpu.context import Context
from tests.gpu.findings import Findings
from tests.gpu.kernel_checks import OnDevice
from tests.gpu.scales import DRY


def test_twins_are_taken_to_the_device_and_what_they_write_is_brought_back() -> None:
    seen: list[Any] = []

    def twin(
        x: torch.Tensor, *, out: torch.Tensor, view: torch.Tensor, layer: torch.nn.Linear
    ) -> tuple[torch.Tensor, int]:
        shared = out.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
        seen.append((x.data_ptr(), x.stride(), shared))
        out.copy_(2 * x)
        assert layer.weight.data_ptr() != linear.weight.data_ptr()
        return layer(x).sum(), 7

    module = ModuleType("twin")
    module.twin, module.WIDTH = twin, 4  # type: ignore[attr-defined]
    there = OnDevice(module, torch.device("cpu"))
    linear = torch.nn.Linear(3, 3, bias=False).requires_grad_(False)
    linear.weight.copy_(torch.eye(3))
    x, memory = torch.arange(3.0).expand(2, 3), torch.zeros(3, 3)
    total, seven = there.twin(x, out=memory[1:], view=memory[0], layer=linear)
    assert (float(total), seven, there.WIDTH) == (6.0, 7, 4)
    assert memory.tolist() == [[0, 0, 0], [0, 2, 4], [0, 2, 4]]
    ((pointer, stride, shared),) = seen
    assert pointer != x.data_ptr()
    assert stride == (0, 1)
    assert shared


def test_every_test_of_a_twin_that_needs_no_fixture_is_found() -> None:
    names = [name for name, _ in kernel_checks.checks(torch.device("cpu"))]
    assert len(names) == len(set(names))
    files = kernel_checks.launching()
    assert {"test_triton_sampling", "test_triton_accept", "test_triton_plan"} < {path.stem for path in files}
    assert {name.partition(":")[0] for name in names} == {path.stem.removeprefix("test_") for path in files}
    assert any("[torch.bfloat16]" in name for name in names)  # parametrized ones, case by case
    assert not any("planted" in name for name in names)


def test_a_failing_check_is_named_and_the_others_still_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        raise AssertionError("3 of 5 rows differ")

    ran: list[str] = []
    first = iter([("first", wrong), ("second", lambda: ran.append("second"))])
    groups = [(0.5, first), (1.0, iter([("third", wrong)]))]
    monkeypatch.setattr(section_numeric, "_all", lambda context: iter(groups))
    context, found = Context(DRY, state=tmp_path), Findings()
    context.begin("numeric", found, seconds=30.0)
    with pytest.raises(AssertionError, match="2 of 3 checks failed, first: first: AssertionError: 3 of 5 rows differ"):
        section_numeric.run(context, found)
    assert ran == ["second"]
    assert found.tables[0].rows[1][:2] == ["second", "pass"]
    assert found.facts == {"passed": 1, "failed": 2}


def test_real_shapes_hold_on_a_cpu_and_a_wrong_twin_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, check in real_shapes.checks(DRY):
        check()
    honest = real_shapes.process_logits

    def hot(logits: torch.Tensor, *, temperature: torch.Tensor, **more: Any) -> Any:
        """A twin that forgets the temperature; the definition is told by its switch."""
        told = real_shapes.os.environ.get(real_shapes.VARIABLE) == "torch"
        return honest(logits, temperature=temperature if told else torch.ones_like(temperature), **more)

    monkeypatch.setattr(real_shapes, "process_logits", hot)
    with pytest.raises(AssertionError):
        real_shapes._sampling(DRY, 5, 499)
