"""What the cells of a run share: one loaded target and one rendered set of prompts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any

from specbench import provenance, registry
from specbench.api import Task
from specbench.config import RunSpec
from specbench.engine.target import Target
from specbench.errors import ConfigError, TargetError
from specbench.prompting import Limits, PromptSet, Renderer
from specbench.resolve import ResolvedModel, resolve_target, silent_step
from specbench.served_target import ServedTarget, resolve_served
from specbench.types import Prompt, TargetView
from specbench.workloads._mix import mixed
from specbench.workloads.patterns import load_options

Step = Callable[[str], AbstractContextManager[object]]
"""Entered around each long step with a text for the user."""

_TASK_FILES = (".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded target, its tokenizer inside ``prompts.renderer``, and what every request of the run may ask for."""

    spec: RunSpec
    resolved: ResolvedModel
    target: Target
    prompts: PromptSet
    limits: Limits
    device: str
    dtype: str  # what the run's dtype came to on this device
    threads: int
    notes: tuple[str, ...]
    rss_before_bytes: int  # resident memory before the target was loaded
    graphs: bool = False  # what the run's graphs came to on this device

    @property
    def name(self) -> str:
        """The target's name without anything of this machine: a local folder goes by its last part."""
        given = Path(self.spec.target).expanduser()
        return (
            given.absolute().name
            if self.resolved.source in ("folder", "server") and given.is_dir()
            else self.spec.target
        )

    @property
    def view(self) -> TargetView:
        """The target as drafters see it, with one slot a user, and one for the padding of padded steps.

        Where stop tokens are ignored there are none for the drafter either: it would end its drafts at one.
        """
        view = self.target.view(
            max_rows=self.spec.concurrency + int(self.graphs),
            max_context=self.limits.max_context,
            tokenizer=self.prompts.renderer.tokenizer,
            name=self.name,
        )
        return replace(view, stop_ids=frozenset()) if self.spec.ignore_eos else view


@dataclass(slots=True)
class TargetShelf:
    """What was loaded last, kept for the sessions that follow: those that share a target load it once.

    One target at a time: the one before is let go before the next is loaded. ``loads`` and ``load_s`` count.
    """

    loads: int = 0
    load_s: float = 0.0
    notes: list[str] = field(default_factory=list)  # what was warned of while the target on the shelf was loaded
    rss_before_bytes: int = 0
    _found: dict[tuple[str, bool], tuple[ResolvedModel, Any]] = field(default_factory=dict)
    _key: tuple[str, str, str, bool, str] | None = None
    _target: Target | None = None

    def find(self, spec: RunSpec, *, step: Step) -> tuple[ResolvedModel, Any]:
        """The target's folder and its tokenizer. Errors: TargetError, UnknownNameError, CapacityError."""
        key = (spec.target, spec.trust_remote_code)
        if key not in self._found:
            if spec.backend == "engine":
                resolved = resolve_target(spec.target, progress=step, trust_remote_code=spec.trust_remote_code)
            else:
                resolved = resolve_served(spec, step=step)
            self._found[key] = (resolved, _load_tokenizer(resolved.path, spec.trust_remote_code))
        return self._found[key]

    def load(self, spec: RunSpec, resolved: ResolvedModel, *, dtype: str, device: str, step: Step) -> Target:
        """The target itself, or what stands for one on a server. Errors: TargetError, CapacityError."""
        if spec.backend != "engine":
            return ServedTarget(resolved, name=spec.target)
        key = (str(resolved.path), dtype, device, spec.trust_remote_code, spec.device_map)
        if self._target is not None and self._key == key:
            return self._target
        self.clear()
        from specbench.memory import resident_bytes

        _quiet_loading()
        self.rss_before_bytes, start_s = resident_bytes(), perf_counter()
        name = resolved.path.name if resolved.source == "folder" else spec.target
        with warnings.catch_warnings(record=True) as caught, step(f"loading {name} ({dtype}, {device})"):
            warnings.simplefilter("always", UserWarning)
            target = Target.load(
                resolved.path,
                dtype=dtype,
                device=device,
                trust_remote_code=spec.trust_remote_code,
                device_map=spec.device_map,
            )
        self.notes = [str(w.message) for w in caught if w.category is UserWarning]
        self.loads, self.load_s = self.loads + 1, self.load_s + perf_counter() - start_s
        self._key, self._target = key, target
        return target

    def clear(self) -> None:
        """Let the target go. Sessions that hold it must be gone too before its memory is free."""
        if self._target is None:
            return
        self._key, self._target = None, None
        import gc

        import torch

        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Conversations:
    """Prompts that come from elsewhere than the run's tasks. ``tasks`` are their names and versions."""

    prompts: tuple[Prompt, ...]
    tasks: tuple[tuple[str, str], ...]
    renderer: Callable[[Any], Renderer]  # from the target's tokenizer


