"""``train``: prompts to answers, answers to features, features to a drafter, a drafter to a checkpoint."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from specbench.cli import options as o

app = typer.Typer(help="Train drafters for a target: prepare, features, fit, export.", no_args_is_help=True)

_SOURCES, _ANSWERS, _SERVER = "Prompts", "Answers", "Server"
_EVERY_S = 30.0  # between two lines of progress where there is no terminal

Dtype = Annotated[str | None, Option("--dtype", metavar="auto|bfloat16|float32", help="[auto]")]
Device = Annotated[str | None, Option("--device", metavar="auto|cpu|cuda[:i]", help="[auto]")]
Threads = Annotated[int | None, Option("--threads", help="Torch threads. [by the machine]")]


class Terminal:
    """A stage's screen on stderr: lines that stay, and one line of progress that is renewed.

    Where stderr is no terminal the progress is a plain line every half minute.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._width = 0
        self._last_s = time.monotonic()
        self._shown = False

    def say(self, text: str) -> None:
        """One line that stays."""
        self._clear()
        print(" ".join(text.split()), file=sys.stderr, flush=True)

    def show(self, progress: Any) -> None:
        """A `specbench.train.progress.Progress`."""
        now = time.monotonic()
        if now - self._last_s < (0.2 if self._live else _EVERY_S):
            return
        self._last_s = now
        line = progress.line()
        if not self._live:
            print(line, file=sys.stderr, flush=True)
            return
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def _clear(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr)
            self._width = 0


