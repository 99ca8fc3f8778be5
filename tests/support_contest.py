"""Running one case of `support_contestants` through the real engine, and judging its text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from specbench_drafters.vanilla import VanillaDrafter
from support_checkpoints import VOCAB
from support_contestants import CONTEXT, Case, Stable
from support_contract import Watched
from support_engine import outputs, prompts, request, serve

from specbench.engine.target import Target
from specbench.types import Request, RunTrace


def asked(
    count: int, *, vocab: int, seed: int, tokens: Sequence[int] = (9, 4, 12, 7, 10), **more: Any
) -> list[Request]:
    """Requests with prompts and lengths of their own."""
    texts = prompts(count, seed=seed, low=0, high=vocab, longest=14)
    return [request(n, ids, max_new_tokens=tokens[n % len(tokens)], **more) for n, ids in enumerate(texts)]


def contest(
    stable: Stable,
    case: Case,
    requests: Sequence[Request],
    *,
    rows: int = 4,
    k: int | None = None,
    vocab: int = VOCAB,
    context: int = CONTEXT,
    limit: int = CONTEXT,
    stop_ids: frozenset[int] = frozenset(),
    tokenizer: Any = None,
    **options: Any,
) -> tuple[RunTrace, Watched]:
    """Run requests with the case's drafter under watch. ``limit``: the longest sequence of its checkpoint."""
    drafter = stable.drafter(
        case, rows=rows, vocab=vocab, context=context, limit=limit, stop_ids=stop_ids, tokenizer=tokenizer
    )
    watched = Watched(drafter, vocab_size=vocab, stop_ids=stop_ids)
    length = (drafter.trained_length or 3) if k is None else k
    target = stable.target(case, vocab=vocab)
    return serve(target, watched, requests, k=length, rows=rows, max_context=context, **options), watched


@cache
def plain(target: Target, requests: tuple[Request, ...], *, context: int = CONTEXT) -> dict[str, tuple[int, ...]]:
    """The text of plain decoding, by request."""
    return outputs(serve(target, VanillaDrafter(), requests, k=0, rows=len(requests), max_context=context))


def is_plain(
    stable: Stable,
    case: Case,
    requests: Sequence[Request],
    trace: RunTrace,
    *,
    vocab: int = VOCAB,
    context: int = CONTEXT,
) -> None:
    """Assert that a greedy run said what the target says by itself, and that its counts add up."""
    expected = plain(stable.target(case, vocab=vocab), tuple(requests), context=context)
    for name, text in outputs(trace).items():
        assert text == expected[name], (
            f"{case}: request {name} became {text}, the target alone says {expected[name]}: the loop decides the text, "
            "so the drafter disturbs what the target sees (tapped tensors or modules changed in place?)"
        )
    for found in trace.rounds:
        assert found.accepted <= found.verified <= found.planned <= found.drafted
