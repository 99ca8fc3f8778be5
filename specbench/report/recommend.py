"""Which method, draft length and policy to run for a service level, from records: the choice, its rival, the reasons.

A setting is a contestant at one load; its repeats are averaged. Of the settings that hold the level the one with the
largest steady throughput is chosen. Only records that may share a frontier are weighed against each other, and only
lossless ones; everything else is left out and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.config import BASELINE
from specbench.errors import RecordError, unknown_name
from specbench.records import keys
from specbench.records.schema import EstimateRow, Record
from specbench.report import curves
from specbench.report.arms import row_key
from specbench.report.series import apart as why
from specbench.report.series import by_workload
from specbench.report.tables import method_label
from specbench.simulation.record import BACKEND
from specbench.sla import Bound, Sla

_LOAD_FIELDS = ("concurrency", "workload", "load", "replicas")
THROUGHPUT = "steady_tokens_per_s"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting under the level. ``bounds`` by the name of what is bounded."""

    label: str
    load: str
    records: tuple[Record, ...]
    throughput: EstimateRow
    speed: EstimateRow | None
    bounds: dict[str, Bound]
    contestant: str

    @property
    def holds(self) -> bool:
        """Whether every bound is kept."""
        return all(bound.holds for bound in self.bounds.values())

    @property
    def shortfall(self) -> float:
        """How far the worst bound is missed, as a factor; 1 or less where all hold."""
        limits = [b.limit / b.value if b.at_least else b.value / b.limit for b in self.bounds.values() if b.value > 0]
        return max(limits, default=float("inf"))

    @property
    def close(self) -> list[str]:
        """The bounds whose limit lies inside the interval: another run might decide otherwise."""
        return [name for name, bound in self.bounds.items() if bound.close]

    @property
    def seeds(self) -> dict[int, float]:
        """Throughput by seed, the first of equal seeds."""
        found: dict[int, float] = {}
        for record in self.records:
            row = record.find(THROUGHPUT)
            assert row is not None, "candidates have a throughput"
            found.setdefault(int(record.spec.get("seed", 0)), row.value)
        return found


@dataclass(frozen=True, slots=True)
class Recommendation:
    """``chosen`` None: no setting holds the level. ``lead`` is the choice's throughput over that of ``runner_up``.

    ``candidates`` are all settings that were weighed, best first; ``reasons`` say why in words, ``left_out`` what was
    not weighed, and why.
    """

    level: Sla
    chosen: Candidate | None
    runner_up: Candidate | None
    lead: EstimateRow | None
    candidates: tuple[Candidate, ...]
    reasons: tuple[str, ...]
    left_out: tuple[str, ...]


def recommend(records: Sequence[Record], level: Sla, *, load: str | None = None) -> Recommendation:
    """Weigh every setting of the records; ``load`` (as tables show it, ``closed:8``) leaves only that one.

    Errors: UnknownNameError for a load that no record has; RecordError where nothing can be weighed.
    """
    if load is not None:
        loads = {str(record.comparability.get("load")) for record in records}
        if load not in loads:
            raise unknown_name("load", load, loads)
    usable, left_out = _usable(records, level, load)
    kept, apart = _one_family(usable)
    found = sorted(_candidates(kept, level), key=lambda c: (not c.holds, -c.throughput.value, c.label, c.load))
    holding = [candidate for candidate in found if candidate.holds]
    chosen = holding[0] if holding else None
    rivals = [c for c in holding if chosen is not None and c.contestant != chosen.contestant]
    rival = rivals[0] if rivals else None
    lead = None if chosen is None or rival is None else _lead(chosen, rival)
    return Recommendation(
        level=level,
        chosen=chosen,
        runner_up=rival,
        lead=lead,
        candidates=tuple(found),
        reasons=tuple(_reasons(level, found, chosen, rival, lead)),
        left_out=(*left_out, *apart),
    )


# ------------------------------------------------------------------------------------------------- what is weighed


