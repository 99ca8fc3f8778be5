"""What a step costs: steps a second by tokens in the batch, and what drafting adds; read, written, and checked.

Measured curves are kept as they are, jagged or not. No torch here: a report may read a table too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.engine.costs import Floats, PromptCost, RowCost, WidthCost
from specbench.errors import ConfigError

FORMAT = "specbench-cost-table"
VERSION = 1

__all__ = [
    "CostTable", "Floats", "Origin", "PromptCost", "RowCost", "WidthCost", "merged", "parse", "read", "to_document",
    "to_sglang",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a table was measured; what is None was not stated."""

    device: str | None = None
    weights_sha256: str | None = None
    dtype: str | None = None
    threads: int | None = None
    torch: str | None = None
    context: int | None = None  # cached tokens a row while it was measured


@dataclass(frozen=True, slots=True)
class CostTable:
    """Steps a second of the target's forward by tokens in the batch.

    ``lookup`` "floor": the value at the largest measured point not beyond the tokens asked for holds; "linear": step
    times are joined by straight lines. Beyond ``max_tokens`` the time grows in proportion to the tokens, so that what
    was never measured is not free. ``row_cost`` adds seconds by rows; ``steps_per_s`` is then without them.
    ``width_cost`` mends that by how full the rows are; ``uneven_cost`` is what rows of unlike numbers of tokens take
    beyond equal rows with as many in all (`uneven`). ``tokens_per_row`` says how the rows of the measured batches were
    filled. ``spread`` is the interquartile range of the repeats over their median. ``draft`` holds the price of
    drafting by method, ``prompt`` that of prompt tokens, which need no logits; without it they cost what verified ones
    do.
    """

    tokens: tuple[int, ...]
    steps_per_s: tuple[float, ...]
    max_tokens: int
    lookup: Literal["floor", "linear"] = "floor"
    spread: tuple[float, ...] = ()
    tokens_per_row: int | None = None
    row_cost: RowCost | None = None
    width_cost: WidthCost | None = None
    uneven_cost: RowCost | None = None
    draft: Mapping[str, RowCost] = field(default_factory=dict)
    prompt: PromptCost | None = None
    origin: Origin = Origin()
    note: str = ""

    def rate(self, tokens: Any, *, rows: int | None = None) -> Floats:
        """Steps a second with ``tokens`` (any shape) in the batch, of ``rows`` rows where rows have a cost."""
        wanted = np.asarray(tokens, dtype=np.int64)
        at = np.asarray(self.tokens, dtype=np.int64)
        if self.lookup == "floor":
            below = np.maximum(np.searchsorted(at, wanted, side="right") - 1, 0)
            rate = np.asarray(self.steps_per_s, dtype=np.float64)[below]
        else:
            rate = 1.0 / np.interp(wanted, at, 1.0 / np.asarray(self.steps_per_s, dtype=np.float64))
        rate = rate * np.minimum(1.0, self.max_tokens / np.maximum(wanted, 1))
        if self.row_cost is None or rows is None:
            return np.asarray(rate, dtype=np.float64)
        whole = 1.0 / rate + self.row_cost.at(rows)
        if self.width_cost is not None:
            whole = np.maximum(whole + self.width_cost.at(wanted, rows=rows), 0.5 * whole)
        return np.asarray(1.0 / whole, dtype=np.float64)

    def seconds(self, tokens: Any, *, rows: int | None = None) -> Floats:
        """Seconds of one step, as `rate`."""
        return 1.0 / self.rate(tokens, rows=rows)

    def uneven(self, rows: int) -> float:
        """Seconds that a step takes longer because its ``rows`` rows have unlike numbers of tokens."""
        return 0.0 if self.uneven_cost is None else float(self.uneven_cost.at(rows))

    def step_s(self, tokens: int, *, rows: int, prompt: int = 0, uneven: bool = False) -> float:
        """Seconds of a step with ``prompt`` tokens of prompts beside ``tokens`` others; ``rows`` of both together.

        The weights are read once for both: what prompt tokens add is their own step's time less the least step's.
        ``uneven``: not all rows have as many of the other tokens.
        """
        more = self.uneven(rows) if uneven else 0.0
        if self.prompt is None or not prompt:
            return float(self.seconds(tokens + prompt, rows=rows)) + more
        alone = self.prompt.at(prompt)
        if not tokens:
            return alone
        return float(self.seconds(tokens, rows=rows)) + more + max(0.0, alone - float(self.seconds(1, rows=1)))

    def check_origin(self, expected: Origin, *, force: bool = False) -> None:
        """Refuse a table of another device, model or setting, or of an unknown one, unless forced.

        Errors: ConfigError naming the first difference.
        """
        if force:
            return
        for name in ("device", "weights_sha256", "dtype", "threads"):
            wanted, seen = getattr(expected, name), getattr(self.origin, name)
            if wanted is None or seen == wanted:
                continue
            stated = f"is for {name} '{_short(seen)}'" if seen is not None else f"does not say its {name}"
            raise ConfigError(
                f"the cost table {stated}, this run has '{_short(wanted)}'; measure one with 'specbench profile', or "
                "use it all the same with --set force_cost_table=true"
            )

    def sha256(self) -> str:
        """Content hash, for the records of runs that planned with the table."""
        return hashlib.sha256(json.dumps(to_document(self), sort_keys=True).encode()).hexdigest()


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) == 64 else text


