"""What the device is, and what it can do at best."""

from __future__ import annotations

import torch

from specbench import provenance
from tests.gpu.context import Context
from tests.gpu.findings import Findings


def run(context: Context, found: Findings) -> None:
    """Rates first, so that the clocks are read while the device is at work."""
    ceilings = context.ceilings()
    table = found.table("Measured ceilings", "what", "per second", "unit", "spread %", "repeats")
    for rate, unit, factor in (
        (ceilings.copy, "TB/s", 1e12),
        *((rate, "TFLOP/s", 1e12) for rate in (ceilings.matrix, *ceilings.others)),
    ):
        table.add(rate.what, rate.per_s / factor, unit, 100 * rate.timing.spread, rate.timing.repeats)
    machine = provenance.collect(device=context.device.type)
    found.facts = machine
    facts = found.table("Machine", "fact", "value")
    gpu = machine.get("gpu", {})
    for name in ("name", "driver", "cuda_build", "memory_bytes", "multiprocessors", "sm_clock_mhz", "sm_clock_max_mhz",
                 "memory_clock_mhz", "power_limit_w", "temperature_c"):  # fmt: skip
        if name in gpu:
            facts.add(name, gpu[name])
    facts.add("processor", machine["cpu"]["model"])
    for name, version in machine["packages"].items():
        facts.add(name, version)
    facts.add("code", f"{machine['git_sha']}{' with changes' if machine['git_dirty'] is True else ''}")
    if "busy" in machine["load"]:
        found.notes.append(machine["load"]["busy"])
    if context.scale.cuda:
        facts.add("torch threads", torch.get_num_threads())
