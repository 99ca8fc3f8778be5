"""The DSpark paper's figures 2 to 8 (arXiv 2607.05147) from any set of records.

A figure is drawn from what the records hold: runs that may not be ranked are named and left out, points of different
comparability groups stand on different sheets, and a figure without data is absent with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from specbench.records.schema import Record, digest
from specbench.report import entries as rows
from specbench.report.entries import Entry, Measured, bucket
from specbench.report.frontier import frontier
from specbench.report.series import by_workload
from specbench.report.sheet import Figure, Mark, Panel, Series, Sheet
from specbench.report.tables import full_label, method_label, policy_of

ALL = "all prompts"
Value = Callable[[Entry], Measured | None]
Line = tuple[str, list[tuple[float, Entry]]]  # label, entries by where they stand


def figures(entries: Sequence[Entry]) -> list[Figure]:
    """Figures 2 to 8, in order; those that the entries cannot fill say what is lacking."""
    return [build(entries) for build in (_fig2, _fig3, _fig4, _fig5, _fig6, _fig7, _fig8)]


# ------------------------------------------------------------------------------------------------ what they share


def _figure(key: str, title: str, caption: str, sheets: Iterable[Sheet | None], *, lacking: str,
            notes: Sequence[str] = ()) -> Figure:  # fmt: skip
    drawn = tuple(sheet for sheet in sheets if sheet is not None and sheet.panels)
    missing = "" if drawn else lacking
    return Figure(key, title, caption, drawn, missing, tuple(notes) if drawn else ())


def _groups(entries: Iterable[Entry], *, timings: bool, loads: bool = False) -> Mapping[str, list[Entry]]:
    held = [entry for entry in entries if entry.timed or not timings]
    if not loads:
        return bucket(held, lambda entry: rows.setting(entry, timings=timings))
    # what the loads' own samples of prompts decide is for `by_workload`: a set of it is a sheet
    place = {r.run_id: n for n, members in enumerate(by_workload([e.record for e in held])) for r in members}

    def curve(entry: Entry) -> str:
        alike = rows.setting(entry, timings=timings, loads=True, drop=("prompt_set",))
        return digest([alike, place[entry.record.run_id]])

    return bucket(held, curve)


def _sheet(sha: str, members: Sequence[Entry], panels: Iterable[Panel | None], *, without: Sequence[str] = (),
           notes: Sequence[str] = ()) -> Sheet:  # fmt: skip
    shown = tuple(panel for panel in panels if panel is not None and panel.series)
    return Sheet(sha[:12], rows.joined_facts(members, without=without), shown, tuple(notes))


def _scopes(members: Sequence[Entry]) -> list[tuple[str, dict[str, str]]]:
    """A panel's title and scope for each domain, then for all prompts where that is not the same."""
    domains = sorted({name for entry in members for name in entry.domains()})
    found = [(name, {"domain": name}) for name in domains]
    return found if len(found) == 1 else [*found, (ALL, {})]


def _lines(
    members: Sequence[Entry],
    x: Callable[[Entry], float | None],
    *,
    varies: Sequence[str],
    plain: Callable[[Record], str],
    least: int = 2,
) -> list[Line]:
    """Entries as lines over ``x``, alike in all but what varies; weights part a line with two points at one x.

    Lines with fewer than ``least`` places are left out.
    """
    placed = [(place, entry) for entry in members if (place := x(entry)) is not None]
    found: list[list[tuple[float, Entry]]] = []
    loose, strict = tuple(varies), tuple(name for name in varies if name != "weights")
    for line in bucket(placed, lambda one: rows.contestant(one[1].record, without=loose)).values():
        clash = len({place for place, _ in line}) < len(line)
        parted = bucket(line, lambda one: rows.contestant(one[1].record, without=strict)).values()
        found += parted if clash else [line]
    found = [line for line in found if len({place for place, _ in line}) >= least]
    for line in found:
        line.sort(key=lambda one: one[0])
    texts = rows.labels([line[0][1] for line in found], plain)
    return sorted(zip(texts, found), key=lambda pair: pair[0])


