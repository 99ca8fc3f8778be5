"""Sessions of the project's own runner around random models that lie in no folder, and the cells measured in them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support_models import CHAT_TEMPLATE, tiny_tokenizer

from specbench import provenance, registry
from specbench.backends.engine import Contestant
from specbench.cell import PlannedCell, describe_cell, measure_cell
from specbench.config import BASELINE, MethodSpec, RunSpec
from specbench.engine.cost_table import CostTable
from specbench.engine.policy import PolicyContext
from specbench.judging import judge
from specbench.prompting import Limits, PromptSet, Renderer
from specbench.recording import Recorder
from specbench.records.schema import Record
from specbench.resolve import ResolvedDrafter, ResolvedModel
from specbench.session import Session
from specbench.types import Prompt
from tests.gpu.acceptance import DOMAIN, paper_rates
from tests.gpu.context import Context
from tests.gpu.models import fingerprint, random_drafter
from tests.gpu.scales import TargetShape

TASK = "gpu-check"
TEMPERATURE = 1.0  # of the paper's acceptance
_CONFIDENCE_LOGIT = 2.0


@dataclass(frozen=True, slots=True)
class Arm:
    """A contestant of the loads. ``policy`` as on the command line; ``graphs``: steps padded, captured on a GPU."""

    method: str
    draft_length: int
    policy: str = "fixed"
    graphs: bool = True

    @property
    def label(self) -> str:
        """For the table."""
        if self.method == BASELINE:
            return BASELINE
        return f"{self.method}:{self.draft_length}" + ("" if self.policy == "fixed" else f" {self.policy}")


def prompts(count: int, *, chars: int) -> tuple[Prompt, ...]:
    """``count`` different prompts, cut from the packaged starter tasks, of ``chars`` characters at most."""
    texts = [p.turns[0] for name in ("starter-math", "starter-code", "starter-chat")
             for p in registry.load("tasks", name).prompts()]  # fmt: skip
    return tuple(
        Prompt(f"{index:04d}", TASK, DOMAIN, (f"{index}: {texts[index % len(texts)]}"[:chars],))
        for index in range(count)
    )


def open_random_session(context: Context, shape: TargetShape, *, rows: int) -> Session:
    """A closed loop of ``rows`` users on a random target; two requests a user, so that a steady window is left."""
    scale, target = context.scale, context.target(shape)
    tokenizer = tiny_tokenizer()
    wanted = prompts(max(2 * rows, 3), chars=scale.load_prompt_chars)
    spec = RunSpec(
        methods=(MethodSpec(name=BASELINE),),
        target=shape.name,
        tasks=(TASK,),
        num_prompts=len(wanted),
        max_new_tokens=scale.load_new_tokens,
        ignore_eos=True,
        temperature=TEMPERATURE,
        concurrency=rows,
        warmup=1,
        device=scale.device.type,
        graphs=True,
        dtype="bfloat16" if scale.dtype.itemsize == 2 else "float32",
        prefill_chunk=8192,
        out=context.records,
    )
    prompt_set = PromptSet(wanted, Renderer(tokenizer), tasks=((TASK, "1"),))
    limits = Limits(
        max_new_tokens=spec.max_new_tokens,
        max_context=prompt_set.context_needed(spec.max_new_tokens),
        ignore_eos=True,
        stop_ids=target.stop_ids,
        sampling=spec.sampling,
        seed=spec.seed,
    )
    words = tokenizer.backend_tokenizer.to_str()
    resolved = ResolvedModel(
        name=shape.name,
        path=Path(f"random-{shape.name.lower()}"),
        source="random",
        weights_sha256=fingerprint(target.model.state_dict().items(), shape),
        tokenizer_sha256=hashlib.sha256(words.encode()).hexdigest(),
        template_sha256=hashlib.sha256(CHAT_TEMPLATE.encode()).hexdigest(),
        config={},
        notes=("random weights of the published shape, drawn by the GPU check; a byte-level tokenizer of its own",),
    )
    return Session(
        spec=spec,
        resolved=resolved,
        target=target,
        prompts=prompt_set,
        limits=limits,
        device=scale.device.type,
        dtype=spec.dtype,
        threads=provenance.default_threads(busy=False),
        notes=resolved.notes,
        rss_before_bytes=0,
        graphs=True,
    )


def run_arm(
    context: Context, shape: TargetShape, arm: Arm, session: Session, *, cost: CostTable | None, machine: dict[str, Any]
) -> Record:
    """Measure one contestant with the paper's acceptance, write its record, return it."""
    drafting = arm.method != BASELINE
    rates = paper_rates(arm.method, draft_length=arm.draft_length).conditional if drafting else None
    methods = (MethodSpec(name=arm.method, draft_length=arm.draft_length if drafting else None),)
    session = replace(
        session,
        spec=session.spec.model_copy(
            update={"methods": methods, "policy": arm.policy, "synthetic_rates": rates, "graphs": arm.graphs}
        ),
        graphs=arm.graphs,
    )
    contestant, found = _contestant(context, shape, arm, session, cost=cost, rates=rates)
    hashes = {} if cost is None or arm.policy == "fixed" else {"cost_table": cost.sha256()}
    spec = describe_cell(session, contestant, checkpoint=found, hashes=hashes)
    layers: int | None = getattr(contestant.drafter, "num_layers", None)
    cell = PlannedCell(methods[0], found, spec, contestant, layers=layers)
    started_s = time.time()
    measured = measure_cell(session, cell, stop=lambda: False)
    judged = judge(measured, control=None, target=session.target, synthetic=drafting)
    recorder = Recorder(session, ("make", "gpu-check"), machine)
    record, data = recorder.finished(cell, measured, judged, started_s=started_s, baseline=None)
    recorder.write(record, data)
    return record


