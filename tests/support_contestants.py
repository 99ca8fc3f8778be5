"""Every registered drafter on tiny random targets, with tiny random checkpoints in its own and in published layouts.

A new drafter module is picked up by its file name. If it needs no checkpoint nothing has to be added here; if it does,
`OWN` gets a maker of a checkpoint for any vocabulary and `PUBLISHED` one maker for each layout that people publish.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import support_checkpoints as published
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from specbench_drafters.formats.own import map_tensor, to_config
from specbench_drafters.formats.record import Backbone, DrafterSpec, DraftKind, Rope
from specbench_drafters.formats.shapes import required
from specbench_drafters.formats.source import make_spec
from support_checkpoints import DEPTH, HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, RANK, TARGET_CONFIG, VOCAB
from support_mtp_checkpoints import mimo
from tokenizers import Tokenizer, models

from specbench import registry
from specbench.api import Drafter
from specbench.engine.target import Target
from specbench.errors import SpecbenchError

LAYERS = 2  # of the target for checkpoints in the own layout; published ones are made for `support_checkpoints`'
CONTEXT = 64
TOY_VOCAB = 8
TOKENS, PADDED_VOCAB = 97, 104  # of the tokenizer, and rows of a target's head that is taller

Maker = Callable[..., Path]  # (folder, *, vocab, limit) -> the folder with a checkpoint in it


# ------------------------------------------------------------------------------------------ targets


def tiny_qwen3(*, vocab: int, layers: int, scale: float, seed: int = 0, limit: int = CONTEXT) -> Any:
    """A random float32 Qwen3 of the sizes of `support_checkpoints`, its matrices ``scale`` times as large."""
    skipped = ("architectures", "model_type", "vocab_size", "num_hidden_layers", "max_position_embeddings")
    sizes = {key: value for key, value in TARGET_CONFIG.items() if key not in skipped}
    config = tf.Qwen3Config(
        **sizes,
        vocab_size=vocab,
        num_hidden_layers=layers,
        max_position_embeddings=limit,
        tie_word_embeddings=False,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    torch.random.set_rng_state(state)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model


@cache
def small_target(vocab: int) -> Target:
    """What checkpoints in the own layout are made for."""
    return Target(tiny_qwen3(vocab=vocab, layers=LAYERS, scale=10.0))


def toy_model() -> Any:
    """Eight tokens, none of them certain."""
    return tiny_qwen3(vocab=TOY_VOCAB, layers=LAYERS, scale=5.0, seed=1)


@cache
def toy_target() -> Target:
    """`toy_model` behind the engine."""
    return Target(toy_model())


@cache
def published_target() -> Target:
    """What published checkpoints are made for."""
    return Target(tiny_qwen3(vocab=VOCAB, layers=DEPTH, scale=10.0))


def counted_tokenizer(size: int) -> Any:
    """A real tokenizer of ``size`` one-word tokens."""
    words = {f"w{index}": index for index in range(size)}
    core = Tokenizer(models.WordLevel(words, unk_token="w0"))
    return tf.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w0")


# ------------------------------------------------------------------------------------------ own layout


def _backbone(*, layers: int, causal: bool, limit: int, window: int | None) -> Backbone:
    return Backbone(
        family="qwen3",
        num_layers=layers,
        hidden_size=HIDDEN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=INNER,
        norm_eps=1e-6,
        activation="silu",
        attention_bias=False,
        qk_norm=True,
        rope=Rope(theta=10_000.0),
        causal=(causal,) * layers,
        window=(window,) + (None,) * (layers - 1),
        max_position=limit,
    )


def draft_ids(vocab: int) -> torch.Tensor:
    """The reduced vocabulary of the own checkpoints: five of each eight ids, unevenly."""
    ids = torch.arange(vocab)
    return ids[torch.isin(ids % 8, torch.tensor([0, 2, 3, 6, 7]))]


def own(
    folder: Path, *, vocab: int, kind: DraftKind, limit: int = CONTEXT, window: int | None = None, **fields: Any
) -> Path:
    """A checkpoint in our layout with every tensor that its record asks for, large enough to heed its input."""
    sequential = kind in (DraftKind.EAGLE3, DraftKind.MTP)
    defaults: dict[str, Any] = {
        "kind": kind,
        "layout": "specbench",
        "backbone": _backbone(layers=1 if sequential else 2, causal=sequential, limit=limit, window=window),
        "vocab_size": vocab,
        "taps": () if kind is DraftKind.MTP else (0, 1, 2),
        "tap_final_norm": kind is DraftKind.MTP,
        "target_hidden_size": HIDDEN,
        "num_target_layers": LAYERS,
        "gamma": 2 if kind is DraftKind.MTP else 5,
        "block_inputs": 0 if sequential else 5,
        "mask_token_id": None if sequential else vocab - 1,
        "head_from": "checkpoint",
    }
    return write_own(folder, make_spec(**{**defaults, **fields}))


def write_own(folder: Path, spec: DrafterSpec) -> Path:
    """Random tensors for a spec; norms differ from one and from each other."""
    noise = torch.Generator().manual_seed(11)
    tensors = {}
    for name, shape in required(spec).items():
        size, offset = (0.3, 0.0 if name.endswith("bias") else 1.0) if len(shape) == 1 else (2 * shape[-1] ** -0.5, 0.0)
        tensors[name] = offset + size * torch.randn(shape, generator=noise)
    return published.write(folder, to_config(spec), tensors | map_tensor(spec))


def _reduced(folder: Path, *, vocab: int, **fields: Any) -> Path:
    return own(folder, vocab=vocab, d2t=draft_ids(vocab), **fields)


def _language_model(folder: Path, *, vocab: int, limit: int = CONTEXT, missing: int = 0) -> Path:
    """A one-layer model whose head has ``missing`` rows less than the target's, and the target's tokenizer."""
    model = tiny_qwen3(vocab=vocab - missing, layers=1, scale=5.0, seed=2, limit=limit)
    model.save_pretrained(folder)
    counted_tokenizer(min(vocab - missing, TOKENS)).save_pretrained(folder)
    return folder


_DSPARK: dict[str, Any] = {"kind": DraftKind.DSPARK, "markov_rank": RANK, "confidence_bias": True}
OWN: dict[str, dict[str, Maker]] = {
    "dflash": {
        "own": partial(own, kind=DraftKind.DFLASH),
        "own-slots": partial(own, kind=DraftKind.DFLASH, slot_shift=0, block_inputs=6, head_from="target"),
        "own-reduced": partial(_reduced, kind=DraftKind.DFLASH, window=6),
    },
    "draft-model": {"own": _language_model, "own-fewer-rows": partial(_language_model, missing=1)},
    "dspark": {
        "own-vanilla": partial(own, **_DSPARK, markov="vanilla", confidence="hidden+markov"),
        "own-gated": partial(own, **_DSPARK, markov="gated", confidence="hidden"),
    },
    "dspark-rnn": {"own-reduced": partial(_reduced, **_DSPARK, markov="rnn", confidence="hidden+markov")},
    "eagle3": {
        "own-reduced": partial(_reduced, kind=DraftKind.EAGLE3),
        "own": partial(own, kind=DraftKind.EAGLE3, recycle="post_norm", embed_from="checkpoint", window=6),
    },
    "mtp": {
        "own": partial(own, kind=DraftKind.MTP, recycle="post_norm", head_from="target"),
        "own-reduced": partial(_reduced, kind=DraftKind.MTP),
    },
}
PUBLISHED: dict[str, dict[str, Callable[[Path], Path]]] = {
    "dflash": {
        "deepspec": published.deepspec_dflash,
        "zlab": published.zlab_dflash,
        "zlab-sliding": published.zlab_sliding,
        "speculators": published.speculators_dflash,
    },
    "dspark": {
        "deepspec-vanilla": published.deepspec_dspark,
        "deepspec-gated": partial(published.deepspec_dspark, kind="gated"),
        "deepspec-rnn": partial(published.deepspec_dspark, kind="rnn"),
        "specforge-gated": published.specforge_dspark,
        "speculators-rnn": published.speculators_dspark,
    },
    "eagle3": {
        "safeailab": published.safeailab_eagle3,
        "deepspec": published.deepspec_eagle3,
        "specforge-3.1": published.specforge_eagle31,
    },
    "mtp": {"mimo": mimo},
}


def sharpen(folder: Path, *, by: float = 5.0) -> Path:
    """Multiply the matrices of a made checkpoint: the makers' small values would hardly heed their input."""
    for file in sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"))):
        binary = file.suffix == ".bin"
        stored = torch.load(file, weights_only=True) if binary else load_file(file)
        grown = {name: t * by if t.dim() > 1 and t.is_floating_point() else t for name, t in stored.items()}
        if binary:
            torch.save(grown, file)
        else:
            save_file(grown, file, metadata={"format": "pt"})
    return folder


