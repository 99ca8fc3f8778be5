"""Bad input: each fault gives one clear line, and nothing else ever comes out of a checkpoint."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import support_checkpoints as made
import support_mtp_checkpoints as mtp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specbench_drafters.formats.load import load_checkpoint, reinterpret
from specbench_drafters.formats.record import LoadedCheckpoint

from specbench.errors import CheckpointError, ConfigError, UnknownNameError


def refused(path: Path, **arguments: Any) -> str:
    arguments.setdefault("target_config", made.TARGET_CONFIG)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path, **arguments)
    line = str(error.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def with_config(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))
    return path


def spoiled(name: str, value: float) -> dict[str, torch.Tensor]:
    tensors = made.block(taps=3, tables=True)
    tensors[name].view(-1)[3] = value
    return tensors


# ------------------------------------------------------------------------------------------ files


def test_missing_folder_config_or_weights(tmp_path: Path) -> None:
    assert "found nothing" in refused(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    assert "found a file" in refused(tmp_path / "file")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no config.json" in refused(empty)
    (empty / "config.json").write_text("{}")
    assert "holds no weights" in refused(empty)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": ', "\x00", '"x"', "[" * 100_000])
def test_damaged_config(text: str, tmp_path: Path) -> None:
    path = made.deepspec_dflash(tmp_path / "c")
    (path / "config.json").write_text(text)
    assert "config.json" in refused(path)


@pytest.mark.parametrize("container", ["safetensors", "bin", "safetensors-sharded", "bin-sharded"])
@pytest.mark.parametrize("keep", [0, 1, 7, 100, -1])
def test_truncated_weights(container: str, keep: int, tmp_path: Path) -> None:
    path = made.safeailab_eagle3(tmp_path / "c", container)
    file = sorted(entry for entry in path.iterdir() if entry.suffix in (".safetensors", ".bin"))[0]
    file.write_bytes(file.read_bytes()[:keep])
    line = refused(path)
    assert "damaged or truncated" in line
    assert file.name in line


@pytest.mark.parametrize("container", ["safetensors", "bin", "safetensors-sharded", "bin-sharded"])
def test_every_container_reads_the_same(container: str, tmp_path: Path) -> None:
    reference = load_checkpoint(made.safeailab_eagle3(tmp_path / "a", "safetensors"), target_config=made.TARGET_CONFIG)
    again = load_checkpoint(made.safeailab_eagle3(tmp_path / "b", container), target_config=made.TARGET_CONFIG)
    assert set(again.tensors) == set(reference.tensors)
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in reference.tensors.items())


def test_missing_shard_and_bad_index(tmp_path: Path) -> None:
    path = made.safeailab_eagle3(tmp_path / "c", "safetensors-sharded")
    shard = path / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    assert "shard model-00002-of-00002.safetensors is missing" in refused(path)
    shard.write_bytes(content)
    index = path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": weight_map | {"ghost": shard.name}}))
    assert "no shard holds 'ghost'" in refused(path)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    assert "plain file name" in refused(path)
    index.write_text("{}")
    assert "no 'weight_map'" in refused(path)
    index.unlink()
    shard.unlink()
    assert "is one of 2 shards" in refused(path)


class _Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("save", ["pickle", "torch"])
def test_pickled_code_is_never_run(save: str, tmp_path: Path) -> None:
    path = made.safeailab_eagle3(tmp_path / "c")
    file, trace = path / "pytorch_model.bin", tmp_path / "made-by-pickled-code"
    if save == "pickle":
        file.write_bytes(pickle.dumps({"a": _Evil(trace)}, protocol=2))
    else:
        torch.save({"a": _Evil(trace)}, file)
    line = refused(path)
    assert "never run" in line or "damaged" in line
    assert not trace.exists()
    pickle.loads(pickle.dumps(_Evil(trace)))
    assert trace.exists(), "the planted code would have shown itself"


def test_empty_tensor_and_wrong_content(tmp_path: Path) -> None:
    tensors = made.block(taps=3, tables=True) | {"norm.weight": torch.ones(0)}
    assert "'norm.weight' is empty" in refused(made.write(tmp_path / "a", made.deepspec_config(), tensors))
    path = made.safeailab_eagle3(tmp_path / "b")
    torch.save([torch.ones(2)], path / "pytorch_model.bin")
    assert "expected named tensors, found list" in refused(path)


def test_two_spellings_of_one_tensor(tmp_path: Path) -> None:
    tensors = made.eagle3() | made.maps() | {"layers.0.mlp.up_proj.weight": made.random(made.INNER, made.HIDDEN)}
    assert "are the same thing" in refused(made.write(tmp_path / "c", made.eagle3_config(), tensors))


# ------------------------------------------------------------------------------------------ values and shapes


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["fc.weight", "layers.1.mlp.up_proj.weight", "embed_tokens.weight"])
def test_values_that_are_not_numbers(name: str, value: float, tmp_path: Path) -> None:
    line = refused(made.write(tmp_path / "c", made.deepspec_config(), spoiled(name, value)))
    assert f"tensor '{name}' has 1 NaN or infinite values" in line


def test_missing_tensor_wrong_shape_and_foreign_layer_part(tmp_path: Path) -> None:
    good = made.block(taps=3, tables=True)
    lacking = {name: tensor for name, tensor in good.items() if "layers.1.mlp" not in name}
    line = refused(made.write(tmp_path / "a", made.deepspec_config(), lacking))
    assert "'layers.1.mlp.down_proj.weight' (and 2 more) is missing" in line
    wide = good | {"layers.0.mlp.up_proj.weight": made.random(made.INNER + 1, made.HIDDEN)}
    assert "has shape [25, 16], expected [24, 16]" in refused(made.write(tmp_path / "b", made.deepspec_config(), wide))
    sinks = good | {"layers.0.self_attn.sinks": torch.ones(4)}
    line = refused(made.write(tmp_path / "c", made.deepspec_config(), sinks))
    assert "'layers.0.self_attn.sinks', which this format does not have" in line


def test_integer_weights(tmp_path: Path) -> None:
    tensors = made.block(taps=3, tables=True)
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.int8)
    assert "stored as int8" in refused(made.write(tmp_path / "c", made.deepspec_config(), tensors))


# ------------------------------------------------------------------------------------------ the target


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [("hidden_size", 24, "hidden size 16"), ("vocab_size", 41, "vocabulary 40"), ("num_hidden_layers", 9, "8 layers")],
)
def test_another_target(key: str, value: int, told: str, tmp_path: Path) -> None:
    line = refused(made.deepspec_dspark(tmp_path / "c"), target_config={**made.TARGET_CONFIG, key: value})
    assert told.split()[-1] in line
    assert str(value) in line


def test_targets_too_shallow_for_default_taps(tmp_path: Path) -> None:
    line = refused(made.safeailab_eagle3(tmp_path / "c"), target_config={**made.TARGET_CONFIG, "num_hidden_layers": 6})
    assert "(2, 3, 3) of a 6-layer target coincide" in line


# ------------------------------------------------------------------------------------------ what is left open


@pytest.mark.parametrize(
    "make",
    [made.deepspec_dspark, made.zlab_dflash, made.specforge_dspark, made.speculators_dflash, made.speculators_dspark],
)
def test_absent_layer_ids_are_never_guessed(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "c")

    def drop(config: dict[str, Any]) -> None:
        for key in ("target_layer_ids", "aux_hidden_state_layer_ids"):
            config.pop(key, None)
            config.get("dflash_config", {}).pop(key, None)

    assert "target_layer_ids" in refused(with_config(path, drop))
    loaded = load_checkpoint(path, target_config=made.TARGET_CONFIG, overrides={"taps": "2,4,6"})
    assert loaded.spec.taps == (2, 4, 6)
    assert any("set by the user: taps=(2, 4, 6)" in note for note in loaded.spec.notes)


def test_layer_ids_that_do_not_exist_or_do_not_fit(tmp_path: Path) -> None:
    assert "does not exist" in refused(made.deepspec_dspark(tmp_path / "a", target_layer_ids=[0, 2, 8]))
    assert "repeat an index" in refused(made.deepspec_dspark(tmp_path / "b", target_layer_ids=[0, 2, 2]))
    assert "expected [16, 2 x 16]; one more tap would fit" in refused(
        made.deepspec_dspark(tmp_path / "c", target_layer_ids=[0, 2])
    )
    assert "do not belong to this checkpoint" in refused(made.deepspec_dspark(tmp_path / "d", target_layer_ids=[0]))
    assert "holds -2" in refused(made.deepspec_dspark(tmp_path / "e", target_layer_ids=[-2, 1, 2]))


MAPS: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "missing": ({}, "no 'd2t' map says which"),
    "all zero": ({"d2t": torch.zeros(12, dtype=torch.int64)}, "'d2t' is all zero"),
    "all zero with a mask": (made.maps() | {"d2t": torch.zeros(12, dtype=torch.int64)}, "never filled"),
    "too short": (made.maps() | {"d2t": torch.zeros(5, dtype=torch.int64)}, "has 5 entries for 12 draft tokens"),
    "contradicts the mask": (made.maps() | {"d2t": torch.arange(12)}, "contradict each other"),
    "repeats": ({"d2t": torch.tensor([1, 0] * 6)}, "more than once"),
    "outside": ({"d2t": torch.full((12,), 60)}, "outside the target's vocabulary of 40"),
    "negative": ({"d2t": torch.full((12,), -3)}, "outside the target's vocabulary of 40"),
    "not whole numbers": ({"d2t": torch.ones(12)}, "one row of whole numbers"),
    "mask of another vocabulary": (made.maps() | {"t2d": torch.ones(7, dtype=torch.bool)}, "'t2d' has shape [7]"),
}


@pytest.mark.parametrize("case", MAPS)
def test_reduced_vocabulary_without_a_valid_map(case: str, tmp_path: Path) -> None:
    maps, told = MAPS[case]
    assert told in refused(made.write(tmp_path / "c", made.eagle3_config(), made.eagle3() | maps))


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"markov_rank": 7}, "markov_rank 7"),
    "head type": ({"markov_head_type": "rnn"}, "the tensors are those of 'vanilla'"),
    "unknown head type": ({"markov_head_type": "lstm"}, "vanilla or gated or rnn"),
    "confidence width": ({"confidence_head_with_markov": False}, "the head reads 22 features"),
    "head size": ({"head_dim": 8}, "config says head_dim 8"),
    "mask outside": ({"mask_token_id": 40}, "mask token 40 is outside the vocabulary of 40"),
    "text for a number": ({"block_size": "5"}, "'block_size' must be a whole number of at least 1, found '5'"),
    "no block": ({"block_size": None}, "no 'block_size'"),
    "groups": ({"num_key_value_heads": 3}, "no multiple of 3"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_configuration_against_tensors(case: str, tmp_path: Path) -> None:
    change, told = CONTRADICTIONS[case]
    assert told in refused(made.deepspec_dspark(tmp_path / "c", **change))


def test_heads_that_are_promised_but_not_stored(tmp_path: Path) -> None:
    config = made.deepspec_config(markov_rank=4)
    assert "markov_rank 4" in refused(made.write(tmp_path / "a", config, made.block(taps=3, tables=True)))
    config = made.deepspec_config(enable_confidence_head=True)
    assert "enable_confidence_head" in refused(made.write(tmp_path / "b", config, made.block(taps=3, tables=True)))


def test_mtp_layers_that_are_not_there_or_not_supported(tmp_path: Path) -> None:
    path = mtp.mimo(tmp_path / "a")
    assert "model type 'ernie4_5'" in refused(
        with_config(path, lambda c: c.update(model_type="ernie4_5")), target_config=None
    )
    path = mtp.deepseek_v3(tmp_path / "b")
    line = refused(with_config(path, lambda c: c.update(num_hidden_layers=5)), target_config=None)
    assert "stripped" in line


# ------------------------------------------------------------------------------------------ overrides


def test_overrides_are_typed_and_named(tmp_path: Path) -> None:
    path = made.safeailab_eagle3(tmp_path / "c")
    given = {
        "eagle3.recycle": "post_norm",
        "taps": [3, 4, 5],
        "residual_normed": "true",
        "rope_theta": "5e5",
        "gamma": 4,
    }
    spec = load_checkpoint(path, target_config=made.TARGET_CONFIG, overrides=given).spec
    assert (spec.recycle, spec.taps, spec.residual_normed, spec.gamma) == ("post_norm", (3, 4, 5), True, 4)
    assert spec.backbone.rope.theta == 5e5
    for bad in (
        {"recycle": "sometimes"},
        {"taps": "a,b"},
        {"gamma": 0},
        {"slot_shift": 2},
        {"residual_normed": "maybe"},
    ):
        with pytest.raises(ConfigError):
            load_checkpoint(path, target_config=made.TARGET_CONFIG, overrides=bad)
    with pytest.raises(UnknownNameError, match="did you mean recycle"):
        load_checkpoint(path, target_config=made.TARGET_CONFIG, overrides={"recycl": "post_norm"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"slot_shift": 0}, (4, 5, 0)),
        ({"gamma": 3}, (3, 3, 1)),
        ({"block_inputs": 7}, (7, 7, 1)),
        ({"slot_shift": 0, "gamma": 5}, (5, 6, 0)),
    ],
)
def test_block_overrides_stay_consistent(given: dict[str, int], expected: tuple[int, int, int], tmp_path: Path) -> None:
    loaded = load_checkpoint(made.deepspec_dspark(tmp_path / "c"))
    spec = reinterpret(loaded, given).spec
    assert (spec.gamma, spec.block_inputs, spec.slot_shift) == expected
    with pytest.raises(ConfigError, match="contradict each other"):
        reinterpret(loaded, {"gamma": 6, "block_inputs": 5})


def test_another_reading_of_the_tables(tmp_path: Path) -> None:
    loaded = load_checkpoint(made.deepspec_dspark(tmp_path / "c"))
    other: LoadedCheckpoint = reinterpret(loaded, {"embed_from": "target"})
    assert "embed_tokens.weight" not in other.tensors
    assert "lm_head.weight" in other.tensors
    with pytest.raises(CheckpointError, match="is not stored"):
        reinterpret(other, {"embed_from": "checkpoint"})


# ------------------------------------------------------------------------------------------ arbitrary configurations

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    sorted(
        set(made.deepspec_config(markov_rank=1, ttt_length=1))
        | set(made.zlab_config())
        | set(made.eagle3_config())
        | set(made.speculators_config("dspark", tokens=1))
        | {"rope_scaling", "eagle_config", "speculators_model_type", "is_causal", "sliding_window", "text_config"}
        | {"specbench_drafter", "draft_vocab_size", "norm_output", "layer_types", "quantization_config"}
    )
)
_CHANGES = st.dictionaries(_KEYS | st.text(max_size=8), _VALUES, max_size=4)
_MAKERS = (
    made.deepspec_dspark,
    made.zlab_sliding,
    made.safeailab_eagle3,
    made.speculators_dspark,
    made.specforge_dspark,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict[str, Any]]]:
    made_folders = [make(tmp_path_factory.mktemp("arbitrary") / "c") for make in _MAKERS]
    return [(path, json.loads((path / "config.json").read_text())) for path in made_folders]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(_KEYS | st.text(max_size=8), _VALUES, max_size=4), index=st.integers(0, len(_MAKERS) - 1)
)
def test_arbitrary_configurations_load_or_raise_one_line(
    changes: dict[str, Any], index: int, folders: list[tuple[Path, dict[str, Any]]]
) -> None:
    path, config = folders[index]
    (path / "config.json").write_text(json.dumps(config | changes))
    line = ""
    try:
        load_checkpoint(path, target_config=made.TARGET_CONFIG)
    except CheckpointError as error:
        line = str(error)
    assert "\n" not in line


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=20).filter(lambda n: n not in made.sizes()), value=_VALUES)
def test_further_keys_change_nothing(name: str, value: Any, folders: list[tuple[Path, dict[str, Any]]]) -> None:
    path, config = folders[0]
    name = f"x_{name}"
    (path / "config.json").write_text(json.dumps(config | {name: value}))
    assert load_checkpoint(path, target_config=made.TARGET_CONFIG).spec.taps == (1, 3, 5)