def open_session(
    spec: RunSpec,
    *,
    step: Step = silent_step,
    shelf: TargetShelf | None = None,
    conversations: Conversations | None = None,
) -> Session:
    """Load tasks, target and prompts, in the order in which faults are cheapest to find.

    A target on the ``shelf`` is taken from there; ``conversations`` take the place of the run's tasks. Errors:
    UnknownNameError, TaskError, TargetError, ConfigError, CapacityError.
    """
    shelf = TargetShelf() if shelf is None else shelf
    device = choose_device(spec.device)
    # what a running server computes in is not told, nor what a file of the engine's own holds
    elsewhere = bool(spec.server.base_url) or spec.server.weights is not None  # weights that nobody read here
    untold = spec.dtype == "auto" and elsewhere
    dtype = "unknown" if untold else choose_dtype(spec.dtype, device=device)
    graphs = choose_graphs(spec, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        talks = _of_tasks(spec) if conversations is None else conversations
        arranged = load_options(spec.workload, spec.load).arrange(talks.prompts)
        resolved, tokenizer = shelf.find(spec, step=step)
        prompts = PromptSet(arranged, talks.renderer(tokenizer), tasks=talks.tasks)
        stated = _stated_context(resolved.config)
        if stated is not None:
            prompts.check_fits(context_limit=stated)
        threads = spec.threads or provenance.default_threads()
        _set_threads(threads)
        target = shelf.load(spec, resolved, dtype=dtype, device=device, step=step)
    prompts.check_fits(context_limit=target.context_limit)
    origin = () if elsewhere else resolved.notes
    notes = [*(str(w.message) for w in caught if w.category is UserWarning), *shelf.notes, *origin]
    return Session(
        spec=spec,
        resolved=resolved,
        target=target,
        prompts=prompts,
        limits=_limits(spec, prompts, target),
        device=device,
        dtype=dtype,
        threads=threads,
        notes=tuple(dict.fromkeys(notes)),
        rss_before_bytes=shelf.rss_before_bytes,
        graphs=graphs,
    )


def choose_device(asked: str) -> str:
    """``auto`` is CUDA where torch sees it, else the CPU."""
    if asked != "auto":
        return asked
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def choose_graphs(spec: RunSpec, *, device: str) -> bool:
    """``auto`` is on where the run has one CUDA device. Errors: ConfigError where they are asked for on several."""
    if spec.graphs is True and spec.device_map != "none":
        raise ConfigError(
            f"graphs=true with device_map={spec.device_map}: steps over several devices are not captured; drop one"
        )
    return device.startswith("cuda") and spec.device_map == "none" if spec.graphs == "auto" else bool(spec.graphs)


def choose_dtype(asked: str, *, device: str) -> str:
    """``auto`` is bfloat16 where the device computes in it, else float32: emulated bfloat16 is slower than float32."""
    if asked != "auto":
        return asked
    from specbench.kernels.processor import has_native_bfloat16

    return "bfloat16" if device.startswith("cuda") or has_native_bfloat16() else "float32"


def load_task(name: str) -> Task:
    """A task by its name, or the one in a prompt file. Errors: UnknownNameError with the nearest name; TaskError."""
    if name.endswith(_TASK_FILES) or "/" in name or Path(name).is_file():
        found: Task = registry.load("tasks", "file")(name)
        return found
    if name == "file":
        raise ConfigError("task 'file' stands for your own prompts; give the path, for example --task prompts.jsonl")
    named: Task = registry.load("tasks", name)
    return named


def _of_tasks(spec: RunSpec) -> Conversations:
    tasks = [load_task(name) for name in spec.tasks]
    return Conversations(
        prompts=tuple(_conversations(spec, tasks)),
        tasks=tuple((task.name, task.version) for task in tasks),
        renderer=lambda tokenizer: Renderer(tokenizer, thinking=spec.thinking),
    )


def _conversations(spec: RunSpec, tasks: Sequence[Task]) -> Sequence[Prompt]:
    """Which prompts and in which order: the tasks in turn, or in the mix that is asked for."""
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tasks are called '{name}'; rename one of the files")
    if spec.mix:
        return mixed(dict(zip(spec.tasks, tasks)), spec.mix, limit=spec.num_prompts, seed=spec.seed)
    return _interleave(tasks, limit=spec.num_prompts, seed=spec.seed)


def _interleave(tasks: Sequence[Task], *, limit: int | None, seed: int) -> tuple[Prompt, ...]:
    """The first prompt of every task, then the second of every task, ...: domains are mixed through the whole run."""
    columns = [task.prompts(limit=limit, seed=seed) for task in tasks]
    return tuple(prompt for prompt in chain.from_iterable(zip_longest(*columns)) if prompt is not None)


def _load_tokenizer(path: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a tokenizer class raises on a damaged folder
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TargetError(f"the tokenizer of {path.name} cannot be loaded: {reason}; fetch the model again") from error


def _stated_context(config: dict[str, Any]) -> int | None:
    text = config.get("text_config") or config
    found = text.get("max_position_embeddings", text.get("n_positions"))
    return int(found) if found else None


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _quiet_loading() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()  # the step says what is being loaded


def _limits(spec: RunSpec, prompts: PromptSet, target: Target) -> Limits:
    wanted = spec.max_context or prompts.context_needed(spec.max_new_tokens)
    limits = Limits(
        max_new_tokens=spec.max_new_tokens,
        max_context=min(wanted, target.context_limit),
        ignore_eos=spec.ignore_eos,
        stop_ids=target.stop_ids,
        sampling=spec.sampling,
        seed=spec.seed,
        shortest=load_options(spec.workload, spec.load).shortest,
    )
    prompts.check_fits(context_limit=limits.max_context)
    return limits
