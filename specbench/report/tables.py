"""Tables for the terminal, from records alone: a run's closing summary, and one record in full."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specbench.records.schema import Record
from specbench.report import numbers
from specbench.report.numbers import ABSENT

_VERDICT_STYLE = {"pass": "green", "fail": "bold red", "inconclusive": "yellow"}
_BARS = " ▁▂▃▄▅▆▇█"


def _verdict(record: Record) -> Text:
    if record.verdict is None:
        return Text("control" if record.method == "vanilla" else ABSENT, style="dim")
    return Text(record.verdict.outcome, style=_VERDICT_STYLE[record.verdict.outcome])


def method_label(record: Record) -> str:
    """As users write it: ``ngram:5``; plain decoding without a length."""
    return f"{record.method}:{record.draft_length}" if record.draft_length else record.method


def policy_of(record: Record) -> str:
    """The verification policy as users write it."""
    return str(record.spec.get("policy") or "fixed")


def full_label(record: Record) -> str:
    """``dspark:7``, with the policy where it is not the plain one."""
    return with_policy(method_label(record), policy_of(record), draft_length=record.draft_length)


def with_policy(label: str, policy: str, *, draft_length: int) -> str:
    """A method's label with its policy, left out where every draft is verified or none is made."""
    plain = not draft_length or policy in ("fixed", f"fixed:{draft_length}")
    return label if plain else f"{label} {policy}"


def histogram(record: Record) -> str:
    """Share of rounds by accepted drafts 0, 1, 2, ... as a row of bars."""
    rows = [row for row in record.estimates if row.metric == "accepted_histogram"]
    if not rows:
        return ABSENT
    values = [row.value for row in sorted(rows, key=lambda row: int(row.scope["accepted"]))]
    top = max(values)
    levels = [0 if value == 0 else 1 + round(value / top * (len(_BARS) - 2)) for value in values]
    return "".join(_BARS[level] for level in levels)


def domains(records: Sequence[Record]) -> list[str]:
    """Domains that any of the records has a tau for, in alphabetical order."""
    taus = [row for record in records for row in record.estimates if row.metric == "tau"]
    return sorted({row.scope["domain"] for row in taus if "domain" in row.scope})


