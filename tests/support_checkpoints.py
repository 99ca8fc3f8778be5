"""Checkpoint folders of every published format at toy size, made from the tables of tensor names and keys.

No public code is involved: each maker writes the tensors and keys that a repository of its kind is known to hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 16, 4, 2, 4, 24
VOCAB, DRAFT_VOCAB, DEPTH, RANK, MASK = 40, 12, 8, 6, 39
DRAFT_IDS = (0, 1, 4, 5, 9, 10, 11, 20, 21, 30, 31, 38)

TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def random(*shape: int, seed: int = 0) -> Tensor:
    """Deterministic values of a shape; no two shapes share them by accident."""
    generator = torch.Generator().manual_seed(seed * 7919 + sum(size * 31**i for i, size in enumerate(shape)))
    return torch.randn(shape, generator=generator) * 0.1


def write(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, container: str = "safetensors"
) -> Path:
    """Write a checkpoint folder: safetensors, bin, or either sharded in two with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    values = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    kind, _, sharded = container.partition("-")
    if not sharded:
        _save(folder / ("model.safetensors" if kind == "safetensors" else "pytorch_model.bin"), values)
        return folder
    stem = "model" if kind == "safetensors" else "pytorch_model"
    names = sorted(values)
    parts = (names[: len(names) // 2], names[len(names) // 2 :])
    files = [f"{stem}-{i + 1:05d}-of-00002.{kind}" for i in range(2)]
    for file, part in zip(files, parts, strict=True):
        _save(folder / file, {name: values[name] for name in part})
    weight_map = {name: file for file, part in zip(files, parts, strict=True) for name in part}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def _save(file: Path, values: dict[str, Tensor]) -> None:
    if file.suffix == ".safetensors":
        save_file(values, str(file), metadata={"format": "pt"})
    else:
        torch.save(values, file)


def target_folder(folder: Path, *, tied: bool = False) -> Path:
    """The part of a target that exports need: embedding and head."""
    tensors = {"model.embed_tokens.weight": random(VOCAB, HIDDEN, seed=101), "model.norm.weight": torch.ones(HIDDEN)}
    if not tied:
        tensors["lm_head.weight"] = random(VOCAB, HIDDEN, seed=102)
    return write(folder, {**TARGET_CONFIG, "tie_word_embeddings": tied}, tensors)


def layer(at: str, *, inputs: int = HIDDEN, qk_norm: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """One Llama or Qwen3 layer under a prefix."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    found = {
        "input_layernorm.weight": 1 + random(HIDDEN, seed=seed + 1),
        "post_attention_layernorm.weight": 1 + random(HIDDEN, seed=seed + 2),
        "self_attn.q_proj.weight": random(queries, inputs, seed=seed + 3),
        "self_attn.k_proj.weight": random(keys, inputs, seed=seed + 4),
        "self_attn.v_proj.weight": random(keys, inputs, seed=seed + 5),
        "self_attn.o_proj.weight": random(HIDDEN, queries, seed=seed + 6),
        "mlp.gate_proj.weight": random(INNER, HIDDEN, seed=seed + 7),
        "mlp.up_proj.weight": random(INNER, HIDDEN, seed=seed + 8),
        "mlp.down_proj.weight": random(HIDDEN, INNER, seed=seed + 9),
    }
    if qk_norm:
        found["self_attn.q_norm.weight"] = 1 + random(HEAD_DIM, seed=seed + 10)
        found["self_attn.k_norm.weight"] = 1 + random(HEAD_DIM, seed=seed + 11)
    return {at + name: tensor for name, tensor in found.items()}


def block(
    *, taps: int, layers: int = 2, tables: bool, qk_norm: bool = True, draft_vocab: int = VOCAB
) -> dict[str, Tensor]:
    """A DFlash backbone; ``tables`` adds the stored embedding and head."""
    found = {
        "fc.weight": random(HIDDEN, taps * HIDDEN),
        "hidden_norm.weight": 1 + random(HIDDEN, seed=1),
        "norm.weight": 1 + random(HIDDEN, seed=2),
    }
    for index in range(layers):
        found |= layer(f"layers.{index}.", qk_norm=qk_norm, seed=20 * (index + 1))
    if tables:
        found["embed_tokens.weight"] = random(VOCAB, HIDDEN, seed=101)
        found["lm_head.weight"] = random(VOCAB, HIDDEN, seed=102)[:draft_vocab]
    return found


def heads(kind: str, *, confidence: str = "hidden+markov", draft_vocab: int = VOCAB) -> dict[str, Tensor]:
    """The sequential head of a kind, and a confidence head."""
    found: dict[str, Tensor] = {}
    if kind != "none":
        found["markov_head.markov_w1.weight"] = random(VOCAB, RANK, seed=3)
        found["markov_head.markov_w2.weight"] = random(draft_vocab, RANK, seed=4)
    if kind == "gated":
        found["markov_head.gate_proj.weight"] = random(RANK, HIDDEN + RANK, seed=5)
        found["markov_head.gate_proj.bias"] = random(RANK, seed=6)
    if kind == "rnn":
        found["markov_head.joint_proj.weight"] = random(3 * RANK, 2 * RANK + HIDDEN, seed=7)
        found["markov_head.joint_proj.bias"] = random(3 * RANK, seed=8)
    if confidence != "none":
        width = HIDDEN + (RANK if confidence == "hidden+markov" else 0)
        found["confidence_head.proj.weight"] = random(1, width, seed=9)
        found["confidence_head.proj.bias"] = random(1, seed=10)
    return found


def eagle3(
    *, taps: int = 3, at: str = "midlayer.", draft_vocab: int = DRAFT_VOCAB, qk_norm: bool = False
) -> dict[str, Tensor]:
    """An EAGLE-3 head without its vocabulary maps."""
    found = layer(at, inputs=2 * HIDDEN, qk_norm=qk_norm, seed=60)
    found[at + "hidden_norm.weight"] = 1 + random(HIDDEN, seed=12)
    found["fc.weight"] = random(HIDDEN, taps * HIDDEN, seed=13)
    found["norm.weight"] = 1 + random(HIDDEN, seed=14)
    found["lm_head.weight"] = random(draft_vocab, HIDDEN, seed=15)
    return found


def maps() -> dict[str, Tensor]:
    """``d2t`` as offsets and ``t2d`` as a mask, for `DRAFT_IDS`."""
    ids = torch.tensor(DRAFT_IDS)
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(len(DRAFT_IDS)), "t2d": mask}


def sizes(**more: Any) -> dict[str, Any]:
    """Sizes of a drafter's configuration, as the target's copy has them."""
    return {key: value for key, value in TARGET_CONFIG.items() if key != "architectures"} | more


# ------------------------------------------------------------------------------------------ one maker per format


def deepspec_config(**more: Any) -> dict[str, Any]:
    """DeepSpec's flat keys, in transformers 5's spelling."""
    config = sizes(
        architectures=["Qwen3DSparkModel"],
        num_hidden_layers=2,
        num_target_layers=DEPTH,
        layer_types=["full_attention"] * 2,
        block_size=5,
        tie_word_embeddings=False,
        mask_token_id=MASK,
        target_layer_ids=[0, 2, 4],
        num_anchors=16,
        markov_rank=0,
        enable_confidence_head=False,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
        dtype="float32",
    )
    del config["rope_theta"]
    return config | more


def deepspec_dspark(folder: Path, kind: str = "vanilla", **more: Any) -> Path:
    """DeepSpec's DSpark with one of the three sequential heads."""
    config = deepspec_config(markov_rank=RANK, markov_head_type=kind, enable_confidence_head=True)
    tensors = block(taps=3, tables=True) | heads(kind)
    return write(folder, config | {"confidence_head_with_markov": True} | more, tensors)


def deepspec_dflash(folder: Path) -> Path:
    """DeepSpec's DFlash."""
    return write(folder, deepspec_config(), block(taps=3, tables=True))


def deepspec_eagle3(folder: Path) -> Path:
    """DeepSpec's EAGLE-3: five taps, full vocabulary, q/k norms."""
    config = deepspec_config(architectures=["Qwen3Eagle3Model"], num_hidden_layers=1, layer_types=["full_attention"])
    config |= {
        "target_layer_ids": [0, 2, 3, 4, 6],
        "ttt_length": 7,
        "step_loss_decay": 0.8,
        "draft_num_hidden_layers": 1,
    }
    for key in ("block_size", "mask_token_id", "markov_rank", "enable_confidence_head", "num_anchors"):
        del config[key]
    tensors = eagle3(taps=5, at="layers.0.", draft_vocab=VOCAB, qk_norm=True)
    return write(folder, config, tensors | {"embed_tokens.weight": random(VOCAB, HIDDEN, seed=101)})


def deepspec_gemma4(folder: Path) -> Path:
    """DeepSpec's DSpark on Gemma4 layers: values are the keys, four norms, a layer scalar, a soft cap."""
    config = deepspec_config(architectures=["Gemma4DSparkModel"], model_type="gemma4_text", markov_rank=RANK)
    config |= {"markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True}
    config |= {"global_head_dim": HEAD_DIM, "head_dim": 2, "num_global_key_value_heads": KV_HEADS}
    config |= {"num_key_value_heads": 4, "attention_k_eq_v": True, "final_logit_softcapping": 30.0}
    config |= {"hidden_activation": "gelu_pytorch_tanh", "enable_moe_block": False, "hidden_size_per_layer_input": 0}
    full = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    config["rope_parameters"] = {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    tensors = block(taps=3, tables=True) | heads("vanilla")
    for index in range(2):
        at = f"layers.{index}."
        del tensors[at + "self_attn.v_proj.weight"]
        tensors[at + "pre_feedforward_layernorm.weight"] = 1 + random(HIDDEN, seed=16)
        tensors[at + "post_feedforward_layernorm.weight"] = 1 + random(HIDDEN, seed=17)
        tensors[at + "layer_scalar"] = torch.ones(1)
    return write(folder, config, tensors)


def zlab_config(**more: Any) -> dict[str, Any]:
    """z-lab's keys, in transformers 4's spelling."""
    config = sizes(
        architectures=["DFlashDraftModel"],
        auto_map={"AutoModel": "dflash.DFlashDraftModel"},
        num_hidden_layers=2,
        num_target_layers=DEPTH,
        layer_types=["full_attention"] * 2,
        block_size=6,
        dflash_config={"mask_token_id": MASK, "target_layer_ids": [1, 2, 3]},
        torch_dtype="float32",
    )
    return config | more


def zlab_dflash(folder: Path) -> Path:
    """An old z-lab repository."""
    return write(folder, zlab_config(), block(taps=3, tables=False))


def zlab_sliding(folder: Path) -> Path:
    """A newer z-lab repository: block size nested, a sliding and a full layer."""
    nested = {"mask_token_id": MASK, "target_layer_ids": [1, 3, 4, 5], "block_size": 4, "final_logit_softcapping": 20.0}
    config = zlab_config(dflash_config=nested, layer_types=["sliding_attention", "full_attention"], sliding_window=8)
    del config["block_size"]
    return write(folder, config, block(taps=4, tables=False))


def zlab_mask_file(folder: Path) -> Path:
    """A repository with a separate mask embedding, and the assistant's names of combiner and norm."""
    tensors = block(taps=3, tables=False)
    tensors["encoder.fc.weight"] = tensors.pop("fc.weight")
    tensors["encoder.output_norm_enc.weight"] = tensors.pop("hidden_norm.weight")
    config = zlab_config(architectures=["MuseGlimmerAssistantModel"], target_layer_ids=[1, 2, 3], block_size=6)
    del config["dflash_config"]
    write(folder, config, tensors)
    torch.save({"embedding": random(HIDDEN, seed=18), "mask_token_id": MASK}, folder / "mask_embedding.pt")
    return folder


def specforge_dspark(folder: Path) -> Path:
    """SpecForge's DSpark: everything nested, old prefix of the heads."""
    nested = {
        "projector_type": "dspark",
        "markov_rank": RANK,
        "markov_head_type": "gated",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "confidence_head_alpha": 1.0,
        "attention_mode": "gqa",
        "mask_token_id": MASK,
        "target_layer_ids": [1, 3, 5],
    }
    config = zlab_config(architectures=["DSparkDraftModel"], block_size=5, dflash_config=nested)
    tensors = block(taps=3, tables=False)
    return write(folder, config, tensors | {f"logit_head.{name}": tensor for name, tensor in heads("gated").items()})


def eagle3_config(**more: Any) -> dict[str, Any]:
    """SafeAILab's keys: no rope base, no tapped layers."""
    config = sizes(
        architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=1, draft_vocab_size=DRAFT_VOCAB
    )
    del config["rope_theta"]
    return config | more


def safeailab_eagle3(folder: Path, container: str = "bin") -> Path:
    """SafeAILab's EAGLE-3."""
    return write(folder, eagle3_config(), eagle3() | maps(), container=container)


def angelslim_eagle3(folder: Path) -> Path:
    """AngelSlim's EAGLE-3, with the base of the rotary embedding."""
    config = eagle3_config(architectures=["Eagle3LlamaForCausalLM"], rope_theta=1e6, target_model_type="qwen3")
    return write(folder, config, eagle3() | maps(), container="bin")


def specforge_eagle31(folder: Path) -> Path:
    """SpecForge's EAGLE-3.1: a norm per tap, the normed state recycled, nested ids of layer outputs."""
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    config = eagle3_config(
        architectures=["LlamaForCausalLMEagle3"], eagle_config=nested, fc_norm=True, norm_output=True
    )
    norms = {f"fc_norm.{j}.weight": 1 + random(HIDDEN, seed=30 + j) for j in range(3)}
    return write(folder, config, eagle3() | maps() | norms)


def modelopt_eagle3(folder: Path) -> Path:
    """ModelOpt's EAGLE-3: nested ids are boundaries and reach the last layer, a norm before the combiner."""
    nested = {"eagle_aux_hidden_state_layer_ids": [2, 5, DEPTH]}
    config = eagle3_config(eagle_config=nested, norm_before_fc=True, norm_before_residual=True)
    write(folder, config, eagle3() | maps() | {"input_norm.weight": 1 + random(3 * HIDDEN, seed=33)})
    (folder / "hf_quant_config.json").write_text('{"producer": {"name": "modelopt"}}', encoding="utf-8")
    return folder


def eagle3_final_state(folder: Path) -> Path:
    """A head that is fed the target's final normed state, full vocabulary, without a combiner."""
    config = eagle3_config(eagle_config={"use_aux_hidden_state": False}, draft_vocab_size=VOCAB)
    tensors = eagle3(draft_vocab=VOCAB)
    del tensors["fc.weight"]
    return write(folder, config, tensors)


def speculators_config(kind: str, *, tokens: int, **more: Any) -> dict[str, Any]:
    """The frame of a speculators configuration; transformers' defaults are left out of the sizes."""
    layers = sizes(num_hidden_layers=2, rope_parameters={"rope_theta": 1e6, "rope_type": "default"})
    del layers["rope_theta"]
    return {
        "architectures": ["Speculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.4.0",
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {"name_or_path": "toy/target", "architectures": ["Qwen3ForCausalLM"]},
        },
        "transformer_layer_config": layers,
        "draft_vocab_size": DRAFT_VOCAB,
    } | more


def speculators_eagle3(folder: Path) -> Path:
    """speculators' EAGLE-3 with a stored embedding; ids are Hugging Face indices."""
    config = speculators_config(
        "eagle3", tokens=3, eagle_aux_hidden_state_layer_ids=[2, 4, 5], norm_before_residual=False
    )
    config["transformer_layer_config"] |= {"model_type": "llama", "num_hidden_layers": 1}
    tensors = eagle3(at="layers.0.") | maps()
    return write(folder, config, tensors | {"embed_tokens.weight": random(VOCAB, HIDDEN, seed=101)})


def speculators_dflash(folder: Path) -> Path:
    """speculators' DFlash: not shifted, a sliding layer."""
    config = speculators_config(
        "dflash", tokens=5, aux_hidden_state_layer_ids=[2, 4, 6], block_size=6, mask_token_id=MASK
    )
    config["transformer_layer_config"] |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    config["transformer_layer_config"]["use_sliding_window"] = True
    return write(folder, config, block(taps=3, tables=True, draft_vocab=DRAFT_VOCAB) | maps())


def speculators_dspark(folder: Path, **more: Any) -> Path:
    """speculators' DSpark with a reduced vocabulary: W1 over target ids, W2 over draft ids."""
    config = speculators_config(
        "dspark", tokens=6, aux_hidden_state_layer_ids=[2, 4, 6], block_size=6, mask_token_id=MASK
    )
    config |= {"markov_rank": RANK, "markov_head_type": "rnn", "sample_from_anchor": True}
    config |= {"enable_confidence_head": True, "confidence_head_with_markov": False}
    tensors = block(taps=3, tables=True, draft_vocab=DRAFT_VOCAB) | maps()
    tensors |= heads("rnn", confidence="hidden", draft_vocab=DRAFT_VOCAB)
    return write(folder, {k: v for k, v in (config | more).items() if v is not None}, tensors)
