"""What the GPU check counts and derives: rooflines, rates, fingerprints, and seats that start again."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from specbench.report.paper_values import paper_values
from specbench.types import Taps
from tests.gpu.acceptance import DOMAIN, expected_tau, paper_rates
from tests.gpu.context import Context
from tests.gpu.engines import seated
from tests.gpu.forwards import Forward, compiled, make_pool
from tests.gpu.models import fingerprint, random_target
from tests.gpu.roofline import cached_bytes, forward_work, product_weights
from tests.gpu.scales import DRY, QWEN3_4B, QWEN3_8B, TINY, TINY_UNTIED
from tests.gpu.seating import rounds
from tests.gpu.section_graphs import union_length
from tests.gpu.section_head import without_heads
from tests.gpu.sessions import confidence_temperatures
from tests.gpu.timing import Budget, summary

# ------------------------------------------------------------------------------------------- counts and rates


@cache
def tiny(untied: bool = False) -> Any:
    return random_target(TINY_UNTIED if untied else TINY, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("untied", [False, True])
def test_the_roofline_counts_the_weights_of_every_product(untied: bool) -> None:
    shape, model = (TINY_UNTIED if untied else TINY), tiny(untied).model
    matrices = {id(p): p.numel() for p in model.parameters() if p.dim() == 2}
    embedding = model.get_input_embeddings().weight.numel() if untied else 0
    assert product_weights(shape) == sum(matrices.values()) - embedding


def test_the_roofline_of_a_step_by_hand() -> None:
    work = forward_work(TINY, rows=2, tokens_per_row=3, context=10, itemsize=4)
    token = cached_bytes(TINY, itemsize=4)
    assert token == 3 * 2 * 2 * 16 * 4
    weights = product_weights(TINY)
    assert work.bytes_moved == 4 * weights + (2 * 10 + 2 * 3) * token + 2 * 3 * 499 * 4
    pairs = 2 * (11 + 12 + 13)
    assert work.operations == 2 * weights * 6 + 4 * 3 * 4 * 16 * pairs


def test_the_published_shapes_have_the_published_sizes() -> None:
    """Qwen3-4B has 3.6 billion weights without its embedding, Qwen3-8B 6.95 (the model cards)."""
    for shape, billions in ((QWEN3_4B, 3.6), (QWEN3_8B, 6.95)):
        assert (product_weights(shape) - shape.vocab * shape.hidden) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("method", ["eagle3", "dflash", "dspark"])
def test_rates_start_where_the_paper_says_and_give_its_accepted_length(method: str) -> None:
    rates = paper_rates(method, draft_length=7)
    table = [v.value for v in paper_values() if (v.place, v.method, v.target) == ("Table 1", method, "Qwen3-4B")
             and v.domain == DOMAIN]  # fmt: skip
    assert rates.tau == pytest.approx(sum(table) / len(table), abs=1e-9)
    (first,) = (v.value for v in paper_values() if (v.place, v.method, v.domain, v.at)
                == ("Figure 2", method, DOMAIN, 1))  # fmt: skip
    assert rates.conditional[0] == first
    assert paper_rates(method, draft_length=15).conditional[:7] == rates.conditional
    assert paper_rates(method, draft_length=3).conditional == rates.conditional[:3]


def test_expected_tau() -> None:
    assert expected_tau((0.5, 0.5)) == 1.75
    assert expected_tau(()) == 1.0


def test_confidences_say_the_forced_rates() -> None:
    rates = paper_rates("dspark", draft_length=7).conditional
    logit = torch.logit(torch.sigmoid(torch.tensor(2.0, dtype=torch.float64)))
    told = torch.sigmoid(logit / torch.tensor(confidence_temperatures(rates), dtype=torch.float64))
    assert told.tolist() == pytest.approx(rates)
    with pytest.raises(AssertionError):
        confidence_temperatures((0.4,))


def test_time_that_no_kernel_covers() -> None:
    assert union_length([(0, 2), (1, 3), (5, 6), (5.5, 5.8)]) == 4
    assert union_length([]) == 0


def test_medians_and_spread() -> None:
    assert summary([3.0, 1.0, 2.0]).median_s == 2.0
    assert summary([1.0, 2.0, 3.0]).spread == 0.5
    assert summary([4.0]).spread == 0.0


def test_a_fingerprint_sees_one_changed_weight_and_a_swap() -> None:
    weights = torch.arange(6.0).view(2, 3)
    first = fingerprint([("w", weights)])
    changed, swapped = weights.clone(), weights.flip(0)
    changed[1, 2] += 1
    assert (
        len({first, fingerprint([("w", changed)]), fingerprint([("w", swapped)]), fingerprint([("v", weights)])}) == 4
    )
    assert fingerprint([("w", weights.clone())]) == first


# -------------------------------------------------------------------------------------------- seats and heads


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return Context(DRY, state=tmp_path_factory.mktemp("context"))


def test_seated_rows_start_again_from_the_same_context(context: Context) -> None:
    bench = seated(context, TINY, "dspark", k=3, batches=(1, 3), cached=20)
    seen = []
    for rows in (3, 1, 3):
        bench.use(rows, graphs=False)
        steps = rounds(bench.engine, warmup=1, repeats=2, budget=Budget(9.0))
        assert [(step.decode_rows, step.decode_tokens) for step in steps] == [(rows, rows * 4)] * 2
        seen.append([r.anchor_position for r in bench.engine.recorder.rounds[-3 * rows :]][:rows])
    assert seen == [[20] * 3, [20], [20] * 3]
    bench.use(3, graphs=True)
    rounds(bench.engine, warmup=0, repeats=2, budget=Budget(9.0))
    assert bench.not_padded() is None


def test_a_round_without_heads_has_no_confidence_and_gets_them_back(context: Context) -> None:
    bench = seated(context, TINY, "dspark", k=3, batches=(2,), cached=8, graphs=False)
    with without_heads(bench.engine):
        rounds(bench.engine, warmup=0, repeats=1, budget=Budget(9.0))
    rounds(bench.engine, warmup=0, repeats=1, budget=Budget(9.0))
    bare, full = bench.engine.recorder.rounds[:2], bench.engine.recorder.rounds[2:]
    assert [r.confidence for r in bare] == [None, None]
    assert all(r.confidence is not None and len(r.confidence) == 3 for r in full)


def test_compiled_modules_give_the_same_logits_and_are_put_back(context: Context) -> None:
    target = context.target(TINY)
    target.lm.set_taps(Taps())
    pool = make_pool(target, rows=2, tokens=12)
    forward = Forward(target, rows=2, tokens_per_row=3, cached=8, pool=pool)
    plain = forward().clone()
    with compiled(target, backend="eager") as count:
        assert count == TINY.layers * 5 + 1  # an MLP and four norms a layer, and the last norm
        torch.testing.assert_close(forward(), plain)
    assert not any("forward" in vars(module) for module in target.model.modules())
