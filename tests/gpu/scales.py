"""What is measured, at which sizes: real shapes on a GPU, tiny ones in a dry run."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TargetShape:
    """Dimensions of a Qwen3 target. ``taps`` are the states that its published drafters read (Hugging Face indices)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool  # the head is the embedding
    taps: tuple[int, ...]
    source: str


QWEN3_4B = TargetShape(
    "Qwen3-4B", 36, 2560, 32, 8, 128, 9728, 151_936, True, (2, 10, 18, 26, 34),
    "config.json of Qwen/Qwen3-4B; taps: target_layer_ids 1, 9, 17, 25, 33 of DeepSpec's configurations",
)  # fmt: skip
QWEN3_8B = TargetShape(
    "Qwen3-8B", 36, 4096, 32, 8, 128, 12_288, 151_936, False, (2, 10, 18, 26, 34),
    "config.json of Qwen/Qwen3-8B; taps: target_layer_ids 1, 9, 17, 25, 33 of DeepSpec's configurations",
)  # fmt: skip
TINY = TargetShape("tiny", 3, 64, 4, 2, 16, 96, 499, True, (1, 2), "made for the dry run")
TINY_UNTIED = TargetShape("tiny-untied", 3, 64, 4, 2, 16, 96, 499, False, (1, 2), "made for the dry run")


@dataclass(frozen=True, slots=True)
class Scale:
    """All sizes of a run. ``blocks`` are drafts a round; lists go from the most to the least wanted.

    Block drafters have ``draft_layers`` layers and a Markov head of rank ``rank``, as DeepSpec publishes them (5, 256).
    """

    dry: bool
    device: torch.device
    dtype: torch.dtype
    targets: tuple[TargetShape, ...]
    blocks: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    aimed_rows: tuple[int, int]  # batches that the aim on T_verify speaks of
    head_rows: int  # batch of the aim on the sequential head
    head_contexts: tuple[int, ...]
    loads: tuple[int, ...]
    load_prompt_chars: int
    load_new_tokens: int
    draft_layers: int
    rank: int
    warmup: int
    repeats: int
    copy_bytes: int
    matrix: int

    @property
    def cuda(self) -> bool:
        """Whether this is a GPU."""
        return self.device.type == "cuda"


FULL = Scale(
    dry=False,
    device=torch.device("cuda"),
    dtype=torch.bfloat16,
    targets=(QWEN3_4B, QWEN3_8B),
    blocks=(7, 15),
    batches=(1, 32, 128, 8, 4, 16, 2, 64),
    contexts=(512, 4096),
    aimed_rows=(1, 32),
    head_rows=128,
    head_contexts=(512, 4096),
    loads=(32, 1, 256, 8, 128, 64, 16, 4, 2),
    load_prompt_chars=160,
    load_new_tokens=48,
    draft_layers=5,
    rank=256,
    warmup=3,
    repeats=12,
    copy_bytes=4 * 2**30,
    matrix=8192,
)
DRY = Scale(
    dry=True,
    device=torch.device("cpu"),
    dtype=torch.float32,
    targets=(TINY, TINY_UNTIED),
    blocks=(3, 5),
    batches=(1, 3),
    contexts=(16, 40),
    aimed_rows=(1, 3),
    head_rows=3,
    head_contexts=(16,),
    loads=(2, 1),
    load_prompt_chars=24,
    load_new_tokens=12,
    draft_layers=2,
    rank=8,
    warmup=1,
    repeats=2,
    copy_bytes=2**22,
    matrix=128,
)
