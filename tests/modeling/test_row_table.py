"""A step's rows as tables for kernels: from the host and made on the device, and a model that runs on them."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import support_twins  # noqa: F401  (kernels are interpreted)
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_targets import tiny_model
from torch import Tensor
from triton.runtime import interpreter

from specbench.kernels import attention, scatter
from specbench.modeling import layout, padded_layout
from specbench.modeling.causal_lm import PagedLM
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.padded_layout import PaddedShape, lay_out
from specbench.modeling.pool import PAGE, KVPool, pages_for
from specbench.modeling.row_table import RowTable

CPU = torch.device("cpu")


def spans(rows: list[tuple[int, int]]) -> list[RowSpan]:
    """Of (tokens held before, query tokens), on pages of their own."""
    made, start, page = [], 0, 3
    for before, count in rows:
        needed = pages_for(before + count)
        made.append(RowSpan(start, count, before + count, range(page, page + needed)))
        start, page = start + count, page + needed
    return made


def covered(table: RowTable) -> list[tuple[int, int]]:
    """Every (row, query token) that a tile brings to a kernel, in order."""
    found = []
    for row, first in table.tiles.tolist():
        found += [(row, at) for at in range(first, min(first + table.tile, int(table.counts[row])))]
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 150)), min_size=1, max_size=7))
def test_the_device_makes_the_table_that_the_host_makes(rows: list[tuple[int, int]]) -> None:
    made = spans(rows)
    table = RowTable.build(made, CPU)
    padded = RowTable.padded(
        starts=table.starts.long(),
        counts=table.counts.long(),
        lengths=table.lengths.long(),
        pages=table.pages.long(),
        widest=max(count for _, count in rows),
        longest=table.longest,
    )
    for name in ("starts", "counts", "lengths", "pages"):
        assert torch.equal(getattr(table, name), getattr(padded, name))
        assert getattr(padded, name).dtype == torch.int32
    assert (table.tile, table.longest) == (padded.tile, max(a + b for a, b in rows))
    assert covered(table) == covered(padded) == [(b, i) for b, (_, count) in enumerate(rows) for i in range(count)]
    for row, pages in zip(made, table.pages.tolist(), strict=True):
        assert pages[: len(row.pages)] == list(row.pages)


def test_no_rows_have_no_tiles() -> None:
    table = RowTable.build([], CPU)
    assert (table.tiles.shape, table.pages.shape) == ((0, 2), (0, 0))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Attention and scatter are dispatched to Triton, here interpreted; the list says what was."""
    ran: list[str] = []

    def noted(name: str) -> None:
        def uses_triton(_: Tensor) -> bool:
            ran.append(name)
            return True

        monkeypatch.setattr({"attention": attention, "scatter": scatter}[name], "uses_triton", uses_triton)

    noted("attention")
    noted("scatter")
    for module in (layout, padded_layout):
        monkeypatch.setattr(module, "uses_triton", lambda _: True)
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
    return ran


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "deepseek_v3"])
def test_a_model_on_kernels_gives_the_logits_of_the_plain_one(family: str, as_on_a_gpu: list[str]) -> None:
    model = tiny_model(family)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    lm = PagedLM(model)
    pool = KVPool(lm.layer_shapes, num_pages=8, dtype=lm.dtype, device=CPU, spare=padded_layout.SPARE_PAGES)
    tokens = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(4))
    pages = torch.tensor([[5, 2], [0, 7]])
    prompt = BatchLayout.build([RowSpan(0, 18, 18, [5, 2]), RowSpan(18, 15, 15, [0, 7])], CPU)
    assert prompt.groups == ()
    first = lm.forward(torch.cat([tokens[0, :18], tokens[1, :15]]), layout=prompt, pool=pool, logits_at=None)
    step = lay_out(  # three tokens of one row, one of the other, a row and three tokens of padding
        PaddedShape(rows=3, tokens=8, width=3, pages=2),
        lengths=torch.tensor([18, 15, 0]),
        counts=torch.tensor([3, 1, 1]),
        tokens=torch.stack([tokens[0, 18:21], tokens[1, 15:18], torch.zeros(3, dtype=torch.int64)]),
        pages=torch.cat([pages, torch.full((1, 2), 8)]),
        num_pages=8,
    )
    second = lm.forward(step.token_ids, layout=step.layout, pool=pool, logits_at=None)
    with torch.no_grad():
        expected = plain(tokens, use_cache=False).logits
    found = torch.cat([first.logits, second.logits[:4]])
    wanted = torch.cat([expected[0, :18], expected[1, :15], expected[0, 18:21], expected[1, 15:16]])
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)
    assert PAGE == 16
    assert as_on_a_gpu.count("attention") == as_on_a_gpu.count("scatter") == 2 * len(lm.layers)
