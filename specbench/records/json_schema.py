"""The record's document as a JSON Schema, for readers in any language."""

from __future__ import annotations

import json
from typing import Any

from specbench.records.schema import HISTORY, SCHEMA_VERSION, Record

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema of every document that this version reads: those of earlier versions as well.

    What it cannot say is that ``run_id`` is the hash of the rest; `specbench show --check` tests that.
    """
    found = Record.model_json_schema(mode="validation")
    history = "; ".join(f"{version}: {text}" for version, text in HISTORY.items())
    head = {
        "$schema": DIALECT,
        "$id": f"urn:specbench:record:{SCHEMA_VERSION}",
        "title": f"specbench record, schema {SCHEMA_VERSION}",
        "description": f"One measured cell. Versions: {history}.",
    }
    found["required"] = ["schema_version", *found["required"]]  # a default in code, yet no document goes without it
    return {**head, **{name: value for name, value in found.items() if name not in head}}


def to_json() -> str:
    """The schema as a file's text."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
