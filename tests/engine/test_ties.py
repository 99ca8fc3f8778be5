"""Recipe T9: a target that hardly decides between two tokens; batch shape flips it, and that is a tie, not a fault."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from specbench_drafters.vanilla import VanillaDrafter
from support_drafters import ScriptDrafter
from support_engine import outputs, prompts, request, serve
from support_targets import tiny_model

from specbench.engine.control import noise_floor
from specbench.engine.target import Target
from specbench.metrics.losslessness import Outcome, greedy_verdict
from specbench.types import Request, RunTrace

GAMMA = 3


@cache
def undecided() -> Target:
    """Every token 2i has a twin 2i + 1 whose head row differs by about a millionth."""
    model = tiny_model("llama", scale=10.0)
    with torch.no_grad():
        head = model.lm_head.weight
        noise = torch.randn(48, 32, generator=torch.Generator().manual_seed(1))
        head[1:97:2] = head[0:96:2] + 2e-8 * noise * head[0:96:2].norm(dim=1, keepdim=True)
        embed = model.model.embed_tokens.weight
        embed[1:97:2] = embed[0:96:2]  # twins read alike, so a flip changes nothing that follows
    return Target(model)


def arms() -> tuple[list[Request], RunTrace, RunTrace, float]:
    requests = [request(n, p, max_new_tokens=60) for n, p in enumerate(prompts(6))]
    control = serve(undecided(), VanillaDrafter(), requests, k=0, rows=1)
    done = outputs(control)
    texts = {r.number: [*r.prompt_ids, *done[r.id]] for r in requests}
    method = serve(undecided(), ScriptDrafter(texts, a=0.8), requests, k=GAMMA, rows=6)
    floor = noise_floor(undecided(), [(r.prompt_ids, done[r.id]) for r in requests], gamma=GAMMA)
    assert floor.positions == 6 * 59
    return requests, control, method, floor.noise_floor


def test_t9_a_flip_between_twins_is_a_tie() -> None:
    _, control, method, floor = arms()
    gaps = [g for r in control.rounds for g in r.top2_gap or ()]
    assert sorted(gaps)[len(gaps) // 2] < 1e-5
    assert 0 < floor < 1e-2
    verdict = greedy_verdict(method, control, noise_floor=floor)
    assert verdict.outcome is not Outcome.FAIL, verdict.reason
    assert all(d.tie and d.gap is not None and d.gap < floor for d in verdict.differences)


def test_t9_a_really_wrong_token_is_a_failure() -> None:
    target = Target(tiny_model("llama", scale=10.0))
    requests = [request(n, p, max_new_tokens=60) for n, p in enumerate(prompts(6))]
    control = serve(target, VanillaDrafter(), requests, k=0, rows=1)
    texts = {r.number: [*r.prompt_ids, *outputs(control)[r.id]] for r in requests}
    method = serve(target, ScriptDrafter(texts, a=0.8), requests, k=GAMMA, rows=6)
    floor = noise_floor(target, [(r.prompt_ids, outputs(control)[r.id]) for r in requests], gamma=GAMMA).noise_floor
    assert greedy_verdict(method, control, noise_floor=floor).outcome is Outcome.PASS
    first = method.requests[0]
    wrong = (first.output_ids[7] + 40) % 90 + 3
    planted = replace(first, output_ids=(*first.output_ids[:7], wrong, *first.output_ids[8:]))
    broken = replace(method, requests=(planted, *method.requests[1:]))
    found = greedy_verdict(broken, control, noise_floor=floor)
    assert found.outcome is Outcome.FAIL
    assert [(d.request, d.position, d.tie) for d in found.differences] == [("r0", 7, False)]


def test_a_near_tie_really_flips_in_some_shape() -> None:
    """Without flips the test above would prove nothing."""
    requests, control, method, _ = arms()
    batched = serve(undecided(), VanillaDrafter(), requests, k=0, rows=6)
    assert outputs(method) != outputs(control) or outputs(batched) != outputs(control)


def test_one_token_a_step_is_run_once_for_all_arms_and_repeats() -> None:
    target = Target(tiny_model("llama"))
    texts = [((3, 4, 5), (6, 7, 8, 9)), ((5, 4), (3, 9, 8))]
    widths: list[int] = []
    forward = target.lm.forward

    def counted(token_ids: torch.Tensor, **given: Any) -> Any:
        widths.append(token_ids.shape[0])
        return forward(token_ids, **given)

    target.lm.forward = counted  # type: ignore[method-assign]
    first = noise_floor(target, texts, gamma=1)
    alone = len(widths)
    again = noise_floor(target, texts, gamma=1)
    assert again == first
    assert len(widths) - alone < alone / 2
    assert noise_floor(target, texts, gamma=3) == noise_floor(Target(tiny_model("llama")), texts, gamma=3)
    assert len(target.controls) == 2
