"""From a sweep's axes to its cells: each with a key of its content, in groups that are measured together, in order.

A group holds the arms that are compared: the same target, prompts, load, sampling, seed and repeat, and plain decoding
as their control. Groups of one target are neighbours, so that it is loaded once; inside that the repeats make blocks,
and groups and arms run in a seeded order, rotated from block to block: drift of the machine hits all arms alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from specbench.checkpoints import packaged_for
from specbench.config import BASELINE, MethodSpec, RunSpec, validated
from specbench.errors import ConfigError, UnknownNameError, unknown_name
from specbench.resolve import find_target, hash_template, hash_tokenizer, hash_weights, resolve_drafter, silent_step
from specbench.sweep_spec import ARM_AXES, GROUP_AXES, SweepSpec, agrees, shown
from specbench.workloads.patterns import load_options

T = TypeVar("T")

KEY_VERSION = 1
_NOT_CONTENT = {"out", "baseline", "force_cost_table", "trust_remote_code"}
_TASK_FILES = (".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One cell: a run of one method. ``settings`` are its values by axis, as users write them."""

    key: str  # 16 hex digits over everything that is asked of the cell
    group: str  # the key of its group
    run: RunSpec
    repeat: int  # 0-based block
    settings: dict[str, str]

    @property
    def method(self) -> MethodSpec:
        """The contestant."""
        return self.run.methods[0]

    @property
    def is_control(self) -> bool:
        """Whether the cell is plain decoding."""
        return self.method.name == BASELINE


@dataclass(frozen=True, slots=True)
class Group:
    """Arms that are judged against the same control, in the order of measurement, or measured in turn."""

    key: str
    cells: tuple[SweepCell, ...]
    interleave: bool = False  # measured in turn, step by step

    @property
    def run(self) -> RunSpec:
        """What all arms share is the same in each of them."""
        return self.cells[0].run

    @property
    def control(self) -> SweepCell | None:
        """Plain decoding, where the group has it."""
        return next((cell for cell in self.cells if cell.is_control), None)


@dataclass(slots=True)
class Contents:
    """What the names of a sweep stand for: files of this disk by content, everything else by name.

    A name that is fetched stays a name, so that the key of a cell is the same before and after.
    """

    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def target(self, name: str) -> str:
        """A folder by its weights, tokenizer and template. Errors: TargetError for a folder without weights."""
        folder = Path(name).expanduser()
        if (folder / "config.json").is_file():
            return self._of("target", name, lambda: _folder_hash(folder))
        known = find_target(name)
        return known.name if known is not None and name.lower() == known.name else known.hub if known else name

    def task(self, name: str) -> str:
        """A prompt file by its bytes, a task by its name."""
        path = Path(name)
        if name.endswith(_TASK_FILES) or path.is_file():
            return self.file(path)
        return name

    def drafter(self, name: str | None, *, target: str, method: str) -> str | None:
        """A checkpoint folder, named or packaged, by its content. None: the method's own, or a published one."""
        if name is None:
            name = self._of("packaged", f"{target}/{method}", lambda: _packaged(target, method)) or None
        if name is None or not (Path(name).expanduser() / "config.json").is_file():
            return name
        path = name
        return self._of("drafter", path, lambda: resolve_drafter(path, progress=silent_step).sha256)

    def file(self, path: Path) -> str:
        """The SHA-256 of a file; its name where it is not there, which is said when the cell is run."""
        return self._of("file", str(path), lambda: _file_hash(path) if path.is_file() else str(path))

    def _of(self, kind: str, name: str, compute: Callable[[], str]) -> str:
        if (kind, name) not in self._known:
            self._known[kind, name] = compute()
        return self._known[kind, name]


def _packaged(target: str, method: str) -> str:
    found = packaged_for(target=target, method=method)
    return "" if found is None else str(found.path)


