"""``profile``: what a step costs on this machine, for policies that plan by cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from specbench.cli import options as o

_SIZE = "What is measured"

Rows = Annotated[int, Option("--concurrency", "-c", min=1, help="Rows at most.", rich_help_panel=_SIZE)]
Length = Annotated[int, Option("--draft-length", "-k", min=1, help="Drafts a row at most.", rich_help_panel=_SIZE)]
Context = Annotated[int, Option(min=1, help="Cached tokens a row.", rich_help_panel=_SIZE)]
Repeats = Annotated[int, Option(min=1, help="Timings of each point; the median is kept.", rich_help_panel=_SIZE)]
Warmup = Annotated[int, Option(min=0, help="Timings of each point before those.", rich_help_panel=_SIZE)]
Out = Annotated[Path | None, Option("--out", "-o", help="File for the table. \\[where runs look for it]")]
SGLang = Annotated[Path | None, Option("--sglang", help="Also write SGLang's table by tokens here.")]
Additive = Annotated[Path | None, Option("--sglang-additive", help="Also write SGLang's table by rows and tokens.")]
Method = Annotated[
    list[str] | None,
    Option("--method", "-m", help="A drafter whose price is measured too; repeatable."),
]


def profile(
    target: o.Target = None,
    method: Method = None,
    drafter: o.Drafter = None,
    concurrency: Rows = 64,
    draft_length: Length = 7,
    context: Context = 128,
    repeats: Repeats = 5,
    warmup: Warmup = 2,
    dtype: o.Dtype = None,
    device: o.Device = None,
    threads: o.Threads = None,
    trust_remote_code: o.TrustRemoteCode = None,
    set_: o.Set = None,
    out: Out = None,
    sglang: SGLang = None,
    sglang_additive: Additive = None,
) -> None:
    """Measure steps per second by tokens and rows, and drafting by rows: `specbench profile --method dspark`."""
    from rich.console import Console

    from specbench.cli.live import LiveProgress
    from specbench.config import BASELINE, build_run, parse_pairs
    from specbench.profile import ProfileSettings
    from specbench.profile import profile as measure
    from specbench.runner import check_names

    flags: dict[str, Any] = {
        "methods": method or [BASELINE],
        "drafters": parse_pairs(drafter, flag="--drafter") if drafter else None,
        "target": target, "dtype": dtype, "device": device, "threads": threads,
        "trust_remote_code": trust_remote_code,
    }  # fmt: skip
    spec = build_run(sets=set_ or [], flags=flags)
    check_names(spec)
    settings = ProfileSettings(draft_length, concurrency, context, repeats, warmup)
    console = Console(stderr=True)
    with console.status("") as status:

        def show(what: str, done: int, of: int) -> None:
            status.update(f"timing {what}: {done} of {of}")

        result = measure(spec, settings, out=out, on_progress=show, step=LiveProgress(console).step)
    for path, additive in ((sglang, False), (sglang_additive, True)):
        if path is not None:
            _write(path, result.table, additive=additive)
    Console().print(_shown(result.table))
    typer.echo(f"table: {result.path}")


def _write(path: Path, table: Any, *, additive: bool) -> None:
    import json

    from specbench.engine.cost_table import to_sglang
    from specbench.records.store import write_atomic

    write_atomic(path, (json.dumps(to_sglang(table, additive=additive), indent=1) + "\n").encode())
    typer.echo(f"for SGLang: {path}")


def _shown(table: Any) -> Any:
    """A table of the measured points, and of the drafters' prices."""
    from rich.console import Group
    from rich.table import Table

    fill = table.tokens_per_row
    points = Table()
    for name in ("tokens", "rows", "ms", "steps/s", "spread"):
        points.add_column(name, justify="right")
    for tokens, spread in zip(table.tokens, table.spread, strict=True):
        rows = -(-tokens // fill)
        rate = float(table.rate(tokens, rows=rows))
        points.add_row(str(tokens), str(rows), f"{1e3 / rate:.2f}", f"{rate:.1f}", f"{spread:.0%}")
    where = f"one step on {table.origin.device}, {table.origin.dtype}, {table.origin.context} cached tokens a row"
    parts: list[Any] = [where, points]
    for method, price in table.draft.items():
        drafts = Table()
        columns = ["rows", "ms", "spread", *(["ms for one"] if price.single else [])]
        for name in columns:
            drafts.add_column(name, justify="right")
        for index, (rows, seconds, spread) in enumerate(zip(price.rows, price.seconds, price.spread, strict=True)):
            one = [f"{1e3 * price.single[index]:.2f}"] if price.single else []
            drafts.add_row(str(rows), f"{1e3 * seconds:.2f}", f"{spread:.0%}", *one)
        parts += [f"drafting {price.draft_length} tokens a row with {method}", drafts]
    return Group(*parts)
