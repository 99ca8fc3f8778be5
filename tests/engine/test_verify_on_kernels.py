"""The verifier where acceptance runs as its twin, here interpreted: raw logits in, the plain path's tokens out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support_contestants import Stable, own_cases
from support_engine import request
from support_padded import SIZES, Setting, difference, engine_of, run
from support_twins import poisoned, small_tiles

from specbench.kernels import accept as definition
from specbench.kernels._triton import accept, probs
from specbench.types import Request, RunTrace, Sampling

CASES = {str(case): case for case in own_cases()}
SETTING = Setting("fixed", rows=2, joins=((1, 2),))


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Stable:
    return Stable(tmp_path_factory.mktemp("contestants"))


@pytest.fixture(autouse=True)
def _surroundings() -> Iterator[None]:
    with small_tiles(probs, accept):
        yield


def asked(top_p: float) -> list[Request]:
    """A row that truncates as told, and a greedy one."""
    prompts, sampling = ([5, 9, 3, 5, 9], [7, 2, 7]), (Sampling(1.0, top_p=top_p), Sampling(0.0))
    return [
        request(n, prompt, max_new_tokens=4, sampling=how)
        for n, (prompt, how) in enumerate(zip(prompts, sampling, strict=True))
    ]


def on_kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Acceptance is dispatched to Triton; the list names what ran of it."""
    ran: list[str] = []

    def noted(name: str, honest: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            ran.append(name)
            with poisoned():
                return honest(*args, **kwargs)

        return call

    monkeypatch.setattr(definition, "uses_triton", lambda _: True)
    monkeypatch.setattr(definition, "process_logits", noted("process_logits", definition.process_logits))
    for name in ("accept_sampled", "accept_logits"):
        monkeypatch.setattr(accept, name, noted(name, getattr(accept, name)))
    return ran


@pytest.mark.parametrize(("name", "top_p", "padded"), [("ngram", 0.8, False), ("dspark:own-vanilla", 1.0, True)])
def test_raw_logits_give_the_plain_tokens(
    name: str, top_p: float, padded: bool, stable: Stable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served() -> RunTrace:
        engine = engine_of(stable, CASES[name], SETTING, graphs=SIZES if padded else None)
        return run(engine, asked(top_p), SETTING)

    plain = served()
    ran = on_kernels(monkeypatch)
    assert difference(plain, served()) is None
    assert set(ran) == {"accept_logits"}  # no tensor of processed logits


def test_on_a_cpu_logits_are_processed_and_then_judged(stable: Stable, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    for name in ("process_logits", "accept_sampled"):
        honest = getattr(definition, name)
        monkeypatch.setattr(definition, name, lambda *a, _n=name, _h=honest, **k: (ran.append(_n), _h(*a, **k))[1])
    run(engine_of(stable, CASES["ngram"], SETTING, graphs=None), asked(1.0)[:1], SETTING)
    assert ran[:2] == ["process_logits", "accept_sampled"]
