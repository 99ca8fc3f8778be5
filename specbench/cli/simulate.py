"""``simulate``: what recorded rounds would give under other costs, loads, policies and fleets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from specbench.cli import options as o

_LOAD, _COST = "Load and fleet", "Costs"

Runs = Annotated[
    list[str] | None, Argument(metavar="RUN...", help="Folders, record files or run ids, of fixed lengths. \\[--in]")
]
In = Annotated[Path, Option("--in", help="Where to look run ids up.")]
CostTable = Annotated[
    Path, Option("--cost-table", metavar="FILE", help="As `profile` writes it.", rich_help_panel=_COST)
]
Overhead = Annotated[
    str,
    Option(metavar="recorded|S", help="Seconds of a step beside forward and drafting.", rich_help_panel=_COST),
]
Concurrency = Annotated[
    str, Option("--concurrency", "-c", metavar="N,N,...", help="Rows of a replica.", rich_help_panel=_LOAD)
]
Replicas = Annotated[str, Option(metavar="N,N,...", help="Equal engines that share the load.", rich_help_panel=_LOAD)]
Requests = Annotated[
    int | None,
    Option(help="Requests at least, the recorded ones again. \\[4 a row, and all]", rich_help_panel=_LOAD),
]
Policy = Annotated[list[str] | None, Option("--policy", help="What is verified; repeatable, each simulated. \\[fixed]")]
Length = Annotated[
    int | None, Option("--draft-length", "-k", min=1, help="Drafts a round, at most those recorded. \\[those]")
]
Calibration = Annotated[Path | None, Option(help="Temperatures of the confidences. \\[none]")]
Out = Annotated[Path | None, Option("--out", "-o", help="Folder for records of the predictions. \\[none are written]")]

Against = Annotated[
    list[str] | None,
    Option(metavar="FOLDER|RUN", help="Measured records to hold the predictions against; repeatable."),
]


def simulate(
    cost_table: CostTable,
    runs: Runs = None,
    concurrency: Concurrency = "1",
    replicas: Replicas = "1",
    policy: Policy = None,
    draft_length: Length = None,
    workload: o.Workload = None,
    rate: o.Rate = None,
    requests: Requests = None,
    seed: o.Seed = None,
    overhead: Overhead = "recorded",
    calibration: Calibration = None,
    prefill_chunk: o.PrefillChunk = None,
    set_: Annotated[list[str] | None, Option("--set", metavar="load.X=Y", help="Options of the load pattern.")] = None,
    against: Against = None,
    folder: In = Path("runs"),
    out: Out = None,
) -> None:
    """Predict throughput and waiting times in virtual time: `specbench simulate runs --cost-table t.json -c 8,64`."""
    from specbench.engine import cost_table as tables
    from specbench.simulate import SimulationSpec

    spec = SimulationSpec(
        table=tables.read(cost_table),
        concurrency=_counts(concurrency, flag="--concurrency"),
        replicas=_counts(replicas, flag="--replicas"),
        policies=tuple(policy or ["fixed"]),
        draft_length=draft_length,
        workload=workload or "closed",
        load=_load(rate, set_ or []),
        requests=requests,
        seed=seed or 0,
        overhead="recorded" if overhead == "recorded" else _seconds(overhead),
        calibration=calibration,
        prefill_chunk=prefill_chunk,
    )
    _predict(runs or [], folder, spec, out, against or [])


def _predict(names: list[str], folder: Path, spec: Any, out: Path | None, against: list[str]) -> None:
    """Replay every contestant's run, print the tables, write the records."""
    from rich.console import Console

    from specbench.cli.outcome import PLAIN_WIDTH
    from specbench.records import store
    from specbench.records.sources import collect
    from specbench.report.against import against_table, compare
    from specbench.report.simulated_table import simulated_table
    from specbench.simulate import choose, source_of
    from specbench.simulate import simulate as predictions

    found = collect(names, folder=folder)
    measured = collect(against, folder=folder).records if against else []
    where = {path.stem: path.parent for path in found.files}
    absent = [r for r in found.records if r.rounds and not store.rounds_path(where[r.run_id], r.run_id).is_file()]
    # without any, the first one's error says what is lacking
    chosen, notes = choose([r for r in found.records if r not in absent] or found.records)
    lacking = [f"left out: the rounds of run {record.run_id} ({record.method}) are not beside it" for record in absent]
    for note in [*notes, *lacking, *(f"left out: {error}" for error in found.broken)]:
        print(note, file=sys.stderr)
    sources = [source_of(record, store.read_trace(where[record.run_id], record), spec) for record in chosen]
    if out is not None:
        store.check_writable(out)
    made = []
    with Console(stderr=True).status("simulating") as status:
        for one in predictions(sources, spec, command=["specbench", *sys.argv[1:]]):
            made.append(one.record)
            status.update(f"simulated {one.record.method} at {one.setting.label}")
            if out is not None:
                store.write(out, one.record, rounds_data=one.rounds)
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    console.print(simulated_table(made))
    if measured:
        console.print(against_table(compare(made, measured)))
    if out is not None:
        console.print(f"{len(made)} records in {out}; they never rank", markup=False, highlight=False, soft_wrap=True)


def _counts(text: str, *, flag: str) -> tuple[int, ...]:
    from specbench.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{flag} takes whole numbers from 1 on, separated by commas, not '{text}'; write 1,8,64")
    return tuple(int(part) for part in parts)


def _seconds(text: str) -> float:
    from specbench.errors import ConfigError

    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--overhead is 'recorded' or seconds of a step, not '{text}'; write 0.002") from None


def _load(rate: float | None, sets: list[str]) -> dict[str, Any]:
    from specbench.config import parse_value
    from specbench.errors import ConfigError

    load: dict[str, Any] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        name = key.strip().removeprefix("load.")
        if not equals or not name or name == key.strip():
            raise ConfigError(f"--set '{text}' is not load.OPTION=VALUE; only the load pattern has options here")
        load[name] = parse_value(value.strip())
    return load if rate is None else {**load, "rate": rate}
