"""``sweep``: many cells from one file, resumed from wherever it was ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

File = Annotated[
    Path, typer.Argument(metavar="FILE.toml", help="The sweep: \\[base], \\[axes], \\[\\[exclude]], \\[\\[where]].")
]
Out = Annotated[Path | None, Option("--out", "-o", help="Folder for the records. \\[runs/NAME]")]
DryRun = Annotated[bool, Option("--dry-run", help="Print cells, keys, times and what is done; measure nothing.")]
Only = Annotated[
    list[str] | None,
    Option("--only", metavar="AXIS=VALUE", help="Of these cells only, and their controls; !=, commas; repeatable."),
]
LimitTime = Annotated[
    str | None, Option("--limit-time", metavar="30m", help="Begin no cell that would not end within this time.")
]
RetryFailed = Annotated[bool, Option("--retry-failed", help="Measure cells that failed before again.")]
_WHERE = "Where cells are measured"
Executor = Annotated[
    str, Option(metavar="local|ray|slurm", help="This process, or workers elsewhere.", rich_help_panel=_WHERE)
]
Workers = Annotated[
    int | None, Option(help="Groups of cells at a time. \\[as the cluster has room]", rich_help_panel=_WHERE)
]
Gpus = Annotated[int, Option(help="GPUs of a worker.", rich_help_panel=_WHERE)]
Cpus = Annotated[int, Option(help="Processors of a worker.", rich_help_panel=_WHERE)]
Retries = Annotated[int, Option(help="Times that a lost worker's cells are begun again.", rich_help_panel=_WHERE)]
Silence = Annotated[
    str, Option(metavar="5m", help="A worker without a sign of life for so long is lost.", rich_help_panel=_WHERE)
]
More = Annotated[
    list[str] | None,
    Option(
        "--executor-option", metavar="A=B", help="ray: address; slurm: slurm_partition, ...", rich_help_panel=_WHERE
    ),
]
Set = Annotated[list[str] | None, Option("--set", metavar="A.B=C", help="Any setting of \\[base]; repeatable.")]


def sweep(
    file: File,
    out: Out = None,
    dry_run: DryRun = False,
    only: Only = None,
    limit_time: LimitTime = None,
    retry_failed: RetryFailed = False,
    executor: Executor = "local",
    workers: Workers = None,
    gpus: Gpus = 0,
    cpus: Cpus = 1,
    retries: Retries = 2,
    silence: Silence = "5m",
    executor_option: More = None,
    set_: Set = None,
) -> None:
    """Measure every cell of a sweep, or go on where it was ended: `specbench sweep sweeps/demo.toml`."""
    from specbench.sweep_spec import read_sweep
    from specbench.sweep_time import parse_duration

    limit_s = None if limit_time is None else parse_duration(limit_time)
    spec = read_sweep(file, sets=set_ or [])
    folder = out or Path(str(spec.base.get("out", Path("runs") / spec.name)))
    chosen: dict[str, Any] = {"only": only or [], "retry_failed": retry_failed}
    if executor != "local":
        _check_executor(executor)
    if dry_run:
        raise typer.Exit(_dry_run(spec, folder, chosen))
    try:
        remote = None
        if executor != "local":
            remote = _remote(folder, executor_option or [], (workers, gpus, cpus), retries, parse_duration(silence))
        raise typer.Exit(_measure(spec, folder, chosen, {"limit_s": limit_s, "executor": executor, "remote": remote}))
    except KeyboardInterrupt:
        typer.echo("interrupted: finished cells are in the folder; the same command goes on", err=True)
        raise typer.Exit(130) from None


def _dry_run(spec: Any, folder: Path, chosen: dict[str, Any]) -> int:
    from specbench.sweep_folder import ResultsFolder
    from specbench.sweep_time import in_words

    results = ResultsFolder.open(folder, mend=False)
    from specbench.sweep_state import make_plan

    plan = make_plan(spec, results, **chosen)
    from specbench.sweep import check_sweep

    check_sweep(plan)
    for cell in plan.cells:
        expected = in_words(plan.estimates.seconds(cell))
        typer.echo(f"{cell.key}  {plan.state(cell):<6}  {expected:>7}  {plan.label(cell)}")
    for remark in plan.results.remarks:
        typer.echo(f"warning: {remark}", err=True)
    typer.echo(_overview(plan, folder))
    return 0


def _overview(plan: Any, folder: Path) -> str:
    from specbench.sweep_time import in_words

    states = [plan.state(cell) for cell in plan.cells]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("done", "failed", "to do") if state in states)
    left = plan.left
    again = f", {len(left)} to be measured" if len(left) != states.count("to do") else ""
    time_left = f", about {in_words(plan.estimates.total(left))} ({plan.estimates.basis})" if left else ""
    groups = f"{len(plan.groups)} group{'s' if len(plan.groups) != 1 else ''}"
    return f"{plan.spec.name}: {len(states)} cells in {groups}: {counts}{again}{time_left}; records in {folder}"


def _check_executor(name: str) -> None:
    from specbench import registry
    from specbench.errors import unknown_name

    if name not in registry.names("executors"):
        raise unknown_name("executor", name, registry.names("executors"))


def _remote(folder: Path, pairs: list[str], sizes: tuple[int | None, int, int], retries: int, silence_s: float) -> Any:
    """Where the workers of an executor are, and what they get."""
    from specbench.config import parse_value
    from specbench.errors import ConfigError
    from specbench.executors.jobs import PoolOptions
    from specbench.sweep_remote import RemoteOptions

    more: dict[str, Any] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or name.strip() in more:
            raise ConfigError(f"--executor-option '{text}' is not NAME=VALUE, or NAME is given twice; correct it")
        more[name.strip()] = parse_value(value.strip())
    return RemoteOptions(PoolOptions(folder, *sizes, more), retries, silence_s)


def _measure(spec: Any, folder: Path, chosen: dict[str, Any], how: dict[str, Any]) -> int:
    from specbench.cli.sweep_live import SweepScreen
    from specbench.errors import RecordError
    from specbench.sweep_folder import ResultsFolder, held

    with held(folder):
        results = ResultsFolder.open(folder, mend=True)
        for remark in results.remarks:
            typer.echo(f"warning: {remark}", err=True)
        from specbench.sweep_state import make_plan

        plan = make_plan(spec, results, **chosen)
        typer.echo(_overview(plan, folder), err=True)
        from specbench.sweep import check_sweep, run_sweep, write_table  # only now what takes seconds to import

        check_sweep(plan)
        command = ["specbench", *sys.argv[1:]]
        with SweepScreen(plan) as screen:
            summary = run_sweep(plan, screen=screen, command=command, **how)
        try:
            table = write_table(results) if results.records() else None
        except RecordError as error:
            summary.troubles.append(str(error))
            table = None
    _close(summary, table)
    return int(summary.exit_code)


def _close(summary: Any, table: Path | None) -> None:
    """What is left on the screen: counts, failures, where the numbers are, and what the harness cost."""
    from specbench.sweep_time import in_words

    plan = summary.plan
    left = len(plan.left)
    done = len(plan.cells) - left - len({cell.key for cell, _ in summary.failed} - {cell.key for cell in plan.left})
    typer.echo(f"{plan.spec.name}: {done} of {len(plan.cells)} cells are finished, {summary.measured} measured now")
    if table is not None:
        typer.echo(f"all estimates: {table}")
    if summary.measured:
        typer.echo(_overhead(summary))
    by_text: dict[str, list[str]] = {}
    for cell, record in summary.failed:
        by_text.setdefault(record.error.message if record.error is not None else "unknown", []).append(plan.label(cell))
    for text, labels in by_text.items():
        more = f" and {len(labels) - 1} more cells" if len(labels) > 1 else ""
        _complain(f"error: {labels[0]}{more}: {text}")
    if summary.failed and not plan.retry_failed:
        _complain("failed cells are measured again with --retry-failed")
    for text in summary.troubles:
        _complain(f"error: {text}")
    if left and (summary.interrupted or summary.out_of_time):
        why = "interrupted" if summary.interrupted else "the time limit is reached"
        rest = in_words(plan.estimates.total(plan.left))
        _complain(f"{why}: {left} cells are left, about {rest}; the same command goes on")


def _overhead(summary: Any) -> str:
    """Where the time went, and the cells an hour that set-up cost."""
    setup_s = summary.wall_s - summary.measure_s - summary.judge_s
    rate, ideal = (3600 * summary.measured / max(s, 1e-9) for s in (summary.wall_s, summary.wall_s - setup_s))
    spent = f"{summary.measure_s:.1f} s measuring, {summary.judge_s:.1f} s judging, {setup_s:.1f} s set-up"
    return (
        f"{summary.wall_s:.1f} s: {spent} (targets loaded {summary.loads} times in {summary.load_s:.1f} s): "
        f"{rate:.0f} cells an hour, {ideal - rate:.0f} lost to set-up"
    )


def _complain(text: str) -> None:
    print(" ".join(text.split()), file=sys.stderr)
