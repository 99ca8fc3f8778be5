"""Every EAGLE-3 variant, cached and batched, against a plain recomputation of the whole sequence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from specbench_drafters.eagle3 import Eagle3
from support_chain import Drill, causal
from support_drafting import target_features, view_of
from support_targets import tiny_model
from torch import Tensor
from torch.nn.functional import silu

WIDTH, HEADS, KEY_HEADS, DIM, INNER, VOCAB, EPS = 32, 4, 2, 8, 48, 97, 1e-5


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def turn(x: Tensor, theta: float) -> Tensor:
    """Rotary embedding of [n, heads, DIM] at positions 0..n-1, from its definition with complex numbers."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[0])[:, None] / theta ** (torch.arange(half) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((z.real, z.imag), dim=-1)


class PlainEagle:
    """EAGLE-3 written down once more, one sequence at a time, without any cache."""

    def __init__(self, weights: dict[str, Tensor], options: dict[str, Any], *, model: Any) -> None:
        self.w, self.o = weights, options
        self.embed = model.get_input_embeddings().weight.detach()
        self.head = model.get_output_embeddings().weight.detach()

    def first(self, features: Tensor) -> Tensor:
        if "input_norm.weight" in self.w:
            features = norm(features, self.w["input_norm.weight"])
        if "fc_norm.0.weight" in self.w:
            parts = features.split(WIDTH, dim=-1)
            features = torch.cat([norm(p, self.w[f"fc_norm.{i}.weight"]) for i, p in enumerate(parts)], dim=-1)
        return features @ self.w["fc.weight"].T if "fc.weight" in self.w else features

    def layer(self, at: str, x: Tensor, residual: Tensor) -> Tensor:
        w, n = self.w, x.shape[0]
        q, k, v = (
            (x @ w[f"{at}self_attn.{p}_proj.weight"].T + w.get(f"{at}self_attn.{p}_proj.bias", torch.zeros(1))).view(
                n, -1, DIM
            )
            for p in "qkv"
        )
        if f"{at}self_attn.q_norm.weight" in w:
            q, k = norm(q, w[f"{at}self_attn.q_norm.weight"]), norm(k, w[f"{at}self_attn.k_norm.weight"])
        q, k = turn(q, self.o["theta"]), turn(k, self.o["theta"])
        k, v = (t.repeat_interleave(HEADS // KEY_HEADS, dim=1) for t in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / DIM**0.5 + causal(n, window=self.o["window"])[0]
        mixed = torch.einsum("hij,jhd->ihd", torch.softmax(scores, dim=-1), v)
        y = residual + mixed.flatten(1) @ w[f"{at}self_attn.o_proj.weight"].T
        z = norm(y, w[f"{at}post_attention_layernorm.weight"])
        inner = silu(z @ w[f"{at}mlp.gate_proj.weight"].T) * (z @ w[f"{at}mlp.up_proj.weight"].T)
        return y + inner @ w[f"{at}mlp.down_proj.weight"].T

    def logits(self, tokens: list[int], features: Tensor, drafts: list[int]) -> Tensor:
        states = self.first(features)
        found = []
        for step in range(len(drafts) + 1):
            follow = [*tokens[1:], *drafts[:step]]
            embedded = self.embed[follow]
            normed = norm(states, self.w["midlayer.hidden_norm.weight"])
            x = torch.cat((norm(embedded, self.w["midlayer.input_layernorm.weight"]), normed), dim=-1)
            y = self.layer("midlayer.", x, normed if self.o["residual_normed"] else states)
            for index in range(1, self.o["layers"]):
                at = f"layers.{index}."
                y = self.layer(at, norm(y, self.w[f"{at}input_layernorm.weight"]), y)
            final = norm(y[-1], self.w["norm.weight"])
            found.append(final @ self.w.get("lm_head.weight", self.head).T)
            states = torch.cat((states, (final if self.o["post_norm"] else y[-1])[None]))
        return torch.stack(found)


def weights(seed: int, *, taps: int, vocab: int | None, layers: int, qk_norm: bool, bias: bool) -> dict[str, Tensor]:
    """Random tensors in SafeAILab's names."""
    torch.manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape) * 0.25

    def scale(size: int) -> Tensor:
        return 1 + 0.3 * torch.randn(size)

    found = {"fc.weight": matrix(WIDTH, taps * WIDTH), "norm.weight": scale(WIDTH)}
    if vocab is not None:
        found["lm_head.weight"] = matrix(vocab, WIDTH)
    for index in range(layers):
        at, inputs = ("midlayer.", 2 * WIDTH) if index == 0 else (f"layers.{index}.", WIDTH)
        found |= {f"{at}{name}.weight": scale(WIDTH) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            found[f"{at}self_attn.{name}_proj.weight"] = matrix(heads * DIM, inputs)
            if bias:
                found[f"{at}self_attn.{name}_proj.bias"] = matrix(heads * DIM)
        found[f"{at}self_attn.o_proj.weight"] = matrix(WIDTH, HEADS * DIM)
        if qk_norm:
            found |= {f"{at}self_attn.{name}_norm.weight": scale(DIM) for name in "qk"}
        found |= {f"{at}mlp.{name}_proj.weight": matrix(INNER, WIDTH) for name in ("gate", "up")}
        found[f"{at}mlp.down_proj.weight"] = matrix(WIDTH, INNER)
    found["midlayer.hidden_norm.weight"] = scale(WIDTH)
    return found


def folder(path: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    base = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": DIM,
        "intermediate_size": INNER,
        "vocab_size": VOCAB,
        "rms_norm_eps": EPS,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**base, **config}))
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")
    return path


