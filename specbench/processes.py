"""A target split over the processes of torchrun: all run the same steps, one of them keeps the records."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specbench.config import RunSpec
from specbench.errors import ConfigError


def of_this_process(spec: RunSpec) -> RunSpec:
    """The run as this process does it; with tensor parallelism only the first one writes where the user asked for it.

    Errors: ConfigError for a load whose arrivals follow a clock: each process has its own, and they would wait for each
    other for ever once they disagree about what is in a step.
    """
    if spec.device_map != "tp":
        return spec
    if spec.workload != "closed" or spec.load:
        raise ConfigError(
            f"device_map=tp runs the same steps in several processes and the load '{spec.workload}' is paced by each "
            "one's clock; take --workload closed without think time, or device_map=auto"
        )
    if os.environ.get("RANK", "0") == "0":
        return spec
    return spec.model_copy(update={"out": Path(tempfile.mkdtemp(prefix="specbench-follower-"))})