def _folder_hash(folder: Path) -> str:
    return "+".join([hash_weights(folder), hash_tokenizer(folder) or "none", hash_template(folder) or "none"])


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cell_key(run: RunSpec, *, repeat: int, contents: Contents) -> str:
    """Content address of a cell: equal exactly when everything asked of it is, and its repeat.

    Settings at their defaults are left out, so that a new setting leaves the keys of older sweeps as they are.
    """
    asked = run.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_CONTENT)
    method = run.methods[0]
    drafter = contents.drafter(run.drafters.get(method.name), target=run.target, method=method.name)
    asked |= {"methods": [method.label], "target": contents.target(run.target)}
    asked |= {"tasks": [contents.task(name) for name in run.tasks], "drafters": drafter}
    if run.mix:
        asked["mix"] = {contents.task(name): weight for name, weight in run.mix.items()}
    for name in ("cost_table", "calibration"):
        if name in asked and asked[name] != "off":
            asked[name] = contents.file(Path(asked[name]))
    if "server" in asked:
        asked["server"] = run.server.content()
    asked["load"] = load_options(run.workload, run.load).described()
    text = json.dumps([KEY_VERSION, repeat, asked], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --------------------------------------------------------------------------------------------------- expansion


def expand(spec: SweepSpec, *, contents: Contents | None = None) -> list[Group]:
    """All groups of the sweep in the order in which they are measured; no cell appears twice.

    Errors: ConfigError or UnknownNameError for a value that no run takes, cells that are the same, or none left.
    """
    contents = Contents() if contents is None else contents
    used = spec.axes.used()
    names = [axis for axis in GROUP_AXES if axis in used]
    groups: list[Group] = []
    for values in product(*(used[axis] for axis in names)):
        groups += _groups(spec, dict(zip(names, values)), contents)
    if not groups:
        raise ConfigError(f"sweep '{spec.name}': the [[exclude]] rules leave out every cell; drop one")
    _check_distinct(groups)
    return list(_ordered(groups, order_seed=spec.order_seed))


def _groups(spec: SweepSpec, shared: dict[str, Any], contents: Contents) -> list[Group]:
    """The group with these values, once a repeat; none where every arm is excluded."""
    arms = list(_arms(spec, shared))
    wanted = any(m.name == BASELINE for m in spec.axes.method)
    explicit = wanted and not spec.excluded({**shared, "method": MethodSpec(name=BASELINE)})
    if not arms and not explicit:
        return []
    controlled = explicit or spec.base.get("baseline", True)
    if controlled:
        arms.insert(0, {"method": MethodSpec(name=BASELINE)})
    runs = [(arm, _run(spec, shared, arm, baseline=controlled)) for arm in arms]
    plain = _run(spec, shared, {"method": MethodSpec(name=BASELINE)}, baseline=True)
    made = []
    for repeat in range(spec.repeats):
        group = cell_key(plain, repeat=repeat, contents=contents)
        cells = tuple(
            SweepCell(
                key=cell_key(run, repeat=repeat, contents=contents),
                group=group,
                run=run,
                repeat=repeat,
                settings=_settings(run, repeat=repeat),
            )
            for _, run in runs
        )
        made.append(Group(group, cells, spec.interleave))
    return made


def _arms(spec: SweepSpec, shared: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is compared inside a group, the control apart: every combination of the arms' axes that is not excluded."""
    used = spec.axes.used()
    names = [axis for axis in ARM_AXES if axis in used]
    for values in product(*(used[axis] for axis in names)):
        arm = dict(zip(names, values))
        if arm["method"].name != BASELINE and not spec.excluded({**shared, **arm}):
            yield arm


def _run(spec: SweepSpec, shared: Mapping[str, Any], arm: Mapping[str, Any], *, baseline: bool) -> RunSpec:
    """The run of one cell. Of settings by method only those of its own are kept; plain decoding needs no others."""
    axes = {name: value for name, value in shared.items() if name not in ("task", "load", "rate")}
    document = {**spec.settings_at(shared), **axes}
    if "task" in shared:
        document["tasks"] = shared["task"]
    load = dict(document.get("load", {}))
    table = dict(shared.get("load", {}))
    document |= {name: table.pop(name) for name in ("workload", "concurrency") if name in table}
    load |= table | ({"rate": shared["rate"]} if "rate" in shared else {})
    document["load"] = load
    method: MethodSpec = arm["method"]
    length = arm.get("draft_length", document.pop("draft_length", None))
    if method.draft_length is None and length is not None:
        method = MethodSpec(name=method.name, draft_length=length)
    if "policy" in arm:
        document["policy"] = arm["policy"]
    drafters = document.get("drafters", {}) | spec.drafters.get(document.get("target", _default("target")), {})
    for field_name, held in (("drafters", drafters), ("options", document.get("options", {}))):
        document[field_name] = {k: v for k, v in held.items() if k.replace("_", "-") == method.name}
    if method.name == BASELINE:
        method = MethodSpec(name=BASELINE)
        for name in ("policy", "cost_table", "force_cost_table", "calibration", "synthetic_tau", "synthetic_rates"):
            document.pop(name, None)
    run = validated(RunSpec, {**document, "methods": (method,), "baseline": baseline})
    if method.draft_length is not None:
        run.synthetic_for(method.draft_length)
    return run


def _default(name: str) -> Any:
    return RunSpec.model_fields[name].default


def _settings(run: RunSpec, *, repeat: int) -> dict[str, str]:
    found: dict[str, Any] = {
        "target": run.target,
        "task": run.tasks,
        "workload": run.workload,
        "load": run.load,
        "concurrency": run.concurrency,
        "temperature": run.temperature,
        "seed": run.seed,
        "method": run.methods[0],
        "repeat": repeat + 1,
    }
    if run.methods[0].name != BASELINE:
        found["policy"] = run.policy
    if "rate" in run.load:
        found["rate"] = run.load["rate"]
    if run.methods[0].draft_length is not None:
        found["draft_length"] = run.methods[0].draft_length
    return {axis: shown(axis, value) for axis, value in found.items()}


def _check_distinct(groups: Iterable[Group]) -> None:
    seen: dict[str, SweepCell] = {}
    for cell in (cell for group in groups for cell in group.cells):
        other = seen.setdefault(cell.key, cell)
        if other is not cell:
            one, two = label(other), label(cell)
            raise ConfigError(f"the same cell is there twice: '{one}' and '{two}'; drop one of the values that say so")


def label(cell: SweepCell, axes: Sequence[str] = ("method", *GROUP_AXES, "repeat")) -> str:
    """The cell in words: its values on these axes, the method first and without its name."""
    parts = [cell.settings["method"]]
    parts += [f"{axis}={cell.settings[axis]}" for axis in axes if axis != "method" and cell.settings.get(axis)]
    return " ".join(parts)


def varying(groups: Sequence[Group]) -> list[str]:
    """The axes on which the cells of a sweep differ, the method apart; what a short label needs to name."""
    cells = [cell for group in groups for cell in group.cells]
    drafting = [cell for cell in cells if not cell.is_control]
    found = [axis for axis in (*GROUP_AXES, "repeat") if len({cell.settings.get(axis) for cell in cells}) > 1]
    return found + (["policy"] if len({cell.settings["policy"] for cell in drafting}) > 1 else [])


# ------------------------------------------------------------------------------------------------------- order


def _ordered(groups: Sequence[Group], *, order_seed: int) -> Iterator[Group]:
    """By target, then by block of repeats; inside a block groups and arms in seeded order, rotated by the block."""
    targets = dict.fromkeys(group.run.target for group in groups)
    for target in targets:
        mine = [group for group in groups if group.run.target == target]
        for repeat in sorted({group.cells[0].repeat for group in mine}):
            block = [group for group in mine if group.cells[0].repeat == repeat]
            for group in _shuffled(block, repeat, lambda g: f"{order_seed}/{_place(g.cells[0])}"):
                base = f"{order_seed}/{_place(group.cells[0])}"
                arms = _shuffled(group.cells, repeat, lambda cell, base=base: f"{base}/{_arm(cell)}")  # type: ignore[misc]
                yield replace(group, cells=tuple(arms))


def _place(cell: SweepCell) -> str:
    """What names a group in every block: the order in one block is that of the others, rotated."""
    return json.dumps([cell.settings.get(axis) for axis in GROUP_AXES])


def _arm(cell: SweepCell) -> str:
    return f"{cell.settings['method']}/{cell.settings.get('policy')}"


def _shuffled(items: Sequence[T], turn: int, name: Callable[[T], str]) -> list[T]:
    ranked = sorted(items, key=lambda item: hashlib.sha256(name(item).encode()).digest())
    start = turn % len(ranked) if ranked else 0
    return ranked[start:] + ranked[:start]


# --------------------------------------------------------------------------------------------------- selection


def select(groups: Sequence[Group], expressions: Iterable[str]) -> list[Group]:
    """The cells that all expressions name, with the controls that they are judged by.

    An expression is AXIS=VALUE or AXIS!=VALUE, several values separated by commas. Errors: ConfigError,
    UnknownNameError for an axis or value that no cell has.
    """
    cells = [cell for group in groups for cell in group.cells]
    tests = [_test(text, cells) for text in expressions]
    chosen = []
    for group in groups:
        wanted = {cell.key for cell in group.cells if all(test(cell) for test in tests)}
        if wanted:
            kept = tuple(cell for cell in group.cells if cell.key in wanted or cell.is_control)
            chosen.append(replace(group, cells=kept))
    if not chosen:
        raise ConfigError(f"no cell is {' and '.join(expressions)}; see the cells with --dry-run")
    return chosen


def _test(text: str, cells: Sequence[SweepCell]) -> Callable[[SweepCell], bool]:
    name, equals, given = text.partition("=")
    negated = name.endswith("!")
    axis = name.removesuffix("!").strip().replace("-", "_")
    if not equals or not axis or not given.strip():
        raise ConfigError(f"--only '{text}' is not AXIS=VALUE; write for example --only method=ngram")
    known = sorted({name for cell in cells for name in cell.settings})
    if axis not in known:
        raise unknown_name("axis", axis, known)
    values = [value.strip() for value in given.split(",")]
    have = {cell.settings[axis] for cell in cells if axis in cell.settings}
    for value in values:
        if not any(_agrees(axis, one, value) for one in have):
            raise _no_such_value(axis, value, have)
    return lambda cell: any(_agrees(axis, cell.settings.get(axis), value) for value in values) != negated


def _agrees(axis: str, have: str | None, value: str) -> bool:
    if have is None:
        return False
    if axis == "method":
        return agrees(axis, have, value)
    try:
        return have == value or float(have) == float(value)
    except ValueError:
        return False


def _no_such_value(axis: str, value: str, have: Iterable[str]) -> UnknownNameError:
    return unknown_name(f"value of '{axis}'", value, have)
