"""Options that commands share. Defaults live in `specbench.config`: a flag that is not given is None here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Option

_LOAD, _SAMPLING, _ENGINE, _OUTPUT = "Prompts and load", "Sampling", "Engine", "Output"
_SERVER = "Servers instead of the engine (key: SPECBENCH_API_KEY)"

Method = Annotated[
    list[str] | None,
    Option("--method", "-m", help="NAME or NAME:k (k drafts a cycle); repeatable, or separated by commas."),
]
Drafter = Annotated[
    list[str] | None, Option("--drafter", metavar="NAME=PATH|HUB", help="Checkpoint of a method; repeatable.")
]
Policy = Annotated[
    str | None, Option("--policy", help="What is verified: fixed:k, threshold:p, algorithm1, load-aware. \\[fixed]")
]
Target = Annotated[
    str | None, Option("--target", help="Target model: a short name, a folder or a hub id. \\[smollm2-135m]")
]
DraftLength = Annotated[
    int | None, Option("--draft-length", "-k", help="Drafts a cycle, never the block size. \\[the drafter's own]")
]

SyntheticTau = Annotated[
    float | None,
    Option("--synthetic-tau", help="Force this accepted length at the real cost; such rows are marked, never ranked."),
]
SyntheticRates = Annotated[
    str | None,
    Option("--synthetic-rates", metavar="A,B,...", help="The same by position: acceptance given all before it."),
]

Task = Annotated[
    list[str] | None,
    Option("--task", "-t", help="A task or a .jsonl file; repeatable. \\[the starter tasks]", rich_help_panel=_LOAD),
]
NumPrompts = Annotated[
    str | None, Option("--num-prompts", metavar="N|all", help="Prompts of each task. [10]", rich_help_panel=_LOAD)
]
MaxNewTokens = Annotated[
    int | None, Option("--max-new-tokens", help="Output tokens a turn at most. [128]", rich_help_panel=_LOAD)
]
IgnoreEos = Annotated[
    bool | None, Option("--ignore-eos", help="Go on past stop tokens: equal output lengths.", rich_help_panel=_LOAD)
]
Thinking = Annotated[
    str | None, Option("--thinking", metavar="default|on|off", help="The template's switch.", rich_help_panel=_LOAD)
]
Concurrency = Annotated[
    int | None,
    Option("--concurrency", "-c", help="Rows at most; users of a closed loop. [1]", rich_help_panel=_LOAD),
]
Workload = Annotated[
    str | None,
    Option("--workload", help="closed, poisson, gamma, burst, trace; --set load.x=y \\[closed]", rich_help_panel=_LOAD),
]
Rate = Annotated[
    float | None, Option("--rate", help="Requests a second of an open loop: load.rate.", rich_help_panel=_LOAD)
]

Temperature = Annotated[float | None, Option("--temperature", help="0 is greedy. [0]", rich_help_panel=_SAMPLING)]
TopP = Annotated[float | None, Option("--top-p", help="Nucleus. [1]", rich_help_panel=_SAMPLING)]
TopK = Annotated[int | None, Option("--top-k", help="Most likely tokens only. \\[all]", rich_help_panel=_SAMPLING)]
Seed = Annotated[int | None, Option("--seed", help="Keys every random draw. [0]", rich_help_panel=_SAMPLING)]

Dtype = Annotated[
    str | None,
    Option(
        "--dtype",
        metavar="auto|bfloat16|float32",
        help="bfloat16 where the device computes in it, else float32 \\[auto]",
        rich_help_panel=_ENGINE,
    ),
]
Device = Annotated[
    str | None, Option("--device", metavar="auto|cpu|cuda[:i]", help="\\[auto]", rich_help_panel=_ENGINE)
]
Threads = Annotated[int | None, Option("--threads", help="Torch threads. \\[by the machine]", rich_help_panel=_ENGINE)]
KvMemory = Annotated[
    str | None,
    Option(
        "--kv-memory", metavar="SIZE", help="Cache budget, e.g. 2GiB. \\[what the run needs]", rich_help_panel=_ENGINE
    ),
]
PrefillChunk = Annotated[
    int | None, Option("--prefill-chunk", help="Prompt tokens a step at most. [512]", rich_help_panel=_ENGINE)
]
Graphs = Annotated[
    bool | None,
    Option(
        "--graphs/--no-graphs",
        help="Decoding steps in fixed shapes, captured as CUDA graphs. \\[on one CUDA device]",
        rich_help_panel=_ENGINE,
    ),
]
DeviceMap = Annotated[
    str | None,
    Option(
        "--device-map",
        metavar="none|auto|tp",
        help="A target on several GPUs: layers (auto), or tensor parallel under torchrun (tp). \\[none]",
        rich_help_panel=_ENGINE,
    ),
]
TrustRemoteCode = Annotated[
    bool | None, Option("--trust-remote-code", help="Run model code from the hub.", rich_help_panel=_ENGINE)
]

BaseUrl = Annotated[
    list[str] | None,
    Option("--base-url", metavar="[METHOD=]URL", help="A server that runs; repeatable.", rich_help_panel=_SERVER),
]
Launch = Annotated[
    str | None,
    Option("--launch", metavar="vllm|sglang|llamacpp", help="Start a server for each method.", rich_help_panel=_SERVER),
]
EnginePython = Annotated[
    str | None,
    Option("--engine-python", metavar="PATH", help="Python with the engine. \\[this one]", rich_help_panel=_SERVER),
]
EngineWeights = Annotated[
    str | None,
    Option(
        "--engine-weights", metavar="PATH", help="What the engine loads as target: a GGUF.", rich_help_panel=_SERVER
    ),
]
ServerModel = Annotated[
    str | None, Option("--model", help="The server's name for the target. \\[its only one]", rich_help_panel=_SERVER)
]
Endpoint = Annotated[
    str | None, Option("--endpoint", metavar="completions|chat", help="\\[completions]", rich_help_panel=_SERVER)
]
Backend = Annotated[
    str | None, Option("--backend", metavar="engine|openai", help="Who decodes. \\[engine]", rich_help_panel=_SERVER)
]

Set = Annotated[list[str] | None, Option("--set", metavar="A.B=C", help="Any setting, or METHOD.OPTION; repeatable.")]
Config = Annotated[Path | None, Option("--config", metavar="FILE.toml", help="Settings from a file; flags win.")]
Out = Annotated[Path | None, Option("--out", "-o", help="Folder for the records. \\[runs]", rich_help_panel=_OUTPUT)]
NoBaseline = Annotated[
    bool, Option("--no-baseline", help="Do not measure vanilla beside the methods.", rich_help_panel=_OUTPUT)
]


_AS_NAMED = (
    "policy", "target", "draft_length", "num_prompts", "synthetic_tau", "synthetic_rates", "max_new_tokens",
    "ignore_eos", "thinking", "concurrency", "workload", "rate", "temperature", "top_p", "top_k", "seed", "dtype",
    "device", "threads", "kv_memory", "prefill_chunk", "graphs", "device_map",
    "trust_remote_code", "out", "backend",
)  # fmt: skip


_OF_SERVER = {
    "base_url": "base_url", "launch": "launch", "python": "engine_python", "weights": "engine_weights",
    "model": "model", "endpoint": "endpoint",
}  # fmt: skip


def run_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Flags for `specbench.config.build_run` from a command's parameters by name; one it lacks was not given."""
    from specbench.config import parse_pairs

    drafters, without_baseline = given.get("drafter"), given.get("no_baseline")
    server = {key: given[name] for key, name in _OF_SERVER.items() if given.get(name)}
    return {
        "methods": given.get("method") or None,
        "tasks": given.get("task") or None,
        "drafters": parse_pairs(drafters, flag="--drafter") if drafters else None,
        "baseline": False if without_baseline else None,
        "server": server or None,
        **{name: given.get(name) for name in _AS_NAMED},
    }
