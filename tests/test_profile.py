"""Measured cost tables: what is timed and kept, on a tiny real target and with a scripted clock."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support_runs import tiny_run
from support_targets import tiny_model

from specbench import profile as profiling
from specbench.config import build_run
from specbench.engine import cost_table
from specbench.engine.target import Target
from specbench.errors import ConfigError
from specbench.planning import gather, table_path
from specbench.profile import ProfileSettings, profile, profile_target, row_points, token_points

SMALL = ProfileSettings(draft_length=2, max_rows=4, context=20, repeats=3, warmup=1)


def test_points_are_dense_where_steps_are_cheap_and_see_both_sides_of_a_tile() -> None:
    points = token_points(512)
    assert points[:16] == list(range(1, 17))
    assert points[-1] == 512
    assert {64, 65, 128, 129, 256, 257} <= set(points)
    assert points == sorted(set(points))
    assert token_points(5) == [1, 2, 3, 4, 5]
    assert row_points(6) == [1, 2, 4, 6]
    assert row_points(1) == [1]


def test_rows_and_tokens_are_told_apart_and_jags_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose steps take 1 + 0.1 a row + 0.01 a token, and 0.5 more at 7 tokens."""

    def scripted(target: Any, shapes: Any, settings: Any, on_progress: Any) -> Any:
        def seconds(shape: Any) -> float:
            return 1 + 0.1 * shape.rows + 0.01 * shape.tokens + 0.5 * (shape.tokens == 7)

        return {shape: [seconds(shape), seconds(shape) * 1.2, seconds(shape) * 0.9] for shape in shapes}

    monkeypatch.setattr(profiling, "_time_forwards", scripted)
    table = profile_target(SimpleNamespace(context_limit=64), SMALL)  # type: ignore[arg-type]
    assert table.tokens == tuple(range(1, 13))
    assert table.row_cost is not None
    assert table.row_cost.seconds == pytest.approx((0.0, 0.1, 0.3))
    for rows, tokens in ((1, 1), (2, 2), (2, 6), (4, 4), (4, 12), (4, 5)):
        expected = 1.1 + 0.1 * (rows - 1) + 0.01 * tokens
        assert table.seconds(tokens, rows=rows).item() == pytest.approx(expected)
    assert table.rate(7).item() < table.rate(8).item()
    assert all(0.05 < spread < 0.3 for spread in table.spread)


