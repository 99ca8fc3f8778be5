"""Sampled decoding with sequential drafters has the target's distribution, whatever they propose."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from specbench_drafters.eagle3 import Eagle3
from specbench_drafters.mtp import Mtp
from support_engine import request, serve
from support_targets import tiny_model
from test_eagle3_oracle import HEADS, folder, weights
from test_mtp_own import OwnHead, spec_of

from specbench.engine.target import Target
from specbench.types import Sampling

VOCAB, PROMPT, DRAWS, POSITIONS = 8, (3, 1, 4), 1500, 3


def eagle3(path: Path, target: Target) -> Any:
    vocab = 5  # of 8: what it cannot name must still come out
    tensors = weights(11, taps=3, vocab=vocab, layers=1, qk_norm=False, bias=False)
    tensors["d2t"] = torch.tensor([0, 2, 3, 6, 7]) - torch.arange(5)
    made = folder(path, tensors, vocab_size=VOCAB, draft_vocab_size=vocab, num_attention_heads=HEADS)
    return Eagle3.load(made, target=target.view(max_rows=64, max_context=32), options={})


def mtp(path: Path, target: Target) -> Any:
    spec = replace(spec_of("llama"), vocab_size=VOCAB)
    head = OwnHead(spec, model=target.model)
    return Mtp.load(head.save(path), target=target.view(max_rows=64, max_context=32), options={})


def truth(model: Any, sampling: Sampling) -> torch.Tensor:
    """Marginals [POSITIONS, VOCAB] of the tokens after the prompt, by enumeration (the first is never speculated)."""

    @torch.no_grad()
    def following(ids: torch.Tensor) -> torch.Tensor:
        logits = model(ids, use_cache=False).logits[:, -1].double() / sampling.temperature
        p = torch.softmax(logits, dim=-1)
        ordered, index = p.sort(dim=-1, descending=True)
        kept = ordered.cumsum(-1) - ordered < sampling.top_p
        p = torch.zeros_like(p).scatter_(1, index, ordered * kept)
        return p / p.sum(-1, keepdim=True)

    found = torch.zeros(POSITIONS, VOCAB, dtype=torch.float64)
    weight = torch.ones(1, dtype=torch.float64)
    for position in range(POSITIONS):
        prefixes = torch.tensor([[*PROMPT, *tail] for tail in product(range(VOCAB), repeat=position)])
        joint = weight[:, None] * following(prefixes)
        found[position] = joint.sum(0)
        weight = joint.flatten()
    return found


@pytest.mark.parametrize(
    ("make", "sampling"), [(eagle3, Sampling(temperature=1.0)), (mtp, Sampling(temperature=0.8, top_p=0.9))]
)
def test_tokens_follow_the_target(make: Any, sampling: Sampling, tmp_path: Path) -> None:
    model = tiny_model("llama", scale=1.5, vocab_size=VOCAB, num_hidden_layers=4 if make is eagle3 else 3)
    wanted = truth(model, sampling)
    target = Target(model)
    drafter = make(tmp_path, target)
    requests = [request(n, PROMPT, max_new_tokens=POSITIONS + 1, sampling=sampling) for n in range(DRAWS)]
    trace = serve(target, drafter, requests, k=2, rows=64, max_context=32)
    verified, accepted = sum(r.verified for r in trace.rounds), sum(r.accepted for r in trace.rounds)
    assert 0.1 < accepted / verified < 0.9  # something is accepted and something rejected
    tokens = torch.tensor([r.output_ids[:POSITIONS] for r in trace.requests])
    for position in range(POSITIONS):
        counts = torch.bincount(tokens[:, position], minlength=VOCAB).double()
        expected = wanted[position] * DRAWS
        possible = expected > 0
        assert not counts[~possible].any()
        statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
        assert statistic < chi2.ppf(1 - 1e-3 / 6, int(possible.sum()) - 1), position
