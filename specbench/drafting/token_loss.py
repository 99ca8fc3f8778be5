"""One loss for every drafter: what a predicted token costs against the frozen target, in chunks of rows.

The output head is by far the largest product of a training step, so logits are made for a few hundred rows at a time
and turned into their gradient at once; nothing of the vocabulary's size outlives its chunk. On a reduced draft
vocabulary the target's probabilities are exact without the full head, because the log-normaliser of its full logits is
stored with the features: p(x) = exp(logit(x) - log_normaliser). What is left of 1 lies outside and enters the distance.

Terms of a row with draft distribution q and target distribution p: hard cross-entropy -log q(label), soft cross-entropy
-sum p log q, distance ||q - p||_1 (DSpark, arXiv 2607.05147, not halved), and the confidence's binary cross-entropy
against the analytic acceptance rate 1 - ||q - p||_1 / 2, which is not differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Logits = Callable[..., Tensor]  # rows [m, ...] to draft logits [m, Vd]

_CHUNK_VALUES = {"cpu": 1 << 21, "cuda": 1 << 28}  # logits of a chunk: a few megabytes where caches are small


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's frozen head: over the draft vocabulary in ``weight`` [Vd, d], over all of its tokens in ``full``.

    ``id_map`` [Vd] are the target ids of the draft vocabulary, None where both are the same.
    """

    weight: Tensor
    bias: Tensor | None
    full: Callable[[Tensor], Tensor]
    id_map: Tensor | None = None
    logit_scale: float | None = None
    softcap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the draft vocabulary [m, Vd] float32 of final-normed states [m, d]."""
        return self._shaped(functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias))

    def _shaped(self, logits: Tensor) -> Tensor:
        logits = logits.to(torch.float32)
        if self.logit_scale is not None:
            logits = logits * self.logit_scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def best(self, hidden: Tensor, inside: Tensor) -> Tensor:
        """The target's likeliest token [m] as a draft id, -1 where the draft vocabulary lacks it.

        ``inside`` [m, Vd] are its probabilities there. Only where more mass lies outside than on the best token inside
        does the full head decide.
        """
        top, index = inside.max(dim=-1)
        if self.id_map is None:
            return index
        unsure = (top <= 1 - inside.sum(dim=-1)).nonzero()[:, 0]
        for part in torch.split(unsure, 256):
            ids = self._shaped(self.full(hidden[part].to(self.weight.dtype))).argmax(dim=-1)
            index[part] = draft_ids(ids, self.id_map)
        return index


def draft_ids(target_ids: Tensor, id_map: Tensor | None) -> Tensor:
    """Draft ids of ``target_ids`` [...], -1 where the draft vocabulary lacks the token."""
    if id_map is None:
        return target_ids
    slot = torch.searchsorted(id_map, target_ids).clamp(max=id_map.shape[0] - 1)
    return torch.where(id_map[slot] == target_ids, slot, -1)


@dataclass(frozen=True, slots=True)
class Rows:
    """M predictions to judge. A coefficient is what the row's term is multiplied with in the total.

    ``labels`` [M] are target ids; the hard cross-entropy of one that the draft vocabulary lacks is left out. Rows with
    one number in ``teacher_rows`` have one teacher state: rounds overlap, and each state's target is computed once a
    chunk.
    """

    labels: Tensor  # [M] int64
    teacher_hidden: Tensor  # [M, d] the target's final-normed state that predicts the label
    log_normaliser: Tensor  # [M] float32
    ce: Tensor  # [M] float32, coefficients
    soft_ce: Tensor  # [M]
    tv: Tensor  # [M]
    teacher_rows: Tensor | None = None  # [M] int64


@dataclass(frozen=True, slots=True)
class RowLosses:
    """``total`` [] is the sum of coefficient times term and is differentiable; the rest is not.

    ``agree`` and ``named`` say whether the draft's argmax is the target's, and whether it is the label; None where
    they were not asked for.
    """

    total: Tensor  # []
    ce: Tensor  # [M] terms without their coefficients
    soft_ce: Tensor  # [M]
    distance: Tensor  # [M]
    agree: Tensor | None  # [M] bool
    named: Tensor | None  # [M] bool

    @property
    def accept(self) -> Tensor:
        """Analytic acceptance rate [M]: 1 - ||q - p||_1 / 2."""
        return (1 - 0.5 * self.distance).clamp(0, 1)


def row_losses(
    logits_of: Logits,
    inputs: tuple[Tensor, ...],
    *,
    shared: tuple[Tensor, ...] = (),
    rows: Rows,
    teacher: Teacher,
    renormalise: bool = False,
    judge: bool = False,
) -> RowLosses:
    """Losses of M predictions.

    Args:
        logits_of: gives draft logits [m, Vd] of a chunk of every tensor in ``inputs``.
        inputs: tensors [M, ...] that gradients flow into.
        shared: parameters that ``logits_of`` uses and gradients flow into.
        renormalise: for the soft cross-entropy restrict the target to the draft vocabulary and drop rows whose
            likeliest token lies outside (SafeAILab/EAGLE). The distance is always to its exact probabilities.
        judge: also say where the draft's argmax is the target's and the label.
    """
    job = _Job(logits_of, rows, teacher, renormalise, judge, len(inputs))
    total, stats = _Chunked.apply(job, *inputs, *shared)  # type: ignore[no-untyped-call]
    ce, soft, distance, agree, named = stats.unbind(dim=1)
    verdicts = (agree.bool(), named.bool()) if judge else (None, None)
    return RowLosses(total, ce, soft, distance, *verdicts)


@dataclass(frozen=True, slots=True)
class _Job:
    logits_of: Logits
    rows: Rows
    teacher: Teacher
    renormalise: bool
    judge: bool
    num_inputs: int


class _Chunked(torch.autograd.Function):
    """Total [] and statistics [M, 5] of a job; the gradients of the total are made on the way forward."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        inputs = tuple(t.detach() for t in tensors[: job.num_inputs])
        shared = tensors[job.num_inputs :]
        wanted = tuple(bool(need) for need in ctx.needs_input_grad[1:])
        grads = [torch.zeros_like(t) if need else None for t, need in zip(tensors, wanted, strict=True)]
        count, device = inputs[0].shape[0], inputs[0].device
        stats = torch.zeros(count, 5, device=device)
        total = torch.zeros((), device=device)
        size = max(1, _CHUNK_VALUES.get(device.type, 1 << 24) // job.teacher.weight.shape[0])
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            with torch.set_grad_enabled(any(wanted)):
                leaves = [t[part].requires_grad_(need) for t, need in zip(inputs, wanted, strict=False)]
                logits = job.logits_of(*leaves)
            with torch.autocast(device.type, enabled=False):  # the terms are made in float32 whatever the products are
                judged = _judge(job, logits.detach(), part)
            stats[part] = judged.stats
            total += judged.total
            if any(wanted):
                gradient = judged.gradient.to(logits.dtype)
                _backward(logits, gradient, leaves=leaves, shared=shared, wanted=wanted, into=grads, part=part)
        ctx.save_for_backward(*(g for g in grads if g is not None))
        ctx.wanted = wanted
        ctx.mark_non_differentiable(stats)
        return total, stats

    @staticmethod
    def backward(ctx: Any, *outgoing: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        return (None, *(outgoing[0] * next(saved) if need else None for need in ctx.wanted))


def _backward(
    logits: Tensor,
    gradient: Tensor,
    *,
    leaves: list[Tensor],
    shared: tuple[Tensor, ...],
    wanted: tuple[bool, ...],
    into: list[Tensor | None],
    part: slice,
) -> None:
    """Add a chunk's gradients: rows of the inputs are its own, those of shared parameters add up."""
    sources = [t for t, need in zip((*leaves, *shared), wanted, strict=True) if need]
    found = iter(torch.autograd.grad(logits, sources, gradient, allow_unused=True))
    for index, (whole, need) in enumerate(zip(into, wanted, strict=True)):
        piece = next(found) if need else None
        if whole is None or piece is None:
            continue
        if index < len(leaves):
            whole[part] = piece
        else:
            whole += piece


@dataclass(frozen=True, slots=True)
class _Judged:
    total: Tensor  # []
    gradient: Tensor  # [m, Vd] of the total by the logits
    stats: Tensor  # [m, 5]: the terms, then agree and named as 0 or 1


@torch.no_grad()
def _judge(job: _Job, logits: Tensor, part: slice) -> _Judged:
    """Terms of a chunk and the gradient of their weighted sum, in closed form.

    d/dz of -log q(y), of -sum p log q and of sum |q - p| is q - 1[y], q * sum(p) - p and q * (s - <q, s>) with
    s = sign(q - p). `definition` is the same by automatic differentiation.
    """
    rows, teacher, x = job.rows, job.teacher, logits.to(torch.float32)
    p, mass, best = _target(job, part)
    share = _share(job, mass, best)
    soft_weight, tv_weight = rows.soft_ce[part] * share, rows.tv[part]
    label = draft_ids(rows.labels[part], teacher.id_map)
    known = label >= 0
    label = label.clamp(min=0)[:, None]
    ce_weight = rows.ce[part] * known
    q = torch.softmax(x, dim=-1)
    top = x.argmax(dim=-1, keepdim=True)  # [m, 1]
    log_sum = (x.gather(-1, top) - q.gather(-1, top).log())[:, 0]
    ce = torch.where(known, log_sum - x.gather(-1, label)[:, 0], 0)
    soft = log_sum * mass - torch.linalg.vecdot(p, x)
    difference = q - p
    distance = difference.abs().sum(dim=-1) + (1 - mass).clamp(min=0)
    total = ce_weight @ ce + soft_weight @ soft + tv_weight @ distance
    slope = ce_weight + soft_weight * mass
    if bool(tv_weight.any()):
        sign = difference.sign_()
        slope = slope - tv_weight * torch.linalg.vecdot(q, sign)
        q.mul_(sign.mul_(tv_weight[:, None]).add_(slope[:, None]))
    else:
        q.mul_(slope[:, None])
    q.sub_(p.mul_(soft_weight[:, None]))
    q.scatter_add_(-1, label, -ce_weight[:, None])
    named = known & (top == label)[:, 0]
    agree = named if best is None else top[:, 0] == best
    return _Judged(total, q, torch.stack((ce, soft * share, distance, agree.float(), named.float()), dim=1))


def _target(job: _Job, part: slice) -> tuple[Tensor, Tensor, Tensor | None]:
    """Target probabilities on the draft vocabulary [m, Vd], their sum [m], likeliest ids [m] where they are needed."""
    rows, teacher = job.rows, job.teacher
    hidden, normaliser, spread = rows.teacher_hidden[part], rows.log_normaliser[part], None
    if rows.teacher_rows is not None:
        states, spread = torch.unique(rows.teacher_rows[part], return_inverse=True)
        one = torch.empty_like(states).scatter_(0, spread, torch.arange(len(spread), device=spread.device))
        hidden, normaliser = hidden[one], normaliser[one]
    logits = teacher.logits(hidden)
    if teacher.id_map is None:
        p = torch.softmax(logits, dim=-1)
    else:
        p = logits.sub_(normaliser[:, None]).exp_()
    best = teacher.best(hidden, p) if job.judge or job.renormalise else None
    mass = p.sum(dim=-1)
    if spread is None:
        return p, mass, best
    return p[spread], mass[spread], None if best is None else best[spread]


def _share(job: _Job, mass: Tensor, best: Tensor | None) -> Tensor:
    """What the soft cross-entropy against p is multiplied with [m]: 1, or by the restricted rule 1 / mass or 0."""
    if not job.renormalise:
        return torch.ones_like(mass)
    assert best is not None, "dropping rows needs their likeliest token"
    return (best >= 0) / mass.clamp(min=1e-20)


def definition(
    logits: Tensor, *, rows: Rows, teacher: Teacher, renormalise: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `row_losses` computes, written plainly: total [], and the three terms [M] of logits [M, Vd]."""
    job = _Job(lambda: logits, rows, teacher, renormalise, False, 0)
    with torch.no_grad():
        p, mass, best = _target(job, slice(None))
        share = _share(job, mass, best)
    log_q = torch.log_softmax(logits.to(torch.float32), dim=-1)
    label = draft_ids(rows.labels, teacher.id_map)
    ce = torch.where(label >= 0, -log_q.gather(-1, label.clamp(min=0)[:, None])[:, 0], 0)
    soft = -(p * log_q).sum(dim=-1) * share
    distance = (log_q.exp() - p).abs().sum(dim=-1) + (1 - mass).clamp(min=0)
    return (rows.ce * ce + rows.soft_ce * soft + rows.tv * distance).sum(), ce, soft, distance