def _contestant(
    context: Context,
    shape: TargetShape,
    arm: Arm,
    session: Session,
    *,
    cost: CostTable | None,
    rates: Sequence[float] | None,
) -> tuple[Contestant, ResolvedDrafter | None]:
    """The drafter and its policy; confidences, where there are any, say exactly the forced rates.

    Every confidence has the same logit and a temperature of its own position brings it to the position's rate: a
    drafter whose calibration is perfect and that cannot tell one row from another.
    """
    drafter = random_drafter(
        arm.method,
        k=max(arm.draft_length, 1),
        shape=shape,
        scale=context.scale,
        target=session.view,
        confidence_logit=_CONFIDENCE_LOGIT if arm.method == "dspark" else None,
    )
    name, _, argument = arm.policy.partition(":")
    told = PolicyContext(
        max_rows=session.view.max_rows,
        device=context.device,
        method=arm.method,
        cost=cost,
        temperatures=confidence_temperatures(rates) if arm.method == "dspark" and rates else (),
        stop_ids=session.view.stop_ids,
    )
    length = arm.draft_length if arm.method != BASELINE else 0
    policy = registry.load("policies", name)(length, argument or None, context=told)
    if arm.method == BASELINE:
        return Contestant(arm.method, drafter, policy), None
    model: Any = drafter.model  # type: ignore[attr-defined]
    sha256 = fingerprint(model.state_dict().items(), arm.method, arm.draft_length)
    found = ResolvedDrafter(f"random-{arm.method}", Path(f"random-{arm.method}"), "random", sha256)
    return Contestant(arm.method, drafter, policy), found


def confidence_temperatures(rates: Sequence[float]) -> tuple[float, ...]:
    """What divides the one logit of all confidences so that position k says ``rates[k]``.

    Errors: AssertionError for a rate of one half or less, or of one, which no positive temperature gives.
    """
    import math

    assert all(0.5 < rate < 1 for rate in rates), rates
    return tuple(_CONFIDENCE_LOGIT / math.log(rate / (1 - rate)) for rate in rates)