def _usable(records: Sequence[Record], level: Sla, load: str | None) -> tuple[list[Record], list[str]]:
    usable, left_out = [], []
    for record in sorted(records, key=lambda record: (record.created, record.run_id)):
        if load is not None and record.comparability.get("load") != load:
            continue
        why = _why_not(record, level)
        if why is None:
            usable.append(record)
        else:
            where = record.comparability.get("load", "no load")
            left_out.append(f"run {record.run_id} ({method_label(record)}, {where}): {why}")
    if not usable:
        seen = f"; {left_out[0]}" if left_out else ""
        raise RecordError(f"none of {len(records)} records can be weighed{seen}; measure lossless runs under load")
    return usable, left_out


def _why_not(record: Record, level: Sla) -> str | None:
    if record.status != "ok":
        return f"it is {record.status}"
    if record.comparability.get("synthetic_acceptance"):
        return "its acceptance is synthetic"
    if not record.spec.get("causal", True):
        return "its policy is not causal: at temperature its text is biased"
    invalid = next((alarm.message for alarm in record.alarms if alarm.name == "invalid-row"), None)
    if invalid is not None:
        return invalid
    if record.method != BASELINE and record.spec.get("backend") != BACKEND:
        outcome = record.verdict.outcome if record.verdict is not None else "absent"
        if outcome != "pass":
            return f"its losslessness verdict is {outcome}"
    busy = keys.timing_obstacles(record)
    if busy:
        return busy[0]
    lacking = [name for name, row in _asked(record, level).items() if row is None]
    if record.find(THROUGHPUT) is None:
        lacking.insert(0, "steady throughput (too few requests for its users)")
    return f"it has no {' and no '.join(lacking)}" if lacking else None


def _asked(record: Record, level: Sla) -> dict[str, EstimateRow | None]:
    """The bounded figures of a record by name."""
    found: dict[str, EstimateRow | None] = {}
    if level.floor is not None:
        found["tok/s/user"] = record.find("tokens_per_s_user", stat="mean")
    for ceiling in level.ceilings:
        name = f"{ceiling.metric} p{ceiling.percent}"
        found[name] = record.find(ceiling.metric, stat=f"p{ceiling.percent}")
    return found


