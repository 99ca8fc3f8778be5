"""Driving drafters by hand: the fixture target's view, rows and features built from recorded tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from specbench.kernels.rng import Purpose, uniform
from specbench.types import Features, Rows, TargetView, Verdict

FIXTURES = Path(__file__).parent / "data" / "fixtures"


@cache
def expected(name: str) -> dict[str, Any]:
    """The recorded runs of a fixture drafter."""
    found: dict[str, Any] = json.loads((FIXTURES / name / "expected.json").read_text())
    return found


@cache
def recorded(name: str) -> dict[str, Tensor]:
    """The recorded tensors of a fixture drafter."""
    return load_file(FIXTURES / name / "expected.safetensors")


@cache
def fixture_model(folder: str = "target") -> Any:
    """The fixture target as a Hugging Face model, float32."""
    return AutoModelForCausalLM.from_pretrained(FIXTURES / folder, dtype=torch.float32).eval()


def view_of(model: Any, *, max_rows: int = 8, max_context: int = 256, stop_ids: Sequence[int] = ()) -> TargetView:
    """A drafter's view of ``model``."""
    return TargetView(
        config=model.config,
        model=model,
        embed=model.get_input_embeddings(),
        head=model.get_output_embeddings(),
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        num_layers=model.config.num_hidden_layers,
        dtype=model.dtype,
        device=torch.device("cpu"),
        max_rows=max_rows,
        max_context=max_context,
        stop_ids=frozenset(stop_ids),
        name="fixture-target",
    )


def fixture_view(**changes: Any) -> TargetView:
    """The fixture target's view; keyword arguments as in `view_of`, or fields of TargetView."""
    own = {k: changes.pop(k) for k in ("max_rows", "max_context", "stop_ids") if k in changes}
    return replace(view_of(fixture_model(), **own), **changes)


def make_rows(
    slots: Sequence[int],
    lengths: Sequence[int],
    last: Sequence[int],
    *,
    temperature: Sequence[float] | float = 0.0,
    top_p: float = 1.0,
    top_k: int = 1 << 30,
    seed: int = 0,
) -> Rows:
    """Rows of a step; request numbers follow the slots."""
    count = len(slots)
    heat = [temperature] * count if isinstance(temperature, float) else list(temperature)
    whole = torch.zeros(count, dtype=torch.int64)
    return Rows(
        slots=torch.tensor(slots),
        lengths=torch.tensor(lengths),
        last_token=torch.tensor(last),
        domain_id=whole,
        temperature=torch.tensor(heat, dtype=torch.float32),
        top_p=torch.full((count,), top_p),
        top_k=whole + top_k,
        seed=whole + seed,
        number=torch.tensor(slots),
        slots_host=tuple(slots),
        lengths_host=tuple(lengths),
        all_greedy=all(t == 0 for t in heat),
        any_truncated=top_p < 1 or top_k < 1 << 30,
    )


def make_features(parts: Sequence[tuple[Sequence[int], int, Tensor, int]]) -> Features:
    """Features of one step from (token ids, first position, hidden [T, D], token after them) per row."""
    starts = [0]
    for ids, _, hidden, _ in parts:
        assert len(ids) == len(hidden)
        starts.append(starts[-1] + len(ids))
    return Features(
        token_ids=torch.tensor([t for ids, *_ in parts for t in ids], dtype=torch.int64),
        next_ids=torch.tensor([t for ids, _, _, after in parts for t in [*ids[1:], after]], dtype=torch.int64),
        positions=torch.cat([torch.arange(at, at + len(ids)) for ids, at, *_ in parts]),
        hidden=torch.cat([hidden for _, _, hidden, _ in parts]),
        row_index=torch.cat([torch.full((len(ids),), r) for r, (ids, *_) in enumerate(parts)]),
        row_starts=torch.tensor(starts),
        row_starts_host=tuple(starts),
        last_chunk=torch.ones(len(parts), dtype=torch.bool),
    )


def make_verdict(accepted: Sequence[int], next_token: Sequence[int]) -> Verdict:
    """A round's outcome."""
    return Verdict(accepted=torch.tensor(accepted), next_token=torch.tensor(next_token))


class CounterRandom:
    """The step's random numbers, as the engine draws them."""

    def draft(self, rows: Rows, offsets: int) -> Tensor:
        return uniform(rows.seed, rows.number, rows.lengths, offsets=offsets, purpose=Purpose.DRAFT)


@torch.no_grad()
def target_features(token_ids: Sequence[int], boundaries: Sequence[int], *, model: Any = None) -> Tensor:
    """Taps [T, D] of the whole sequence through the plain Hugging Face forward (no last layer among them)."""
    model = fixture_model() if model is None else model
    states = model(torch.tensor([list(token_ids)]), output_hidden_states=True, use_cache=False).hidden_states
    assert all(k < len(states) - 1 for k in boundaries)
    return torch.cat([states[k][0] for k in boundaries], dim=-1)
