"""The pool within a device's free memory, and memory that runs out all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from specbench_drafters.vanilla import VanillaDrafter
from support_contestants import CONTEXT, Stable, own_cases
from support_engine import outputs, prompts, request
from support_models import tiny_llama_dir
from support_tape import Taped
from support_targets import tiny_model

from specbench.config import build_run
from specbench.drafting.slots import SlotCache
from specbench.engine.engine import Engine
from specbench.engine.graphs import GraphSettings, kept_bytes
from specbench.engine.policies.fixed import FixedPolicy
from specbench.engine.sizing import SHARE, free_bytes, out_of_memory, pool_budget
from specbench.engine.target import Target
from specbench.errors import CapacityError
from specbench.modeling.pool import PAGE
from specbench.runner import run_cells


class Growing(VanillaDrafter):
    """Holds nothing yet, and will want much."""

    def __init__(self, growth: int) -> None:
        self._growth = growth

    def growth_bytes(self) -> int:
        return self._growth


def engine(free: int | None, *, growth: int = 0, budget: int | None = None) -> Engine:
    return Engine(
        Target(tiny_model()),
        Growing(growth),
        FixedPolicy(0),
        max_rows=8,
        max_context=200,
        kv_memory_bytes=budget,
        free_memory=lambda device: free,
    )


def test_a_cpu_has_no_limit_and_the_pool_is_what_the_run_can_use() -> None:
    assert free_bytes(torch.device("cpu")) is None
    assert engine(None).pool.num_pages == -(-8 * 215 // PAGE)


def test_the_pool_takes_the_stated_share_of_what_is_free_less_what_states_and_steps_need() -> None:
    page = engine(None).pool.bytes() // engine(None).pool.num_pages
    step = 8 * 97 * 16
    free = int((40 * page + step) / SHARE) + 1
    assert engine(free).pool.num_pages == 40
    assert engine(free, growth=10 * page).pool.num_pages == 30
    assert engine(free * 100).pool.num_pages == engine(None).pool.num_pages, "never more than the run can use"
    assert engine(free, budget=20 * page).pool.num_pages == 20, "what is asked for is taken"
    with pytest.raises(CapacityError, match=r"too small: one sequence of 200 tokens.*--kv-memory.*--concurrency"):
        engine(free, growth=39 * page)
    assert pool_budget(10, growth=100, step_tokens=1, vocab_size=1) == 0


def test_slot_caches_say_what_they_will_take() -> None:
    cache = SlotCache(
        num_layers=2, num_heads=2, key_dim=4, value_dim=3, max_slots=5, max_length=300, dtype=torch.float32,
        device=torch.device("cpu"),
    )  # fmt: skip
    whole = 2 * 5 * 300 * 2 * (4 + 3) * 4
    assert cache.growth_bytes() == whole
    cache.reserve(slots=[0, 4], length=300)
    assert (cache.bytes(), cache.growth_bytes()) == (whole, 0)


def test_drafters_with_caches_say_how_far_they_grow(tmp_path: Path) -> None:
    stable = Stable(tmp_path)
    for case in own_cases():
        if str(case) in ("dspark:own-vanilla", "eagle3:own"):
            drafter: Any = stable.drafter(case, rows=3)
            assert drafter.growth_bytes() > 3 * CONTEXT


def test_out_of_memory_is_one_line_that_names_a_setting() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...\nmore")
    said = str(out_of_memory(error, rows=64, context=4096, kv_memory=None))
    assert "\n" not in said
    assert "64 rows of up to 4096 tokens (CUDA out of memory)" in said
    assert "lower --concurrency" in said
    assert "--max-new-tokens" in str(out_of_memory(error, rows=1, context=4096, kv_memory=2**30))


def test_a_cell_that_runs_out_of_memory_is_a_failed_row_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_llama_dir(tmp_path)
    honest = Engine.step
    steps: list[int] = []

    def step(self: Engine) -> None:
        steps.append(1)
        if self.method == "vanilla" and len(steps) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        honest(self)

    monkeypatch.setattr(Engine, "step", step)
    flags = {"methods": "ngram", "target": str(target), "num_prompts": 1, "max_new_tokens": 6, "out": tmp_path / "runs"}
    summary = run_cells(build_run(flags={**flags, "tasks": ["starter-math"], "graphs": True, "device": "cpu"}))
    vanilla, ngram = summary.results
    assert vanilla.record.status == "failed"
    assert vanilla.record.error is not None
    assert vanilla.record.error.kind == "CapacityError"
    assert "--max-new-tokens" in vanilla.record.error.message
    assert ngram.record.status == "ok"
    assert ngram.record.spec["graphs"] is True
    facts = ngram.record.provenance["graphs"]
    assert facts["padded_steps"] > 0
    assert set(facts["plain_steps"]) == {"prompt chunks in the step"}
    assert ngram.record.comparability["timing"]["graphs"] is True
    assert summary.exit_code == 2


def test_what_captured_graphs_keep_is_counted() -> None:
    sizes = GraphSettings(rows=(1, 4), lengths=(64, 128))
    given = {"max_rows": 4, "max_context": 128, "drafts": 3, "vocab_size": 10}
    assert kept_bytes(sizes, **given) == 0, "nothing is captured on a CPU"
    captured = GraphSettings(sizes.rows, sizes.lengths, Taped())
    assert kept_bytes(captured, **given) == 5 * 2 * 10 * (2 * 4 + 4 * 3)
    assert kept_bytes(captured, **given, capped=True) == 4 * 10 * 2 * 4 + 5 * 2 * 10 * 4 * 3


@pytest.mark.parametrize("native", [False, True])
def test_pages_are_wide_where_bfloat16_is_emulated_and_the_budget_holds_them(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values are the same either way, and so is every token."""
    for place in ("specbench.modeling.pool", "specbench.kernels.attention"):
        monkeypatch.setattr(f"{place}.has_native_bfloat16", lambda: native)
    target = Target(tiny_model().to(torch.bfloat16))
    asked = [request(n, ids) for n, ids in enumerate(prompts(6))]

    def served(budget: int | None) -> tuple[torch.dtype, dict[str, tuple[int, ...]]]:
        made = Engine(
            target, VanillaDrafter(), FixedPolicy(0), max_rows=4, max_context=64, kv_memory_bytes=budget,
            free_memory=lambda device: None,
        )  # fmt: skip
        for one in asked:
            made.submit(one)
        while made.has_work:
            made.poll()
        return made.pool.keys[0].dtype, outputs(made.close())

    wide, texts = served(None)
    assert wide == (torch.bfloat16 if native else torch.float32)
    narrow_bytes = -(-4 * 79 // PAGE) * PAGE * sum(s.bytes_per_token(torch.bfloat16) for s in target.lm.layer_shapes)
    narrow, same = served(2 * narrow_bytes - 1)
    assert narrow == torch.bfloat16
    assert same == texts
