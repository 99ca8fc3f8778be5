"""Options of the training stages. Defaults live in `specbench.train.spec`: a flag that is not given is None."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

_SOURCES, _ANSWERS, _SERVER = "Prompts", "Answers", "Server"

Shards = Annotated[Path, Option("--out", "-o", help="Folder for the shards; the same folder goes on after a stop.")]
Tasks = Annotated[
    list[str] | None, Option("--task", "-t", help="Prompts of a task; repeatable.", rich_help_panel=_SOURCES)
]
PromptFiles = Annotated[
    list[str] | None,
    Option("--prompts", metavar="FILE.jsonl", help="Prompts of a file; repeatable.", rich_help_panel=_SOURCES),
]
Hub = Annotated[
    str | None,
    Option(
        "--hub",
        metavar="ID|FOLDER",
        help="A data set of conversations, e.g. mlabonne/open-perfectblend.",
        rich_help_panel=_SOURCES,
    ),
]
HubSplit = Annotated[str | None, Option("--hub-split", help="Default: train.", rich_help_panel=_SOURCES)]
NumPrompts = Annotated[
    int | None, Option("--num-prompts", help="Of each source at most (default: all).", rich_help_panel=_SOURCES)
]
Synthesise = Annotated[
    int | None,
    Option("--synthesise", metavar="N", help="User turns that the target writes itself.", rich_help_panel=_SOURCES),
]
Domains = Annotated[
    str | None, Option("--domains", help="Of the written turns (default: math,code,chat).", rich_help_panel=_SOURCES)
]
TurnTemperature = Annotated[
    float | None, Option("--turn-temperature", help="Of the written turns (default: 0.8).", rich_help_panel=_SOURCES)
]
MaxTurnTokens = Annotated[
    int | None, Option("--max-turn-tokens", help="Of a written turn at most (default: 128).", rich_help_panel=_SOURCES)
]
Evaluation = Annotated[
    list[str] | None,
    Option(
        "--evaluation",
        metavar="TASK|FILE",
        help="Prompts to keep out; repeatable (default: every task that can be had).",
        rich_help_panel=_SOURCES,
    ),
]
MaxNewTokens = Annotated[
    int | None, Option("--max-new-tokens", help="A turn at most (default: 256).", rich_help_panel=_ANSWERS)
]
MaxContext = Annotated[
    int | None,
    Option("--max-context", help="Tokens of a conversation at most (default: 2048).", rich_help_panel=_ANSWERS),
]
Temperature = Annotated[float | None, Option("--temperature", help="Default: 1.", rich_help_panel=_ANSWERS)]
TopP = Annotated[float | None, Option("--top-p", help="Default: 1.", rich_help_panel=_ANSWERS)]
TopK = Annotated[int | None, Option("--top-k", help="Default: all.", rich_help_panel=_ANSWERS)]
GreedyShare = Annotated[
    float | None, Option("--greedy-share", help="Answered at temperature 0 (default: 0.25).", rich_help_panel=_ANSWERS)
]
HeldoutShare = Annotated[
    float | None, Option("--heldout-share", help="Never trained on (default: 0.02).", rich_help_panel=_ANSWERS)
]
TargetTokens = Annotated[
    int | None, Option("--target-tokens", help="Stop once so many are written.", rich_help_panel=_ANSWERS)
]
Keep = Annotated[
    Path | None,
    Option("--features", metavar="FOLDER", help="Keep the states in a store meanwhile.", rich_help_panel=_ANSWERS),
]
KeptTaps = Annotated[
    str | None,
    Option("--taps", metavar="K,K,...", help="Which states (default: five, spread evenly).", rich_help_panel=_ANSWERS),
]
Seed = Annotated[int | None, Option("--seed", help="Keys every draw (default: 0).", rich_help_panel=_ANSWERS)]
Thinking = Annotated[
    str | None, Option("--thinking", metavar="default|on|off", help="Template's.", rich_help_panel=_ANSWERS)
]
Rows = Annotated[
    int | None, Option("--rows", help="Sequences written at once (default: 64).", rich_help_panel=_ANSWERS)
]
Block = Annotated[
    int | None,
    Option("--block", help="Prompts of a shard: what a stop loses (default: 512).", rich_help_panel=_ANSWERS),
]
BaseUrl = Annotated[
    str | None,
    Option(
        "--base-url",
        metavar="URL",
        help="Answers by an OpenAI-compatible server (key: SPECBENCH_API_KEY).",
        rich_help_panel=_SERVER,
    ),
]
ServerModel = Annotated[
    str | None, Option("--server-model", help="The target's name at the server.", rich_help_panel=_SERVER)
]
KvMemory = Annotated[
    str | None, Option("--kv-memory", metavar="SIZE", help="Cache budget (default: what a block needs).")
]
Dtype = Annotated[str | None, Option("--dtype", metavar="auto|bfloat16|float32", help="Default: auto.")]
Device = Annotated[str | None, Option("--device", metavar="auto|cpu|cuda[:i]", help="Default: auto.")]
Threads = Annotated[int | None, Option("--threads", help="Torch threads (default: by the machine).")]
