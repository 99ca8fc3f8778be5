from __future__ import annotations

import os
from pathlib import Path

import pytest
from support_folders import write_llama

CLOSED_PORT = "http://127.0.0.1:9"  # "discard": refuses at once, so these tests never reach the real hub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own and an empty hub cache for every test here, and no way to the real hub."""
    from huggingface_hub import constants

    folder = tmp_path / "home"
    monkeypatch.setenv("SPECBENCH_HOME", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", CLOSED_PORT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama folder; copy it before changing it."""
    return write_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def index_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as pip's only index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels
