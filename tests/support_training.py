"""A tiny target, its own greedy texts and what it computed at them: everything that training needs, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from support_targets import tiny_model

from specbench.engine.target import Target
from specbench.train.bind import Bound, bind
from specbench.train.frozen import view_of_tables
from specbench.train.recipe import Recipe
from specbench.train.store import FeatureBatch, flat_rows, split_of
from specbench.types import TargetView

TAPS = (1, 2)
METHODS = ("mtp", "eagle3", "dflash", "dspark", "dspark-rnn")


class MemoryStore:
    """A `FeatureSource` that was never on disk; its states are float32, so predictions can be compared exactly."""

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        prompts: Sequence[int],
        *,
        model: Any,
        heldout: Sequence[int] = (),
        shared: bool = True,
    ) -> None:
        """``prompts`` are the lengths of the prompts in ``texts``. With ``shared`` all is held out and trained on."""
        self.sequences: NDArray[np.int64] = np.concatenate([[0], np.cumsum([len(t) for t in texts])]).astype(np.int64)
        self.token_ids = np.concatenate([np.array(t, dtype=np.int32) for t in texts])
        self.loss_mask = np.concatenate([np.arange(len(t)) >= n for t, n in zip(texts, prompts)])
        self.taps, self.meta = TAPS, {"made": "in memory"}
        self._shared = shared
        self._heldout = np.isin(np.arange(len(texts)), list(heldout))
        states = [self._computed(model, text) for text in texts]
        self.hidden = torch.cat([hidden for hidden, _ in states])
        self.last_hidden = torch.cat([last for _, last in states])
        with torch.no_grad():
            self.log_normaliser = model.get_output_embeddings()(self.last_hidden).logsumexp(dim=-1)

    @staticmethod
    @torch.no_grad()
    def _computed(model: Any, text: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        states = model(torch.tensor([list(text)]), output_hidden_states=True, use_cache=False).hidden_states
        return torch.cat([states[k][0] for k in TAPS], dim=-1), states[-1][0]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def split(self, name: str) -> NDArray[np.int64]:
        chosen = split_of(self._heldout, name)
        return np.arange(len(self._heldout), dtype=np.int64) if self._shared else chosen

    def gather(self, sequences: Sequence[int], *, device: str = "cpu") -> FeatureBatch:
        starts, rows = flat_rows(self.sequences, sequences)
        index = torch.from_numpy(rows)
        return FeatureBatch(
            sequences=tuple(sequences),
            starts=starts,
            token_ids=torch.from_numpy(self.token_ids[rows].astype(np.int64)),
            loss_mask=torch.from_numpy(self.loss_mask[rows]),
            hidden=self.hidden[index],
            last_hidden=self.last_hidden[index],
            log_normaliser=self.log_normaliser[index],
        )


def trained_target(*, seed: int = 0) -> Any:
    """A random Llama of three layers with sharp distributions, whose greedy texts do not end in one token at once."""
    model = tiny_model("llama", seed=seed, scale=2.5)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(16)[:3] = 0  # padding and stop tokens are never the likeliest
        model.get_input_embeddings().weight.mul_(8)
    return model


@torch.no_grad()
def greedy_texts(model: Any, *, count: int = 6, prompt: int = 5, answer: int = 32, seed: int = 1) -> list[list[int]]:
    """Prompts of unequal length and the target's own continuation."""
    noise = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        text = torch.randint(3, 97, (prompt + number % 3,), generator=noise).tolist()
        for _ in range(answer + number % 2):
            text.append(int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
        found.append(text)
    return found


def memory_store(model: Any, **options: Any) -> MemoryStore:
    """A store of greedy texts. Options as in `greedy_texts`, or of `MemoryStore`."""
    own = {k: options.pop(k) for k in ("heldout", "shared") if k in options}
    texts = greedy_texts(model, **options)
    base = options.get("prompt", 5)
    return MemoryStore(texts, [base + n % 3 for n in range(len(texts))], model=model, **own)


def view_of(model: Any) -> TargetView:
    """The target as training sees it."""
    return view_of_tables(
        model,
        model.get_input_embeddings(),
        model.get_output_embeddings(),
        dtype=torch.float32,
        device="cpu",
        name="tiny",
        max_context=256,
    )


def recipe(method: str = "dspark", **changes: Any) -> Recipe:
    """A small recipe of a method (or dspark-rnn) for the tiny target."""
    drafter: dict[str, Any] = {"block": 4, "intermediate": 48}
    loss: dict[str, Any] = {"soft_ce": 1.0, "tv": 0.5, "decay": 4.0}
    if method != "mtp":
        drafter["taps"] = list(TAPS)
    if method in ("dflash", "dspark", "dspark-rnn"):
        drafter |= {"layers": 2, "mask_token": 2}
    if method.startswith("dspark"):
        drafter |= {"markov": "rnn" if method.endswith("rnn") else "vanilla", "markov_rank": 8}
        loss["confidence"] = 0.5
    document: dict[str, Any] = {
        "name": f"tiny-{method}",
        "method": method.removesuffix("-rnn"),
        "target": "tiny",
        "drafter": drafter,
        "loss": loss,
        "optimiser": {"lr": 5e-3, "warmup": 0.05},
        "phases": [{"steps": 6, "sequences": 4, "drafts": 2}, {"steps": 6, "sequences": 4, "anchors": 8}],
        "evaluate": {"every": 6, "sequences": 4, "anchors": None},
        "checkpoint_every": 3,
        "precision": "float32",
    }
    return Recipe.model_validate(document | changes)


def bound(model: Any, store: Any, wanted: Recipe) -> Bound:
    """The recipe's drafter on the tiny target."""
    return bind(wanted, store, view_of(model))


def engine_target(model: Any) -> Target:
    """The same target behind the engine."""
    return Target(model, name="tiny")


def folder_names(folder: Path) -> set[str]:
    """What a folder holds."""
    return {path.name for path in folder.iterdir()}
