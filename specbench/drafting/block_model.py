"""The model behind DFlash and DSpark drafters: fused target states, context-injected layers, heads.

Parameter names are the canonical names of a drafter checkpoint, so a state dict goes in and out unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from specbench.drafting.blocks import Attend, BlockLayer, Tables
from specbench.drafting.heads import ConfidenceHead, MarkovHead
from specbench.drafting.inference import for_inference, head_rows, module_bytes, prepared
from specbench.drafting.norms import RMSNorm
from specbench.drafting.rope import Rotary
from specbench.drafting.shapes import BackboneShape
from specbench.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Everything that shapes a `BlockModel`.

    A block has ``block_inputs`` rows: the anchor and masks. With ``slot_shift`` 1 row k predicts token anchor + k + 1,
    with 0 token anchor + k (and the anchor's row predicts nothing). ``embed_scale`` multiplies raw embedding rows; None
    takes the embedding as its module gives it.
    """

    shape: BackboneShape
    feature_size: int  # width of the concatenated taps
    vocab_size: int
    draft_size: int  # output rows, smaller than vocab_size where the draft vocabulary is reduced
    block_inputs: int
    slot_shift: int
    mask_token_id: int
    stored_embed: bool
    stored_head: bool
    embed_scale: float | None = None
    logit_scale: float | None = None
    softcap: float | None = None
    one_plus_norm: bool = False
    shared_value: bool = False
    mask_embedding: bool = False  # the mask's embedding is a parameter of its own
    markov: str = "none"
    markov_rank: int = 0
    confidence: str = "none"  # "none", "hidden", "hidden+markov"
    confidence_bias: bool = True

    @property
    def max_drafts(self) -> int:
        """Predictions of one block."""
        return self.block_inputs - (1 - self.slot_shift)


