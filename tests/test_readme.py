from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from support_engine import outputs, prompts, request, serve
from support_targets import tiny_model

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def _example(class_name: str) -> Any:
    """The plugin of the README's code block that defines ``class_name``."""
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if class_name in block]
    namespace: dict[str, Any] = {"__name__": class_name}
    exec(compile(source, class_name, "exec"), namespace)  # what a reader would save as a file
    return namespace["PLUGIN"]


def test_the_example_drafter_is_lossless_and_gets_drafts_accepted() -> None:
    from specbench_drafters.vanilla import VanillaDrafter

    from specbench.api import Drafter
    from specbench.engine.target import Target

    target = Target(tiny_model())
    requests = [request(n, ids * 3, max_new_tokens=60) for n, ids in enumerate(prompts(5, high=12))]
    plain = serve(target, VanillaDrafter(), requests, k=0, max_context=400)
    plugin = _example("BigramDrafter")
    drafter = plugin.load(None, target=target.view(max_rows=3, max_context=400), options={})
    assert isinstance(drafter, Drafter)
    trace = serve(target, drafter, requests, k=plugin.trained_length, rows=3, max_context=400)
    assert outputs(trace) == outputs(plain)
    assert sum(r.accepted for r in trace.rounds) > 20
    assert all(r.drafted <= plugin.trained_length for r in trace.rounds)


def test_the_example_drafter_forgets_the_slots_former_request() -> None:
    from specbench.engine.target import Target

    target = Target(tiny_model())
    plugin = _example("BigramDrafter")
    (ids,) = prompts(1, high=12)
    alone = serve(target, plugin(target.view(max_rows=1, max_context=400)), [request(1, ids)], rows=1, max_context=400)
    after = [request(0, ids[::-1]), request(1, ids)]
    second = serve(target, plugin(target.view(max_rows=1, max_context=400)), after, rows=1, max_context=400)
    assert [r.draft_ids for r in second.rounds if r.request == "r1"] == [r.draft_ids for r in alone.rounds]
    assert any(r.draft_ids for r in alone.rounds)


def test_the_example_drafter_follows_the_newest_pair() -> None:
    plugin = _example("BigramDrafter")
    drafter = plugin.__new__(plugin)
    drafter.vocab, drafter.followers = 10, torch.zeros(2, 10, dtype=torch.int64)
    rows, features = type("Rows", (), {})(), type("Features", (), {})()
    rows.slots = torch.tensor([1])
    features.row_index = torch.zeros(4, dtype=torch.int64)
    features.token_ids, features.next_ids = torch.tensor([3, 5, 3, 7]), torch.tensor([5, 3, 7, 3])
    features.positions = torch.arange(4)
    drafter.prefill(rows, features)
    rows.last_token = torch.tensor([3])
    proposal = drafter.propose(rows, limits=torch.tensor([3]), rng=None)
    assert proposal.tokens.tolist() == [[7, 3, 7]]
    assert proposal.counts.tolist() == [3]


def test_the_example_task_gives_prompts_and_seeded_samples() -> None:
    from specbench.api import Task

    task: Task = _example("CountingTask")
    every = task.prompts()
    assert len({p.id for p in every}) == 20
    some = task.prompts(limit=5, seed=1)
    assert some == task.prompts(limit=5, seed=1)
    assert [p for p in every if p in some] == some
    assert len(some) == 5


def _commands() -> list[str]:
    blocks = re.findall(r"```\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("specbench ")]


@pytest.mark.parametrize("line", _commands())
def test_every_command_of_the_readme_exists_with_its_options(line: str) -> None:
    import typer.main

    from specbench.cli.main import app

    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    with command.make_context(words[0], words[1:], resilient_parsing=False) as context:
        assert context.command is command


def test_the_readme_names_registered_methods_and_tasks() -> None:
    from specbench import registry
    from specbench.resolve import find_target

    used = [shlex.split(line, comments=True) for line in _commands()]
    pairs = [(a, b) for words in used for a, b in itertools.pairwise(words)]
    methods = {registry._key(b.partition(":")[0]) for a, b in pairs if a in ("-m", "--method")}
    assert methods <= {registry._key(name) for name in registry.names("drafters")}
    assert {b for a, b in pairs if a in ("-t", "--task")} <= set(registry.names("tasks"))
    assert all(find_target(b) for a, b in pairs if a in ("--target", "fetch"))