# ------------------------------------------------------------------------------------------ cases


@dataclass(frozen=True, slots=True)
class Case:
    """One drafter with one kind of checkpoint; ``maker`` None where the method needs none."""

    method: str
    variant: str
    maker: Maker | None = None
    published: bool = False

    def __str__(self) -> str:
        return f"{self.method}:{self.variant}" if self.variant else self.method


def own_cases() -> list[Case]:
    """All registered drafters that need no checkpoint, or with each checkpoint in our layout."""
    found = []
    for name in registry.names("drafters"):
        makers = OWN.get(name, {})
        found += [Case(name, variant, maker) for variant, maker in makers.items()] or [Case(name, "")]
    return found


def main_cases() -> list[Case]:
    """One case for each registered drafter."""
    return list({case.method: case for case in reversed(own_cases())}.values())[::-1]


def published_cases() -> list[Case]:
    """Each published layout that there is a maker for."""
    return [Case(name, key, maker, published=True) for name in PUBLISHED for key, maker in PUBLISHED[name].items()]


class Stable:
    """Makes each checkpoint once, under ``root``, and loads drafters from it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[tuple[str, int, int], Path] = {}

    def target(self, case: Case, *, vocab: int = VOCAB) -> Target:
        """The target that ``case`` is for."""
        if case.published:
            return published_target()
        return toy_target() if vocab == TOY_VOCAB else small_target(vocab)

    def folder(self, case: Case, *, vocab: int = VOCAB, limit: int = CONTEXT) -> Path | None:
        """The folder of the case's checkpoint; ``limit`` is the longest sequence that it says it was made for."""
        if case.maker is None:
            return None
        key = (str(case), vocab, limit)
        if key not in self._made:
            at = self.root / f"{case}-{vocab}-{limit}".replace(":", "-")
            self._made[key] = sharpen(case.maker(at)) if case.published else case.maker(at, vocab=vocab, limit=limit)
        return self._made[key]

    def drafter(
        self,
        case: Case,
        *,
        rows: int,
        vocab: int = VOCAB,
        limit: int = CONTEXT,
        context: int = CONTEXT,
        stop_ids: frozenset[int] = frozenset(),
        tokenizer: Any = None,
    ) -> Drafter:
        """Load the drafter anew; a method that lacks a maker fails with what to add."""
        view = self.target(case, vocab=vocab).view(max_rows=rows, max_context=context, tokenizer=tokenizer)
        view = replace(view, stop_ids=stop_ids)
        folder = self.folder(case, vocab=vocab, limit=limit)
        try:
            loaded: Drafter = registry.load("drafters", case.method).load(folder, target=view, options={})
        except SpecbenchError as error:
            if folder is not None:
                raise
            pytest.fail(
                f"drafter '{case.method}' does not load without a checkpoint ({error}), and "
                "tests/support_contestants.py makes none for it: add a maker to OWN, and one to PUBLISHED for each "
                "layout that people publish",
                pytrace=False,
            )
        return loaded
