"""Published drafters by target and method: public repositories and what to know about each.

Names as listed in the projects' own README files and model cards (DeepSpec, z-lab/dflash, SafeAILab/EAGLE, SpecForge,
vllm-project/speculators). Native MTP layers come with the target's own weights.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

_NON_THINKING = "trained with thinking off"


@dataclass(frozen=True, slots=True)
class PublishedDrafter:
    """One public repository. ``layout`` is the format that the loader will find there."""

    repository: str
    method: str
    target: str
    layout: str
    note: str = ""


def _deepspec() -> tuple[PublishedDrafter, ...]:
    targets = {
        "qwen3_4b": "Qwen/Qwen3-4B",
        "qwen3_8b": "Qwen/Qwen3-8B",
        "qwen3_14b": "Qwen/Qwen3-14B",
        "gemma4_12b": "google/gemma-4-12B-it",
    }
    kinds = {"dspark": "dspark_{}_block7", "dflash": "dflash_{}_block7", "eagle3": "eagle3_{}_ttt7"}
    return tuple(
        PublishedDrafter(f"deepseek-ai/{pattern.format(short)}", method, target, "deepspec", _NON_THINKING)
        for method, pattern in kinds.items()
        for short, target in targets.items()
    )


def _rows(method: str, layout: str, *rows: tuple[str, str] | tuple[str, str, str]) -> tuple[PublishedDrafter, ...]:
    return tuple(PublishedDrafter(row[1], method, row[0], layout, row[2] if len(row) > 2 else "") for row in rows)


_ZLAB = _rows(
    "dflash",
    "z-lab",
    ("Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", _NON_THINKING),
    ("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", _NON_THINKING),
    ("meta-llama/Llama-3.1-8B-Instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
    ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash"),
    ("Qwen/Qwen3-Coder-Next", "z-lab/Qwen3-Coder-Next-DFlash"),
    ("Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash"),
    ("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash"),
    ("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash"),
    ("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash"),
    ("Qwen/Qwen3.5-122B-A10B", "z-lab/Qwen3.5-122B-A10B-DFlash"),
    ("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash"),
    ("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash"),
    ("openai/gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash"),
    ("openai/gpt-oss-120b", "z-lab/gpt-oss-120b-DFlash"),
    ("moonshotai/Kimi-K2.5", "z-lab/Kimi-K2.5-DFlash"),
    ("google/gemma-4-31B-it", "z-lab/gemma-4-31B-it-DFlash"),
    ("google/gemma-4-26B-A4B-it", "z-lab/gemma-4-26B-A4B-it-DFlash"),
)
_EAGLE3 = _rows(
    "eagle3",
    "safeailab",
    ("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "rope base 10000, unlike the target"),
    ("meta-llama/Llama-3.3-70B-Instruct", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"),
    ("lmsys/vicuna-13b-v1.3", "yuhuili/EAGLE3-Vicuna1.3-13B"),
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B"),
    ("Qwen/Qwen3-8B", "Tengyunw/qwen3_8b_eagle3"),
    ("Qwen/Qwen3-30B-A3B", "Tengyunw/qwen3_30b_moe_eagle3"),
)
_ANGELSLIM = _rows(
    "eagle3",
    "angelslim",
    *((f"Qwen/Qwen3-{size}", f"AngelSlim/Qwen3-{size}_eagle3") for size in ("1.7B", "4B", "8B", "14B", "32B")),
    ("Qwen/Qwen3-30B-A3B", "AngelSlim/Qwen3-a3B_eagle3"),
)
_SPECFORGE = _rows(
    "eagle3",
    "specforge",
    ("meta-llama/Llama-3.1-8B-Instruct", "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge"),
    ("openai/gpt-oss-120b", "lmsys/EAGLE3-gpt-oss-120b-bf16"),
)
_MODELOPT = _rows(
    "eagle3",
    "modelopt",
    ("openai/gpt-oss-120b", "nvidia/gpt-oss-120b-Eagle3-v3", "nested layer ids are boundaries"),
    ("openai/gpt-oss-120b", "nvidia/gpt-oss-120b-Eagle3-long-context", "nested layer ids are boundaries"),
)
_SPECFORGE_DSPARK = _rows("dspark", "specforge", ("Qwen/Qwen3.8-27B", "RadixArk/Qwen3.8-27B-DSpark"))
_OLD_SLOTS = "slots may not be shifted; run inspect --check"
_SPECULATORS = (
    *_rows(
        "eagle3",
        "speculators",
        ("openai/gpt-oss-20b", "RedHatAI/gpt-oss-20b-speculator.eagle3"),
        ("google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-speculator.eagle3"),
        ("google/gemma-4-26B-A4B-it", "RedHatAI/gemma-4-26B-A4B-it-speculator.eagle3"),
    ),
    *_rows(
        "dflash",
        "speculators",
        ("google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-speculator.dflash"),
        ("mistralai/Mistral-Small-4-119B-2603", "RedHatAI/Mistral-Small-4-119B-2603-speculator.dflash"),
    ),
    *_rows(
        "dspark",
        "speculators",
        ("Qwen/Qwen3-4B", "RedHatAI/Qwen3-4B-speculator.dspark"),
        ("Qwen/Qwen3.6-35B-A3B", "RedHatAI/Qwen3.6-35B-A3B-speculator.dspark"),
        ("Qwen/Qwen3.8-27B", "RedHatAI/Qwen3.8-27B-speculator.dspark"),
        ("google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-speculator.dspark"),
        ("mistralai/Mistral-Small-4-119B-2603", "RedHatAI/Mistral-Small-4-119B-2603-speculator.dspark"),
        ("zai-org/GLM-5.3", "RedHatAI/GLM-5.3-speculator.dspark"),
        ("zai-org/GLM-5.2", "mgoin/GLM-5.2-speculator.dspark", _OLD_SLOTS),
        ("Qwen/Qwen3-8B", "mpashkovskii/dspark-qwen3-8b", _OLD_SLOTS),
    ),
)
_NATIVE_TARGETS = (
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1",
    "zai-org/GLM-4.5",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-0.8B",
    "Qwen/Qwen3.5-4B",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.8-27B",
    "XiaomiMiMo/MiMo-7B-Base",
)
_NATIVE = tuple(
    PublishedDrafter(name, "mtp", name, "native-mtp", "layers inside the target's own weights")
    for name in _NATIVE_TARGETS
)
# The first entry of a target and method is the one that a run picks.
PUBLISHED: tuple[PublishedDrafter, ...] = (
    *_deepspec(),
    *_ZLAB,
    *_ANGELSLIM,
    *_SPECFORGE,
    *_EAGLE3,
    *_MODELOPT,
    *_SPECFORGE_DSPARK,
    *_SPECULATORS,
    *_NATIVE,
)


def find(target: str, method: str | None = None) -> list[PublishedDrafter]:
    """Known drafters of a target (repository name in any case), of one method or of all; the preferred one first."""
    wanted = target.strip().rstrip("/").lower()
    return [
        entry
        for entry in PUBLISHED
        if entry.target.lower() == wanted and (method is None or entry.method == method.replace("-", "_"))
    ]


def pick(target: str, method: str) -> PublishedDrafter | None:
    """The drafter that a run takes when none is named, None where no published one is known."""
    return next(iter(find(target, method)), None)


def targets() -> list[str]:
    """Targets that have a known drafter."""
    return sorted({entry.target for entry in PUBLISHED}, key=str.lower)


def near_targets(target: str) -> list[str]:
    """Known targets whose names are near a misspelt one."""
    return difflib.get_close_matches(target, targets(), n=3, cutoff=0.5)


class Registry:
    """What the command line reaches through the registry."""

    find = staticmethod(find)
    pick = staticmethod(pick)
    targets = staticmethod(targets)
    near_targets = staticmethod(near_targets)


PLUGIN = Registry
