"""Hand-made and simulated traces for tests. Every one satisfies the identities unless a test breaks it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from specbench.types import RequestTrace, RoundTrace, RunTrace, Sampling, Status, StepTrace, StopReason

STOP_ID = 0
PHASES = (0.010, 0.001, 0.030, 0.002, 0.007)  # draft, schedule, verify, accept, other: 50 ms a step


@dataclass(frozen=True)
class Round:
    """What a test says of one round. ``committed`` None means accepted + 1; ``stop`` ends the request."""

    accepted: int
    verified: int = 3
    drafted: int | None = None
    committed: int | None = None
    stop: str | None = None
    confidence: tuple[float, ...] | None = None
    gaps: tuple[float, ...] | None = None
    log_p_target: tuple[float, ...] | None = None
    log_p_draft: tuple[float, ...] | None = None
    policy_state: str = ""


def make_request(
    rounds: Sequence[Round],
    *,
    id: str = "a",
    number: int = 0,
    task: str = "toy",
    domain: str = "math",
    prompt_tokens: int = 5,
    prompt_hash: str | None = None,
    arrival_s: float = 0.0,
    admitted_s: float | None = None,
    first_s: float | None = None,
    round_s: float = 0.05,
    times: Sequence[float] | None = None,
    first_token: int = 1,
    first_gap: float | None = None,
    max_new_tokens: int | None = None,
    tokens: Sequence[int] | None = None,
    status: str = Status.OK,
    warmup: bool = False,
    seed: int = 0,
    first_step: int = 1,
    steps: Sequence[int] | None = None,
) -> tuple[RequestTrace, list[RoundTrace]]:
    """A request and its rounds. ``tokens`` is the output text (default: 10, 11, ...; STOP_ID last after a stop).

    Without ``times`` the prefill's token comes at ``first_s`` (default: admission + 0.05) and then a round every
    ``round_s``. Rounds are in steps first_step, first_step + 1, ... unless ``steps`` says otherwise.
    """
    sizes = [r.accepted + 1 if r.committed is None else r.committed for r in rounds]
    total = first_token + sum(sizes)
    output = list(tokens) if tokens is not None else [10 + i for i in range(total)]
    stop = rounds[-1].stop if rounds else None
    if tokens is None and stop == StopReason.STOP_TOKEN:
        output[-1] = STOP_ID
    assert len(output) == total
    admitted = arrival_s if admitted_s is None else admitted_s
    start = admitted + 0.05 if first_s is None else first_s
    emissions = first_token + len(rounds)
    clock = tuple(times) if times is not None else tuple(start + i * round_s for i in range(emissions))
    numbers = list(steps) if steps is not None else [first_step + i for i in range(len(rounds))]
    traces, at = [], first_token
    for index, (entry, size) in enumerate(zip(rounds, sizes)):
        traces.append(_round(entry, id, index, numbers[index], prompt_tokens + at - 1, tuple(output[at : at + size])))
        at += size
    request = RequestTrace(
        id=id,
        number=number,
        task=task,
        domain=domain,
        prompt_tokens=prompt_tokens,
        prompt_hash=f"hash-{id}" if prompt_hash is None else prompt_hash,
        max_new_tokens=total if max_new_tokens is None else max_new_tokens,
        seed=seed,
        status=status,
        error=None if status == Status.OK else "it broke",
        warmup=warmup,
        arrival_s=arrival_s,
        admitted_s=admitted,
        first_token_s=clock[0] if clock else None,
        finish_s=clock[-1] if clock else admitted,
        token_times_s=clock,
        first_token=first_token,
        first_token_gap=first_gap,
        output_ids=tuple(output),
        stop_reason=stop,
        stop_ids=(STOP_ID,),
    )
    return request, traces


def _round(entry: Round, request: str, index: int, step: int, anchor: int, committed: tuple[int, ...]) -> RoundTrace:
    drafted = entry.verified if entry.drafted is None else entry.drafted
    whole = len(committed) == entry.accepted + 1
    drafts = [*committed[: entry.accepted], *(1000 + i for i in range(drafted))][:drafted]
    return RoundTrace(
        request=request,
        round=index,
        step=step,
        anchor_position=anchor,
        drafted=drafted,
        planned=max(entry.verified, min(drafted, entry.verified)),
        verified=entry.verified,
        accepted=entry.accepted,
        committed=len(committed),
        discarded=0 if whole else entry.accepted - len(committed),
        stop_reason=entry.stop,
        draft_ids=tuple(drafts),
        committed_ids=committed,
        confidence=entry.confidence,
        top2_gap=entry.gaps,
        log_p_target=entry.log_p_target,
        log_p_draft=entry.log_p_draft,
        policy_state=entry.policy_state,
    )


def make_trace(
    requests: Sequence[tuple[RequestTrace, list[RoundTrace]]],
    *,
    draft_length: int = 3,
    method: str = "toy",
    temperature: float = 0.0,
    concurrency: int = 1,
    phases: Sequence[float] = PHASES,
    prefill_steps: Sequence[int] = (0,),
    mixed_steps: Sequence[int] = (),
    step_s: float = 0.05,
    wall_s: float = 10.0,
    status: str = Status.OK,
) -> RunTrace:
    """A run over the requests. Steps follow from the rounds; ``mixed_steps`` also carry prompt tokens."""
    rounds = [entry for _, entries in requests for entry in entries]
    by_step: dict[int, list[RoundTrace]] = {number: [] for number in prefill_steps}
    for entry in rounds:
        by_step.setdefault(entry.step, []).append(entry)
    steps = []
    for number, inside in sorted(by_step.items()):
        prompt = number in prefill_steps or number in mixed_steps
        steps.append(
            StepTrace(
                step=number,
                start_s=number * step_s,
                draft_s=phases[0],
                schedule_s=phases[1],
                verify_s=phases[2],
                accept_s=phases[3],
                other_s=phases[4],
                decode_rows=len(inside),
                decode_tokens=sum(entry.verified + 1 for entry in inside),
                prefill_rows=int(prompt),
                prefill_tokens=5 if prompt else 0,
            )
        )
    return RunTrace(
        requests=tuple(request for request, _ in requests),
        rounds=tuple(rounds),
        steps=tuple(steps),
        method=method,
        draft_length=draft_length,
        sampling=Sampling(temperature=temperature),
        concurrency=concurrency,
        wall_s=wall_s,
        status=status,
    )


def example_trace() -> RunTrace:
    """The worked example of the metrics: accepted 3, 1, 0, 3; the second draft of round 4 is the stop token."""
    rounds = [Round(3), Round(1), Round(0), Round(3, committed=2, stop=StopReason.STOP_TOKEN)]
    return make_trace([make_request(rounds)])


def simulate_trace(
    accept: float,
    *,
    gamma: int,
    rounds: int,
    requests: int = 10,
    seed: int = 0,
    domains: Sequence[str] = ("math", "code"),
) -> RunTrace:
    """Rounds whose drafts are accepted by independent coin flips of probability ``accept``; one row a step."""
    generator = random.Random(seed)
    made, step = [], 1
    for number in range(requests):
        flips = []
        for _ in range(rounds // requests):
            accepted = next((k for k in range(gamma) if generator.random() >= accept), gamma)
            flips.append(Round(accepted, verified=gamma))
        domain = domains[number % len(domains)]
        made.append(
            make_request(flips, id=f"r{number}", number=number, task=f"{domain}-task", domain=domain, first_step=step)
        )
        step += len(flips)
    return make_trace(made, draft_length=gamma)


def plain_trace(trace: RunTrace, *, phases: Sequence[float] = (0.0, 0.0, 0.03, 0.001, 0.004)) -> RunTrace:
    """Plain decoding of the same texts: one token a round, one row a step."""
    made, step = [], 1
    for request in trace.requests:
        count = len(request.output_ids) - request.first_token
        entries = [Round(0, verified=0) for _ in range(count)]
        if entries:
            entries[-1] = replace(entries[-1], stop=request.stop_reason)
        made.append(
            make_request(
                entries,
                id=request.id,
                number=request.number,
                task=request.task,
                domain=request.domain,
                prompt_hash=request.prompt_hash,
                tokens=request.output_ids,
                max_new_tokens=request.max_new_tokens,
                first_step=step,
                seed=request.seed,
                first_token=request.first_token,
            )
        )
        step += count
    return make_trace(made, draft_length=0, method="vanilla", phases=phases)


# ------------------------------------------------------------------------------------------------ hypothesis


@st.composite
def round_specs(draw: st.DrawFn, *, gamma: int, last: bool, sampled: bool) -> Round:
    """A valid round of at most ``gamma`` drafts; the last may be cut by a stop or the limit."""
    drafted = draw(st.integers(0, gamma))
    verified = draw(st.integers(0, drafted))
    accepted = draw(st.integers(0, verified))
    committed, stop = accepted + 1, None
    if last:
        stop = draw(st.sampled_from([StopReason.STOP_TOKEN, StopReason.LENGTH]))
        committed = draw(st.integers(1, accepted + 1))
    share = st.floats(0, 1, allow_nan=False)
    logs = st.floats(-50, 0, allow_nan=False)

    def column(values: st.SearchStrategy[float], size: int) -> tuple[float, ...]:
        return tuple(draw(st.lists(values, min_size=size, max_size=size)))

    return Round(
        accepted,
        verified=verified,
        drafted=drafted,
        committed=committed,
        stop=stop,
        confidence=column(share, drafted) if draw(st.booleans()) else None,
        gaps=None if sampled else column(st.floats(0, 20), committed),
        log_p_target=column(logs, verified) if sampled else None,
        log_p_draft=column(logs, verified) if sampled and draw(st.booleans()) else None,
        policy_state=draw(st.text(max_size=5)),
    )


@st.composite
def traces(draw: st.DrawFn, *, min_requests: int = 0, min_rounds: int = 0) -> RunTrace:
    """Valid traces of a few requests that share steps, some of them warm-up or failed."""
    gamma = draw(st.integers(0, 4))
    sampled = draw(st.booleans())
    made = []
    for number in range(draw(st.integers(min_requests, 4))):
        count = draw(st.integers(min_rounds, 5))
        specs = [draw(round_specs(gamma=gamma, last=i == count - 1, sampled=sampled)) for i in range(count)]
        arrival = draw(st.floats(0, 5))
        made.append(
            make_request(
                specs,
                id=f"{draw(st.text(max_size=4))}#{number}",
                number=number,
                domain=draw(st.sampled_from(["math", "code"])),
                prompt_tokens=draw(st.integers(1, 30)),
                arrival_s=arrival,
                admitted_s=arrival + draw(st.floats(0, 2)),
                status=draw(st.sampled_from([Status.OK, Status.OK, Status.FAILED])),
                warmup=draw(st.booleans()) and number == 0,
                first_step=draw(st.integers(1, 3)),
                first_gap=None if sampled else draw(st.none() | st.floats(0, 5)),
                max_new_tokens=draw(st.integers(40, 80)),
            )
        )
    return make_trace(
        made, draft_length=gamma, temperature=1.0 if sampled else 0.0, concurrency=draw(st.integers(1, 4))
    )