def _one_family(usable: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The records that may be weighed together: the largest such set, the newest of equals; and why others may not."""
    families = by_workload(usable)
    kept = max(families, key=lambda held: (len(held), held[-1].created))
    apart = []
    for held in families:
        if held is kept:
            continue
        differ = why(kept[0], held[0])
        labels = ", ".join(dict.fromkeys(method_label(record) for record in held))
        apart.append(
            f"{len(held)} runs ({labels}) are not comparable with the {len(kept)} weighed: {'; '.join(differ)}"
        )
    return kept, apart


def _candidates(records: Sequence[Record], level: Sla) -> list[Candidate]:
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(row_key(record), []).append(record)
    made = []
    for held in rows.values():
        first = held[0]
        policy = str(first.spec.get("policy") or "fixed")
        plain = first.method == BASELINE or policy.partition(":")[0] == "fixed"
        throughput = _pooled(held, THROUGHPUT)
        assert throughput is not None, "usable records have a throughput"
        made.append(
            Candidate(
                label=method_label(first) if plain else f"{method_label(first)} {policy}",
                load=str(first.comparability["load"]),
                records=tuple(held),
                throughput=throughput,
                speed=_pooled(held, "tokens_per_s_user", stat="mean"),
                bounds=_bounds(held, level),
                contestant=row_key(first, without=_LOAD_FIELDS),
            )
        )
    return made


def _pooled(records: Sequence[Record], metric: str, **scope: str) -> EstimateRow | None:
    """One run's estimate as it is, several runs' as their mean with its interval from run to run."""
    rows = [row for record in records if (row := record.find(metric, **scope)) is not None]
    if len(rows) < 2:
        return rows[0] if rows else None
    return curves.mean_row(metric, [row.value for row in rows], rows[0].unit)


def _bounds(records: Sequence[Record], level: Sla) -> dict[str, Bound]:
    found: dict[str, Bound] = {}
    speed = _pooled(records, "tokens_per_s_user", stat="mean")
    if level.floor is not None and speed is not None:
        found["tok/s/user"] = Bound(speed.value, level.floor, True, speed.low, speed.high)
    for ceiling in level.ceilings:
        row = _pooled(records, ceiling.metric, stat=f"p{ceiling.percent}")
        if row is not None:
            name = f"{ceiling.metric} p{ceiling.percent}"
            found[name] = Bound(row.value, ceiling.seconds, False, row.low, row.high)
    return found


# --------------------------------------------------------------------------------------------------- what is said


def _lead(chosen: Candidate, rival: Candidate) -> EstimateRow:
    """Throughput of the choice over its rival's; paired by seed where both ran with the same."""
    ours, theirs = chosen.seeds, rival.seeds
    shared = sorted(ours.keys() & theirs.keys())
    ratio = chosen.throughput.value / rival.throughput.value
    return curves.ratio_row("lead", ratio, [ours[seed] for seed in shared], [theirs[seed] for seed in shared])


def _reasons(
    level: Sla,
    found: Sequence[Candidate],
    chosen: Candidate | None,
    rival: Candidate | None,
    lead: EstimateRow | None,
) -> list[str]:
    if chosen is None:
        nearest = min(found, key=lambda candidate: candidate.shortfall)
        missed = [f"{name} {b.value:.4g}, asked {b.limit:.4g}" for name, b in nearest.bounds.items() if not b.holds]
        return [
            f"no setting of {len(found)} attains {level.label}",
            f"nearest: {nearest.label} at {nearest.load}: {'; '.join(missed)}",
        ]
    held = sum(candidate.holds for candidate in found)
    reasons = [f"the most throughput of the {held} of {len(found)} settings that hold {level.label}"]
    reasons.append(_against(chosen, rival, lead))
    reasons += _over_plain(found, chosen, rival)
    if chosen.close:
        reasons.append(f"within noise: the interval of {', '.join(chosen.close)} holds its limit, another run may fail")
    if chosen.records[0].spec.get("backend") == BACKEND:
        reasons.append("predicted by a simulation, not measured: measure it before you rely on it")
    if not str(chosen.load).startswith("closed"):
        reasons.append(
            "records do not tell whether the queue of an open loop would go on growing; `specbench sla` does"
        )
    return reasons


def _over_plain(found: Sequence[Candidate], chosen: Candidate, rival: Candidate | None) -> list[str]:
    if chosen.records[0].method == BASELINE:
        return []
    plain = [candidate for candidate in found if candidate.records[0].method == BASELINE]
    if not plain:
        return ["plain decoding was not among the records"]
    if not plain[0].holds:
        return ["plain decoding does not hold the level at any load"]
    if plain[0] is rival:
        return []
    gain = chosen.throughput.value / plain[0].throughput.value
    return [f"{gain:.2f} times the throughput of plain decoding at {plain[0].load}, its best that holds the level"]


def _against(chosen: Candidate, rival: Candidate | None, lead: EstimateRow | None) -> str:
    if rival is None or lead is None:
        return "no other method, length or policy holds the level"
    text = f"runner-up: {rival.label} at {rival.load}, {rival.throughput.value:.4g} tokens/s; the choice has "
    text += f"{lead.value:.3f} times as much"
    if lead.low is None or lead.high is None:
        runs = f"{len(chosen.records)} and {len(rival.records)} runs"
        return f"{text}; whether they are apart is not known, with {runs} ({max(2 - lead.n, 1)} more paired are needed)"
    word = "apart" if lead.low > 1 else "not apart: either may be the better one"
    return f"{text} [{lead.low:.3f}, {lead.high:.3f}] from run to run, {word}"
