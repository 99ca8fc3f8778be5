"""What a record says of the server that answered, and why its row stands apart from the engine's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.measurement import Measurement, PlannedCell


def served_facts(cell: PlannedCell, measured: Measurement | None) -> dict[str, Any]:
    """Backend, engine, version and resolved flags; of a cell that failed what was known before it was measured."""
    assert cell.served is not None, "the caller asks for a served cell"
    known = {
        "backend": cell.spec.backend,
        "engine": cell.served.engine,
        "version": cell.served.version,
        "not_comparable_because": "a server decodes in a loop of its own, its times are the client's and include the"
        " network, and its steps are only what it counts: rows of one engine and version are compared, no others",
    }
    return {**known, **(measured.server if measured is not None else {})}


def served_key(cell: PlannedCell, key: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the comparability key in which a server's row differs: its engine, and what only the engine knows.

    The machine of a server elsewhere is not known, nor the versions of what it runs on: the engine's stands for them.
    """
    assert cell.served is not None, "the caller asks for a served cell"
    label, endpoint = cell.served.label, cell.spec.server.get("endpoint", "completions")
    rendering = dict(key["rendering"])
    if endpoint == "chat":
        rendering["template"] = "the server's"
    timing = {**key["timing"], "torch": label}
    if not cell.served.local:
        timing |= {"hardware": "the server's, unknown", "driver": None, "threads": 0}
    weights = cell.spec.inputs.get("served_weights")  # a file of its own, such as a GGUF, whose bits are others
    return {
        **({} if weights is None else {"target_weights": weights}),
        "rendering": rendering,
        "acceptance_rule": f"as {label} implements it",
        "draft_sampling": str(cell.spec.options.get("draft_sampling", "the engine's default")),
        "engine": f"{label} by its {endpoint} interface",
        "timing": timing,
    }
