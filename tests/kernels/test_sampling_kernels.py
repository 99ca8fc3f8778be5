from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_enumeration import breakpoints

from specbench.kernels.accept import accept_greedy, accept_sampled, prefix_length
from specbench.kernels.probs import process_logits
from specbench.kernels.rng import Purpose, philox, uniform
from specbench.kernels.sample import sample
from specbench.types import DraftLogits

CASES = json.loads((Path(__file__).parents[1] / "data/fixtures/verify.json").read_text())


def test_philox_gives_the_published_vectors() -> None:
    """Known answers of Philox-4x32-10 (Random123 distribution, kat_vectors)."""
    zero, ones = torch.zeros(1, dtype=torch.int64), torch.full((1,), 0xFFFFFFFF)
    assert [int(w) for w in philox(zero, zero, zero, zero, zero, zero)] == [0x6627E8D5, 0xE169C58D]
    assert [int(w) for w in philox(ones, ones, ones, ones, ones, ones)] == [0x408F276D, 0x41C83B0E]


def test_uniforms_do_not_depend_on_the_batch_and_differ_by_every_key() -> None:
    seed, number, anchor = torch.tensor([7, 7, 8]), torch.tensor([1, 2, 1]), torch.tensor([5, 5, 5])
    whole = uniform(seed, number, anchor, offsets=4, purpose=Purpose.DRAFT)
    alone = uniform(seed[1:2], number[1:2], anchor[1:2], offsets=2, purpose=Purpose.DRAFT)
    assert torch.equal(whole[1, :2], alone[0])
    other = uniform(seed, number, anchor, offsets=4, purpose=Purpose.ACCEPT)
    later = uniform(seed, number, anchor + 1, offsets=4, purpose=Purpose.DRAFT)
    far = uniform(seed, number + 2**32, anchor, offsets=4, purpose=Purpose.DRAFT)
    values = torch.cat([whole, other, later, far]).flatten()
    assert values.unique().numel() == values.numel()
    assert bool(((values >= 0) & (values < 1)).all())


def test_uniforms_are_uniform() -> None:
    n = torch.arange(20_000)
    u = uniform(n * 0, n, n % 977, offsets=3, purpose=Purpose.NEXT)
    counts = torch.histc(u.flatten(), bins=100, min=0, max=1)
    statistic = float(((counts - 600) ** 2 / 600).sum())
    assert 50 < statistic < 170  # chi-squared, 99 degrees of freedom, far beyond .001 on either side
    assert abs(float(torch.corrcoef(u.T)[0, 1])) < 0.03


@given(
    st.integers(2, 40),
    st.floats(0.1, 3.0),
    st.one_of(st.just(1.0), st.floats(0.05, 0.999)),
    st.one_of(st.none(), st.integers(1, 45)),
    st.integers(0, 10**6),
)
@settings(max_examples=80, deadline=None)
def test_processing_equals_the_slow_definition(
    width: int, temperature: float, top_p: float, top_k: int | None, seed: int
) -> None:
    logits = torch.randn(width, generator=torch.Generator().manual_seed(seed)) * 2
    out, norm = process_logits(
        logits[None],
        temperature=torch.tensor([temperature]),
        top_p=torch.tensor([top_p]),
        top_k=torch.tensor([width if top_k is None else top_k]),
        any_truncated=True,
    )
    got = (out[0] - norm[0]).double().exp()
    scaled = (logits / temperature).double()
    order = sorted(range(width), key=lambda i: -float(scaled[i]))
    kept = order[: width if top_k is None else top_k]
    mass = torch.softmax(scaled[kept], dim=0)
    nucleus, total = [], 0.0
    for token, p in zip(kept, mass.tolist(), strict=True):
        if nucleus and total >= top_p - 1e-6 and top_p < 1:
            break
        nucleus.append(token)
        total += p
    expected = torch.zeros(width, dtype=torch.float64)
    expected[nucleus] = torch.softmax(scaled[nucleus], dim=0)
    boundary = top_p < 1 and abs(float(got.sum()) - 1) < 1e-5 and abs(total - top_p) < 1e-5
    if not boundary:
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_greedy_rows_become_point_masses() -> None:
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    out, norm = process_logits(
        logits,
        temperature=torch.tensor([0.0, 1.0, 0.0]),
        top_p=torch.ones(3),
        top_k=torch.full((3,), 9),
        any_truncated=False,
    )
    p = (out - norm[:, None]).exp()
    assert p[0].tolist() == [float(i == int(logits[0].argmax())) for i in range(9)]
    torch.testing.assert_close(p[1], torch.softmax(logits[1], 0))


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_prefix_length_is_the_leading_run(flags: list[bool]) -> None:
    expected = flags.index(False) if False in flags else len(flags)
    assert int(prefix_length(torch.tensor([flags]))[0]) == expected


