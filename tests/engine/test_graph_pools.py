"""Which memory captured graphs share: seen through a stand-in for torch.cuda that hands out the blocks of pools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from specbench.engine.graphs import CudaRecorder, Stages


class Device:
    """Graphs of one pool take the first block of it that is free; a replay writes all that the graph ever took."""

    def __init__(self) -> None:
        self.pools: dict[int, list[object | None]] = {}  # who keeps each block when capturing has ended
        self.streams = 0
        self.now: Graph | None = None
        self.usual = self.current = Stream()

    @contextmanager
    def capture(self, graph: Graph, pool: int | None = None) -> Iterator[None]:
        graph.at = len(self.pools) if pool is None else pool
        self.pools.setdefault(graph.at, [])
        self.now, kept, self.current = graph, self.current, Stream()
        try:
            yield
        except RuntimeError:  # ending the capture fails too, before the stream is put back
            self.now = None
            raise
        self.now, self.current = None, kept

    def block(self, keeper: object) -> tuple[int, int]:
        """Pool and place of memory for ``keeper``."""
        assert self.now is not None
        blocks = self.pools[self.now.at]
        place = next((i for i, held in enumerate(blocks) if held is None), len(blocks))
        blocks[place : place + 1] = [keeper]
        self.now.written.append((self.now.at, place))
        return self.now.at, place

    def free(self, block: tuple[int, int]) -> None:
        self.pools[block[0]][block[1]] = None


class Graph:
    """Where it captures, and the blocks that it writes."""

    def __init__(self) -> None:
        self.at, self.written = 0, list[tuple[int, int]]()

    def pool(self) -> int:
        return self.at

    def replay(self) -> None:
        """Nothing is computed."""


class Stream:
    def wait_stream(self, other: Any) -> None:
        """Streams do nothing here."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()

    def stream(_: Any) -> Stream:
        made.streams += 1
        return Stream()

    for name, stand_in in {
        "device": lambda _: nullcontext(),
        "stream": lambda _: nullcontext(),
        "Stream": stream,
        "current_stream": lambda: made.current,
        "set_stream": lambda stream: setattr(made, "current", stream),
        "CUDAGraph": Graph,
        "graph": made.capture,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return made


def test_outputs_of_a_stage_survive_the_stages_after_it(device: Device) -> None:
    """Also where drafts of another mode are captured after verification was."""
    stages = Stages(CudaRecorder(torch.device("cuda", 0)))

    def work(name: str) -> tuple[int, int] | None:
        if device.now is None:  # warming up
            return None
        device.free(device.block("passing"))  # what the stage needs on its way
        first = device.block("passing")
        kept = device.block(name)
        device.free(first)
        return kept

    order = (("draft", "greedy"), ("verify", 8), ("commit", 8), ("draft", "sampled"), ("draft", "mixed"))
    outputs = {(name, key): stages.run(name, key, lambda name=name: work(name)) for name, key in order}
    graphs = {name: stages._made[name, key].graph for name, key in order[1:3]}  # type: ignore[attr-defined]
    for mode in ("greedy", "sampled", "mixed"):
        assert outputs["draft", mode] not in graphs["verify"].written
        assert outputs["draft", mode] not in graphs["commit"].written
    assert outputs["verify", 8] not in graphs["commit"].written
    assert len(set(outputs.values())) == len(order)
    assert len({block[0] for key, block in outputs.items() if key[0] == "draft"}) == 1  # one pool a stage
    assert device.streams == 1


def test_a_capture_that_fails_leaves_the_usual_stream(device: Device) -> None:
    stages = Stages(CudaRecorder(torch.device("cuda", 0)))

    def work() -> int:
        if device.now is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return 3

    assert stages.run("draft", 1, work) == 3
    assert stages.refused == {"draft": "operation not permitted when stream is capturing"}
    assert device.current is device.usual
