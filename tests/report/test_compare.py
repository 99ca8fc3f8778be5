"""Comparisons: hand-made figures, pairing, repeats, and refusals that name the difference (recipes T22, T23)."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support_records import KEY, make_record
from support_traces import plain_trace, simulate_trace

from specbench.errors import RecordError
from specbench.metrics._identities import check_identities
from specbench.metrics._paired import contrasts, match
from specbench.records import store
from specbench.records.keys import dataset_sha256
from specbench.records.schema import Record
from specbench.report.compare import Comparison, compare, comparison_table
from specbench.types import RunTrace

SPEC: dict[str, Any] = {"temperature": 0.0, "concurrency": 1, "dtype": "float32", "tasks": ["toy"], "policy": "fixed"}


def key_with(path: str, value: object) -> dict[str, Any]:
    key = deepcopy(KEY)
    *parents, last = path.split(".")
    inner: Any = key
    for part in parents:
        inner = inner[part]
    inner[last] = value
    return key


def seeded(trace: RunTrace, seed: int) -> RunTrace:
    return replace(trace, requests=tuple(replace(r, seed=seed) for r in trace.requests))


def save(folder: Path, trace: RunTrace, *, seed: int = 0, **fields: Any) -> Record:
    """A record with its rounds and no estimates: comparisons are computed from the rounds."""
    trace = seeded(trace, seed)
    data, described = store.encode_rounds(trace, check=check_identities)
    spec = {**SPEC, "seed": seed, **fields.pop("spec", {})}
    named = {"method": trace.method, "draft_length": trace.draft_length, "spec": spec, "rounds": described}
    record = make_record(**{**named, **fields})
    store.write(folder, record, rounds_data=data)
    return record


def drafting(accept: float = 0.7, *, slow: float = 1.0, seed: int = 0) -> RunTrace:
    trace = simulate_trace(accept, gamma=3, rounds=200, requests=10, seed=seed)
    steps = tuple(replace(s, verify_s=s.verify_s * slow) for s in trace.steps)
    return replace(trace, steps=steps)


def figures(found: Comparison) -> dict[str, Any]:
    return {" ".join([c.metric, *(v for _, v in c.scope)]): c for c in found.contrasts}


def shown(found: Comparison) -> str:
    console = Console(width=140)
    with console.capture() as text:
        console.print(comparison_table(found))
    return text.get()


def test_a_method_against_plain_decoding_by_hand(tmp_path: Path) -> None:
    ours = drafting()
    base = plain_trace(ours)  # 35 ms a step, one token each; ours 50 ms a step
    one, other = save(tmp_path, base), save(tmp_path, ours)
    (found,) = compare(one.run_id, other.run_id[:9], folder=tmp_path)
    by_name = figures(found)
    tau = sum(r.committed for r in ours.rounds) / len(ours.rounds)
    assert (found.first, found.second, found.requests) == ("vanilla", "toy:3", 10)
    assert by_name["tau"].first == 1.0
    assert by_name["tau"].second == pytest.approx(tau)
    assert by_name["tau"].difference.value == pytest.approx(tau - 1)
    cost = by_name["seconds_per_decode_token"]
    assert cost.first == pytest.approx(0.035)
    assert cost.second == pytest.approx(0.05 / tau)
    assert cost.ratio.value == pytest.approx(0.05 / tau / 0.035)
    assert cost.ratio.low < cost.ratio.value < cost.ratio.high
    assert cost.ratio.interval == "paired bootstrap over prompts"
    assert cost.ratio_runs is None
    assert "acceptance_rate" not in by_name  # plain decoding verifies nothing: absent, not zero
    assert by_name["mean_output_tokens"].ratio.value == 1.0
    text = shown(found)
    assert "ms per decode token" in text
    assert "drafts a cycle: 0 against 3" in text
    assert "toy:3 cannot be ranked: the losslessness verdict is absent" in text


def test_equal_arms_differ_by_nothing_however_much_prompts_vary(tmp_path: Path) -> None:
    trace = drafting()
    one, other = save(tmp_path, trace), save(tmp_path, trace, created="2027-01-01T00:00:00Z")
    (found,) = compare(one.run_id, other.run_id, folder=tmp_path)
    for contrast in found.contrasts:
        assert (contrast.difference.low, contrast.difference.value, contrast.difference.high) == (0, 0, 0)
        assert contrast.ratio is not None
        assert (contrast.ratio.low, contrast.ratio.high) == (pytest.approx(1), pytest.approx(1))
    assert figures(found)["acceptance_rate"].first < 1


def test_pairing_narrows_the_interval(tmp_path: Path) -> None:
    """The second arm loses 2 % on every prompt: prompts vary by far more, and the paired interval does not care."""
    one, other = save(tmp_path, drafting()), save(tmp_path, drafting(slow=1.0 + 0.001 / 0.03))
    (found,) = compare(one.run_id, other.run_id, folder=tmp_path)
    ratio = figures(found)["seconds_per_decode_token"].ratio
    assert ratio.value == pytest.approx(1.02)
    assert ratio.high - ratio.low < 1e-9


def test_repeats_and_seeds_are_paired_and_give_a_second_interval(tmp_path: Path) -> None:
    slows = [1.05, 1.1, 1.15]
    for seed, slow in enumerate(slows):
        save(tmp_path / "a", drafting(seed=seed), seed=seed)
        save(tmp_path / "b", drafting(seed=seed, slow=slow), seed=seed)
    save(tmp_path / "a", drafting(seed=9), seed=9)
    (found,) = compare(str(tmp_path / "a"), str(tmp_path / "b"), folder=tmp_path)
    assert (len(found.runs), found.requests) == (3, 30)
    assert "1 runs of toy:3 have no partner with their seed" in found.notes
    runs = figures(found)["seconds_per_decode_token"].ratio_runs
    assert (runs.n, runs.n_of, runs.interval) == (3, "runs an arm", "run to run")
    assert runs.value == pytest.approx(1 + 0.1 * 0.6, abs=1e-3)
    assert runs.low < 1.03
    assert runs.high > 1.09
    assert "run to run" in shown(found)


def test_the_sample_of_prompts_may_change_with_the_seed_but_not_between_arms(tmp_path: Path) -> None:
    for seed in (0, 1):
        key = key_with("prompt_set.ids", str(seed) * 64)
        for arm in "ab":
            save(tmp_path / arm, drafting(seed=seed), seed=seed, key=key)
    (found,) = compare(str(tmp_path / "a"), str(tmp_path / "b"), folder=tmp_path)
    assert len(found.runs) == 2
    save(tmp_path / "c", drafting(), key=key_with("prompt_set.ids", "7" * 64))
    with pytest.raises(RecordError, match="prompt ids: 000000000000 against 777777777777"):
        compare(str(tmp_path / "a"), str(tmp_path / "c"), folder=tmp_path)


def test_folders_are_compared_row_by_row(tmp_path: Path) -> None:
    ours = drafting()
    for arm in "ab":
        save(tmp_path / arm, ours)
        save(tmp_path / arm, plain_trace(ours))
    save(tmp_path / "b", replace(ours, method="other"))
    found = compare(str(tmp_path / "a"), str(tmp_path / "b"), folder=tmp_path)
    assert [(c.first, c.second) for c in found] == [("toy:3", "toy:3"), ("vanilla", "vanilla")]
    assert any("no partner for other:3" in note for note in found[0].notes)
    save(tmp_path / "b", ours, spec={"options": {"depth": 2}})
    with pytest.raises(RecordError, match="holds two rows of toy:3"):
        compare(str(tmp_path / "a"), str(tmp_path / "b"), folder=tmp_path)
    save(tmp_path / "d", replace(ours, method="third"))
    with pytest.raises(RecordError, match=r"no row of .* has a partner"):
        compare(str(tmp_path / "a"), str(tmp_path / "d"), folder=tmp_path)


def test_methods_of_a_folder_are_compared_task_by_task_and_over_tasks(tmp_path: Path) -> None:
    traces = {}
    for task, accept in (("one", 0.5), ("two", 0.8)):
        for name, more in (("dflash", 0.0), ("dspark", 0.1)):
            trace = replace(drafting(accept + more, seed=len(task)), method=name)
            traces[task, name] = trace
            save(tmp_path, trace, spec={"tasks": [task]})
    other = replace(drafting(0.9), method="mtp")
    save(tmp_path, other, spec={"tasks": ["one"]})
    found = compare("dflash:3", "dspark:3", folder=tmp_path)
    assert [(one.first, one.second) for one in found] == [("dflash:3", "dspark:3")] * 3
    taus = {place: sum(r.committed for r in t.rounds) / len(t.rounds) for place, t in traces.items()}
    macro = figures(found[-1])
    assert list(macro) == ["tau over 2 tasks"]
    row = macro["tau over 2 tasks"]
    first, second = ((taus["one", name] + taus["two", name]) / 2 for name in ("dflash", "dspark"))
    assert (row.first, row.second) == (pytest.approx(first), pytest.approx(second))
    assert row.ratio.value == pytest.approx(second / first)
    assert row.ratio.low < row.ratio.value < row.ratio.high
    assert row.ratio.n == 20
    lone = figures(found[0])["tau"].ratio
    assert row.ratio.high - row.ratio.low < lone.high - lone.low, "two tasks tell more than one"
    assert [one.tasks for one in found] == ["one", "two", "mean over one, two"]
    assert "(A), load closed:1, mean over one, two: 20 request pairs" in shown(found[-1])
    assert len(found[-1].runs) == 2
    with pytest.raises(RecordError, match="holds no finished run of dspark:7"):
        compare("dflash:3", "dspark:7", folder=tmp_path)
    (single,) = compare("mtp:3", "mtp:3", folder=tmp_path)
    assert figures(single)["tau"].ratio.value == 1


def test_requests_with_another_prompt_or_seed_are_left_out(tmp_path: Path) -> None:
    ours = drafting()
    changed = tuple(replace(r, prompt_hash="other") if i < 3 else r for i, r in enumerate(ours.requests))
    one, other = save(tmp_path, ours), save(tmp_path, replace(ours, requests=changed))
    (found,) = compare(one.run_id, other.run_id, folder=tmp_path)
    assert found.requests == 7
    assert sum("3 requests of toy:3 have no partner" in note for note in found.notes) == 2
    third = save(tmp_path, ours, seed=5)
    with pytest.raises(RecordError, match=r"ran with seeds \[0\] and .* with \[5\]"):
        compare(one.run_id, third.run_id, folder=tmp_path)


# ------------------------------------------------------------------------------------------------------- refusals

ROWS = [("p1", ["What is 2 + 2?"]), ("p2", ["And 3 + 3?"])]


@pytest.mark.parametrize(
    ("path", "before", "after", "words"),
    [  # T22: one weight byte, one row of the data, the template
        ("target_weights", "a" * 64, "1" + "a" * 63, "target weights: aaaaaaaaaaaa against 1aaaaaaaaaaa"),
        ("rendering.dataset", dataset_sha256(ROWS), dataset_sha256([ROWS[0], ("p2", ["And 3 + 4?"])]), "dataset"),
        ("rendering.template", "c" * 64, "d" * 64, "chat template"),
        # T23: rules, T, load
        ("acceptance_rule", "rejection", "typical", "acceptance rule: rejection against typical"),
        ("sampling.temperature", 0.0, 1.0, "temperature: 0.0 against 1.0"),
        ("load", "closed:1", "closed:8", "load: closed:1 against closed:8"),
    ],
)
def test_rows_that_differ_are_refused_with_the_difference(
    tmp_path: Path, path: str, before: object, after: object, words: str
) -> None:
    one = save(tmp_path, drafting(), key=key_with(path, before))
    other = save(tmp_path, drafting(), key=key_with(path, after))
    for timings in (True, False):
        with pytest.raises(RecordError, match="cannot be compared") as caught:
            compare(one.run_id, other.run_id, folder=tmp_path, timings=timings)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_other_hardware_is_refused_for_timings_alone(tmp_path: Path) -> None:
    one = save(tmp_path, drafting())
    other = save(tmp_path, drafting(0.5), key=key_with("timing.hardware", "another"))
    with pytest.raises(RecordError, match=r"hardware: a processor against another.*--no-timings"):
        compare(one.run_id, other.run_id, folder=tmp_path)
    (found,) = compare(one.run_id, other.run_id, folder=tmp_path, timings=False)
    assert set(figures(found)) == {"tau", "acceptance_rate", "mean_output_tokens"}


def test_runs_without_rounds_and_names_without_runs_are_refused(tmp_path: Path) -> None:
    good = save(tmp_path, drafting())
    bad = save(tmp_path / "bad", drafting(), status="failed")
    (tmp_path / "bad" / ("0" * 16 + ".json")).write_text("{")
    with pytest.raises(RecordError, match=r"holds no finished run.*is failed"):
        compare(good.run_id, str(tmp_path / "bad" / f"{bad.run_id}.json"), folder=tmp_path)
    with pytest.raises(RecordError, match=r"holds no finished run.*half-written"):
        compare(good.run_id, str(tmp_path / "bad"), folder=tmp_path)
    with pytest.raises(RecordError, match="holds no finished run of nonsense"):
        compare(good.run_id, "nonsense", folder=tmp_path)
    store.rounds_path(tmp_path, good.run_id).unlink()
    with pytest.raises(RecordError, match="left out or moved"):
        compare(good.run_id, good.run_id, folder=tmp_path)


def test_intervals_cover_the_true_ratio_about_as_often_as_they_say(tmp_path: Path) -> None:
    """Prompts vary in speed tenfold, the second arm takes 1.1 times as long on average: paired intervals find it."""
    generator, hits, runs = random.Random(1), 0, 40
    base = simulate_trace(0.7, gamma=3, rounds=60, requests=20)
    owner = {r.step: r.request for r in base.rounds}
    for _ in range(runs):
        pace = {r.id: 10 ** generator.random() for r in base.requests}
        extra = {r.id: 1.1 + generator.uniform(-0.2, 0.2) for r in base.requests}

        def timed(factor: dict[str, float], pace: dict[str, float] = pace) -> RunTrace:
            steps = [
                replace(s, verify_s=0.01 * pace[owner[s.step]] * factor[owner[s.step]], draft_s=0.0, schedule_s=0.0,
                        accept_s=0.0, other_s=0.0)
                for s in base.steps if s.step in owner
            ]  # fmt: skip
            return replace(base, steps=(base.steps[0], *steps))

        found = contrasts(match([timed(dict.fromkeys(pace, 1.0))], [timed(extra)]), timings=True)
        ratio = next(c.ratio for c in found if c.metric == "seconds_per_decode_token")
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        hits += ratio.low <= 1.1 <= ratio.high
    assert hits / runs > 0.8
