"""How much device memory the page pool may take, and what to say when memory runs out after all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from specbench.errors import CapacityError

SHARE = 0.9  # of the free memory; the rest is for what allocators, libraries and captured graphs keep
_PER_LOGIT = 16  # bytes a step takes for one logit: as computed, in float32, and what judging makes of it


def free_bytes(device: torch.device) -> int | None:
    """Bytes that a CUDA device can still give to this process, None for other devices: their memory is not counted.

    What torch keeps for itself and does not use is free too. Weights and states that were loaded are not.
    """
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def pool_budget(free: int, *, growth: int, step_tokens: int, vocab_size: int) -> int:
    """Bytes of ``free`` that the pool may take.

    Args:
        growth: bytes by which the drafter's states may still grow.
        step_tokens: tokens of the largest step whose logits are computed.
    """
    return max(int(SHARE * free) - growth - step_tokens * vocab_size * _PER_LOGIT, 0)


def shared_budget(free: Mapping[torch.device, int], *, parts: Sequence[int], devices: Sequence[torch.device]) -> int:
    """Bytes of all layers together when none of their devices may take more than is ``free`` there.

    ``parts`` are the bytes of a token in each layer, ``devices`` where the layers are.
    """
    load: Counter[torch.device] = Counter()
    for part, device in zip(parts, devices, strict=True):
        load[device] += part
    return min(free[device] * sum(parts) // part for device, part in load.items())


def out_of_memory(error: torch.OutOfMemoryError, *, rows: int, context: int, kv_memory: int | None) -> CapacityError:
    """The same in one line, with the setting that frees most."""
    said = (str(error).strip().splitlines() or ["out of memory"])[0].split(". ")[0]
    smaller = "lower --concurrency" if rows > 1 else "lower --max-new-tokens or --set max_context"
    kept = "--kv-memory" if kv_memory is None else f"--kv-memory (now {kv_memory / 2**30:.1f} GiB)"
    return CapacityError(
        f"the device ran out of memory with {rows} rows of up to {context} tokens ({said}); {smaller}, or give the "
        f"cache less with {kept}"
    )