class BlockModel(nn.Module):
    """A block drafter without its caches. ``max_context`` bounds the positions that rotary scaling is chosen for.

    `bind` must give it the target's embedding and head where the checkpoint stores none.
    """

    def __init__(self, config: BlockConfig, *, max_context: int, device: torch.device) -> None:
        super().__init__()
        shape = config.shape
        self.config = config
        self.rotary = Rotary(shape, max_context=max_context, device=device)
        self.fc = nn.Linear(config.feature_size, shape.hidden_size, bias=False)
        self.hidden_norm = self._norm()
        self.norm = self._norm()
        self.layers = nn.ModuleList(
            BlockLayer(shape, shared_value=config.shared_value, one_plus=config.one_plus_norm)
            for _ in range(shape.num_layers)
        )
        if config.stored_embed:
            self.embed_tokens = nn.Embedding(config.vocab_size, shape.hidden_size)
        if config.stored_head:
            self.lm_head = nn.Linear(shape.hidden_size, config.draft_size, bias=False)
        self.mask_embedding = nn.Parameter(torch.zeros(shape.hidden_size)) if config.mask_embedding else None
        self.markov_head = self._markov()
        self.confidence_head = self._confidence()
        # In tuples, so that the target's modules do not become ours (state dict, dtype, device).
        self._shared_embed: tuple[nn.Module, ...] = ()
        self._shared_head: tuple[nn.Module, ...] = ()
        self._head_dtype = torch.float32
        self._own_rows: tuple[nn.Module, ...] = ()  # the shared head, where it is a copy of some of its rows

    def _norm(self) -> RMSNorm:
        shape = self.config.shape
        return RMSNorm(
            shape.hidden_size,
            eps=shape.norm_eps,
            one_plus=self.config.one_plus_norm,
            float_scale=shape.family == "gemma4",
        )

    def _markov(self) -> MarkovHead | None:
        config = self.config
        if config.markov == "none":
            return None
        return MarkovHead(
            config.markov,
            vocab_size=config.vocab_size,
            draft_size=config.draft_size,
            hidden_size=config.shape.hidden_size,
            rank=config.markov_rank,
        )

    def _confidence(self) -> ConfidenceHead | None:
        config = self.config
        if config.confidence == "none":
            return None
        with_markov = config.confidence == "hidden+markov"
        if with_markov and config.markov == "none":
            raise CheckpointError(
                "the confidence head reads the Markov embedding but the checkpoint has no Markov head"
            )
        rank = config.markov_rank if with_markov else 0
        return ConfidenceHead(hidden_size=config.shape.hidden_size, rank=rank, bias=config.confidence_bias)

    def bind(self, *, embed: nn.Module, head: nn.Module, id_map: Tensor | None) -> None:
        """Use the target's input embedding and output head where the checkpoint stores none; both are only read.

        With a reduced vocabulary the head's rows of ``id_map`` are copied once.
        Errors: CheckpointError when their widths do not fit the draft layers.
        """
        hidden = self.config.shape.hidden_size
        if not self.config.stored_embed:
            self._shared_embed = (embed,)
            self._check_width("embedding", embed, hidden)
        if not self.config.stored_head:
            self._check_width("output head", head, hidden)
            self._shared_head = (head_rows(head, id_map=id_map),)
            self._head_dtype = head.get_parameter("weight").dtype
            self._own_rows = () if id_map is None else self._shared_head

    @staticmethod
    def _check_width(what: str, module: nn.Module, hidden: int) -> None:
        width = module.get_parameter("weight").shape[1]
        if width != hidden:
            raise CheckpointError(
                f"the target's {what} is {width} wide and the drafter's layers {hidden}, but the checkpoint stores no "
                f"{what} of its own; use a drafter made for this target"
            )

    @property
    def dtype(self) -> torch.dtype:
        """What the layers compute in."""
        weight = self.hidden_norm.weight
        assert weight is not None, "this norm has a scale"
        return weight.dtype

    def bytes(self) -> int:
        """Bytes of the model's own weights (the target's shared modules not counted)."""
        return module_bytes(self) + sum(module_bytes(rows) for rows in self._own_rows)

    def ready(self, device: torch.device) -> None:
        """Make the model with its weights, and bound, ready to draft on ``device``."""
        for_inference(self, device=device)
        if self._own_rows:
            self._own_rows = self._shared_head = (prepared(self._own_rows[0], device=device),)

    # ------------------------------------------------------------------------------------------ context

    def context(self, features: Tensor) -> Tensor:
        """Context rows [T, d] of the concatenated taps ``features`` [T, feature_size]."""
        rows: Tensor = self.hidden_norm(self.fc(features.to(self.dtype)))
        return rows

    def context_keys(self, context: Tensor, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Per layer keys and values [T, Hkv, D] of ``context`` [T, d] at ``positions`` [T]."""
        tables = self.rotary.tables(positions, dtype=self.dtype)
        for layer in self._layers():
            yield layer.self_attn.keys_values(context, tables)

    def _layers(self) -> Iterator[BlockLayer]:
        for layer in self.layers:
            assert isinstance(layer, BlockLayer)
            yield layer

    # ------------------------------------------------------------------------------------------ block

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings [..., d] of target ids [...]."""
        module = self.embed_tokens if self.config.stored_embed else self._shared_embed[0]
        scale = self.config.embed_scale
        if scale is None:
            out: Tensor = module(token_ids)
        else:  # raw rows: a target's module may scale by itself, and the checkpoint says how it is to be
            weight = module.get_parameter("weight")
            out = functional.embedding(token_ids, weight) * torch.tensor(scale, dtype=weight.dtype)
        return out.to(self.dtype)

    def block_embeddings(self, anchors: Tensor) -> Tensor:
        """[B, block_inputs, d]: each anchor's embedding, then the mask's."""
        stored = self.mask_embedding
        mask = self.embed(anchors.new_full((), self.config.mask_token_id)) if stored is None else stored
        masks = mask.expand(anchors.shape[0], self.config.block_inputs - 1, -1)
        return torch.cat((self.embed(anchors)[:, None], masks), dim=1)

    def block(self, x: Tensor, *, positions: Tensor, attend: Attend) -> Tensor:
        """Draft layers and final norm over block rows: [B, S, d] from ``x`` [B, S, d] at ``positions`` [B, S]."""
        tables: Tables = self.rotary.tables(positions, dtype=x.dtype)
        for index, layer in enumerate(self._layers()):

            def attend_here(query: Tensor, keys: Tensor, values: Tensor, index: int = index) -> Tensor:
                return attend(index, query, keys, values)

            x = layer(x, tables, attend_here)
        normed: Tensor = self.norm(x)
        return normed

    def predictions(self, hidden: Tensor, *, drafts: int) -> Tensor:
        """The rows [B, drafts, d] of a block's ``hidden`` [B, S, d] that predict the next tokens, in order.

        They lie one behind the other: of rows with gaps between them a CPU makes one bfloat16 product each.
        """
        first = 1 - self.config.slot_shift
        rows = hidden[:, first : first + drafts]
        return rows.contiguous().view(-1, hidden.shape[-1]).view(rows.shape)

    def logits(self, hidden: Tensor) -> Tensor:
        """Base logits [..., Vd] of predicting rows [..., d], after scale and soft cap."""
        if self.config.stored_head:
            out: Tensor = self.lm_head(hidden)
        else:
            assert self._shared_head, "bind() gives the target's head"
            out = self._shared_head[0](hidden.to(self._head_dtype))
        if self.config.logit_scale is not None:
            out = out * self.config.logit_scale
        if self.config.softcap is not None:
            out = torch.tanh(out / self.config.softcap) * self.config.softcap
        return out

    def scale(self, layer: int) -> float:
        """The factor on attention scores in ``layer``."""
        found = self.layers[layer]
        assert isinstance(found, BlockLayer)
        return found.self_attn.scale
