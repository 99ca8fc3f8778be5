"""What the GPU's driver says while a cell is measured: memory, use, power, clocks, throttling and energy, through NVML.

A thread samples the device from before the warm-up to the end; `DeviceSampler.summary` keeps what falls into the
measured window. Where there is no GPU or no driver library there is no telemetry at all: absent, never zero.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from specbench.metrics._emissions import tokens_between
from specbench.records.schema import Reading, Telemetry
from specbench.types import RunTrace

PERIOD_S = 0.1
UNITS = {
    "memory_used": "B",
    "utilisation": "fraction",
    "memory_utilisation": "fraction",
    "power": "W",
    "sm_clock": "MHz",
    "memory_clock": "MHz",
    "temperature": "C",
}
"""What is sampled and summarised; the energy counter and the throttling reasons come beside it."""

REASONS = {
    0x002: "clocks set by an application",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
}
"""NVML's nvmlClocksEventReason bits; bit 0 says that the device idles, which is no throttling."""

_IDLE = 0x001
# NVML's return codes: what a device or driver will never answer, and what says that nothing will answer any more
_UNSUPPORTED = {"NVML_ERROR_NOT_SUPPORTED": 3, "NVML_ERROR_NO_PERMISSION": 4, "NVML_ERROR_FUNCTION_NOT_FOUND": 13}
_LOST = {
    "NVML_ERROR_UNINITIALIZED": 1,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_RESET_REQUIRED": 16,
}
_ENERGY, _THROTTLING = "energy_counter", "throttling"