def _series(lines: Sequence[Line], value: Value) -> tuple[Series, ...]:
    found = []
    for label, line in lines:
        marks = [Mark(x, held.row, held.run_ids) for x, entry in line if (held := value(entry)) is not None]
        if marks:
            found.append(Series(label, tuple(marks)))
    return tuple(found)


def _method(record: Record) -> str:
    return record.method


def _reader(metric: str, scope: Mapping[str, str]) -> Value:
    return lambda entry: entry.get(metric, **scope)


def _mean_decode(metric: str) -> Value:
    return _reader(metric, {"steps": "decode", "stat": "mean"})


def _rate_reader(scope: Mapping[str, str]) -> Value:
    return lambda entry: acceptance_rate(entry, scope)


def acceptance_rate(entry: Entry, scope: Mapping[str, str]) -> Measured | None:
    """Accepted over verified drafts; the draft length is in its scope."""
    return entry.get("acceptance_rate", **scope, gamma=str(entry.record.draft_length))


# -------------------------------------------------------------------------------------- accepted drafts and lengths


def _positions(entry: Entry, metric: str, scope: Mapping[str, str]) -> list[tuple[int, Measured]]:
    found = [(k, entry.get(metric, **scope, k=str(k))) for k in range(1, entry.record.draft_length + 1)]
    return [(k, held) for k, held in found if held is not None]


def _by_position(members: Sequence[Entry], metric: str, scope: Mapping[str, str]) -> tuple[Series, ...]:
    found = []
    for label, entry in sorted(zip(rows.labels(members, full_label), members), key=lambda pair: pair[0]):
        held = _positions(entry, metric, scope)
        if held:
            found.append(Series(label, tuple(Mark(float(k), one.row, one.run_ids) for k, one in held)))
    return tuple(found)


def _fig2(entries: Sequence[Entry]) -> Figure:
    fit = [entry for entry in entries if entry.plain and len(_positions(entry, "conditional", {})) > 1]
    sheets = [
        _sheet(
            sha,
            members,
            (
                Panel(
                    title, "position", "conditional acceptance", _by_position(members, "conditional", scope), steps=True
                )
                for title, scope in _scopes(members)
            ),
            without=("device",),
        )
        for sha, members in _groups(fit, timings=False).items()
    ]
    return _figure(
        "fig2",
        "Conditional acceptance by position",
        "Of the rounds that accepted all drafts before a position, the share that accepted this one too.",
        sheets,
        lacking="no run with a fixed length of two or more drafts that may be ranked",
        notes=_cut(entries),
    )


def _cut(entries: Sequence[Entry]) -> list[str]:
    """Which policies a figure of fixed lengths leaves out."""
    names = sorted({policy_of(entry.record) for entry in entries if not entry.plain})
    return [f"only fixed draft lengths are drawn; left out are runs with {', '.join(names)}"] if names else []


def depth(record: Record) -> float | None:
    """Layers of the drafter, where the record says."""
    layers = record.drafter.details.get("layers") if record.drafter is not None else None
    return float(layers) if isinstance(layers, int) and not isinstance(layers, bool) and layers > 0 else None


def _fig3(entries: Sequence[Entry]) -> Figure:
    sheets = []
    fit = [entry for entry in entries if entry.plain and depth(entry.record) is not None]
    for sha, members in _groups(fit, timings=False).items():
        lines = _lines(members, lambda e: depth(e.record), varies=("weights",), plain=full_label, least=1)
        if not any(len(line) > 1 for _, line in lines):
            continue
        panels = (
            Panel(title, "draft layers", "tau", _series(lines, _reader("tau", scope)), steps=True)
            for title, scope in _scopes(members)
        )
        sheets.append(_sheet(sha, members, panels, without=("device",)))
    return _figure(
        "fig3",
        "Accepted length by depth of the drafter",
        "Tokens committed per round, bonus included, over the number of layers of the drafter.",
        sheets,
        lacking="no method with drafters of two depths (a record says it as 'layers' in its drafter's details)",
        notes=_cut(entries),
    )


