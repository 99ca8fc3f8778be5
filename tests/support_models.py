"""Tiny real models for tests: random Llama targets with a byte-level tokenizer and a chat template, on disk."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIALS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
END = 1

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING_TEMPLATE = CHAT_TEMPLATE.replace(
    "<|assistant|>{% endif %}",
    "<|assistant|>{% if enable_thinking is defined and not enable_thinking %}no thoughts: {% endif %}{% endif %}",
)
NO_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('system role not supported') }}{% endif %}"
    + CHAT_TEMPLATE
)


def _alphabet() -> list[str]:
    letters = pre_tokenizers.ByteLevel.alphabet()
    return sorted(letters, key=lambda letter: (not (len(letter.encode()) == 1 or letter in "ĠĊ"), letter))


def tiny_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE, shuffle: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte, after five special tokens; printable ASCII comes first. ``shuffle`` gives other ids."""
    letters = _alphabet()
    if shuffle:
        letters = letters[::-1]
    vocab = {token: index for index, token in enumerate([*SPECIALS, *letters])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=SPECIALS[0],
        eos_token=SPECIALS[1],
        additional_special_tokens=list(SPECIALS[2:]),
    )
    if chat_template is not None:
        fast.chat_template = chat_template
    return fast


def tiny_llama_dir(
    folder: Path,
    *,
    name: str = "tiny-llama",
    seed: int = 0,
    hidden_size: int = 32,
    num_layers: int = 2,
    context: int = 512,
    chat_template: str | None = CHAT_TEMPLATE,
    shuffle_vocab: bool = False,
) -> Path:
    """A random float32 Llama with its tokenizer under ``folder / name``. It mostly says printable ASCII."""
    tokenizer = tiny_tokenizer(chat_template=chat_template, shuffle=shuffle_vocab)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        max_position_embeddings=context,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=0,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    torch.random.set_rng_state(state)
    with torch.no_grad():
        letters = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        odd = [i for i, letter in enumerate(letters) if i >= len(SPECIALS) and len(letter.encode()) > 1]
        model.lm_head.weight[odd] = 0.0  # bytes beyond ASCII make broken text, which grows when it is read back
    model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=0)
    path = folder / name
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
