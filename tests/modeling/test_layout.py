"""Grouped paged attention against attention of every row on its own, for any mix of lengths, widths and pages."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.kernels.attention import paged_attention
from specbench.modeling.layout import _CACHED, BatchLayout, RowSpan
from specbench.modeling.pool import PAGE, pages_for

HEADS, KEY_HEADS, DIM = 4, 2, 8


def _batch(rows: list[tuple[int, int]], seed: int, *, run: bool = False) -> tuple[list[RowSpan], int]:
    """Row spans of (context before, tokens now) on shuffled pages, and how many pages there are.

    With ``run`` the pages are front to back and at equal distances, so that rows can be read in place.
    """
    if run:
        apart = max(pages_for(before + count) for before, count in rows) + 1
        starts = [sum(count for _, count in rows[:row]) for row in range(len(rows))]
        return [
            RowSpan(start, count, before + count, range(apart * row, apart * row + apart))
            for row, (start, (before, count)) in enumerate(zip(starts, rows, strict=True))
        ], apart * len(rows)
    generator = torch.Generator().manual_seed(seed)
    needed = [pages_for(before + count) for before, count in rows]
    free = torch.randperm(sum(needed) + 3, generator=generator).tolist()
    spans, start = [], 0
    for (before, count), pages in zip(rows, needed, strict=True):
        spans.append(RowSpan(start, count, before + count, [free.pop() for _ in range(pages)]))
        start += count
    return spans, sum(needed) + 3


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 70)), min_size=1, max_size=9),
    window=st.sampled_from([None, 1, 24]),
    seed=st.integers(0, 99),
    run=st.booleans(),
)
def test_every_row_sees_its_own_past_whatever_shares_its_group(
    rows: list[tuple[int, int]], window: int | None, seed: int, run: bool
) -> None:
    spans, num_pages = _batch(rows, seed, run=run)
    layout = BatchLayout.build(spans, torch.device("cpu"))
    torch.manual_seed(seed)
    keys, values = (torch.randn(num_pages, PAGE, KEY_HEADS, DIM) for _ in range(2))
    query = torch.randn(layout.num_tokens, HEADS, DIM)
    for _ in range(2):  # a second layer uses the memory that the first one gathered into
        out = paged_attention(query, keys, values, groups=layout.groups, scale=0.3, window=window)
        keys, values = keys.flip(0), values.flip(0)
    keys, values = keys.flip(0), values.flip(0)
    for span in spans:
        own = torch.tensor(span.pages)
        k, v = (t[own].flatten(0, 1)[: span.length] for t in (keys, values))
        for i in range(span.count):
            end = span.length - span.count + i + 1
            first = 0 if window is None else max(end - window, 0)
            for head in range(HEADS):
                scores = 0.3 * query[span.start + i, head] @ k[first:end, head // 2].t()
                exact = torch.softmax(scores, 0) @ v[first:end, head // 2]
                assert torch.allclose(out[span.start + i, head], exact, atol=1e-5)


def test_a_group_is_split_where_padding_would_cost_more_than_another_call() -> None:
    def lengths(rows: list[tuple[int, int]]) -> list[list[int]]:
        spans, _ = _batch(rows, 0)
        return [g.lengths.tolist() for g in BatchLayout.build(spans, torch.device("cpu")).groups]

    assert lengths([(99, 1), (120, 1), (101, 1)]) == [[100, 121, 102]]
    assert lengths([(99, 1)] * 4 + [(899, 1)] * 2 + [(109, 1)]) == [[100] * 4 + [110], [900] * 2]


def test_gathered_contexts_stay_in_the_cache_until_they_are_read() -> None:
    def groups(rows: list[tuple[int, int]], *, run: bool = False) -> list[list[int]]:
        spans, _ = _batch(rows, 0)
        if run:  # pages front to back, at equal distances: read in place
            spans = [RowSpan(s.start, s.count, s.length, range(40 * i, 40 * (i + 1))) for i, s in enumerate(spans)]
        return [g.lengths.tolist() for g in BatchLayout.build(spans, torch.device("cpu")).groups]

    cut = groups([(499 + i, 1) for i in range(16)])
    assert [length for group in cut for length in group] == list(range(500, 516))
    assert all(len(group) * max(group) <= _CACHED for group in cut)
    assert len(cut) < 16
    assert groups([(2999, 1)] * 2) == [[3000], [3000]]  # one row is never cut
    assert len(groups([(499, 1)] * 16, run=True)) == 1


def test_neighbours_of_different_widths_are_not_all_padded_to_the_widest() -> None:
    def widths(rows: list[tuple[int, int]]) -> list[list[int]]:
        spans, _ = _batch(rows, 0, run=True)
        layout = BatchLayout.build(spans, torch.device("cpu"))
        assert all(group.run is not None for group in layout.groups)  # still read in place
        return [list(group.tokens.shape) for group in layout.groups]

    assert widths([(150, 2)] * 16) == [[16, 2]]
    assert widths([(150, 2), (150, 1)] * 8) == [[16, 2]]  # little would be saved
    assert widths([(150, 8)] * 2 + [(150, 1)] * 14) == [[2, 8], [14, 1]]
    assert widths([(150, 1)] * 7 + [(150, 8)] * 2 + [(150, 1)] * 7) == [[7, 1], [2, 8], [7, 1]]
