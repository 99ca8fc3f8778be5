"""``quality``: task accuracy with and without speculation, graded by lm-eval."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from specbench.cli import options as o

_GRADER = "Grader"

Tasks = Annotated[
    list[str], Option("--tasks", help="lm-eval tasks; repeatable, or separated by commas.", rich_help_panel=_GRADER)
]
IncludePath = Annotated[
    Path | None, Option("--include-path", help="Folder with task files of your own.", rich_help_panel=_GRADER)
]
Shots = Annotated[
    int | None, Option("--num-fewshot", min=0, help="Examples shown. \\[the task's]", rich_help_panel=_GRADER)
]
Limit = Annotated[int | None, Option(min=1, help="Items of each task. \\[all]", rich_help_panel=_GRADER)]
Chat = Annotated[bool, Option("--chat", help="Render prompts by the target's chat template.", rich_help_panel=_GRADER)]
RunCode = Annotated[
    bool, Option("--run-code", help="Let tasks run the code that the model wrote.", rich_help_panel=_GRADER)
]
NewTokens = Annotated[int | None, Option("--max-new-tokens", min=1, help="Of an answer. \\[the task's]")]
Temperature = Annotated[float | None, Option("--temperature", min=0, help="0 is greedy. \\[the task's]")]


def quality(
    tasks: Tasks,
    method: o.Method = None,
    include_path: IncludePath = None,
    num_fewshot: Shots = None,
    limit: Limit = None,
    chat: Chat = False,
    run_code: RunCode = False,
    max_new_tokens: NewTokens = None,
    temperature: Temperature = None,
    drafter: o.Drafter = None,
    policy: o.Policy = None,
    target: o.Target = None,
    draft_length: o.DraftLength = None,
    concurrency: o.Concurrency = None,
    seed: o.Seed = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    threads: o.Threads = None,
    kv_memory: o.KvMemory = None,
    prefill_chunk: o.PrefillChunk = None,
    trust_remote_code: o.TrustRemoteCode = None,
    base_url: o.BaseUrl = None,
    launch: o.Launch = None,
    engine_python: o.EnginePython = None,
    engine_weights: o.EngineWeights = None,
    model: o.ServerModel = None,
    backend: o.Backend = None,
    set_: o.Set = None,
    config: o.Config = None,
    out: o.Out = None,
    no_baseline: o.NoBaseline = False,
) -> None:
    """Accuracy with and without speculation, paired by item: `specbench quality --tasks gsm8k -m ngram --limit 50`."""
    flags = o.run_flags({**locals(), "temperature": None, "max_new_tokens": None})
    from specbench.config import build_run
    from specbench.errors import ConfigError
    from specbench.runner import check_names

    spec = build_run(config=config, sets=set_ or [], flags=flags)
    check_names(spec)
    override: dict[str, Any] = {} if max_new_tokens is None else {"max_gen_toks": max_new_tokens}
    if temperature is not None:
        override |= {"temperature": temperature, "do_sample": temperature > 0}
    try:
        from specbench.quality.harness import Evaluation
    except ImportError as error:
        raise ConfigError(
            f"'specbench quality' grades with lm-eval, which is not installed ({error}); install it with "
            "pip install 'specbench-llm[quality]'"
        ) from None
    names = tuple(name for text in tasks for name in text.split(",") if name)
    asked = Evaluation(names, include_path, num_fewshot, limit, chat, override, run_code)
    try:
        _grade(spec, asked)
    except KeyboardInterrupt:
        typer.echo("interrupted: methods that were graded to the end are in the records", err=True)
        raise typer.Exit(130) from None


def _grade(spec: Any, asked: Any) -> None:
    """Grade every method, print the table, say where the records are."""
    from rich.console import Console

    from specbench.cli.live import LiveProgress
    from specbench.cli.outcome import PLAIN_WIDTH
    from specbench.quality.harness import evaluate, load_tasks, manager
    from specbench.quality.job import QualityRun
    from specbench.report.quality_table import quality_table
    from specbench.runner import RunProgress

    index = manager(asked)
    loaded = load_tasks(index, asked.tasks)
    versions = {name: str(getattr(task, "VERSION", "unversioned")) for name, task in loaded.items()}
    labels = [method.label for method in spec.cells()]
    with LiveProgress() as live:

        def follow(label: str, drive: Any) -> None:
            cell = labels.index(label)
            live.update(RunProgress(cell, len(labels), label, drive.done, drive.total, drive.tokens, drive.elapsed_s))

        run = QualityRun(
            spec,
            lambda server: evaluate(server, index, asked),
            versions,
            command=["specbench", *sys.argv[1:]],
            step=live.step,
            on_progress=follow,
        )
        made = list(run.records())
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(quality_table(made))
    console.print(f"{len(made)} records in {spec.out}", markup=False, highlight=False, soft_wrap=True)
