"""Scripted service under the virtual clock: knees, gains and refusals of ratios worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from rich.console import Console
from support_records import make_record

from specbench.backends.scripted import Script, ScriptedBackend
from specbench.engine.clock import VirtualClock
from specbench.errors import RecordError
from specbench.metrics._service import service
from specbench.records import sla_result
from specbench.records.sla_result import GainRow, SearchRow, SlaResult
from specbench.report.sla_table import sla_table
from specbench.sla import Ceiling, Sla, Space
from specbench.sla_findings import Contest, LoadData, gains, judged, level_row, probe_rows, probe_run, search_row
from specbench.types import Prompt, Request, RunTrace, Sampling
from specbench.workloads.closed import ClosedLoop
from specbench.workloads.driver import drive

TOKENS = 33  # the prefill's and 32 more: whole rounds of 1, 2 and 4 tokens


@dataclass
class Late:
    """Arrivals at a fixed rate, whatever became of those before."""

    rate: float
    open_loop: bool = True
    think_time_s: float = 0.0
    sent: int = 0

    def due(self, now_s: float, *, in_flight: int) -> int:
        count = int(now_s * self.rate + 1e-9) + 1 - self.sent
        self.sent += count
        return count

    def next_s(self) -> float | None:
        return self.sent / self.rate


def build(prompt: Prompt, answers: object) -> Request:
    return Request(
        id=f"{prompt.task}/{prompt.id}/0", number=int(prompt.id), prompt_ids=(1, 2, int(prompt.id) + 3),
        max_new_tokens=TOKENS, sampling=Sampling(), seed=0, stop_ids=frozenset(), ignore_eos=True, task="t", domain="d",
    )  # fmt: skip


def serve(users: float, *, step_s: float, accepted: int = 0, rows: int | None = None, rate: float | None = None
          ) -> RunTrace:  # fmt: skip
    """Forty conversations in a closed loop, or at a rate; a step takes ``step_s`` whoever is in it."""
    rows = int(users) if rows is None else rows
    script = Script(draft_length=3 if accepted else 0, accepted=lambda r, i: accepted, verify_s=step_s, max_rows=rows)
    clock = VirtualClock()
    arrivals = ClosedLoop(concurrency=int(users)) if rate is None else Late(rate)
    prompts = [Prompt(str(i), "t", "d", ("x",)) for i in range(40)]
    backend = ScriptedBackend(script, clock=clock)
    return drive(backend, conversations=prompts, build=build, arrivals=arrivals, clock=clock).trace


def contest(label: str, step_s: Callable[[float], float], *, accepted: int = 0, loads: tuple[int, ...] = (),
            repeats: int = 2, space: Space | None = None, level: Sla | None = None) -> Contest:  # fmt: skip
    """Probe the loads, or (without any) those that the search asks for."""
    found = Contest(label)
    wanted = iter(loads)
    while True:
        load = next(wanted, None) if loads else found.wanted(space, [level])  # type: ignore[list-item, arg-type]
        if load is None:
            return found
        runs = []
        for repeat in range(repeats):
            trace = serve(load, step_s=step_s(load) * (1 + 0.01 * repeat), accepted=accepted)
            record = make_record(method=label, spec={"seed": repeat})
            runs.append(probe_run(record, service(trace), repeat=repeat))
        found.loads[load] = LoadData.of(load, runs)


LEVEL = Sla(20.0)
SPACE = Space(whole=True, start=1, low=1, high=16)


@cache
def plain() -> Contest:
    """A step of 5 ms and 5 ms a user: 1 / (0.005 (n + 1)) tok/s/user, so that 20 are held up to n = 8 (at 1.005)."""
    return contest("vanilla", lambda n: 0.005 * (n + 1), space=SPACE, level=LEVEL)


@cache
def drafting() -> Contest:
    """Two tokens a round at the same price plus half: 2 / (0.0075 (n + 1)), so that 20 are held up to n = 12."""
    return contest("toy:3", lambda n: 0.0075 * (n + 1), accepted=1, space=SPACE, level=LEVEL)


def row_of(found: Contest, level: Sla = LEVEL, space: Space = SPACE) -> SearchRow:
    return search_row(found, space, level, index=0)


def test_knees_and_gains_by_hand() -> None:
    base, ours = plain(), drafting()
    first, second = row_of(base), row_of(ours)
    assert (first.outcome, first.max_pass, first.first_fail) == ("attained", 8, 9)
    assert (second.outcome, second.max_pass, second.first_fail) == ("attained", 12, 13)
    assert first.speed is not None
    assert first.speed.value == pytest.approx((1 / 0.045 + 1 / (0.045 * 1.01)) / 2, rel=1e-6)
    assert first.throughput is not None
    assert second.throughput is not None
    assert (first.throughput.n, first.throughput.interval) == (2, "run to run")
    assert first.throughput.value == pytest.approx(8 * first.speed.value, rel=0.05)
    probes = [*probe_rows(base), *probe_rows(ours)]
    (gain,) = gains([first, second], probes, baseline="vanilla", few=3)
    assert gain.throughput is not None
    assert gain.throughput.value == pytest.approx(second.throughput.value / first.throughput.value)
    assert gain.throughput.value == pytest.approx(12 * 2 / (0.0075 * 13) / (8 / 0.045), rel=0.05)
    assert gain.throughput.low == pytest.approx(gain.throughput.value, rel=1e-3)  # both arms drift alike
    # as many tokens as eight plain users take two that are drafted for: too few for a ratio, unless one is asked for
    assert (gain.throughput_why, gain.speed) == (None, None)
    assert "no more than 3 requests in flight" in str(gain.speed_why)
    (gain,) = gains([first, second], probes, baseline="vanilla", few=2)
    assert gain.speed is not None
    assert gain.speed.value == pytest.approx(2 / (0.0075 * 3.1) / (1 / 0.045), rel=0.05)
    assert gain.speed_why is None


def test_a_floor_that_no_load_holds_gives_no_number() -> None:
    level = Sla(300.0)
    base = contest("vanilla", lambda n: 0.005 * (n + 1), space=SPACE, level=level)
    assert sorted(base.loads) == [1, 2]
    found = row_of(base, level)
    assert found.outcome == "not attainable"
    assert (found.throughput, found.speed, found.best) == (None, None, None)
    assert "no load from 1 to 2 users holds it, nearest 1: tok/s/user 99.5" in found.reason
    (gain,) = gains([found, row_of(drafting())], probe_rows(base), baseline="vanilla", few=3)
    assert (gain.throughput, gain.throughput_why) == (None, "vanilla: not attainable")


def test_a_nearly_empty_baseline_gives_no_ratio() -> None:
    level = Sla(60.0)
    base = contest("vanilla", lambda n: 0.005 * (n + 1), space=SPACE, level=level)
    ours = contest("toy:3", lambda n: 0.004 * (n + 1), accepted=1, space=SPACE, level=level)
    searches = [row_of(base, level), row_of(ours, level)]
    assert [row.max_pass for row in searches] == [2, 7]
    probes = [*probe_rows(base), *probe_rows(ours)]
    (gain,) = gains(searches, probes, baseline="vanilla", few=3)
    assert gain.throughput is None
    assert gain.throughput_why == "vanilla holds it with 2 requests in flight"
    assert gain.speed is None
    (gain,) = gains(searches, probes, baseline="vanilla", few=1.5)
    assert gain.throughput is not None


def test_bounds_are_no_ratios_against_the_baseline_and_say_at_least_for_a_method() -> None:
    short = Space(whole=True, start=1, low=1, high=8)
    base, ours = plain(), contest("toy:3", lambda n: 0.002 * (n + 1), accepted=1, space=short, level=LEVEL)
    bound = row_of(ours, space=short)
    assert (bound.outcome, bound.max_pass, bound.first_fail) == ("all pass (bound)", 8, None)
    probes = [*probe_rows(base), *probe_rows(ours)]
    (gain,) = gains([row_of(base), bound], probes, baseline="vanilla", few=3)
    assert gain.throughput is not None
    assert gain.throughput.scope == {"bound": "at least"}
    swapped = gains([row_of(base).model_copy(update={"method": "x"}), bound.model_copy(update={"method": "vanilla"})],
                    [p.model_copy(update={"method": "x" if p.method == "vanilla" else "vanilla"}) for p in probes],
                    baseline="vanilla", few=3)  # fmt: skip
    assert swapped[0].throughput_why == "vanilla passes at every load: its bound is not known"
    assert gains([bound], probe_rows(ours), baseline=None, few=3) == []


def test_ceilings_on_ttft_and_tpot() -> None:
    level = Sla(None, (Ceiling("tpot", 99, 0.03), Ceiling("ttft", 50, 10.0)))
    found = row_of(contest("vanilla", lambda n: 0.005 * (n + 1), space=SPACE, level=level), level)
    assert (found.max_pass, found.first_fail) == (4, 5)  # 25.25 ms, and 30.3 in the second run
    assert found.judged[-1].reasons[0].startswith("tpot p99 ")


def test_the_noise_of_a_limit_counts_other_prompts_and_other_runs() -> None:
    """All prompts are served alike, so they say nothing of noise; the runs differ by one per cent."""
    data = plain().loads[8]
    bound = judged(Sla(22.0), data, open_loop=False).bounds["tok/s/user"]
    over_prompts, over_runs = data.find("tokens_per_s_user", "mean"), data.find_over_runs("tokens_per_s_user", "mean")
    assert over_prompts is not None
    assert over_runs is not None
    assert over_prompts.low == pytest.approx(over_prompts.high)
    assert (bound.low, bound.high) == (over_runs.low, over_runs.high)
    assert bound.close


def test_a_method_that_failed_or_was_interrupted_is_not_measured() -> None:
    base = Contest("vanilla", dict(plain().loads))
    base.trouble = "vanilla at 2 users, run 1 of 2 failed: boom"
    assert base.wanted(SPACE, [LEVEL]) is None
    assert (row_of(base).outcome, row_of(base).throughput) == ("not measured", None)
    half = contest("vanilla", lambda n: 0.005 * (n + 1), loads=(1, 2, 4))
    assert (row_of(half).outcome, row_of(half).reason) == ("not measured", "interrupted before the search had ended")


def test_an_open_loop_beyond_capacity_is_not_steady() -> None:
    """One row, 33 steps of 10 ms: 3 requests/s can be served. At 6 they queue, though each is served as fast."""
    space = Space(whole=False, start=1.0, low=1.0, high=8.0, tolerance=0.2)
    found = Contest("vanilla")
    while (load := found.wanted(space, [LEVEL])) is not None:
        trace = serve(1, step_s=0.01, rows=1, rate=load)
        run = probe_run(make_record(spec={"seed": 0}), service(trace), repeat=0)
        found.loads[load] = LoadData.of(load, [run])
    row = row_of(found, space=space)
    assert row.outcome == "attained"
    assert row.max_pass is not None
    assert row.first_fail is not None
    assert row.max_pass <= 3.4
    assert 2.9 <= row.first_fail <= 4.0
    assert "the queue grows: requests are admitted at" in row.reason


def test_a_run_too_short_for_a_steady_window_ends_the_search_without_a_verdict() -> None:
    """Forty rows for forty requests at once: all are admitted before the first has ended."""
    found = Contest("vanilla")
    space = Space(whole=False, start=1.0, low=1.0, high=8.0)
    trace = serve(40, step_s=0.01, rows=40)
    run = probe_run(make_record(spec={"seed": 0}), service(trace), repeat=0)
    assert run.row.throughput is None
    found.loads[1.0] = LoadData.of(1.0, [run])
    assert found.wanted(space, [LEVEL]) is None
    row = row_of(found, space=space)
    assert (row.outcome, row.throughput) == ("not measured", None)
    assert "too short for a steady window; give more prompts" in row.reason


# ------------------------------------------------------------------------------------------------------- the document


def result(**fields: object) -> SlaResult:
    base, ours = plain(), drafting()
    searches = [row_of(base), row_of(ours)]
    probes = [*probe_rows(base), *probe_rows(ours)]
    found: list[GainRow] = gains(searches, probes, baseline="vanilla", few=3)
    document = {
        "created": "2026-01-01T00:00:00Z", "command": ["specbench", "sla"], "metrics_version": "1", "complete": True,
        "levels": [level_row(LEVEL)], "repeats": 2, "few": 3.0, "baseline": "vanilla", "family": {}, "probes": probes,
        "space": {"over": "concurrency", "start": 1, "low": 1, "high": 16, "tolerance": 0.05, "beyond": 1},
        "searches": searches, "gains": found,
    }  # fmt: skip
    return sla_result.build(**{**document, **fields})


def test_results_are_written_whole_and_read_back(tmp_path) -> None:
    made = result()
    path = sla_result.write(tmp_path, made)
    assert path.name == f"sla-{made.sla_id}.json"
    assert sla_result.read(path) == made
    text = path.read_text()
    cases = {
        "changed after it was written": text.replace('"repeats": 2', '"repeats": 3'),
        "not complete JSON": text[: len(text) // 2],
        "upgrade specbench-llm": text.replace('"schema_version": 1', '"schema_version": 2'),
        "field 'searches.0.outcome'": text.replace('"outcome": "attained"', '"outcome": "perfect"', 1),
    }
    for words, content in cases.items():
        path.write_text(content)
        with pytest.raises(RecordError, match=words) as caught:
            sla_result.read(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(RecordError, match="cannot read"):
        sla_result.read(tmp_path / "sla-none.json")
    path.write_text("[1]")
    with pytest.raises(RecordError, match="no result of"):
        sla_result.read(path)


def test_the_table_prints_gains_like_the_paper_and_no_number_for_what_fails() -> None:
    def shown(found: SlaResult) -> str:
        console = Console(width=160)
        with console.capture() as text:
            console.print(sla_table(found))
        return text.get()

    text = shown(result())
    assert "SLA: >= 20 tok/s/user" in text
    assert "8 (9)" in text
    assert "12 (13)" in text
    gain = next(g for g in result().gains).throughput
    assert gain is not None
    assert f"+{100 * (gain.value - 1):.0f} %" in text
    lost = SearchRow(method="toy:3", level=0, outcome="not attainable", reason="no load holds it")
    why = GainRow(method="toy:3", level=0, throughput_why="toy:3: not attainable", speed_why="no load")
    text = shown(result(searches=[result().searches[0], lost], gains=[why], complete=False))
    row = next(line for line in text.splitlines() if line.startswith("toy:3"))
    assert row.count("not attainable") == 3
    assert not any(character.isdigit() for character in row.removeprefix("toy:3"))
    assert "toy:3: not attainable: no load holds it" in text
    assert "interrupted" in text
