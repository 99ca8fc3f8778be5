from __future__ import annotations

import pytest
import torch
from specbench_drafters.draft_model import DraftModelDrafter
from specbench_drafters.ngram import NgramDrafter
from specbench_drafters.vanilla import VanillaDrafter
from support_engine import outputs, prompts, request, serve
from support_targets import FAMILIES, tiny_model

from specbench.engine.target import Target


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_generate(family: str) -> None:
    model = tiny_model(family)
    ids = prompts(4)
    expected = {}
    for number, prompt in enumerate(ids):
        with torch.no_grad():
            whole = model.generate(
                torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        expected[f"r{number}"] = tuple(whole[0, len(prompt) :].tolist())
    target = Target(model)
    requests = [request(n, p) for n, p in enumerate(ids)]
    view = target.view(max_rows=4, max_context=200)
    perfect = DraftModelDrafter(tiny_model(family), view, greedy=False)
    for drafter in (VanillaDrafter(), NgramDrafter(view, max_ngram=3, min_ngram=1), perfect):
        trace = serve(target, drafter, requests, k=0 if isinstance(drafter, VanillaDrafter) else 3, prefill_budget=16)
        assert outputs(trace) == expected, type(drafter).__name__


def test_perfect_drafter_commits_whole_blocks() -> None:
    """T1: the target drafts for itself; every full round commits gamma + 1 tokens."""
    target = Target(tiny_model())
    view = target.view(max_rows=2, max_context=200)
    for gamma in (1, 3, 7):
        drafter = DraftModelDrafter(tiny_model(), view, greedy=False)
        trace = serve(target, drafter, [request(0, prompts(1)[0], max_new_tokens=33)], k=gamma)
        assert len(trace.requests[0].output_ids) == 33
        for r in trace.rounds:
            assert r.accepted == r.verified
        full = [r for r in trace.rounds if r.verified == gamma]
        assert len(full) == 32 // (gamma + 1)
        assert all(r.committed == gamma + 1 for r in full)
