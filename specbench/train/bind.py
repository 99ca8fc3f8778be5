"""From a recipe to a drafter in training: its target's tables, its vocabulary, the size of its features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench import registry
from specbench.api import Trainable, TrainableMethod
from specbench.errors import TrainDataError
from specbench.train.manifest import fingerprint
from specbench.train.recipe import Recipe
from specbench.train.sampler import tap_columns
from specbench.train.store import FeatureSource, in_batches
from specbench.train.vocabulary import DraftVocabulary, choose_vocabulary
from specbench.types import Taps, TargetView

_SCALE_SEQUENCES, _SCALE_TOKENS = 64, 1 << 14  # of the training split, from which the size of the features is taken


@dataclass(frozen=True, slots=True)
class Bound:
    """A recipe's drafter bound to its target and data."""

    trainable: Trainable
    view: TargetView
    vocabulary: DraftVocabulary

    def parameters(self) -> int:
        """Trainable parameters: what the checkpoint stores."""
        return sum(p.numel() for p in self.trainable.module.parameters() if p.requires_grad)

    def budget(self) -> str:
        """The parameters by part, for people."""
        parts: dict[str, int] = {}
        for name, parameter in self.trainable.module.named_parameters():
            part = ".".join(name.split(".")[:2]) if name.startswith("layers.") else name.split(".")[0]
            parts[part] = parts.get(part, 0) + parameter.numel()
        largest = sorted(parts.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{name} {count / 1e6:.2f} M" for name, count in largest if count >= 5000)
        total = self.parameters()
        return f"{total / 1e6:.2f} M parameters, {2 * total / 1e6:.1f} MB as bfloat16: {listed}"


def data_hash(source: FeatureSource) -> str:
    """What the features are, by content: their manifest and the checksums of their shards."""
    shards = [dict(shard) for shard in getattr(source, "shards", ())]
    return fingerprint({"meta": source.meta, "shards": shards, "taps": list(source.taps)})


def bind(recipe: Recipe, source: FeatureSource, view: TargetView) -> Bound:
    """Make the drafter. Errors: UnknownNameError for the method, ConfigError for what does not go together."""
    method: TrainableMethod = registry.load("trainables", recipe.method)
    taps = method.taps(view, options=recipe.drafter)
    drafts = method.drafts(recipe.drafter)
    vocabulary = choose_vocabulary(
        source, size=recipe.vocabulary, vocab_size=view.vocab_size, always=sorted(view.stop_ids)
    )
    trainable = method.build(
        view,
        options=recipe.drafter,
        objective=recipe.loss.objective(drafts),
        vocabulary=None if vocabulary.ids is None else vocabulary.ids.to(view.device),
        feature_scale=feature_scale(source, taps, view=view),
        seed=recipe.seed,
    )
    return Bound(trainable, view, vocabulary)


def feature_scale(source: FeatureSource, taps: Taps, *, view: TargetView) -> Tensor:
    """Root mean square [D] of each tapped feature where the target wrote, over the first training sequences.

    Sizes differ by orders of magnitude between layers and dimensions; divided by this, all learn at one rate.
    """
    columns = tap_columns(source, taps, hidden_size=view.hidden_size)
    sequences = source.split("train")[:_SCALE_SEQUENCES].tolist()
    squares, count = torch.zeros(taps.count * view.hidden_size, dtype=torch.float64), 0
    for group in in_batches(source.sequences, sequences, max_tokens=_SCALE_TOKENS):
        batch = source.gather(group)
        parts = [batch.hidden[batch.loss_mask][:, c] for c in columns]
        parts += [batch.last_hidden[batch.loss_mask]] if taps.final_norm else []
        rows = torch.cat(parts, dim=-1).to(torch.float64)
        squares += rows.square().sum(dim=0)
        count += len(rows)
    if count == 0:
        raise TrainDataError("the features mark no token as the target's own; there is nothing to learn from")
    size = (squares / count).sqrt()
    return size.clamp(min=1e-2 * float(size.median()) + 1e-6).to(view.device, torch.float32)