def _fig4(entries: Sequence[Entry]) -> Figure:
    sheets = []
    fit = [entry for entry in entries if entry.plain and entry.record.draft_length]
    for sha, members in _groups(fit, timings=True).items():
        lines = _lines(members, lambda e: float(e.record.draft_length), varies=("draft_length", "policy", "weights"),
                       plain=_method)  # fmt: skip
        axis = "drafts a round"
        panels = [
            Panel(title, axis, "tau", _series(lines, _reader("tau", scope)), steps=True)
            for title, scope in _scopes(members)
        ]
        for metric in ("T_draft", "T_round"):
            name = f"{metric}, ms a decode round"
            panels.append(Panel(metric, axis, name, _series(lines, _mean_decode(metric)), scale=1000, steps=True))
        sheets.append(_sheet(sha, members, panels))
    return _figure(
        "fig4",
        "Accepted length and latency by draft length",
        "Tokens committed per round, bonus included, and mean times of a decode round. The paper counts the anchor in "
        "its proposal lengths: its 4, 8, 12 and 16 are 3, 7, 11 and 15 drafts.",
        sheets,
        lacking="no method with two fixed draft lengths in one comparability group",
        notes=_cut(entries),
    )


def threshold(record: Record) -> float | None:
    """The confidence below which drafts are not verified: 0 for a fixed length; None for other policies."""
    name, _, argument = policy_of(record).partition(":")
    if name == "fixed":
        return 0.0 if argument in ("", str(record.draft_length)) else None
    try:
        return float(argument) if name == "threshold" else None
    except ValueError:
        return None


def _fig5(entries: Sequence[Entry]) -> Figure:
    sheets = []
    fit = [entry for entry in entries if entry.record.draft_length and threshold(entry.record) is not None]
    for sha, members in _groups(fit, timings=False).items():
        lines = _lines(members, lambda e: threshold(e.record), varies=("policy", "calibration", "cost_table"),
                       plain=method_label)  # fmt: skip
        axis = "confidence threshold"
        panels = []
        for title, scope in _scopes(members):
            panels.append(Panel(title, axis, "acceptance rate", _series(lines, _rate_reader(scope))))
        for metric, name in (("tau", "tau"), ("verification_budget", "tokens verified a round")):
            panels.append(Panel(metric, axis, name, _series(lines, _reader(metric, {}))))
        sheets.append(_sheet(sha, members, panels, without=("device",)))
    return _figure(
        "fig5",
        "Sweep of the confidence threshold",
        "Accepted over verified drafts, accepted length and tokens verified a round. A fixed length stands at 0.",
        sheets,
        lacking="no method with two thresholds of the policy threshold:p in one comparability group",
    )


# ------------------------------------------------------------------------------------------------------ confidence


SHOWN_POSITIONS = (1, 3, 5, 7)  # the paper's


def _bins(entry: Entry, k: int) -> tuple[Mark, ...]:
    """The newest run's diagram at a position: shares accepted over mean forecasts."""
    record, found = entry.records[-1], entry.found[-1]
    at = {"k": str(k)}.items()
    forecasts = {row.scope["bin"]: row for row in found.along("reliability_forecast", "bin", at)}
    outcomes = {row.scope["bin"]: row for row in found.along("reliability_outcome", "bin", at)}
    marks = [
        Mark(forecast, outcomes[name], (record.run_id,)) for name, forecast in forecasts.items() if name in outcomes
    ]
    return tuple(sorted(marks, key=lambda mark: mark.at))


def _with_state(record: Record) -> str:
    calibration = rows.calibration_of(record)
    state = "as drafted" if calibration is None else f"calibrated ({calibration[:8]})"
    return f"{full_label(record)}, {state}"


