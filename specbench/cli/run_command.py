"""``run``: measure methods on a target, print the table, say where the records are."""

from __future__ import annotations

import sys
from typing import Any

import typer

from specbench.cli import options as o


def run(
    method: o.Method = None,
    drafter: o.Drafter = None,
    policy: o.Policy = None,
    target: o.Target = None,
    draft_length: o.DraftLength = None,
    synthetic_tau: o.SyntheticTau = None,
    synthetic_rates: o.SyntheticRates = None,
    task: o.Task = None,
    num_prompts: o.NumPrompts = None,
    max_new_tokens: o.MaxNewTokens = None,
    ignore_eos: o.IgnoreEos = None,
    thinking: o.Thinking = None,
    concurrency: o.Concurrency = None,
    workload: o.Workload = None,
    rate: o.Rate = None,
    temperature: o.Temperature = None,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    seed: o.Seed = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    threads: o.Threads = None,
    kv_memory: o.KvMemory = None,
    prefill_chunk: o.PrefillChunk = None,
    graphs: o.Graphs = None,
    device_map: o.DeviceMap = None,
    trust_remote_code: o.TrustRemoteCode = None,
    base_url: o.BaseUrl = None,
    launch: o.Launch = None,
    engine_python: o.EnginePython = None,
    engine_weights: o.EngineWeights = None,
    model: o.ServerModel = None,
    endpoint: o.Endpoint = None,
    backend: o.Backend = None,
    set_: o.Set = None,
    config: o.Config = None,
    out: o.Out = None,
    no_baseline: o.NoBaseline = False,
) -> None:
    """Measure methods beside plain decoding on the same prompts: `specbench run --method ngram`."""
    flags = o.run_flags(locals())
    from specbench.config import build_run

    spec = build_run(config=config, sets=set_ or [], flags=flags)
    raise typer.Exit(_measure(spec))


def _measure(spec: Any) -> int:
    """Run the cells, print what came of them, and give the exit code."""
    from specbench.cli.live import LiveProgress
    from specbench.cli.outcome import print_outcome
    from specbench.runner import check_names, run_cells

    check_names(spec)
    live = LiveProgress()
    command = ["specbench", *sys.argv[1:]]
    try:
        with live:
            summary = run_cells(
                spec,
                on_progress=live.update,
                on_result=live.finished,
                on_warning=live.warn,
                step=live.step,
                command=command,
            )
    except KeyboardInterrupt:
        typer.echo("interrupted before anything was measured: no record was written", err=True)
        return 130
    return print_outcome(summary)
