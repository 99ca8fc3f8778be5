"""What a target's sampled text must look like: every continuation with its probability, and a test against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.stats import chi2

from specbench.kernels.probs import process_logits
from specbench.types import Sampling

Text = tuple[int, ...]


@torch.no_grad()
def continuations(model: Any, prompt: Sequence[int], sampling: Sampling, *, length: int) -> dict[Text, float]:
    """Probability of every continuation of ``length`` tokens, by plain forward passes of a small vocabulary."""
    found: dict[Text, float] = {(): 1.0}
    for _ in range(length):
        heads = list(found)
        logits = model(torch.tensor([[*prompt, *h] for h in heads]), use_cache=False).logits[:, -1]
        n, width = logits.shape
        processed, normaliser = process_logits(
            logits,
            temperature=torch.full((n,), sampling.temperature),
            top_p=torch.full((n,), sampling.top_p),
            top_k=torch.full((n,), sampling.top_k or width),
            any_truncated=True,
        )
        rows = (processed - normaliser[:, None]).double().exp().tolist()
        found = {
            (*head, token): found[head] * p
            for head, row in zip(heads, rows, strict=True)
            for token, p in enumerate(row)
            if p > 0
        }
    return found


def marginal(joint: Mapping[Text, float], start: int, stop: int) -> dict[Text, float]:
    """Probability of the tokens at places ``start`` .. ``stop`` - 1."""
    out: dict[Text, float] = {}
    for outcome, p in joint.items():
        out[outcome[start:stop]] = out.get(outcome[start:stop], 0.0) + p
    return out


def p_value(seen: Counter[Text], expected: Mapping[Text, float]) -> float:
    """Pearson's chi-squared; cells below 5 expected draws are pooled. Impossible outcomes give 0."""
    n = sum(seen.values())
    if any(outcome not in expected for outcome in seen):
        return 0.0
    big = {o: p for o, p in expected.items() if p * n >= 5}
    rest = 1.0 - sum(big.values())
    statistic = sum((seen[o] - p * n) ** 2 / (p * n) for o, p in big.items())
    cells = len(big)
    if rest * n >= 5:
        other = n - sum(seen[o] for o in big)
        statistic += (other - rest * n) ** 2 / (rest * n)
        cells += 1
    assert cells > 1, "too few draws for a test"
    return float(chi2.sf(statistic, cells - 1))
