"""Sampled verdicts of a sweep judged together: Holm's correction over its cells (metrics.md, "Losslessness")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from specbench.metrics import _chi_squared as chi_squared
from specbench.metrics.losslessness import LEVEL, MIN_POWER, MIN_ROUNDS, TOTAL_VARIATION, Outcome


@dataclass(frozen=True, slots=True)
class Member:
    """One cell's test: its p-value over ``tests``, each (degrees of freedom, effective n), and its evidence."""

    p_value: float
    tests: tuple[tuple[int, float], ...]
    requests_compared: int
    rounds_with_drafts: int


@dataclass(frozen=True, slots=True)
class FamilyVerdict:
    """A cell's verdict among ``cells`` tests; ``power`` at the family's strictest level."""

    outcome: Outcome
    reason: str
    cells: int
    power: float | None


def judge_family(members: Sequence[Member], *, level: float = LEVEL) -> list[FamilyVerdict]:
    """The verdict of each cell when all are judged at one level together, in the order given.

    A cell fails where Holm's procedure rejects it, passes where it is not rejected and the test had 99 % power against
    a total-variation error of .02 at the level of the whole family divided by its cells, and is inconclusive else.
    """
    rejected = chi_squared.holm([member.p_value for member in members], level=level)
    return [_verdict(member, no, len(members), level=level) for member, no in zip(members, rejected)]


def _verdict(member: Member, rejected: bool, cells: int, *, level: float) -> FamilyVerdict:
    power = _power(member, level=level / cells)
    among = f"p = {member.p_value:.2g} among {cells} cells"
    if rejected:
        return FamilyVerdict(Outcome.FAIL, f"token distributions differ, {among}", cells, power)
    if member.requests_compared == 0 or member.rounds_with_drafts < MIN_ROUNDS:
        reason = f"only {member.rounds_with_drafts} rounds verified a draft, {MIN_ROUNDS} are needed"
        return FamilyVerdict(Outcome.INCONCLUSIVE, reason, cells, power)
    if power is None:
        return FamilyVerdict(Outcome.INCONCLUSIVE, f"{among}; the record does not tell the tests' power", cells, power)
    if power < MIN_POWER:
        reason = f"{among}; power {power:.2f} at this level, {MIN_POWER:g} is needed"
        return FamilyVerdict(Outcome.INCONCLUSIVE, reason, cells, power)
    return FamilyVerdict(Outcome.PASS, f"token distributions agree, {among}, power {power:.3f}", cells, power)


def _power(member: Member, *, level: float) -> float | None:
    """The least power of the cell's tests, each at its share of the level; None where they are not known."""
    if not member.tests:
        return None
    single = level / len(member.tests)
    return min(_power_of(degrees, n, single) for degrees, n in member.tests)


@lru_cache(maxsize=1024)  # the cells of a sweep are mostly of one size
def _power_of(degrees: int, effective_n: float, level: float) -> float:
    return chi_squared.power(effective_n=effective_n, degrees=degrees, level=level, total_variation=TOTAL_VARIATION)
