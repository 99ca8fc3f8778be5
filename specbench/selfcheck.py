"""Does a checkpoint mean what its loader thinks? Readings that differ only in accepted length are tried side by side.

A wrong layer index, slot shift, norm or embedding never shows in the text, which the target alone decides; it only
makes drafts worse. So the same greedy tokens are decoded with the chosen reading and with each neighbouring one.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specbench import registry
from specbench.engine.engine import Engine
from specbench.engine.target import Target
from specbench.errors import SpecbenchError, TargetError
from specbench.prompting import Renderer
from specbench.types import Prompt, Request, RunTrace, Sampling, TargetView

PROMPTS = (
    "Write a short Python function that returns the n-th Fibonacci number, with one comment per line.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Explain step by step.",
    "Tell me about the seasons of the year: what changes in nature from spring to winter?",
    "List five kinds of fruit, and for each its colour and what it tastes like.",
)
NEW_TOKENS = 50  # of each prompt: about 200 in all
HINT_SHARE, CLEAR_SHARE, CLEAR_ERRORS = 0.03, 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One reading of the checkpoint. ``tau`` is None where it could not run; ``problem`` then says why."""

    reading: str
    overrides: dict[str, Any]
    tau: float | None = None
    rounds: int = 0
    standard_error: float = 0.0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The chosen reading first, then the alternatives; ``warnings`` name those that accept clearly more.

    ``undecided`` are the readings that accept more, but not beyond what so few tokens leave open.
    """

    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...]
    undecided: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def alternatives(spec: Any, *, num_layers: int) -> dict[str, dict[str, Any]]:
    """Neighbouring readings of a DrafterSpec, by label: layer ids one up and down, slots, norms, tables."""
    found: dict[str, dict[str, Any]] = {}
    for step in (1, -1):
        moved = tuple(tap + step for tap in spec.taps)
        if spec.taps and min(moved) >= 0 and max(moved) <= num_layers:
            found[f"layer ids {step:+d}"] = {"taps": moved}
    if spec.block_inputs > 1:
        found["slots shifted" if spec.slot_shift == 0 else "slots not shifted"] = {"slot_shift": 1 - spec.slot_shift}
    other = {"pre_norm": "post_norm", "post_norm": "pre_norm"}
    if spec.kind in ("eagle3", "mtp"):
        found[f"recycle {other[spec.recycle]}"] = {"recycle": other[spec.recycle]}
    if spec.kind == "eagle3":
        word = "plain" if spec.residual_normed else "normed"
        found[f"residual {word}"] = {"residual_normed": not spec.residual_normed}
    if spec.kind == "mtp":
        found.update(_mtp_alternatives(spec, num_layers))
    for name in ("embed_from", "head_from"):
        if getattr(spec, name) == "checkpoint" and spec.backbone.hidden_size == spec.target_hidden_size:
            found[f"{name.partition('_')[0]} from target"] = {name: "target"}
    return found


def _mtp_alternatives(spec: Any, num_layers: int) -> dict[str, dict[str, Any]]:
    turned = ",".join(reversed(spec.concat_order.split(",")))
    fed = {"taps": (), "tap_final_norm": True}
    label = "fed the normed state"
    if spec.tap_final_norm:
        fed, label = {"taps": (num_layers,), "tap_final_norm": False}, "fed the state before the final norm"
    return {label: fed, f"concatenation {turned}": {"concat_order": turned}}


def check(
    path: Path,
    *,
    target: Target,
    tokenizer: Any,
    overrides: Mapping[str, Any] | None = None,
    new_tokens: int = NEW_TOKENS,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> SelfCheck:
    """Decode a fixed prompt set greedily with the chosen reading of the folder and with each alternative.

    ``new_tokens`` of each prompt; ``on_outcome`` sees every result as it comes. Errors: CheckpointError or DrafterError
    when the chosen reading itself cannot run; an alternative that cannot run is listed with its problem.
    """
    loader = registry.load("formats", "load")
    loaded = loader.load(path, target_config=target.config, overrides=dict(overrides or {}))
    prompts = encode(tokenizer)
    longest = max(len(ids) for ids in prompts) + new_tokens
    view = target.view(max_rows=len(prompts), max_context=min(longest, target.context_limit), tokenizer=tokenizer)
    readings = {"chosen": {}, **alternatives(loaded.spec, num_layers=view.num_layers)}
    outcomes = []
    for label, change in readings.items():
        outcome = Outcome(label, dict(change))
        try:
            trace = _decode(
                loader.reinterpret(loaded, change), target=target, view=view, prompts=prompts, limit=new_tokens
            )
            outcome = _measured(outcome, trace)
        except SpecbenchError as error:
            if label == "chosen":
                raise
            outcome = replace(outcome, problem=str(error))
        outcomes.append(outcome)
        on_outcome(outcome)
    clear, undecided = compared(outcomes)
    return SelfCheck(tuple(outcomes), clear, undecided)


def encode(tokenizer: Any) -> list[tuple[int, ...]]:
    """The fixed prompts as the target's template renders them, thinking off where the template has the switch."""
    from specbench.errors import ConfigError

    try:
        renderer = Renderer(tokenizer, thinking="off")
    except ConfigError:
        renderer = Renderer(tokenizer)
    prompts = [Prompt(id=str(i), task="selfcheck", domain="selfcheck", turns=(text,)) for i, text in enumerate(PROMPTS)]
    found = [renderer.encode(prompt, ()) for prompt in prompts]
    if not all(found):
        raise TargetError("the target's tokenizer turns the self-check's prompts into nothing; check its files")
    return found


