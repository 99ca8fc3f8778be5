"""What `specbench train prepare` and `features` are asked to do, validated; unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specbench.config import parse_bytes
from specbench.session import choose_device, choose_dtype
from specbench.train.openers import OPENERS, openers_hash

_NOT_CONTENT = {
    "features", "taps", "out", "target_tokens", "target", "threads", "base_url", "server_tries", "evaluation",
}  # fmt: skip


def _names(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def check_taps(taps: tuple[int, ...]) -> None:
    """Errors: ValueError unless the taps ascend."""
    if not taps or list(taps) != sorted(set(taps)):
        raise ValueError("taps must be ascending, each once; write for example --taps 2,16,28")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PrepareSpec(_Strict):
    """Where prompts come from, how the target answers them, and where the shards go.

    ``tasks`` are names or prompt files; ``hub`` a data set (id or folder) of which ``hub_split`` is read;
    ``num_prompts`` bounds each of these sources. ``synthesise`` counts user turns that the target writes itself, spread
    over ``domains``, at ``turn_temperature``. ``greedy_share`` of all prompts are answered at temperature 0.
    ``target_tokens`` stops after the block in which the target has written that many. ``evaluation`` None refuses the
    prompts of every task that can be had. ``features`` keeps the states at ``taps`` (None: `default_taps`) in a store
    while they are written. Prompts are answered ``block`` at a time, ``rows`` of them at once.
    """

    out: Path
    target: Annotated[str, Field(min_length=1)] = "smollm2-135m"
    tasks: tuple[str, ...] = ()
    hub: str | None = None
    hub_split: str = "train"
    num_prompts: Annotated[int, Field(ge=1)] | None = None
    synthesise: Annotated[int, Field(ge=0)] = 0
    domains: Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)] = tuple(OPENERS)
    turn_temperature: Annotated[float, Field(gt=0)] = 0.8
    max_turn_tokens: Annotated[int, Field(ge=1)] = 128
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    max_context: Annotated[int, Field(ge=8)] = 2048
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    greedy_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    heldout_share: Annotated[float, Field(ge=0, lt=1)] = 0.02
    target_tokens: Annotated[int, Field(ge=1)] | None = None
    evaluation: tuple[str, ...] | None = None
    features: Path | None = None
    taps: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    thinking: Literal["default", "on", "off"] = "default"
    block: Annotated[int, Field(ge=1)] = 512
    rows: Annotated[int, Field(ge=1)] = 64
    base_url: str | None = None
    server_model: str | None = None
    server_tries: Annotated[int, Field(ge=1)] = 5
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Annotated[int, Field(ge=1)] | None = None
    kv_memory: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)] | None = None
    prefill_chunk: Annotated[int, Field(ge=1)] = 512
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> PrepareSpec:
        if not (self.tasks or self.hub or self.synthesise):
            raise ValueError("no prompts: give --task, --prompts, --hub or --synthesise N")
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError("a task is listed twice; list it once")
        unknown = [name for name in self.domains if name not in OPENERS]
        if unknown:
            raise ValueError(f"domain '{unknown[0]}' has no openers; known: {', '.join(OPENERS)}")
        if len(set(self.domains)) != len(self.domains):
            raise ValueError("a domain is listed twice; list it once")
        if self.taps is not None and self.features is None:
            raise ValueError("--taps says which states --features keeps; give --features FOLDER as well")
        if self.taps is not None:
            check_taps(self.taps)
        if self.features is not None and self.base_url is not None:
            raise ValueError("a server keeps its states to itself; leave --features out")
        if self.base_url is not None and self.server_model is None:
            raise ValueError("--base-url needs --server-model, the name that the server knows the target by")
        return self

    def settings(self) -> dict[str, Any]:
        """All that decides the content of the shards, as JSON. How far to go and where to put it do not."""
        found = self.model_dump(mode="json", exclude=_NOT_CONTENT)
        if self.base_url is None:
            found["device"] = choose_device(self.device)
            found["dtype"] = choose_dtype(self.dtype, device=found["device"])
        found["openers"] = openers_hash() if self.synthesise else None
        found["answers_by"] = "engine" if self.base_url is None else "server"
        return found


class FeaturesSpec(_Strict):
    """Which answers, which hidden states of the target, and where the store goes.

    ``taps`` are Hugging Face indices (see `specbench.types.Taps`); None takes `default_taps`. ``batch_tokens`` go
    through the target at once, None chooses by the vocabulary. A shard holds about ``shard_tokens`` tokens.
    ``unfinished`` takes what answers there are.
    """

    data: Annotated[tuple[Path, ...], Field(min_length=1)]
    out: Path
    target: Annotated[str, Field(min_length=1)] = "smollm2-135m"
    taps: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    batch_tokens: Annotated[int, Field(ge=1)] | None = None
    shard_tokens: Annotated[int, Field(ge=1)] = 131072
    unfinished: bool = False
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Annotated[int, Field(ge=1)] | None = None
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> FeaturesSpec:
        if self.taps is not None:
            check_taps(self.taps)
        return self
