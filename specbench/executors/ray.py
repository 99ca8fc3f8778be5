"""Jobs as Ray tasks, on a cluster that runs (``address``) or one that is started on this machine.

Ray places the tasks, gives each its GPUs and processors, and tells when a worker dies.
"""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.exceptions import RayError, TaskCancelledError

from specbench.errors import ConfigError
from specbench.executors.jobs import Ended, Job, JobResult, PoolOptions, measure

_KNOWN = {"address", "namespace"}
_TRIES = 3  # a node of ours that takes more than ray's seconds to come up, on a busy machine, is warm the next time
_FEW_S = 10.0  # to ask the keeper of the signs of life


class _Keeper:
    """An actor that counts signs of life."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, str]] = {}

    def tell(self, key: str, text: str) -> None:
        count, _ = self._seen.get(key, (0, ""))
        self._seen[key] = (count + 1, text)

    def begin(self, key: str) -> None:
        self._seen.pop(key, None)

    def seen(self) -> dict[str, tuple[int, str]]:
        return self._seen


def _task(job: Job, keeper: Any) -> JobResult:
    """Runs in a worker."""
    return measure(job, lambda text: keeper.tell.remote(job.key, f"{text} (process {os.getpid()})"))


class RayPool:
    """See `Pool`. A cluster that was started here ends with the pool."""

    name = "ray"

    def __init__(self, options: PoolOptions) -> None:
        unknown = sorted(set(options.more) - _KNOWN)
        if unknown:
            raise ConfigError(f"the ray executor has no option '{unknown[0]}'; it knows {', '.join(sorted(_KNOWN))}")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._options = options
        self._running: dict[Any, str] = {}
        self._own = not ray.is_initialized()
        if self._own:
            _start(options)
        task = ray.remote(num_cpus=options.cpus, num_gpus=options.gpus, max_retries=0)
        self._task = task(_task)
        self._keeper = ray.remote(num_cpus=0, max_restarts=-1)(_Keeper).remote()  # its node may be lost too
        self._check_room()

    def _check_room(self) -> None:
        held = ray.cluster_resources()
        for name, wanted in (("GPU", self._options.gpus), ("CPU", self._options.cpus)):
            if held.get(name, 0) < wanted:
                self.close()
                raise ConfigError(f"a cell asks for {wanted} {name}s and the ray cluster has {held.get(name, 0):g}")

    @property
    def slots(self) -> int:
        """As many jobs as the cluster's processors and GPUs hold, unless told."""
        if self._options.workers is not None:
            return self._options.workers
        held = ray.cluster_resources()
        wanted = [("CPU", self._options.cpus), ("GPU", self._options.gpus)]
        return max(min(int(held.get(name, 0) // each) for name, each in wanted if each), 1)

    def submit(self, job: Job) -> None:
        """See `Pool`."""
        self._keeper.begin.remote(job.key)
        self._running[self._task.remote(job, self._keeper)] = job.key

    def poll(self, wait_s: float) -> list[Ended]:
        """See `Pool`."""
        done, _ = ray.wait(list(self._running), num_returns=1, timeout=wait_s)
        return [self._ended(found) for found in done]

    def _ended(self, found: Any) -> Ended:
        key = self._running.pop(found)
        try:
            return Ended(key, ray.get(found))
        except TaskCancelledError:
            return Ended(key, None, "it was let go")
        except Exception as error:  # a dead worker, or whatever a task raises outside its cells
            said = " ".join(str(error).split())[:160]
            return Ended(key, None, f"{type(error).__name__}: {said}")

    def beats(self) -> dict[str, tuple[int, str]]:
        """See `Pool`."""
        try:
            return dict(ray.get(self._keeper.seen.remote(), timeout=_FEW_S))
        except RayError:  # not in time, or just begun anew on another node
            return {}

    def cancel(self, key: str) -> None:
        """See `Pool`."""
        for found in [found for found, held in self._running.items() if held == key]:
            del self._running[found]
            ray.cancel(found, force=True)

    def close(self) -> None:
        """See `Pool`."""
        for key in list(self._running.values()):
            self.cancel(key)
        if self._own:
            ray.shutdown()


def _start(options: PoolOptions) -> None:
    address = options.more.get("address")
    local: dict[str, Any] = {}
    if address is None and options.workers is not None:
        local["num_cpus"] = options.workers * options.cpus
    said = ""
    for _ in range(_TRIES if address is None else 1):
        try:
            ray.init(
                address=address,
                namespace=options.more.get("namespace"),
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level="ERROR",
                **local,
            )
            return
        except Exception as error:  # ray raises plain exceptions too, such as for a node that does not come up
            said = " ".join(str(error).split())[:200] or type(error).__name__
            ray.shutdown()
    where = address or "this machine"
    raise ConfigError(f"no ray cluster at {where} ({said}); check --executor-option address")


PLUGIN = RayPool