def test_sampling_never_gives_an_impossible_token() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(6, -1)
    u = torch.tensor([0.0, 2.0**-53, 0.499999, 0.5, 0.75, 1 - 2.0**-53], dtype=torch.float64)
    norm = torch.logsumexp(logits, dim=-1)
    assert sample(logits, norm, u).tolist() == [1, 1, 1, 3, 3, 3]


def judge(case: dict[str, Any], u_accept: torch.Tensor, u_next: torch.Tensor) -> Any:
    """The case's drafts judged once per entry of ``u_next`` [n]; ``u_accept`` is [n, G]."""
    p = torch.tensor(case["target_probs"], dtype=torch.float64).log()
    q = torch.tensor(case["draft_probs"], dtype=torch.float64).log().view(-1, p.shape[1])
    if case["temperature"] == 0:  # rows at temperature 0 are point masses at their argmax
        p, q = (torch.full_like(x, -torch.inf).scatter_(1, x.argmax(1, keepdim=True), 0.0) for x in (p, q))
    n, g = u_next.shape[0], q.shape[0]
    return accept_sampled(
        p.repeat(n, 1),
        torch.zeros(n * (g + 1), dtype=torch.float64),
        starts=torch.arange(n) * (g + 1),
        lengths=torch.full((n,), g),
        drafts=torch.tensor(case["draft_tokens"], dtype=torch.int64).expand(n, g),
        draft=DraftLogits(q.expand(n, g, -1), torch.zeros(n, g, dtype=torch.float64)) if g else None,
        u_accept=u_accept,
        u_next=u_next,
    )


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda c: c["name"])
def test_acceptance_equals_the_recorded_cases(case: dict[str, Any]) -> None:
    """Accepted counts for fixed uniforms, and the exact distribution of the next token by bisection."""
    width, g = len(case["target_probs"][0]), len(case["draft_tokens"])
    for run in case["fixed_uniform_runs"]:
        uniforms = torch.tensor(run["uniforms"], dtype=torch.float64).view(1, g)
        found = judge(case, uniforms, torch.tensor([0.5], dtype=torch.float64))
        assert int(found.accepted[0]) == sum(run["accept_prefix_mask"] or [])
        if run["terminated_by_stop_token"]:
            continue  # the next token is drawn and thrown away there
        repeated = uniforms.expand(width, g)
        spread = breakpoints(lambda u, r=repeated: judge(case, r, u).next_token, 1, width)[0]
        expected = torch.tensor(run["next_token_distribution"], dtype=torch.float64)
        torch.testing.assert_close(spread, expected, atol=2e-6, rtol=0)
    chances = case["analytic"]["token_accept_probability"] if case["analytic"] else []
    for k, chance in enumerate(chances):
        below = torch.zeros(1, g, dtype=torch.float64)
        low, high = 0.0, 1.0
        for _ in range(60):
            below[0, k] = middle = (low + high) / 2
            accepted = int(judge(case, below, torch.tensor([0.5], dtype=torch.float64)).accepted[0])
            low, high = (middle, high) if accepted > k else (low, middle)
        if all(c > 0 for c in chances[:k]):
            assert abs(low - chance) < 1e-9


def test_greedy_rows_of_unequal_length() -> None:
    best = torch.tensor([5, 6, 7, 1, 4, 4, 9])
    found = accept_greedy(
        best,
        starts=torch.tensor([0, 3, 4]),
        lengths=torch.tensor([2, 0, 2]),
        drafts=torch.tensor([[5, 6], [1, 1], [4, 0]]),
    )
    assert found.accepted.tolist() == [2, 0, 1]
    assert found.next_token.tolist() == [7, 1, 4]
