"""Every trainable learns a fixed text, and its exported checkpoint drafts in the engine what training said it would."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from specbench_drafters.formats.load import load_checkpoint
from support_engine import request, serve
from support_training import METHODS, MemoryStore, bound, engine_target, memory_store, recipe, trained_target

from specbench import registry
from specbench.train.distributed import World
from specbench.train.export import write
from specbench.train.fit import run
from specbench.train.progress import Silence

PHASES = [{"steps": 20, "sequences": 4, "drafts": 2}, {"steps": 40, "sequences": 4, "anchors": 12}]
EVALUATE = {"every": 30, "sequences": 4, "anchors": None, "select": "tau_greedy"}


@cache
def case() -> tuple[Any, MemoryStore]:
    """A target and its own greedy texts; the texts are all that is learnt."""
    model = trained_target()
    return model, memory_store(model, count=4, answer=26)


@pytest.mark.parametrize(("method", "kind"), [*((method, "adamw") for method in METHODS), ("dspark", "muon")])
def test_a_fixed_text_is_learnt_and_the_engine_accepts_what_was_predicted(
    method: str, kind: str, tmp_path: Path
) -> None:
    model, store = case()
    optimiser = recipe(method).optimiser.model_copy(update={"kind": kind})
    wanted = recipe(method, phases=PHASES, evaluate=EVALUATE, vocabulary=61).model_copy(update={"optimiser": optimiser})
    made = bound(model, store, wanted)
    folder, out = tmp_path / "run", tmp_path / "out"
    summary = run(wanted, store, made, out=folder, dtype="float32", world=World(), screen=Silence())
    assert summary["tau_greedy"] > 2.0
    card = write(wanted, store, made, run=folder, out=out, stored="bfloat16", dtype="float32")
    assert card["text_tau"] > 2.0
    requests = []
    for number, (start, stop) in enumerate(zip(store.sequences, store.sequences[1:])):
        prompt = int((~store.loss_mask[start:stop]).sum())
        ids = store.token_ids[start:stop].tolist()
        requests.append(request(number, ids[:prompt], max_new_tokens=len(ids) - prompt))
    target = engine_target(model)
    drafter = registry.load("drafters", wanted.method).load(
        out, target=target.view(max_rows=4, max_context=200), options={}
    )
    trace = serve(target, drafter, requests, k=made.trainable.drafts)
    assert [list(r.output_ids) for r in trace.requests] == [
        store.token_ids[start:stop][store.loss_mask[start:stop]].tolist()
        for start, stop in zip(store.sequences, store.sequences[1:])
    ]
    assert len(trace.rounds) == card["text_rounds"]
    committed = sum(r.committed for r in trace.rounds)
    assert committed / len(trace.rounds) == pytest.approx(card["text_tau"])


def test_the_checkpoint_is_small_complete_and_says_what_it_is(tmp_path: Path) -> None:
    model, store = case()
    wanted = recipe("dspark", vocabulary=64, note="for a test")
    made = bound(model, store, wanted)
    run(wanted, store, made, out=tmp_path / "run", dtype="float32", world=World(), screen=Silence())
    card = write(wanted, store, made, run=tmp_path / "run", out=tmp_path / "out", stored="bfloat16", dtype="float32")
    loaded = load_checkpoint(tmp_path / "out", target_config=model.config)
    spec = loaded.spec
    assert (spec.embed_from, spec.head_from, spec.layout) == ("target", "target", "specbench")
    assert {t.dtype for t in loaded.tensors.values()} == {torch.bfloat16}
    assert spec.d2t is not None
    assert len(spec.d2t) == 64
    assert {2} <= set(spec.d2t.tolist())  # the stop token
    assert spec.taps == (1, 2)
    assert sum(t.numel() for t in loaded.tensors.values()) == card["parameters"]
    stored = json.loads((tmp_path / "out" / "card.json").read_text())
    assert stored == json.loads(json.dumps(card))
    assert stored["recipe"]["note"] == "for a test"
    assert stored["training"]["anchors"] > 0
    text = (tmp_path / "out" / "CARD.md").read_text()
    assert "tiny-dspark" in text
    assert card["data_sha256"] in text
