"""The threshold at which top-k and top-p cut a row of logits, found without a sort.

An interval of float numbers, ordered as integers, is narrowed fourfold by each pass over the row: exact for any input,
whatever its scale, and at most 16 passes for float32 and 8 for bfloat16. Where the interval starts is known from what
`specbench.kernels._triton.probs.stats_kernel` found of the row, which saves several of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled(x, temperature):
    """Logits over temperature as the definition rounds them; temperature 0 leaves them as they are."""
    return tl.div_rn(x.to(tl.float32), tl.where(temperature == 0.0, 1.0, temperature))


@triton.jit
def _key(x):
    """The place of float32 ``x`` among all float32 numbers, int64: rises with x."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return tl.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)


@triton.jit
def _value(key):
    """The float32 number at place ``key``; places below -inf are not numbers and read as -inf."""
    key = tl.maximum(key, 0x007FFFFF)
    bits = tl.where(key >= 0x80000000, key - 0x80000000, 0xFFFFFFFF - key)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _masses(
    row_ptr,
    width,
    first,
    second,
    third,
    temperature,
    top,
    floor,
    WEIGH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """How many tokens have a logit of at least each of three values, float64; with WEIGH the sum of exp(scaled - top)
    of those, where only tokens whose scaled logit is at least ``floor`` count."""
    tile = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    one = tl.zeros([ROWS], tl.float64)
    two = tl.zeros([ROWS], tl.float64)
    three = tl.zeros([ROWS], tl.float64)
    for start in range(0, width, ROWS * COLUMNS):
        at = start + tile
        x = tl.load(row_ptr + at, mask=at < width, other=-float("inf")).to(tl.float32)
        w = tl.where(at < width, 1.0, 0.0)
        if WEIGH:
            y = scaled(x, temperature)
            w = tl.where((at < width) & (y >= floor), tl.exp(y - top), 0.0)
        one += tl.sum(tl.where(x >= first, w, 0.0), axis=1).to(tl.float64)
        two += tl.sum(tl.where(x >= second, w, 0.0), axis=1).to(tl.float64)
        three += tl.sum(tl.where(x >= third, w, 0.0), axis=1).to(tl.float64)
    return tl.sum(one, axis=0), tl.sum(two, axis=0), tl.sum(three, axis=0)


@triton.jit
def _search(
    row_ptr,
    width,
    low,
    high,
    goal,
    temperature,
    top,
    floor,
    WEIGH: tl.constexpr,
    LOWEST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The largest logit with a mass of at least ``goal`` from it on; ``low`` reaches the goal and ``high`` does not."""
    low = low >> LOWEST
    high = (high >> LOWEST) + 1
    while high - low > 1:
        step = (high - low + 3) // 4
        one, two, three = _masses(
            row_ptr,
            width,
            _value((low + step) << LOWEST),
            _value((low + 2 * step) << LOWEST),
            _value((low + 3 * step) << LOWEST),
            temperature,
            top,
            floor,
            WEIGH,
            ROWS,
            COLUMNS,
        )
        low += step * ((one >= goal).to(tl.int64) + (two >= goal).to(tl.int64) + (three >= goal).to(tl.int64))
        high = tl.minimum(high, low + step)
    found = _value(low << LOWEST).to(tl.int32, bitcast=True)
    return (found & (-1 << LOWEST)).to(tl.float32, bitcast=True)  # a negative number's place names its low bits as ones


@triton.jit
def _ties(row_ptr, width, threshold, temperature, top, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of exp(scaled - top) above ``threshold`` in float64, and how many scaled logits are equal to it."""
    tile = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    above = tl.zeros([ROWS], tl.float64)
    equal = tl.zeros([ROWS], tl.int32)
    for start in range(0, width, ROWS * COLUMNS):
        at = start + tile
        x = tl.load(row_ptr + at, mask=at < width, other=-float("inf"))
        y = scaled(x, temperature)
        above += tl.sum(tl.where(y > threshold, tl.exp(y - top), 0.0), axis=1).to(tl.float64)
        equal += tl.sum(((y == threshold) & (at < width)).to(tl.int32), axis=1)
    return tl.sum(above, axis=0), tl.sum(equal, axis=0)


@triton.jit
def _index_of_tie(row_ptr, width, threshold, temperature, kept, BLOCK: tl.constexpr):
    """The index of the ``kept``-th scaled logit that equals ``threshold``, in order of index."""
    seen = 0
    last = 0
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + at, mask=at < width, other=-float("inf"))
        equal = ((scaled(x, temperature) == threshold) & (at < width)).to(tl.int32)
        count = tl.sum(equal, axis=0)
        if (seen < kept) & (seen + count >= kept):
            place = seen + tl.cumsum(equal, axis=0)
            last = tl.min(tl.where((place == kept) & (equal > 0), at, width), axis=0)
        seen += count
    return last


@triton.jit
def _raw_below(y, temperature):
    """A raw logit that is certainly not above those whose scaled logit is ``y``."""
    x = y * temperature
    return x - tl.abs(x) * 1e-5


@triton.jit
def truncate(
    row_ptr,
    width,
    highest,
    tops,
    top,
    temperature,
    top_p,
    top_k,
    LOWEST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Threshold, last index and kept mass (sum of exp(scaled - top), float64) of a row with top-k or top-p.

    ``tops`` are the largest scaled logits of the row's splits, ``highest`` the raw logit that ``top`` came from.
    """
    floor = -float("inf")
    if top_k < width:
        # At least k tokens reach the k-th largest of the splits' tops.
        rank = tl.sum((tops[None, :] >= tops[:, None]).to(tl.int32), axis=1)
        bound = tl.max(tl.where(rank >= top_k, tops, -float("inf")), axis=0)
        low = _key(_raw_below(bound, temperature))
        goal = tl.maximum(top_k, 1).to(tl.float64)
        raw = _search(row_ptr, width, low, _key(highest), goal, temperature, top, floor, False, LOWEST, ROWS, COLUMNS)
        floor = scaled(raw, temperature)
    everything = -float("inf")
    mass, _, _ = _masses(
        row_ptr, width, everything, everything, everything, temperature, top, floor, True, ROWS, COLUMNS
    )
    threshold = floor
    last = width
    if top_p < 1.0:
        goal = tl.maximum(top_p.to(tl.float64) * mass, 1e-30)
        # Tokens below this have too little probability together to matter to top-p.
        bound = top - tl.log(width / (1.0 - top_p)) - 1.0 - tl.abs(top) * 1e-5
        low = _key(_raw_below(tl.maximum(bound, floor), temperature))
        raw = _search(row_ptr, width, low, _key(highest), goal, temperature, top, floor, True, LOWEST, ROWS, COLUMNS)
        threshold = scaled(raw, temperature)
        above, equal = _ties(row_ptr, width, threshold, temperature, top, ROWS, COLUMNS)
        each = tl.exp(threshold - top).to(tl.float64)
        kept = tl.minimum(tl.maximum(tl.ceil((goal - above) / each), 1.0), equal.to(tl.float64))
        mass = above + kept * each
        if kept < equal:
            last = _index_of_tie(row_ptr, width, threshold, temperature, kept.to(tl.int32), ROWS * COLUMNS)
    return threshold, last, mass
