"""What a family's loader works from: the folder under canonical names, the target, the user's wishes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specbench.errors import CheckpointError
from specbench_drafters.formats.files import Folder
from specbench_drafters.formats.record import DrafterSpec, DraftKind

_PREFIXES = ("_orig_mod.", "module.", "model.", "draft_model.", "logit_head.")
_RENAMES = (
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^encoder\.fc\."), "fc."),
    (re.compile(r"^encoder\.output_norm_enc\."), "hidden_norm."),
)
_LAYER = re.compile(r"^layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What is checked against the target's configuration."""

    hidden_size: int
    num_layers: int
    vocab_size: int
    model_type: str


def target_facts(config: Any) -> TargetFacts | None:
    """Facts of a transformers configuration (or its dictionary); sizes of wrappers come from ``text_config``."""
    if config is None:
        return None

    def get(where: Any, key: str) -> Any:
        return where.get(key) if isinstance(where, Mapping) else getattr(where, key, None)

    text = get(config, "text_config") or config
    found = {key: get(text, key) for key in ("hidden_size", "num_hidden_layers", "vocab_size")}
    gpt2 = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}
    sizes = {key: value if value is not None else get(text, gpt2.get(key, key)) for key, value in found.items()}
    for key, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise CheckpointError(f"the target's configuration has no usable '{key}' (found {value!r})")
    return TargetFacts(
        hidden_size=sizes["hidden_size"],
        num_layers=sizes["num_hidden_layers"],
        vocab_size=sizes["vocab_size"],
        model_type=str(get(text, "model_type") or ""),
    )


@dataclass(slots=True)
class Source:
    """A folder under canonical names. Loaders read from it and leave their assumptions in ``notes``."""

    folder: Folder
    stored: dict[str, str]  # canonical name -> name in the files
    target: TargetFacts | None
    overrides: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The folder, with which errors begin."""
        return str(self.folder.path)

    def has(self, name: str) -> bool:
        """Whether the folder stores a tensor under this canonical name."""
        return name in self.stored

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor by canonical name, None where it is not stored."""
        return self.folder.shape(self.stored[name]) if name in self.stored else None

    def read(self, name: str) -> Tensor:
        """One tensor by canonical name."""
        stored = self.stored[name]
        return self.folder.read([stored])[stored]

    def num_layers(self) -> int:
        """Draft layers counted in the tensor names, which is more reliable than the configuration."""
        found = sorted({int(match.group(1)) for name in self.stored if (match := _LAYER.match(name))})
        if not found:
            raise CheckpointError(f"{self.where}: no draft layer (layers.0.* or midlayer.*) among the tensors")
        if found != list(range(len(found))):
            raise CheckpointError(f"{self.where}: draft layers {found} are not numbered 0..{len(found) - 1}")
        return len(found)

    def error(self, text: str) -> CheckpointError:
        """An error that begins with the folder."""
        return CheckpointError(f"{self.where}: {text}")


@dataclass(frozen=True, slots=True)
class Derived:
    """A tensor that is made from stored ones when it is needed; its shape is known before."""

    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> Derived:
        """A tensor that already exists."""
        return cls(tuple(tensor.shape), lambda: tensor)


@dataclass(frozen=True, slots=True)
class Reading:
    """A loader's result: the spec, which stored tensor serves each canonical name, and ready-made tensors.

    ``ready`` holds tensors that are not stored as they are needed (a mask embedding, experts that were fused, rows
    put in another order); ``spare`` are the canonical names of stored tensors that are rightly not needed as such.
    """

    spec: DrafterSpec
    stored: dict[str, str]
    ready: dict[str, Derived] = field(default_factory=dict)
    spare: tuple[str, ...] = ()


def canonical_names(folder: Folder) -> dict[str, str]:
    """Canonical name of every stored tensor of a draft-only checkpoint. Errors: CheckpointError on a clash."""
    found: dict[str, str] = {}
    for stored in sorted(folder.names):
        name = stored
        while (prefix := next((p for p in _PREFIXES if name.startswith(p)), None)) is not None:
            name = name.removeprefix(prefix)
        for pattern, replacement in _RENAMES:
            name = pattern.sub(replacement, name)
        if name in found:
            raise CheckpointError(f"{folder.path}: tensors '{found[name]}' and '{stored}' are the same thing; keep one")
        found[name] = stored
    return found


def make_spec(**values: Any) -> DrafterSpec:
    """A DrafterSpec whose unnamed fields are neutral: nothing scaled, no heads, embedding and head the target's."""
    neutral: dict[str, Any] = {
        "tap_final_norm": False,
        "block_inputs": 0,
        "slot_shift": 1,
        "mask_token_id": None,
        "embed_from": "target",
        "embed_scale": None,
        "head_from": "target",
        "logit_scale": None,
        "softcap": None,
        "d2t": None,
        "one_plus_norm": False,
        "residual_normed": False,
        "pre_fc_norm": "none",
        "recycle": "pre_norm",
        "concat_order": "embedding,hidden",
        "zero_embedding_at_position_0": False,
        "markov": "none",
        "markov_rank": 0,
        "confidence": "none",
        "confidence_bias": False,
    }
    return DrafterSpec(**{**neutral, **values})


BLOCK_KINDS = (DraftKind.DSPARK, DraftKind.DFLASH)
