"""The DSpark paper's numbers as data, each with its place in the paper (arXiv 2607.05147) and what it was measured on.

``None`` for target, temperature or draft length means that it is not carried over: then no run is said to agree with
it, and no difference is given.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation, arXiv 2607.05147"
GAMMA = 7  # drafts a round of the paper's table 1
TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class PaperValue:
    """One number of the paper. ``high`` closes a range that begins at ``value``.

    ``quantity`` names how it is read off records (`specbench.report.beside`), ``at`` is that reader's argument.
    ``load`` in words where the number depends on one.
    """

    place: str
    quantity: str
    method: str
    value: float
    unit: str
    high: float | None = None
    target: str | None = None
    task: str | None = None
    domain: str | None = None
    draft_length: int | None = None
    temperature: float | None = None
    at: float | None = None
    load: str | None = None
    calibrated: bool | None = None


TARGETS = {
    "Qwen3-4B": "qwen3-4b",
    "Qwen3-8B": "qwen3-8b",
    "Qwen3-14B": "qwen3-14b",
    "Gemma4-12B": "gemma-4-12b-it",
    "DeepSeek-V4-Flash": "deepseek-v4-flash",
    "DeepSeek-V4-Pro": "deepseek-v4-pro",
}
"""The paper's names of targets, and the last part of the names under which they are published, in lower case."""

METHODS = {"eagle3": "Eagle3", "dflash": "DFlash", "dspark": "DSpark", "mtp": "MTP-1"}
CHECKPOINTS = {"eagle3": "eagle3_{}_ttt7", "dflash": "dflash_{}_block7", "dspark": "dspark_{}_block7"}
CHECKPOINT_TARGETS = {"Qwen3-4B": "qwen3_4b", "Qwen3-8B": "qwen3_8b", "Qwen3-14B": "qwen3_14b",
                      "Gemma4-12B": "gemma4_12b"}  # fmt: skip
"""How DeepSpec names the drafters that it published: method and target give the repository's last part."""

TASKS = {
    "gsm8k": ("GSM8K", "math"),
    "math500": ("MATH500", "math"),
    "aime25": ("AIME25", "math"),
    "mbpp": ("MBPP", "code"),
    "humaneval": ("HumanEval", "code"),
    "livecodebench": ("LiveCodeBench", "code"),
    "mt-bench": ("MT-Bench", "chat"),
    "alpaca": ("Alpaca", "chat"),
    "arena-hard-v2": ("Arena-Hard", "chat"),
}
"""Tasks by their names here: the paper's name and the domain."""

_TABLE1 = {
    ("Qwen3-4B", "eagle3"): (5.14, 4.62, 3.92, 3.69, 4.16, 3.77, 2.39, 2.26, 2.55),
    ("Qwen3-4B", "dflash"): (5.40, 4.85, 4.15, 4.40, 4.74, 4.18, 3.07, 2.96, 2.83),
    ("Qwen3-4B", "dspark"): (6.11, 5.70, 4.89, 5.13, 5.38, 4.86, 3.64, 3.54, 3.29),
    ("Qwen3-8B", "eagle3"): (5.30, 4.77, 3.91, 3.96, 4.33, 4.17, 2.66, 2.54, 2.54),
    ("Qwen3-8B", "dflash"): (5.33, 4.91, 4.07, 4.36, 4.64, 4.39, 3.11, 2.98, 2.81),
    ("Qwen3-8B", "dspark"): (6.17, 5.78, 5.01, 5.16, 5.52, 5.17, 3.72, 3.58, 3.21),
    ("Qwen3-14B", "eagle3"): (5.24, 4.60, 3.71, 3.81, 4.14, 4.01, 2.62, 2.47, 2.48),
    ("Qwen3-14B", "dflash"): (5.41, 4.84, 3.98, 4.44, 4.59, 4.33, 3.10, 2.94, 2.72),
    ("Qwen3-14B", "dspark"): (6.21, 5.74, 4.94, 5.26, 5.43, 5.02, 3.70, 3.58, 3.13),
    ("Gemma4-12B", "eagle3"): (5.87, 5.46, 4.83, 4.72, 5.37, 4.16, 3.19, 3.06, 2.72),
    ("Gemma4-12B", "dflash"): (5.45, 5.04, 4.22, 4.39, 4.95, 3.70, 2.98, 2.84, 2.59),
    ("Gemma4-12B", "dspark"): (6.05, 5.78, 5.12, 5.11, 5.64, 4.51, 3.49, 3.35, 2.92),
}


