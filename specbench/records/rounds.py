"""A trace as one compressed columnar file, and back without loss.

The file holds three tables under each other, told apart by the column ``table``: "request", "round" and "step"; one
of a server's run has "served" too. A column that a table does not have is null there. The run's own fields are JSON in
the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from specbench.errors import RecordError
from specbench.server_trace import ServedTrace, ServerCounts, ServerTrace
from specbench.types import RequestTrace, RoundTrace, RunTrace, Sampling, StepTrace

if TYPE_CHECKING:
    import pyarrow as pa

LAYOUT = 1
_RUN_FIELDS = ("method", "draft_length", "concurrency", "wall_s", "status", "paced")
_LATER = {"paced": False}  # what files from before a field meant
Row = type[RequestTrace] | type[RoundTrace] | type[StepTrace] | type[ServedTrace]
_TABLES: dict[str, Row] = {"request": RequestTrace, "round": RoundTrace, "step": StepTrace}
_SERVED: dict[str, Row] = {**_TABLES, "served": ServedTrace}
_SERVED_ALONE = {"request_tokens"}  # columns that only a server's run has


def _arrow_type(annotation: str) -> Any:
    """Arrow type of a trace field, from its annotation in `types`."""
    import pyarrow as pa

    kinds = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}
    plain = annotation.removesuffix(" | None")
    if plain.startswith("tuple["):
        inner = plain.removeprefix("tuple[").removesuffix(", ...]")
        return pa.list_(kinds[inner])
    return kinds[plain]


def _column(table: str, field: str) -> str:
    return f"{table}_{field}"


def _schema(tables: dict[str, Row]) -> pa.Schema:
    import pyarrow as pa

    columns = [pa.field("table", pa.string(), nullable=False)]
    for table, kind in tables.items():
        columns += [pa.field(_column(table, f.name), _arrow_type(str(f.type))) for f in fields(kind)]
    if "served" not in tables:
        columns = [column for column in columns if column.name not in _SERVED_ALONE]
    return pa.schema(columns)


def _part(table: str, rows: tuple[Any, ...], schema: pa.Schema) -> pa.Table:
    """The rows of one table, with nulls in the columns of the others."""
    import pyarrow as pa

    own = {_column(table, f.name): f.name for f in fields(_SERVED[table])}
    arrays: list[Any] = []
    for column in schema:
        if column.name == "table":
            arrays.append(pa.array([table] * len(rows), column.type))
        elif column.name in own:
            arrays.append(pa.array([getattr(row, own[column.name]) for row in rows], column.type))
        else:
            arrays.append(pa.nulls(len(rows), column.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def encode(trace: RunTrace, *, check: Callable[[RunTrace], None]) -> bytes:
    """The file's bytes. ``check`` raises RecordError for a trace that must not be written; it runs first.

    Errors: RecordError also for values that the file cannot hold (integers beyond 64 bits, broken text).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check(trace)
    run = {name: getattr(trace, name) for name in _RUN_FIELDS}
    run |= {"layout": LAYOUT, "sampling": asdict(trace.sampling)}
    parts: dict[str, tuple[Any, ...]] = {"request": trace.requests, "round": trace.rounds, "step": trace.steps}
    if trace.server is not None:
        parts["served"] = trace.served
        run["server"] = asdict(trace.server)
    schema = _schema(_TABLES if trace.server is None else _SERVED)
    schema = schema.with_metadata({b"specbench": json.dumps(run).encode()})
    sink = pa.BufferOutputStream()
    try:
        with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
            for table, rows in parts.items():
                writer.write_table(_part(table, rows, schema))
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError) as error:
        raise RecordError(f"the trace cannot be written: {_line(error)}; report this with the run's command") from error
    written: bytes = sink.getvalue().to_pybytes()
    return written


def decode(data: bytes, *, where: str) -> RunTrace:
    """The trace in a file's bytes; ``where`` names the file in errors.

    Errors: RecordError when the file is truncated, damaged, of a newer layout or not ours.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # On this thread alone, from Arrow's own buffer: workers of its pools that still hold an object of Python's when
        # the process ends can abort it (arrow issues 34314, 50482).
        with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
            table = file.read(use_threads=False)
        run = json.loads((table.schema.metadata or {})[b"specbench"])
        layout = run["layout"]
        if layout == LAYOUT:
            return _trace(table, run)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        seen = _line(error)
        raise RecordError(f"{where}: no readable rounds file ({seen}); it is damaged, run the cell again") from error
    raise RecordError(f"{where}: rounds layout {layout}, this version reads {LAYOUT}; upgrade specbench-llm")


def _trace(table: pa.Table, run: dict[str, Any]) -> RunTrace:
    rows: dict[str, list[Any]] = {}
    names = table.column("table").to_pylist()
    for name, kind in (_TABLES if run.get("server") is None else _SERVED).items():
        first = names.index(name) if name in names else 0
        part = table.slice(first, names.count(name))
        present = [f.name for f in fields(kind) if _column(name, f.name) not in _SERVED_ALONE or "server" in run]
        columns = {field: part.column(_column(name, field)).to_pylist() for field in present}
        rows[name] = [
            kind(**{field: _value(values[i]) for field, values in columns.items()}) for i in range(part.num_rows)
        ]
    return RunTrace(
        requests=tuple(rows["request"]),
        rounds=tuple(rows["round"]),
        steps=tuple(rows["step"]),
        served=tuple(rows.get("served", ())),
        server=_server(run.get("server")),
        sampling=Sampling(**run["sampling"]),
        **{name: (_LATER | run)[name] for name in _RUN_FIELDS},
    )


def _server(document: dict[str, Any] | None) -> ServerTrace | None:
    if document is None:
        return None
    counts = document["counts"]
    if counts is not None:
        counts = ServerCounts(**{name: _value(value) for name, value in counts.items()})
    return ServerTrace(**{**document, "counts": counts})


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _line(error: BaseException) -> str:
    """The first line of a library's error, short enough for one line of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
