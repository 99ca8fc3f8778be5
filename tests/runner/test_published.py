"""A method without a named or packaged drafter takes the published one of its target, and says so."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.cell import _published
from specbench.errors import SpecbenchError


def session(target: str) -> Any:
    return SimpleNamespace(spec=SimpleNamespace(target=target, trust_remote_code=False))


def test_the_published_drafter_is_named_even_when_it_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said: list[str] = []

    def step(text: str) -> Any:
        said.append(text)
        return nullcontext()

    with pytest.raises(SpecbenchError, match="deepseek-ai/dspark_qwen3_4b_block7") as refused:
        _published(session("Qwen/Qwen3-4B"), "dspark", step=step)
    assert "\n" not in str(refused.value)
    assert "deepseek-ai/dspark_qwen3_4b_block7" in said[0]


def test_targets_without_a_published_drafter_and_native_layers_need_none() -> None:
    quiet: Any = lambda text: nullcontext()  # noqa: E731
    assert _published(session("smollm2-135m"), "dspark", step=quiet) is None
    assert _published(session("deepseek-ai/DeepSeek-V3"), "mtp", step=quiet) is None
