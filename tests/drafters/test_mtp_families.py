"""MTP layers of every supported family, cached and batched, against transformers' own layer over the whole sequence.

The oracle takes nothing from the drafter or its record: concatenation order, norms, the fed and recycled states and the
rule for position 0 are written down here once more, per family.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import save_file
from specbench_drafters.mtp import Mtp
from specbench_drafters.vanilla import VanillaDrafter
from support_chain import Drill, causal
from support_drafting import view_of
from support_engine import outputs, prompts, request, serve
from support_targets import SMALL, tiny_model
from torch import Tensor
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

from specbench.drafting.ttt import mtp_loss, mtp_weights, unroll
from specbench.engine.target import Target

VOCAB, WIDTH, LAYERS = SMALL["vocab_size"], SMALL["hidden_size"], SMALL["num_hidden_layers"]
FULL = ["full_attention"] * (LAYERS + 1)
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Family:
    """How to make a tiny target, its layer, and the names of the published tensors."""

    model: Callable[[], Any]
    layer: type
    names: dict[str, str]  # ours -> theirs
    layer_prefix: str
    keys: dict[str, Any]
    embedding_first: bool = True
    zero_first: bool = False
    one_plus: bool = False
    copies: bool = False  # ships embedding and head again


def from_config(config: Any, *, scale: float = 2.0) -> Any:
    torch.manual_seed(1)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model


def glm() -> Any:
    return from_config(
        tf.Glm4MoeConfig(
            **SMALL,
            **EXPERTS,
            head_dim=16,
            n_routed_experts=4,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            use_qk_norm=True,
        )
    )


def qwen3_next() -> Any:
    return from_config(
        tf.Qwen3NextConfig(
            **SMALL,
            **EXPERTS,
            head_dim=16,
            num_experts=4,
            shared_expert_intermediate_size=16,
            layer_types=FULL[:LAYERS],
        )
    )


def qwen3_5() -> Any:
    return from_config(tf.Qwen3_5TextConfig(**SMALL, head_dim=16, layer_types=FULL[:LAYERS]))


DEEPSEEK_NAMES = {
    "token_norm": "enorm",
    "hidden_norm": "hnorm",
    "input_proj": "eh_proj",
    "norm": "shared_head.norm",
    "embed_tokens": "embed_tokens",
    "lm_head": "shared_head.head",
}
QWEN_NAMES = {
    "token_norm": "mtp.pre_fc_norm_embedding",
    "hidden_norm": "mtp.pre_fc_norm_hidden",
    "input_proj": "mtp.fc",
    "norm": "mtp.norm",
}
MIMO = "model.mtp_layers.0."
FAMILIES = {
    "deepseek_v3": Family(
        model=lambda: tiny_model("deepseek_v3", scale=2.0),
        layer=DeepseekV3DecoderLayer,
        names={ours: f"model.layers.{LAYERS}.{theirs}" for ours, theirs in DEEPSEEK_NAMES.items()},
        layer_prefix=f"model.layers.{LAYERS}.",
        keys={"num_nextn_predict_layers": 1},
        zero_first=True,
        copies=True,
    ),
    "glm4_moe": Family(
        model=glm,
        layer=Glm4MoeDecoderLayer,
        names={ours: f"model.layers.{LAYERS}.{theirs}" for ours, theirs in DEEPSEEK_NAMES.items()},
        layer_prefix=f"model.layers.{LAYERS}.",
        keys={"num_nextn_predict_layers": 1},
        zero_first=True,
        copies=True,
    ),
    "qwen3_next": Family(
        model=qwen3_next,
        layer=Qwen3NextDecoderLayer,
        names=QWEN_NAMES,
        layer_prefix="mtp.layers.0.",
        keys={"num_nextn_predict_layers": 1},
        one_plus=True,
    ),
    "qwen3_5": Family(
        model=qwen3_5,
        layer=Qwen3_5DecoderLayer,
        names=QWEN_NAMES,
        layer_prefix="mtp.layers.0.",
        keys={"mtp_num_hidden_layers": 1},
        one_plus=True,
    ),
    "mimo": Family(
        model=lambda: tiny_model("qwen2", scale=2.0),
        layer=Qwen2DecoderLayer,
        names={
            "token_norm": MIMO + "token_layernorm",
            "hidden_norm": MIMO + "hidden_layernorm",
            "input_proj": MIMO + "input_proj",
            "norm": MIMO + "final_layernorm",
        },
        layer_prefix=MIMO,
        keys={"num_nextn_predict_layers": 1, "model_type": "mimo", "architectures": ["MiMoForCausalLM"]},
        embedding_first=False,
        zero_first=True,
    ),
}


class Published:
    """A tiny target with random MTP weights, as its repository would hold them, and the plain computation."""

    def __init__(self, name: str) -> None:
        self.family = family = FAMILIES[name]
        self.model = family.model()
        config = tf.AutoConfig.for_model(self.model.config.model_type, **self._values(self.model.config.to_dict()))
        config._attn_implementation = "eager"
        torch.manual_seed(5)
        self.layer = family.layer(
            config, LAYERS
        ).eval()  # one past the last, so that experts and attention are the last's
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.copy_(
                    torch.randn_like(parameter) * 0.2 + (0.0 if parameter.dim() > 1 or family.one_plus else 1.0)
                )
        self.heads = {
            "token_norm": torch.randn(WIDTH) * 0.3 + (0.0 if family.one_plus else 1.0),
            "hidden_norm": torch.randn(WIDTH) * 0.3 + (0.0 if family.one_plus else 1.0),
            "norm": torch.randn(WIDTH) * 0.3 + (0.0 if family.one_plus else 1.0),
            "input_proj": torch.randn(WIDTH, 2 * WIDTH) * 0.3,
        }

    @staticmethod
    def _values(config: dict[str, Any]) -> dict[str, Any]:
        values = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
        if "layer_types" in values:
            values |= {"num_hidden_layers": LAYERS + 1, "layer_types": FULL}
        return values

    def save(self, folder: Path) -> Path:
        """The folder as published: config.json and all tensors, experts one by one."""
        tensors = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        for name, tensor in self.heads.items():
            tensors[f"{self.family.names[name]}.weight"] = tensor
        if self.family.copies:
            tensors[f"{self.family.names['embed_tokens']}.weight"] = tensors["model.embed_tokens.weight"].clone()
            tensors[f"{self.family.names['lm_head']}.weight"] = tensors["lm_head.weight"].clone()
        for name, tensor in self.layer.state_dict().items():
            at = self.family.layer_prefix
            if name.endswith("experts.gate_up_proj"):
                stem = at + name.removesuffix("gate_up_proj")
                for index, matrix in enumerate(tensor):
                    gate, up = matrix.chunk(2, dim=0)
                    tensors |= {f"{stem}{index}.gate_proj.weight": gate, f"{stem}{index}.up_proj.weight": up}
            elif name.endswith("experts.down_proj"):
                stem = at + name.removesuffix("down_proj")
                tensors |= {f"{stem}{index}.down_proj.weight": matrix for index, matrix in enumerate(tensor)}
            else:
                tensors[at + name] = tensor
        folder.mkdir(exist_ok=True)
        save_file({name: t.contiguous().clone() for name, t in tensors.items()}, folder / "model.safetensors")
        config = {**json.loads(self.model.config.to_json_string(use_diff=False)), **self.family.keys}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    @torch.no_grad()
    def features(self, ids: list[int]) -> Tensor:
        """States of the target after its final norm, [T, d]."""
        model = self.model
        model.set_attn_implementation("eager")
        hidden: Tensor = model.base_model(torch.tensor([ids]), use_cache=False).last_hidden_state
        return hidden[0]

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = self.heads[name] + (1.0 if self.family.one_plus else 0.0)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.model.config.rms_norm_eps) * scale

    @torch.no_grad()
    def logits(self, tokens: list[int], features: Tensor, drafts: list[int], *, post_norm: bool = True) -> Tensor:
        """The oracle: every pair of the sequence anew for every draft."""
        states, found = features, []
        for step in range(len(drafts) + 1):
            embedded = self.model.get_input_embeddings()(torch.tensor([*tokens[1:], *drafts[:step]]))
            if self.family.zero_first:
                embedded[0] = 0.0
            halves = [self.norm(embedded, "token_norm"), self.norm(states, "hidden_norm")]
            if not self.family.embedding_first:
                halves.reverse()
            x = (torch.cat(halves, dim=-1) @ self.heads["input_proj"].T)[None]
            at = torch.arange(x.shape[1])[None]
            angles = self.model.base_model.rotary_emb(x, at)
            y = self.layer(x, position_embeddings=angles, attention_mask=causal(x.shape[1]), position_ids=at)[0, -1]
            final = self.norm(y, "norm")
            found.append(self.model.get_output_embeddings()(final))
            states = torch.cat((states, (final if post_norm else y)[None]))
        return torch.stack(found)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_plain_recomputation(name: str, tmp_path: Path) -> None:
    published = Published(name)
    drafter = Mtp.load(published.save(tmp_path), target=view_of(published.model), options={})
    assert drafter.trained_length == 1
    assert drafter.taps.final_norm
    assert drafter.taps.boundaries == ()
    Drill(drafter, features=published.features, oracle=published.logits, vocab=VOCAB).play()


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_5", "mimo"])
def test_training_unrolls_what_drafting_computes(name: str, tmp_path: Path) -> None:
    published = Published(name)
    model = Mtp.load(published.save(tmp_path), target=view_of(published.model), options={}).model
    tokens = torch.randint(0, VOCAB, (2, 14), generator=torch.Generator().manual_seed(3))
    features = torch.stack([published.features(row) for row in tokens.tolist()])
    steps = [model.logits(normed) for _, normed in unroll(model, features=features, token_ids=tokens, steps=3)]
    for row, index in ((0, 0), (0, 9), (1, 6)):
        ids = tokens[row].tolist()
        wanted = published.logits(ids[: index + 2], features[row, : index + 1], ids[index + 2 : index + 4])
        for step in range(3):
            torch.testing.assert_close(steps[step][row, index], wanted[step], atol=1e-4, rtol=0)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    whole = torch.ones_like(tokens)
    loss = mtp_loss(
        model,
        features=features,
        token_ids=tokens,
        loss_mask=whole,
        lengths=torch.tensor([14, 14]),
        weights=mtp_weights(3),
    )
    loss.total.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_keys_and_values_of_latent_attention_differ_in_width(tmp_path: Path) -> None:
    published = Published("deepseek_v3")
    drafter = Mtp.load(published.save(tmp_path), target=view_of(published.model), options={})
    assert (drafter.model.num_key_heads, drafter.model.key_dim, drafter.model.value_dim) == (4, 24, 12)


def test_recycled_state_is_an_option(tmp_path: Path) -> None:
    published = Published("mimo")
    drafter = Mtp.load(published.save(tmp_path), target=view_of(published.model), options={"recycle": "pre_norm"})

    def oracle(tokens: list[int], features: Tensor, drafts: list[int]) -> Tensor:
        return published.logits(tokens, features, drafts, post_norm=False)

    Drill(drafter, features=published.features, oracle=oracle, vocab=VOCAB).play()
    with pytest.raises(AssertionError):  # and the choice matters
        Drill(drafter, features=published.features, oracle=published.logits, vocab=VOCAB).play()


@pytest.mark.parametrize(
    ("option", "value"), [("concat_order", "embedding,hidden"), ("zero_embedding_at_position_0", "false")]
)
def test_other_readings_give_other_drafts(option: str, value: str, tmp_path: Path) -> None:
    published = Published("mimo")
    drafter = Mtp.load(published.save(tmp_path), target=view_of(published.model), options={option: value})
    with pytest.raises(AssertionError):
        Drill(drafter, features=published.features, oracle=published.logits, vocab=VOCAB).play()


def test_fed_state_is_an_option(tmp_path: Path) -> None:
    published = Published("mimo")
    folder = published.save(tmp_path)
    drafter = Mtp.load(folder, target=view_of(published.model), options={"fed": "pre_norm"})
    assert drafter.taps.boundaries == (LAYERS,)
    assert not drafter.taps.final_norm


@pytest.mark.parametrize("name", ["deepseek_v3", "mimo"])
def test_through_the_engine(name: str, tmp_path: Path) -> None:
    """The target's own weights folder is where MTP layers are found; text is plain decoding's, rounds batch-free."""
    published = Published(name)
    folder = published.save(tmp_path)
    target = Target(published.model, name=name, model_dir=str(folder))
    view = target.view(max_rows=4, max_context=200)
    requests = [request(n, p, max_new_tokens=12) for n, p in enumerate(prompts(4, longest=14))]
    plain = outputs(serve(target, VanillaDrafter(), requests, k=0))
    batched = serve(target, Mtp.load(None, target=view, options={}), requests, k=3, prefill_budget=9)
    assert outputs(batched) == plain
    alone = serve(target, Mtp.load(None, target=view, options={}), requests, k=3, rows=1)
    assert outputs(alone) == plain
    for served in batched.requests:
        rounds = [
            [(r.draft_ids, r.accepted) for r in trace.rounds if r.request == served.id] for trace in (batched, alone)
        ]
        assert rounds[0] == rounds[1]


def test_bfloat16_keeps_the_router_in_float32(tmp_path: Path) -> None:
    published = Published("deepseek_v3")
    folder = published.save(tmp_path)
    target = Target.load(folder, dtype="bfloat16")
    drafter = Mtp.load(None, target=target.view(max_rows=2, max_context=64), options={})
    types = {name: tensor.dtype for name, tensor in drafter.model.state_dict().items()}
    assert types.pop("layers.0.mlp.gate.e_score_correction_bias") == torch.float32
    assert types["layers.0.self_attn.q_a_layernorm.weight"] == torch.bfloat16
    out = drafter.model.layers[0].self_attn.o_proj
    assert out(torch.zeros(1, out.in_features).bfloat16()).dtype == torch.bfloat16
    requests = [request(n, p, max_new_tokens=9) for n, p in enumerate(prompts(2, longest=9))]
    trace = serve(target, drafter, requests, k=2, rows=2, max_context=64)
    assert all(len(r.output_ids) == 9 for r in trace.requests)
    assert all(r.drafted for r in trace.rounds[:2])
