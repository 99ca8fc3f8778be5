"""A driver library for tests: the functions and codes of pynvml that are asked, with scripted answers."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

NOT_SUPPORTED, GPU_IS_LOST, UNKNOWN = 3, 15, 999


class NvmlError(Exception):
    """As pynvml's: ``value`` is the library's return code."""

    def __init__(self, value: int) -> None:
        super().__init__({NOT_SUPPORTED: "Not Supported", GPU_IS_LOST: "GPU is lost"}.get(value, "Unknown Error"))
        self.value = value


class FakeNvml(types.ModuleType):
    """One device. ``device`` holds what it answers now; an exception there is raised instead."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, **answers: Any) -> None:
        super().__init__("pynvml")
        self.device: dict[str, Any] = {
            "memory": 10 * 2**30,
            "gpu": 80,
            "bandwidth": 60,
            "milliwatts": 400_000,
            "millijoules": 5_000_000,
            "sm": 1980,
            "mem": 2619,
            "celsius": 50,
            "reasons": 0,
            "uuid": "GPU-1234",
            **answers,
        }
        self.asked: list[str] = []
        self.running = 0  # nvmlInit less nvmlShutdown

    def __getattr__(self, name: str) -> Callable[..., Any]:
        calls: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(used=self._answer("memory")),
            "nvmlDeviceGetUtilizationRates": lambda _: types.SimpleNamespace(
                gpu=self._answer("gpu"), memory=self._answer("bandwidth")
            ),
            "nvmlDeviceGetPowerUsage": lambda _: self._answer("milliwatts"),
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: self._answer("millijoules"),
            "nvmlDeviceGetClockInfo": lambda _, kind: self._answer("sm" if kind == self.NVML_CLOCK_SM else "mem"),
            "nvmlDeviceGetTemperature": lambda _, kind: self._answer("celsius"),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: self._answer("reasons"),
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
        }
        if name not in calls or name in self.__dict__.get("device", {}).get("missing", ()):
            raise AttributeError(name)
        return calls[name]

    def nvmlInit(self) -> None:
        """The library is in use."""
        self._answer("init")
        self.running += 1

    def nvmlShutdown(self) -> None:
        """The library is left."""
        self.running -= 1

    def _by_uuid(self, uuid: str) -> str:
        if uuid != self.device["uuid"]:
            raise NvmlError(6)
        return uuid

    def _answer(self, name: str) -> Any:
        self.asked.append(name)
        found = self.device.get(name)
        if isinstance(found, Exception):
            raise found
        return found
