"""Intervals: coverage, determinism, clusters and degenerate input."""

from __future__ import annotations

import numpy as np
import pytest
from support_traces import Round, make_request

from specbench.metrics._bootstrap import cluster_sums, interval, mean_estimate, ratio_estimate
from specbench.metrics._measured import clusters


def mean_of(totals: np.ndarray) -> np.ndarray:
    return totals[:, 0] / totals[:, 1]


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        values = generator.exponential(2.0, size=60)
        low, high = interval(np.stack([values, np.ones(60)], axis=1), mean_of)  # type: ignore[misc]
        hits += low <= 2.0 <= high
    assert hits / 300 == pytest.approx(0.93, abs=0.05)


def test_the_same_data_give_the_same_interval() -> None:
    sums = np.stack([np.arange(20.0), np.ones(20)], axis=1)
    assert interval(sums, mean_of) == interval(sums, mean_of)
    assert interval(sums, mean_of, seed=1) != interval(sums, mean_of, seed=2)


def test_correlated_members_widen_the_interval() -> None:
    generator = np.random.default_rng(1)
    prompts = np.repeat(np.arange(20), 50)
    values = generator.normal(size=20)[prompts] + 0.1 * generator.normal(size=1000)

    def width(cluster: np.ndarray) -> float:
        (found,) = mean_estimate("m", unit="u", values=values, cluster=cluster, n_of="rounds")
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(prompts) > 4 * width(np.arange(1000))


def test_one_prompt_has_no_interval() -> None:
    (found,) = mean_estimate("m", unit="u", values=[1.0, 2.0], cluster=np.zeros(2, dtype=np.int64), n_of="rounds")
    assert (found.value, found.low, found.high, found.interval) == (1.5, None, None, None)


def test_no_data_gives_no_estimate() -> None:
    empty = np.zeros(0, dtype=np.int64)
    kinds = {"unit": "u", "cluster": empty, "n": 0, "n_of": "rounds"}
    assert ratio_estimate("m", numerators=[], denominators=[], **kinds) == []
    zero = {**kinds, "cluster": np.arange(3)}
    assert ratio_estimate("m", numerators=[1, 1, 1], denominators=[0, 0, 0], **zero) == []


def test_cluster_sums_skip_clusters_that_do_not_occur() -> None:
    found = cluster_sums(np.array([7, 2, 7]), [1, 10, 100], [1, 1, 1])
    assert found.tolist() == [[10, 1], [101, 2]]


def test_same_prompt_and_turns_of_a_conversation_are_one_cluster() -> None:
    def request(id: str, prompt_hash: str) -> object:
        return make_request([Round(0)], id=id, task="chat", prompt_hash=prompt_hash)[0]

    found = clusters(
        [
            request("chat/1/0", "h1"),
            request("chat/1/1", "h2"),
            request("chat/2/0", "h3"),
            request("chat/3/0", "h2"),  # the same prompt as the second turn above
            request("other", "h4"),
            request("chat/7", "h5"),
            request("chat/8", "h6"),
        ]
    )
    assert found.tolist() == [0, 0, 1, 0, 2, 3, 4]