def test_steps_of_full_rows_and_of_single_tokens_cost_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a row costs three times as much when it holds a single token."""

    def seconds(shape: Any) -> float:
        each = {1: 0.09, 2: 0.01, 3: 0.03}.get(-(-shape.tokens // shape.rows), 0.0)
        return float(1 + 0.05 * shape.tokens + each * shape.rows)

    monkeypatch.setattr(profiling, "_time_forwards", lambda target, shapes, *_: {s: [seconds(s)] * 3 for s in shapes})
    table = profile_target(SimpleNamespace(context_limit=64), SMALL)  # type: ignore[arg-type]
    for shape in (profiling._Shape(rows, rows * each) for rows in (1, 2, 4) for each in (1, 2, 3)):
        assert table.seconds(shape.tokens, rows=shape.rows).item() == pytest.approx(seconds(shape))


def test_unlike_rows_are_timed_beside_equal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(shape: Any) -> float:
        apart = 0.07 * shape.rows if len(set(shape.counts())) > 1 and shape.pattern else 0.0
        return float(1 + 0.05 * shape.tokens + apart)

    monkeypatch.setattr(profiling, "_time_forwards", lambda target, shapes, *_: {s: [seconds(s)] * 3 for s in shapes})
    table = profile_target(SimpleNamespace(context_limit=64), SMALL)  # type: ignore[arg-type]
    assert [table.uneven(rows) for rows in (1, 2, 4)] == pytest.approx([0.0, 0.14, 0.28])
    assert profiling._Shape(3, 4, pattern=(1, 2)).counts() == [1, 2, 1]


@pytest.mark.parametrize("most", [1, 18, 30])
def test_any_number_of_rows_can_be_the_most(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(
        profiling, "_time_forwards", lambda target, shapes, *_: {s: [1 + 0.01 * s.tokens] for s in shapes}
    )
    settings = ProfileSettings(draft_length=7, max_rows=most)
    table = profile_target(SimpleNamespace(context_limit=64), settings)  # type: ignore[arg-type]
    assert table.seconds(most, rows=most).item() == pytest.approx(1 + 0.01 * most)
    assert table.max_tokens == 8 * most


def test_a_stalled_timing_of_rows_does_not_take_over_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def scripted(target: Any, shapes: Any, settings: Any, on_progress: Any) -> Any:
        stalled = profiling._Shape(2, 2)
        return {shape: [60.0 if shape == stalled else 1 + 0.01 * shape.tokens] * 3 for shape in shapes}

    monkeypatch.setattr(profiling, "_time_forwards", scripted)
    table = profile_target(SimpleNamespace(context_limit=64), SMALL)  # type: ignore[arg-type]
    for tokens in table.tokens:
        whole = table.seconds(tokens, rows=-(-tokens // 3)).item()
        assert whole == pytest.approx(1 + 0.01 * tokens)


def test_a_real_target_is_timed_at_every_point() -> None:
    seen: list[tuple[int, int]] = []
    table = profile_target(Target(tiny_model()), SMALL, on_progress=lambda done, of: seen.append((done, of)))
    assert table.tokens == tuple(range(1, 13))
    assert all(rate > 0 for rate in table.steps_per_s)
    assert table.tokens_per_row == 3
    assert table.lookup == "linear"
    assert table.prompt is not None
    assert table.prompt.tokens == profiling.PROMPT_POINTS[: len(table.prompt.tokens)]
    assert len(table.prompt.tokens) > 3
    assert table.prompt.seconds[-1] > table.prompt.seconds[0] > 0
    assert seen[-1][0] == seen[-1][1] == len(seen)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("profile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECBENCH_HOME", str(folder / "home"))
        spec = build_run(flags=tiny_run(folder).flags(folder / "runs", methods="vanilla,ngram:2"))
        yield spec, profile(spec, SMALL)


def test_a_profile_lies_where_runs_look_and_says_where_it_is_from(measured: Any) -> None:
    spec, result = measured
    origin = result.table.origin
    assert result.path == table_path(origin)
    assert cost_table.read(result.path) == result.table
    assert origin.dtype == "float32"
    assert origin.context == 20
    assert set(result.table.draft) == {"ngram"}
    assert result.table.draft["ngram"].rows == (1, 2, 4)
    assert result.table.draft["ngram"].draft_length == 2
    found = gather(spec.model_copy(update={"policy": "load-aware"}), place=origin, checkpoint=None)
    assert found.cost == result.table


def test_a_profile_can_be_given_to_sglang(measured: Any) -> None:
    _, result = measured
    plain = json.loads(json.dumps(cost_table.to_sglang(result.table)))
    assert set(plain) == {"sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens"}
    back = cost_table.parse(plain, where="plain")
    whole = result.table.seconds(12, rows=4).item()
    assert back.seconds(12).item() == pytest.approx(whole)
    additive = cost_table.parse(cost_table.to_sglang(result.table, additive=True), where="additive")
    assert additive.seconds(9, rows=2).item() == pytest.approx(result.table.seconds(9, rows=2).item())


def test_a_context_beyond_the_target_is_refused(measured: Any) -> None:
    spec, _ = measured
    with pytest.raises(ConfigError, match="--context"):
        profile(spec, ProfileSettings(draft_length=2, max_rows=2, context=4000))


def test_an_explicit_file_is_written_instead(measured: Any, tmp_path: Path) -> None:
    spec, _ = measured
    result = profile(spec.model_copy(update={"methods": spec.methods[:1]}), SMALL, out=tmp_path / "t.json")
    assert result.path == tmp_path / "t.json"
    assert result.table.draft == {}
