from __future__ import annotations

import pytest
import torch
from torch import nn

from specbench.modeling.cpu_linear import NarrowLinear, use_narrow_linears


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 40])
def test_narrow_linear_equals_the_exact_product(dtype: torch.dtype, bias: bool, tokens: int) -> None:
    torch.manual_seed(tokens)
    plain = nn.Linear(576, 1537, bias=bias).to(dtype)  # not a multiple of the tile
    x = torch.randn(1, tokens, 576).to(dtype)
    out = NarrowLinear(plain)(x)
    exact = x.double() @ plain.weight.double().t()
    if bias:
        exact = exact + plain.bias.double()
    assert out.shape == (1, tokens, 1537)
    assert out.dtype == dtype
    assert out.is_contiguous()
    rounding = 1e-5 if dtype == torch.float32 else 2.0**-8
    assert float(((out.double() - exact).abs() / (1 + exact.abs())).max()) < rounding


def test_shared_weights_stay_shared_and_other_layers_stay() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False), "norm": nn.LayerNorm(3)})
    model["head"].weight = model["embed"].weight
    assert use_narrow_linears(model) == 1
    assert model["head"].weight is model["embed"].weight
    assert isinstance(model["norm"], nn.LayerNorm)