class Timekeeper(Protocol):
    """The part of a clock that sampling needs: the one that the trace's times come from."""

    def now(self) -> float:
        """Seconds since the run's origin."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """What the device answered at one moment; a quantity without an answer is not in ``values``."""

    at_s: float
    values: dict[str, float]


@dataclass(slots=True)
class _Question:
    """One thing to ask the device, until it says that it will never answer."""

    name: str
    ask: Callable[[], float]
    refused: bool = False
    answered: bool = False


@dataclass(slots=True)
class DeviceSampler:
    """Samples one device in a thread between `start` and `stop`. Use it as a context."""

    nvml: Any
    handle: Any
    clock: Timekeeper
    period_s: float = PERIOD_S
    name: str = "GPU"
    samples: list[Sample] = field(default_factory=list)
    lost: str | None = None
    _questions: list[_Question] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._questions = _questions(self.nvml, self.handle)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Take the first sample and go on in a thread."""
        self.sample()
        self._thread = threading.Thread(target=self._run, name="specbench-telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample, end the thread and leave the driver's library."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self.sample()
            with contextlib.suppress(Exception):
                self.nvml.nvmlShutdown()

    def _run(self) -> None:
        while not self._end.wait(self.period_s) and self.lost is None:
            self.sample()

    def sample(self) -> None:
        """Ask the device everything once; nothing more is asked of one that was lost."""
        if self.lost is not None:
            return
        at_s, values = self.clock.now(), {}
        for question in self._questions:
            if question.refused:
                continue
            try:
                values[question.name] = float(question.ask())
                question.answered = True
            except Exception as error:  # the binding's error class differs between its versions
                if _is(error, _LOST, self.nvml):
                    self.lost = f"after {at_s:.1f} s: {' '.join(str(error).split())[:120]}"
                    return
                question.refused = _is(error, _UNSUPPORTED, self.nvml) or isinstance(error, AttributeError)
        self.samples.append(Sample(at_s, values))

    def summary(self, trace: RunTrace) -> Telemetry | None:
        """What the samples say of the trace's measured part; None where no request was measured. Call it once stopped.

        The window runs from the first measured arrival to the last measured end, as far as the samples reach: a device
        lost in between cuts it there, and energy and tokens are those up to that moment.
        """
        window = measured_window(trace)
        if window is None:
            return None
        start, end = _covered(self.samples, window)
        inside = [sample for sample in self.samples if start <= sample.at_s <= end]
        joules, source = _energy(self.samples, start, end)
        return Telemetry(
            source="nvml",
            device=self.name,
            period_s=self.period_s,
            start_s=start,
            end_s=end,
            samples=len(inside),
            tokens=tokens_between(trace, start, end),
            readings=_readings(inside),
            throttled=_throttled(inside),
            energy_j=joules,
            energy_from=source,
            unsupported=sorted(question.name for question in self._questions if not question.answered),
            lost=self.lost,
        )


def open_sampler(device: str, *, clock: Timekeeper, period_s: float = PERIOD_S) -> DeviceSampler | None:
    """A sampler of the CUDA device that the run uses; None on any other device or where the driver cannot be asked."""
    if not device.startswith("cuda"):
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no library, no driver, no rights: each binding version has its own error
        return None
    try:
        handle, name = _device(nvml, device)
    except Exception:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()
        return None
    return DeviceSampler(nvml, handle, clock, period_s=period_s, name=name)


def _device(nvml: Any, device: str) -> tuple[Any, str]:
    """The driver's handle of a torch device, and its name. Errors: whatever torch or the driver raises."""
    import torch

    index = torch.device(device).index or 0
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"), str(properties.name)
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # torch counts the visible devices, the driver all of them
        raise LookupError("the device cannot be told from its number")
    return nvml.nvmlDeviceGetHandleByIndex(index), str(properties.name)


def _questions(nvml: Any, handle: Any) -> list[_Question]:
    """Each asks the driver in the units of `UNITS`; joules for the energy counter, bits for the throttling reasons."""

    def reasons() -> float:
        newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # the name since driver 535
        ask = newer if newer is not None else nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return float(ask(handle))

    asked: dict[str, Callable[[], float]] = {
        "memory_used": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        "memory_utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory / 100,
        "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "sm_clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        _ENERGY: lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        _THROTTLING: reasons,
    }
    return [_Question(name, ask) for name, ask in asked.items()]


def _is(error: Exception, codes: dict[str, int], nvml: Any) -> bool:
    return getattr(error, "value", None) in {getattr(nvml, name, code) for name, code in codes.items()}


# ------------------------------------------------------------------------------------------------- the summary


def measured_window(trace: RunTrace) -> tuple[float, float] | None:
    """From the first measured arrival to the last measured end, seconds since the run's origin; None without any."""
    requests = [request for request in trace.requests if not request.warmup]
    if not requests:
        return None
    ends = [request.finish_s for request in requests if request.finish_s is not None]
    end = max(ends) if len(ends) == len(requests) else trace.wall_s  # an interrupt left some unfinished
    return min(request.arrival_s for request in requests), end


def _covered(samples: Sequence[Sample], window: tuple[float, float]) -> tuple[float, float]:
    start, end = window
    if not samples:
        return start, start
    start = max(start, samples[0].at_s)
    return start, max(start, min(end, samples[-1].at_s))


def _column(samples: Sequence[Sample], name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times and values of the samples that have one."""
    pairs = [(sample.at_s, sample.values[name]) for sample in samples if name in sample.values]
    columns = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _readings(inside: Sequence[Sample]) -> dict[str, Reading]:
    found = {}
    for name, unit in UNITS.items():
        _, values = _column(inside, name)
        if len(values):
            mean, least, most = float(values.mean()), float(values.min()), float(values.max())
            found[name] = Reading(unit=unit, mean=mean, least=least, most=most, samples=len(values))
    return found


def _throttled(inside: Sequence[Sample]) -> dict[str, float] | None:
    """Share of the samples that showed each reason; None where no sample told of any."""
    _, values = _column(inside, _THROTTLING)
    if not len(values):
        return None
    bits = values.astype(np.int64)
    seen = int(np.bitwise_or.reduce(bits)) & ~_IDLE
    flags = [1 << k for k in range(seen.bit_length()) if seen >> k & 1]
    return {REASONS.get(flag, f"reason {flag:#x}"): float(((bits & flag) > 0).mean()) for flag in flags}


def _energy(
    samples: Sequence[Sample], start: float, end: float
) -> tuple[float, Literal["counter", "power"]] | tuple[None, None]:
    """Joules of [start, end]: by the driver's counter where it has one, else power over time; None without either."""
    if end <= start:
        return None, None
    times, joules = _column(samples, _ENERGY)
    if _reaches(times, start, end):
        spent = float(np.interp(end, times, joules) - np.interp(start, times, joules))
        if spent >= 0 and bool((np.diff(joules) >= 0).all()):  # a counter that went back was reset
            return spent, "counter"
    times, watts = _column(samples, "power")
    if not _reaches(times, start, end):
        return None, None
    inside = times[(times > start) & (times < end)]
    at = np.concatenate(([start], inside, [end]))
    return float(np.trapezoid(np.interp(at, times, watts), at)), "power"


def _reaches(times: NDArray[np.float64], start: float, end: float) -> bool:
    return len(times) >= 2 and bool(times[0] <= start) and bool(times[-1] >= end)
