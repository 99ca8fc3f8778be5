"""Local tasks for lm-eval: a few items in a file, no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
  cache_dir: {cache}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
{more}
metric_list:
  - metric: {metric}
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""

GENERATE = """generation_kwargs:
  until: ["\\n"]
  do_sample: false
  max_gen_toks: {tokens}
filter_list:
  - name: first
    filter:
      - function: regex
        regex_pattern: "{pattern}"
      - function: take_first
"""


def write_task(
    folder: Path,
    items: Sequence[tuple[str, str]],
    *,
    name: str = "local_sums",
    tokens: int = 16,
    pattern: str = "(-?[0-9]+)",
    kind: str = "generate_until",
) -> Path:
    """A folder with a task of these (question, answer) items, for ``--include-path``."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in items))
    generates = kind == "generate_until"
    more = GENERATE.format(tokens=tokens, pattern=pattern) if generates else 'doc_to_choice: ["1", "2"]'
    text = TASK.format(
        name=name, data=data, cache=folder / "cache", kind=kind, more=more, metric="exact_match" if generates else "acc"
    )
    (folder / f"{name}.yaml").write_text(text)
    return folder
