"""Slot caches against a plain dictionary, through growth and reuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.drafting.slots import SlotCache, SlotState

SLOTS, LENGTH = 5, 700


def cache(**changes: int) -> SlotCache:
    sizes = {"num_layers": 2, "num_heads": 1, "key_dim": 2, "value_dim": 3, "max_slots": SLOTS, "max_length": LENGTH}
    return SlotCache(**{**sizes, **changes}, dtype=torch.float32, device=torch.device("cpu"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(0, LENGTH - 1)), min_size=1, max_size=25))
def test_reads_what_was_written_last(writes: list[tuple[int, int]]) -> None:
    held, model = cache(), {}
    for step, (slot, position) in enumerate(writes):
        held.reserve(slots=[slot], length=position + 1)
        for layer in range(held.num_layers):
            held.write(
                layer,
                slots=torch.tensor([slot]),
                positions=torch.tensor([position]),
                keys=torch.full((1, 1, 2), step + 100.0 * layer),
                values=torch.full((1, 1, 3), -step - 100.0 * layer),
            )
        model[slot, position] = step
    slots = sorted({slot for slot, _ in writes}, reverse=True)
    length = max(position for _, position in writes) + 1
    held.reserve(slots=slots, length=length)
    for layer in range(held.num_layers):
        keys, values = held.read(layer, slots=torch.tensor(slots), slots_host=slots, length=length)
        assert keys.shape == (len(slots), length, 1, 2)
        assert values.shape == (len(slots), length, 1, 3)
        wanted = torch.zeros(len(slots), length)
        for (slot, position), step in model.items():
            wanted[slots.index(slot), position] = step + 100.0 * layer
        assert keys.equal(wanted[..., None, None].expand_as(keys))
        assert values.equal(-wanted[..., None, None].expand_as(values))


def test_consecutive_slots_are_read_without_a_copy() -> None:
    held = cache()
    held.reserve(slots=range(4), length=10)
    first, _ = held.read(0, slots=torch.tensor([1, 2]), slots_host=(1, 2), length=10)
    second, _ = held.read(0, slots=torch.tensor([2, 1]), slots_host=(2, 1), length=10)
    held.write(
        0, slots=torch.tensor([2]), positions=torch.tensor([9]), keys=torch.ones(1, 1, 2), values=torch.ones(1, 1, 3)
    )
    assert first[1, 9].eq(1).all()
    assert second[0, 9].eq(0).all()


def test_growth_is_bounded() -> None:
    held = cache()
    assert held.bytes() == 0
    held.reserve(slots=[0], length=1)
    small = held.bytes()
    held.reserve(slots=[SLOTS - 1], length=LENGTH)
    assert held.bytes() == 2 * SLOTS * LENGTH * (2 + 3) * 4
    assert small < held.bytes()
    with pytest.raises(AssertionError):
        held.reserve(slots=[0], length=LENGTH + 1)
    with pytest.raises(AssertionError):
        held.reserve(slots=[SLOTS], length=1)


def test_state_by_slot() -> None:
    state = SlotState(3, max_slots=4, dtype=torch.float32, device=torch.device("cpu"))
    state.put(torch.tensor([2, 0]), torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
    assert state.get(torch.tensor([0, 1, 2])).tolist() == [[4, 5, 6], [0, 0, 0], [1, 2, 3]]
    state.clear(torch.tensor([2]))
    assert state.get(torch.tensor([2, 0])).tolist() == [[0, 0, 0], [4, 5, 6]]
    assert state.bytes() == 4 * 3 * 4
