"""Targets on several devices, as far as a CPU shows it: placement of pages and tables, what is refused, one head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specbench_drafters.vanilla import VanillaDrafter
from support_targets import tiny_model
from torch import nn

from specbench.config import build_run
from specbench.engine.engine import Engine
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.sizing import shared_budget
from specbench.engine.target import Target, check_spread
from specbench.errors import ConfigError, TargetError
from specbench.modeling.causal_lm import Pages
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.placement import head_on, layer_devices
from specbench.processes import of_this_process
from specbench.session import choose_graphs

CPU, OTHER = torch.device("cpu"), torch.device("meta")


def test_pages_lie_where_their_layer_is() -> None:
    target = Target(tiny_model())
    assert target.lm.layer_devices == (CPU, CPU, CPU)
    target.lm.layer_devices = (CPU, OTHER, OTHER)
    made = Engine(target, VanillaDrafter(), FixedPolicy(0), max_rows=2, max_context=64)
    assert [t.device for t in made.pool.keys] == [CPU, OTHER, OTHER]
    assert [t.device for t in made.pool.values] == [CPU, OTHER, OTHER]
    assert layer_devices([nn.Linear(1, 1), nn.Linear(1, 1, device="meta")]) == (CPU, OTHER)


def test_the_pool_is_bounded_by_the_fullest_device() -> None:
    devices, parts = (CPU, OTHER, OTHER), (10, 10, 10)
    assert shared_budget({CPU: 100, OTHER: 1000}, parts=parts, devices=devices) == 300
    assert shared_budget({CPU: 1000, OTHER: 100}, parts=parts, devices=devices) == 150
    target = Target(tiny_model())
    target.lm.layer_devices = devices
    free: dict[torch.device, int] = {CPU: 10**9, OTHER: 400_000}
    made = Engine(target, VanillaDrafter(), FixedPolicy(0), max_rows=64, max_context=64, free_memory=free.get)
    assert 0 < made.pool.bytes() <= 1.5 * 0.9 * 400_000


def test_a_steps_tables_are_brought_to_each_device_once() -> None:
    layout = BatchLayout.build([RowSpan(0, 2, 20, [0, 1]), RowSpan(2, 1, 5, [2])], CPU)
    pages = Pages(layout, None, {})
    assert pages.layout_on(CPU) is layout
    moved = pages.layout_on(OTHER)
    assert pages.layout_on(OTHER) is moved
    assert {moved.positions.device, moved.write_slots.device} == {OTHER}
    for group, own in zip(moved.groups, layout.groups, strict=True):
        assert {group.tokens.device, group.pages.device, group.positions.device, group.lengths.device} == {OTHER}
        assert (group.kv_length, group.span, group.full) == (own.kv_length, own.span, own.full)
        own.gathered["k", (1,), torch.float32] = torch.zeros(1)
        assert not group.gathered, "what is kept between layers belongs to one device"


def test_drafters_find_the_head_on_the_first_device() -> None:
    head = nn.Linear(3, 5, bias=True)
    assert head_on(head, CPU) is head
    copy = head_on(head, OTHER)
    assert copy.get_parameter("weight").device == OTHER
    assert copy.get_parameter("weight").shape == (5, 3)
    assert copy.get_parameter("bias").shape == (5,)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"device_map": "auto", "device": "cpu", "processes": 1}, "over CUDA devices, not over 'cpu'"),
        ({"device_map": "tp", "device": "cuda", "processes": 1}, "torchrun --no-python --nproc-per-node=2"),
        ({"device_map": "auto", "device": "cuda", "processes": 2}, "without torchrun"),
    ],
)
def test_what_cannot_be_spread_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TargetError, match=says) as caught:
        check_spread(**given)
    assert "\n" not in str(caught.value)


def test_only_the_first_process_keeps_records(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = build_run(flags={"methods": "ngram", "device_map": "tp"})
    assert of_this_process(spec) == spec
    monkeypatch.setenv("RANK", "1")
    assert of_this_process(spec).out != spec.out
    assert of_this_process(build_run(flags={"methods": "ngram"})).out == spec.out
    with pytest.raises(ConfigError, match="paced by each one's clock"):
        of_this_process(build_run(flags={"methods": "ngram", "device_map": "tp", "workload": "poisson", "rate": 1.0}))


def test_graphs_by_device_and_by_wish() -> None:
    def chosen(device: str, **given: Any) -> bool:
        return choose_graphs(build_run(flags={"methods": "ngram", **given}), device=device)

    assert [chosen("cuda"), chosen("cpu"), chosen("cuda:1"), chosen("cuda", device_map="auto")] == [1, 0, 1, 0]
    assert [chosen("cpu", graphs=True), chosen("cuda", graphs=False)] == [1, 0]
    with pytest.raises(ConfigError, match="several devices are not captured"):
        chosen("cuda", graphs=True, device_map="tp")
    assert build_run(flags={"methods": "ngram"}, sets=["graphs=true"]).graphs is True
    with pytest.raises(ConfigError, match="graphs"):
        build_run(flags={"methods": "ngram"}, sets=["graphs=perhaps"])
