"""One position of the sequential head in two kernels: product, sum, scale and partial sums; then the token.

The product reads W2 once for up to 64 requests and writes only what the verifier needs later, the scaled logits. With
them go, tile by tile, the largest logit and the sum of exp(logit - largest) in float64, from which the second kernel
has the log-normaliser and, by inverse of the cumulative sum, the token; what rounding may do is said in
`specbench.kernels._triton.sample`. The log-normaliser is the float64 one, rounded once; the definition's float32 sum
may differ in its last bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from specbench.kernels._triton.launch import wide
from specbench.kernels._triton.probs import Cut, apply_cuts, find_cuts
from specbench.kernels._triton.sample import first_beyond, point_of, sample
from specbench.kernels._triton.threshold import scaled
from specbench.kernels._triton.variant import Variant
from specbench.kernels.draw import nameable_part
from specbench.types import DraftLogits, Rows

TILE = 128  # tokens of the vocabulary a program


@triton.jit(do_not_specialize=["rows"])
def markov_kernel(
    base_ptr,
    base_stride,
    table_ptr,
    table_stride,
    index_ptr,
    weight_ptr,
    weight_stride,
    temperature_ptr,
    out_ptr,
    out_stride,
    top_ptr,
    mass_ptr,
    best_ptr,
    rows,
    width,
    tiles,
    INDEXED: tl.constexpr,
    KEPT: tl.constexpr,  # scaled logits are written, and their sums
    SAME: tl.constexpr,  # base and weight are of one type, to which their sum is rounded
    WIDE: tl.constexpr,  # products in float32
    RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILE: tl.constexpr,
):
    """Scaled logits of BLOCK_M requests over one tile of the vocabulary, and what is needed to draw from them."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = tl.program_id(1)
    n = tile * TILE + tl.arange(0, TILE)
    real = m < rows
    named = n < width
    row = m.to(tl.int64)
    if INDEXED:
        row = tl.load(index_ptr + m, mask=real, other=0)
    sums = tl.zeros([BLOCK_M, TILE], tl.float32)
    for start in range(0, RANK, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        low_mask = real[:, None] & (k < RANK)[None, :]
        low = tl.load(table_ptr + row[:, None] * table_stride + k[None, :], mask=low_mask, other=0.0)
        w_mask = named[None, :] & (k < RANK)[:, None]
        w = tl.load(weight_ptr + n[None, :] * weight_stride + k[:, None], mask=w_mask, other=0.0)
        if WIDE:
            low = low.to(tl.float32)
            w = w.to(tl.float32)
        sums = tl.dot(low, w, sums, input_precision="ieee")
    inside = real[:, None] & named[None, :]
    at = m.to(tl.int64)[:, None]
    base = tl.load(base_ptr + at * base_stride + n[None, :], mask=inside, other=0.0).to(tl.float32)
    x = base + sums.to(weight_ptr.dtype.element_ty).to(tl.float32)
    if SAME:
        x = x.to(weight_ptr.dtype.element_ty).to(tl.float32)
    if KEPT:
        x = scaled(x, tl.load(temperature_ptr + m, mask=real, other=1.0)[:, None])
        tl.store(out_ptr + at * out_stride + n[None, :], x, mask=inside)
    x = tl.where(named[None, :], x, -float("inf"))
    top = tl.max(x, axis=1)
    best = tl.min(tl.where(x == top[:, None], n[None, :], width), axis=1)
    to = m * tiles + tile
    tl.store(top_ptr + to, top, mask=real)
    tl.store(best_ptr + to, tl.minimum(best, width - 1), mask=real)
    if KEPT:
        shift = tl.where(top == -float("inf"), 0.0, top)
        mass = tl.sum(tl.exp(x.to(tl.float64) - shift.to(tl.float64)[:, None]), axis=1)
        tl.store(mass_ptr + to, mass, mask=real)


@triton.jit
def draw_kernel(
    logits_ptr,
    stride,
    temperature_ptr,
    top_ptr,
    mass_ptr,
    best_ptr,
    u_ptr,
    map_ptr,
    token_ptr,
    normaliser_ptr,
    normaliser_stride,
    threshold_ptr,
    last_ptr,
    width,
    tiles,
    SAMPLED: tl.constexpr,
    MAPPED: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """The token of each request, and with SAMPLED its log-normaliser and cut; a greedy row keeps its argmax only."""
    row = tl.program_id(0).to(tl.int64)
    tile_index = tl.arange(0, TILES)
    real = tile_index < tiles
    tops = tl.load(top_ptr + row * tiles + tile_index, mask=real, other=-float("inf"))
    bests = tl.load(best_ptr + row * tiles + tile_index, mask=real, other=width - 1)
    top = tl.max(tops, axis=0)
    token = tl.min(tl.where(tops == top, bests, width - 1), axis=0)
    if SAMPLED:
        shift = tl.where(top == -float("inf"), 0.0, top).to(tl.float64)
        greedy = tl.load(temperature_ptr + row) == 0.0
        masses = tl.load(mass_ptr + row * tiles + tile_index, mask=real, other=0.0)
        masses = masses * tl.exp(tops.to(tl.float64) - shift)
        total = tl.sum(masses, axis=0)
        normaliser = tl.where(greedy, shift, shift + tl.log(total))
        tl.store(normaliser_ptr + row * normaliser_stride, normaliser.to(tl.float32))
        tl.store(threshold_ptr + row, tl.where(greedy, top, -float("inf")))
        tl.store(last_ptr + row, tl.where(greedy, token, width))
        point = point_of(tl.load(u_ptr + row), total)
        tile, before = first_beyond(masses, point, tile_index, TILES)
        in_tile = tl.arange(0, TILE)
        at = tile * TILE + in_tile
        x = tl.load(logits_ptr + row * stride + at, mask=at < width, other=-float("inf"))
        place, _ = first_beyond(tl.exp(x.to(tl.float64) - shift), point - before, in_tile, TILE)
        token = tl.where(greedy, token, tile * TILE + place)
    token = token.to(tl.int64)
    if MAPPED:
        token = tl.load(map_ptr + token)
    tl.store(token_ptr + row, token)


def markov_step(
    base: Tensor,
    *,
    table: Tensor,
    index: Tensor | None,
    product: nn.Module,
    rows: Rows,
    uniforms: Tensor | None,
    id_map: Tensor | None,
    width: int | None,
    kept: DraftLogits | None,
    position: int,
) -> Tensor:
    """Twin of `specbench.kernels.markov.markov_step`."""
    base, id_map = nameable_part(base, id_map=id_map, width=width)
    batch, width = base.shape
    device = base.device
    tokens = torch.empty(batch, dtype=torch.int64, device=device)
    if batch == 0:
        return tokens
    tiles = triton.cdiv(width, TILE)
    tops = torch.empty(batch, tiles, dtype=torch.float32, device=device)
    bests = torch.empty(batch, tiles, dtype=torch.int32, device=device)
    masses = torch.empty(batch if kept is not None else 0, tiles, dtype=torch.float64, device=device)
    out = tops if kept is None else kept.logits[:, position]
    temperature = rows.temperature.contiguous()
    _product(base, table, index, product.get_parameter("weight"), temperature, out, (tops, masses, bests), kept)
    if kept is not None and rows.any_truncated:
        return _truncated(out, rows, uniforms, id_map, kept, position)
    cuts = Cut(
        torch.empty(batch, dtype=torch.float32, device=device),
        torch.empty(batch, dtype=torch.int32, device=device),
        tops if kept is None else kept.log_normaliser[:, position],
    )
    draw_kernel[(batch,)](
        out,
        out.stride(0),
        temperature,
        tops,
        masses,
        bests,
        temperature if uniforms is None else uniforms.contiguous(),
        tokens if id_map is None else id_map,
        tokens,
        cuts.log_normaliser,
        cuts.log_normaliser.stride(0),
        cuts.threshold,
        cuts.last,
        width,
        tiles,
        SAMPLED=kept is not None,
        MAPPED=id_map is not None,
        TILE=TILE,
        TILES=triton.next_power_of_2(tiles),
        num_warps=8,
    )
    if kept is not None and rows.any_greedy:
        apply_cuts(out, cuts, temperature=temperature, out=out)
    return tokens


def _product(
    base: Tensor,
    table: Tensor,
    index: Tensor | None,
    weight: Tensor,
    temperature: Tensor,
    out: Tensor,
    parts: tuple[Tensor, Tensor, Tensor],
    kept: DraftLogits | None,
) -> None:
    """Launch `markov_kernel`."""
    batch, width = base.shape
    rank = weight.shape[1]
    assert base.stride(1) == table.stride(1) == weight.stride(1) == 1, "rows are contiguous"
    assert table.dtype == weight.dtype, "the two factors are of one type"
    tops, masses, bests = parts
    block_m, block_k, warps = _blocks(batch, rank=rank, dtype=weight.dtype)
    tiles = tops.shape[1]
    markov_kernel[triton.cdiv(batch, block_m), tiles](
        base,
        base.stride(0),
        table,
        table.stride(0),
        bests if index is None else index.contiguous(),
        weight,
        weight.stride(0),
        temperature,
        out,
        out.stride(0),
        tops,
        masses,
        bests,
        batch,
        width,
        tiles,
        INDEXED=index is not None,
        KEPT=kept is not None,
        SAME=base.dtype == weight.dtype,
        WIDE=wide(weight.dtype),
        RANK=rank,
        BLOCK_M=block_m,
        BLOCK_K=block_k,
        TILE=TILE,
        num_warps=warps,
    )


def _blocks(batch: int, *, rank: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Requests a program, columns of the factors at a time, warps."""
    deep = min(64, max(16, triton.next_power_of_2(rank)))
    if dtype == torch.float32:  # products without tensor cores hold their operands in registers
        return 16, min(deep, 32), 8
    if batch <= 16:
        return 16, deep, 4
    return (32, deep, 8) if batch <= 32 else (64, deep, 8)


def _truncated(
    logits: Tensor, rows: Rows, uniforms: Tensor | None, id_map: Tensor | None, kept: DraftLogits, position: int
) -> Tensor:
    """Cut scaled ``logits`` [B, Vd] where they lie, and draw."""
    assert uniforms is not None
    as_is = (rows.temperature != 0).to(torch.float32)  # scaled already; 0 still takes the argmax
    cuts = find_cuts(logits, temperature=as_is, top_p=rows.top_p, top_k=rows.top_k, any_truncated=True)
    apply_cuts(logits, cuts, temperature=as_is, out=logits)
    kept.log_normaliser[:, position].copy_(cuts.log_normaliser)
    tokens = sample(logits, cuts.log_normaliser, uniforms)
    return tokens if id_map is None else id_map[tokens]


def _variants() -> list[Variant]:
    """A plain head of rank 256 over Qwen3's vocabulary, sampled."""
    rank, width = 256, 151_936
    tiles = triton.cdiv(width, TILE)
    out = []
    for dtype, torch_type, size in (
        ("bf16", torch.bfloat16, 2),
        ("fp16", torch.float16, 2),
        ("fp32", torch.float32, 4),
    ):
        for batch in (128, 1) if dtype == "bf16" else (128,):
            block_m, block_k, warps = _blocks(batch, rank=rank, dtype=torch_type)
            again = triton.cdiv(batch, block_m) - 1  # times that W2 is read beyond the first, from the cache
            factors = ("base_ptr", "table_ptr", "weight_ptr")
            numbers = ("base_stride", "table_stride", "weight_stride", "out_stride", "rows", "width", "tiles")
            types = dict.fromkeys(factors, f"*{dtype}") | dict.fromkeys(numbers, "i32")
            types |= {"temperature_ptr": "*fp32", "out_ptr": "*fp32", "top_ptr": "*fp32"}
            types |= {"index_ptr": "*i64", "mass_ptr": "*fp64", "best_ptr": "*i32"}
            fewest = width * rank * size + batch * (width * (size + 4) + rank * size + tiles * 16 + 12)
            out.append(
                Variant(
                    markov_kernel,
                    dtype,
                    f"{batch} rows, rank {rank}, [{width}], sampled",
                    types=types,
                    constants={
                        "INDEXED": True,
                        "KEPT": True,
                        "SAME": True,
                        "WIDE": torch_type == torch.float32,
                        "RANK": rank,
                        "BLOCK_M": block_m,
                        "BLOCK_K": block_k,
                        "TILE": TILE,
                    },
                    moved=fewest + (tiles - 1) * batch * (rank * size + 12) + again * width * rank * size,
                    fewest=fewest,
                    aligned=(
                        *factors,
                        "base_stride",
                        "table_stride",
                        "weight_stride",
                        "out_ptr",
                        "out_stride",
                        "width",
                    ),
                    num_warps=warps,
                )
            )
    return [*out, _draw_variant(128, width, tiles)]


def _draw_variant(batch: int, width: int, tiles: int) -> Variant:
    pointers = ("logits_ptr", "temperature_ptr", "top_ptr", "normaliser_ptr", "threshold_ptr")
    types = dict.fromkeys(pointers, "*fp32") | {"mass_ptr": "*fp64", "best_ptr": "*i32", "u_ptr": "*fp64"}
    types |= {"map_ptr": "*i64", "token_ptr": "*i64", "last_ptr": "*i32"}
    types |= dict.fromkeys(("stride", "normaliser_stride", "width", "tiles"), "i32")
    moved = batch * (tiles * 16 + TILE * 4 + 40)
    return Variant(
        draw_kernel,
        "fp32",
        f"{batch} rows of [{width}] from {tiles} tiles",
        types=types,
        constants={"SAMPLED": True, "MAPPED": True, "TILE": TILE, "TILES": triton.next_power_of_2(tiles)},
        moved=moved,
        fewest=moved,
        aligned=("logits_ptr", "stride", "width"),
        num_warps=8,
    )


VARIANTS = _variants()