def summary(records: Sequence[Record], *, with_histogram: bool = False) -> RenderableType:
    """The closing table of a run: a block per domain and one for all, a row per method.

    tau and speed-up with their 95 % intervals over prompts; tok/s of decoding; times are means per pure decode round
    in ms. What a server answered is timed by the client, and marked so. Failed and interrupted cells are named below
    the table.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, header_style="bold")
    table.add_column("method", no_wrap=True)
    for name in ("tau [95%]", "tok/s", "speed-up [95%]", "T_draft", "T_verify", "T_other"):
        bounded = "[" in name  # value and interval go on two lines on a narrow terminal
        table.add_column(name, justify="right", no_wrap=not bounded, min_width=11 if bounded else None)
    if with_histogram:
        table.add_column("accepted", no_wrap=True)
    table.add_column("lossless", no_wrap=True)
    blocks: list[dict[str, str]] = [{"domain": name} for name in domains(records)]
    if len(blocks) != 1:
        blocks.append({})
    shown = [record for record in records if record.estimates]
    for scope in blocks if shown else ():
        table.add_row(Text(scope.get("domain", "all"), style="bold cyan"))
        for index, record in enumerate(shown):
            cells = _cells(record, scope, alone=len(blocks) == 1, with_histogram=with_histogram)
            table.add_row(f" {method_label(record)}", *cells, end_section=index == len(shown) - 1)
    legend = Text("times in ms per decode round; intervals: bootstrap over prompts", "dim")
    if any(record.find("client_tokens_per_s") is not None for record in shown):
        legend.append(f"\n{numbers.CLIENT_LEGEND}")
    return Group(table, legend, *_remarks(records))


def _cells(record: Record, scope: dict[str, str], *, alone: bool, with_histogram: bool) -> list[str | Text]:
    def time(metric: str) -> str:
        return numbers.milliseconds(record.find(metric, **scope, steps="decode", stat="mean"))

    cells: list[str | Text] = [
        numbers.bounded(record.find("tau", **scope)),
        numbers.decode_speed(record, scope),
        numbers.gain(record, scope, alone=alone),
        time("T_draft"),
        time("T_verify"),
        time("T_other"),
    ]
    if with_histogram:
        cells.append(histogram(record) if not scope else "")
    return [*cells, _verdict(record)]


def vocabulary_remarks(record: Record) -> list[str]:
    """How much of the text a drafter with a reduced vocabulary could name."""
    known = record.draft_vocabulary
    if known is None or known.share is None:
        return []
    size = f"{numbers.count(known.size)} of {numbers.count(known.target_size)} tokens"
    return [f"draft vocabulary of {size}, which holds {numbers.percent(known.share)} of those committed"]


def load_remarks(record: Record) -> list[str]:
    """Throughput under a load with its steady window; nothing for a single user."""
    speed = record.find("steady_tokens_per_s")
    edges = [record.find("steady_window", edge=edge) for edge in ("start", "end")]
    load = str(record.comparability.get("load"))
    if load == "closed:1":
        return []
    if speed is None or edges[0] is None or edges[1] is None:
        return [f"load {load}: full load was never reached, so there is no steady throughput"]
    window = f"{edges[0].value:.2f} s to {edges[1].value:.2f} s, {speed.n} tokens"
    return [f"load {load}: {speed.value:.1f} tok/s in the steady window from {window}"]


def _remarks(records: Sequence[Record]) -> list[RenderableType]:
    """What the table does not say: cells without a full result, verdicts that are no pass, alarms."""
    found: list[RenderableType] = []
    for record in records:
        label = method_label(record)
        if record.status != "ok":
            why = f": {record.error.message}" if record.error is not None else ""
            found.append(Text(f"{label}: {record.status}{why}", style="red"))
        if record.verdict is not None and record.verdict.outcome != "pass":
            style = _VERDICT_STYLE[record.verdict.outcome]
            found.append(Text(f"{label}: losslessness {record.verdict.outcome}: {record.verdict.reason}", style=style))
        elif record.verdict is not None and record.verdict.differences:
            found.append(Text(f"{label}: {record.verdict.reason}", style="dim"))
        ours, theirs = (record.find("mean_output_tokens", arm=arm) for arm in ("method", "baseline"))
        if record.spec.get("temperature") and ours is not None and theirs is not None:
            lengths = f"{ours.value:.1f} tokens a request against {theirs.value:.1f} of the baseline"
            found.append(Text(f"{label}: output lengths: {lengths}", style="dim"))
        remarks = [*(load_remarks(record) if record.status == "ok" else ()), *vocabulary_remarks(record)]
        found += [Text(f"{label}: {text}", style="dim") for text in remarks]
        found += [Text(f"{label}: {alarm.name}: {alarm.message}", style="yellow") for alarm in record.alarms]
    return found


# ------------------------------------------------------------------------------------------------- one record


def show_record(record: Record) -> RenderableType:
    """Everything in a record that a reader wants on one screen or two."""
    parts: list[RenderableType] = [_header(record), summary([record], with_histogram=True)]
    parts += [_positions(record), _estimates(record)]
    if record.verdict is not None:
        parts.append(_evidence(record))
    parts += [
        Panel(Text(sample.text), title=Text(f"{sample.task} · {sample.request}"), title_align="left", box=box.MINIMAL)
        for sample in record.samples
    ]
    parts += [Text(f"note: {note}", style="dim") for note in record.notes]
    return Group(*parts)


def _facts(pairs: Sequence[tuple[str, object]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, Text(str(value)))
    return grid


def _header(record: Record) -> RenderableType:
    provenance = record.provenance
    drafter = record.drafter
    revision = str(provenance.get("git_sha", "unknown"))
    if provenance.get("git_dirty") is True:
        revision += " (uncommitted changes)"
    pairs: list[tuple[str, object]] = [
        ("method", method_label(record)),
        ("target", f"{record.target.name}  {record.target.sha256[:12]}  ({record.target.source})"),
        ("drafter", ABSENT if drafter is None else f"{drafter.name}  {drafter.sha256[:12]}  ({drafter.source})"),
        ("status", record.status if record.error is None else f"{record.status}: {record.error.message}"),
        ("created", record.created),
        ("command", " ".join(record.command)),
        ("code", revision),
        ("device", provenance.get("device_name", "unknown")),
        ("cell", record.cell_key),
        ("versions", f"schema {record.schema_version}, metrics {record.metrics_version}"),
        ("requests", ", ".join(f"{count} {name}" for name, count in record.counts.items()) or ABSENT),
    ]
    return Panel(_facts(pairs), title=f"run {record.run_id}", title_align="left", box=box.ROUNDED)


def _positions(record: Record) -> RenderableType:
    """Survival and conditional acceptance by draft position."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="per position", title_justify="left")
    for name in ("k", "survival", "conditional"):
        table.add_column(name, justify="right")
    for k in range(1, record.draft_length + 1):
        rows = [record.find(metric, k=str(k)) for metric in ("survival", "conditional")]
        if any(row is not None for row in rows):
            table.add_row(str(k), *(numbers.bounded(row) for row in rows))
    return table if table.rows else Text("")


def _estimates(record: Record) -> RenderableType:
    """Every estimate over the whole run; those of a domain or task are in the tidy table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="estimates over the run", title_justify="left")
    for name in ("metric", "scope", "value", "unit", "95 % interval", "n"):
        numeric = name in ("value", "n")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name in ("metric", "value"))
    hidden = ("domain", "task", "bin")
    for row in record.estimates:
        if any(name in row.scope for name in hidden) or row.metric in ("survival", "conditional"):
            continue
        scope = ", ".join(f"{name} {value}" for name, value in row.scope.items())
        low, high = row.low, row.high
        bounds = "" if low is None or high is None else f"[{numbers.general(low)}, {numbers.general(high)}]"
        table.add_row(row.metric, scope, numbers.general(row.value), row.unit, bounds, f"{row.n} {row.n_of}")
    return table


def _evidence(record: Record) -> RenderableType:
    verdict = record.verdict
    assert verdict is not None
    pairs: list[tuple[str, object]] = [("losslessness", f"{verdict.outcome}: {verdict.reason}"), ("rule", verdict.rule)]
    for name in ("noise_floor", "share_compared", "p_value", "power", "control"):
        value = getattr(verdict, name)
        if value is not None:
            pairs.append((name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else value))
    for row in verdict.differences[:8]:
        gap = "not recorded" if row.gap is None else f"{row.gap:.3g}"
        kind = "tie" if row.tie else "DIFFERENT"
        where = f"'{row.request}' output token {row.position}: {row.control_token} became {row.token}, gap {gap}"
        pairs.append((kind, where))
    return _facts(pairs)
