"""Rotary position embedding of the draft layers, with transformers' scaling types and no table.

Angles are computed from the positions that are asked for, so a position beyond the trained range is rotated like any
other instead of falling off a table.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specbench.drafting.shapes import BackboneShape
from specbench.errors import CheckpointError


class Rotary:
    """Rotates queries and keys; halves are paired as in Llama (first half with second).

    The types "dynamic" and "longrope" choose their frequencies by sequence length; here they are chosen once, for the
    longest sequence of the run (``max_context``), so that a row's drafts never depend on the rows beside it.
    Errors: CheckpointError for a scaling type that the installed transformers does not know, or one that lacks a key.
    """

    def __init__(self, shape: BackboneShape, *, max_context: int, device: torch.device) -> None:
        self._inverse, self._scaling = _frequencies(shape, max_context=max_context, device=device)

    @property
    def width(self) -> int:
        """How many of a head's dimensions are rotated."""
        return 2 * self._inverse.shape[0]

    def tables(self, positions: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine [..., 1, width] of ``positions`` [...], computed in float32; the 1 is for the heads."""
        angles = positions[..., None].to(torch.float32) * self._inverse
        angles = torch.cat((angles, angles), dim=-1)[..., None, :]
        return (angles.cos() * self._scaling).to(dtype), (angles.sin() * self._scaling).to(dtype)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """``x`` [..., heads, dim] rotated by `Rotary.tables`; dimensions beyond the tables' width pass unchanged."""
    cos, sin = tables
    width = cos.shape[-1]
    turned, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return turned if rest is None else torch.cat((turned, rest), dim=-1)


def _frequencies(shape: BackboneShape, *, max_context: int, device: torch.device) -> tuple[Tensor, float]:
    """Inverse frequencies [width / 2] float32 and the factor on cosine and sine."""
    rope = shape.rope
    kind = rope.scaling.get("rope_type", rope.scaling.get("type", "default"))
    if kind in ("default", "mrope"):  # text positions are equal on all axes of mrope, which is then plain
        width = int(shape.head_dim * rope.partial_factor)
        exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
        return 1.0 / (rope.theta**exponents), 1.0
    if kind not in ROPE_INIT_FUNCTIONS:
        raise CheckpointError(
            f"the drafter's rope_type is '{kind}', which the installed transformers does not know; "
            f"known: default, {', '.join(sorted(ROPE_INIT_FUNCTIONS))}"
        )
    parameters = {k: v for k, v in rope.scaling.items() if k not in ("type", "rope_type")}
    parameters |= {"rope_type": kind, "rope_theta": rope.theta, "partial_rotary_factor": rope.partial_factor}
    try:
        config = LlamaConfig(
            hidden_size=shape.hidden_size,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=shape.max_position or max_context,
            rope_parameters=parameters,
        )
        with torch.device(device):  # modules may be built on the meta device; frequencies are needed for real
            inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, device, seq_len=max_context)
    except KeyError as error:
        raise CheckpointError(
            f"the drafter's rope scaling '{kind}' lacks the key {error}; complete rope_scaling in its config.json"
        ) from error
    return inverse.to(torch.float32), float(factor)
