"""Which hidden states of the target a checkpoint reads: five conventions, normalised to Hugging Face indices."""

from __future__ import annotations

from specbench_drafters.formats.fields import Fields
from specbench_drafters.formats.source import Source


def target_layers(fields: Fields, source: Source) -> int | None:
    """Decoder layers of the target: the user's word, the checkpoint's, or the target's own; None if nobody knows."""
    if "num_target_layers" in source.overrides:
        return int(source.overrides["num_target_layers"])
    told = fields.integer("num_target_layers", default=None)
    if told is not None and source.target is not None and told != source.target.num_layers:
        raise source.error(f"made for a target of {told} layers; this target has {source.target.num_layers}")
    return told if told is not None else (source.target.num_layers if source.target else None)


def chosen_taps(source: Source) -> tuple[int, ...] | None:
    """The taps that the user set, None where he left them to the checkpoint."""
    found = source.overrides.get("taps")
    return tuple(found) if found is not None else None


def layer_output_ids(fields: Fields, key: str, *, source: Source, num_layers: int | None) -> tuple[int, ...]:
    """Ids that count decoder-layer outputs from 0 (DeepSpec, z-lab, SpecForge): index = id + 1, -1 the embeddings.

    Errors: CheckpointError when the key is absent (guessing is wrong for most published checkpoints) or out of range.
    """
    chosen = chosen_taps(source)
    if chosen is not None:
        return checked(chosen, source=source, num_layers=num_layers)
    if not fields.has(key):
        raise source.error(
            f"config.json has no '{key}'; guessing it would only lower acceptance: add it, or --set METHOD.taps=..."
        )
    ids = fields.ids(key)
    if min(ids) < -1:
        raise source.error(f"'{key}' holds {min(ids)}; ids count decoder layers from 0, -1 is the embedding")
    if num_layers is not None and num_layers - 1 in ids:
        source.notes.append(f"tap {num_layers} is the last layer's output before the final norm")
    return checked(tuple(i + 1 for i in ids), source=source, num_layers=num_layers)


def boundary_ids(fields: Fields, key: str, *, source: Source, num_layers: int | None) -> tuple[int, ...]:
    """Ids that already are Hugging Face indices (speculators; ModelOpt heads)."""
    chosen = chosen_taps(source)
    return checked(chosen if chosen is not None else fields.ids(key), source=source, num_layers=num_layers)


def eagle3_default(source: Source, num_layers: int | None) -> tuple[int, ...]:
    """EAGLE-3 without any key: {2, n//2, n-3}, as SafeAILab's model code taps them."""
    chosen = chosen_taps(source)
    if chosen is not None:
        return checked(chosen, source=source, num_layers=num_layers)
    if num_layers is None:
        raise source.error(
            "the checkpoint names no tapped layers and they depend on the target's depth: "
            "pass the target (--target) or --set METHOD.taps=2,18,33"
        )
    found = (2, num_layers // 2, num_layers - 3)
    if not found[0] < found[1] < found[2]:
        raise source.error(
            f"the default taps {found} of a {num_layers}-layer target coincide (7 layers are needed): "
            "--set METHOD.taps=..."
        )
    source.notes.append(f"taps {found}: no key names them, so EAGLE-3's default 2, n//2, n-3 with n = {num_layers}")
    return found


def checked(taps: tuple[int, ...], *, source: Source, num_layers: int | None) -> tuple[int, ...]:
    """Taps in range and without repeats. Errors: CheckpointError."""
    if len(set(taps)) != len(taps):
        raise source.error(f"tapped layers {list(taps)} repeat an index")
    if taps and min(taps) < 0:
        raise source.error(f"tapped layers {list(taps)} must not be negative")
    if num_layers is not None and taps and max(taps) > num_layers:
        raise source.error(f"tapped layer {max(taps)} does not exist: the target has {num_layers} layers")
    return taps


def check_fc(source: Source, *, count: int, target_hidden: int, hidden: int) -> None:
    """The combiner's width must be (number of taps) x (the target's width).

    Errors: CheckpointError, with a hint when exactly one more layer would fit (a last layer that was left implicit).
    """
    shape = source.shape("fc.weight")
    if shape is None:
        raise source.error("no 'fc.weight' among the tensors; the drafter cannot combine the target's states")
    if shape == (hidden, count * target_hidden):
        return
    seen = f"fc.weight has shape {list(shape)}, expected [{hidden}, {count} x {target_hidden}]"
    if shape == (hidden, (count + 1) * target_hidden):
        raise source.error(f"{seen}; one more tap would fit (a last layer left implicit?): --set METHOD.taps=...")
    raise source.error(f"{seen}; the tapped layers or the target do not belong to this checkpoint")
