"""What EAGLE-3 refuses, in one line each, and how options change its reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from specbench_drafters.eagle3 import Eagle3
from support_drafting import FIXTURES, fixture_model, view_of
from torch import Tensor

from specbench.errors import CheckpointError, DrafterError, SpecbenchError

SOURCE = FIXTURES / "eagle3_safeailab"


def target(**changes: Any) -> Any:
    """A target like the fixture's with another size."""
    own = fixture_model("eagle3_safeailab/target").config.to_dict()
    own = {key: value for key, value in own.items() if key not in ("architectures", "model_type")}
    return view_of(tf.AutoModelForCausalLM.from_config(tf.LlamaConfig(**{**own, **changes})))


def copy(folder: Path, *, drop: str = "", **changed: Tensor) -> Path:
    """The fixture with tensors replaced or left out."""
    tensors = {name: t for name, t in load_file(SOURCE / "model.safetensors").items() if name != drop}
    folder.mkdir(exist_ok=True)
    save_file(tensors | changed, folder / "model.safetensors")
    (folder / "config.json").write_text((SOURCE / "config.json").read_text())
    return folder


def refusal(folder: Path | None, view: Any, error: type[SpecbenchError], **options: Any) -> str:
    with pytest.raises(error) as caught:
        Eagle3.load(folder, target=view, options=options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def good() -> Any:
    return view_of(fixture_model("eagle3_safeailab/target"))


@pytest.mark.parametrize(
    ("change", "seen"), [({"hidden_size": 128, "head_dim": 32}, "128"), ({"vocab_size": 319}, "319")]
)
def test_another_target_is_refused(change: dict[str, int], seen: str) -> None:
    assert seen in refusal(SOURCE, target(**change), DrafterError)


def test_another_depth_is_refused_where_the_checkpoint_knows_it() -> None:
    model = tf.AutoModelForCausalLM.from_config(
        tf.Qwen3Config(**{**fixture_model().config.to_dict(), "num_hidden_layers": 7, "layer_types": None})
    )
    assert "7" in refusal(FIXTURES / "eagle3", view_of(model), DrafterError)


def test_taps_beyond_the_target_are_refused() -> None:
    assert "9" in refusal(SOURCE, good(), DrafterError, taps="2,4,9")


def test_a_number_of_taps_that_fc_does_not_take_is_refused() -> None:
    refusal(SOURCE, good(), CheckpointError, taps="2,4")


def test_no_checkpoint_is_refused() -> None:
    assert "--drafter eagle3=PATH" in refusal(None, good(), DrafterError)


def test_not_a_number_is_refused(tmp_path: Path) -> None:
    weight = load_file(SOURCE / "model.safetensors")["fc.weight"]
    weight[0, 0] = torch.inf
    assert "fc.weight" in refusal(copy(tmp_path, **{"fc.weight": weight}), good(), CheckpointError)


def test_a_reduced_vocabulary_needs_its_map(tmp_path: Path) -> None:
    assert "d2t" in refusal(copy(tmp_path / "none", drop="d2t"), good(), CheckpointError)
    zero = {"d2t": torch.zeros(128, dtype=torch.int64)}
    assert "d2t" in refusal(copy(tmp_path / "zero", **zero), good(), CheckpointError)
    stored = load_file(SOURCE / "model.safetensors")["d2t"]
    stored[5] += 1
    assert "d2t" in refusal(copy(tmp_path / "wrong", d2t=stored), good(), CheckpointError)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    name = "midlayer.mlp.up_proj.weight"
    assert "up_proj" in refusal(copy(tmp_path, drop=name), good(), CheckpointError)


def test_another_kind_is_refused() -> None:
    assert "dspark" in refusal(FIXTURES / "dspark_markov", view_of(fixture_model()), DrafterError)


@pytest.mark.parametrize("name", ["recycl", "temperature"])
def test_an_unknown_option_is_refused(name: str) -> None:
    assert name in refusal(SOURCE, good(), SpecbenchError, **{name: "1"})


def test_options_change_the_reading() -> None:
    drafter = Eagle3.load(SOURCE, target=good(), options={"taps": "1,2,3", "recycle": "post_norm"})
    assert drafter.taps.boundaries == (1, 2, 3)
    state = torch.randn(1, 2, 64)
    normed, recycled = drafter.model.finish(state)
    assert torch.equal(normed, recycled)


def test_state_bytes_count_weights_and_caches() -> None:
    drafter = Eagle3.load(SOURCE, target=good(), options={})
    weights = sum(t.numel() * 4 for n, t in load_file(SOURCE / "model.safetensors").items() if t.is_floating_point())
    assert drafter.state_bytes() >= weights
    assert drafter.state_bytes() < weights + 64 * 1024  # nothing is cached yet but one state a slot
