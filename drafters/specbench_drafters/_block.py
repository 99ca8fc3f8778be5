"""What DFlash and DSpark share: a block model made from a checkpoint record, checked against its target."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from specbench.api import Random
from specbench.drafting.block_model import BlockConfig, BlockModel
from specbench.drafting.block_state import BlockState
from specbench.drafting.sampling import draw, is_greedy
from specbench.drafting.stops import truncate_at_stop
from specbench.drafting.vocab import checked_map, nameable
from specbench.errors import CheckpointError, ConfigError, DrafterError
from specbench.types import DraftLogits, Features, Proposal, Rows, Taps, TargetView, Verdict
from specbench_drafters._checks import check_kind, draft_height, fill, warn_if_shorter
from specbench_drafters.formats.load import load_checkpoint
from specbench_drafters.formats.record import DrafterSpec, DraftKind, LoadedCheckpoint

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


_OWN = {
    "draft_sampling": "probabilistic (default): drafts are sampled at the request's temperature; greedy: argmax",
    "dtype": "bfloat16 or float32 for the draft layers; default: the target's",
}


class BlockDrafter:
    """A drafter that proposes a whole block after the anchor in one forward.

    Slots follow the record: with shift 1 row k of a block predicts token anchor + k + 1, with shift 0 (z-lab) token
    anchor + k and the anchor's row nothing. Limits below the trained length shorten what the heads compute, never the
    block itself.
    """

    kind: ClassVar[DraftKind]
    graph_safe = True
    options: ClassVar[Mapping[str, str]] = {
        **_OWN,
        "taps": "states of the target to read, as Hugging Face indices, such as 2,10,18",
        "tap_final_norm": "true or false: also read the target's state after its final norm",
        "slot_shift": "1: row k of a block predicts the token after anchor + k; 0 (z-lab): the token at anchor + k",
        "mask_token_id": "the id that fills a block behind its anchor",
        "embed_from": "checkpoint or target: whose embedding",
        "head_from": "checkpoint or target: whose output head",
        "rope_theta": "base of the rotary embedding",
    }

    def __init__(
        self, model: BlockModel, *, taps: Taps, id_map: Tensor | None, target: TargetView, greedy: bool
    ) -> None:
        shape = model.config.shape
        self.taps = taps
        self.trained_length = model.config.max_drafts
        self.max_context = shape.max_position
        self.num_layers = shape.num_layers
        self.model = model
        self.state = BlockState(model, target=target)
        self.id_map = id_map
        self.width = nameable(target, id_map=id_map)
        self._greedy = greedy
        self._stop_ids = torch.tensor(sorted(target.stop_ids), dtype=torch.int64, device=target.device)
        self._warned_length = False
        warn_if_shorter(shape.max_position, target=target)

    @classmethod
    def load(cls, checkpoint: Path | None, *, target: TargetView, options: Mapping[str, Any]) -> Self:
        """Read a checkpoint folder and build. Errors: DrafterError, CheckpointError, ConfigError (see `build`)."""
        if checkpoint is None:
            raise DrafterError(f"{cls.kind.value} needs a checkpoint; name a folder or repository with --drafter")
        readings = {name: value for name, value in options.items() if name not in _OWN}
        own = {name: value for name, value in options.items() if name in _OWN}
        loaded = load_checkpoint(checkpoint, target_config=target.config, overrides=readings)
        return cls.build(loaded, target=target, options=own)

    @classmethod
    def build(cls, loaded: LoadedCheckpoint, *, target: TargetView, options: Mapping[str, Any]) -> Self:
        """Build from a record and its tensors.

        Errors: DrafterError for another kind of drafter or another target, or float16 layers; CheckpointError for
        missing, misshapen or non-finite tensors or an invalid reduced vocabulary; ConfigError for a bad option.
        """
        greedy = is_greedy(options.get("draft_sampling", "probabilistic"))
        dtype = _dtype(options.get("dtype"), target=target)
        check_kind(loaded, cls.kind)
        _check_target(loaded.spec, target=target)
        model, id_map = _model(loaded, target=target, dtype=dtype)
        taps = Taps(boundaries=loaded.spec.taps, final_norm=loaded.spec.tap_final_norm)
        return cls(model, taps=taps, id_map=id_map, target=target, greedy=greedy)

    def begin(self, rows: Rows) -> None:
        """Nothing to forget: reads are bounded by a row's own length."""

    def release(self, slots: Sequence[int]) -> None:
        """Nothing to give back: slots are reused in place."""

    @torch.no_grad()
    def prefill(self, rows: Rows, features: Features) -> None:
        """Cache the context of one prompt chunk a row."""
        self.state.extend(rows, features)

    @torch.no_grad()
    def commit(self, rows: Rows, *, verdict: Verdict, features: Features) -> None:
        """Cache the context of the anchor and the accepted drafts; it overwrites the block's scratch."""
        del verdict
        self.state.extend(rows, features)

    @torch.no_grad()
    def propose(self, rows: Rows, *, limits: Tensor, rng: Random) -> Proposal:
        """One block a row; nothing is drafted past a stop token."""
        wanted = rows.width(limits)
        drafts = min(wanted, self.trained_length)
        if wanted > drafts and not self._warned_length:
            self._warned_length = True
            warnings.warn(
                f"{wanted} drafts a round asked of a drafter whose block holds {drafts}; it drafts {drafts}",
                stacklevel=2,
            )
        hidden = self.model.predictions(self.state.block(rows), drafts=drafts)  # [B, G, d]
        sampling = not (self._greedy or rows.all_greedy)
        proposal = self._draft(rows, hidden, rng.draft(rows, drafts) if sampling else None)
        counts = truncate_at_stop(proposal.tokens, limits.clamp(max=drafts), self._stop_ids)
        return Proposal(tokens=proposal.tokens, counts=counts, draft=proposal.draft, confidence=proposal.confidence)

    @abstractmethod
    def _draft(self, rows: Rows, hidden: Tensor, uniforms: Tensor | None) -> Proposal:
        """Tokens (counts are not read) from the predicting rows ``hidden`` [B, G, d] and ``uniforms`` [B, G]."""

    def _draw(self, logits: Tensor, rows: Rows, uniforms: Tensor | None) -> tuple[Tensor, DraftLogits | None]:
        """Tokens [B, g] from ``logits`` [B, g, Vd]: sampled with ``uniforms`` [B, g], the argmax without."""
        return draw(logits, rows, uniforms=uniforms, id_map=self.id_map, width=self.width, greedy=uniforms is None)

    def growth_bytes(self) -> int:
        """Bytes by which the context cache may still grow."""
        return self.state.growth_bytes()

    def state_bytes(self) -> int:
        """Bytes of weights and of the context cache."""
        return self.model.bytes() + self.state.bytes()


