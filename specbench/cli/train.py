"""``train``: prompts to answers, answers to features, features to a drafter, a drafter to a checkpoint."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from specbench.cli import options as o
from specbench.cli import train_options as t

app = typer.Typer(help="Train drafters for a target: prepare, features, fit, export.", no_args_is_help=True)

_EVERY_S = 30.0  # between two lines of progress where there is no terminal


class Terminal:
    """A stage's screen on stderr: lines that stay, and one line of progress that is renewed.

    Where stderr is no terminal the progress is a plain line every half minute.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._width = 0
        self._last_s = time.monotonic()

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
    out: t.Shards,
    target: o.Target = None,
    task: t.Tasks = None,
    prompts: t.PromptFiles = None,
    hub: t.Hub = None,
    hub_split: t.HubSplit = None,
    num_prompts: t.NumPrompts = None,
    synthesise: t.Synthesise = None,
    domains: t.Domains = None,
    turn_temperature: t.TurnTemperature = None,
    max_turn_tokens: t.MaxTurnTokens = None,
    evaluation: t.Evaluation = None,
    max_new_tokens: t.MaxNewTokens = None,
    max_context: t.MaxContext = None,
    temperature: t.Temperature = None,
    top_p: t.TopP = None,
    top_k: t.TopK = None,
    greedy_share: t.GreedyShare = None,
    heldout_share: t.HeldoutShare = None,
    target_tokens: t.TargetTokens = None,
    features: t.Keep = None,
    taps: t.KeptTaps = None,
    seed: t.Seed = None,
    thinking: t.Thinking = None,
    rows: t.Rows = None,
    block: t.Block = None,
    base_url: t.BaseUrl = None,
    server_model: t.ServerModel = None,
    dtype: t.Dtype = None,
    device: t.Device = None,
    threads: t.Threads = None,
    kv_memory: t.KvMemory = None,
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

    resumable(work)


@app.command("features")
def features(
    data: Annotated[list[Path], Option("--data", help="Folder of `train prepare`; repeatable.")],
    out: Annotated[Path, Option("--out", "-o", help="Folder of the store; the same folder goes on after a stop.")],
    target: o.Target = None,
    taps: Annotated[
        str | None,
        Option(
            "--taps", metavar="K,K,...", help="Hidden states to keep: 0 embeddings .. n (default: five, spread evenly)."
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None, Option("--batch-tokens", help="Through the target at once (default: auto).")
    ] = None,
    shard_tokens: Annotated[
        int | None, Option("--shard-tokens", help="About so many a shard (default: 131072).")
    ] = None,
    unfinished: Annotated[bool, Option("--unfinished", help="Take what answers there are so far.")] = False,
    dtype: t.Dtype = None,
    device: t.Device = None,
    threads: t.Threads = None,
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

    resumable(work)


@app.command("check")
def check(
    data: Annotated[list[Path], Option("--data", help="Folder of `train prepare`; repeatable.")],
    features: Annotated[
        list[Path] | None,
        Option("--features", help="Features of each --data: what repeats a held-out prompt is left out there."),
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        Option(
            "--evaluation", metavar="TASK|FILE", help="Compare with; repeatable (default: every task that can be had)."
        ),
    ] = None,
    mark: Annotated[
        Path | None, Option("--mark", metavar="FILE", help="Write what was found here once nothing is wrong.")
    ] = None,
) -> None:
    """Prove that no evaluation prompt and no held-out prompt is in what is trained on; exit code 1 if one is."""
    from specbench.resolve import rich_step
    from specbench.train.check import check_answers

    found = check_answers(data, features=features or (), evaluation=evaluation, screen=Terminal(), step=rich_step)
    shares = ", ".join(f"{domain} {tokens:,}" for domain, tokens in found.by_domain.items())
    typer.echo(
        f"{found.conversations:,} conversations ({found.heldout:,} held out), {found.target_tokens:,} target tokens "
        f"({found.greedy_tokens:,} greedy; {shares})"
    )
    for repeat in found.left_out[:20]:
        typer.echo(f"left out of training: {repeat}")
    if len(found.left_out) > 20:
        typer.echo(f"and {len(found.left_out) - 20:,} more are left out for the same reason")
    for fault in found.faults[:20]:
        typer.echo(f"fault: {fault}")
    if found.faults:
        typer.echo(f"{len(found.faults)} faults: do not train on this")
        raise typer.Exit(1)
    typer.echo("no evaluation prompt and no held-out prompt is in what is trained on")
    if mark is not None:
        import json
        from dataclasses import asdict

        from specbench.train.manifest import write_durably

        write_durably(mark, json.dumps(asdict(found), indent=1).encode() + b"\n")


def parse_numbers(text: str, *, flag: str) -> list[int]:
    """``2,16,28`` as whole numbers. Errors: ConfigError."""
    from specbench.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"{flag} '{text}' is not a list of whole numbers; write for example {flag} 2,16,28")
    return [int(part) for part in parts]


def resumable(work: Any) -> None:
    """Run a stage with a screen; Ctrl-C says how to go on instead of a traceback."""
    screen = Terminal()
    try:
        work(screen)
    except KeyboardInterrupt:
        screen.say("interrupted: what is finished is kept; the same command goes on from there")
        raise typer.Exit(130) from None
