"""Which published format a folder is: a table of tests, first match wins, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.errors import CheckpointError
from specbench_drafters.formats.fields import architecture
from specbench_drafters.formats.files import Folder

_ALWAYS_SUPPORTED = ("eagle3", "dflash", "dspark", "mtp")
_LAYER_EH = re.compile(r"^model\.layers\.\d+\.eh_proj\.weight$")
_MTP = re.compile(r"^(?:model\.)?(?:language_model\.)?(?:mtp\.|mtp_layers\.|mtp_block\.)")


@dataclass(frozen=True, slots=True)
class Detection:
    """``family`` names the loader; ``refused`` is set where the format is known but not supported."""

    family: str
    label: str
    reason: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A folder as the tests look at it."""

    config: Mapping[str, Any]
    nested: Mapping[str, Any]
    arch: str
    names: frozenset[str]
    others: frozenset[str]
    folder: Folder

    def any(self, part: str) -> str | None:
        """The first tensor whose name contains ``part``."""
        return next((name for name in sorted(self.names) if part in name), None)

    def width(self, ending: str) -> int | None:
        """Input width of the first tensor whose name ends so."""
        for name in sorted(self.names):
            if name.endswith(ending):
                shape = self.folder.shape(name)
                return shape[-1] if shape and len(shape) == 2 else None
        return None

    @property
    def hidden(self) -> int | None:
        """``hidden_size`` where it is a number."""
        found = self.config.get("hidden_size")
        return found if isinstance(found, int) and not isinstance(found, bool) else None


def detect(folder: Folder) -> Detection:
    """The format of a folder. Errors: CheckpointError for an unknown one; refused ones are returned with a line."""
    config = folder.config
    nested = config.get("dflash_config")
    seen = _Seen(
        config=config,
        nested=nested if isinstance(nested, dict) else {},
        arch=architecture(config),
        names=folder.names,
        others=frozenset(folder.others),
        folder=folder,
    )
    for test in _TESTS:
        found = test(seen)
        if found is not None:
            return found
    raise CheckpointError(
        f"{folder.path}: unknown checkpoint format (architecture '{seen.arch or 'none'}', {len(seen.names)} tensors "
        f"such as '{min(seen.names, default='none')}'); known: DeepSpec, z-lab DFlash, SpecForge, speculators, "
        "EAGLE-3, native MTP"
    )


def require_supported(folder: Folder) -> Detection:
    """The format, when a loader exists for it. Errors: CheckpointError with one clear line otherwise."""
    found = detect(folder)
    if found.refused:
        raise CheckpointError(f"{folder.path}: {found.label} is not supported ({found.reason}); {found.refused}")
    return found


def _own(seen: _Seen) -> Detection | None:
    if "specbench_drafter" not in seen.config:
        return None
    return Detection("own", "specbench's compact layout", "config.json has 'specbench_drafter'")


def _speculators(seen: _Seen) -> Detection | None:
    kind = seen.config.get("speculators_model_type")
    if kind is None:
        return None
    reason = f"config.json has speculators_model_type '{kind}'"
    if kind in _ALWAYS_SUPPORTED:
        return Detection("speculators", f"speculators {kind}", reason)
    labels = {"peagle": "P-EAGLE (speculators)", "dflash2": "DFlash 2 (speculators)"}
    refused = f"supported speculators algorithms: {', '.join(_ALWAYS_SUPPORTED)}"
    return Detection("speculators", labels.get(str(kind), f"speculators '{kind}'"), reason, refused)


def _bundled_v4(seen: _Seen) -> Detection | None:
    key = next((key for key in sorted(seen.config) if key.startswith("dspark_")), None)
    if key is None or not any(name.startswith("mtp.0.main_proj") for name in seen.names):
        return None
    label = "DSpark bundled in a DeepSeek-V4 target"
    reason = f"config key '{key}' and tensors mtp.0.main_proj.*"
    return Detection("bundled-v4", label, reason, "use a separate DSpark drafter")


def _deepspec(seen: _Seen) -> Detection | None:
    if seen.arch in ("Qwen3DSparkModel", "Gemma4DSparkModel"):
        rank = seen.config.get("markov_rank")
        sequential = isinstance(rank, int) and rank > 0
        word = f"DSpark (markov_rank {rank})" if sequential else "DFlash, shifted slots (no Markov head)"
        return Detection("deepspec", f"DeepSpec {word}", f"architecture {seen.arch}")
    eagle = seen.arch in ("Qwen3Eagle3Model", "Gemma4Eagle3Model", "Eagle3DraftModel")
    if eagle and "ttt_length" in seen.config:
        return Detection("deepspec", "DeepSpec EAGLE-3", f"architecture {seen.arch} with 'ttt_length'")
    return None


def _dflash2(seen: _Seen) -> Detection | None:
    tensor = seen.any("candidate_selector.") or seen.any("attention_conv.base_kernel")
    if seen.arch != "DFlash2DraftModel" and tensor is None:
        return None
    reason = f"architecture {seen.arch}" if seen.arch == "DFlash2DraftModel" else f"tensor {tensor}"
    return Detection("dflash2", "DFlash 2", reason, "use the DFlash or DSpark drafter of this target")


