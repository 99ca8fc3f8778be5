"""lm-eval: its model ``specbench``, and an evaluation of tasks with the score of every item.

Importing this module registers the model: `lm_eval.simple_evaluate(model="specbench", model_args="method=ngram")`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.tasks import TaskManager

from specbench.config import build_run
from specbench.errors import ConfigError, TaskError, unknown_name
from specbench.quality.measured import MeasuredTexts
from specbench.quality.texts import TextRequest, TextServer
from specbench.records.schema import GradedRow
from specbench.resolve import silent_step
from specbench.session import TargetShelf
from specbench.types import Sampling

DEFAULT_NEW_TOKENS = 256  # where a task names no limit, as lm-eval's own models do
_UNDERSTOOD = {"until", "do_sample", "temperature", "top_p", "top_k", "max_gen_toks", "max_new_tokens", "max_tokens"}


@register_model("specbench")
class SpecbenchLM(LM):  # type: ignore[misc]
    """lm-eval's view of a server of texts. Without ``server`` the engine serves: settings are those of a run.

    Settings by name, as of `specbench.config.RunSpec`, with ``method``; sampling and lengths are the tasks' own unless
    ``override`` says otherwise. Errors: ConfigError, UnknownNameError.
    """

    def __init__(
        self, server: TextServer | None = None, *, override: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        super().__init__()
        for name in ("batch_size", "max_batch_size"):  # lm-eval hands its own along
            settings.pop(name, None)
        self.server = _engine(settings) if server is None else server
        self.override = dict(override or {})

    @property
    def tokenizer_name(self) -> str:
        """Names the chat template in lm-eval's cache of rendered requests."""
        return str(getattr(self.server.tokenizer, "name_or_path", "")).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The target's own. Errors: ConfigError where one is asked for and there is none."""
        if not chat_template:
            return None
        found = getattr(self.server.tokenizer, "chat_template", None)
        if not found:
            raise ConfigError("the target's tokenizer carries no chat template; leave out --chat")
        return str(found)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the target's template writes it."""
        return str(
            self.server.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """All answers at once, so that they are served together."""
        return self.server.generate(numbered([text_request(one, self.override) for one in requests]))

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """By the target alone: no method changes it."""
        return self.server.loglikelihood([(str(one.args[0]), str(one.args[1])) for one in requests])

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log probability of whole texts after the start token. Errors: CapacityError beyond the context."""
        return [found for found, _ in self.server.loglikelihood([("", str(one.args[0])) for one in requests])]


def _engine(settings: Mapping[str, Any]) -> MeasuredTexts:
    """A server for one method from settings of a run."""
    if "method" not in settings:
        raise ConfigError("model_args of the lm-eval model 'specbench' name no method; write for example method=ngram")
    given = {name: value for name, value in settings.items() if name != "method" and value is not None}
    spec = build_run(flags={"methods": settings["method"], "baseline": False, **given})
    return MeasuredTexts(spec, spec.methods[0], TargetShelf(), silent_step)


def text_request(instance: Any, override: Mapping[str, Any]) -> TextRequest:
    """An lm-eval request as ours. Errors: ConfigError for a way of generating that the engine does not have."""
    prompt, asked = instance.args
    settings = {**dict(asked), **override}
    for name in settings:
        if name not in _UNDERSTOOD:
            raise ConfigError(
                f"task '{instance.task_name}' asks for generation setting '{name}', which is not served; known: "
                f"{', '.join(sorted(_UNDERSTOOD))}"
            )
    until = settings.get("until") or ()
    limits = [settings[name] for name in ("max_gen_toks", "max_new_tokens", "max_tokens") if name in settings]
    return TextRequest(
        task=str(instance.task_name),
        id=f"{instance.doc_id}.{instance.idx}",
        prompt=str(prompt),
        max_new_tokens=int(limits[-1]) if limits else DEFAULT_NEW_TOKENS,
        sampling=_sampling(settings),
        stops=(until,) if isinstance(until, str) else tuple(until),
    )


def numbered(requests: Sequence[TextRequest]) -> list[TextRequest]:
    """An item that is asked again gets ``#2``, ``#3``, ... behind its id: a request, and draws, of its own."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for one in requests:
        seen[one.task, one.id] += 1
        times = seen[one.task, one.id]
        found.append(one if times == 1 else replace(one, id=f"{one.id}#{times}"))
    return found


def _sampling(settings: Mapping[str, Any]) -> Sampling:
    temperature = float(settings.get("temperature") or 0.0)
    if not settings.get("do_sample", temperature > 0):
        return Sampling()
    top_k = int(settings.get("top_k") or 0)
    return Sampling(temperature or 1.0, float(settings.get("top_p") or 1.0), top_k if top_k > 0 else None)


# --------------------------------------------------------------------------------------------------- evaluation


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Which tasks and how. ``include_path`` holds task files of the user's own; ``override`` generation settings."""

    tasks: tuple[str, ...]
    include_path: Path | None = None
    num_fewshot: int | None = None
    limit: int | None = None
    chat: bool = False
    override: Mapping[str, Any] = field(default_factory=dict)
    run_code: bool = False  # let tasks run what the model wrote


def manager(asked: Evaluation) -> TaskManager:
    """The index of tasks. Errors: UnknownNameError with the nearest task; ConfigError for a path that is none."""
    if asked.include_path is not None and not asked.include_path.is_dir():
        raise ConfigError(f"--include-path {asked.include_path} is no folder; name one that holds task files (.yaml)")
    own = TaskManager(include_path=str(asked.include_path), include_defaults=False) if asked.include_path else None
    if own is not None and all(name in own.all_tasks for name in asked.tasks):
        return own  # the bundled ones, thousands of files, need not be read
    every = TaskManager(include_path=None if own is None else str(asked.include_path))
    for name in asked.tasks:
        if name not in every.all_tasks:
            raise unknown_name("lm-eval task", name, every.all_tasks)
    return every


def load_tasks(index: TaskManager, names: Sequence[str]) -> dict[str, Any]:
    """The tasks with their data. Errors: TaskError when the data cannot be had, or nothing is generated."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            found |= index.load([name])["tasks"]
        except Exception as error:  # whatever a task file or the data's host raises
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise TaskError(
                f"lm-eval task '{name}' cannot be loaded ({said}); its data may need the network or a further package, "
                "tasks of your own with local data are read from --include-path"
            ) from error
    for name, task in found.items():
        if task.OUTPUT_TYPE != "generate_until":
            raise TaskError(
                f"lm-eval task '{name}' compares likelihoods of given answers ({task.OUTPUT_TYPE}): nothing is "
                "generated, so speculation cannot change it; choose a task that generates"
            )
    return found


def evaluate(server: TextServer, index: TaskManager, asked: Evaluation) -> list[GradedRow]:
    """The score of every item under every metric and filter that gives one number an item.

    Errors: SpecbenchError of the server; TaskError.
    """
    tasks = load_tasks(index, asked.tasks)
    results = lm_eval.simple_evaluate(
        model=SpecbenchLM(server, override=asked.override),
        tasks=list(tasks.values()),
        num_fewshot=asked.num_fewshot,
        limit=asked.limit,
        log_samples=True,
        bootstrap_iters=0,
        apply_chat_template=asked.chat,
        task_manager=index,
        confirm_run_unsafe_code=asked.run_code,
    )
    assert results is not None, "a single process gets the results"
    rows = [row for name, samples in results["samples"].items() for row in graded_rows(name, samples)]
    if not rows:
        raise TaskError(f"no metric of {', '.join(tasks)} gives a number for each item; nothing can be paired")
    return rows


def graded_rows(task: str, samples: Sequence[Mapping[str, Any]]) -> list[GradedRow]:
    """lm-eval's samples of one task as rows, metrics without a number for each item left out."""
    scores: dict[tuple[str, str], dict[str, float]] = {}
    for sample in samples:
        for metric in sample["metrics"]:
            value = sample.get(metric)
            if isinstance(value, bool | int | float) and math.isfinite(value):
                key = (str(metric), str(sample["filter"]))
                scores.setdefault(key, {})[str(sample["doc_id"])] = float(value)
    items = {str(sample["doc_id"]) for sample in samples}
    whole = {key: found for key, found in scores.items() if set(found) == items}
    return [GradedRow(task=task, metric=metric, filter=how, scores=found) for (metric, how), found in whole.items()]
