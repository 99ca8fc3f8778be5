"""All formats that the loaders know, by name: how a folder of each is made, and what is expected of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import support_checkpoints as made
import support_mtp_checkpoints as mtp
from support_checkpoints import (
    HIDDEN,
    TARGET_CONFIG,
    eagle3_config,
    random,
    sizes,
    speculators_config,
    write,
    zlab_config,
)


def tiny(folder: Path, config: Mapping[str, Any], *names: str, **shaped: tuple[int, ...]) -> Path:
    """A folder that only has to be recognised: named tensors of one row, and some with a shape."""
    tensors = {name: random(HIDDEN) for name in names}
    return write(folder, config, tensors | {name: random(*shape) for name, shape in shaped.items()})


def refused(folder: Path, kind: str) -> Path:
    """One folder of each known format that is not supported."""
    specs: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "Domino": (zlab_config(dflash_config={"projector_type": "domino"}), ("fc.weight",)),
        "P-EAGLE": (eagle3_config(), ("mask_hidden", "fc.weight")),
        "DFlash 2": (zlab_config(architectures=["DFlash2DraftModel"]), ("fc.weight",)),
        "DSpark bundled": (sizes(model_type="deepseek_v4", dspark_block_size=5), ("mtp.0.main_proj.weight",)),
        "Medusa": ({"medusa_num_heads": 4}, ("0.0.linear.weight",)),
        "peagle": (speculators_config("peagle", tokens=4), ("fc.weight",)),
        "dflash2": (speculators_config("dflash2", tokens=4), ("fc.weight",)),
        "language model": (dict(TARGET_CONFIG), ("model.embed_tokens.weight",)),
    }
    if kind == "EAGLE-1":
        folder = tiny(folder, sizes(architectures=["LlamaForCausalLM"]), "layers.0.post_attention_layernorm.weight")
        return write(
            folder, sizes(), {"fc.weight": random(HIDDEN, 2 * HIDDEN), "layers.0.mlp.up_proj.weight": random(4, 4)}
        )
    config, names = specs[kind]
    return tiny(folder, config, *names)


REFUSED = (
    "Domino",
    "P-EAGLE",
    "DFlash 2",
    "DSpark bundled",
    "Medusa",
    "peagle",
    "dflash2",
    "language model",
    "EAGLE-1",
)


@dataclass(frozen=True, slots=True)
class Format:
    """One published format: how to make it, what the loader must say, and where it can be exported to."""

    make: Callable[[Path], Path]
    layout: str
    kind: str
    exports: tuple[str, ...]  # the layouts that can express it
    target: Mapping[str, Any] | None = None  # None: `TARGET_CONFIG`; MTP targets are their own


_ALL = ("specbench", "speculators", "deepspec")
FORMATS: dict[str, Format] = {
    "deepspec-dspark": Format(made.deepspec_dspark, "deepspec", "dspark", _ALL),
    "deepspec-dspark-gated": Format(lambda at: made.deepspec_dspark(at, "gated"), "deepspec", "dspark", _ALL),
    "deepspec-dspark-rnn": Format(lambda at: made.deepspec_dspark(at, "rnn"), "deepspec", "dspark", _ALL),
    "deepspec-dflash": Format(made.deepspec_dflash, "deepspec", "dflash", _ALL),
    "deepspec-eagle3": Format(made.deepspec_eagle3, "deepspec", "eagle3", _ALL),
    "deepspec-gemma4": Format(made.deepspec_gemma4, "deepspec", "dspark", ("specbench", "deepspec")),
    "zlab-dflash": Format(made.zlab_dflash, "z-lab", "dflash", ("specbench", "speculators")),
    "zlab-sliding": Format(made.zlab_sliding, "z-lab", "dflash", ("specbench",)),
    "zlab-mask-file": Format(made.zlab_mask_file, "z-lab", "dflash", ("specbench",)),
    "specforge-dspark": Format(made.specforge_dspark, "specforge", "dspark", _ALL),
    "safeailab-eagle3": Format(made.safeailab_eagle3, "safeailab", "eagle3", ("specbench", "speculators")),
    "angelslim-eagle3": Format(made.angelslim_eagle3, "angelslim", "eagle3", ("specbench", "speculators")),
    "specforge-eagle31": Format(made.specforge_eagle31, "specforge", "eagle3", ("specbench", "speculators")),
    "modelopt-eagle3": Format(made.modelopt_eagle3, "modelopt", "eagle3", ("specbench", "speculators")),
    "eagle3-final-state": Format(made.eagle3_final_state, "safeailab", "eagle3", ("specbench",)),
    "speculators-eagle3": Format(made.speculators_eagle3, "speculators", "eagle3", ("specbench", "speculators")),
    "speculators-dflash": Format(made.speculators_dflash, "speculators", "dflash", ("specbench", "speculators")),
    "speculators-dspark": Format(made.speculators_dspark, "speculators", "dspark", ("specbench", "speculators")),
    "speculators-mtp": Format(mtp.speculators_mtp, "speculators", "mtp", ("specbench", "speculators"), mtp.QWEN35),
    "deepseek-v3": Format(mtp.deepseek_v3, "native-mtp:deepseek_v3", "mtp", ("specbench", "speculators"), {}),
    "glm4-moe": Format(mtp.glm4_moe, "native-mtp:glm4_moe", "mtp", ("specbench", "speculators"), {}),
    "qwen3-next": Format(mtp.qwen3_next, "native-mtp:qwen3_next", "mtp", ("specbench", "speculators"), {}),
    "qwen3.5": Format(mtp.qwen3_5, "native-mtp:qwen3_5", "mtp", ("specbench", "speculators"), {}),
    "mimo": Format(mtp.mimo, "native-mtp:mimo", "mtp", ("specbench",), {}),
}


def target_of(name: str, folder: Path) -> dict[str, Any]:
    """The target's configuration for a made folder; MTP layers lie in the target itself."""
    given = FORMATS[name].target
    if given is None:
        return TARGET_CONFIG
    return dict(given) if given else json.loads((folder / "config.json").read_text(encoding="utf-8"))
