"""The method ``dspark-rnn``: DSpark's code and the recurrent head's weights under one name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from specbench_drafters.dspark import DSpark
from specbench_drafters.formats.record import DraftKind
from support_checkpoints import RANK, VOCAB
from support_contestants import CONTEXT, own, small_target

from specbench import cell, checkpoints, registry
from specbench.config import parse_method
from specbench.errors import DrafterError
from specbench.resolve import silent_step

MAKE = partial(own, vocab=VOCAB, kind=DraftKind.DSPARK)


def view() -> Any:
    return small_target(VOCAB).view(max_rows=1, max_context=CONTEXT)


def test_it_is_a_method_that_reuses_dspark(tmp_path: Path) -> None:
    assert parse_method("dspark-rnn:5").name == parse_method("dspark_rnn").name == "dspark-rnn"
    assert "dspark-rnn" in registry.names("drafters")
    made = registry.load("drafters", "dspark-rnn").load(
        MAKE(tmp_path / "rnn", markov="rnn", markov_rank=RANK), target=view(), options={}
    )
    assert isinstance(made, DSpark)


@pytest.mark.parametrize(("markov", "said"), [("vanilla", "the vanilla head"), ("none", "no sequential head")])
def test_another_head_is_refused_with_the_right_method(markov: str, said: str, tmp_path: Path) -> None:
    rank = RANK if markov != "none" else 0
    folder = MAKE(tmp_path / markov, markov=markov, markov_rank=rank, confidence="hidden")
    with pytest.raises(DrafterError, match=f"{said}.*--method dspark$") as caught:
        registry.load("drafters", "dspark-rnn").load(folder, target=view(), options={})
    assert "\n" not in str(caught.value)


def test_its_packaged_weights_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_root", lambda: tmp_path)
    MAKE(tmp_path / "a-target" / "dspark", markov="vanilla", markov_rank=RANK)
    MAKE(tmp_path / "a-target" / "dspark-rnn", markov="rnn", markov_rank=RANK)
    spec = SimpleNamespace(drafters={}, target="a-target", trust_remote_code=False)
    session: Any = SimpleNamespace(spec=spec)
    found = {m: cell._find_checkpoint(session, m, step=silent_step) for m in ("dspark", "dspark-rnn")}
    names = {method: (place.name, place.source) for method, place in found.items() if place is not None}
    assert names == {m: (f"packaged:a-target/{m}", "package") for m in ("dspark", "dspark-rnn")}
    assert len({place.sha256 for place in found.values() if place is not None}) == 2
