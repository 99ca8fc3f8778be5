"""From the name of a model to its weights: a local folder, the model hub, or the packaged demo model."""

from __future__ import annotations

from specbench.resolve.cache import home
from specbench.resolve.models import ResolvedDrafter, ResolvedModel, resolve_drafter, resolve_target
from specbench.resolve.names import KnownTarget, find_target, known_targets
from specbench.resolve.progress import rich_step, silent_step
from specbench.resolve.tokenizer import (
    hash_template,
    hash_tokenizer,
    same_tokenizer_map,
    tokenizer_difference,
    vocabulary_map,
)
from specbench.resolve.weights import hash_weights, weight_files

__all__ = [
    "KnownTarget",
    "ResolvedDrafter",
    "ResolvedModel",
    "find_target",
    "hash_template",
    "hash_tokenizer",
    "hash_weights",
    "home",
    "known_targets",
    "resolve_drafter",
    "resolve_target",
    "rich_step",
    "same_tokenizer_map",
    "silent_step",
    "tokenizer_difference",
    "vocabulary_map",
    "weight_files",
]
