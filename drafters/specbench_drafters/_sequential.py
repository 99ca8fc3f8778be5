"""What the sequential drafters (eagle3, mtp) share around their networks: options, checks, the packed drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from specbench.drafting.chain import ChainDrafter, ChainModel
from specbench.drafting.inference import module_bytes
from specbench.drafting.sampling import is_greedy
from specbench.errors import ConfigError, unknown_name
from specbench.types import Taps, TargetView
from specbench_drafters._checks import warn_if_shorter
from specbench_drafters.formats.record import DrafterSpec

D = TypeVar("D", bound=ChainDrafter)

OPTIONS = {
    "draft_sampling": "probabilistic (default): drafts are sampled at the request's temperature; greedy: argmax",
    "max_context": "longest sequence to draft for, or none; default: the positions that the checkpoint names",
}


def split_options(options: Mapping[str, Any], *, known: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the options of `OPTIONS`, the readings of the checkpoint). Errors: UnknownNameError for any other name."""
    for name in options:
        if name not in known:
            raise unknown_name("drafter option", name, known)
    own = {name: value for name, value in options.items() if name in OPTIONS}
    return own, {name: value for name, value in options.items() if name not in OPTIONS}


def max_context(options: Mapping[str, Any], *, default: int | None, target: TargetView) -> int | None:
    """The longest sequence to draft for, with a warning where the run may be longer. Errors: ConfigError."""
    limit = default
    if "max_context" in options:
        text = str(options["max_context"]).strip().lower()
        if text != "none" and (not text.isdecimal() or int(text) < 1):
            raise ConfigError(f"max_context is {options['max_context']!r}; use a whole number above 0, or none")
        limit = None if text == "none" else int(text)
    warn_if_shorter(limit, target=target, remedy=" (--set max_context=none drafts on, at a lower acceptance)")
    return limit


def chain_drafter(
    cls: type[D],
    model: ChainModel,
    *,
    spec: DrafterSpec,
    target: TargetView,
    options: Mapping[str, Any],
    id_map: Tensor | None,
    default_context: int | None,
) -> D:
    """The drafter ``cls`` around a model that has its weights."""
    assert isinstance(model, nn.Module), "chain models of this package are modules"
    return cls(
        model,
        target=target,
        taps=Taps(boundaries=spec.taps, final_norm=spec.tap_final_norm),
        trained_length=spec.gamma,
        max_context=max_context(options, default=default_context, target=target),
        id_map=id_map,
        greedy=is_greedy(options.get("draft_sampling", "probabilistic")),
        weight_bytes=module_bytes(model),
    )


def as_target(
    tensors: Mapping[str, Tensor], *, target: TargetView, keep_float32: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Tensors on the target's device and in its dtype; names containing one of ``keep_float32`` stay in float32."""

    def dtype_of(name: str, tensor: Tensor) -> torch.dtype:
        if not tensor.is_floating_point():
            return tensor.dtype
        return torch.float32 if any(part in name for part in keep_float32) else target.dtype

    return {name: t.to(device=target.device, dtype=dtype_of(name, t)) for name, t in tensors.items()}
