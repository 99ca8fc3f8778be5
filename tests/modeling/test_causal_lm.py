from __future__ import annotations

import copy

import pytest
import torch
from support_targets import FAMILIES, tiny_model

from specbench.errors import TargetError
from specbench.modeling.causal_lm import PagedLM
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.pool import PAGE, KVPool, pages_for
from specbench.types import Taps

DEVICE = torch.device("cpu")


def run_schedule(lm: PagedLM, sequences: list[list[int]], schedule: list[list[int]]) -> list[list[torch.Tensor]]:
    """Feed each sequence in ragged pieces (schedule[step][row] tokens); logits of every token, by row."""
    pool = KVPool(lm.layer_shapes, num_pages=64, dtype=lm.dtype, device=DEVICE)
    pages: list[list[int]] = [[] for _ in sequences]
    done = [0] * len(sequences)
    logits: list[list[torch.Tensor]] = [[] for _ in sequences]
    for counts in schedule:
        spans, flat, at = [], [], 0
        live = [r for r, c in enumerate(counts) if c]
        for r in live:
            while len(pages[r]) < pages_for(done[r] + counts[r]):
                taken = pool.take(1)
                assert taken is not None
                pages[r] += taken
            flat += sequences[r][done[r] : done[r] + counts[r]]
            done[r] += counts[r]
            spans.append(RowSpan(at, counts[r], done[r], pages[r]))
            at += counts[r]
        layout = BatchLayout.build(spans, DEVICE)
        out = lm.forward(torch.tensor(flat), layout=layout, pool=pool, logits_at=None)
        for r, span in zip(live, spans, strict=True):
            logits[r].append(out.logits[span.start : span.start + span.count])
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_paged_forward_equals_the_plain_one(family: str) -> None:
    model = tiny_model(family)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    lm = PagedLM(model)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(3, 97, (n,), generator=generator).tolist() for n in (70, 23, 41)]
    # chunked prefill of one row beside decoding of others, rows that join late, widths 1, 3 and 5
    schedule = [[20, 7, 0], [30, 1, 0], [1, 4, 33], [5, 1, 3], [3, 5, 1], [11, 5, 4]]
    schedule = [[min(c, 99) for c in counts] for counts in schedule]
    logits = run_schedule(lm, sequences, schedule)
    for tokens, parts in zip(sequences, logits, strict=True):
        with torch.no_grad():
            expected = plain(torch.tensor([tokens]), use_cache=False).logits[0]
        got = torch.cat(parts)
        torch.testing.assert_close(got, expected[: len(got)], atol=2e-4, rtol=1e-4)
        assert len(got) == len(tokens)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_taps_are_the_hidden_states_of_transformers(family: str) -> None:
    model = tiny_model(family)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    tokens = torch.randint(3, 97, (19,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        states = plain(tokens[None], use_cache=False, output_hidden_states=True).hidden_states
    lm = PagedLM(model)
    lm.set_taps(Taps((0, 2, 1), final_norm=True))
    pool = KVPool(lm.layer_shapes, num_pages=4, dtype=lm.dtype, device=DEVICE)
    layout = BatchLayout.build([RowSpan(0, 19, 19, [2, 3])], DEVICE)
    hidden = lm.forward(tokens, layout=layout, pool=pool, logits_at=torch.tensor([18])).hidden
    expected = torch.cat([states[0][0], states[2][0], states[1][0], states[3][0]], dim=-1)
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-5)


def test_last_boundary_is_before_the_final_norm() -> None:
    model = tiny_model("llama")
    lm = PagedLM(model)
    lm.set_taps(Taps((3,), final_norm=True))
    pool = KVPool(lm.layer_shapes, num_pages=2, dtype=lm.dtype, device=DEVICE)
    layout = BatchLayout.build([RowSpan(0, 5, 5, [0])], DEVICE)
    hidden = lm.forward(torch.arange(3, 8), layout=layout, pool=pool, logits_at=None).hidden
    raw, normed = hidden.split(32, dim=-1)
    torch.testing.assert_close(model.model.norm(raw), normed)
    assert not torch.allclose(raw, normed)
    with pytest.raises(TargetError, match="tap 4"):
        lm.set_taps(Taps((4,)))


def test_unequal_key_and_value_widths_are_read_off_the_model() -> None:
    shapes = PagedLM(tiny_model("deepseek_v3")).layer_shapes
    assert {(s.num_heads, s.key_dim, s.value_dim) for s in shapes} == {(4, 24, 12)}


def test_recurrent_targets_are_refused() -> None:
    model = tiny_model("qwen3")
    model.config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    with pytest.raises(TargetError, match="linear_attention"):
        PagedLM(model)


def test_pages_are_taken_and_returned() -> None:
    lm = PagedLM(tiny_model("llama"))
    pool = KVPool(lm.layer_shapes, num_pages=3, dtype=lm.dtype, device=DEVICE)
    assert pool.bytes() == 3 * PAGE * (3 * 2 * (8 + 8) * 4)  # pages, tokens, layers x heads x (key + value) x float32
    taken = pool.take(2)
    assert taken == [0, 1]
    assert pool.take(2) is None
    assert pool.num_free == 1
    pool.give_back([1, 0])
    assert pool.take(3) == [0, 1, 2]
