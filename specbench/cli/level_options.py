"""The percentiles of a service level as options, the same for every command that takes one."""

from __future__ import annotations

from typing import Annotated

from typer import Option

PANEL = "Service level"

TtftP50 = Annotated[float | None, Option("--ttft-p50", metavar="S", help="Most seconds.", rich_help_panel=PANEL)]
TtftP90 = Annotated[float | None, Option("--ttft-p90", metavar="S", help="Most seconds.", rich_help_panel=PANEL)]
TtftP99 = Annotated[float | None, Option("--ttft-p99", metavar="S", help="Most seconds.", rich_help_panel=PANEL)]
TpotP50 = Annotated[float | None, Option("--tpot-p50", metavar="S", help="Most seconds.", rich_help_panel=PANEL)]
TpotP90 = Annotated[float | None, Option("--tpot-p90", metavar="S", help="Most seconds.", rich_help_panel=PANEL)]
TpotP99 = Annotated[float | None, Option("--tpot-p99", metavar="S", help="Most seconds.", rich_help_panel=PANEL)]
