"""What a record must say about the code, the machine and the moment, so that a run can be judged and repeated.

A fact that cannot be had is absent (git's: "unknown"). The machine's name and its serial numbers are never recorded.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("specbench-llm", "torch", "transformers", "numpy", "safetensors", "tokenizers", "triton", "datasets")
CODE_PATHS = ("specbench", "drafters", "tasks", "pyproject.toml")
UNKNOWN = "unknown"
BUSY_SHARE = 0.15  # of all logical processors, used by others
MAX_DEFAULT_THREADS = 16


def collect(*, device: str | Any = "cpu", threads: int | None = None) -> dict[str, Any]:
    """Everything about code, machine and moment that goes into a record, as plain JSON values.

    ``device`` is a torch device or its name; ``threads`` the run's torch threads where they are not set yet. With
    ``rankable`` False, ``not_rankable_because`` lists why the row cannot enter the leaderboard.
    """
    code = git_state()
    reasons = []
    if code["git_sha"] == UNKNOWN:
        reasons.append(f"the code's commit is unknown: {code['git_unknown_because']}")
    elif code["git_dirty"]:
        reasons.append("the code has uncommitted changes")
    found: dict[str, Any] = {
        **code,
        "rankable": not reasons,
        "not_rankable_because": reasons,
        "time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "packages": package_versions(),
        "os": {"system": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "cpu": cpu_facts(),
        "threads": thread_facts(threads),
        "device": str(device),
        "load": load_facts(),
    }
    found["device_name"] = found["cpu"]["model"]
    if str(device).startswith("cuda"):
        found["gpu"] = gpu_facts(str(device))
        found["device_name"] = found["gpu"].get("name", str(device))
    return found


# ------------------------------------------------------------------------------------------------------- code


def git_state(root: Path | None = None) -> dict[str, Any]:
    """Commit and dirty flag of the checkout that this code runs from, or "unknown" with the reason.

    ``root`` is the folder that holds the package. Dirty means changes, untracked files included, in what runs: results,
    tests and texts do not count. An installed copy that merely lies inside some other repository is not part of it.
    """
    root = Path(__file__).resolve().parent.parent if root is None else root.resolve()
    try:
        tracked = _git(root, "ls-files", "--error-unmatch", "specbench/provenance.py")
        sha = _git(root, "rev-parse", "HEAD") if tracked else ""
        changed = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *_present(root))
    except FileNotFoundError:
        return _unknown("git is not installed")
    except subprocess.TimeoutExpired:
        return _unknown("git did not answer within 10 s")
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr or "").strip().splitlines() or ["git failed"]
        reason = "not a checkout of the repository" if "did not match any file" in lines[0] else lines[0]
        return _unknown(reason.removeprefix("fatal: ")[:120].split(": /")[0].split(" '/")[0])
    return {"git_sha": sha, "git_dirty": bool(changed)}


def _unknown(reason: str) -> dict[str, Any]:
    return {"git_sha": UNKNOWN, "git_dirty": UNKNOWN, "git_unknown_because": reason}


def _present(root: Path) -> list[str]:
    return [name for name in CODE_PATHS if (root / name).exists()]


def _git(root: Path, *arguments: str) -> str:
    # variables of an outer git command (a hook) would point it at another repository
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(root), *arguments]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 10, "env": environment}
    return str(subprocess.run(command, check=True, stdin=subprocess.DEVNULL, **options).stdout).strip()


def package_versions() -> dict[str, str]:
    """Versions of what a result depends on, by distribution name; also of distributions that bring plugins."""
    groups = [g for g in importlib.metadata.entry_points().groups if g.startswith("specbench.")]
    points = [point for group in groups for point in importlib.metadata.entry_points(group=group)]
    plugins = {point.dist.name for point in points if point.dist is not None}
    found = {}
    for name in (*PACKAGES, *sorted(plugins)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# ---------------------------------------------------------------------------------------------------- machine


def cpu_facts() -> dict[str, Any]:
    """Model, cores and memory of the machine; ``usable_cores`` is what this process may use of them."""
    import psutil

    physical = psutil.cpu_count(logical=False)
    found: dict[str, Any] = {
        "model": _cpu_model(),
        "logical_cores": psutil.cpu_count(logical=True),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    if physical:
        found["physical_cores"] = physical
    limit = _cgroup_memory_bytes()
    if limit is not None and limit < found["memory_bytes"]:
        found["memory_limit_bytes"] = limit
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if names:
        return names[0]
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    return platform.processor() or platform.machine()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _cgroup_memory_bytes() -> int | None:
    text = _read("/sys/fs/cgroup/memory.max")
    return int(text) if text is not None and text.isdigit() else None


def _cgroup_cores() -> float | None:
    """Processors that a container's quota grants: quota over period (cgroup v2 cpu.max); None without a quota."""
    quota, _, period = (_read("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def usable_cores() -> int:
    """Logical processors that this process may use: its affinity mask, and a container's quota where there is one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def thread_facts(threads: int | None = None) -> dict[str, Any]:
    """The run's torch threads, and the variables that rule them where they are set."""
    found: dict[str, Any] = {}
    if threads is not None:
        found["torch"] = threads
    elif "torch" in sys.modules:
        import torch

        found["torch"] = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if name in os.environ:
            found[name] = os.environ[name]
    return found


# ------------------------------------------------------------------------------------------------------- load


def load_facts(*, interval_s: float = 0.3) -> dict[str, Any]:
    """Load averages at the start, the processors that others use, and ``busy``: the warning, absent when idle."""
    others = others_use(interval_s=interval_s)
    found: dict[str, Any] = {"others_cores": round(others, 2)}
    if hasattr(os, "getloadavg"):
        found["average_1_5_15_min"] = [round(value, 2) for value in os.getloadavg()]
    warning = _busy_text(others)
    if warning is not None:
        found["busy"] = warning
    return found


def others_use(*, interval_s: float = 0.3) -> float:
    """Logical processors kept busy by everything but this process and its children, over ``interval_s`` seconds."""
    import psutil

    start, total, own = time.monotonic(), _machine_seconds(psutil), _own_seconds()
    time.sleep(interval_s)
    elapsed = max(time.monotonic() - start, 1e-3)
    return max(0.0, (_machine_seconds(psutil) - total) - (_own_seconds() - own)) / elapsed


def _machine_seconds(psutil: Any) -> float:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # a guest's time is already in user and nice
    return float(sum(times) - idle - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _busy_text(others_cores: float) -> str | None:
    import psutil

    cores = psutil.cpu_count(logical=True) or 1
    if others_cores < BUSY_SHARE * cores:
        return None
    return (
        f"other processes use {others_cores:.1f} of {cores} processors: timings will be off and repeats will "
        "not agree; end them, or keep one core free with --threads"
    )


def machine_busy(*, interval_s: float = 0.3) -> str | None:
    """A warning when other processes use more than 15 % of the machine's processors; None when it is idle enough."""
    return _busy_text(others_use(interval_s=interval_s))


def default_threads(*, busy: bool | None = None) -> int:
    """Torch threads for a run that does not ask for a number.

    OMP_NUM_THREADS where it is set; else one per physical core that the process may use but one, which stays free for
    everything else (at least one thread, at most 16); one on a busy machine. Torch's threads wait for each other at
    every operator, so a single core taken away stalls them all (on two cores steps were seen to take thirty times as
    long). ``busy`` None measures for 0.3 s.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if busy if busy is not None else machine_busy() is not None:
        return 1
    import psutil

    physical = psutil.cpu_count(logical=False) or usable_cores()
    return max(1, min(physical - 1, usable_cores() - 1, MAX_DEFAULT_THREADS))


# -------------------------------------------------------------------------------------------------------- gpu


def gpu_facts(device: str) -> dict[str, Any]:
    """Name, memory, driver, clocks and power limit of a CUDA device; what the driver does not tell is absent."""
    import torch

    index = torch.device(device).index or 0
    properties = torch.cuda.get_device_properties(index)
    found: dict[str, Any] = {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "count_visible": torch.cuda.device_count(),
    }
    if torch.version.cuda is not None:
        found["cuda_build"] = torch.version.cuda
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no library, no driver, no rights: each binding version has its own error
        found["driver_unknown_because"] = str(error)[:120]
        return found
    try:
        found.update(_driver_facts(pynvml, str(properties.uuid) if hasattr(properties, "uuid") else None, index))
    finally:
        pynvml.nvmlShutdown()
    return found


def _driver_facts(nvml: Any, uuid: str | None, index: int) -> dict[str, Any]:
    # torch numbers the visible devices and the driver numbers all of them: the uuid is what they share
    handle = _first(
        lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") if uuid else None,
        lambda: nvml.nvmlDeviceGetHandleByIndex(index),
    )
    asked: Sequence[tuple[str, Callable[[], Any]]] = (
        ("driver", nvml.nvmlSystemGetDriverVersion),
        ("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        ("memory_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        ("sm_clock_max_mhz", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        ("memory_clock_max_mhz", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        ("power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        ("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        ("others_use_it", lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)) > 1),
    )
    answers = {name: _first(ask) for name, ask in asked}
    return {name: value for name, value in answers.items() if value is not None}


def _first(*attempts: Callable[[], Any]) -> Any:
    """The first answer that is not an error and not None; None where there is none."""
    for attempt in attempts:
        try:
            found = attempt()
        except Exception:  # the binding's errors differ between its versions; an unsupported query is one of them
            continue
        if found is not None:
            return found.decode() if isinstance(found, bytes) else found
    return None
