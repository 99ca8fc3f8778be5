"""Block drafters where no reference has numbers: limits, batches, sampling, reduced vocabularies, bad input."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specbench_drafters.dflash import PLUGIN as DFLASH
from specbench_drafters.dspark import PLUGIN as DSPARK
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.record import LoadedCheckpoint
from support_drafting import FIXTURES, CounterRandom, fixture_model, fixture_view, make_features, make_rows
from support_engine import outputs, request, serve
from support_fixture_runs import engine_drafter, fixture_target

from specbench.errors import CheckpointError, ConfigError, DrafterError
from specbench.types import Rows, TargetView

NAMES = ["dflash", "zlab_dflash", "dspark_markov", "dspark_gated", "dspark_rnn"]
WIDTH = 3 * 64


def plugin(name: str) -> Any:
    return DSPARK if name.startswith("dspark") else DFLASH


def checkpoint(name: str) -> LoadedCheckpoint:
    return load_checkpoint(FIXTURES / name, target_config=fixture_model().config)


def with_context(drafter: Any, rows: Rows) -> None:
    """Random context for each row; the same for the same slot and length."""
    parts = []
    for slot, length in zip(rows.slots_host, rows.lengths_host):
        noise = torch.Generator().manual_seed(1000 * slot + length)
        ids = torch.randint(0, 250, (length,), generator=noise).tolist()
        parts.append((ids, 0, 3 * torch.randn(length, WIDTH, generator=noise), 1))
    begin = make_rows(rows.slots_host, [0] * len(rows), [0] * len(rows))
    drafter.begin(begin)
    drafter.prefill(begin, make_features(parts))


def make(name: str, *, view: TargetView | None = None, **options: Any) -> Any:
    return plugin(name).build(checkpoint(name), target=view or fixture_view(), options=options)


# ------------------------------------------------------------------------------- rows do not meet


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_rows_drafts_depend_on_no_other_row_and_no_limit(name: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    slots = data.draw(st.permutations(range(8)))[:count]
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=count, max_size=count))
    limits = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any))
    heat = data.draw(st.sampled_from([0.0, 1.0]))
    rows = make_rows(slots, lengths, [7] * count, temperature=heat)
    drafter = make(name)
    with_context(drafter, rows)
    found = drafter.propose(rows, limits=torch.tensor(limits), rng=CounterRandom())
    assert found.tokens.shape == (count, max(limits))
    assert found.counts.tolist() == limits
    for row in range(count):
        alone = make_rows(slots[row : row + 1], lengths[row : row + 1], [7], temperature=heat)
        single = make(name)
        with_context(single, alone)
        whole = single.propose(alone, limits=torch.tensor([5]), rng=CounterRandom())
        kept = limits[row]
        assert found.tokens[row, :kept].equal(whole.tokens[0, :kept])
        if found.confidence is not None:
            torch.testing.assert_close(found.confidence[row, :kept], whole.confidence[0, :kept], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_more_drafts_than_the_block_holds(name: str) -> None:
    drafter, rows = make(name), make_rows([0], [9], [7])
    assert drafter.trained_length == 5
    with_context(drafter, rows)
    with pytest.warns(UserWarning, match="7 drafts a round asked of a drafter whose block holds 5"):
        found = drafter.propose(rows, limits=torch.tensor([7]), rng=CounterRandom())
    assert found.counts.tolist() == [5]
    with warnings.catch_warnings():  # said once
        warnings.simplefilter("error")
        drafter.propose(rows, limits=torch.tensor([7]), rng=CounterRandom())


# ------------------------------------------------------------------------------- sampling


@pytest.mark.parametrize("name", NAMES)
def test_sampled_drafts_come_with_their_distribution(name: str) -> None:
    rows = make_rows([0, 1], [9, 4], [7, 8], temperature=[1.0, 0.0])
    drafter = make(name)
    with_context(drafter, rows)
    found = drafter.propose(rows, limits=torch.tensor([5, 3]), rng=CounterRandom())
    greedy = drafter.propose(make_rows([0, 1], [9, 4], [7, 8]), limits=torch.tensor([5, 3]), rng=CounterRandom())
    assert greedy.draft is None
    assert found.draft is not None
    assert found.draft.logits.shape == (2, 5, 320)
    assert found.draft.logits.dtype == torch.float32
    assert found.tokens[1].equal(greedy.tokens[1])
    q = (found.draft.logits - found.draft.log_normaliser[..., None]).exp()
    torch.testing.assert_close(q.sum(-1), torch.ones(2, 5))
    hidden = drafter.model.predictions(drafter.state.block(rows), drafts=5)[0]
    logits = drafter.model.logits(hidden)
    if drafter.model.markov_head is not None:  # the distribution is that of the tokens really drafted before
        logits = logits + drafter.model.markov_head.forced(
            hidden, torch.cat((rows.last_token[:1], found.tokens[0, :4]))
        )
    torch.testing.assert_close(q[0], torch.softmax(logits, -1), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["dflash", "dspark_rnn"])
def test_first_drafts_follow_their_distribution(name: str) -> None:
    """5000 requests that differ in nothing but their random numbers."""
    drafter = make(name, view=fixture_view(max_rows=500))
    counts, q = torch.zeros(320), torch.zeros(320)
    slots = range(500)
    rows = make_rows(slots, [6] * 500, [7] * 500, temperature=1.0)
    hidden = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(2))
    drafter.prefill(make_rows(slots, [0] * 500, [0] * 500), make_features([([1] * 6, 0, hidden, 7) for _ in slots]))
    for seed in range(10):
        rows = replace(rows, seed=torch.full((500,), seed))
        found = drafter.propose(rows, limits=torch.full((500,), 2), rng=CounterRandom())
        assert found.draft is not None
        counts += torch.bincount(found.tokens[:, 0], minlength=320)
        q = (found.draft.logits[0, 0] - found.draft.log_normaliser[0, 0]).exp()
    kept = q * 5000 > 5
    assert kept.sum() >= 3
    expected = torch.cat((q[kept], (1 - q[kept].sum()).clamp(min=1e-9)[None])) * 5000
    seen = torch.cat((counts[kept], counts[~kept].sum()[None]))
    chi_squared = float(((seen - expected) ** 2 / expected).sum())
    degrees = int(kept.sum())
    assert chi_squared < degrees + 5 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("name", NAMES)
def test_greedy_drafts_at_a_temperature_are_point_masses(name: str) -> None:
    rows = make_rows([0], [9], [7], temperature=1.0)
    drafter = make(name, draft_sampling="greedy")
    with_context(drafter, rows)
    found = drafter.propose(rows, limits=torch.tensor([5]), rng=CounterRandom())
    plain = drafter.propose(make_rows([0], [9], [7]), limits=torch.tensor([5]), rng=CounterRandom())
    assert found.draft is None
    assert found.tokens.equal(plain.tokens)


# ------------------------------------------------------------------------------- through the engine


@pytest.mark.parametrize("name", NAMES)
def test_a_drafted_stop_ends_the_proposal(name: str) -> None:
    prompt = list(range(60, 75))
    plain = serve(fixture_target(), engine_drafter(plugin(name), name), [request(0, prompt)], k=5)
    (text,) = outputs(plain).values()
    for stop in set(text[4:12]):
        drafter = engine_drafter(plugin(name), name, stop_ids=[stop])
        trace = serve(fixture_target(), drafter, [request(0, prompt, stop_ids=frozenset([stop]))], k=5)
        (cut,) = outputs(trace).values()
        assert cut == text[: text.index(stop) + 1]
        for found in trace.rounds:
            assert stop not in found.draft_ids[:-1]
            assert len(found.draft_ids) == found.drafted


@pytest.mark.parametrize("name", ["zlab_dflash", "dspark_gated"])
def test_text_is_the_targets_at_any_batch_and_context_limit(name: str) -> None:
    prompts = [[60, 61, 62], list(range(70, 90)), [5] * 11, list(range(100, 130))]
    requests = [request(n, ids, max_new_tokens=20 + n) for n, ids in enumerate(prompts)]
    wide = serve(fixture_target(), engine_drafter(plugin(name), name), requests, k=5, rows=4, prefill_budget=8)
    alone = [serve(fixture_target(), engine_drafter(plugin(name), name), [r], k=5, rows=1) for r in requests]
    for found, single in zip(requests, alone):
        assert outputs(wide)[found.id] == outputs(single)[found.id]
        mine = [r.draft_ids for r in wide.rounds if r.request == found.id]
        assert mine == [r.draft_ids for r in single.rounds]
    none = serve(fixture_target(), engine_drafter(plugin(name), name), requests, k=0, rows=4)
    assert outputs(none) == outputs(wide)


def test_beyond_the_drafters_own_limit_rows_decode_without_drafts() -> None:
    loaded = checkpoint("dflash")
    short = replace(loaded, spec=replace(loaded.spec, backbone=replace(loaded.spec.backbone, max_position=40)))
    view = fixture_target().view(max_rows=2, max_context=200)
    with pytest.warns(UserWarning, match="made for 40 positions and the run allows 200"):
        drafter = DFLASH.build(short, target=view, options={})
    assert drafter.max_context == 40
    trace = serve(fixture_target(), drafter, [request(0, list(range(60, 90)), max_new_tokens=30)], k=5, rows=2)
    assert all(r.drafted == 0 for r in trace.rounds if r.anchor_position >= 39)
    assert any(r.drafted > 0 for r in trace.rounds)
    plain = serve(fixture_target(), drafter, [request(0, list(range(60, 90)), max_new_tokens=30)], k=0, rows=2)
    assert outputs(trace) == outputs(plain)


# ------------------------------------------------------------------------------- reduced vocabularies


def reduced(name: str, ids: torch.Tensor) -> LoadedCheckpoint:
    """The fixture drafter with the output rows of ``ids`` only."""
    loaded = checkpoint(name)
    tensors = dict(loaded.tensors)
    for key in ("lm_head.weight", "markov_head.markov_w2.weight"):
        if key in tensors:
            tensors[key] = tensors[key][ids]
    return replace(loaded, tensors=tensors, spec=replace(loaded.spec, d2t=ids))


@pytest.mark.parametrize("name", NAMES)
def test_a_reduced_vocabulary_drafts_the_best_of_what_it_can_name(name: str) -> None:
    ids = torch.arange(1, 320, 3)
    drafter, whole = plugin(name).build(reduced(name, ids), target=fixture_view(), options={}), make(name)
    for heat in (0.0, 1.0):
        rows = make_rows([0, 1], [9, 4], [7, 8], temperature=heat)
        with_context(drafter, rows)
        with_context(whole, rows)
        found = drafter.propose(rows, limits=torch.tensor([5, 5]), rng=CounterRandom())
        assert torch.isin(found.tokens, ids).all()
        hidden = whole.model.predictions(whole.state.block(rows), drafts=5)
        logits = whole.model.logits(hidden)
        if whole.model.markov_head is not None:
            logits = logits + whole.model.markov_head.forced(
                hidden, torch.cat((rows.last_token[:, None], found.tokens[:, :-1]), dim=1)
            )
        if heat == 0.0:
            assert found.tokens.equal(ids[logits[..., ids].argmax(-1)])
        else:
            assert found.draft is not None
            assert found.draft.id_map is not None
            assert found.draft.id_map.equal(ids)
            q = (found.draft.logits - found.draft.log_normaliser[..., None]).exp()
            torch.testing.assert_close(q, torch.softmax(logits[..., ids], -1), atol=1e-6, rtol=1e-4)


# ------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": 96}, "hidden size of 64"),
        ({"vocab_size": 512}, "vocabulary of 320"),
        ({"num_layers": 8}, "layer count of 6"),
    ],
)
def test_another_target_is_refused(change: dict[str, int], says: str) -> None:
    with pytest.raises(DrafterError, match=says) as error:
        make("dflash", view=fixture_view(**change))
    assert "\n" not in str(error.value)


def test_float16_is_refused() -> None:
    view = fixture_view(dtype=torch.float16)
    with pytest.raises(DrafterError, match="overflow in float16"):
        make("zlab_dflash", view=view)
    with pytest.raises(DrafterError, match="overflow in float16"):
        make("zlab_dflash", dtype="float16")
    assert make("zlab_dflash", view=view, dtype="float32").model.dtype == torch.float32
    with pytest.raises(ConfigError, match="dtype is 'int8'"):
        make("zlab_dflash", dtype="int8")


def test_damaged_checkpoints_are_refused() -> None:
    loaded = checkpoint("dspark_rnn")
    bad = dict(loaded.tensors)
    bad["fc.weight"] = bad["fc.weight"].clone().index_fill_(0, torch.tensor([3]), torch.nan)
    cases: list[tuple[LoadedCheckpoint, str]] = [
        (replace(loaded, tensors=bad), "NaN"),
        (replace(loaded, tensors={k: v for k, v in loaded.tensors.items() if k != "norm.weight"}), "lacks 1 tensors"),
        (replace(loaded, tensors=loaded.tensors | {"sink": torch.zeros(1)}), "holds tensor sink"),
        (replace(loaded, tensors=loaded.tensors | {"norm.weight": torch.zeros(3)}), "has shape"),
        (replace(loaded, spec=replace(loaded.spec, taps=())), "no target layers"),
        (replace(loaded, spec=replace(loaded.spec, taps=(1, 2, 9))), "reads state 9"),
        (replace(loaded, spec=replace(loaded.spec, mask_token_id=None)), "mask_token_id"),
        (replace(loaded, spec=replace(loaded.spec, mask_token_id=320)), "outside the vocabulary"),
        (replace(loaded, spec=replace(loaded.spec, markov="none")), "Markov"),
        (replace(loaded, spec=replace(loaded.spec, d2t=torch.zeros(320, dtype=torch.int64))), "all zero"),
    ]
    for case, says in cases:
        with pytest.raises(DrafterError, match=says) as error:
            DSPARK.build(case, target=fixture_view(), options={})
        assert "\n" not in str(error.value)
    reduced_without_map = replace(
        loaded, tensors=loaded.tensors | {"lm_head.weight": loaded.tensors["lm_head.weight"][:100]}
    )
    with pytest.raises(CheckpointError, match="no d2t map"):
        DSPARK.build(reduced_without_map, target=fixture_view(), options={})


def test_the_wrong_method_and_no_checkpoint() -> None:
    with pytest.raises(DrafterError, match="use --method dflash"):
        DSPARK.build(checkpoint("dflash"), target=fixture_view(), options={})
    with pytest.raises(DrafterError, match="needs a checkpoint"):
        DFLASH.load(None, target=fixture_view(), options={})
    with pytest.raises(ConfigError, match="draft_sampling"):
        make("dflash", draft_sampling="hot")


def test_bytes_count_own_weights_and_cache_only() -> None:
    drafter = make("zlab_dflash")
    stored = sum(t.numel() * t.element_size() for t in drafter.model.state_dict().values())
    assert not any(name.startswith(("embed", "lm_head")) for name in drafter.model.state_dict())
    assert drafter.state_bytes() == stored
    with_context(drafter, make_rows([0], [9], [7]))
    assert drafter.state_bytes() > stored


def test_bfloat16_layers_draft_finite_tokens() -> None:
    drafter, rows = make("dspark_markov", dtype="bfloat16"), make_rows([0], [9], [7], temperature=1.0)
    with_context(drafter, rows)
    found = drafter.propose(rows, limits=torch.tensor([5]), rng=CounterRandom())
    assert found.draft is not None
    assert torch.isfinite(found.draft.log_normaliser).all()
    assert found.confidence is not None
    assert found.confidence.dtype == torch.float32
