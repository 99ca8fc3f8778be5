"""``calibrate``: temperatures for a drafter's confidences, and how an online calibration would have followed them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from specbench.cli import options as o

_ONLINE = "Online"

Method = Annotated[str | None, Option("--method", "-m", help="The drafter, NAME or NAME:k.")]
Out = Annotated[Path | None, Option("--out", "-o", help="File for the calibration. \\[beside the drafter]")]
Record = Annotated[
    list[str] | None,
    Option("--record", metavar="FILE|RUN_ID", help="Use the rounds of a fixed-length run; repeatable with --online."),
]
Csv = Annotated[Path | None, Option("--csv", metavar="FILE", help="Write both tables here too, with every digit.")]
Folder = Annotated[Path, Option("--in", help="Where to look run ids up.")]
Online = Annotated[
    bool, Option("--online", help="Replay the rounds through the online calibration.", rich_help_panel=_ONLINE)
]
Window = Annotated[int, Option(min=1, help="Rounds to a line.", rich_help_panel=_ONLINE)]
Forget = Annotated[float, Option(min=0, max=1, help="Forgetting rate an observation.", rich_help_panel=_ONLINE)]
MaxStep = Annotated[float, Option(min=0, help="Largest change of a parameter a cycle.", rich_help_panel=_ONLINE)]


def calibrate(
    method: Method = None,
    drafter: o.Drafter = None,
    target: o.Target = None,
    task: o.Task = None,
    num_prompts: o.NumPrompts = None,
    max_new_tokens: o.MaxNewTokens = None,
    concurrency: o.Concurrency = None,
    temperature: o.Temperature = None,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    seed: o.Seed = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    threads: o.Threads = None,
    trust_remote_code: o.TrustRemoteCode = None,
    set_: o.Set = None,
    config: o.Config = None,
    out: Out = None,
    record: Record = None,
    folder: Folder = Path("runs"),
    csv: Csv = None,
    online: Online = False,
    window: Window = 500,
    forget: Forget = 0.002,
    max_step: MaxStep = 0.05,
) -> None:
    """Fit temperatures on half of the prompts and judge them on the other half: `specbench calibrate -m dspark`."""
    from rich.console import Console

    from specbench.errors import ConfigError

    same_name = {
        "target": target, "num_prompts": num_prompts, "max_new_tokens": max_new_tokens, "concurrency": concurrency,
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed, "dtype": dtype, "device": device,
        "threads": threads, "trust_remote_code": trust_remote_code, "tasks": task or None,
    }  # fmt: skip
    if record:
        calibration, scores, traces, paths = _from_records(record, folder, out)
    elif method is None:
        raise ConfigError("name the drafter with --method, or its recorded rounds with --record")
    else:
        calibration, scores, traces, paths = _measured(method, drafter, same_name, sets=set_, config=config, out=out)
    console = Console()
    console.print(_shown(calibration, scores))
    windows: Any = ()
    if online:
        from specbench.online_calibration import replay_online

        windows = replay_online(
            traces, temperatures=calibration.temperatures, window=window, forget=forget, max_step=max_step
        )
        console.print(_over_time(windows, forget=forget, max_step=max_step))
    if csv is not None:
        from specbench.records.store import write_atomic

        write_atomic(csv, _table(calibration, scores, windows).encode())
        typer.echo(f"tables: {csv}")
    for path in paths:
        typer.echo(f"calibration: {path}")


def _measured(
    method: str, drafter: list[str] | None, flags: dict[str, Any], *, sets: Any, config: Any, out: Path | None
) -> tuple[Any, Any, list[Any], tuple[Path, ...]]:
    from rich.console import Console

    from specbench.calibrate import calibrate as fit
    from specbench.cli.live import LiveProgress
    from specbench.config import build_run, parse_pairs
    from specbench.runner import check_names

    named = {"drafters": parse_pairs(drafter, flag="--drafter")} if drafter else {}
    spec = build_run(config=config, sets=sets or [], flags={"methods": method, **named, **flags})
    check_names(spec)
    console = Console(stderr=True)
    with console.status("") as status:

        def show(drive: Any) -> None:
            status.update(f"drafting: turn {drive.done} of {drive.total}, {drive.tokens} tokens")

        result = fit(spec, out=out, on_progress=show, step=LiveProgress(console).step)
    return result.calibration, result.scores, [result.trace], result.paths


def _from_records(names: list[str], folder: Path, out: Path | None) -> tuple[Any, Any, list[Any], tuple[Path, ...]]:
    """Fit on the first record's rounds; the others only follow it in the online replay. Written only where asked to."""
    from specbench.calibrate import fit_trace, write
    from specbench.records import store

    traces, first = [], None
    for name in names:
        given = Path(name)
        path = given if given.suffix == ".json" or given.is_file() else store.find(folder, name)
        found = store.read(path)
        first = first or found
        traces.append(store.read_trace(path.parent, found))
    assert first is not None
    calibration, scores = fit_trace(
        traces[0],
        dataset=",".join(first.spec.get("tasks", [])),
        drafter_sha256=first.drafter.sha256 if first.drafter is not None else None,
        target_sha256=first.target.sha256 if first.target is not None else None,
    )
    return calibration, scores, traces, write(calibration, out) if out is not None else ()


_COLUMNS = ("scope", "domains", "k", "first_round", "rounds", "temperature", "metric", "before", "after", "online")


def _table(calibration: Any, scores: Any, windows: Any) -> str:
    """Scores by position of what was held out, then the mean ECE over time; what there is not is empty."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in scores:
        place = ("position", row.domain or "all", row.k, "", row.samples, calibration.temperatures[row.k - 1])
        for metric in ("ece", "brier", "auroc"):
            writer.writerow((*place, metric, *getattr(row, metric), ""))
    for w in windows:
        place = ("time", ";".join(w.domains), "", w.first_round, w.rounds, "")
        writer.writerow((*place, "ece", w.raw, w.frozen, w.online))
    return text.getvalue()


def _shown(calibration: Any, scores: Any) -> Any:
    from rich.console import Group
    from rich.table import Table

    counts = f"{calibration.num_samples} rounds fitted, {calibration.held_out_samples} held out"
    table = Table()
    for name in ("domain", "k", "T", "n", "ECE", "Brier", "AUROC"):
        table.add_column(name, justify="left" if name == "domain" else "right")
    for row in scores:
        cells = (_pair(pair) for pair in (row.ece, row.brier, row.auroc))
        table.add_row(
            row.domain or "all", str(row.k), f"{calibration.temperatures[row.k - 1]:.3g}", str(row.samples), *cells
        )
    return Group(f"confidence of {calibration.method or 'the drafter'}, before > after; {counts}", table)


def _pair(values: tuple[float | None, float | None]) -> str:
    before, after = ("n/a" if value is None else f"{value:.3f}" for value in values)
    return f"{before} > {after}"


def _over_time(windows: Any, *, forget: float, max_step: float) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table()
    for name in ("from round", "rounds", "domains", "raw", "fitted", "online"):
        table.add_column(name, justify="left" if name == "domains" else "right")
    for w in windows:
        errors = (f"{value:.3f}" for value in (w.raw, w.frozen, w.online))
        table.add_row(str(w.first_round), str(w.rounds), ", ".join(w.domains), *errors)
    how = f"online forgets {forget:g} an observation and moves {max_step:g} a cycle at most"
    return Group(f"mean ECE over time; {how}", table)