VARIANTS: dict[str, dict[str, Any]] = {
    "reduced_vocabulary": {"vocab": 40},
    "full_vocabulary_and_qk_norm": {"vocab": VOCAB, "qk_norm": True, "config": {"rope_theta": 5e5}},
    "head_of_the_target": {"vocab": None},
    "norm_per_tap_and_normed_recycling": {"vocab": 40, "per_tap": True, "config": {"norm_output": True}},
    "norm_before_fc": {"vocab": 40, "concat": True},
    "normed_residual": {"vocab": 40, "config": {"norm_before_residual": True}},
    "two_layers": {"vocab": 40, "layers": 2},
    "query_key_value_bias": {"vocab": 40, "bias": True, "config": {"attention_bias": True}},
    "sliding_window": {"vocab": 40, "config": {"layer_types": ["sliding_attention"], "sliding_window": 6}},
}


def build(path: Path, variant: dict[str, Any], *, model: Any, **options: Any) -> tuple[Eagle3, PlainEagle]:
    vocab, layers = variant["vocab"], variant.get("layers", 1)
    tensors = weights(
        3, taps=3, vocab=vocab, layers=layers, qk_norm=variant.get("qk_norm", False), bias=variant.get("bias", False)
    )
    if variant.get("per_tap"):
        tensors |= {f"fc_norm.{i}.weight": 1 + 0.3 * torch.randn(WIDTH) for i in range(3)}
    if variant.get("concat"):
        tensors["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * WIDTH)
    config = {"draft_vocab_size": vocab or VOCAB, **variant.get("config", {})}
    if vocab is not None and vocab < VOCAB:
        ids = torch.randperm(VOCAB)[:vocab].sort().values
        tensors["d2t"] = ids - torch.arange(vocab)
    drafter = Eagle3.load(folder(path, tensors, **config), target=view_of(model), options=options)
    plain = PlainEagle(
        tensors,
        {
            "theta": config.get("rope_theta", 10000.0),
            "window": config.get("sliding_window"),
            "residual_normed": config.get("norm_before_residual", False),
            "post_norm": config.get("norm_output", False),
            "layers": layers,
        },
        model=model,
    )
    return drafter, plain


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_equals_plain_recomputation(name: str, tmp_path: Path) -> None:
    model = tiny_model("llama", scale=1.0, num_hidden_layers=4)
    drafter, plain = build(tmp_path, VARIANTS[name], model=model)
    assert drafter.taps.boundaries == (1, 2, 3)
    drill = Drill(
        drafter,
        features=lambda ids: target_features(ids, (1, 2, 3), model=model),
        oracle=plain.logits,
        vocab=VOCAB,
    )
    drill.play()


@pytest.mark.parametrize("name", ["reduced_vocabulary", "two_layers"])
def test_long_and_short_prompts_in_one_step(name: str, tmp_path: Path) -> None:
    """Rows beyond the padding limit are attended on their own; slots are neither ordered nor dense."""
    model = tiny_model("llama", scale=1.0, num_hidden_layers=4)
    drafter, plain = build(tmp_path, VARIANTS[name], model=model)
    drill = Drill(
        drafter, features=lambda ids: target_features(ids, (1, 2, 3), model=model), oracle=plain.logits, vocab=VOCAB
    )
    drill.join_together([6, 1, 4, 2], [70, 3, 90, 12])
    drill.round([3, 2, 0, 4])
    drill.round([2, 2, 2, 2])
    assert drill.worst < 1e-4


@pytest.mark.parametrize("name", ["norm_per_tap_and_normed_recycling", "normed_residual"])
def test_the_oracle_notices_a_wrong_reading(name: str, tmp_path: Path) -> None:
    """The comparison has teeth: the other reading of the same weights does not pass."""
    model = tiny_model("llama", scale=1.0, num_hidden_layers=4)
    drafter, plain = build(tmp_path, VARIANTS[name], model=model)
    plain.o["post_norm" if "recycling" in name else "residual_normed"] = False
    drill = Drill(
        drafter, features=lambda ids: target_features(ids, (1, 2, 3), model=model), oracle=plain.logits, vocab=VOCAB
    )
    with pytest.raises(AssertionError):
        drill.play()