def _table1() -> list[PaperValue]:
    return [
        PaperValue("Table 1", "tau", method, value, "tokens per round", target=target, task=task,
                   domain=TASKS[task][1], draft_length=GAMMA, temperature=TEMPERATURE)
        for (target, method), values in _TABLE1.items()
        for task, value in zip(TASKS, values, strict=True)
    ]  # fmt: skip


def _figure2() -> list[PaperValue]:
    first, last = 1, GAMMA
    held = (
        ("dflash", "math", first, 0.88), ("eagle3", "math", first, 0.81), ("dspark", "math", first, 0.93),
        ("dflash", "chat", first, 0.72), ("eagle3", "chat", first, 0.53), ("eagle3", "chat", last, 0.74),
        ("dflash", "chat", last, 0.63), ("dflash", "code", first, 0.87), ("dflash", "code", last, 0.78),
    )  # fmt: skip
    return [
        PaperValue("Figure 2", "conditional", method, value, "fraction", target="Qwen3-4B", domain=domain, at=k,
                   draft_length=GAMMA)
        for method, domain, k, value in held
    ]  # fmt: skip


def _figure4() -> list[PaperValue]:
    gains = {7: (16, 15, 18), 15: (30, 26, 22)}
    return [
        PaperValue("Figure 4", "gain_over_dflash", "dspark", gain, "%", domain=domain, draft_length=length)
        for length, values in gains.items()
        for domain, gain in zip(("math", "code", "chat"), values, strict=True)
    ]


def _figure5() -> list[PaperValue]:
    held = {"math": (76.9, 92.5), "code": (67.6, 92.0), "chat": (45.7, 95.7)}
    return [
        PaperValue("Figure 5", quantity, "dspark", value, "%", domain=domain)
        for domain, values in held.items()
        for quantity, value in zip(("acceptance_lowest", "acceptance_highest"), values, strict=True)
    ]


def _figure6() -> list[PaperValue]:
    errors = {False: (5.7, 8.2, 5.8, 3.3), True: (2.0, 1.7, 0.8, 0.4)}
    found = [
        PaperValue("Figure 6", "ece", "dspark", value, "%", task="alpaca", domain="chat", at=k, calibrated=calibrated)
        for calibrated, values in errors.items()
        for k, value in zip((1, 3, 5, 7), values, strict=True)
    ]
    return [
        *found,
        PaperValue("Figure 6", "auroc", "dspark", 0.82, "fraction", high=0.91, task="alpaca", domain="chat"),
    ]


_TRAFFIC = "serving traffic"


def _figure7() -> list[PaperValue]:
    held = (("DeepSeek-V4-Flash", 80, 51), ("DeepSeek-V4-Flash", 120, 661), ("DeepSeek-V4-Pro", 35, 52),
            ("DeepSeek-V4-Pro", 50, 406))  # fmt: skip
    speeds = (("DeepSeek-V4-Flash", 60, 85), ("DeepSeek-V4-Pro", 57, 78))
    return [
        *(PaperValue("Figure 7", "throughput_gain", "dspark", gain, "%", target=target, at=speed, load=_TRAFFIC)
          for target, speed, gain in held),
        *(PaperValue("Figure 7", "speed_gain", "dspark", low, "%", high=high, target=target, load=_TRAFFIC)
          for target, low, high in speeds),
    ]  # fmt: skip


def _figure8() -> list[PaperValue]:
    return [
        PaperValue("Figure 8", "budget", "dspark", 4.0, "tokens per round", high=6.0, load=_TRAFFIC),
        PaperValue("Figure 8", "budget", "mtp", 2.0, "tokens per round", draft_length=1, load=_TRAFFIC),
    ]


def paper_values() -> list[PaperValue]:
    """All of them, in the order of the paper."""
    parts = (_table1, _figure2, _figure4, _figure5, _figure6, _figure7, _figure8)
    return [value for part in parts for value in part()]


NOMINAL_AT = (120, 50)  # tok/s/user
NOMINAL = "the paper calls this nominal: its baseline serves almost nothing there"
"""On the gains of its figure 7 at `NOMINAL_AT`."""
NOT_KNOWN = (
    "Number of prompts, output limit, thinking mode and number type of the paper's runs are not carried over: a "
    "difference says nothing of these."
)
NOT_TIMED = (
    "Figure 4's latency of the sequential head (0.2 to 1.3 % of a round at batch 128, contexts of 512 to 4096) has no "
    "measured counterpart: records time drafting as a whole."
)
