"""The target as training sees it: its configuration, its input embedding and its output head, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine.target import DTYPES, Target, stop_ids
from specbench.errors import TargetError
from specbench.resolve.weights import weight_files
from specbench.types import TargetView


def frozen_view(
    path: Path, *, dtype: str, device: str, name: str, max_context: int, trust_remote_code: bool = False
) -> TargetView:
    """A view of the target in ``path`` with real embedding and head; its layers are never read from disk.

    Where the two tables cannot be picked out of the files the whole model is loaded and let go. Errors: TargetError.
    """
    model = _skeleton(path, trust_remote_code=trust_remote_code)
    found = _tables(model, path, DTYPES[dtype])
    if found is None:
        whole = Target.load(path, dtype=dtype, device="cpu", trust_remote_code=trust_remote_code)
        embed, head, model = whole.model.get_input_embeddings(), whole.model.get_output_embeddings(), whole.model
    else:
        embed, head = found
    return view_of_tables(
        model, embed.to(device), head.to(device), dtype=DTYPES[dtype], device=device, name=name, max_context=max_context
    )


def view_of_tables(
    model: Any, embed: nn.Module, head: nn.Module, *, dtype: torch.dtype, device: str, name: str, max_context: int
) -> TargetView:
    """A view whose only modules are the two tables, frozen."""
    config = model.config.get_text_config()
    return TargetView(
        config=model.config,
        model=nn.Module(),
        embed=embed.requires_grad_(False),
        head=head.requires_grad_(False),
        vocab_size=head.get_parameter("weight").shape[0],
        hidden_size=int(config.hidden_size),
        num_layers=int(config.num_hidden_layers),
        dtype=dtype,
        device=torch.device(device),
        max_rows=1,
        max_context=max_context,
        stop_ids=stop_ids(model),
        name=name,
    )


def _skeleton(path: Path, *, trust_remote_code: bool) -> Any:
    from accelerate import init_empty_weights  # type: ignore[import-untyped]
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=trust_remote_code)
        with init_empty_weights(include_buffers=False):  # scales of embeddings are buffers and must be real
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        if (Path(path) / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(str(path))
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TargetError(f"target '{name_of(path)}' cannot be read: {first}") from error
    return model


def name_of(path: Path) -> str:
    """How errors name a folder."""
    return Path(path).name


def _tables(model: Any, path: Path, dtype: torch.dtype) -> tuple[nn.Module, nn.Module] | None:
    """Embedding and head with their weights from the files; None where the files name them otherwise."""
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embed is None or head is None:
        raise TargetError(f"target '{name_of(path)}' has no embedding or output head that can be shared")
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    own = {id(m): {k: names.get(id(p), []) for k, p in m.named_parameters(recurse=False)} for m in (embed, head)}
    if getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        # the files may hold one of the two
        own[id(head)]["weight"] = own[id(head)]["weight"] + own[id(embed)]["weight"]
    for module in (embed, head):
        for key, parameter in list(module.named_parameters(recurse=False)):
            tensor = next((t for t in (_read(path, name) for name in own[id(module)][key]) if t is not None), None)
            if tensor is None or tensor.shape != parameter.shape:
                return None
            setattr(module, key, nn.Parameter(tensor.to(dtype), requires_grad=False))
        module.to(dtype)
    return embed, head


def _read(path: Path, name: str) -> Tensor | None:
    from safetensors import safe_open

    for file in weight_files(Path(path)):
        if file.suffix != ".safetensors":
            continue
        with safe_open(str(file), framework="pt") as opened:
            if name in opened.keys():  # noqa: SIM118  (the handle is no mapping)
                found: Tensor = opened.get_tensor(name)
                return found
    return None
