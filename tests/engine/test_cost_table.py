"""Cost tables: reading three formats, looking up jagged curves, refusing what was measured elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_planning import TABLES, staircase

from specbench.engine.cost_table import (
    CostTable,
    Origin,
    PromptCost,
    RowCost,
    WidthCost,
    parse,
    read,
    to_document,
    to_sglang,
)
from specbench.engine.policy import StepCost
from specbench.errors import ConfigError

PLAIN = json.loads((TABLES / "gpu_staircase_sglang.json").read_text())
OURS = {"format": "specbench-cost-table", "version": 1, "tokens": [1], "steps_per_s": [1.0], "max_tokens": 1}
ADDITIVE = json.loads((TABLES / "additive_sglang.json").read_text())


def test_sglang_tables_are_read_and_written_unchanged() -> None:
    plain = parse(PLAIN, where="plain")
    assert to_sglang(plain) == PLAIN
    additive = parse(ADDITIVE, where="additive")
    written = to_sglang(additive, additive=True)
    for name, values in ADDITIVE.items():
        assert written[name] == pytest.approx(values)


def test_the_same_staircase_in_both_forms_gives_the_same_steps() -> None:
    ours, theirs = staircase(), parse(PLAIN, where="plain")
    tokens = np.arange(1, 1025)
    assert ours.rate(tokens).tolist() == theirs.rate(tokens).tolist()


def test_the_staircase_is_flat_then_dearer_and_not_monotone() -> None:
    """What was committed before any policy was tuned: a memory-bound floor, tiles of 64, some out of order."""
    seconds = staircase().seconds(np.arange(1, 1025))
    assert seconds[0] == seconds[63]
    assert seconds[1023] > 2 * seconds[0]
    steps = np.diff(seconds)
    assert (steps < 0).any()
    assert set((np.flatnonzero(np.abs(steps) > 1e-9) + 1) % 64) == {0}


def test_floor_lookup_and_what_lies_beyond_the_table() -> None:
    table = CostTable((4, 8, 16), (10.0, 5.0, 6.0), 20)
    assert table.rate([1, 4, 7, 8, 15, 16, 20]).tolist() == [10, 10, 10, 5, 5, 6, 6]
    assert table.rate(40).item() == pytest.approx(3.0)  # twice max_tokens: twice the time


def test_additive_tables_follow_straight_lines_and_rows() -> None:
    table = parse(ADDITIVE, where="additive")
    bias, alpha, theta = ADDITIVE["bias_seconds"], ADDITIVE["alpha_seconds"], ADDITIVE["theta_seconds"]
    assert table.seconds(64, rows=8).item() == pytest.approx(bias + alpha[1] + theta[1])
    middle = bias + (alpha[1] + alpha[2]) / 2 + (theta[1] + theta[2]) / 2
    assert table.seconds(96, rows=36).item() == pytest.approx(middle)
    assert table.seconds(1, rows=200).item() == pytest.approx(bias + alpha[2])


def test_a_measured_table_is_written_plain_with_the_rows_it_was_measured_with() -> None:
    table = CostTable(
        (8, 16), (10.0, 8.0), 16, lookup="linear", tokens_per_row=8, row_cost=RowCost((1, 2), (0.01, 0.02))
    )
    assert to_sglang(table)["sample_steps_per_sec"] == pytest.approx([1 / 0.11, 1 / 0.145])
    with pytest.raises(ConfigError, match="additive"):
        to_sglang(CostTable((8,), (10.0,), 8, row_cost=RowCost((1,), (0.1,))))


def test_prompt_tokens_have_a_price_of_their_own() -> None:
    """They want no logits, and the weights are read once for them and for what is verified beside them."""
    bare = CostTable((1, 8), (100.0, 50.0), 8, lookup="linear", row_cost=RowCost((1, 2), (0.0, 0.004)))
    assert bare.step_s(8, rows=1, prompt=24) == pytest.approx(0.08)  # beyond the table: in proportion
    table = replace(bare, prompt=PromptCost((1, 32), (0.010, 0.041)))
    assert table.step_s(0, rows=1, prompt=24) == pytest.approx(0.033)
    assert table.step_s(8, rows=2, prompt=24) == pytest.approx(0.024 + 0.033 - 0.010)
    assert table.step_s(0, rows=1, prompt=64) == pytest.approx(0.082)  # beyond its points too
    assert table.step_s(8, rows=2) == pytest.approx(0.024)


def test_partly_filled_rows_have_a_cost_of_their_own() -> None:
    bare = CostTable((1, 100), (1.0, 0.5), 100, lookup="linear", row_cost=RowCost((1, 9), (0.0, 0.8)))
    width = WidthCost((1, 5), (1, 2, 8), ((0.0, -0.1, 0.0), (0.0, -0.3, 0.0)))
    table = replace(bare, width_cost=width)

    def mended(tokens: int, rows: int) -> float:
        return float(table.seconds(tokens, rows=rows) - bare.seconds(tokens, rows=rows))

    assert [mended(n, 1) for n in (1, 2, 5, 8, 9)] == pytest.approx([0, -0.1, -0.05, 0, 0])
    assert mended(10, 5) == pytest.approx(-0.3)
    assert mended(6, 3) == pytest.approx(-0.2)  # between the rows
    assert mended(18, 9) == pytest.approx(-0.3)  # and beyond them
    assert float(table.seconds(10)) == float(bare.seconds(10))  # without rows there is no width


def test_unlike_rows_take_longer_than_as_many_tokens_in_equal_ones() -> None:
    bare = CostTable((1, 100), (1.0, 0.5), 100, lookup="linear")
    table = replace(bare, uneven_cost=RowCost((1, 5), (0.0, 0.4)), prompt=PromptCost((1, 64), (1.0, 2.0)))
    assert table.uneven(3) == pytest.approx(0.2)
    assert bare.uneven(3) == 0
    assert table.step_s(10, rows=3, uneven=True) == pytest.approx(table.step_s(10, rows=3) + 0.2)
    mixed = table.step_s(10, rows=5, prompt=64, uneven=True)
    assert mixed == pytest.approx(table.step_s(10, rows=5, prompt=64) + 0.4)


def test_a_price_of_drafting_by_length_is_a_straight_line() -> None:
    price = RowCost((1, 3), (0.07, 0.09), draft_length=7, single=(0.01, 0.03))
    assert [float(price.at(1, drafts=n)) for n in (1, 4, 7)] == pytest.approx([0.01, 0.04, 0.07])
    assert float(price.at(2, drafts=1)) == pytest.approx(0.02)
    assert float(price.at(1)) == pytest.approx(0.07)
    known = replace(price, single=())
    assert float(known.at(1, drafts=1)) == pytest.approx(0.07)  # nothing is known of fewer


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_documents_round_trip_and_the_device_agrees_with_the_table(data: st.DataObject) -> None:
    points = sorted(data.draw(st.sets(st.integers(1, 200), min_size=1, max_size=8)))
    rates = tuple(data.draw(st.floats(0.1, 1000)) for _ in points)
    row_cost = data.draw(st.sampled_from([None, RowCost((1, 8), (0.0, 0.01), (0.1, 0.2))]))
    width = WidthCost((1, 8), (1, 3, 9), ((0.0, 1e-3, 0.0), (0.0, -2e-3, 0.0)))
    table = CostTable(
        tuple(points), rates, max_tokens=points[-1] + data.draw(st.integers(0, 50)),
        lookup=data.draw(st.sampled_from(["floor", "linear"])), row_cost=row_cost,
        width_cost=data.draw(st.sampled_from([None, width])),
        uneven_cost=data.draw(st.sampled_from([None, RowCost((1, 8), (0.0, 0.003))])),
        draft={"dspark": RowCost((1, 4), (0.001, 0.002), draft_length=7, single=(0.0005, 0.0007))},
        prompt=data.draw(st.sampled_from([None, PromptCost((1, 16), (0.1, 0.2), (0.0, 0.1))])),
        origin=Origin(device="x", weights_sha256="y", dtype="float32", threads=2, torch="2", context=64),
        note="n", spread=tuple(0.1 for _ in points),
    )  # fmt: skip
    back = parse(json.loads(json.dumps(to_document(table))), where="t")
    assert back == table
    assert back.sha256() == table.sha256()
    rows, prefill, candidates = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 40)), 30
    on_device = StepCost(table, torch.device("cpu")).rates(rows, riding=prefill, candidates=candidates)
    expected = table.rate(rows + prefill + np.arange(candidates + 1), rows=rows)
    np.testing.assert_allclose(on_device.numpy(), expected, rtol=1e-12)


def test_tables_of_another_device_or_model_are_refused_unless_forced() -> None:
    here = Origin(device="cpu A", weights_sha256="a" * 64, dtype="bfloat16", threads=2)
    table = CostTable((1,), (1.0,), 8, origin=here)
    table.check_origin(here)
    for name, other in (("device", "cpu B"), ("weights_sha256", "b" * 64), ("dtype", "float32"), ("threads", 4)):
        place = Origin(**{**{n: getattr(here, n) for n in Origin.__dataclass_fields__}, name: other})
        with pytest.raises(ConfigError, match=f"for {name}") as caught:
            table.check_origin(place)
        assert "force_cost_table" in str(caught.value)
        table.check_origin(place, force=True)
    with pytest.raises(ConfigError, match="does not say its device"):
        parse(PLAIN, where="plain").check_origin(here)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "no JSON object"),
        ({}, "format"),
        ({**PLAIN, "max_batch_tokens": 5}, "below the last point"),
        ({**PLAIN, "sample_steps_per_sec": [1.0]}, "as many"),
        ({**PLAIN, "sample_batch_tokens": [2] * len(PLAIN["sample_batch_tokens"])}, "do not rise"),
        ({**PLAIN, "extra": 1}, "extra"),
        ({**ADDITIVE, "bias_seconds": 0.0}, "bias_seconds"),
        ({**ADDITIVE, "theta_seconds": [-1.0, 0.0, 0.0, 0.0]}, "no time"),
        ({**OURS, "version": 9}, "version"),
        ({**OURS, "steps_per_s": [0]}, "greater"),
        ({**OURS, "width_cost": {"rows": [1], "widths": [1, 2], "seconds": [[0.0]]}}, "as many"),
        ({**OURS, "width_cost": {"rows": [2, 1], "widths": [1, 2], "seconds": [[0, 0], [0, 0]]}}, "do not rise"),
        ({**OURS, "draft": {"x": {"rows": [1], "seconds": [1], "single": [1]}}}, "draft_length"),
    ],
)  # fmt: skip
def test_damaged_tables_are_refused_in_one_line(document: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse(document, where="table.json")
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read(tmp_path / "bad.json")
