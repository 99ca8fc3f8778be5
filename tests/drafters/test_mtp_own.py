"""The project's own MTP head, and what the drafter refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import save_file
from specbench_drafters.formats.own import map_tensor, to_config
from specbench_drafters.formats.record import Backbone, DrafterSpec, DraftKind, Rope
from specbench_drafters.formats.source import make_spec
from specbench_drafters.mtp import Mtp
from support_chain import Drill, causal
from support_drafting import view_of
from support_targets import SMALL, tiny_model
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specbench.errors import CheckpointError, ConfigError, DrafterError, SpecbenchError

VOCAB, WIDTH, LAYERS, DIM, THETA = SMALL["vocab_size"], SMALL["hidden_size"], SMALL["num_hidden_layers"], 8, 5e4
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def spec_of(
    family: str, *, layers: int = 1, d2t: Tensor | None = None, scaling: dict[str, Any] | None = None
) -> DrafterSpec:
    backbone = Backbone(
        family=family,
        num_layers=layers,
        hidden_size=WIDTH,
        num_heads=4,
        num_kv_heads=2,
        head_dim=DIM,
        intermediate_size=48,
        norm_eps=1e-6,
        activation="silu",
        attention_bias=False,
        qk_norm=family == "qwen3",
        rope=Rope(THETA, scaling or {}),
        causal=(True,) * layers,
        window=(None,) * layers,
        max_position=512,
    )
    return make_spec(
        kind=DraftKind.MTP,
        layout="specbench",
        backbone=backbone,
        vocab_size=VOCAB,
        taps=(),
        tap_final_norm=True,
        target_hidden_size=WIDTH,
        num_target_layers=LAYERS,
        gamma=2,
        recycle="post_norm",
        d2t=d2t,
    )


class OwnHead:
    """A head with random weights and its plain computation by transformers' layers."""

    def __init__(self, spec: DrafterSpec, *, model: Any) -> None:
        self.spec, self.model = spec, model
        kinds = {"llama": (tf.LlamaConfig, LlamaDecoderLayer), "qwen3": (tf.Qwen3Config, Qwen3DecoderLayer)}
        config_class, layer_class = kinds[spec.backbone.family]
        rope = {"rope_theta": THETA, "rope_type": "default", **spec.backbone.rope.scaling}
        count = spec.backbone.num_layers
        config = config_class(
            **{**SMALL, "num_hidden_layers": count}, head_dim=DIM, rope_parameters=rope, rms_norm_eps=1e-6
        )
        config._attn_implementation = "eager"
        torch.manual_seed(7)
        self.layers = [layer_class(config, index).eval() for index in range(count)]
        self.rotary = LlamaRotaryEmbedding(config)
        self.heads = {f"{name}.weight": 1 + 0.3 * torch.randn(WIDTH) for name in ("token_norm", "hidden_norm", "norm")}
        self.heads["input_proj.weight"] = torch.randn(WIDTH, 2 * WIDTH) * 0.3
        with torch.no_grad():
            for layer in self.layers:
                for parameter in layer.parameters():
                    parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if parameter.dim() == 1 else 0.0))

    def save(self, folder: Path, **changed: Tensor) -> Path:
        tensors = {**self.heads, **map_tensor(self.spec)}
        for index, layer in enumerate(self.layers):
            tensors |= {f"layers.{index}.{name}": t for name, t in layer.state_dict().items()}
        folder.mkdir(exist_ok=True)
        save_file({name: t.contiguous() for name, t in (tensors | changed).items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(to_config(self.spec)))
        return folder

    @torch.no_grad()
    def features(self, ids: list[int]) -> Tensor:
        hidden: Tensor = self.model.base_model(torch.tensor([ids]), use_cache=False).last_hidden_state
        return hidden[0]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.heads[f"{name}.weight"]

    def run(self, layer: Any, states: Tensor, tokens: list[int], at: list[int]) -> Tensor:
        embedded = self.model.get_input_embeddings()(torch.tensor(tokens))
        joined = torch.cat((self.norm(embedded, "token_norm"), self.norm(states, "hidden_norm")), dim=-1)
        x, positions = (joined @ self.heads["input_proj.weight"].T)[None], torch.tensor([at])
        out: Tensor = layer(
            x,
            position_embeddings=self.rotary(x, positions),
            attention_mask=causal(len(tokens)),
            position_ids=positions,
        )
        return out[0, -1]

    @torch.no_grad()
    def logits(self, tokens: list[int], features: Tensor, drafts: list[int]) -> Tensor:
        """Layer step % n takes each step; it sees all committed pairs and its own earlier steps."""
        count, known = len(self.layers), len(tokens) - 1
        chains: list[list[tuple[Tensor, int, int]]] = [[] for _ in self.layers]
        found, state = [], None
        for step in range(len(drafts) + 1):
            turn = step % count
            if step:
                assert state is not None
                chains[turn].append((state, drafts[step - 1], known - 1 + step))
            own = chains[turn]
            states = torch.cat([features, *(s[None] for s, _, _ in own)])
            follow = [*tokens[1:], *(t for _, t, _ in own)]
            at = [*range(known), *(p for _, _, p in own)]
            state = self.norm(self.run(self.layers[turn], states, follow, at), "norm")
            logits = self.model.get_output_embeddings()(state)
            found.append(logits if self.spec.d2t is None else logits[self.spec.d2t])
        return torch.stack(found)


CASES = {
    "llama": {"family": "llama"},
    "qwen3": {"family": "qwen3"},
    "scaled_rotary": {"family": "llama", "scaling": LLAMA3},
    "reduced_vocabulary_of_the_targets_head": {"family": "llama", "d2t": torch.arange(3, 90, 2)},
    "two_layers_in_turn": {"family": "qwen3", "layers": 2},
    "three_layers_in_turn": {"family": "llama", "layers": 3},
}


@pytest.mark.parametrize("name", CASES)
def test_own_head_equals_plain_recomputation(name: str, tmp_path: Path) -> None:
    model = tiny_model("llama", scale=2.0)
    head = OwnHead(spec_of(**CASES[name]), model=model)  # type: ignore[arg-type]
    drafter = Mtp.load(head.save(tmp_path), target=view_of(model), options={})
    assert drafter.trained_length == 2
    Drill(drafter, features=head.features, oracle=head.logits, vocab=VOCAB).play()


def own(tmp_path: Path, **changes: Any) -> tuple[Path, Any]:
    model = tiny_model("llama", scale=2.0)
    head = OwnHead(replace(spec_of("llama"), **changes), model=model)
    return head.save(tmp_path), model


def one_line(error: pytest.ExceptionInfo[SpecbenchError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_target_of_another_width_vocabulary_or_depth_is_refused(tmp_path: Path) -> None:
    folder, _ = own(tmp_path)
    for change in ({"hidden_size": 64}, {"vocab_size": 98}, {"num_hidden_layers": 4}):
        model = tf.AutoModelForCausalLM.from_config(tf.LlamaConfig(**{**SMALL, **change}))
        with pytest.raises(DrafterError) as error:
            Mtp.load(folder, target=view_of(model), options={})
        assert str(next(iter(change.values()))) in one_line(error)


def test_not_a_number_in_the_weights_is_refused(tmp_path: Path) -> None:
    model = tiny_model("llama", scale=2.0)
    head = OwnHead(spec_of("llama"), model=model)
    broken = head.heads["input_proj.weight"].clone()
    broken[3, 4] = torch.nan
    with pytest.raises(CheckpointError) as error:
        Mtp.load(head.save(tmp_path, **{"input_proj.weight": broken}), target=view_of(model), options={})
    assert "input_proj.weight" in one_line(error)


@pytest.mark.parametrize("ids", [torch.zeros(20, dtype=torch.int64), torch.arange(90, 110), torch.tensor([3, 2, 5])])
def test_an_invalid_map_is_refused(ids: Tensor, tmp_path: Path) -> None:
    folder, model = own(tmp_path, d2t=ids)
    with pytest.raises(CheckpointError) as error:
        Mtp.load(folder, target=view_of(model), options={})
    assert "d2t" in one_line(error)


def test_another_kind_of_checkpoint_is_refused(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    with pytest.raises(DrafterError) as error:
        Mtp.load(tmp_path, target=view_of(model), options={})
    one_line(error)


def test_a_target_without_mtp_layers_says_so(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    for model_dir in (str(tmp_path), ""):
        with pytest.raises(DrafterError) as error:
            Mtp.load(None, target=replace(view_of(model), model_dir=model_dir), options={})
        assert "--drafter mtp=PATH" in one_line(error)


def test_a_target_with_recurrent_layers_is_refused(tmp_path: Path) -> None:
    folder, model = own(tmp_path)
    config = tf.Qwen3NextConfig(**SMALL, layer_types=["linear_attention", "full_attention", "linear_attention"])
    with pytest.raises(DrafterError) as error:
        Mtp.load(folder, target=replace(view_of(model), config=config), options={})
    assert "linear_attention" in one_line(error)
    assert "rolled back" in str(error.value)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"fed": "neither"}, "fed"),
        ({"max_context": "-3"}, "max_context"),
        ({"draft_sampling": "maybe"}, "draft_sampling"),
        ({"recycle": "twice"}, "recycle"),
        ({"recycl": "pre_norm"}, "recycle"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], word: str, tmp_path: Path) -> None:
    folder, model = own(tmp_path)
    with pytest.raises(SpecbenchError) as error:
        Mtp.load(folder, target=view_of(model), options=options)
    assert word in one_line(error)


def test_a_shorter_context_warns_and_bounds_the_drafts(tmp_path: Path) -> None:
    folder, model = own(tmp_path)
    with pytest.warns(UserWarning, match="made for 100 positions"):
        drafter = Mtp.load(folder, target=view_of(model), options={"max_context": "100"})
    assert drafter.max_context == 100
    assert Mtp.load(folder, target=view_of(model), options={"max_context": "none"}).max_context is None
    with pytest.raises(ConfigError):
        Mtp.load(folder, target=view_of(model), options={"max_context": "many"})
