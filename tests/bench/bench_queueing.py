"""Queueing: one request at a time, constant service, Poisson arrivals, against the formula for the mean wait.

Everything but the server is what a run uses: the load pattern, the driver and its arrival times, the virtual clock.
Needs no idle machine: time is virtual.
"""

from __future__ import annotations

import sys
import time

from support_queueing import SERVICE_S, check

PLAN = (  # load, runs, customers a run, of these cut
    (0.50, 40, 1_500, 250),
    (0.80, 40, 4_500, 500),
    (0.95, 40, 18_000, 4_000),
)
MAX_HALF_WIDTH = 0.05


def main() -> None:
    """Print a line for each load; exit code 1 when an interval misses the formula or is too wide."""
    started, computed = time.perf_counter(), time.process_time()
    print(f"mean wait in seconds, service {SERVICE_S} s, one row; 99 % intervals over independent runs, start-up cut")
    failed = False
    for load, runs, customers, start_up in PLAN:
        found = check(load, runs=runs, customers=customers, start_up=start_up)
        good = found.agrees and found.relative_half_width < MAX_HALF_WIDTH
        failed |= not good
        print(
            f"  {load:.0%} load: expected {found.theory_s:.4f}, measured {found.mean_s:.4f} +- {found.half_width_s:.4f}"
            f" ({found.relative_half_width:.1%}; plain {found.plain_mean_s:.4f} +-"
            f" {found.plain_half_width_s:.4f}), {runs} runs of {customers - start_up} after {start_up}:"
            f" {'agrees' if good else 'DISAGREES'}",
            flush=True,
        )
    print(f"  {time.perf_counter() - started:.0f} s, {time.process_time() - computed:.0f} s of them computing")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
