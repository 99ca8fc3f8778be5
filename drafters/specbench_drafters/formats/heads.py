"""The sequential (Markov) and confidence heads of DSpark, recognised by their tensors and checked against the keys."""

from __future__ import annotations

from dataclasses import dataclass

from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.record import DraftKind
from specbench_drafters.formats.source import Source

_CELLS = {"gate_proj": "gated", "joint_proj": "rnn"}


@dataclass(frozen=True, slots=True)
class Heads:
    """The head fields of a DrafterSpec."""

    markov: str
    markov_rank: int
    confidence: str
    confidence_bias: bool

    @property
    def kind(self) -> DraftKind:
        """DSpark with a sequential or confidence head, otherwise the bare DFlash backbone."""
        return DraftKind.DFLASH if self.markov == "none" and self.confidence == "none" else DraftKind.DSPARK

    def fields(self) -> dict[str, object]:
        """Keyword arguments for the spec."""
        return {
            "markov": self.markov,
            "markov_rank": self.markov_rank,
            "confidence": self.confidence,
            "confidence_bias": self.confidence_bias,
        }


def read_heads(fields: Fields, *, source: Source, hidden: int) -> Heads:
    """Which heads there are. Errors: CheckpointError where configuration and tensors contradict each other."""
    markov, rank = _markov(fields, source)
    confidence, bias = _confidence(fields, source, hidden=hidden, rank=rank)
    return Heads(markov=markov, markov_rank=rank, confidence=confidence, confidence_bias=bias)


def _markov(fields: Fields, source: Source) -> tuple[str, int]:
    shape = source.shape("markov_head.markov_w1.weight")
    told = fields.integer("markov_rank", default=None, minimum=0)
    if shape is None:
        if told:
            raise source.error(f"config says markov_rank {told} but there is no 'markov_head.markov_w1.weight'")
        return "none", 0
    if len(shape) != 2 or (told is not None and told != shape[1]):
        raise source.error(f"config says markov_rank {told}, 'markov_head.markov_w1.weight' has shape {list(shape)}")
    seen = next((kind for name, kind in _CELLS.items() if source.has(f"markov_head.{name}.weight")), "vanilla")
    kind = fields.string("markov_head_type", default=seen, choices=("vanilla", "gated", "rnn"))
    if kind != seen:
        raise source.error(f"config says markov_head_type '{kind}', the tensors are those of '{seen}'")
    return kind, shape[1]


def _confidence(fields: Fields, source: Source, *, hidden: int, rank: int) -> tuple[str, bool]:
    shape = source.shape("confidence_head.proj.weight")
    told = fields.boolean("enable_confidence_head", default=None)
    if shape is None:
        if told:
            raise source.error("config says enable_confidence_head but there is no 'confidence_head.proj.weight'")
        return "none", False
    widths = {(1, hidden): "hidden", (1, hidden + rank): "hidden+markov"}
    if rank == 0:
        widths = {(1, hidden): "hidden"}
    seen = widths.get(shape if len(shape) == 2 else (0, 0))
    if seen is None:
        raise source.error(
            f"'confidence_head.proj.weight' has shape {list(shape)}; expected [1, {hidden}] or [1, {hidden + rank}]"
        )
    with_markov = fields.boolean("confidence_head_with_markov", default=seen == "hidden+markov")
    if with_markov != (seen == "hidden+markov"):
        raise source.error(f"config says confidence_head_with_markov {with_markov}, the head reads {shape[1]} features")
    if told is False:
        source.notes.append("a confidence head is stored though the configuration disables it; it is used")
    return seen, source.has("confidence_head.proj.bias")
