"""A float32 target from files in any dtype is the model that transformers loads, whichever way it was read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support_targets import tiny_model
from torch import nn
from transformers import AutoModelForCausalLM

from specbench.engine import target as loading
from specbench.engine.target import Target
from specbench.modeling.cpu_linear import use_cpu_linears
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.packed_linear import PackedLinear, can_pack
from specbench.modeling.pool import KVPool


def _logits(target: Target, ids: list[int]) -> torch.Tensor:
    lm = target.lm
    pool = KVPool(lm.layer_shapes, num_pages=1, dtype=lm.dtype, device=lm.device)
    layout = BatchLayout.build([RowSpan(0, len(ids), len(ids), pool.take(1) or [])], lm.device)
    return lm.forward(torch.tensor(ids), layout=layout, pool=pool, logits_at=None).logits


@pytest.mark.parametrize("family", ["llama", "gemma3"])  # gemma3 rounds a buffer to the dtype it is built in
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_float32_from_any_file(
    family: str, stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model(family).to(stored).save_pretrained(tmp_path)
    reads: list[object] = []
    read = loading._read

    def counted(path: Path, dtype: object, trust_remote_code: bool, **rest: object) -> object:
        reads.append(dtype)
        return read(path, dtype, trust_remote_code, **rest)

    monkeypatch.setattr(loading, "_read", counted)
    target = Target.load(tmp_path, dtype="float32")
    ids = [3, 17, 5, 40, 8]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = plain(torch.tensor([ids])).logits[0]
    assert target.lm.dtype == torch.float32
    assert {p.dtype for p in target.model.parameters()} == {torch.float32}
    torch.testing.assert_close(_logits(target, ids), expected, atol=2e-4, rtol=2e-5)
    rounds_buffers = family == "gemma3" and stored != torch.float32
    assert len(reads) == (2 if rounds_buffers or (not can_pack() and stored != torch.float32) else 1)
    packed = sum(isinstance(m, PackedLinear) for m in target.model.modules())
    assert (packed > 0) == (can_pack() and stored != torch.float32)


def test_what_is_left_keeps_its_values_where_memory_is_shared() -> None:
    """Views of one memory, and empty tensors that all lie nowhere, are told apart."""
    table = torch.arange(12.0).view(3, 4)
    model = nn.Module()
    model.register_parameter("whole", nn.Parameter(table))
    model.register_buffer("part", table[0])
    model.register_buffer("none", torch.empty(0, 4))
    model.register_buffer("nothing", torch.empty(0, 2, dtype=torch.int64))
    use_cpu_linears(model)
    assert torch.equal(model.whole, torch.arange(12.0).view(3, 4))
    assert torch.equal(model.part, torch.arange(4.0))
    assert model.none.shape == (0, 4)
    assert model.nothing.shape == (0, 2)
    assert model.nothing.dtype == torch.int64
