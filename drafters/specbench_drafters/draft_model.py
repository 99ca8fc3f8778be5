"""A smaller causal LM with the target's tokenizer as the drafter (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.api import Random
from specbench.drafting.sampling import draw, is_greedy, join
from specbench.drafting.stops import truncate_at_stop
from specbench.drafting.vocab import nameable
from specbench.errors import DrafterError
from specbench.modeling.causal_lm import PagedLM
from specbench.modeling.cpu_linear import weight_bytes
from specbench.modeling.layout import BatchLayout, RowSpan
from specbench.modeling.pool import KVPool, pages_for
from specbench.types import DraftLogits, Features, Proposal, Rows, Taps, TargetView, Verdict
from specbench_drafters._checks import warn_if_shorter


class DraftModelDrafter:
    """Runs the draft model through the same paged forward as the target; every slot owns a fixed run of pages.

    ``_cached[slot]`` counts the tokens whose draft keys and values are valid. A propose feeds what is missing up to
    the anchor, then its own drafts one by one; a commit only moves the count back to the committed length.
    """

    taps = Taps()
    trained_length = 4
    options: ClassVar[Mapping[str, str]] = {
        "draft_sampling": "probabilistic (default) or greedy: how drafts are drawn at temperature > 0",
    }

    def __init__(self, model: Any, target: TargetView, *, greedy: bool) -> None:
        self.lm = PagedLM(model)
        self.greedy = greedy
        limit = getattr(self.lm.config, "max_position_embeddings", None)
        self.max_context: int | None = None if limit is None else int(limit)
        self._span = min(target.max_context, self.max_context or target.max_context)
        self._per_slot = pages_for(self._span + 1)
        self.pool = KVPool(
            self.lm.layer_shapes, num_pages=target.max_rows * self._per_slot, dtype=self.lm.dtype, device=target.device
        )
        self._pages = [range(s * self._per_slot, (s + 1) * self._per_slot) for s in range(target.max_rows)]
        self._cached = [0] * target.max_rows
        self._history = torch.zeros(target.max_rows, target.max_context + 1, dtype=torch.int64, device=target.device)
        self._stop_ids = torch.tensor(sorted(target.stop_ids), dtype=torch.int64, device=target.device)
        known = nameable(target, id_map=None)
        self._width = min(self.lm.vocab_size, known)
        self.id_map = torch.arange(self._width) if self._width < known else None
        warn_if_shorter(self.max_context, target=target)

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> DraftModelDrafter:
        """Load a causal LM from a folder.

        Errors: DrafterError when there is no checkpoint, it cannot be loaded, or its tokenizer is another one.
        """
        from transformers import AutoModelForCausalLM

        if checkpoint is None:
            raise DrafterError("draft_model needs a model: pass --drafter draft_model=FOLDER or a hub id")
        greedy = is_greedy(options.get("draft_sampling", "probabilistic"))
        _check_tokenizer(checkpoint, target)
        try:
            model = AutoModelForCausalLM.from_pretrained(str(checkpoint), dtype=target.dtype, weights_only=True)
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DrafterError(f"draft model '{checkpoint}' cannot be loaded: {first}") from error
        return cls(model.to(target.device), target, greedy=greedy)

    def begin(self, rows: Rows) -> None:
        """Forget what the slots held."""
        for slot in rows.slots_host:
            self._cached[slot] = 0

    def prefill(self, rows: Rows, features: Features) -> None:
        """Run the prompt chunk through the draft model."""
        self._remember(rows, features)
        ends = [
            length + stop - start
            for length, start, stop in zip(
                rows.lengths_host, features.row_starts_host, features.row_starts_host[1:], strict=False
            )
        ]
        self._feed(rows, list(range(len(rows))), ends)

    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        """Keep what the draft model computed for tokens that were committed."""
        self._remember(rows, features)
        starts = features.row_starts_host
        for row, slot in enumerate(rows.slots_host):
            committed = rows.lengths_host[row] + starts[row + 1] - starts[row]
            self._cached[slot] = min(self._cached[slot], committed)

    def _remember(self, rows: Rows, features: Features) -> None:
        self._history[rows.slots[features.row_index], features.positions] = features.token_ids

    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        """Draft left to right, rows dropping out at their limits."""
        wanted = limits.tolist()
        width = max(wanted)
        uniforms = None if rows.all_greedy or self.greedy else rng.draft(rows, width)
        self._history[rows.slots, rows.lengths] = rows.last_token
        parts: list[tuple[Tensor, DraftLogits | None]] = []
        for step in range(width):
            live = [b for b, limit in enumerate(wanted) if limit > step]
            logits = self._feed(rows, live, [rows.lengths_host[b] + step + 1 for b in live])
            assert logits is not None, "every live row has at least its newest token to feed"
            full = logits.new_zeros(len(rows), self._width)
            full[live] = logits[:, : self._width]
            part = draw(
                full[:, None],
                rows,
                uniforms=None if uniforms is None else uniforms[:, step : step + 1],
                greedy=self.greedy,
            )
            parts.append(part)
            if step + 1 < width:
                at = torch.tensor([rows.lengths_host[b] + step + 1 for b in live], device=full.device)
                self._history[rows.slots[live], at] = part[0][live, 0]
        tokens, draft = join(parts)
        return Proposal(tokens, truncate_at_stop(tokens, limits, self._stop_ids), draft)

    def _feed(self, rows: Rows, live: list[int], ends: list[int]) -> Tensor | None:
        """Compute each live row up to ``ends`` tokens; logits [live, V] of its newest, None if nothing was missing."""
        spans: list[RowSpan] = []
        slots: list[int] = []
        positions: list[int] = []
        for row, wanted in zip(live, ends, strict=True):
            slot, end = rows.slots_host[row], min(wanted, self._span)
            start = self._cached[slot]
            if end <= start:
                continue
            spans.append(RowSpan(len(slots), end - start, end, self._pages[slot]))
            slots += [slot] * (end - start)
            positions += range(start, end)
            self._cached[slot] = end
        if not spans:
            return None
        device = self._history.device
        index = torch.tensor([slots, positions], dtype=torch.int64).to(device)
        last = torch.tensor([s.start + s.count - 1 for s in spans], dtype=torch.int64).to(device)
        # Rows of the target's head beyond the draft model's own are padding: it has no embedding for such an id.
        tokens = self._history[index[0], index[1]].clamp(max=self.lm.vocab_size - 1)
        layout = BatchLayout.build(spans, device)
        return self.lm.forward(tokens, layout=layout, pool=self.pool, logits_at=last).logits

    def release(self, slots: Sequence[int]) -> None:
        """Pages belong to slots for good."""

    def state_bytes(self) -> int:
        """Weights, pages and history."""
        return weight_bytes(self.lm.model) + self.pool.bytes() + self._history.numel() * self._history.element_size()


def _check_tokenizer(checkpoint: Path, target: TargetView) -> None:
    """Errors: DrafterError when the draft model's tokenizer maps any token to another id than the target's."""
    if target.tokenizer is None:
        return
    from transformers import AutoTokenizer

    try:
        own = AutoTokenizer.from_pretrained(str(checkpoint)).get_vocab()
    except Exception as error:
        raise DrafterError(
            f"draft model '{checkpoint}' has no readable tokenizer; it needs the target's own"
        ) from error
    theirs = target.tokenizer.get_vocab()
    if own != theirs:
        differing = len({token for token, _ in own.items() ^ theirs.items()})
        raise DrafterError(
            f"draft model '{checkpoint}' has another tokenizer than the target ({differing} tokens have another id or "
            "none in one of the two); "
            "use a draft model of the target's family"
        )


PLUGIN = DraftModelDrafter
