"""Padded steps give the tokens and rounds of the plain loop, with one look at the device a cycle."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support_checkpoints import VOCAB
from support_contestants import CONTEXT, Case, Stable, own_cases
from support_engine import request
from support_padded import SIZES, Setting, both, difference, engine_of, run
from support_syncs import counted
from support_tape import Taped

from specbench.engine import padded
from specbench.engine.buffers import Buffers
from specbench.engine.graphs import GraphSettings, Stages, length_sizes, round_up, row_sizes, verify_sizes
from specbench.modeling.padded_layout import PaddedBatch
from specbench.types import Request, RunTrace, Sampling

CASES = {str(case): case for case in own_cases()}
SAFE = [case for name, case in CASES.items() if not name.startswith("draft-model")]
POLICIES = ("fixed", "threshold:0.5", "algorithm1", "load-aware:explore=0.3", "load-aware:draft-cost=on,lag=1")
EDGES = (1, 14, 15, 16, 17, 31, 32, 33)


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Stable:
    return Stable(tmp_path_factory.mktemp("contestants"))


def ask(lengths: list[int], *, temperature: float = 0.0, tokens: int = 6, **more: Any) -> list[Request]:
    rng = random.Random(sum(lengths))
    sampling = Sampling(temperature, top_p=more.pop("top_p", 1.0))
    return [
        request(n, [rng.randrange(VOCAB) for _ in range(length)], max_new_tokens=tokens + n, sampling=sampling, **more)
        for n, length in enumerate(lengths)
    ]


# ------------------------------------------------------------------------------------------ equal to the plain loop


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(
    case=st.sampled_from(SAFE),
    lengths=st.lists(st.sampled_from(EDGES), min_size=1, max_size=4),
    temperature=st.sampled_from((0.0, 1.0)),
    top_p=st.sampled_from((1.0, 0.8)),
    policy=st.sampled_from(POLICIES),
    rows=st.integers(1, 4),
    pages=st.sampled_from((None, 5)),
    joins=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    prefill=st.sampled_from((11, 512)),
)
def test_padded_steps_equal_plain_ones(
    stable: Stable,
    case: Case,
    lengths: list[int],
    temperature: float,
    top_p: float,
    policy: str,
    rows: int,
    pages: int | None,
    joins: list[int],
    prefill: int,
) -> None:
    """Ragged arrivals, preemption, prompts at page edges, every method and policy, both temperatures."""
    setting = Setting(policy, rows, pages, tuple(enumerate(joins)), prefill)
    plain, made, engine = both(stable, case, ask(lengths, temperature=temperature, top_p=top_p), setting)
    assert difference(plain, made) is None
    assert engine.padded is not None
    assert engine.padded.padded_steps > 0
    assert engine.padded.padded_steps + engine.padded.plain_steps.total() == len(made.steps)


@pytest.mark.parametrize("case", [CASES[n] for n in ("ngram", "dspark:own-vanilla")], ids=str)
def test_preempted_requests(case: Case, stable: Stable) -> None:
    setting = Setting("fixed", rows=3, pages=5)
    plain, made, _ = both(stable, case, ask([17, 15, 16], tokens=20), setting)
    assert sum(r.preemptions for r in plain.requests) > 0
    assert difference(plain, made) is None


def test_forced_acceptance(stable: Stable) -> None:
    setting = Setting("fixed", synthetic=(0.7,) * 5)
    plain, made, _ = both(stable, CASES["dspark:own-vanilla"], ask([9, 12, 5]), setting)
    assert difference(plain, made) is None
    assert max(r.accepted for r in made.rounds) > 1


# ------------------------------------------------------------------------- what is captured, and what the host looks at


def _captured(stable: Stable, case: Case, setting: Setting, temperature: float) -> tuple[Any, Any]:
    requests = ask([17, 3], temperature=temperature, tokens=5)
    plain = run(engine_of(stable, case, setting, graphs=None), requests, setting)
    engine = engine_of(stable, case, setting, graphs=replace(SIZES, rows=(3,), recorder=Taped()))
    return difference(plain, run(engine, requests, setting)), engine


@pytest.mark.parametrize("case", [c for c in SAFE if c.variant not in ("own-gated", "own-slots")], ids=str)
def test_stages_can_be_captured(case: Case, stable: Stable) -> None:
    """Replayed from a tape: nothing on the host decides, nothing is read at an old place, pads alone change nothing."""
    found, engine = _captured(stable, case, Setting("load-aware:explore=0.3"), 1.0)
    assert found is None
    facts = engine.padded.facts()
    assert "not_captured" not in facts
    drafts = engine.policy.draft_length
    verified = len(verify_sizes(3, drafts=drafts, least_saved=1))  # sizes that the policy's capacity can choose from
    assert facts["captured_graphs"] == (1 + verified + min(drafts, 1)) * 2  # every size, before the first step


@pytest.mark.parametrize(("policy", "temperature"), [("fixed", 0.0), *((policy, 1.0) for policy in POLICIES)])
def test_one_look_a_cycle(policy: str, temperature: float, stable: Stable) -> None:
    """Every method: one copy to the host in a padded cycle. A policy that may skip drafting asks first."""
    for name in ("vanilla", "ngram", "mtp:own", "eagle3:own", "dflash:own", "dspark:own-vanilla"):
        engine = engine_of(stable, CASES[name], Setting(policy), graphs=SIZES)
        for asked in ask([5, 6], temperature=temperature, tokens=9):
            engine.submit(asked)
        engine.poll()
        seen = 0
        while engine.has_work and seen < 2:
            before = engine.padded.padded_steps if engine.padded else 0
            with counted() as looks:
                engine.poll()
            if engine.padded and engine.padded.padded_steps > before:
                asks = looks.pop("__bool__", 0)
                assert dict(looks) == {"tolist": 1}, f"{name}, {policy}"
                assert asks <= int("draft-cost=on" in policy)
                seen += 1
        assert seen == 2, f"{name} ended too early"


def test_the_counter_sees_what_the_plain_loop_looks_at(stable: Stable) -> None:
    engine = engine_of(stable, CASES["dspark:own-vanilla"], Setting(), graphs=None)
    for asked in ask([5, 6]):
        engine.submit(asked)
    engine.poll()
    with counted() as looks:
        engine.poll()
    assert looks["tolist"] > 1
    assert looks["__int__"] >= 1
    assert sum(looks.values()) >= 4


def test_a_stage_that_cannot_be_captured_is_called_and_said(stable: Stable) -> None:
    stages = Stages(Taped())
    number = torch.tensor(3.0)
    assert [stages.run("odd", 0, lambda: float(number) + 1) for _ in range(2)] == [4.0, 4.0]
    assert "looks at the device" in stages.refused["odd"]
    assert stages.recorded == 0


def test_a_drafter_that_is_not_graph_safe_runs_plain(stable: Stable) -> None:
    plain, made, engine = both(stable, CASES["draft-model:own"], ask([5, 17]), Setting())
    assert difference(plain, made) is None
    assert engine.padded is not None
    assert engine.padded.facts() == {
        "padded_steps": 0,
        "plain_steps": {"the drafter's steps cannot be captured": len(made.steps)},
        "captured_graphs": 0,
    }


def test_more_rows_than_the_largest_size_run_plain(stable: Stable) -> None:
    few = GraphSettings(rows=(1,), lengths=(CONTEXT,))
    plain, made, engine = both(stable, CASES["ngram"], ask([5, 6]), Setting(), graphs=few)
    assert difference(plain, made) is None
    assert engine.padded is not None
    assert set(engine.padded.plain_steps) == {
        "prompt chunks in the step",
        "more rows or tokens than the largest size",
    }


def test_sizes() -> None:
    assert row_sizes(1) == (1,)
    assert row_sizes(9) == (1, 2, 4, 8, 9)
    assert row_sizes(300) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 300)
    assert length_sizes(100) == (100,)
    assert length_sizes(1100) == (512, 1024, 1100)
    assert [round_up(n, (2, 4)) for n in (1, 2, 3, 5)] == [2, 2, 4, None]


# ------------------------------------------------------------------------------------------ planted faults


def _real_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of no row are written to the pool's first page."""
    honest = padded.lay_out

    def planted(shape: Any, **given: Any) -> PaddedBatch:
        batch = honest(shape, **given)
        slots, spare = batch.layout.write_slots, given["num_pages"] * 16
        return replace(batch, layout=replace(batch.layout, write_slots=torch.where(slots >= spare, 0, slots)))

    monkeypatch.setattr(padded, "lay_out", planted)


