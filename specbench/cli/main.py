"""The command line: thin, and light to import. Errors of a user are one line on stderr and exit code 2."""

from __future__ import annotations

import sys

import typer

from specbench.cli import (
    calibrate,
    catalogue,
    compare,
    export,
    frontier,
    inspect,
    leaderboard,
    loads,
    profile,
    quality,
    recommend,
    records,
    report,
    run_command,
    simulate,
    sla,
    sweep,
    train,
    train_fit,
    train_plan,
    verdicts,
)
from specbench.errors import SpecbenchError

app = typer.Typer(
    name="specbench",
    help="The referee for speculative decoding: drafters compared on one batched, exact verifier loop.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("run")(run_command.run)
app.command("list")(catalogue.list_names)
app.command("fetch")(catalogue.fetch)
app.command("show")(records.show)
app.command("inspect")(inspect.inspect)
app.command("export")(export.export)
app.command("profile")(profile.profile)
app.command("calibrate")(calibrate.calibrate)
app.command("compare")(compare.compare)
app.command("frontier")(frontier.frontier)
app.command("loads")(loads.loads)
app.command("sla")(sla.sla)
app.command("quality")(quality.quality)
app.command("recommend")(recommend.recommend)
app.command("simulate")(simulate.simulate)
app.command("verdicts")(verdicts.verdicts)
app.command("sweep")(sweep.sweep)
train.app.command("fit")(train_fit.fit)
train.app.command("export")(train_fit.export)
train.app.command("plan")(train_plan.plan)
app.add_typer(train.app, name="train")
app.add_typer(leaderboard.app, name="leaderboard")
app.add_typer(report.app, name="report")


def run() -> None:
    """The ``specbench`` command."""
    try:
        app()
    except SpecbenchError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    run()