def _specforge(seen: _Seen) -> Detection | None:
    if seen.nested.get("projector_type") == "dspark":
        return Detection("specforge", "SpecForge DSpark", "dflash_config.projector_type is 'dspark'")
    if tensor := seen.any("markov_head."):
        return Detection("specforge", "SpecForge DSpark", f"tensor {tensor}")
    if seen.nested.get("projector_type") == "domino" or (tensor := seen.any("prefix_gru.")):
        reason = "dflash_config.projector_type is 'domino'" if not tensor else f"tensor {tensor}"
        return Detection("domino", "Domino", reason, "use the DFlash or DSpark drafter of this target")
    return None


def _zlab(seen: _Seen) -> Detection | None:
    if seen.any("embed_tokens") or seen.any("lm_head") or not seen.names:
        return None
    known = seen.arch in ("DFlashDraftModel", "QwenDFlashDraftModel", "MuseGlimmerAssistantModel")
    if known or (seen.arch.startswith("DFlash") and seen.arch.endswith("ForCausalLM")):
        return Detection("zlab", "z-lab DFlash", f"architecture {seen.arch}, no embedding or head stored")
    if "dflash_config" in seen.config:
        return Detection("zlab", "z-lab DFlash", "config.json has 'dflash_config', no embedding or head stored")
    return None


def _peagle(seen: _Seen) -> Detection | None:
    tensor = seen.any("mask_hidden")
    if tensor is None and seen.config.get("parallel_drafting") is not True:
        return None
    reason = f"tensor {tensor}" if tensor else "config.json says parallel_drafting"
    return Detection("peagle", "P-EAGLE", reason, "use an EAGLE-3, DFlash or DSpark drafter of this target")


def _eagle3(seen: _Seen) -> Detection | None:
    if seen.nested or seen.arch.startswith("DFlash"):
        return None  # a block drafter with a head or embedding of its own is none of the known layouts
    reason = None
    tensor = next((n for n in sorted(seen.names) if n == "d2t" or n.endswith(".d2t") or "midlayer." in n), None)
    if tensor is not None:
        reason = f"tensor {tensor}"
    elif "draft_vocab_size" in seen.config:
        reason = "config.json has 'draft_vocab_size'"
    elif seen.hidden and seen.width("layers.0.self_attn.q_proj.weight") == 2 * seen.hidden:
        width = seen.width("fc.weight")
        if width is not None and width > 2 * seen.hidden:
            reason = f"attention reads 2 x {seen.hidden} features and fc {width}"
    if reason is None:
        return None
    new = seen.any("fc_norm.") is not None or seen.config.get("norm_output") is True
    return Detection("eagle3", "EAGLE-3.1" if new else "EAGLE-3", reason)


def _eagle1(seen: _Seen) -> Detection | None:
    if not seen.hidden or seen.width("fc.weight") != 2 * seen.hidden:
        return None
    if seen.any("layers.0.") is None or seen.any("layers.0.input_layernorm") is not None:
        return None
    reason = "fc reads 2 x hidden and layer 0 has no input norm"
    return Detection("eagle1", "EAGLE-1/2", reason, "use an EAGLE-3 drafter of this target")


def _medusa(seen: _Seen) -> Detection | None:
    signs = {
        "config key 'medusa_num_heads'": "medusa_num_heads" in seen.config,
        "file medusa_lm_head.pt": "medusa_lm_head.pt" in seen.others,
        "architecture MedusaModel": seen.arch == "MedusaModel",
    }
    reason = next((sign for sign, there in signs.items() if there), None)
    if reason is None:
        return None
    return Detection("medusa", "Medusa", reason, "use an EAGLE-3, DFlash or DSpark drafter of this target")


def _native_mtp(seen: _Seen) -> Detection | None:
    tensor = next((n for n in sorted(seen.names) if _MTP.match(n) or _LAYER_EH.match(n)), None)
    if tensor is None:
        return None
    return Detection("native_mtp", "native MTP layers of a target", f"tensor {tensor}")


def _causal_lm(seen: _Seen) -> Detection | None:
    embedding = seen.any("embed_tokens") or seen.any("wte.")
    if embedding is None or not seen.arch.endswith(("ForCausalLM", "LMHeadModel")):
        return None
    reason = f"architecture {seen.arch} with an embedding and no drafter tensors"
    hint = "it holds no MTP or drafter layers; as a small model of its own it runs with --method draft_model"
    return Detection("causal_lm", "an ordinary language model", reason, hint)


_TESTS: tuple[Callable[[_Seen], Detection | None], ...] = (
    _own,
    _speculators,
    _bundled_v4,
    _deepspec,
    _dflash2,
    _specforge,
    _zlab,
    _peagle,
    _eagle3,
    _eagle1,
    _medusa,
    _native_mtp,
    _causal_lm,
)