def _pad_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding verifies drafts of its own: it takes the places of decode rows."""
    honest = Buffers.put

    def planted(self: Buffers, name: str, values: Any, *, count: int) -> None:
        honest(self, name, values, count=count)
        if name == "planned":
            self.planned[count:] = self.sizes.drafts
            self.planned.copy_(self.planned.sort(descending=True).values)

    monkeypatch.setattr(Buffers, "put", planted)


def _stale(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """One input keeps what the step before left in it."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        honest = Buffers.fill

        def planted(self: Buffers, decode: Any, **given: Any) -> None:
            kept = getattr(self, name).clone()
            honest(self, decode, **given)
            getattr(self, name).copy_(kept)

        monkeypatch.setattr(Buffers, "fill", planted)

    return plant


def _pad_in_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding has slot 0: its commits overwrite what the drafter knows of a request."""
    honest = Buffers.fill

    def planted(self: Buffers, decode: Any, **given: Any) -> None:
        honest(self, decode, **given)
        self.slots[len(decode) :] = 0

    monkeypatch.setattr(Buffers, "fill", planted)


FAULTS = {
    "a pad writes to a real page": _real_page,
    "a pad counts as a row": _pad_counts,
    "a pad holds a request's slot": _pad_in_a_slot,
    **{f"stale {name}": _stale(name) for name in ("lengths", "last_token", "pages", "slots", "number", "room")},
}


_FAULTY = Setting("threshold:0.5", rows=3, joins=((3, 4),))


def _faulty_run(stable: Stable, *, graphs: GraphSettings | None) -> RunTrace:
    requests = ask([17, 16, 3, 15], temperature=1.0, tokens=9)
    return run(engine_of(stable, CASES["dspark:own-vanilla"], _FAULTY, graphs=graphs), requests, _FAULTY)


@pytest.fixture(scope="module")
def clean(stable: Stable) -> RunTrace:
    plain = _faulty_run(stable, graphs=None)
    assert difference(plain, _faulty_run(stable, graphs=replace(SIZES, rows=(4,)))) is None
    return plain


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(
    fault: str, clean: RunTrace, stable: Stable, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS[fault](monkeypatch)
    try:
        broken = _faulty_run(stable, graphs=replace(SIZES, rows=(4,)))
    except (AssertionError, RuntimeError, IndexError):
        return
    assert difference(clean, broken) is not None
