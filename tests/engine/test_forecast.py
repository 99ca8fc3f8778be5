"""Which rows draft, and how much is verified, before anything is drafted: held against a direct count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.forecast import ENOUGH, HOLD, PROBES, WINDOW, Chosen, Floats, Forecast

WIDTH = 3


def show(
    forecast: Forecast,
    step: int,
    scores: Floats,
    *,
    domains: list[int],
    drafted: list[bool] | None = None,
    length: int = WIDTH,
) -> None:
    """A cycle in which these rows had these survivals [B, G]."""
    rows = len(scores)
    made = np.ones(rows, dtype=np.bool_) if drafted is None else np.array(drafted)
    chosen = Chosen(made, length, rows * length, 1.0)
    forecast.write(step, numbers=range(rows), domains=domains, chosen=chosen, scores=torch.tensor(scores))
    forecast.tell(step, scores.flatten().tolist())


def choose(
    forecast: Forecast,
    step: int,
    *,
    domains: list[int],
    draft: list[float],
    verify: list[float],
    one: float = 1.0,
    uneven: float = 0.0,
) -> Chosen:
    """What rows 0, 1, ... of these domains should do; one draft a row costs the share ``one`` of a full draft."""
    shares = np.linspace(one, 1.0, WIDTH)
    return forecast.choose(
        step,
        numbers=range(len(domains)),
        domains=domains,
        draft_seconds=shares[:, None] * np.array(draft),
        verify_seconds=np.array(verify),
        uneven_seconds=uneven,
    )


def gained(samples: list[tuple[float, float]], drafts: int) -> float:
    """Tokens expected of the best ``drafts`` among weighted scores, the last of them in part."""
    left, tokens = float(drafts), 0.0
    for score, weight in sorted(samples, reverse=True):
        taken = min(weight, left)
        left, tokens = left - taken, tokens + taken * score
    return tokens


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_choice_is_the_best_of_all_numbers_of_rows_and_drafts(data: st.DataObject) -> None:
    rows, cycles = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    domains = data.draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows))
    share = st.floats(0.0, 1.0).map(lambda x: round(x, 3))
    forecast = Forecast(1, positions=WIDTH)
    seen: list[tuple[int, Floats]] = []
    for step in range(cycles):
        chances = data.draw(st.lists(share, min_size=rows * WIDTH, max_size=rows * WIDTH))
        scores = np.array(chances).reshape(rows, WIDTH).cumprod(axis=1)
        show(forecast, step, scores, domains=domains)
        seen += zip(domains, scores, strict=True)
    draft = [0.0, *np.cumsum(data.draw(st.lists(st.floats(0.0, 0.3), min_size=rows, max_size=rows))).tolist()]
    most = rows * WIDTH
    verify = data.draw(st.lists(st.floats(0.5, 2.0), min_size=most + 1, max_size=most + 1))  # as jagged as it comes
    uneven = data.draw(st.floats(0.0, 0.5))  # for rows that have unlike numbers of tokens
    found = choose(forecast, cycles, domains=domains, draft=draft, verify=verify, uneven=uneven)

    trust = forecast.slope
    of_domain = [[s for d, s in seen if d == domain] for domain in (0, 1)]
    usual = [held if len(held) >= ENOUGH else [s for _, s in seen] for held in of_domain]

    def samples(row: int) -> list[tuple[float, float]]:
        others = usual[domains[row]]
        own = [(float(s), trust) for s in scores[row]]
        return own + [(float(s), (1 - trust) / len(others)) for one in others for s in one]

    worth = [sum(s * w for s, w in samples(row)) for row in range(rows)]
    order = sorted(range(rows), key=lambda row: (-round(worth[row], 9), row))

    def theta(n: int, k: int) -> float:
        alike = k in (0, rows * WIDTH)
        seconds = draft[n] + verify[k] + (0.0 if alike else uneven)
        return (rows + gained([s for row in order[:n] for s in samples(row)], k)) / seconds

    best = max(theta(n, k) for n in range(rows + 1) for k in range(n * WIDTH + 1))
    assert found.theta == pytest.approx(max(best, rows / verify[0]), rel=1e-9)
    chosen = int(found.rows.sum())
    if chosen and best > rows / verify[0] * (1 + 1e-9):
        assert theta(chosen, found.capacity) == pytest.approx(best, rel=1e-6)


def test_a_rows_own_scores_count_as_far_as_they_foretold_later_ones() -> None:
    steady, fickle = Forecast(1, positions=WIDTH), Forecast(1, positions=WIDTH)
    noise = np.random.default_rng(0)
    level = noise.uniform(0.1, 0.9, size=12)
    for step in range(40):
        show(steady, step, np.repeat(level[:, None], WIDTH, axis=1), domains=[0] * 12)
        show(fickle, step, np.repeat(noise.uniform(0.1, 0.9, size=(12, 1)), WIDTH, axis=1), domains=[0] * 12)
    for forecast in (steady, fickle):
        choose(forecast, 40, domains=[0] * 12, draft=[0.0] * 13, verify=[1.0] * 37)
    assert steady.slope > 0.85
    assert fickle.slope < 0.15


def test_rows_that_look_good_are_not_taken_at_their_word() -> None:
    """All rows are alike and their scores are noise: drafting for the lucky ones only looks as if it paid."""
    forecast, noise = Forecast(1, positions=1), np.random.default_rng(1)
    for step in range(60):
        show(forecast, step, noise.uniform(0.0, 0.6, size=(16, 1)), domains=[0] * 16, length=1)  # .3 on average
    draft = [0.0, *(0.035 * n for n in range(1, 17))]  # a lucky row's .6 would pay, the usual .3 does not
    verify = [1.0 + 0.01 * k for k in range(17)]
    assert not choose(forecast, 60, domains=[0] * 16, draft=draft, verify=verify).rows.any()


def test_hopeless_drafts_are_not_made_when_drafting_costs_something() -> None:
    forecast = Forecast(1, positions=WIDTH)
    show(forecast, 0, np.full((4, WIDTH), 0.05), domains=[0] * 4)
    flat = [1.0] * 13
    assert choose(forecast, 1, domains=[0] * 4, draft=[0.0] * 5, verify=flat).rows.all()
    dear = [0.0, 0.5, 0.5, 0.5, 0.5]
    assert not choose(forecast, 1 + HOLD, domains=[0] * 4, draft=dear, verify=flat).rows.any()


def test_what_was_found_holds_for_some_cycles_and_for_other_numbers_of_rows_where_all_do_alike() -> None:
    forecast = Forecast(1, positions=WIDTH)
    show(forecast, 0, np.full((4, WIDTH), 0.5), domains=[0] * 4)
    free, flat = [0.0] * 6, [1.0] * 16
    assert choose(forecast, 1, domains=[0] * 4, draft=free[:5], verify=flat[:13]).capacity == 4 * WIDTH
    hopeless = [1.0, *[9.0] * 15]  # as if verifying had become dear
    for step, count in ((2, 4), (HOLD, 5)):
        held = choose(
            forecast, step, domains=[0] * count, draft=free[: count + 1], verify=hopeless[: count * WIDTH + 1]
        )
        assert (int(held.rows.sum()), held.capacity) == (count, count * WIDTH)
    assert not choose(forecast, 1 + HOLD, domains=[0] * 4, draft=free[:5], verify=hopeless[:13]).capacity

    some = Forecast(1, positions=WIDTH)
    show(some, 0, np.array([[0.9, 0.1, 0.0], [0.8, 0.1, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), domains=[0] * 4)
    rising = [1.0 + 0.2 * k for k in range(13)]
    kinds = {"draft": free[:5], "verify": rising}
    first = choose(some, 1, domains=[0] * 4, **kinds)
    assert 0 < first.capacity < 4 * WIDTH
    assert choose(some, 2, domains=[0] * 4, **kinds).capacity == first.capacity
    less = choose(some, 3, domains=[0] * 3, draft=free[:4], verify=hopeless[:10])
    assert less.capacity == 0  # other rows, not all alike: decided anew


def test_no_further_is_drafted_than_pays() -> None:
    domains, verify = [0] * 16, [1.0 + 0.02 * k for k in range(16 * WIDTH + 1)]
    lengths = []
    for later in (0.02, 0.9):
        forecast = Forecast(1, positions=WIDTH)
        for step in range(3):
            show(forecast, step, np.tile([0.9, 0.9 * later, 0.9 * later**2], (16, 1)), domains=domains)
        lengths.append(
            choose(forecast, 3, domains=domains, draft=[0.01 * n for n in range(17)], verify=verify, one=0.3)
        )
    assert [found.length for found in lengths] == [1, WIDTH]
    assert all(found.rows.all() for found in lengths)


def test_what_was_not_drafted_is_expected_as_it_was_when_it_was() -> None:
    forecast, free = Forecast(1, positions=WIDTH), [1.0] * 25
    good = np.tile([0.9, 0.8, 0.7], (8, 1))
    show(forecast, 0, good, domains=[0] * 8)
    for step in range(1, 2 * WINDOW):
        cut = np.where(np.arange(WIDTH) < 1, good, 0.0)
        choose(forecast, step, domains=[0] * 8, draft=[0.0] * 9, verify=free)
        show(forecast, step, cut, domains=[0] * 8, length=1)
    found = choose(forecast, 2 * WINDOW, domains=[0] * 8, draft=[0.0] * 9, verify=free)
    assert found.theta == pytest.approx(8 * (1 + 0.9 + 0.8 + 0.7), rel=1e-6)
    assert found.length == WIDTH


def test_rows_are_served_alike_where_unlike_ones_cost_more_than_choosing_gains() -> None:
    scores = np.array([[0.9, 0.5, 0.1], [0.2, 0.1, 0.0]])
    forecast = Forecast(1, positions=WIDTH)
    show(forecast, 0, scores, domains=[0, 0])
    verify = [1.0 + 0.02 * n for n in range(2 * WIDTH + 1)]
    kinds = {"domains": [0, 0], "draft": [0.0, 0.01, 0.02], "verify": verify, "one": 0.5}
    free = choose(forecast, 1, **kinds)
    assert 0 < free.capacity < int(free.rows.sum()) * free.length
    dear = choose(forecast, 1 + HOLD, **kinds, uneven=0.3)
    assert dear.capacity == 2 * dear.length
    assert dear.rows.all()


def test_domains_are_told_apart() -> None:
    forecast = Forecast(1, positions=WIDTH)
    domains = [0] * 10 + [1] * 10
    for step in range(3):
        show(forecast, step, np.repeat([[0.9, 0.8, 0.7], [0.1, 0.05, 0.0]], 10, axis=0), domains=domains)
    draft = [0.0, *(0.02 * n for n in range(1, 5))]
    found = forecast.choose(
        3,
        numbers=[90, 91, 92, 93],  # requests that nothing is known of but their domain
        domains=[1, 0, 1, 0],
        draft_seconds=np.tile(draft, (WIDTH, 1)),
        verify_seconds=1.0 + 0.02 * np.arange(13),
    )
    assert found.rows.tolist() == [False, True, False, True]
    assert found.capacity == 6


def test_probes_take_a_bounded_share_of_the_time_and_new_scores_replace_old_ones() -> None:
    forecast, rows, price = Forecast(1, positions=WIDTH), 16, 0.2
    verify = [1.0 + 0.01 * k for k in range(rows * WIDTH + 1)]
    shares: list[int] = []
    spent = 0.0
    wait = (price + 0.01 * ENOUGH) / PROBES  # cycles of a second that pay for a probe
    for step in range(400 + int(wait) + 5):
        found = choose(forecast, step, domains=[0] * rows, draft=[0.0, *([price] * rows)], verify=verify)
        shares.append(int(found.rows.sum()))
        if 0 < step < 400:
            spent += (price if shares[-1] else 0.0) + verify[found.capacity] - verify[0]
        truth = 0.02 if step < 400 else 0.95
        scores = np.where(found.rows[:, None], truth, 0.0) * np.ones((rows, WIDTH))
        show(forecast, step, scores, domains=[0] * rows, drafted=found.rows.tolist())
    assert shares[0] == ENOUGH  # a first look
    assert {*shares[2:400]} == {0, ENOUGH}
    assert 0 < spent <= PROBES * 400
    assert shares[-1] == rows