# --------------------------------------------------------------------------------------------------- documents


Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _RowCostDocument(_Strict):
    rows: Annotated[tuple[Count, ...], Field(min_length=1)]
    seconds: tuple[Annotated[float, Field(ge=0)], ...]
    spread: tuple[float, ...] = ()
    draft_length: Count | None = None
    single: tuple[Annotated[float, Field(ge=0)], ...] = ()


class _WidthCostDocument(_Strict):
    rows: Annotated[tuple[Count, ...], Field(min_length=1)]
    widths: Annotated[tuple[Count, ...], Field(min_length=2)]
    seconds: tuple[tuple[float, ...], ...]


class _PromptDocument(_Strict):
    tokens: Annotated[tuple[Count, ...], Field(min_length=1)]
    seconds: tuple[Positive, ...]
    spread: tuple[float, ...] = ()


class _Document(_Strict):
    format: Literal["specbench-cost-table"]
    version: int
    note: str = ""
    lookup: Literal["floor", "linear"] = "floor"
    tokens: Annotated[tuple[Count, ...], Field(min_length=1)]
    steps_per_s: tuple[Positive, ...]
    spread: tuple[float, ...] = ()
    max_tokens: Count
    tokens_per_row: Count | None = None
    row_cost: _RowCostDocument | None = None
    width_cost: _WidthCostDocument | None = None
    uneven_cost: _RowCostDocument | None = None
    draft: dict[str, _RowCostDocument] = {}
    prompt: _PromptDocument | None = None
    device: str | None = None
    weights_sha256: str | None = None
    dtype: str | None = None
    threads: int | None = None
    torch: str | None = None
    context: int | None = None


class _SGLangTable(_Strict):
    sample_batch_tokens: Annotated[tuple[Count, ...], Field(min_length=1)]
    sample_steps_per_sec: tuple[Positive, ...]
    max_batch_tokens: Count


class _SGLangAdditive(_Strict):
    bias_seconds: Positive
    bs_probes: Annotated[tuple[Count, ...], Field(min_length=1)]
    alpha_seconds: tuple[float, ...]
    m_probes: Annotated[tuple[Count, ...], Field(min_length=1)]
    theta_seconds: tuple[float, ...]


