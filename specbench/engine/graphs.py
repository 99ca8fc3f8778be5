"""Fixed shapes for padded steps, and their forwards captured as CUDA graphs.

A graph replays the same kernels on the same memory. What varies from step to step must therefore lie in tensors whose
place is fixed (see `specbench.engine.padded`), and whatever the host decided while the graph was captured stays so:
the shape of a step, rounded up to a few sizes, is the key that a graph is kept under.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

_FIRST_LENGTH = 512  # contexts up to this share a graph; above, every doubling has one


class Recording(Protocol):
    """A captured function."""

    @property
    def outputs(self) -> Any:
        """What it returned; every `replay` writes it anew."""
        ...

    def replay(self) -> None:
        """Run it again on what its inputs hold now."""
        ...


Recorder = Callable[[str, Callable[[], Any]], Recording]
"""Runs the function of a stage and records it; functions of one stage may share memory, and the outputs of one stay
whole until another of its stage is replayed. Errors: RuntimeError when it does something that cannot be recorded."""


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """How steps are padded. ``rows`` and ``lengths`` are the sizes to round up to, None for the usual ones.

    ``recorder`` None runs padded steps without capturing them, as on a CPU. ``least_saved``: tokens fewer than the next
    larger one that a verification must have to be a size of its own (below that a forward costs what it costs).
    """

    rows: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None
    recorder: Recorder | None = None
    least_saved: int = 32


def settings_for(device: torch.device) -> GraphSettings:
    """Padded steps on ``device``: captured where it is a CUDA device."""
    return GraphSettings(recorder=CudaRecorder(device) if device.type == "cuda" else None)


def row_sizes(max_rows: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then one and a half and two times each power of two; the last one is ``max_rows``.

    Few: every size is captured before the first step, and a run with all its rows busy has the last, which is exact.
    """
    sizes = {1, 2, 4, 8} | {part << power for power in range(3, max_rows.bit_length()) for part in (2, 3)}
    return (*sorted(size for size in sizes if size < max_rows), max_rows)


def length_sizes(max_context: int) -> tuple[int, ...]:
    """512 tokens and its doublings; the last one is ``max_context``."""
    sizes: list[int] = []
    while _FIRST_LENGTH << len(sizes) < max_context:
        sizes.append(_FIRST_LENGTH << len(sizes))
    return (*sizes, max_context)


def verify_sizes(rows: int, *, drafts: int, least_saved: int) -> tuple[int, ...]:
    """Tokens of the verifications of ``rows`` rows: all ``drafts`` of each, half, a quarter, and one; anchors included.

    A size that saves less than ``least_saved`` tokens is left out.
    """
    sizes = [rows * (drafts + 1)]
    for each in sorted({-(-drafts // 2), -(-drafts // 4), min(drafts, 1)}, reverse=True):
        if sizes[-1] - rows * (each + 1) >= max(least_saved, 1):
            sizes.append(rows * (each + 1))
    return tuple(reversed(sizes))


def round_up(value: int, sizes: tuple[int, ...]) -> int | None:
    """The smallest size that holds ``value``; None where none does."""
    return next((size for size in sizes if value <= size), None)


def kept_bytes(
    settings: GraphSettings, *, max_rows: int, max_context: int, drafts: int, vocab_size: int, capped: bool = False
) -> int:
    """Bytes of logits that captured graphs keep at most: each has outputs of its own, of target (two bytes a logit)
    and drafter (four), for every size of a step. With a ``capped`` policy those of the target share one place."""
    if settings.recorder is None:
        return 0
    sizes = settings.rows or row_sizes(max_rows)
    steps = sum(sizes) * len(settings.lengths or length_sizes(max_context))
    verified = max(sizes) if capped else steps
    return vocab_size * (2 * (drafts + 1) * verified + 4 * drafts * steps)


class Stages:
    """Functions on fixed memory by key: recorded once and replayed, or simply called where nothing records.

    What cannot be recorded is called from then on; ``refused`` says why, by the name of the stage.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._made: dict[tuple[str, Hashable], Recording] = {}
        self.refused: dict[str, str] = {}

    @property
    def recorded(self) -> int:
        """Graphs that were captured."""
        return len(self._made)

    def run(self, name: str, key: Hashable, function: Callable[[], Any]) -> Any:
        """The function's outputs for what its inputs hold now. Errors: whatever it raises when called."""
        if self._recorder is None or name in self.refused:
            return function()
        made = self._made.get((name, key))
        if made is None:
            try:
                made = self._made[name, key] = self._recorder(name, function)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.refused[name] = (str(error).strip().splitlines() or [type(error).__name__])[0]
                return function()
        made.replay()
        return made.outputs


@dataclass(frozen=True, slots=True)
class _CudaRecording:
    graph: torch.cuda.CUDAGraph
    outputs: Any

    def replay(self) -> None:
        self.graph.replay()


class CudaRecorder:
    """Captures CUDA graphs that share one memory pool a stage.

    What a graph frees while it is captured may hold the outputs of graphs of its pool that are captured later: those
    outputs are lost as soon as the former is replayed. Within a stage that is the next step at the earliest; with one
    pool for all stages, drafts captured late (for another kind of sampling) would be lost to the verification of the
    same step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pools: dict[str, Any] = {}
        self._beside: Any = None  # one stream to warm up on: libraries keep a workspace for every stream that they see

    def __call__(self, stage: str, function: Callable[[], Any]) -> Recording:
        """Run once to let libraries and kernels set themselves up, then capture."""
        with torch.cuda.device(self._device):
            if self._beside is None:
                self._beside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._beside):
                function()
            torch.cuda.current_stream().wait_stream(self._beside)
            graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
            try:
                with torch.cuda.graph(graph, pool=self._pools.get(stage)):
                    outputs = function()
            finally:  # a capture that fails leaves its own stream the current one
                torch.cuda.set_stream(before)
            self._pools.setdefault(stage, graph.pool())
        return _CudaRecording(graph, outputs)
