"""A recipe's [drafter] table: checked options, and the draft layers that they make for a target."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.errors import ConfigError, unknown_name
from specbench.types import TargetView
from specbench_drafters.formats.record import Backbone, Rope

Size = Annotated[int, Field(ge=1)]


class Layers(BaseModel):
    """Options of every method. A size of None is the target's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: Size = Field(1, description="draft layers")
    block: Size = Field(7, description="drafts a round that it is trained for")
    family: Literal["qwen3", "llama"] = Field("qwen3", description="qwen3 norms queries and keys, llama does not")
    heads: Size | None = Field(None, description="attention heads")
    kv_heads: Size | None = Field(None, description="key and value heads")
    head_dim: Size | None = Field(None, description="width of a head")
    intermediate: Size | None = Field(None, description="width inside the MLP")


class TappedLayers(Layers):
    """Options of methods that read several of the target's states."""

    taps: Size | tuple[int, ...] = Field(5, description="states of the target to read: how many, or which (HF indices)")


Options = TypeVar("Options", bound=BaseModel)


def read_options(model: type[Options], options: Mapping[str, Any]) -> Options:
    """The options as a model. Errors: UnknownNameError for one that does not exist, ConfigError for a bad value."""
    for name in options:
        if name not in model.model_fields:
            raise unknown_name("drafter option", name, model.model_fields)
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    if fault["type"] == "missing":
        raise ConfigError(f"the recipe's [drafter] lacks '{fault['loc'][0]}'; give it")
    where = ".".join(str(part) for part in fault["loc"][:1])
    message = fault["msg"].removeprefix("Value error, ")
    raise ConfigError(f"the recipe's drafter.{where} is {fault['input']!r}: {message[:1].lower()}{message[1:]}")


def help_of(model: type[BaseModel]) -> dict[str, str]:
    """Name and one line of every option."""
    return {name: field.description or "" for name, field in model.model_fields.items()}


def tapped(taps: int | tuple[int, ...], *, target: TargetView) -> tuple[int, ...]:
    """Hugging Face indices of the states to read.

    A number m takes m states evenly spaced from the output of the second layer to that of the last but two, which are
    DeepSpec's choices for Qwen3 (36 layers: 2, 10, 18, 26, 34; 40 layers: 2, 11, 20, 29, 38). Errors: ConfigError.
    """
    layers = target.num_layers
    if isinstance(taps, int):
        low, high = min(2, layers - 1), max(1, layers - 2)
        step = (high - low) / (taps - 1) if taps > 1 else 0.0
        chosen = tuple(round(low + i * step) for i in range(taps)) if taps > 1 else (layers // 2,)
    else:
        chosen = taps
    rising = all(a < b for a, b in pairwise(chosen))
    if not chosen or not rising or chosen[0] < 0 or chosen[-1] >= layers:
        raise ConfigError(
            f"the recipe's drafter.taps gives the states {list(chosen)}; they must rise within 0..{layers - 1} for "
            f"{target.name or 'this target'} with {layers} layers; list them"
        )
    return chosen


def backbone(options: Layers, *, target: TargetView) -> Backbone:
    """Draft layers of the target's width. Errors: ConfigError where heads and key/value heads do not go together."""
    config = target.config.get_text_config()
    heads = options.heads or int(config.num_attention_heads)
    kv_heads = options.kv_heads or int(getattr(config, "num_key_value_heads", None) or heads)
    if heads % kv_heads:
        raise ConfigError(f"the recipe's drafter has {heads} heads, no multiple of its {kv_heads} key/value heads")
    own_dim = getattr(config, "head_dim", None) or target.hidden_size // int(config.num_attention_heads)
    return Backbone(
        family=options.family,
        num_layers=options.layers,
        hidden_size=target.hidden_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=options.head_dim or int(own_dim),
        intermediate_size=options.intermediate or int(config.intermediate_size),
        norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        activation="silu",
        attention_bias=False,
        qk_norm=options.family == "qwen3",
        rope=_rope(config),
        causal=(False,) * options.layers,
        window=(None,) * options.layers,
        max_position=getattr(config, "max_position_embeddings", None),
    )


def _rope(config: Any) -> Rope:
    """The target's rotary embedding in either spelling of transformers; plain where the target has none."""
    found = getattr(config, "rope_parameters", None) or {}
    found = found.get("full_attention", found) if isinstance(found, dict) else {}
    theta = found.get("rope_theta") or getattr(config, "rope_theta", None) or 10_000.0
    scaling = found or getattr(config, "rope_scaling", None) or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    own = {"rope_theta", "partial_rotary_factor", "rope_type", "type"}
    extra = {} if kind == "default" else {"rope_type": kind} | {k: v for k, v in scaling.items() if k not in own}
    return Rope(float(theta), extra, float(found.get("partial_rotary_factor") or 1.0))
