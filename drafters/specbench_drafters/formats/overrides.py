"""A user's own reading of a checkpoint: ``--set METHOD.FIELD=VALUE`` over what a loader decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specbench.errors import ConfigError, unknown_name
from specbench_drafters.formats.record import DrafterSpec


def parse_overrides(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Typed values by DrafterSpec field (and ``rope_theta``). Text such as "2,18,33", "none", "false" is understood.

    Errors: UnknownNameError for a field that cannot be set, ConfigError for a value of the wrong kind.
    """
    parsed = {}
    for name, value in (given or {}).items():
        name = name.rpartition(".")[2]
        if name not in _PARSERS:
            raise unknown_name("drafter option", name, _PARSERS)
        parsed[name] = _PARSERS[name](name, value)
    return parsed


def settable() -> tuple[str, ...]:
    """The names that `parse_overrides` accepts."""
    return tuple(sorted(_PARSERS))


def apply_overrides(spec: DrafterSpec, overrides: Mapping[str, Any]) -> DrafterSpec:
    """The spec with the user's values; rows, shift and gamma of a block stay consistent with each other."""
    if not overrides:
        return spec
    values = dict(overrides)
    if spec.block_inputs:
        values = _consistent_block(spec, values)
    if "rope_theta" in values:
        rope = replace(spec.backbone.rope, theta=values.pop("rope_theta"))
        values["backbone"] = replace(spec.backbone, rope=rope)
    told = ", ".join(f"{name}={overrides[name]}" for name in sorted(overrides))
    return replace(spec, **values, notes=(*spec.notes, f"set by the user: {told}"))


def _consistent_block(spec: DrafterSpec, values: dict[str, Any]) -> dict[str, Any]:
    shift = values.get("slot_shift", spec.slot_shift)
    if "gamma" in values and "block_inputs" not in values:
        values["block_inputs"] = values["gamma"] + 1 - shift
    rows = values.get("block_inputs", spec.block_inputs)
    if values.setdefault("gamma", rows - 1 + shift) > rows - 1 + shift or values["gamma"] < 1:
        raise ConfigError(
            f"drafter options gamma={values['gamma']}, block_inputs={rows}, slot_shift={shift} contradict each other: "
            f"a block of {rows} rows drafts at most {rows - 1 + shift} tokens"
        )
    return values


def _wrong(name: str, wanted: str, value: object) -> ConfigError:
    return ConfigError(f"drafter option '{name}' must be {wanted}, found {value!r}")


def _is_none(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))


def _integer(minimum: int, *, optional: bool = False) -> Callable[[str, Any], Any]:
    def parse(name: str, value: Any) -> int | None:
        if optional and _is_none(value):
            return None
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = minimum - 1
        if isinstance(value, bool | float) or number < minimum:
            raise _wrong(name, f"a whole number of at least {minimum}", value)
        return number

    return parse


def _number(*, optional: bool = True) -> Callable[[str, Any], Any]:
    def parse(name: str, value: Any) -> float | None:
        if optional and _is_none(value):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if isinstance(value, bool) or not 0 < number < float("inf"):
            raise _wrong(name, "a number above 0", value)
        return number

    return parse


def _boolean(name: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "yes", "1", "on"):
        return True
    if text in ("false", "no", "0", "off"):
        return False
    raise _wrong(name, "true or false", value)


def _choice(*choices: str) -> Callable[[str, Any], Any]:
    def parse(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _wrong(name, " or ".join(choices), value)
        return value

    return parse


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if _is_none(value):
        return ()
    parts: Any = value.strip("[]() ").split(",") if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = [parts]
    try:
        ids = tuple(int(part) for part in parts if not isinstance(part, str) or part.strip())
    except (TypeError, ValueError):
        raise _wrong(name, "a list of layer indices such as 2,18,33", value) from None
    if any(index < 0 for index in ids):
        raise _wrong(name, "a list of layer indices such as 2,18,33", value)
    return ids


def _shift(name: str, value: Any) -> int:
    if str(value).strip() not in ("0", "1") or isinstance(value, bool):
        raise _wrong(name, "0 or 1", value)
    return int(value)


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "taps": _ids,
    "tap_final_norm": _boolean,
    "num_target_layers": _integer(1),
    "gamma": _integer(1),
    "block_inputs": _integer(1),
    "slot_shift": _shift,
    "mask_token_id": _integer(0),
    "embed_from": _choice("checkpoint", "target"),
    "embed_scale": _number(),
    "head_from": _choice("checkpoint", "target"),
    "logit_scale": _number(),
    "softcap": _number(),
    "one_plus_norm": _boolean,
    "residual_normed": _boolean,
    "recycle": _choice("pre_norm", "post_norm"),
    "concat_order": _choice("embedding,hidden", "hidden,embedding"),
    "zero_embedding_at_position_0": _boolean,
    "rope_theta": _number(optional=False),
}
