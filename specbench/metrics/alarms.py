"""Signs that a number is right and still misleading: prompts all alike, looping text, drift, cliffs, idle drafters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.metrics._bootstrap import cluster_sums, interval
from specbench.metrics._group import MetricGroup
from specbench.metrics._measured import Flags, Floats, Ints, Measured, measured
from specbench.metrics.positions import conditional
from specbench.metrics.throughput import invalid_reason
from specbench.types import Estimate, RunTrace

MIN_UNIQUE_PROMPTS = 0.5  # share of distinct prompts
MIN_DISTINCT_GRAMS = 0.5  # share of distinct n-grams in one text
MIN_TOKENS = 64  # shorter texts are not judged for repetition
GRAM = 8
MAX_LOOPING_SHARE = 0.2
MIN_ROUNDS = 30  # in every group that an alarm compares
DEPTH_DROP = 0.75  # deep over shallow accepted length that counts as drift
CLIFF = 0.5  # conditional acceptance over that of the position before
MAX_ZERO_DRAFT_SHARE = 0.5
DEPTH_EDGES = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something a reader must know before believing a number."""

    name: str
    message: str


# ------------------------------------------------------------------------------------------------ low diversity


def distinct_share(token_ids: Sequence[int], *, gram: int = GRAM) -> float | None:
    """Distinct n-grams over all n-grams of a text; None for texts too short to judge."""
    if len(token_ids) < MIN_TOKENS:
        return None
    grams = [tuple(token_ids[i : i + gram]) for i in range(len(token_ids) - gram + 1)]
    return len(set(grams)) / len(grams)


def unique_prompt_share(rounds: Measured) -> float | None:
    """Distinct prompts over measured requests; None without any."""
    distinct = {request.prompt_hash or request.id for request in rounds.requests}
    return len(distinct) / len(rounds.requests) if rounds.requests else None