def _dtype(option: object, *, target: TargetView) -> torch.dtype:
    if option is None:
        dtype = target.dtype
    elif str(option) in _DTYPES:
        dtype = _DTYPES[str(option)]
    elif str(option) in ("float16", "fp16", "half"):
        dtype = torch.float16
    else:
        raise ConfigError(f"dtype is '{option}' for the draft layers; use {' or '.join(_DTYPES)}")
    if dtype is torch.float16:  # activations overflow in the fused projection and acceptance falls to nothing
        raise DrafterError(
            "block drafters overflow in float16 (large activations in the fused target states); run the draft layers "
            "with --set dtype=bfloat16 or dtype=float32"
        )
    return dtype


def _check_target(spec: DrafterSpec, *, target: TargetView) -> None:
    """Errors: DrafterError naming the first property in which the target is not the one that it was made for."""
    name = target.name or "the target"
    pairs: list[tuple[str, int | None, int]] = [
        ("a hidden size of", spec.target_hidden_size, target.hidden_size),
        ("a vocabulary of", spec.vocab_size, target.vocab_size),
        ("a layer count of", spec.num_target_layers, target.num_layers),
    ]
    for what, expected, seen in pairs:
        if expected is not None and expected != seen:
            raise DrafterError(
                f"the drafter was made for a target with {what} {expected}, {name} has {seen}; use the drafter that "
                "belongs to this target"
            )
    if not spec.taps and not spec.tap_final_norm:
        raise CheckpointError("the checkpoint names no target layers to read; give target_layer_ids in its config.json")
    beyond = [k for k in spec.taps if not 0 <= k <= target.num_layers]
    if beyond:
        raise DrafterError(
            f"the drafter reads state {beyond[0]} of the target, {name} has states 0..{target.num_layers}; use the "
            "drafter that belongs to this target"
        )


def _model(loaded: LoadedCheckpoint, *, target: TargetView, dtype: torch.dtype) -> tuple[BlockModel, Tensor | None]:
    """The model with its weights on the target's device, and the checked vocabulary map."""
    spec, tensors = loaded.spec, loaded.tensors
    draft_size = draft_height(loaded)
    id_map = checked_map(spec.d2t, draft_size=draft_size, vocab_size=spec.vocab_size)
    if spec.mask_token_id is None:
        raise CheckpointError(f"{loaded.path} names no mask_token_id; add it to its config.json")
    if not 0 <= spec.mask_token_id < spec.vocab_size and "mask_embedding" not in tensors:
        raise CheckpointError(
            f"mask_token_id is {spec.mask_token_id}, outside the vocabulary of {spec.vocab_size}; correct config.json"
        )
    config = BlockConfig(
        shape=spec.backbone,
        feature_size=(len(spec.taps) + int(spec.tap_final_norm)) * spec.target_hidden_size,
        vocab_size=spec.vocab_size,
        draft_size=draft_size,
        block_inputs=spec.block_inputs,
        slot_shift=spec.slot_shift,
        mask_token_id=spec.mask_token_id,
        stored_embed=spec.embed_from == "checkpoint",
        stored_head=spec.head_from == "checkpoint",
        embed_scale=spec.embed_scale,
        logit_scale=spec.logit_scale,
        softcap=spec.softcap,
        one_plus_norm=spec.one_plus_norm,
        shared_value=spec.backbone.family == "gemma4" and "layers.0.self_attn.v_proj.weight" not in tensors,
        mask_embedding="mask_embedding" in tensors,
        markov=spec.markov,
        markov_rank=spec.markov_rank,
        confidence=spec.confidence,
        confidence_bias=spec.confidence_bias,
    )
    with torch.device("meta"):
        model = BlockModel(config, max_context=target.max_context, device=target.device)
    fill(model, tensors, path=loaded.path)
    model = model.to(device=target.device, dtype=dtype)
    if id_map is not None:
        id_map = id_map.to(target.device)
    model.bind(embed=target.embed, head=target.head, id_map=id_map)
    model.ready(target.device)
    return model, id_map
