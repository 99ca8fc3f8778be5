"""The target model: loading, stop ids, context limit, and what a drafter may see of it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

from specbench.errors import TargetError, unknown_name
from specbench.modeling.causal_lm import PagedLM
from specbench.modeling.cpu_linear import packed_bytes, weight_bytes
from specbench.modeling.packed_linear import can_pack
from specbench.modeling.placement import head_on
from specbench.types import TargetView

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Target:
    """A causal LM behind the paged forward."""

    def __init__(self, model: Any, *, name: str = "", model_dir: str = "", dtype: torch.dtype | None = None) -> None:
        self.lm = PagedLM(model, dtype=dtype)
        self.model = model
        self.config = self.lm.config
        self.name = name
        self.model_dir = model_dir
        self.vocab_size = self.lm.vocab_size
        self.stop_ids = stop_ids(model)
        self.controls: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[torch.Tensor, torch.Tensor]] = {}
        self.context_limit = int(getattr(self.config, "max_position_embeddings", 0) or 2**31 - 1)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: str = "bfloat16",
        device: str = "cpu",
        trust_remote_code: bool = False,
        device_map: str = "none",
    ) -> Target:
        """Load from a local folder.

        ``device_map`` "auto" spreads the layers over the visible CUDA devices, "tp" splits each layer over the
        processes of torchrun by the model's tensor parallel plan. Errors: TargetError, one line, whatever the loader
        raised.
        """
        if dtype not in DTYPES:
            raise unknown_name("dtype", dtype, DTYPES)
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise TargetError(f"device '{device}' asked for, but torch sees no CUDA device; use --device cpu")
        if device_map != "none":
            check_spread(device_map, device=device, processes=int(os.environ.get("WORLD_SIZE", "1")))
        try:
            wide = dtype == "float32" and device == "cpu" and can_pack()
            model = _as_stored(path, trust_remote_code) if wide else None
            if model is None:
                model = _read(path, DTYPES[dtype], trust_remote_code, device_map=device_map)
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise TargetError(f"target '{path}' cannot be loaded: {first}") from error
        found = torch.float32 if wide else None
        placed = model.to(device) if device_map == "none" else model
        return cls(placed, name=Path(path).name, model_dir=str(path), dtype=found)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in memory, shared ones once, packed forms included."""
        return weight_bytes(self.model)

    @property
    def packed_bytes(self) -> int:
        """Of these the bytes that a CPU holds in packed form; 0 where nothing is packed."""
        return packed_bytes(self.model)

    def view(self, *, max_rows: int, max_context: int, tokenizer: Any = None, name: str = "") -> TargetView:
        """What a drafter may know."""
        return TargetView(
            config=self.config,
            model=self.model,
            embed=self.model.get_input_embeddings(),
            head=head_on(self.model.get_output_embeddings(), self.lm.device),
            vocab_size=self.vocab_size,
            hidden_size=int(self.config.hidden_size),
            num_layers=int(self.config.num_hidden_layers),
            dtype=self.lm.dtype,
            device=self.lm.device,
            max_rows=max_rows,
            max_context=max_context,
            stop_ids=self.stop_ids,
            tokenizer=tokenizer,
            name=name or self.name,
            model_dir=self.model_dir,
        )


def check_spread(device_map: str, *, device: str, processes: int) -> None:
    """Errors: TargetError where a target cannot be spread over devices in this process or with these processes."""
    if not device.startswith("cuda"):
        raise TargetError(f"device_map={device_map} spreads a target over CUDA devices, not over '{device}'; drop it")
    if device_map == "tp" and processes < 2:
        raise TargetError(
            "device_map=tp splits a target over several processes and there is one; start it with 'torchrun "
            "--no-python --nproc-per-node=2 specbench run ...', or take device_map=auto"
        )
    if device_map == "auto" and processes > 1:
        raise TargetError(
            f"device_map=auto spreads a target over devices of one process and torchrun started {processes}; start "
            "specbench without torchrun, or take device_map=tp"
        )
    if device_map == "auto" and importlib.util.find_spec("accelerate") is None:
        raise TargetError("device_map=auto needs the package accelerate; pip install accelerate")


def _read(path: str | Path, dtype: Any, trust_remote_code: bool, *, device_map: str = "none") -> Any:
    from transformers import AutoModelForCausalLM

    spread: dict[str, Any] = {"none": {}, "auto": {"device_map": "auto"}, "tp": {"tp_plan": "auto"}}[device_map]
    return AutoModelForCausalLM.from_pretrained(
        str(path), dtype=dtype, trust_remote_code=trust_remote_code, weights_only=True, **spread
    )


def _as_stored(path: str | Path, trust_remote_code: bool) -> Any:
    """The model in its files' own dtype, where widening it to float32 afterwards gives the same model; else None.

    Two-byte weights then pack without a float32 copy. Every two-byte weight is exact in float32. What a model computes
    for itself when it is built is not: a buffer in a two-byte dtype is rounded already.
    """
    model = _read(path, "auto", trust_remote_code)
    buffers = {b.dtype for b in model.buffers() if b.is_floating_point()}
    dtypes = {p.dtype for p in model.parameters()}
    if dtypes - {torch.bfloat16, torch.float16, torch.float32} or buffers - {torch.float32}:
        return None
    model.config.dtype = torch.float32
    return model


def stop_ids(model: Any) -> frozenset[int]:
    """End-of-turn ids from the generation config, else from the model's config; may be several."""
    for source in (getattr(model, "generation_config", None), model.config, model.config.get_text_config()):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return frozenset(found if isinstance(found, (list, tuple)) else [found])
    return frozenset()
