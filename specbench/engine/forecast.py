"""Which rows should draft, how far, and how many drafts a step should then verify, before anything is drafted.

Drafting costs time, so a row should draft only where its drafts are expected to be worth it, and what they will be
worth is only known of earlier cycles. A row's own last scores say something about its next ones, but regress to what
is usual in its domain; rows chosen for their own scores alone would disappoint. So a row's next scores are expected to
be its last ones with the weight that past scores had in predicting later ones (the slope of a regression kept while
running, falling with age), and with the rest of the weight any of the recent ones of its domain.

All on the host, in float64: scores come with the copy that ends their cycle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

RECENT = 96  # survivals kept of rows that drafted, all domains together
WINDOW = 64  # cycles after which survivals only count while there are none newer
ENOUGH = 8  # survivals of a domain, or of the window, before they stand for it; also the rows of a probe
PROBES = 0.0025  # share of the time that may go into probes
SLOPE = 0.3  # of the regression, until there are observations
PRIOR = 4.0  # spread of so many tokens squared that stands for that
FORGET = 0.995  # what a cycle leaves of the observations
STEPS = 16  # numbers of drafting rows that are compared, at most
HOLD = 8  # cycles that a choice of length and numbers holds: searching anew for each would take a percent of a step


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a step should do, and the tokens a second that the search expected of it, up to `HOLD` cycles ago."""

    rows: Bools  # [B], those that draft
    length: int  # drafts of each of them
    capacity: int  # drafts to verify, of all rows together
    theta: float


@dataclass(slots=True)
class _Cycle:
    step: int
    numbers: tuple[int, ...]
    domains: tuple[int, ...]
    chosen: Chosen
    scores: Tensor | Sequence[float]  # [B, G], flat once they are told


@dataclass(frozen=True, slots=True)
class _Last:
    step: int
    scores: Floats  # [G]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search found for ``count`` rows in ``step``: how many draft, how far, and how much is verified."""

    step: int
    count: int
    rows: int
    length: int
    capacity: int
    theta: float

    def holds(self, step: int, count: int) -> bool:
        """For a later step too: for as many rows, or where all were to do alike."""
        alike = self.rows == 0 or (self.rows == self.count and self.capacity == self.count * self.length)
        return step < self.step + HOLD and (count == self.count or alike)


@dataclass(frozen=True, slots=True)
class _Standing:
    """What is expected of B rows of D domains, from P recent survivals."""

    weight: Floats  # [B], of a row's own scores
    own: Floats  # [B, G]
    kind: Floats  # [B, D], 1 at a row's domain
    share: Floats  # [D, P]: a domain's usual scores are the recent ones, each with its share
    place: Ints  # [B], 0 for the row that is expected to gain most