def to_document(table: CostTable) -> dict[str, Any]:
    """The table as our JSON object; what is not stated is left out."""
    origin = {name: getattr(table.origin, name) for name in Origin.__dataclass_fields__}
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "note": table.note,
        "lookup": table.lookup,
        "tokens": list(table.tokens),
        "steps_per_s": list(table.steps_per_s),
        "spread": list(table.spread),
        "max_tokens": table.max_tokens,
        "tokens_per_row": table.tokens_per_row,
        "row_cost": None if table.row_cost is None else _row_document(table.row_cost),
        "width_cost": None if table.width_cost is None else asdict(table.width_cost),
        "uneven_cost": None if table.uneven_cost is None else _row_document(table.uneven_cost),
        "draft": {method: _row_document(cost) for method, cost in table.draft.items()},
        "prompt": None if table.prompt is None else {k: list(v) for k, v in asdict(table.prompt).items()},
        **origin,
    }
    return {name: value for name, value in whole.items() if value not in (None, "", [], {})}


def _row_document(cost: RowCost) -> dict[str, Any]:
    whole = {
        "rows": list(cost.rows),
        "seconds": list(cost.seconds),
        "spread": list(cost.spread),
        "draft_length": cost.draft_length,
        "single": list(cost.single),
    }
    return {name: value for name, value in whole.items() if value not in (None, [])}


def parse(document: object, *, where: str) -> CostTable:
    """A table from a JSON object: ours, or one of the two that SGLang reads. ``where`` names it in errors.

    Errors: ConfigError for another shape, lists of unequal length, or points that do not rise.
    """
    if not isinstance(document, dict):
        raise ConfigError(f"{where} holds no JSON object; make a cost table with 'specbench profile'")
    try:
        if "sample_batch_tokens" in document:
            return _from_sglang(_SGLangTable.model_validate(document), where)
        if "bias_seconds" in document:
            return _from_additive(_SGLangAdditive.model_validate(document), where)
        return _from_document(_Document.model_validate(document), where)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the object"
        raise ConfigError(
            f"{where} is no cost table: {place}: {fault['msg']}; make one with 'specbench profile'"
        ) from error


def _rising(points: tuple[int, ...], values: tuple[object, ...], *, name: str, where: str) -> None:
    if len(points) != len(values):
        raise ConfigError(f"{where}: {name} has {len(points)} points and {len(values)} values; they must be as many")
    if any(a >= b for a, b in itertools.pairwise(points)):
        raise ConfigError(f"{where}: the points of {name} do not rise; sort them, each once")


def _row_cost(found: _RowCostDocument, *, name: str, where: str) -> RowCost:
    _rising(found.rows, found.seconds, name=name, where=where)
    if found.single:
        _rising(found.rows, found.single, name=f"{name}.single", where=where)
        if found.draft_length is None:
            raise ConfigError(f"{where}: {name} prices one draft a row beside an unstated number; add draft_length")
    return RowCost(found.rows, found.seconds, found.spread, found.draft_length, found.single)


def _width_cost(found: _WidthCostDocument | None, *, where: str) -> WidthCost | None:
    if found is None:
        return None
    _rising(found.rows, found.seconds, name="width_cost.rows", where=where)
    for line in found.seconds:
        _rising(found.widths, line, name="width_cost.widths", where=where)
    return WidthCost(found.rows, found.widths, found.seconds)


