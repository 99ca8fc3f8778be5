"""Mixture-of-experts weights as transformers 5 holds them, and weights that are stored in scaled float8 blocks."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.source import Derived, Source

_EXPERT = re.compile(r"^(layers\.\d+\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight$")
_SCALE = "_scale_inv"
_BLOCK = (128, 128)  # DeepSeek-V3's


def fuse_experts(source: Source) -> tuple[dict[str, Derived], tuple[str, ...]]:
    """Per-expert matrices become ``experts.gate_up_proj`` [E, 2I, d] and ``experts.down_proj`` [E, d, I].

    Scaled float8 matrices become bfloat16. Returns the derived tensors and the stored names that they replace.
    Errors: CheckpointError when experts are missing.
    """
    ready: dict[str, Derived] = {}
    spare: list[str] = []
    found: dict[str, dict[int, set[str]]] = {}
    for name in source.stored:
        if match := _EXPERT.match(name):
            found.setdefault(match.group(1), {}).setdefault(int(match.group(2)), set()).add(match.group(3))
            spare.append(name)
        elif name.endswith(_SCALE):
            spare.append(name)
            plain = name.removesuffix(_SCALE)
            if not _EXPERT.match(plain):
                ready[plain] = Derived(source.shape(plain) or (), lambda plain=plain: read_matrix(source, plain))  # type: ignore[misc]
    for stem, experts in found.items():
        if sorted(experts) != list(range(len(experts))) or any(len(parts) != 3 for parts in experts.values()):
            raise source.error(f"{stem}: {len(experts)} experts are stored, but not every one of them completely")
        ready |= _fused(source, stem, len(experts))
    return ready, tuple(spare)


def _fused(source: Source, stem: str, count: int) -> dict[str, Derived]:
    inner, hidden = source.shape(f"{stem}.0.gate_proj.weight") or (0, 0)

    def gate_up() -> Tensor:
        whole = None
        for index in range(count):
            parts = [read_matrix(source, f"{stem}.{index}.{part}.weight") for part in ("gate_proj", "up_proj")]
            if whole is None:
                whole = torch.empty((count, 2 * inner, hidden), dtype=parts[0].dtype)
            torch.cat(parts, out=whole[index])
        assert whole is not None
        return whole

    def down() -> Tensor:
        return torch.stack([read_matrix(source, f"{stem}.{index}.down_proj.weight") for index in range(count)])

    return {
        f"{stem}.gate_up_proj": Derived((count, 2 * inner, hidden), gate_up),
        f"{stem}.down_proj": Derived((count, hidden, inner), down),
    }


def read_matrix(source: Source, name: str) -> Tensor:
    """A stored matrix [out, in]; scaled float8 blocks (DeepSeek-V3's ``weight_scale_inv``) are expanded to bfloat16.

    Errors: CheckpointError when the scales do not tile the matrix.
    """
    weight = source.read(name)
    if not source.has(name + _SCALE):
        return weight
    scale = source.read(name + _SCALE).float()  # [ceil(out / block), ceil(in / block)]
    quantization = Fields(source.folder.config, where=source.where).mapping("quantization_config")
    block = Fields(quantization, where=source.where).ids("weight_block_size", default=_BLOCK)
    if tuple(-(-size // b) for size, b in zip(weight.shape, block)) != tuple(scale.shape):
        raise source.error(
            f"'{name}' {list(weight.shape)} does not fit scales {list(scale.shape)} of {list(block)} blocks"
        )
    wide = scale.repeat_interleave(block[0], 0)[: weight.shape[0]]
    wide = wide.repeat_interleave(block[1], 1)[:, : weight.shape[1]]
    return (weight.float() * wide).to(torch.bfloat16)
