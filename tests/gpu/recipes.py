"""The engine's black-box recipes on the device: greedy text and sampled distributions, plain loop and padded one."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from specbench_drafters.vanilla import VanillaDrafter
from support_contestants import TOY_VOCAB, VOCAB, Case, Stable, main_cases, own_cases, tiny_qwen3, toy_model
from support_distribution import continuations, marginal, p_value
from support_drafters import TableDrafter
from support_engine import outputs, prompts, request, serve

from specbench import registry
from specbench.api import Drafter
from specbench.engine.graphs import GraphSettings, settings_for
from specbench.engine.target import Target
from specbench.types import RunTrace, Sampling
from tests.gpu.scales import Scale

Check = Callable[[], None]
_CONTEXT, _ROWS, _K = 64, 4, 5
_PROMPT = (3, 1, 4, 1, 5)
_JOINT_DRAWS = 4000  # from here on the three tokens are judged together too
_LEAST_P = 1e-4  # of a chi-squared test whose draws are the same in every run


def checks(scale: Scale) -> Iterator[tuple[str, Check]]:
    """Name and check of each recipe; a check raises AssertionError."""
    yield "logits on the device against the CPU, float32", lambda: _same_logits(scale)
    cases = main_cases()
    cases += [] if scale.dry else [case for case in own_cases() if case not in cases]
    for case in cases:
        for graphs in (False, True):
            loop = "padded loop" if graphs else "plain loop"
            yield f"greedy text of {case}, {loop}", lambda c=case, g=graphs: _greedy(scale, c, graphs=g)
    samplings = [Sampling(1.0)] if scale.dry else [Sampling(0.7), Sampling(1.0), Sampling(1.2, top_p=0.9, top_k=5)]
    for sampling in samplings:
        yield f"distribution, {sampling}, table drafter", lambda s=sampling: _table(scale, s)
        for graphs in (False, True):
            loop = "padded loop" if graphs else "plain loop"
            yield f"distribution, {sampling}, dspark, {loop}", lambda s=sampling, g=graphs: _sampled(scale, s, graphs=g)


@cache
def _target(device: torch.device, vocab: int) -> Target:
    model = toy_model() if vocab == TOY_VOCAB else tiny_qwen3(vocab=vocab, layers=2, scale=10.0)
    return Target(model.to(device))


@cache
def _held() -> tuple[tempfile.TemporaryDirectory[str], Stable]:
    """Checkpoints on disk, until the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="specbench-recipes-")
    return folder, Stable(Path(folder.name))


def _drafter(scale: Scale, case: Case, *, vocab: int, rows: int) -> Drafter:
    """The case's drafter, with a slot more than rows, as padded steps need."""
    view = _target(scale.device, vocab).view(max_rows=rows + 1, max_context=_CONTEXT)
    folder = _held()[1].folder(case, vocab=vocab)
    found: Drafter = registry.load("drafters", case.method).load(folder, target=view, options={})
    return found


def _serve(
    scale: Scale, drafter: Drafter, *, vocab: int, requests: list[Any], k: int, rows: int, graphs: bool
) -> RunTrace:
    options: dict[str, Any] = {}
    if graphs:  # two sizes, so that a step with fewer rows is padded
        recorder = settings_for(scale.device).recorder
        options["graphs"] = GraphSettings(rows=(rows // 2, rows), lengths=(_CONTEXT,), recorder=recorder)
    target = _target(scale.device, vocab)
    return serve(target, drafter, requests, k=k, rows=rows, max_context=_CONTEXT, **options)


def _same_logits(scale: Scale) -> None:
    ids = torch.tensor([prompts(1, high=VOCAB)[0]])
    there = _plain_logits(tiny_qwen3(vocab=VOCAB, layers=2, scale=10.0).to(scale.device), ids.to(scale.device)).cpu()
    here = _plain_logits(tiny_qwen3(vocab=VOCAB, layers=2, scale=10.0), ids)
    error = float((there - here).norm() / here.norm())
    assert error < 1e-4, f"logits differ from the CPU's by {error:.2e} of their norm"


@torch.inference_mode()
def _plain_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(ids, use_cache=False).logits[0]
    return found


@cache
def _control(device: torch.device) -> dict[str, tuple[int, ...]]:
    requests = _requests()
    return outputs(serve(_target(device, VOCAB), VanillaDrafter(), requests, k=0, rows=_ROWS, max_context=_CONTEXT))


def _requests() -> list[Any]:
    return [request(n, ids, max_new_tokens=24) for n, ids in enumerate(prompts(6, seed=2, high=VOCAB))]


def _greedy(scale: Scale, case: Case, *, graphs: bool) -> None:
    drafter = _drafter(scale, case, vocab=VOCAB, rows=_ROWS)
    trace = _serve(scale, drafter, vocab=VOCAB, requests=_requests(), k=_K, rows=_ROWS, graphs=graphs)
    expected = _control(scale.device)
    wrong = [name for name, text in outputs(trace).items() if text != expected[name]]
    assert not wrong, f"{len(wrong)} of {len(expected)} texts are not plain decoding's, first {wrong[0]}"
    drafted = sum(r.drafted for r in trace.rounds)
    assert drafted or case.method == "vanilla" or not graphs, "nothing was drafted"


@cache
def _expected(sampling: Sampling) -> dict[tuple[int, ...], float]:
    return continuations(toy_model(), _PROMPT, sampling, length=4)


def _toy_requests(scale: Scale, sampling: Sampling) -> list[Any]:
    draws = 600 if scale.dry else _JOINT_DRAWS
    return [request(n, _PROMPT, max_new_tokens=4, sampling=sampling) for n in range(draws)]


def _judge(trace: RunTrace, sampling: Sampling) -> None:
    joint, draws = _expected(sampling), len(trace.requests)
    spans = [(1, 2), (2, 3), (3, 4)] + [(1, 4)] * (draws >= _JOINT_DRAWS)
    for start, stop in spans:
        seen = Counter(r.output_ids[start:stop] for r in trace.requests)
        p = p_value(seen, marginal(joint, start, stop))
        assert p > _LEAST_P, f"tokens {start + 1} to {stop} are not the target's: p = {p:.2e} of {draws} draws"


def _table(scale: Scale, sampling: Sampling) -> None:
    table = torch.randn(TOY_VOCAB, TOY_VOCAB, generator=torch.Generator().manual_seed(5)) * 1.5
    drafter = TableDrafter(table.to(scale.device))
    requests = _toy_requests(scale, sampling)
    _judge(_serve(scale, drafter, vocab=TOY_VOCAB, requests=requests, k=3, rows=200, graphs=False), sampling)


def _sampled(scale: Scale, sampling: Sampling, *, graphs: bool) -> None:
    (case,) = (case for case in main_cases() if case.method == "dspark")
    drafter = _drafter(scale, case, vocab=TOY_VOCAB, rows=200)
    requests = _toy_requests(scale, sampling)
    _judge(_serve(scale, drafter, vocab=TOY_VOCAB, requests=requests, k=3, rows=200, graphs=graphs), sampling)
