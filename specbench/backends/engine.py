"""The engine as a backend: a drafter by name, a policy by name, and the one decode loop around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import registry
from specbench.api import Clock, Drafter, VerifyPolicy
from specbench.config import BASELINE
from specbench.engine.cost_table import CostTable
from specbench.engine.engine import Engine
from specbench.engine.graphs import settings_for
from specbench.engine.policy import PolicyContext
from specbench.engine.target import Target
from specbench.errors import DrafterError, unknown_name
from specbench.types import TargetView


@dataclass(frozen=True, slots=True)
class Contestant:
    """A drafter and the policy that rules it, both bound to one target."""

    method: str
    drafter: Drafter
    policy: VerifyPolicy

    @property
    def draft_length(self) -> int:
        """Drafts a cycle at most."""
        return self.policy.draft_length


def check_options(method: str, options: Mapping[str, Any]) -> None:
    """Errors: UnknownNameError for a method or an option that does not exist, with the nearest name."""
    known = registry.load("drafters", method).options
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {method}", name, known)


def build_contestant(
    method: str,
    *,
    target: TargetView,
    checkpoint: Path | None,
    options: Mapping[str, Any],
    policy: tuple[str, str | None],
    draft_length: int | None,
    cost: CostTable | None = None,
    temperatures: tuple[float, ...] = (),
) -> Contestant:
    """Load a drafter and its policy; ``draft_length`` None is the length that the drafter was made for.

    The baseline is always planned at length 0. ``cost`` and ``temperatures`` (of the confidences) are for policies that
    plan by them. Errors: UnknownNameError; DrafterError (with --drafter named where a checkpoint is missing);
    ConfigError for a bad option or policy argument.
    """
    check_options(method, options)
    drafter: Drafter = _load(method, target=target, checkpoint=checkpoint, options=options)
    if method == BASELINE:
        policy, draft_length = ("fixed", None), 0
    length = drafter.trained_length if draft_length is None else draft_length
    name, argument = policy
    context = PolicyContext(
        max_rows=target.max_rows,
        device=target.device,
        method=method,
        cost=cost,
        temperatures=temperatures,
        stop_ids=target.stop_ids,
    )
    return Contestant(method, drafter, registry.load("policies", name)(length, argument, context=context))


def _load(method: str, *, target: TargetView, checkpoint: Path | None, options: Mapping[str, Any]) -> Drafter:
    try:
        drafter: Drafter = registry.load("drafters", method).load(checkpoint, target=target, options=options)
    except DrafterError as error:
        if checkpoint is None and "--drafter" in str(error):
            raise DrafterError(
                f"method '{method}' needs a checkpoint, and none is packaged for the target '{target.name}';"
                f" give one with --drafter {method}=PATH"
            ) from error
        raise
    return drafter


def build_engine(
    target: Target,
    contestant: Contestant,
    *,
    max_rows: int,
    max_context: int,
    kv_memory_bytes: int | None,
    prefill_budget: int,
    clock: Clock,
    synthetic: tuple[float, ...] | None = None,
    graphs: bool = False,
) -> Engine:
    """The decode loop for one contestant; ``synthetic`` rates force what is accepted.

    With ``graphs`` steps are padded, and captured on a CUDA device; the drafter then has one slot more than rows.

    Errors: CapacityError when the memory budget is too small.
    """
    return Engine(
        target,
        contestant.drafter,
        contestant.policy,
        max_rows=max_rows,
        max_context=max_context,
        kv_memory_bytes=kv_memory_bytes,
        prefill_budget=prefill_budget,
        clock=clock,
        method=contestant.method,
        synthetic=synthetic,
        graphs=settings_for(target.lm.device) if graphs else None,
    )


PLUGIN = build_engine
