from __future__ import annotations

import pytest
import torch
from torch import nn

from specbench.memory import resident_bytes
from specbench.modeling.cpu_linear import NarrowLinear, use_cpu_linears, weight_bytes
from specbench.modeling.host_memory import give_back_freed
from specbench.modeling.packed_linear import PackedLinear, can_pack, exact_half


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 40])
def test_narrow_linear_equals_the_exact_product(dtype: torch.dtype, bias: bool, tokens: int) -> None:
    torch.manual_seed(tokens)
    plain = nn.Linear(576, 1537, bias=bias).to(dtype)  # not a multiple of the tile
    x = torch.randn(1, tokens, 576).to(dtype)
    with torch.inference_mode():
        out = NarrowLinear(plain)(x)
    exact = (x.double() @ plain.weight.double().t()).detach()
    if bias:
        exact = exact + plain.bias.double().detach()
    assert out.shape == (1, tokens, 1537)
    assert out.dtype == dtype
    assert out.is_contiguous()
    rounding = 1e-5 if dtype == torch.float32 else 2.0**-8
    assert float(((out.double() - exact).abs() / (1 + exact.abs())).max()) < rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 4])
def test_gradients_pass_through(dtype: torch.dtype, tokens: int) -> None:
    plain = nn.Linear(16, 8).to(dtype)
    x = torch.randn(tokens, 16, dtype=dtype, requires_grad=True)
    NarrowLinear(plain)(x).sum().backward()
    assert x.grad is not None
    assert plain.weight.grad is not None


def test_a_row_longer_than_the_tile() -> None:
    plain = nn.Linear(500_000, 2).to(torch.bfloat16)
    x = torch.randn(4, 500_000).bfloat16()
    with torch.inference_mode():
        out = NarrowLinear(plain)(x)
    exact = (x.double() @ plain.weight.double().t() + plain.bias.double()).detach()
    assert float(((out.double() - exact).abs() / (1 + exact.abs())).max()) < 2.0**-7


def test_shared_weights_stay_shared_and_other_layers_stay() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False), "norm": nn.LayerNorm(3)})
    model["head"].weight = model["embed"].weight
    assert use_cpu_linears(model) == 1
    assert model["head"].weight is model["embed"].weight
    assert isinstance(model["norm"], nn.LayerNorm)


needs_packing = pytest.mark.skipif(not can_pack(), reason="this build of torch cannot multiply packed half floats")


@needs_packing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("spread", [0.02, 1e-7], ids=["plain", "scaled"])
@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
def test_packed_linear_equals_the_exact_product(dtype: torch.dtype, bias: bool, spread: float, tokens: int) -> None:
    torch.manual_seed(tokens)
    linear = nn.Linear(100, 67, bias=bias)
    size = (1 + torch.rand(67, 100)) * torch.randn(67, 100).sign()  # no entry far below its row's largest
    linear.weight.data = (size * spread).bfloat16().float()
    linear = linear.to(dtype)
    half = exact_half(linear.weight)
    assert half is not None
    assert (half[1] is not None) == (spread < 1e-3)
    x = torch.randn(3, tokens, 100).to(dtype)
    with torch.inference_mode():
        out = PackedLinear(linear, *half, keep=False)(x)
    exact = x.double() @ linear.weight.double().t()
    size = x.double().abs() @ linear.weight.double().abs().t()
    if bias:
        exact = exact + linear.bias.double()
        size = size + linear.bias.double().abs()
    assert out.dtype == dtype
    rounding = 2e-6 if dtype == torch.float32 else 2.0**-8
    assert float(((out.double() - exact).abs() / size).max()) < rounding


@needs_packing
def test_packing_keeps_every_entry_exactly() -> None:
    """Products with unit vectors read the packed weight back, small (subnormal) half floats included."""
    linear = nn.Linear(64, 48, bias=False)
    weight = torch.randn(48, 64) * torch.logspace(-6, 1, 48)[:, None]
    linear.weight.data = weight.half().float()  # plain: half floats as they are
    for rows in (linear.weight.data, torch.randn(48, 64).bfloat16().float() * 2.0**-40):
        linear.weight.data = rows
        half = exact_half(linear.weight)
        assert half is not None
        with torch.inference_mode():
            assert torch.equal(PackedLinear(linear, *half, keep=False)(torch.eye(64)), linear.weight.t())


def test_a_weight_that_half_floats_cannot_hold_is_not_packed() -> None:
    torch.manual_seed(0)
    assert exact_half(torch.randn(8, 8)) is None  # 24 significant bits
    assert exact_half(torch.tensor([[1.0, 2.0**-60]])) is None
    assert exact_half(torch.tensor([[torch.inf, 1.0]])) is None
    assert exact_half(torch.zeros(2, 2)) is not None
    model = nn.Sequential(nn.Linear(8, 8))
    assert use_cpu_linears(model) == 1
    assert isinstance(model[0], NarrowLinear)


@needs_packing
def test_packed_layers_give_up_their_weight_unless_it_is_shared_or_kept() -> None:
    def bf16(out: int, width: int) -> nn.Linear:
        linear = nn.Linear(width, out, bias=False)
        linear.weight.data = linear.weight.data.bfloat16().float()
        return linear

    model = nn.ModuleDict({"embed": nn.Embedding(16, 8), "head": bf16(16, 8), "inner": bf16(8, 8), "kept": bf16(4, 8)})
    model["embed"].weight = model["head"].weight
    use_cpu_linears(model, keep=[model["kept"]])
    assert isinstance(model["inner"], PackedLinear)
    assert not hasattr(model["inner"], "weight")
    assert model["head"].weight is model["embed"].weight
    assert model["kept"].weight.shape == (4, 8)
    assert weight_bytes(model) == 4 * (16 * 8 + 4 * 8) + 2 * 512 * (16 + 16 + 16)
    x = torch.randn(2, 8, requires_grad=True)
    model["kept"](x).sum().backward()  # a kept weight still gives gradients
    assert x.grad is not None
    with pytest.raises(AssertionError, match="gradients"):
        model["inner"](x)


@needs_packing
def test_one_thread_and_several_give_the_same_product() -> None:
    linear = nn.Linear(600, 700)
    linear.weight.data = linear.weight.data.bfloat16().float()
    half = exact_half(linear.weight)
    assert half is not None
    threads = torch.get_num_threads()
    x = torch.randn(5, 600)
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with torch.inference_mode():
                found.append(PackedLinear(linear, *half, keep=False)(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@needs_packing
def test_packed_bytes_are_what_the_process_grows_by() -> None:
    linear = nn.Linear(576, 65536, bias=False)
    linear.weight.data = linear.weight.data.bfloat16().float()
    half = exact_half(linear.weight)
    assert half is not None
    give_back_freed()  # memory that is taken from what was freed before would not count
    before = resident_bytes()
    packed = PackedLinear(linear, *half, keep=True)
    grown = resident_bytes() - before
    assert abs(grown - packed.packed_bytes) < 0.1 * packed.packed_bytes


@needs_packing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wide_weight_is_multiplied_piece_by_piece(dtype: torch.dtype) -> None:
    linear = nn.Linear(24, 2 * 2048 + 40)  # the last piece is narrower
    linear.weight.data = linear.weight.data.bfloat16().float()
    half = exact_half(linear.weight)
    assert half is not None
    packed = PackedLinear(linear, *half, keep=False, dtype=dtype)
    x = torch.randn(2, 3, 24)
    with torch.inference_mode():
        torch.testing.assert_close(
            packed(x), linear(x).to(dtype), rtol=1e-5 if dtype == torch.float32 else 8e-3, atol=1e-5
        )
