"""Rows that the policy lets draft nothing are not given to the drafter, and the others draft what they would alone."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_planning import make_rows

from specbench.engine.batch import only, spread
from specbench.types import DraftLogits, Proposal


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=6).filter(any))
def test_some_rows_and_back(asked: list[bool]) -> None:
    rows = make_rows(
        len(asked), domains=[r % 2 for r in range(len(asked))], numbers=[10 + r for r in range(len(asked))]
    )
    chosen = [row for row, drafts in enumerate(asked) if drafts]
    at = torch.tensor(chosen)
    some = only(rows, chosen, at)
    assert len(some) == len(chosen)
    assert some.number.tolist() == [10 + row for row in chosen] == list(some.numbers_host or ())
    assert some.slots.tolist() == list(some.slots_host) == chosen
    assert some.domains_host == (None if rows.domains_host is None else tuple(row % 2 for row in chosen))
    tokens = torch.arange(len(chosen) * 2).view(-1, 2) + 1
    found = spread(
        Proposal(
            tokens, torch.full((len(chosen),), 2), DraftLogits(torch.ones(len(chosen), 2, 3), tokens.float()), None
        ),
        at,
        rows=len(asked),
    )
    assert found.counts.tolist() == [2 if drafts else 0 for drafts in asked]
    assert found.tokens[at].tolist() == tokens.tolist()
    assert found.draft is not None
    assert found.draft.logits[at].sum() == len(chosen) * 6
    assert found.confidence is None