def _looping(texts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """(texts that mostly repeat themselves, texts long enough to judge)."""
    shares = [share for share in map(distinct_share, texts) if share is not None]
    return sum(share < MIN_DISTINCT_GRAMS for share in shares), len(shares)


def prompt_alarms(prompts: Mapping[str, Sequence[int]]) -> list[Alarm]:
    """Low diversity seen in the prompts' own token ids: all alike, or one sentence over and over inside a prompt."""
    alarms = []
    distinct = len({tuple(ids) for ids in prompts.values()})
    if len(prompts) > 1 and distinct / len(prompts) < MIN_UNIQUE_PROMPTS:
        alarms.append(_few_prompts(distinct, len(prompts)))
    looping = [name for name, ids in prompts.items() if (distinct_share(ids) or 1.0) < MIN_DISTINCT_GRAMS]
    if looping:
        alarms.append(
            Alarm(
                "low-diversity-prompts",
                f"{len(looping)} of {len(prompts)} prompts repeat one passage over and over, first {looping[0]!r}: "
                "drafters look better on them than on real text",
            )
        )
    return alarms


def _few_prompts(distinct: int, total: int) -> Alarm:
    return Alarm(
        "low-diversity-prompts",
        f"only {distinct} distinct prompts among {total}: accepted length and its interval describe those alone",
    )


# ------------------------------------------------------------------------------------------------ context depth


def depths(rounds: Measured) -> Ints:
    """[N], output tokens before each round's anchor: how deep into its text a request was."""
    return np.array(
        [entry.anchor_position - rounds.requests[i].prompt_tokens for entry, i in zip(rounds.rounds, rounds.request)],
        dtype=np.int64,
    )


def _full_rounds(rounds: Measured) -> Flags:
    """[N], rounds that drafted as many tokens as any: near the length limit drafts shrink, which is no drift."""
    most = int(rounds.drafted.max())
    return np.asarray((rounds.drafted == most) & (rounds.verified >= 1), dtype=bool)


def depth_bins(rounds: Measured) -> list[tuple[str, Flags]]:
    """Full rounds by depth, bins doubling in width; empty bins are left out."""
    if not rounds.rounds:
        return []
    full, depth = _full_rounds(rounds), depths(rounds)
    found = []
    for low, high in zip(DEPTH_EDGES, (*DEPTH_EDGES[1:], None)):
        inside = full & (depth >= low) & (depth < high if high is not None else True)
        if inside.any():
            found.append((f"{low}-{high - 1}" if high is not None else f"{low}-", inside))
    return found


def _depth_alarm(rounds: Measured) -> Alarm | None:
    """Accepted length falls with depth: a cache out of step with the text, or a drafter beyond its length."""
    bins = [(name, mask) for name, mask in depth_bins(rounds) if mask.sum() >= MIN_ROUNDS]
    if len(bins) < 2:
        return None
    (near, shallow), (far, deep) = bins[0], bins[-1]

    def drop(totals: Floats) -> Floats:
        quotient: Floats = (totals[:, 2] / totals[:, 3]) / (totals[:, 0] / totals[:, 1])
        return quotient

    tokens = rounds.accepted + 1
    columns = (tokens * shallow, shallow.astype(np.int64), tokens * deep, deep.astype(np.int64))
    sums = cluster_sums(rounds.round_cluster, *columns)
    ratio = float(drop(sums.sum(axis=0, keepdims=True))[0])
    bounds = interval(sums, drop)
    if ratio >= DEPTH_DROP or (bounds is not None and bounds[1] >= 1.0):
        return None
    before, after = float(tokens[shallow].mean()), float(tokens[deep].mean())
    return Alarm(
        "context-depth",
        f"accepted length falls from {before:.2f} at output depth {near} to {after:.2f} at {far}: "
        "look for drafter state that drifts from the text, or a context beyond the drafter's training",
    )


# ------------------------------------------------------------------------------------------------ cliffs and idling


def _wilson(hits: int, n: int) -> tuple[float, float]:
    """99 % score interval of a share (Wilson 1927)."""
    z = 2.576
    centre = (hits + z * z / 2) / (n + z * z)
    half = z * float(np.sqrt(hits * (n - hits) / n + z * z / 4)) / (n + z * z)
    return centre - half, centre + half


def _cliff_alarm(rounds: Measured, gamma: int) -> Alarm | None:
    """Conditional acceptance halves from one position to the next: rather a fault than a hard token."""
    everyone = np.ones(len(rounds.requests), dtype=bool)
    previous: tuple[int, int] | None = None
    for k in range(1, gamma + 1):
        hits, base = conditional(rounds, k, chosen=everyone)
        here = (int(hits.sum()), int(base.sum()))
        if here[1] < MIN_ROUNDS:
            return None
        if previous is not None and _wilson(*here)[1] < CLIFF * _wilson(*previous)[0]:
            return Alarm(
                "conditional-cliff",
                f"conditional acceptance falls from {previous[0] / previous[1]:.2f} at position {k - 1} "
                f"to {here[0] / here[1]:.2f} at {k}: look for a fault in the drafter at that position",
            )
        previous = here
    return None


def _zero_draft_alarm(rounds: Measured, gamma: int) -> Alarm | None:
    total, zero = len(rounds.rounds), int((rounds.drafted == 0).sum())
    if gamma == 0 or total == 0 or zero / total <= MAX_ZERO_DRAFT_SHARE:
        return None
    return Alarm("zero-draft-rounds", f"nothing was drafted in {zero} of {total} rounds ({zero / total:.0%})")


def _diversity_alarms(rounds: Measured) -> Iterator[Alarm]:
    share, total = unique_prompt_share(rounds), len(rounds.requests)
    if share is not None and total > 1 and share < MIN_UNIQUE_PROMPTS:
        yield _few_prompts(round(share * total), total)
    looping, judged = _looping([request.output_ids for request in rounds.requests])
    if judged and looping / judged > MAX_LOOPING_SHARE:
        yield Alarm(
            "looping-output",
            f"{looping} of {judged} texts mostly repeat themselves: accepted length is higher than on normal text",
        )


def find_alarms(trace: RunTrace) -> list[Alarm]:
    """Every alarm that the trace gives cause for."""
    rounds = measured(trace)
    found: list[Alarm | None] = [*_diversity_alarms(rounds)]
    if rounds.rounds:
        found += [
            _depth_alarm(rounds),
            _cliff_alarm(rounds, trace.draft_length),
            _zero_draft_alarm(rounds, trace.draft_length),
        ]
    reason = invalid_reason(trace)
    if reason is not None:
        found.append(Alarm("invalid-row", reason))
    return [alarm for alarm in found if alarm is not None]


def estimates(trace: RunTrace) -> Iterator[Estimate]:
    """The figures behind the alarms: distinct prompts, looping texts, accepted length by depth."""
    rounds = measured(trace)
    share = unique_prompt_share(rounds)
    if share is not None:
        yield Estimate("unique_prompt_share", share, "fraction", len(rounds.requests), "requests")
    looping, judged = _looping([request.output_ids for request in rounds.requests])
    if judged:
        yield Estimate("looping_output_share", looping / judged, "fraction", judged, "requests")
    for name, inside in depth_bins(rounds):
        value = float((rounds.accepted[inside] + 1).mean())
        count = int(inside.sum())
        yield Estimate("accepted_length_by_depth", value, "tokens per round", count, "full rounds", (("depth", name),))


PLUGIN = MetricGroup("alarms", "count", "lower", estimates)
