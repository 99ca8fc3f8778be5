"""Attention of drafted rows over the cached context and over each other."""

from __future__ import annotations

from torch import Tensor, arange
from torch.nn.functional import scaled_dot_product_attention


def attend(query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(scale * q k^T) v with grouped heads: [B, S, H, Dv].

    Args:
        query: [B, S, H, D].
        keys, values: [B, L, Hkv, D] and [B, L, Hkv, Dv], H a multiple of Hkv.
        mask: [B or 1, S, L] bool, True where visible; None where all is visible. Every query sees at least one key.
    """
    batch, span, heads, dim = query.shape
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    # The heads of a group become further queries of their key head: nothing is copied to repeat keys and values, and
    # every backend of scaled_dot_product_attention takes the shape.
    grouped = query.view(batch, span, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, kv_heads, group * span, dim)
    if mask is not None:
        mask = mask[:, None, None].expand(-1, 1, group, span, -1).reshape(mask.shape[0], 1, group * span, -1)
    out = scaled_dot_product_attention(
        grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=scale
    )
    return out.view(batch, kv_heads, group, span, -1).permute(0, 3, 1, 2, 4).reshape(batch, span, heads, -1)


def visible_keys(query_positions: Tensor, *, key_length: int, ends: Tensor, causal: bool, window: int | None) -> Tensor:
    """Which cached positions each drafted row sees: [B, S, key_length] bool.

    ``query_positions`` [B, S]; ``ends`` [B]: positions from there on do not exist for the row. ``window`` W keeps keys
    with query - key < W and, without ``causal``, key - query < W (z-lab/dflash).
    """
    keys = arange(key_length, device=query_positions.device)  # [L]
    ahead = query_positions[..., None] - keys  # [B, S, L]
    seen = (keys < ends[:, None, None]).expand_as(ahead)
    if causal:
        seen = seen & (ahead >= 0)
    if window is not None:
        seen = seen & (ahead < window)
        if not causal:
            seen = seen & (ahead > -window)
    return seen
