"""Whatever a run measures as a server of texts, the engine or a real server: each call is a measured cell.

Speed and accuracy are therefore of the same answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.cell import Measurement, PlannedCell, measure_cell, plan_cell
from specbench.config import MethodSpec, RunSpec
from specbench.errors import ConfigError, TargetError
from specbench.quality.likelihood import score
from specbench.quality.texts import PlainRenderer, TextRequest, cut_at_stops, encode_plain
from specbench.session import Conversations, Session, Step, TargetShelf, choose_device, choose_dtype, open_session
from specbench.types import Prompt, Sampling, Status
from specbench.workloads.driver import DriveProgress

Settings = tuple[int, Sampling]
"""What the requests of a cell share: new tokens at most, and how tokens are drawn."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The requests of one cell as they were measured."""

    settings: Settings
    tasks: tuple[str, ...]
    session: Session
    cell: PlannedCell
    measured: Measurement
    started_s: float


@dataclass(slots=True)
class MeasuredTexts:
    """One method on the run's target, by the run's backend.

    ``answered`` keeps what was measured, one entry for each setting of a call; ``versions`` are those of the tasks, as
    records name them. Text behind a stop string is cut off afterwards: generation goes on to a stop token or the limit.
    """

    spec: RunSpec
    method: MethodSpec
    shelf: TargetShelf
    step: Step
    stop: Callable[[], bool] = lambda: False
    on_progress: Callable[[DriveProgress], None] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    answered: list[Answered] = field(default_factory=list)

    @property
    def tokenizer(self) -> Any:
        """The target's."""
        return self.shelf.find(self.spec, step=self.step)[1]

    def generate(self, requests: Sequence[TextRequest]) -> list[str]:
        """See `TextServer`. Errors: SpecbenchError; KeyboardInterrupt where `stop` cut the answers short."""
        found: dict[tuple[str, str], str] = {}
        for settings in dict.fromkeys((one.max_new_tokens, one.sampling) for one in requests):
            group = [one for one in requests if (one.max_new_tokens, one.sampling) == settings]
            found |= self._cell(settings, group)
        return [cut_at_stops(found[one.task, one.id], one.stops) for one in requests]

    def _cell(self, settings: Settings, group: Sequence[TextRequest]) -> dict[tuple[str, str], str]:
        new_tokens, sampling = settings
        tasks = tuple(dict.fromkeys(one.task for one in group))
        drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        spec = self.spec.model_copy(
            update={"tasks": tasks, "num_prompts": None, "max_new_tokens": new_tokens, "mix": {}, **drawn}
        )
        talks = Conversations(
            prompts=tuple(Prompt(one.id, one.task, one.task, (one.prompt,)) for one in group),
            tasks=tuple((name, self.versions.get(name, "unversioned")) for name in tasks),
            renderer=PlainRenderer,
        )
        started_s = time.time()
        session = open_session(spec, step=self.step, shelf=self.shelf, conversations=talks)
        cell = plan_cell(session, self.method, step=self.step)
        measured = measure_cell(session, cell, stop=self.stop, on_progress=self.on_progress)
        self.answered.append(Answered(settings, tasks, session, cell, measured, started_s))
        texts: dict[tuple[str, str], str] = {}
        for request in measured.trace.requests:
            if not request.warmup and request.status == Status.OK:
                item = request.id.removeprefix(f"{request.task}/").removesuffix("/0")
                texts[request.task, item] = session.prompts.renderer.text_of(request.output_ids)
        if measured.trace.status == Status.INTERRUPTED:
            raise KeyboardInterrupt
        if len(texts) < len(group):
            errors = [request.error for request in measured.trace.requests if request.error]
            why = errors[0] if errors else "they did not fit the context"
            missing = len(group) - len(texts)
            raise TargetError(f"{missing} of {len(group)} answers are missing ({why}); a score needs all of them")
        return texts

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """See `TextServer`: by the target's forward, the same for every method."""
        if self.spec.backend != "engine":
            raise ConfigError("likelihoods are computed by the engine, not by a server; leave out the server")
        resolved, tokenizer = self.shelf.find(self.spec, step=self.step)
        device = choose_device(self.spec.device)
        dtype = choose_dtype(self.spec.dtype, device=device)
        target = self.shelf.load(self.spec, resolved, dtype=dtype, device=device, step=self.step)
        return [score(target, *split(tokenizer, context, continuation)) for context, continuation in pairs]


def split(tokenizer: Any, context: str, continuation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids of both, as the whole text is tokenised; spaces between them belong to the continuation."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    before = encode_plain(tokenizer, context)
    if not context:
        return before, tuple(tokenizer(continuation, add_special_tokens=False).input_ids)
    whole = encode_plain(tokenizer, context + continuation)
    return whole[: len(before)], whole[len(before) :]
