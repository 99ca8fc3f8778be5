"""Several devices, one process each: who this process is, and sums over all of them.

Nothing wraps the model. A step's divisors are summed before the loss, so each process adds its part of the whole
step's gradient, and the sum over processes is what one process would have computed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from specbench.errors import ConfigError


@dataclass(frozen=True, slots=True)
class World:
    """``rank`` of ``size`` processes. Rank 0 writes files and speaks."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Each parameter's gradient becomes the sum over all processes; one that is missing somewhere counts as 0."""
        if self.size == 1:
            return
        wanted = [p for p in parameters if p.requires_grad]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in wanted])
        dist.all_reduce(flat)
        for parameter, piece in zip(wanted, torch.split(flat, [p.numel() for p in wanted]), strict=True):
            parameter.grad = piece.view_as(parameter)

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: str) -> Iterator[tuple[World, str]]:
    """The world that the launcher describes (torchrun's RANK, WORLD_SIZE, LOCAL_RANK), and this process's device.

    Alone without them. Errors: ConfigError for a launcher's variables that make no sense.
    """
    try:
        size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        local = int(os.environ.get("LOCAL_RANK", str(rank)))
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE or LOCAL_RANK is no number ({error}); start with torchrun") from error
    if size == 1:
        yield World(), device
        return
    if not 0 <= rank < size:
        raise ConfigError(f"RANK is {rank} of WORLD_SIZE {size}; start with torchrun")
    if device == "cuda":
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", rank=rank, world_size=size)
    try:
        yield World(rank, size), device
    finally:
        dist.destroy_process_group()
