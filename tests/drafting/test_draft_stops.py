"""The stop rule against a loop over rows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specbench.drafting.stops import truncate_at_stop


def by_hand(row: list[int], count: int, stops: set[int]) -> int:
    for at in range(count):
        if row[at] in stops:
            return at + 1
    return count


@given(st.data())
def test_a_drafted_stop_is_the_last_draft(data: st.DataObject) -> None:
    batch, drafts = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 6))
    tokens = [[data.draw(st.integers(0, 5)) for _ in range(drafts)] for _ in range(batch)]
    counts = [data.draw(st.integers(0, drafts)) for _ in range(batch)]
    stops = data.draw(st.sets(st.integers(0, 5), max_size=3))
    found = truncate_at_stop(
        torch.tensor(tokens, dtype=torch.int64).view(batch, drafts),
        torch.tensor(counts),
        torch.tensor(sorted(stops), dtype=torch.int64),
    )
    assert found.tolist() == [by_hand(row, count, stops) for row, count in zip(tokens, counts)]