def _decode(
    loaded: Any, *, target: Target, view: TargetView, prompts: Sequence[tuple[int, ...]], limit: int
) -> RunTrace:
    method = str(loaded.spec.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about lengths that this check does not reach
        drafter = registry.load("drafters", method).build(loaded, target=view, options={})
        policy = registry.load("policies", "fixed")(drafter.trained_length)
        engine = Engine(target, drafter, policy, max_rows=view.max_rows, max_context=view.max_context, method=method)
        for number, ids in enumerate(prompts):
            engine.submit(
                Request(
                    id=str(number),
                    number=number,
                    prompt_ids=ids,
                    max_new_tokens=limit,
                    sampling=Sampling(),
                    seed=0,
                    stop_ids=frozenset(),
                    ignore_eos=True,
                    task="selfcheck",
                    domain="selfcheck",
                )
            )
        while engine.has_work:
            engine.poll()
    return engine.close()


def _measured(outcome: Outcome, trace: RunTrace) -> Outcome:
    """Accepted length from uncut rounds: drafts accepted and the target's token, whatever the limit cut off."""
    lengths = [entry.accepted + 1 for entry in trace.rounds if entry.verified > 0]
    if not lengths:
        return replace(outcome, problem="nothing was drafted")
    deviation = statistics.stdev(lengths) if len(lengths) > 1 else 0.0
    error = deviation / math.sqrt(len(lengths))
    return replace(outcome, tau=statistics.fmean(lengths), rounds=len(lengths), standard_error=error)


def compared(outcomes: Sequence[Outcome]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(warnings, undecided) about the alternatives to the first outcome, the chosen reading.

    A warning needs 5 % and two standard errors; readings that are 3 % better within the noise are undecided.
    """
    chosen = outcomes[0]
    clear: list[str] = []
    undecided: list[str] = []
    for other in outcomes[1:]:
        if chosen.tau is None or other.tau is None or other.tau <= chosen.tau * (1 + HINT_SHARE):
            continue
        noise = CLEAR_ERRORS * math.hypot(chosen.standard_error, other.standard_error)
        told = " ".join(f"--set {name}={_plain(value)}" for name, value in other.overrides.items())
        figures = f"tau {other.tau:.2f} against {chosen.tau:.2f} over {other.rounds} and {chosen.rounds} rounds"
        if other.tau > chosen.tau * (1 + CLEAR_SHARE) and other.tau > chosen.tau + noise:
            clear.append(f"'{other.reading}' accepts clearly more than the chosen reading: {figures}; try {told}")
        else:
            undecided.append(f"'{other.reading}' may accept more: {figures}, within the noise; repeat with more tokens")
    return tuple(clear), tuple(undecided)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