@app.command("prepare")
def prepare(
    out: Annotated[Path, Option("--out", "-o", help="Folder for the shards; the same folder goes on after a stop.")],
    target: o.Target = None,
    task: Annotated[
        list[str] | None, Option("--task", "-t", help="Prompts of a task; repeatable.", rich_help_panel=_SOURCES)
    ] = None,
    prompts: Annotated[
        list[str] | None,
        Option("--prompts", metavar="FILE.jsonl", help="Prompts of a file; repeatable.", rich_help_panel=_SOURCES),
    ] = None,
    hub: Annotated[
        str | None,
        Option(
            "--hub",
            metavar="ID|FOLDER",
            help="A data set of conversations, e.g. mlabonne/open-perfectblend.",
            rich_help_panel=_SOURCES,
        ),
    ] = None,
    hub_split: Annotated[str | None, Option("--hub-split", help="[train]", rich_help_panel=_SOURCES)] = None,
    num_prompts: Annotated[
        int | None, Option("--num-prompts", help="Of each source at most. [all]", rich_help_panel=_SOURCES)
    ] = None,
    synthesise: Annotated[
        int | None,
        Option("--synthesise", metavar="N", help="User turns that the target writes itself.", rich_help_panel=_SOURCES),
    ] = None,
    domains: Annotated[
        str | None, Option("--domains", help="Of the written turns. [math,code,chat]", rich_help_panel=_SOURCES)
    ] = None,
    turn_temperature: Annotated[
        float | None, Option("--turn-temperature", help="Of the written turns. [0.8]", rich_help_panel=_SOURCES)
    ] = None,
    max_turn_tokens: Annotated[
        int | None, Option("--max-turn-tokens", help="Of a written turn at most. [128]", rich_help_panel=_SOURCES)
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        Option(
            "--evaluation",
            metavar="TASK|FILE",
            help="Prompts to keep out; repeatable. [every task that can be had]",
            rich_help_panel=_SOURCES,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, Option("--max-new-tokens", help="A turn at most. [256]", rich_help_panel=_ANSWERS)
    ] = None,
    max_context: Annotated[
        int | None, Option("--max-context", help="Tokens of a conversation at most. [2048]", rich_help_panel=_ANSWERS)
    ] = None,
    temperature: Annotated[float | None, Option("--temperature", help="[1]", rich_help_panel=_ANSWERS)] = None,
    top_p: Annotated[float | None, Option("--top-p", help="[1]", rich_help_panel=_ANSWERS)] = None,
    top_k: Annotated[int | None, Option("--top-k", help="[all]", rich_help_panel=_ANSWERS)] = None,
    greedy_share: Annotated[
        float | None, Option("--greedy-share", help="Answered at temperature 0. [0.25]", rich_help_panel=_ANSWERS)
    ] = None,
    heldout_share: Annotated[
        float | None, Option("--heldout-share", help="Never trained on. [0.02]", rich_help_panel=_ANSWERS)
    ] = None,
    target_tokens: Annotated[
        int | None, Option("--target-tokens", help="Stop once so many are written.", rich_help_panel=_ANSWERS)
    ] = None,
    features: Annotated[
        Path | None,
        Option("--features", metavar="FOLDER", help="Keep the states in a store meanwhile.", rich_help_panel=_ANSWERS),
    ] = None,
    taps: Annotated[
        str | None,
        Option("--taps", metavar="K,K,...", help="Which states. [five, spread evenly]", rich_help_panel=_ANSWERS),
    ] = None,
    seed: Annotated[int | None, Option("--seed", help="Keys every draw. [0]", rich_help_panel=_ANSWERS)] = None,
    thinking: Annotated[
        str | None, Option("--thinking", metavar="default|on|off", help="Template's.", rich_help_panel=_ANSWERS)
    ] = None,
    rows: Annotated[
        int | None, Option("--rows", help="Sequences written at once. [64]", rich_help_panel=_ANSWERS)
    ] = None,
    block: Annotated[
        int | None, Option("--block", help="Prompts of a shard: what a stop loses. [512]", rich_help_panel=_ANSWERS)
    ] = None,
    base_url: Annotated[
        str | None,
        Option(
            "--base-url",
            metavar="URL",
            help="Answers by an OpenAI-compatible server (key: SPECBENCH_API_KEY).",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    server_model: Annotated[
        str | None, Option("--server-model", help="The target's name at the server.", rich_help_panel=_SERVER)
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    kv_memory: Annotated[
        str | None, Option("--kv-memory", metavar="SIZE", help="Cache budget. [what a block needs]")
    ] = None,
    prefill_chunk: o.PrefillChunk = None,
    trust_remote_code: o.TrustRemoteCode = None,
) -> None:
    """Have the target answer prompts: `specbench train prepare --synthesise 1000 --out answers`."""
    given = {name: value for name, value in locals().items() if value is not None}
    if taps is not None:
        given["taps"] = tuple(parse_numbers(taps, flag="--taps"))
    given["tasks"] = [*given.pop("task", []), *given.pop("prompts", [])]

    def work(screen: Terminal) -> None:
        from specbench.config import validated
        from specbench.resolve import rich_step
        from specbench.train.prepare import prepare as run_stage
        from specbench.train.spec import PrepareSpec

        run_stage(validated(PrepareSpec, given), screen=screen, step=rich_step)

    _resumable(work)


@app.command("features")
def features(
    data: Annotated[list[Path], Option("--data", help="Folder of `train prepare`; repeatable.")],
    out: Annotated[Path, Option("--out", "-o", help="Folder of the store; the same folder goes on after a stop.")],
    target: o.Target = None,
    taps: Annotated[
        str | None,
        Option("--taps", metavar="K,K,...", help="Hidden states to keep: 0 embeddings .. n. [five, spread evenly]"),
    ] = None,
    batch_tokens: Annotated[int | None, Option("--batch-tokens", help="Through the target at once. [auto]")] = None,
    shard_tokens: Annotated[int | None, Option("--shard-tokens", help="About so many a shard. [131072]")] = None,
    unfinished: Annotated[bool, Option("--unfinished", help="Take what answers there are so far.")] = False,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = None,
    trust_remote_code: o.TrustRemoteCode = None,
) -> None:
    """Keep the target's hidden states at every token of the answers, memory-mapped, never its logits."""
    given = {name: value for name, value in locals().items() if value is not None}
    if taps is not None:
        given["taps"] = tuple(parse_numbers(taps, flag="--taps"))

    def work(screen: Terminal) -> None:
        from specbench.config import validated
        from specbench.resolve import rich_step
        from specbench.train.features import make_features
        from specbench.train.spec import FeaturesSpec

        make_features(validated(FeaturesSpec, given), screen=screen, step=rich_step)

    _resumable(work)


@app.command("check")
def check(
    data: Annotated[list[Path], Option("--data", help="Folder of `train prepare`; repeatable.")],
    evaluation: Annotated[
        list[str] | None,
        Option("--evaluation", metavar="TASK|FILE", help="Compare with; repeatable. [every task that can be had]"),
    ] = None,
) -> None:
    """Prove that no evaluation prompt and no held-out prompt is in what is trained on; exit code 1 if one is."""
    from specbench.resolve import rich_step
    from specbench.train.check import check_answers

    found = check_answers(data, evaluation=evaluation, screen=Terminal(), step=rich_step)
    shares = ", ".join(f"{domain} {tokens:,}" for domain, tokens in found.by_domain.items())
    typer.echo(
        f"{found.conversations:,} conversations ({found.heldout:,} held out), {found.target_tokens:,} target tokens "
        f"({found.greedy_tokens:,} greedy; {shares})"
    )
    for fault in found.faults[:20]:
        typer.echo(f"fault: {fault}")
    if found.faults:
        typer.echo(f"{len(found.faults)} faults: do not train on this")
        raise typer.Exit(1)
    typer.echo("no evaluation prompt and no held-out prompt is in what is trained on")


def parse_numbers(text: str, *, flag: str) -> list[int]:
    """``2,16,28`` as whole numbers. Errors: ConfigError."""
    from specbench.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"{flag} '{text}' is not a list of whole numbers; write for example {flag} 2,16,28")
    return [int(part) for part in parts]


def _resumable(work: Any) -> None:
    """Run a stage; Ctrl-C says how to go on instead of a traceback."""
    screen = Terminal()
    try:
        work(screen)
    except KeyboardInterrupt:
        screen.say("interrupted: what is finished is kept; the same command goes on from there")
        raise typer.Exit(130) from None
