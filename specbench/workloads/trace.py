"""Replay: requests arrive at the times of a file."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PrivateAttr

from specbench.errors import ConfigError, unknown_name
from specbench.types import Prompt
from specbench.workloads._options import LoadOptions
from specbench.workloads._timed import TimedArrivals
from specbench.workloads._trace_file import TraceFile, TraceLine, read_trace_file


class TraceOptions(LoadOptions):
    """``file``: the trace. ``speed``: 2 replays it in half the time. ``limit``: its first lines only.

    The file is read when the options are made, so that a bad one is refused before anything is loaded.
    """

    file: Path
    speed: Annotated[float, Field(gt=0)] = 1.0
    limit: Annotated[int, Field(ge=1)] | None = None
    _trace: TraceFile = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the file. Errors: ConfigError naming file and line."""
        self._trace = read_trace_file(self.file)

    @property
    def lines(self) -> tuple[TraceLine, ...]:
        """The requests to replay."""
        return self._trace.lines[: self.limit]

    def described(self) -> dict[str, Any]:
        """The file by its content, not by its name."""
        kept = self.model_dump(mode="json", exclude_defaults=True, exclude={"file"})
        return {**kept, "sha256": self._trace.sha256}

    def arrange(self, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
        """One conversation a line: the prompt that it names, else the next one (of its task where it names that).

        A prompt that comes again is a conversation of its own and gets ``#2``, ``#3``, ... behind its id. Errors:
        ConfigError or UnknownNameError naming file and line where a task or prompt is not among the run's.
        """
        pick = _Picker(self._trace.path, prompts)
        found = tuple(pick(line) for line in self.lines)
        if pick.repeats:
            seen = f"{len(found)} requests and the run's tasks {len(prompts)} prompts: {pick.repeats} requests"
            warnings.warn(f"the trace file has {seen} repeat a prompt, marked #2, #3, ...", stacklevel=2)
        if self._trace.ignored:
            warnings.warn(f"the replay ignores in the trace file: {', '.join(self._trace.ignored)}", stacklevel=2)
        return found


class _Picker:
    """Chooses the prompt of each line; ``repeats`` counts those that were sent before."""

    def __init__(self, path: Path, prompts: Sequence[Prompt]) -> None:
        self._path = path
        self._prompts = prompts
        self._turns: dict[str | None, Iterator[Prompt]] = {None: cycle(prompts)}
        for task in dict.fromkeys(prompt.task for prompt in prompts):
            self._turns[task] = cycle([prompt for prompt in prompts if prompt.task == task])
        self._sent: Counter[tuple[str, str]] = Counter()
        self.repeats = 0

    def __call__(self, line: TraceLine) -> Prompt:
        prompt = self._chosen(line)
        key = (prompt.task, prompt.id)
        self._sent[key] += 1
        if self._sent[key] == 1:
            return prompt
        self.repeats += 1
        return replace(prompt, id=f"{prompt.id}#{self._sent[key]}")

    def _chosen(self, line: TraceLine) -> Prompt:
        where = f"trace file {self._path}, line {line.number}"
        if line.task is not None and line.task not in self._turns:
            error = unknown_name("task", line.task, [task for task in self._turns if task is not None])
            raise type(error)(f"{where}: {error}")
        if line.prompt is None:
            return next(self._turns[line.task])
        known = [p for p in self._prompts if line.task in (None, p.task)]
        found = [p for p in known if p.id == line.prompt]
        if not found:
            error = unknown_name("prompt", line.prompt, [p.id for p in known])
            raise type(error)(f"{where}: {error} Only the prompts taken by --num-prompts count")
        if len(found) > 1:
            raise ConfigError(f"{where}: the prompt '{line.prompt}' is in {len(found)} tasks; name its task as well")
        return found[0]


class Trace(TimedArrivals):
    """Times count from the first line, and are divided by the speed."""

    Options: ClassVar[type[TraceOptions]] = TraceOptions

    def __init__(self, *, concurrency: int, options: TraceOptions, seed: int) -> None:
        first_s = options.lines[0].time_s
        super().__init__(iter([(line.time_s - first_s) / options.speed for line in options.lines]))


PLUGIN = Trace
