"""What a sweep is asked to do: a base run, the axes that vary, and the combinations that are left out.

A TOML file with [base] (any setting of a run), [axes] (lists of values), [[exclude]], [[where]] (settings of some
combinations) and [drafters."TARGET"]. Unknown keys and axes that contradict each other are refused before anything is
loaded. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specbench.config import BASELINE, MethodSpec, RunSpec, apply_sets, parse_method, read_toml, validated
from specbench.errors import ConfigError, unknown_name

GROUP_AXES = ("target", "task", "workload", "load", "rate", "concurrency", "temperature", "seed")
"""What the arms of a group have in common, the outermost first: only inside a group are methods compared."""

ARM_AXES = ("method", "draft_length", "policy")

WHERE_SETTINGS = ("num_prompts", "max_new_tokens", "ignore_eos", "thinking", "warmup", "threads", "kv_memory",
                  "prefill_chunk", "max_context")  # fmt: skip
"""What a [[where]] rule may set: how much is asked of a cell and with how much of the machine."""

_FIELD = {"task": "tasks", "method": "methods", "rate": "load"}  # the run's setting that an axis writes


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _listed(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError(f"an axis is a list of values, seen {value!r}; write it in brackets")
    if not value:
        raise ValueError("the axis is empty: no cell would be left; give it a value or drop it")
    return value


def _methods(value: object) -> object:
    return [parse_method(text) if isinstance(text, str) else text for text in value] if _listed(value) else value  # type: ignore[attr-defined]


def _task_sets(value: object) -> object:
    return [(names,) if isinstance(names, str) else names for names in value] if _listed(value) else value  # type: ignore[attr-defined]


Values = BeforeValidator(_listed)


class Axes(_Strict):
    """What varies; each axis multiplies the sweep. None: the axis is not used, the base decides.

    ``task`` holds a task or a list of tasks that are run together as one cell. ``load`` holds tables: options of the
    load pattern, and with them ``workload`` or ``concurrency`` where these vary along; ``rate`` is load.rate alone.
    """

    method: Annotated[tuple[MethodSpec, ...], BeforeValidator(_methods)]
    draft_length: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Values] | None = None
    policy: Annotated[tuple[str, ...], Values] | None = None
    target: Annotated[tuple[str, ...], Values] | None = None
    task: Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_task_sets)] | None = None
    workload: Annotated[tuple[str, ...], Values] | None = None
    load: Annotated[tuple[dict[str, Any], ...], Values] | None = None
    rate: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Values] | None = None
    concurrency: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Values] | None = None
    temperature: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Values] | None = None
    seed: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Values] | None = None

    def used(self) -> dict[str, tuple[Any, ...]]:
        """The axes that are given, in the order of expansion."""
        found = {name: getattr(self, name) for name in (*GROUP_AXES, *ARM_AXES)}
        return {name: values for name, values in found.items() if values is not None}

    @model_validator(mode="after")
    def _distinct(self) -> Axes:
        for name, values in self.used().items():
            texts = [shown(name, value) for value in values]
            twice = next((text for text in texts if texts.count(text) > 1), None)
            if twice is not None:
                raise ValueError(f"axis '{name}' lists {twice} twice; list it once")
        return self


def shown(axis: str, value: Any) -> str:
    """A value of an axis as users write it; equal texts are equal values."""
    if isinstance(value, MethodSpec):
        return value.label
    if axis == "task" and not isinstance(value, str):
        return "+".join(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={shown(axis, value[name])}" for name in sorted(value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, int | float) else str(value)


class SweepSpec(_Strict):
    """A whole sweep. ``repeats`` measures every cell that often, in blocks; ``order_seed`` shuffles inside a block.

    ``exclude`` lists rules: a combination that agrees with all entries of one is left out; an entry is a value of its
    axis or a list of them, and ``method`` may be a name without its draft length. ``where`` lists rules over the axes
    that compared cells share, with settings in ``set`` that go before the base's and before those of earlier rules.
    ``drafters``: checkpoints by target. ``interleave``: the cells of a group are measured in turn, step by step, so
    that a machine that drifts does so for all alike; closed loads of the engine only, and memory for all of them.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    base: dict[str, Any] = {}
    axes: Axes
    exclude: tuple[dict[str, Any], ...] = ()
    where: tuple[dict[str, Any], ...] = ()
    drafters: dict[str, dict[str, str]] = {}
    repeats: Annotated[int, Field(ge=1)] = 1
    order_seed: Annotated[int, Field(ge=0)] = 0
    interleave: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> SweepSpec:
        self._check_base()
        self._check_methods()
        self._check_loads()
        self._check_sampling()
        self._check_drafters()
        self._check_interleave()
        for rule in self.exclude:
            self._check_rule(rule, section="exclude", axes=self.axes.used())
        for rule in self.where:
            self._check_where(rule)
        return self

    def _check_base(self) -> None:
        for name in self.base:
            if name not in RunSpec.model_fields:
                raise unknown_name("setting of [base]", name, set(RunSpec.model_fields) - {"methods"})
            if name in ("load", "mix", "drafters", "options") and not isinstance(self.base[name], dict):
                raise ValueError(f"base.{name} must be a table, not {self.base[name]!r}; correct it")
        for axis in self.axes.used():
            field = _FIELD.get(axis, axis)
            held = self.base.get(field, {})
            clash = axis in held if axis == "rate" and isinstance(held, dict) else field in self.base
            if clash:
                raise ValueError(f"'{axis}' is given twice, in [base] and as an axis; drop one of them")

    def _check_interleave(self) -> None:
        loads = {*(self.axes.workload or ()), self.base.get("workload", "closed")}
        loads |= {load["workload"] for load in self.axes.load or () if "workload" in load}
        if self.interleave and (loads - {"closed"} or self.base.get("backend", "engine") != "engine"):
            raise ValueError(
                "interleave takes the engine's cells of a closed load in turn; a server, or arrivals at given times, "
                "would not wait for their turn: drop interleave, or the workload or backend"
            )

    def _check_where(self, rule: Mapping[str, Any]) -> None:
        settings = rule.get("set")
        if not isinstance(settings, dict) or not settings:
            raise ValueError("a [[where]] rule needs the settings of its cells: write set = { num_prompts = 20 }, say")
        for name in settings:
            if name not in RunSpec.model_fields:
                raise unknown_name("setting in [[where]]", name, WHERE_SETTINGS)
            if name not in WHERE_SETTINGS:
                raise ValueError(f"{name} cannot be set in [[where]]; give it in [base] or as an axis")
        shared = {name: values for name, values in self.axes.used().items() if name in GROUP_AXES}
        axes = {name: wanted for name, wanted in rule.items() if name != "set"}
        arm = next((name for name in axes if name in ARM_AXES), None)
        if arm is not None:
            raise ValueError(
                f"[[where]] names '{arm}', in which compared cells differ; name one of {', '.join(GROUP_AXES)}"
            )
        self._check_rule(axes, section="where", axes=shared)

    def _check_methods(self) -> None:
        axes, drafting = self.axes, [m for m in self.axes.method if m.name != BASELINE]
        if any(m.draft_length for m in axes.method if m.name == BASELINE):
            raise ValueError(f"{BASELINE} drafts nothing; drop its draft length")
        for axis in ("draft_length", "policy"):
            if getattr(axes, axis) is not None and not drafting:
                raise ValueError(f"axis '{axis}' has nothing to act on: {BASELINE} drafts nothing; add another method")
        stated = [m.label for m in drafting if m.draft_length is not None]
        if stated and (axes.draft_length is not None or "draft_length" in self.base):
            where = "the axis" if axes.draft_length is not None else "[base]"
            raise ValueError(
                f"the draft length of '{stated[0]}' is given twice, by the method and by draft_length of {where};"
                " drop one of them"
            )
        names = {m.name for m in drafting} | {BASELINE}
        for field in ("options", "drafters"):
            held = self.base.get(field, {})
            for name in held if isinstance(held, dict) else ():
                if name.replace("_", "-") not in names:
                    raise unknown_name(f"method under base.{field}", name, names)

    def _check_loads(self) -> None:
        axes = self.axes
        for table in axes.load or ():
            for name in ("workload", "concurrency", "rate"):
                if name in table and getattr(axes, name) is not None:
                    raise ValueError(f"'{name}' is given twice, by the axis '{name}' and in the axis 'load'; drop one")
        if axes.load is not None and axes.workload is not None:
            raise ValueError(
                "axis 'load' holds options of one load pattern each: name it there, and drop axis 'workload'"
            )
        patterns = axes.workload or (self.base.get("workload", "closed"),)
        if axes.rate is not None and axes.load is None and "closed" in patterns:
            raise ValueError("axis 'rate' contradicts the closed loop, which has no rate; set workload, say to poisson")

    def _check_sampling(self) -> None:
        values = self.axes.temperature or (self.base.get("temperature", 0),)
        if any(values):
            return
        for name in ("top_p", "top_k"):
            if name in self.base:
                raise ValueError(
                    f"temperature is 0 in every cell, where {name} changes nothing; drop {name} or sample somewhere"
                )

    def _check_drafters(self) -> None:
        targets = self.axes.target or (self.base.get("target", RunSpec.model_fields["target"].default),)
        if len(targets) > 1 and self.base.get("drafters"):
            raise ValueError(
                f"base.drafters would serve {len(targets)} targets, a checkpoint belongs to one; write them under"
                ' [drafters."TARGET"]'
            )
        names = {m.name for m in self.axes.method}
        for target, held in self.drafters.items():
            if target not in targets:
                raise unknown_name("target under [drafters]", target, targets)
            for name in held:
                if name.replace("_", "-") not in names:
                    raise unknown_name(f"method under [drafters.{target!r}]", name, names)

    def _check_rule(self, rule: Mapping[str, Any], *, section: str, axes: Mapping[str, tuple[Any, ...]]) -> None:
        if not rule:
            raise ValueError(f"an [[{section}]] rule that names no axis would hold for everything; name an axis in it")
        for axis, wanted in rule.items():
            if axis not in axes:
                raise unknown_name(f"axis in [[{section}]]", axis, axes)
            if not choices(axis, wanted):
                raise ValueError(
                    f"the list of '{axis}' in [[{section}]] is empty: the rule would never hold; give a value"
                )
            for value in choices(axis, wanted):
                if not any(agrees(axis, have, value) for have in axes[axis]):
                    known = [shown(axis, have) for have in axes[axis]]
                    raise unknown_name(f"value of '{axis}' in [[{section}]]", value, known)

    def excluded(self, settings: Mapping[str, Any]) -> bool:
        """Whether a rule leaves out the combination with these values by axis."""
        return any(holds(rule, settings) for rule in self.exclude)

    def settings_at(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """The base's settings with those of the [[where]] rules that hold at these values of the shared axes."""
        found = dict(self.base)
        for rule in self.where:
            if holds({axis: wanted for axis, wanted in rule.items() if axis != "set"}, shared):
                found |= rule["set"]
        return found


def holds(rule: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether values by axis agree with all entries of a rule."""
    return all(
        axis in settings and any(agrees(axis, settings[axis], value) for value in choices(axis, wanted))
        for axis, wanted in rule.items()
    )


def choices(axis: str, wanted: Any) -> list[str]:
    """The texts of one value or of a list of values."""
    values = wanted if isinstance(wanted, list | tuple) else [wanted]
    return [shown(axis, value) for value in values]


def agrees(axis: str, have: Any, text: str) -> bool:
    """Whether an axis value is meant by the text; ``ngram`` means ``ngram:5`` too, and underscores are hyphens."""
    if axis != "method":
        return shown(axis, have) == text
    label = have.label if isinstance(have, MethodSpec) else str(have)
    named = text.replace("_", "-")
    return named in (label, label.partition(":")[0]) or parse_method(text).label == label


def read_sweep(path: Path, *, sets: Iterable[str] = ()) -> SweepSpec:
    """The sweep in a TOML file; ``sets`` are KEY=VALUE texts for its base. Errors: ConfigError, UnknownNameError."""
    return build_sweep(read_toml(path), name=path.stem, sets=sets)


def build_sweep(document: Mapping[str, Any], *, name: str, sets: Iterable[str] = ()) -> SweepSpec:
    """The sweep from its document. Errors: ConfigError or UnknownNameError, one line."""
    whole = {"name": name, **document}
    for section in ("base", "axes"):
        if not isinstance(whole.setdefault(section, {}), dict):
            raise ConfigError(f"[{section}] must be a table, not {whole[section]!r}; correct it")
    if "methods" in whole["base"]:
        raise ConfigError("methods are an axis of a sweep: list them as method = [...] under [axes]")
    if "method" not in whole["axes"]:
        raise ConfigError("a sweep needs its methods: write method = [...] under [axes]")
    axes = validated(Axes, whole["axes"], section="axes", word="axis")
    base, sets = {**whole["base"], "methods": axes.method}, list(sets)
    apply_sets(base, sets)
    if base.pop("methods") != axes.method:
        raise ConfigError("--set cannot change the methods of a sweep; choose among them with --only method=NAME")
    spec = validated(SweepSpec, {**whole, "axes": axes, "base": base})
    told = {text.partition("=")[0].strip().replace("-", "_") for text in sets}
    return spec.model_copy(update={"where": tuple(_without(rule, told) for rule in spec.where)})


def _without(rule: Mapping[str, Any], told: Iterable[str]) -> dict[str, Any]:
    """A [[where]] rule without the settings that the user gives for all cells."""
    return {**rule, "set": {name: value for name, value in rule["set"].items() if name not in told}}