def _fig6(entries: Sequence[Entry]) -> Figure:
    sheets = []
    fit = [entry for entry in entries if any(_bins(entry, k) for k in range(1, entry.record.draft_length + 1))]
    for sha, members in _groups(fit, timings=False).items():
        panels: list[Panel] = []
        named = sorted(zip(rows.labels(members, _with_state), members), key=lambda pair: pair[0])
        most = max(entry.record.draft_length for entry in members)
        for k in [k for k in SHOWN_POSITIONS if k <= most]:
            series = tuple(Series(text, marks) for text, entry in named if (marks := _bins(entry, k)))
            panels.append(Panel(f"position {k}", "forecast", "share accepted", series, diagonal=True))
        panels.append(Panel("ECE", "position", "calibration error", _scores(named, "ece"), steps=True))
        panels.append(Panel("AUROC", "position", "area under the ROC curve", _scores(named, "auroc"), steps=True))
        sheets.append(_sheet(sha, members, panels, without=("device",)))
    return _figure(
        "fig6",
        "Reliability of the confidence",
        "Share of rounds that accepted all drafts up to a position, by the product of their confidences; calibration "
        "error and AUROC by position. Diagrams are of the newest run of a contestant.",
        sheets,
        lacking="no run with a drafter that states confidences and rounds that verified all drafts",
    )


def _scores(named: Sequence[tuple[str, Entry]], metric: str) -> tuple[Series, ...]:
    found = []
    for text, entry in named:
        held = _positions(entry, metric, {})
        if held:
            found.append(Series(text, tuple(Mark(float(k), one.row, one.run_ids) for k, one in held)))
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------- load


def _fig7(entries: Sequence[Entry]) -> Figure:
    sheets, notes = [], []
    for sha, members in _groups(entries, timings=True, loads=True).items():
        found = frontier([record for entry in members for record in entry.records])
        notes += list(found.notes)
        unsure = {r.run_id for e in members if rows.inconclusive(e) for r in e.records}
        series = tuple(
            Series(
                curve.label + rows.UNSURE * any(run.run_id in unsure for p in curve.points for run in p.runs),
                tuple(
                    Mark(point.speed, point.throughput, tuple(run.run_id for run in point.runs), point.dominated)
                    for point in sorted(curve.points, key=lambda point: point.speed.value)
                ),
            )
            for curve in found.curves
            if len(curve.points) > 1
        )
        single = sum(len(curve.points) == 1 for curve in found.curves)
        if series:
            notes += [f"contestants with one load are not drawn: {single}"] if single else []
            panel = Panel("throughput", "tok/s/user", "output tokens/s", series)
            sheets.append(_sheet(sha, members, [panel]))
    return _figure(
        "fig7",
        "Throughput against speed per user",
        "Output tokens a second of the steady window over the mean tok/s of a user, a point for each load. Hollow "
        "points are beaten in both by another load of the same method.",
        sheets,
        lacking="no method with steady throughput and tok/s/user at two loads in one comparability family",
        notes=notes,
    )


_LOAD_PANELS = (
    ("throughput", "output tokens/s", "steady_tokens_per_s"),
    ("verification budget", "tokens verified a round", "verification_budget"),
)


def _fig8(entries: Sequence[Entry]) -> Figure:
    sheets = []
    for sha, members in _groups(entries, timings=True, loads=True).items():
        lines = _lines(members, rows.load_size, varies=(), plain=full_label)
        axis = "users" if rows.pattern(members[0]) == "closed" else "size of the load (requests/s, or rows)"
        panels = [
            Panel(title, axis, name, _series(lines, _reader(metric, {})), doubling=True)
            for title, name, metric in _LOAD_PANELS
        ]
        sheets.append(_sheet(sha, members, panels))
    return _figure(
        "fig8",
        "Throughput and verification budget by load",
        "Output tokens a second of the steady window, and mean tokens judged a round (drafts plus one).",
        sheets,
        lacking="no method at two loads of one pattern in one comparability family",
    )