def _from_document(found: _Document, where: str) -> CostTable:
    if found.version != VERSION:
        raise ConfigError(f"{where}: cost table version {found.version}, this reads {VERSION}; upgrade specbench-llm")
    _rising(found.tokens, found.steps_per_s, name="tokens", where=where)
    prompt = found.prompt
    if prompt is not None:
        _rising(prompt.tokens, prompt.seconds, name="prompt", where=where)
    return CostTable(
        tokens=found.tokens,
        steps_per_s=found.steps_per_s,
        max_tokens=max(found.max_tokens, found.tokens[-1]),
        lookup=found.lookup,
        spread=found.spread,
        tokens_per_row=found.tokens_per_row,
        row_cost=None if found.row_cost is None else _row_cost(found.row_cost, name="row_cost", where=where),
        width_cost=_width_cost(found.width_cost, where=where),
        uneven_cost=None
        if found.uneven_cost is None
        else _row_cost(found.uneven_cost, name="uneven_cost", where=where),
        draft={m: _row_cost(cost, name=f"draft.{m}", where=where) for m, cost in found.draft.items()},
        prompt=None if prompt is None else PromptCost(prompt.tokens, prompt.seconds, prompt.spread),
        origin=Origin(**{name: getattr(found, name) for name in Origin.__dataclass_fields__}),
        note=found.note,
    )


def _from_sglang(found: _SGLangTable, where: str) -> CostTable:
    _rising(found.sample_batch_tokens, found.sample_steps_per_sec, name="sample_batch_tokens", where=where)
    if found.max_batch_tokens < found.sample_batch_tokens[-1]:
        raise ConfigError(f"{where}: max_batch_tokens {found.max_batch_tokens} is below the last point; raise it")
    return CostTable(found.sample_batch_tokens, found.sample_steps_per_sec, found.max_batch_tokens)


def _from_additive(found: _SGLangAdditive, where: str) -> CostTable:
    """T(rows, tokens) = bias + alpha(rows) + theta(tokens), both joined by straight lines (SGLang's additive table)."""
    _rising(found.bs_probes, found.alpha_seconds, name="bs_probes", where=where)
    _rising(found.m_probes, found.theta_seconds, name="m_probes", where=where)
    whole = [found.bias_seconds + theta for theta in found.theta_seconds]
    if min(whole) <= 0 or min(found.alpha_seconds) < 0:
        raise ConfigError(f"{where}: a step would take no time; bias + theta must be positive and alpha not negative")
    return CostTable(
        tokens=found.m_probes,
        steps_per_s=tuple(1.0 / seconds for seconds in whole),
        max_tokens=found.m_probes[-1],
        lookup="linear",
        row_cost=RowCost(found.bs_probes, found.alpha_seconds),
    )


def to_sglang(table: CostTable, *, additive: bool = False) -> dict[str, Any]:
    """The table in SGLang's JSON, plain by tokens or additive by rows and tokens.

    A plain table holds whole steps: with a cost by rows, those of batches filled as ``tokens_per_row`` says. Errors:
    ConfigError when the table lacks what the form needs.
    """
    if not additive:
        tokens_per_row = table.tokens_per_row or 0
        if table.row_cost is not None and not tokens_per_row:
            raise ConfigError(
                "the cost table has a cost by rows but does not say how rows were filled; write it additive"
            )
        rates = [
            float(table.rate(m, rows=-(-m // tokens_per_row) if tokens_per_row else None)) if table.row_cost else rate
            for m, rate in zip(table.tokens, table.steps_per_s, strict=True)
        ]
        return {
            "sample_batch_tokens": list(table.tokens),
            "sample_steps_per_sec": rates,
            "max_batch_tokens": table.max_tokens,
        }
    seconds = [1.0 / rate for rate in table.steps_per_s]
    bias = min(seconds)
    cost = table.row_cost or RowCost((1,), (0.0,))
    return {
        "bias_seconds": bias,
        "bs_probes": list(cost.rows),
        "alpha_seconds": list(cost.seconds),
        "m_probes": list(table.tokens),
        "theta_seconds": [s - bias for s in seconds],
    }


def read(path: Path) -> CostTable:
    """A table from a JSON file. Errors: ConfigError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the cost table {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); make a cost table with 'specbench profile'") from error
    return parse(document, where=str(path))


def merged(table: CostTable, *, draft: Mapping[str, RowCost]) -> CostTable:
    """The table with the prices of further drafters."""
    return replace(table, draft={**table.draft, **draft})
