"""The parts of a training, one by one: rate, sampler, vocabulary, curve files, tallies, frozen tables, weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support_models import tiny_llama_dir
from support_training import METHODS, MemoryStore, bound, memory_store, recipe, trained_target, view_of
from torch import Tensor

from specbench import registry
from specbench.api import TrainLoss
from specbench.errors import ConfigError, TrainDataError, UnknownNameError
from specbench.train.checkpoint import Curve, read_curve
from specbench.train.evaluate import Tally, _walked
from specbench.train.fit import compile_parts
from specbench.train.frozen import frozen_view
from specbench.train.optim import clip_gradients, learning_rate, make_optimiser
from specbench.train.recipe import OptimiserSpec, Recipe
from specbench.train.sampler import Sampler, load_batch, tap_columns, token_batch
from specbench.train.vocabulary import choose_vocabulary, count_tokens
from specbench.types import Taps

MODEL = trained_target()
STORE = memory_store(MODEL, count=5, answer=12)


@settings(max_examples=60, deadline=None)
@given(total=st.integers(1, 400), warmup=st.floats(0, 0.99), floor=st.floats(0, 1))
def test_the_rate_rises_to_its_peak_and_never_exceeds_it(total: int, warmup: float, floor: float) -> None:
    spec = OptimiserSpec(lr=0.5, warmup=warmup, floor=floor)
    rates = [learning_rate(step, spec=spec, total=total) for step in range(total)]
    assert max(rates) == pytest.approx(0.5)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert min(rates[peak:]) >= floor * 0.5 - 1e-9


def test_vectors_are_not_decayed_and_long_gradients_are_cut() -> None:
    module = torch.nn.Linear(3, 2)
    optimiser = make_optimiser(module, OptimiserSpec(lr=1e-2, weight_decay=0.3))
    assert [(g["weight_decay"], [p.dim() for p in g["params"]]) for g in optimiser.param_groups] == [
        (0.3, [2]),
        (0.0, [1]),
    ]
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    norm = clip_gradients(module.parameters(), 1.0)
    assert norm == pytest.approx(3.0 * 8**0.5)
    seen = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    assert float(seen.norm()) == pytest.approx(1.0, abs=1e-5)
    assert clip_gradients(module.parameters(), None) == pytest.approx(1.0, abs=1e-5)


def test_plans_depend_on_nothing_but_the_step() -> None:
    one, other = (Sampler(recipe(), STORE, drafts=4) for _ in range(2))
    wanted = [other.plan(step) for step in range(one.num_steps)]
    for step in reversed(range(one.num_steps)):
        plan = one.plan(step)
        assert plan.sequences == wanted[step].sequences
        assert [a.tolist() for a in plan.anchors] == [a.tolist() for a in wanted[step].anchors]
    assert one.num_steps == 12
    assert [one.stretch(step) for step in (0, 5, 6, 11)] == [0, 0, 1, 1]
    assert wanted[0].drafts == 2
    assert wanted[6].drafts == 4
    assert max(len(a) for a in wanted[6].anchors) <= 8


def test_every_sequence_is_seen_once_a_pass() -> None:
    sampler = Sampler(recipe(phases=[{"epochs": 2, "sequences": 2, "anchors": 1}]), STORE, drafts=4)
    assert sampler.num_steps == 5
    seen = [s for step in range(5) for s in sampler.plan(step).sequences]
    assert sorted(seen[:5]) == sorted(seen[5:]) == [0, 1, 2, 3, 4]
    other = Sampler(recipe(seed=1, phases=[{"epochs": 2, "sequences": 2, "anchors": 1}]), STORE, drafts=4)
    assert [s for step in range(5) for s in other.plan(step).sequences] != seen


def test_anchors_and_their_rounds_lie_in_what_the_target_wrote() -> None:
    sampler = Sampler(recipe(), STORE, drafts=4)
    plan = sampler.dense([1, 3])
    for sequence, anchors in zip(plan.sequences, plan.anchors):
        mask = STORE.loss_mask[STORE.sequences[sequence] : STORE.sequences[sequence + 1]]
        assert anchors.tolist() == [a for a in range(len(mask) - 1) if mask[a] and mask[a + 1]]
    batch = load_batch(STORE, plan, taps=Taps(boundaries=(2,), final_norm=True), hidden_size=32, device="cpu")
    tokens = token_batch(STORE, plan)
    for name in ("token_ids", "loss_mask", "anchors"):
        assert torch.equal(getattr(batch, name), getattr(tokens, name))
    assert batch.sequence_starts_host == tokens.sequence_starts_host
    whole = STORE.gather([1, 3])
    assert torch.equal(batch.token_ids, whole.token_ids)  # dense rounds reach the end of every text
    assert torch.equal(batch.features, torch.cat((whole.hidden[:, 32:], whole.last_hidden), dim=-1))


def test_what_no_round_reads_is_left_out() -> None:
    sampler = Sampler(recipe(max_length=10), STORE, drafts=4)
    plan = sampler.dense([0, 2])
    batch = token_batch(STORE, plan)
    for anchors, start, stop in zip(plan.anchors, batch.sequence_starts_host, batch.sequence_starts_host[1:]):
        assert max(anchors) < 10
        assert stop - start == max(anchors) + 5
    assert batch.num_tokens == sum(int(STORE.sequences[s + 1] - STORE.sequences[s]) for s in (0, 2))


def test_shares_and_pieces_are_the_whole() -> None:
    plan = Sampler(recipe(), STORE, drafts=4).plan(7)
    shares = [plan.share(rank, 2) for rank in range(2)]
    assert sorted(s for share in shares for s in share.sequences) == sorted(plan.sequences)
    pieces = list(plan.pieces(max(len(a) for a in plan.anchors) * 4))
    assert [s for piece in pieces for s in piece.sequences] == list(plan.sequences)
    assert len(pieces) > 1
    assert sum(piece.num_anchors for piece in pieces) == plan.num_anchors


def test_states_that_were_not_stored_are_named() -> None:
    with pytest.raises(ConfigError, match=r"reads state 3 .* hold \[1, 2\]; make them with --taps 1,2,3"):
        tap_columns(STORE, Taps(boundaries=(1, 3)), hidden_size=32)


def test_a_split_without_sequences_is_refused() -> None:
    all_held = memory_store(MODEL, count=2, answer=8, shared=False, heldout=(0, 1))
    with pytest.raises(TrainDataError, match="no sequence to train on"):
        Sampler(recipe(), all_held, drafts=4)
    none_held = memory_store(MODEL, count=2, answer=8, shared=False)
    with pytest.raises(TrainDataError, match="hold out no sequence"):
        Sampler(recipe(), none_held, drafts=4).heldout()


def test_the_draft_vocabulary_is_the_commonest_of_what_was_written() -> None:
    store = memory_store(MODEL, count=5, answer=12, shared=False, heldout=(4,))
    counts = count_tokens(store, store.split("train").tolist(), vocab_size=97)
    written = np.concatenate(
        [store.token_ids[a:b][store.loss_mask[a:b]] for a, b in zip(store.sequences[:4], store.sequences[1:5])]
    )
    assert counts.tolist() == np.bincount(written, minlength=97).tolist()
    found = choose_vocabulary(store, size=7, vocab_size=97, always=[2])
    assert found.ids is not None
    chosen = found.ids.tolist()
    assert len(chosen) == 7
    assert chosen == sorted(chosen)
    assert 2 in chosen
    rest = [i for i in chosen if i != 2]
    assert min(counts[rest]) >= max(np.delete(counts, chosen))
    assert found.train_coverage == pytest.approx(np.isin(written, chosen).mean())
    start, stop = int(store.sequences[4]), int(store.sequences[5])
    held = store.token_ids[start:stop][store.loss_mask[start:stop]]
    assert found.heldout_coverage == pytest.approx(np.isin(held, chosen).mean())
    assert choose_vocabulary(store, size=None, vocab_size=97, always=[2]).ids is None
    with pytest.raises(ConfigError, match="stop tokens alone"):
        choose_vocabulary(store, size=1, vocab_size=97, always=[2])


def test_a_curve_that_was_cut_short_goes_on_whole(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    curve = Curve(path, ("loss", "tau"), upto=0)
    for step in range(1, 5):
        curve.add(step, {"loss": step / 3, "tau": None if step == 2 else 1.5})
    curve.close()
    whole = path.read_text()
    with path.open("a") as file:
        file.write("5,0.1")  # killed in the middle of a row
    again = Curve(path, ("loss", "tau"), upto=3)
    again.add(4, {"loss": 4 / 3, "tau": 1.5})
    again.close()
    assert path.read_text() == whole
    rows = read_curve(path)
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert float(rows[0]["loss"]) == 1 / 3
    assert rows[1]["tau"] == ""


def test_a_tally_is_expected_and_greedy_length() -> None:
    supervised = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    accept = torch.tensor([[0.5, 0.5, 1.0], [0.25, 0.9, 0.9], [0.9, 0.9, 0.9]])
    agree = torch.tensor([[True, False, True], [True, True, True], [True, True, True]])
    tally = Tally.of(TrainLoss(torch.zeros(()), {}, supervised, accept, agree), drafts=4)
    assert tally.blocks == 2
    assert tally.tau == pytest.approx((1 + 0.5 + 0.25 + 0.25 + 1 + 0.25) / 2)
    assert tally.tau_greedy == pytest.approx((1 + 1 + 1 + 1) / 2)
    assert tally.rates("accept") == [pytest.approx(0.375), pytest.approx(0.5), pytest.approx(1.0), None]
    assert (tally + tally).tau == pytest.approx(tally.tau)
    assert Tally.empty(4).tau is None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_walk_commits_every_token_once(data: st.DataObject) -> None:
    stretches = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    anchors, place = [], 3
    for length in stretches:
        anchors += range(place, place + length)
        place += length + data.draw(st.integers(1, 5))
    most = [a for length in stretches for a in range(length, 0, -1)]  # drafts that the text can still confirm
    accepted = [data.draw(st.integers(0, m)) for m in most]
    rounds, committed = _walked(np.array(anchors), np.array(accepted))
    assert committed == sum(stretches)
    expected, at = 0, 0
    for length in stretches:
        left = length
        while left > 0:
            left -= accepted[at + length - left] + 1
            expected += 1
        at += length
    assert rounds == expected


def test_a_target_shows_its_tables_without_its_layers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_llama_dir(tmp_path)
    whole = AutoModelForCausalLM.from_pretrained(folder)
    view = frozen_view(folder, dtype="float32", device="cpu", name="tiny", max_context=64)
    assert torch.equal(view.embed.weight, whole.get_input_embeddings().weight)
    assert torch.equal(view.head.weight, whole.get_output_embeddings().weight)
    assert not view.head.weight.requires_grad
    assert list(view.model.parameters()) == []
    assert view.stop_ids == {1}
    assert (view.num_layers, view.hidden_size) == (2, 32)


def test_features_are_divided_by_their_size_and_the_checkpoint_absorbs_it(tmp_path: Path) -> None:
    made = bound(MODEL, STORE, recipe("eagle3")).trainable
    plain = made.weights()["fc.weight"]
    rows = STORE.hidden[torch.from_numpy(STORE.loss_mask)]
    size = rows.square().mean(dim=0).sqrt()
    inside = size > 0.02 * size.median()
    torch.testing.assert_close((made.module.fc.weight / plain)[0][inside], size[inside], atol=1e-4, rtol=1e-3)
    made.round_to("bfloat16")
    rounded = made.weights()["fc.weight"]
    torch.testing.assert_close(rounded, rounded.bfloat16().float(), atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(rounded, plain, atol=1e-2, rtol=1e-2)


def test_compiled_parts_compute_the_same() -> None:
    made = bound(MODEL, STORE, recipe("dflash")).trainable
    plan = Sampler(recipe("dflash"), STORE, drafts=4).plan(7)
    batch = load_batch(STORE, plan, taps=made.taps, hidden_size=32, device="cpu")
    counts = made.counts(batch)
    before = made.loss(batch, counts=counts).total.detach()
    compile_parts(made.module, backend="eager")
    assert made.module.layers[0].mlp._compiled_call_impl is not None
    torch.testing.assert_close(made.loss(batch, counts=counts).total.detach(), before)


def test_bfloat16_changes_the_products_and_not_much_else() -> None:
    made = bound(MODEL, STORE, recipe("dspark")).trainable
    plan = Sampler(recipe(), STORE, drafts=4).plan(7)
    batch = load_batch(STORE, plan, taps=made.taps, hidden_size=32, device="cpu")
    counts = made.counts(batch)
    exact = made.loss(batch, counts=counts).total
    exact.backward()
    gradient = made.module.fc.weight.grad.clone()
    made.module.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = made.loss(batch, counts=counts).total
    rough.backward()
    assert rough.dtype == torch.float32
    assert 0 < abs(float(rough.detach() - exact.detach())) < 0.05 * float(exact.detach())
    cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), made.module.fc.weight.grad.flatten(), dim=0)
    assert float(cosine) > 0.98


@pytest.mark.parametrize(
    ("method", "drafter", "message"),
    [
        ("dspark", {"block": 4, "mask_token": 2, "taps": [2, 1]}, "must rise within 0..2"),
        ("dspark", {"block": 4, "mask_token": 97, "taps": [1]}, "the target has 97 tokens"),
        ("dspark", {"block": 4}, "lacks 'mask_token'"),
        ("eagle3", {"heads": 3, "kv_heads": 2, "taps": [1, 2]}, "no multiple of its 2"),
        ("dflash", {"block": 0, "mask_token": 2}, "drafter.block is 0"),
        ("mtp", {"layers": 2}, "drafter.layers is 2"),
    ],
)
def test_bad_drafters_are_refused_in_one_line(method: str, drafter: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        bound(MODEL, STORE, recipe(method, drafter=drafter))
    assert "\n" not in str(caught.value)


def test_names_that_do_not_exist_get_a_near_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean dspark"):
        bound(MODEL, STORE, recipe().model_copy(update={"method": "dsprak"}))
    with pytest.raises(UnknownNameError, match="did you mean markov_rank"):
        bound(MODEL, STORE, recipe("dspark", drafter={"markov_rnk": 4, "mask_token": 2}))
    with pytest.raises(ConfigError, match=r"no confidence head; set the recipe's loss\.confidence to 0"):
        bound(MODEL, STORE, recipe("mtp", loss={"soft_ce": 1, "confidence": 1}))
    with pytest.raises(ConfigError, match="its drafter has no confidence head"):
        bound(MODEL, STORE, recipe("dflash", loss={"soft_ce": 1, "confidence": 1}))


def test_taps_by_number_are_spread_evenly() -> None:
    from dataclasses import replace

    method = registry.load("trainables", "eagle3")
    for layers, count, wanted in ((36, 5, (2, 10, 18, 26, 34)), (40, 5, (2, 11, 20, 29, 38)), (30, 3, (2, 15, 28))):
        view = replace(view_of(MODEL), num_layers=layers)
        assert method.taps(view, options={"taps": count}).boundaries == wanted


def test_first_tokens_of_a_sequence_start_no_chain() -> None:
    """A text that the target wrote from its first token on: blocks may anchor there, chains may not."""
    texts = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]]
    store = MemoryStore(texts, [0, 0], model=MODEL)
    for method, first in (("dspark", True), ("mtp", False)):
        wanted = recipe(method)
        made = bound(MODEL, store, wanted).trainable
        plan = Sampler(wanted, store, drafts=4).dense([0, 1])
        batch = load_batch(store, plan, taps=made.taps, hidden_size=32, device="cpu")
        found = made.loss(batch, counts=made.counts(batch))
        found.total.backward()
        assert torch.isfinite(found.total)
        assert bool(found.supervised[batch.anchors == 0].any()) is first
        assert bool(found.supervised[batch.anchors == 6].any()) is first
        assert all(torch.isfinite(p.grad).all() for p in made.module.parameters() if p.grad is not None)


def test_a_loss_without_a_teaching_term_is_refused() -> None:
    document = recipe().model_dump(mode="json")
    with pytest.raises(ValueError, match="no term teaches"):
        Recipe.model_validate(document | {"loss": {"confidence": 1.0}})
    with pytest.raises(ValueError, match="either steps or epochs"):
        Recipe.model_validate(document | {"phases": [{"sequences": 2}]})
    with pytest.raises(ValueError, match="decay or base"):
        Recipe.model_validate(document | {"loss": {"ce": 1.0, "decay": 1.0, "base": 0.5}})


@pytest.mark.parametrize("method", METHODS)
def test_fresh_weights_come_from_the_seed_alone(method: str) -> None:
    wanted = recipe(method)
    torch.manual_seed(1)
    one = bound(MODEL, STORE, wanted).trainable.weights()
    torch.manual_seed(2)
    other = bound(MODEL, STORE, wanted).trainable.weights()
    third = bound(MODEL, STORE, wanted.model_copy(update={"seed": 3})).trainable.weights()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert not torch.equal(one["layers.0.mlp.up_proj.weight"], third["layers.0.mlp.up_proj.weight"])


@pytest.mark.parametrize("method", METHODS)
def test_rounds_of_one_draft_teach_the_first_slot_alone(method: str) -> None:
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for drafts in (1, 3):
        wanted = recipe(method, phases=[{"steps": 1, "sequences": 4, "drafts": drafts}])
        made = bound(MODEL, STORE, wanted)
        plan = Sampler(wanted, STORE, drafts=made.trainable.drafts).plan(0)
        batch = load_batch(STORE, plan, taps=made.trainable.taps, hidden_size=made.view.hidden_size, device="cpu")
        counts = made.trainable.counts(batch)
        loss = made.trainable.loss(batch, counts=counts)
        loss.total.backward()
        assert counts.shape == (2, drafts)
        assert float(sum(loss.terms.values())) == pytest.approx(float(loss.total.detach()), rel=1e-5)
        gradients = [p.grad for p in made.trainable.module.parameters() if p.grad is not None]
        assert all(torch.isfinite(g).all() for g in gradients)
        assert sum(float(g.abs().sum()) for g in gradients) > 0
        assert loss.accept.shape == loss.supervised.shape == (plan.num_anchors, drafts)
        found[drafts] = (loss.supervised[:, 0], loss.accept[:, 0])
    assert found[1][0].sum() > 20
    assert torch.equal(found[1][0], found[3][0])
    if method in ("mtp", "eagle3"):  # each draft of a chain is made from those before; a block's see each other
        torch.testing.assert_close(found[1][1], found[3][1], atol=1e-5, rtol=1e-4)