class Forecast:
    """Scores of rows that drafted, at least ``lag`` cycles old when they are used."""

    def __init__(self, lag: int, *, positions: int) -> None:
        assert lag >= 1, "a cycle's scores are told when it ends"
        self._lag, self._positions = lag, positions
        self._waiting: deque[_Cycle] = deque()
        self._last: dict[int, _Last] = {}
        self._recent = np.zeros((RECENT, positions))
        self._domain = np.zeros(RECENT, dtype=np.int64)
        self._made = np.zeros(RECENT, dtype=np.int64)  # their cycles
        self._seen = 0
        self._found: _Found | None = None
        self._idle_s = 0.0  # expected time of the cycles since the last draft
        self._xx, self._xy = PRIOR, PRIOR * SLOPE
        self._mass = np.zeros(positions)  # of survivals at each position, where the next one was drafted too
        self._next = np.zeros(positions)  # of the next ones

    # ------------------------------------------------------------------------------------------ what is known

    def write(
        self, step: int, *, numbers: Sequence[int], domains: Sequence[int], chosen: Chosen, scores: Tensor
    ) -> None:
        """Keep the ``scores`` [B, G] of a cycle that did as ``chosen``."""
        self._waiting.append(_Cycle(step, tuple(numbers), tuple(domains), chosen, scores))

    def tell(self, step: int, scores: Sequence[float]) -> None:
        """The scores written in ``step``, row after row, now that they are on the host."""
        for cycle in self._waiting:
            if cycle.step == step:
                cycle.scores = scores

    @property
    def slope(self) -> float:
        """Of a row's next expected tokens on its last ones, both relative to its domain's, from 0 to 1."""
        return min(max(self._xy / self._xx, 0.0), 1.0)

    def _read(self, step: int) -> None:
        while self._waiting and self._waiting[0].step <= step - self._lag:
            self._learn(self._waiting.popleft())

    def _learn(self, cycle: _Cycle) -> None:
        told = cycle.scores
        if isinstance(told, Tensor):  # nobody told: a loop that does not ask for the reasons of its plans
            told = told.flatten().tolist()
        scores = np.array(told, dtype=np.float64).reshape(len(cycle.numbers), self._positions)
        self._xx = PRIOR + FORGET * (self._xx - PRIOR)
        self._xy = PRIOR * SLOPE + FORGET * (self._xy - PRIOR * SLOPE)
        self._extend(scores, length=cycle.chosen.length, drafted=cycle.chosen.rows)
        usual: dict[int, float] = {}
        totals = scores.sum(axis=1).tolist()
        for row in np.flatnonzero(cycle.chosen.rows).tolist():
            number, domain = cycle.numbers[row], cycle.domains[row]
            before = self._last.get(number)
            if before is not None and cycle.step - before.step == self._lag and self._seen:
                if domain not in usual:
                    usual[domain] = float(self._recent[self._members(domain, cycle.step)].sum(axis=1).mean())
                x, y = float(before.scores.sum()) - usual[domain], totals[row] - usual[domain]
                self._xx, self._xy = self._xx + x * x, self._xy + x * y
            self._last[number] = _Last(cycle.step, scores[row])
            place = self._seen % RECENT
            self._recent[place], self._domain[place], self._made[place] = scores[row], domain, cycle.step
            self._seen += 1

    def _extend(self, scores: Floats, *, length: int, drafted: Bools) -> None:
        """Fill in what was not drafted by what usually survives of the position before."""
        made = scores[drafted, :length]
        self._mass[: length - 1] = FORGET * self._mass[: length - 1] + made[:, :-1].sum(axis=0)
        self._next[: length - 1] = FORGET * self._next[: length - 1] + made[:, 1:].sum(axis=0)
        for at in range(length, self._positions):
            before = self._mass[at - 1]
            scores[:, at] = scores[:, at - 1] * (self._next[at - 1] / before if before > 0 else 1.0)

    def _members(self, domain: int, step: int) -> Ints:
        """Places of the recent scores that stand for a domain: its own, or all where these are few; newer first."""
        held = min(self._seen, RECENT)
        newer = self._made[:held] > step - self._lag - WINDOW
        if newer.sum() < ENOUGH:
            newer = np.ones(held, dtype=np.bool_)
        own = newer & (self._domain[:held] == domain)
        return np.flatnonzero(own if own.sum() >= ENOUGH else newer)

    # ------------------------------------------------------------------------------------------ what follows

    def choose(
        self,
        step: int,
        *,
        numbers: Sequence[int],
        domains: Sequence[int],
        draft_seconds: Floats,
        verify_seconds: Floats,
        uneven_seconds: float = 0.0,
    ) -> Chosen:
        """The rows that draft, how far, and the number of drafts to verify, with the highest expected throughput.

        While nothing is known a few rows draft and everything of theirs is verified. Rows are taken in order of the
        tokens that they are expected to gain (ties by row). While no drafting pays, a few rows draft now and then all
        the same, or what is known would never change (a probe; few enough for a small share of the time).

        The length is the best of all with every row drafting or half of them; the numbers of rows and of drafts to
        verify are then searched for that length. What was found holds for some cycles; which rows draft, where not
        all do, is decided in each.

        Args:
            numbers, domains: of the B rows.
            draft_seconds: [G, B + 1], price of drafting 1, 2, ... tokens for each of 0, 1, ... rows.
            verify_seconds: [B * G + 1], time of the rest of the step with 0, 1, ... drafts.
            uneven_seconds: what comes on top where some but not all rows verify drafts, or not as many each.
        """
        self._read(step)
        count = len(numbers)
        if self._seen == 0:
            first = min(count, ENOUGH)
            everything = first * self._positions
            theta = (count + everything) / (draft_seconds[-1, first] + verify_seconds[everything])
            return Chosen(np.arange(count) < first, self._positions, everything, float(theta))
        self._last = {number: self._last[number] for number in numbers if number in self._last}
        standing: _Standing | None = None
        if self._found is None or not self._found.holds(step, count):
            standing = self._stand(step, numbers, domains)
            self._found = self._search(step, standing, draft_seconds, verify_seconds, uneven_seconds)
        found = self._found
        if found.rows == found.count:
            self._idle_s = 0.0
            capacity = found.capacity if count == found.count else count * found.length
            return Chosen(np.ones(count, dtype=np.bool_), found.length, capacity, found.theta)
        rows = found.rows
        if rows == 0:
            rows = self._probe(count, draft_seconds[-1], verify_seconds, uneven_seconds)
            if rows == 0:
                return Chosen(np.zeros(count, dtype=np.bool_), self._positions, 0, found.theta)
            found = _Found(step, count, rows, self._positions, rows, found.theta)
        self._idle_s = 0.0
        standing = standing or self._stand(step, numbers, domains)
        return Chosen(standing.place < rows, found.length, found.capacity, found.theta)

    def _stand(self, step: int, numbers: Sequence[int], domains: Sequence[int]) -> _Standing:
        weight = np.array([self._trust(number, step) for number in numbers])
        own = np.array([self._own(number) for number in numbers])
        kinds, kind = np.unique(np.asarray(domains), return_inverse=True)
        held = min(self._seen, RECENT)
        share = np.zeros((len(kinds), held))
        for index, domain in enumerate(kinds):
            members = self._members(int(domain), step)
            share[index, members] = 1.0 / len(members)
        usual = share @ self._recent[:held].sum(axis=1)  # [D] tokens
        order = np.argsort(-(weight * own.sum(axis=1) + (1 - weight) * usual[kind]), kind="stable")
        place = np.empty(len(numbers), dtype=np.int64)
        place[order] = np.arange(len(numbers))
        return _Standing(weight, own, np.eye(len(kinds))[kind], share, place)

    def _search(
        self, step: int, at: _Standing, draft_seconds: Floats, verify_seconds: Floats, uneven_seconds: float
    ) -> _Found:
        count = len(at.place)
        scores = np.concatenate([at.own, self._recent[: at.share.shape[1]]])  # [B + P, G]
        ranked = np.argsort(-scores, axis=None, kind="stable")
        owner, position = np.divmod(ranked, self._positions)
        worth = scores.flatten()[ranked]

        def best(length: int, tried: Ints) -> tuple[float, int, int]:
            """Throughput, rows and drafts to verify of the best of these numbers of rows [N]."""
            member = at.place[None, :] < tried[:, None]  # [N, B]
            rest = (member * (1 - at.weight)) @ at.kind  # [N, D]: rows that take a domain's usual scores
            mass = np.concatenate([member * at.weight, rest @ at.share], axis=1)  # [N, B + P], of each row of scores
            within = position < length
            taken = mass[:, owner[within]]
            drafts, tokens = taken.cumsum(axis=1), (taken * worth[within]).cumsum(axis=1)  # [N, S], of no worse ones
            found = (0.0, 0, 0)
            for n, x, y in zip(tried.tolist(), drafts, tokens, strict=True):
                admitted = np.arange(n * length + 1)
                gained = np.interp(admitted, np.concatenate([[0.0], x]), np.concatenate([[0.0], y]))
                seconds = draft_seconds[length - 1, n] + verify_seconds[: len(admitted)]
                seconds[1:] += uneven_seconds
                if n == count:  # what all drafted, all verify
                    seconds[-1] -= uneven_seconds
                theta = (count + gained) / seconds
                most = int(theta.argmax())
                if theta[most] > found[0]:
                    found = (float(theta[most]), n, most)
            return found

        length = self._positions
        if (draft_seconds[0] < draft_seconds[-1]).any():
            ends = np.unique([(count + 1) // 2, count])
            length = max(range(self._positions, 0, -1), key=lambda one: best(one, ends)[0])
        steps = np.unique(np.linspace(0, count, min(count, STEPS) + 1).round().astype(np.int64))[1:]
        theta, rows, capacity = best(length, steps)
        plain = float(count / verify_seconds[0])
        if theta <= plain:
            return _Found(step, count, 0, self._positions, 0, plain)
        return _Found(step, count, rows, length, capacity, theta)

    def _probe(self, count: int, draft_seconds: Floats, verify_seconds: Floats, uneven_seconds: float) -> int:
        """Rows that draft all the same, with a draft of each to verify; mostly none."""
        self._idle_s += float(verify_seconds[0])
        rows = min(count, ENOUGH)
        price = float(draft_seconds[rows] + verify_seconds[rows] - verify_seconds[0])
        return rows if price + (uneven_seconds if rows < count else 0.0) <= PROBES * self._idle_s else 0

    def _trust(self, number: int, step: int) -> float:
        last = self._last.get(number)
        return 0.0 if last is None else self.slope ** ((step - last.step) / self._lag)

    def _own(self, number: int) -> Floats:
        last = self._last.get(number)
        return np.zeros(self._positions) if last is None else last.scores
