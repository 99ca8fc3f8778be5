"""``sla``: the largest steady throughput that holds a service level, for every method on the same prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from specbench.cli import level_options as level
from specbench.cli import options as o

_SEARCH = "Search"

Floor = Annotated[
    list[float] | None,
    Option(metavar="TOK/S", help="Least mean tok/s/user; repeatable, one table each.", rich_help_panel=level.PANEL),
]
Over = Annotated[str, Option(metavar="concurrency|rate", help="What is raised.", rich_help_panel=_SEARCH)]
Most = Annotated[float | None, Option("--max", help="Largest load. [8 users]", rich_help_panel=_SEARCH)]
Least = Annotated[float | None, Option("--min", help="Smallest. [1; of rates max/64]", rich_help_panel=_SEARCH)]
Start = Annotated[float | None, Option(help="First load. \\[the smallest; of rates max/8]", rich_help_panel=_SEARCH)]
Step = Annotated[float, Option(help="Relative width at which rates are near enough.", rich_help_panel=_SEARCH)]
Repeats = Annotated[int, Option(help="Runs a load, each with its own seed.", rich_help_panel=_SEARCH)]
Few = Annotated[
    float, Option(help="Ratios need more requests in flight than this in both arms.", rich_help_panel=_SEARCH)
]

Policies = Annotated[
    list[str] | None,
    Option(
        "--policy",
        help="What is verified: fixed:k, threshold:p, algorithm1, load-aware; repeatable, each searched. \\[fixed]",
    ),
]


def sla(
    method: o.Method = None,
    floor: Floor = None,
    ttft_p50: level.TtftP50 = None,
    ttft_p90: level.TtftP90 = None,
    ttft_p99: level.TtftP99 = None,
    tpot_p50: level.TpotP50 = None,
    tpot_p90: level.TpotP90 = None,
    tpot_p99: level.TpotP99 = None,
    over: Over = "concurrency",
    most: Most = None,
    least: Least = None,
    start: Start = None,
    step: Step = 0.05,
    repeats: Repeats = 3,
    few: Few = 3,
    drafter: o.Drafter = None,
    policy: Policies = None,
    target: o.Target = None,
    draft_length: o.DraftLength = None,
    task: o.Task = None,
    num_prompts: o.NumPrompts = None,
    max_new_tokens: o.MaxNewTokens = None,
    thinking: o.Thinking = None,
    workload: o.Workload = None,
    concurrency: Annotated[
        int | None, Option("--concurrency", "-c", help="Row limit with --over rate. [1]", rich_help_panel=_SEARCH)
    ] = None,
    temperature: o.Temperature = None,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    seed: o.Seed = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    threads: o.Threads = None,
    kv_memory: o.KvMemory = None,
    prefill_chunk: o.PrefillChunk = None,
    graphs: o.Graphs = None,
    device_map: o.DeviceMap = None,
    trust_remote_code: o.TrustRemoteCode = None,
    set_: o.Set = None,
    config: o.Config = None,
    out: o.Out = None,
    no_baseline: o.NoBaseline = False,
) -> None:
    """Search the largest load that holds a service level: `specbench sla -m ngram --floor 20 --ttft-p99 2`.

    Outputs have one length: stop tokens are passed unless --set ignore_eos=false is given.
    """
    given = dict(locals())  # before anything else is named: every option by the name of its parameter
    space = _space(over, most=most, least=least, start=start, step=step)
    levels = service_levels(floor, given)
    policies = tuple(policy or ())
    spec = _spec(config, set_, {**given, "policy": policies[0] if policies else None})
    raise typer.Exit(_search(spec, levels, space, repeats=repeats, few=few, policies=policies))


def _space(over: str, *, most: float | None, least: float | None, start: float | None, step: float) -> Any:
    from specbench.errors import ConfigError
    from specbench.sla import Space

    if over not in ("concurrency", "rate"):
        raise ConfigError(f"--over is concurrency or rate, not '{over}'; name one of them")
    if over == "concurrency":
        low = 1.0 if least is None else least
        return Space(whole=True, start=low if start is None else start, low=low, high=8.0 if most is None else most)
    if most is None:
        raise ConfigError("--over rate needs the largest rate to try; give --max in requests a second")
    low = most / 64 if least is None else least
    first = max(low, most / 8) if start is None else start
    return Space(whole=False, start=first, low=low, high=most, tolerance=step)


def service_levels(floors: list[float] | None, given: dict[str, Any]) -> tuple[Any, ...]:
    """One level a floor, each with all ceilings."""
    from specbench.sla import Ceiling, Sla

    asked: Any = [(metric, p, given[f"{metric}_p{p}"]) for metric in ("ttft", "tpot") for p in (50, 90, 99)]
    bounds = tuple(Ceiling(*ceiling) for ceiling in asked if ceiling[2] is not None)
    return tuple(Sla(floor, bounds) for floor in dict.fromkeys(floors or [])) or (Sla(None, bounds),)


def _spec(config: Path | None, sets: list[str] | None, given: dict[str, Any]) -> Any:
    """The run to be searched; output lengths are fixed unless the user says otherwise."""
    from specbench.config import build_run

    spec = build_run(config=config, sets=sets or [], flags=o.run_flags(given))
    return spec if "ignore_eos" in spec.model_fields_set else spec.model_copy(update={"ignore_eos": True})


def _search(
    spec: Any, levels: tuple[Any, ...], space: Any, *, repeats: int, few: float, policies: tuple[str, ...]
) -> int:
    """Run the search, print what came of it, and give the exit code."""
    from rich.console import Console

    from specbench.cli.outcome import PLAIN_WIDTH
    from specbench.cli.sla_live import SlaScreen
    from specbench.report.sla_table import sla_table
    from specbench.sla_probes import SlaRequest, run_sla

    request = SlaRequest(spec, levels, space, repeats=repeats, few=few, policies=policies)
    with SlaScreen() as screen:
        summary = run_sla(request, screen=screen, command=["specbench", *sys.argv[1:]])
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(sla_table(summary.result))
    console.print(f"result: {summary.path}", markup=False, highlight=False, soft_wrap=True)
    for error in summary.errors:
        print(f"error: {error}", file=sys.stderr)
    if summary.interrupted:
        print("interrupted: finished probes are in the records", file=sys.stderr)
    elif not summary.errors and summary.exit_code:
        print(f"error: {summary.complaint}", file=sys.stderr)
    return summary.exit_code
