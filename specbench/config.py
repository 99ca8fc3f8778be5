"""What a run is asked to do: one validated document from defaults, a TOML file, ``--set`` and flags.

Unknown keys are refused, because a misspelt option that is ignored is a wrong result. No torch here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from specbench.config_values import geometric_rate, parse_bytes, parse_pairs, parse_value, read_toml
from specbench.errors import ConfigError, unknown_name
from specbench.server_spec import ServerSpec
from specbench.types import Sampling

__all__ = [
    "BASELINE", "STARTER_TASKS", "CellSpec", "MethodSpec", "Model", "RunSpec", "apply_sets", "build_run",
    "geometric_rate", "parse_bytes", "parse_method", "parse_pairs", "parse_value", "read_toml", "validated",
]  # fmt: skip

BASELINE = "vanilla"
STARTER_TASKS = ("starter-math", "starter-code", "starter-chat")

_PLACES = {"base_url", "launch"}
_ALIAS = re.compile(r"^(mtp)-(\d+)$")  # the field writes MTP-1 for one draft a cycle

Model = TypeVar("Model", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MethodSpec(_Strict):
    """One contestant of a run; ``draft_length`` None means the length that its drafter was made for."""

    name: str
    draft_length: Annotated[int, Field(ge=0)] | None = None

    @property
    def label(self) -> str:
        """As users write it: ``ngram`` or ``ngram:5``."""
        return self.name if self.draft_length is None else f"{self.name}:{self.draft_length}"


def parse_method(text: str) -> MethodSpec:
    """``NAME`` or ``NAME:k``; ``mtp-1`` is ``mtp:1``. Errors: ConfigError when k is no whole number."""
    name, colon, length = text.strip().partition(":")
    alias = _ALIAS.match(name)
    if alias and not colon:
        name, length, colon = alias[1], alias[2], ":"
    if not name or (colon and not length.isdecimal()):
        raise ConfigError(f"method '{text}' is not NAME or NAME:k with k drafts a cycle; write for example ngram:5")
    return MethodSpec(name=name.replace("_", "-"), draft_length=int(length) if colon else None)


def _methods(value: object) -> object:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple):
        return value
    parts: list[object] = []
    for part in value:
        parts += [parse_method(p) for p in part.split(",")] if isinstance(part, str) else [part]
    return tuple(parts)


def _names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _count(value: object) -> object:
    return None if value == "all" else value


def _hyphens(value: object) -> object:
    return {str(k).replace("_", "-"): v for k, v in value.items()} if isinstance(value, dict) else value


def _rates(value: object) -> object:
    return tuple(value.split(",")) if isinstance(value, str) else value


class RunSpec(_Strict):
    """Everything that ``specbench run`` is told. Each method becomes one cell over all tasks together.

    ``draft_length`` counts drafts a cycle, never the block size, and applies to methods that state none. ``options``
    are those of the methods by name, ``drafters`` their checkpoints. ``kv_memory`` None sizes the cache to the run,
    ``max_context`` None sizes the longest sequence to the prompts, ``num_prompts`` None ("all") takes every one.
    Policies that plan by cost read ``cost_table`` (None: what 'specbench profile' left for this target and machine);
    ``calibration`` is a file, "off", or "auto": the one beside the drafter where there is one. ``load`` holds the
    options of the load pattern ``workload``; ``concurrency`` is the row limit, in a closed loop the users too.
    ``mix`` weighs the tasks, each named as in ``tasks``; empty takes as many prompts of each. ``backend`` is this
    project's engine, or an OpenAI-compatible ``server``, which naming one implies. ``graphs`` pads decoding steps to
    fixed shapes, captured as CUDA graphs ("auto": on a CUDA device). ``device_map`` spreads a target over several
    devices, by layers ("auto") or, under torchrun, by its tensor parallel plan ("tp").
    """

    methods: Annotated[tuple[MethodSpec, ...], BeforeValidator(_methods), Field(min_length=1)]
    target: Annotated[str, Field(min_length=1)] = "smollm2-135m"
    tasks: Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)] = STARTER_TASKS
    num_prompts: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_count)] = 10
    drafters: Annotated[dict[str, str], BeforeValidator(_hyphens)] = {}
    options: Annotated[dict[str, dict[str, Any]], BeforeValidator(_hyphens)] = {}
    policy: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(:.+)?$")] = "fixed"
    cost_table: Path | None = None
    force_cost_table: bool = False
    calibration: Annotated[str, Field(min_length=1)] = "auto"
    draft_length: Annotated[int, Field(ge=0)] | None = None
    synthetic_tau: Annotated[float, Field(ge=1)] | None = None
    synthetic_rates: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], BeforeValidator(_rates)] | None = None
    max_new_tokens: Annotated[int, Field(ge=0)] = 128
    ignore_eos: bool = False
    thinking: Literal["default", "on", "off"] = "default"
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    workload: str = "closed"
    load: dict[str, Any] = {}
    mix: dict[str, Annotated[float, Field(gt=0)]] = {}
    concurrency: Annotated[int, Field(ge=1)] = 1
    warmup: Annotated[int, Field(ge=0)] = 1
    baseline: bool = True
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Annotated[int, Field(ge=1)] | None = None
    kv_memory: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)] | None = None
    prefill_chunk: Annotated[int, Field(ge=1)] = 512
    graphs: Literal["auto"] | bool = "auto"
    device_map: Literal["none", "auto", "tp"] = "none"
    max_context: Annotated[int, Field(ge=2)] | None = None
    trust_remote_code: bool = False
    backend: Literal["engine", "openai"] = "engine"
    server: ServerSpec = ServerSpec()
    out: Path = Path("runs")

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, document: Any) -> Any:
        held = document.get("server") if isinstance(document, dict) else None
        given = held.given if isinstance(held, ServerSpec) else isinstance(held, dict) and held.keys() & _PLACES
        return {"backend": "openai", **document} if given else document

    @model_validator(mode="after")
    def _served(self) -> RunSpec:
        if self.backend == "openai" and not self.server.given:
            raise ValueError("no server is named; give --base-url URL, or --launch ENGINE")
        if self.backend != "openai" and self.server.given:
            raise ValueError(f"a server is named, and the backend is '{self.backend}'; drop one of the two")
        if self.backend != "openai":
            return self
        for name in ("policy", "synthetic_tau", "synthetic_rates", "cost_table", "kv_memory"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} rules this project's engine, a server has its own; drop it")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> RunSpec:
        labels = [method.label for method in self.methods]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"method '{twice[0]}' is listed twice; list it once")
        if any(method.name == BASELINE and method.draft_length for method in self.methods):
            raise ValueError(f"{BASELINE} drafts nothing; drop its draft length")
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError("a task is listed twice; list it once")
        self._check_mix()
        if self.synthetic_tau is not None and self.synthetic_rates is not None:
            raise ValueError("synthetic_tau and synthetic_rates both force the acceptance; give one")
        named = {method.name for method in self.methods} | {BASELINE}
        for kind, keys in (("--drafter", self.drafters), ("options", self.options)):
            for name in keys:
                if name not in named:
                    raise ValueError(f"{kind} names the method '{name}', which is not run; add --method {name}")
        return self

    def _check_mix(self) -> None:
        for name in self.mix:
            if name not in self.tasks:
                raise ValueError(f"mix weighs '{name}', which is no task of this run: {', '.join(self.tasks)}")
        for name in self.tasks:
            if self.mix and name not in self.mix:
                raise ValueError(f"mix gives the task '{name}' no weight; give it one, or leave the task out")

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)

    @property
    def policy_parts(self) -> tuple[str, str | None]:
        """Name and argument of the verification policy: ``fixed:5`` is ("fixed", "5")."""
        name, colon, argument = self.policy.partition(":")
        return name, argument if colon else None

    def cells(self) -> tuple[MethodSpec, ...]:
        """The methods in the order they are measured: the baseline first where it is wanted, never twice."""
        rest = tuple(m for m in self.methods if m.name != BASELINE)
        asked = len(rest) < len(self.methods)
        wanted = self.baseline and (self.backend == "engine" or self.server.serves(BASELINE, among=len(rest) + 1))
        return ((MethodSpec(name=BASELINE),) if wanted or asked else ()) + rest

    def synthetic_for(self, draft_length: int) -> tuple[float, ...] | None:
        """Forced acceptance of draft 1, 2, ... given that all before it were accepted; None where nothing is forced.

        Errors: ConfigError when the wanted tau is out of reach at this draft length.
        """
        if draft_length == 0 or (self.synthetic_tau is None and self.synthetic_rates is None):
            return None
        if self.synthetic_rates is not None:
            if len(self.synthetic_rates) != draft_length:
                raise ConfigError(
                    f"synthetic rates name {len(self.synthetic_rates)} positions, but {draft_length} drafts a cycle are"
                    " made; give one rate a position, or set -k"
                )
            return self.synthetic_rates
        assert self.synthetic_tau is not None
        return (geometric_rate(self.synthetic_tau, draft_length=draft_length),) * draft_length

    def length_of(self, method: MethodSpec) -> int | None:
        """Drafts a cycle that the user asked for; None leaves it to the drafter. The baseline drafts nothing."""
        if method.name == BASELINE:
            return 0
        return method.draft_length if method.draft_length is not None else self.draft_length


class CellSpec(_Strict):
    """One cell, fully resolved: all that decides its numbers. Names of folders are replaced by hashes.

    ``inputs`` names what was read by content: weights, tokenizer, template, drafter, prompts and their rendering.
    """

    method: str
    draft_length: int
    policy: str
    drafter: str | None
    options: dict[str, Any]
    target: str
    tasks: tuple[str, ...]
    num_prompts: int | None
    max_new_tokens: int
    ignore_eos: bool
    stop_ids: tuple[int, ...]
    thinking: str
    temperature: float
    top_p: float
    top_k: int | None
    seed: int
    workload: str
    load: dict[str, Any] = {}  # options of the load pattern that are not at their defaults
    mix: dict[str, float] = {}
    concurrency: int
    warmup: int
    dtype: str
    device: str
    threads: int
    kv_memory: int | None
    prefill_chunk: int
    graphs: bool = False  # padded steps
    device_map: str = ""
    max_context: int
    synthetic: tuple[float, ...] | None = None  # forced conditional acceptance rates; such cells never rank
    causal: bool = True  # the policy decides on no draft by what was computed from it; others never rank
    backend: str
    server: dict[str, Any] = {}  # of a served cell: the engine, its version and what it was asked for
    inputs: dict[str, str]

    def document(self) -> dict[str, Any]:
        """As kept in a record. What is younger than the oldest cells is left out where empty: they keep their key."""
        plain = self.model_dump(mode="json")
        younger = ("load", "mix", "server", "graphs", "device_map")
        return {name: value for name, value in plain.items() if value or name not in younger}

    def key(self) -> str:
        """Content address of the cell: 16 hex digits, equal exactly when every field is."""
        text = json.dumps(self.document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _assign(document: dict[str, Any], path: Sequence[str], value: Any, *, text: str) -> None:
    for part in path[:-1]:
        document = document.setdefault(part, {})
        if not isinstance(document, dict):
            raise ConfigError(f"--set {text}: '{part}' holds a value, not further keys; drop what follows it")
    document[path[-1]] = value


def apply_sets(document: dict[str, Any], sets: Iterable[str]) -> None:
    """Write ``a.b=c`` into the document, in order; ``METHOD.option=c`` is short for ``options.METHOD.option=c``.

    Errors: ConfigError for a text without ``=``; UnknownNameError for a first part that is neither field nor method.
    """
    for text in sets:
        key, equals, value = text.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or not all(path):
            raise ConfigError(f"--set '{text}' is not KEY=VALUE; write for example --set ngram.max_ngram=4")
        if path[0] not in RunSpec.model_fields and len(path) > 1:
            path = ["options", path[0].replace("_", "-"), *path[1:]]
            named = {method.name for method in _listed(document)} | {BASELINE}
            if path[1] not in named:
                raise unknown_name("setting", path[1], named | set(RunSpec.model_fields))
        _assign(document, path, parse_value(value.strip()), text=text)


def _listed(document: Mapping[str, Any]) -> tuple[MethodSpec, ...]:
    methods = _methods(document.get("methods", ()))
    return tuple(m for m in methods if isinstance(m, MethodSpec)) if isinstance(methods, tuple) else ()


def build_run(
    *, config: Path | None = None, sets: Iterable[str] = (), flags: Mapping[str, Any] | None = None
) -> RunSpec:
    """The run from a TOML file, then ``--set``, then flags; a flag that is None was not given, ``rate`` is load.rate.

    Errors: ConfigError or UnknownNameError, one line.
    """
    document = read_toml(config) if config is not None else {}
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    drafters, server = given.pop("drafters", {}), given.pop("server", {})
    load = {"rate": given.pop("rate")} if "rate" in given else {}
    document.update(given)  # the methods, so that --set can name them
    apply_sets(document, sets)
    document.update(given)  # and once more, because flags win
    for name, entries in (("drafters", drafters), ("load", load), ("server", server)):
        if entries and isinstance(document.setdefault(name, {}), dict):
            document[name].update(entries)
    if "methods" not in document:
        raise ConfigError("no method is named; give --method, for example --method ngram")
    return validated(RunSpec, document)


def validated(model: type[Model], document: Mapping[str, Any], *, section: str = "", word: str = "setting") -> Model:
    """The document as a model. Errors: ConfigError with the first fault, UnknownNameError for an unknown key.

    ``section`` leads the names of settings in errors ("load": load.rate); an unknown one is called a ``word``.
    """
    try:
        return model.model_validate(dict(document))
    except ValidationError as error:
        faults = error.errors(include_url=False)
    # a misspelt key often comes with a missing one: it explains both
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        raise unknown_name(word, where, model.model_fields)
    where = ".".join(part for part in (section, where) if part)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    if first["type"] == "missing":
        raise ConfigError(f"{where} is missing; give it{more}")
    says = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        raise ConfigError(f"{where + ': ' if where else ''}{says}{more}")
    seen = repr(first["input"])
    seen = seen if len(seen) <= 60 else f"{seen[:57]}..."
    raise ConfigError(f"{where}: {says[:1].lower()}{says[1:]}, not {seen}; correct it{more}")
