"""The device's own words during a run, with a driver library that tests script; nothing of it where there is no GPU."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from support_nvml import GPU_IS_LOST, NOT_SUPPORTED, UNKNOWN, FakeNvml, NvmlError
from support_traces import Round, make_request, make_trace

from specbench import telemetry
from specbench.engine.clock import VirtualClock
from specbench.metrics._recorded import recorded_estimates
from specbench.records.schema import Telemetry
from specbench.telemetry import DeviceSampler, open_sampler
from specbench.types import RunTrace

IDLE, POWER_CAP, HOT = 0x1, 0x4, 0x40


def run(seconds: float = 1.0) -> RunTrace:
    """A warm-up that ends at 0.5 s, then one request from 1 s on: eleven tokens evenly over ``seconds``."""
    warm = make_request([Round(3)], id="w", warmup=True, times=(0.2, 0.5))
    times = tuple(1 + seconds * k / 10 for k in range(11))
    asked = make_request([Round(0)] * 10, id="a", number=1, arrival_s=1.0, times=times, first_step=2)
    return make_trace([warm, asked])


def sampled(nvml: FakeNvml, moments: list[float], *changes: dict[str, Any]) -> DeviceSampler:
    """A sampler that asked at these moments; ``changes`` are made to the device before each."""
    clock = VirtualClock()
    sampler = DeviceSampler(nvml, "handle", clock, period_s=0.25, name="a device")
    for moment, change in zip(moments, (*changes, *[{}] * len(moments))):
        clock.sleep_until(moment)
        nvml.device |= change
        sampler.sample()
    return sampler


def summary(sampler: DeviceSampler, trace: RunTrace | None = None) -> Telemetry:
    found = sampler.summary(trace or run())
    assert found is not None
    return found


def test_only_the_measured_window_counts() -> None:
    nvml = FakeNvml()
    changes = [
        {"sm": 100, "memory": 1, "millijoules": 0},
        {"sm": 1000, "memory": 2**30, "millijoules": 100_000},
        {"sm": 2000, "memory": 3 * 2**30, "millijoules": 300_000},
        {"sm": 1500, "memory": 2**30, "millijoules": 500_000},
        {"sm": 7, "memory": 5, "millijoules": 900_000},
    ]
    found = summary(sampled(nvml, [0.0, 1.0, 1.5, 2.0, 3.0], *changes))
    assert (found.start_s, found.end_s, found.samples, found.tokens) == (1.0, 2.0, 3, 10)
    clock = found.readings["sm_clock"]
    assert (clock.unit, clock.mean, clock.least, clock.most, clock.samples) == ("MHz", 1500, 1000, 2000, 3)
    assert found.readings["memory_used"].most == 3 * 2**30
    assert found.readings["utilisation"].mean == pytest.approx(0.8)
    assert found.readings["power"].mean == 400
    assert (found.energy_j, found.energy_from) == (400, "counter")
    assert (found.throttled, found.unsupported, found.lost) == ({}, [], None)


def test_the_counter_is_read_between_samples_at_the_windows_edges() -> None:
    changes = [{"millijoules": 0}, {"millijoules": 200_000}, {"millijoules": 600_000}]
    found = summary(sampled(FakeNvml(), [0.5, 1.5, 2.5], *changes))
    assert found.energy_j == pytest.approx(100 + 200)
    (estimate,) = recorded_estimates(run(), telemetry=found, vocabulary=None)
    assert (estimate.metric, estimate.unit, estimate.n) == ("joules_per_token", "J/token", 10)
    assert estimate.value == pytest.approx(30)


def test_without_a_counter_power_is_integrated() -> None:
    nvml = FakeNvml(millijoules=NvmlError(NOT_SUPPORTED))
    changes = [{"milliwatts": 0}, {"milliwatts": 100_000}, {"milliwatts": 300_000}, {"milliwatts": 300_000}]
    found = summary(sampled(nvml, [0.0, 1.0, 2.0, 3.0], *changes))
    assert (found.energy_j, found.energy_from) == (pytest.approx(200), "power")
    assert found.unsupported == ["energy_counter"]


def test_a_counter_that_goes_back_is_not_used() -> None:
    changes = [{"millijoules": 900_000}, {"millijoules": 950_000}, {"millijoules": 10_000}, {"millijoules": 990_000}]
    found = summary(sampled(FakeNvml(), [0.0, 1.2, 1.6, 3.0], *changes))
    assert (found.energy_j, found.energy_from) == (pytest.approx(400), "power")


def test_what_the_device_does_not_support_is_absent_and_asked_once() -> None:
    refused = NvmlError(NOT_SUPPORTED)
    nvml = FakeNvml(milliwatts=refused, millijoules=refused, reasons=refused)
    found = summary(sampled(nvml, [0.0, 1.0, 2.0, 3.0]))
    assert "power" not in found.readings
    assert (found.energy_j, found.energy_from, found.throttled) == (None, None, None)
    assert found.unsupported == ["energy_counter", "power", "throttling"]
    assert nvml.asked.count("milliwatts") == 1
    assert found.readings["sm_clock"].samples == 2
    assert recorded_estimates(run(), telemetry=found, vocabulary=None) == []


def test_one_failed_answer_is_one_missing_sample() -> None:
    changes = [{}, {"celsius": NvmlError(UNKNOWN)}, {"celsius": 60}, {}]
    found = summary(sampled(FakeNvml(), [0.0, 1.0, 1.5, 2.0], *changes))
    assert found.readings["temperature"].samples == 2
    assert found.readings["power"].samples == 3
    assert "temperature" not in found.unsupported


def test_a_device_lost_in_mid_run_cuts_the_window_there() -> None:
    changes = [{"millijoules": 0}, {"millijoules": 100_000}, {"millijoules": 350_000}, {"sm": NvmlError(GPU_IS_LOST)}]
    nvml = FakeNvml()
    found = summary(sampled(nvml, [0.5, 1.0, 1.5, 1.75, 2.0], *changes))
    assert found.lost == "after 1.8 s: GPU is lost"
    assert (found.start_s, found.end_s, found.samples, found.tokens) == (1.0, 1.5, 2, 5)
    assert found.energy_j == pytest.approx(250)
    assert nvml.asked.count("celsius") == 3


def test_a_device_lost_at_once_leaves_only_that_fact() -> None:
    found = summary(sampled(FakeNvml(memory=NvmlError(GPU_IS_LOST)), [0.0, 1.0, 2.0]))
    assert found.lost is not None
    assert (found.samples, found.tokens, found.readings, found.energy_j, found.throttled) == (0, 0, {}, None, None)
    assert recorded_estimates(run(), telemetry=found, vocabulary=None) == []


def test_throttling_reasons_are_shares_of_the_samples_and_idling_is_none() -> None:
    flags = [0, IDLE, POWER_CAP, POWER_CAP | HOT, 1 << 12, POWER_CAP]
    changes = [{"reasons": flag} for flag in flags]
    found = summary(sampled(FakeNvml(), [0.5, 1.0, 1.25, 1.5, 1.75, 2.5], *changes))
    assert found.throttled == {"software power cap": 0.5, "hardware thermal slowdown": 0.25, "reason 0x1000": 0.25}


def test_an_older_library_is_asked_by_its_own_name() -> None:
    nvml = FakeNvml(missing=("nvmlDeviceGetCurrentClocksEventReasons",))
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda _: POWER_CAP
    assert summary(sampled(nvml, [0.0, 1.5, 3.0])).throttled == {"software power cap": 1.0}
    silent = FakeNvml(missing=("nvmlDeviceGetCurrentClocksEventReasons",))
    assert "throttling" in summary(sampled(silent, [0.0, 1.5, 3.0])).unsupported


def test_no_measured_request_means_no_telemetry() -> None:
    warm = make_request([Round(3)], id="w", warmup=True, times=(0.2, 0.5))
    assert sampled(FakeNvml(), [0.0, 1.0]).summary(make_trace([warm])) is None


def test_the_window_ends_with_the_run_where_requests_were_cut() -> None:
    from dataclasses import replace

    trace = run()
    cut = replace(trace.requests[1], status="interrupted", finish_s=None)
    trace = replace(trace, requests=(trace.requests[0], cut), wall_s=2.75)
    assert telemetry.measured_window(trace) == (1.0, 2.75)


def test_a_thread_samples_at_the_period_and_leaves_the_library() -> None:
    nvml = FakeNvml()
    nvml.nvmlInit()
    clock = VirtualClock()
    with DeviceSampler(nvml, "handle", clock, period_s=0.001) as sampler:
        for _ in range(2000):
            if len(sampler.samples) >= 4:
                break
            time.sleep(0.005)
    taken = len(sampler.samples)
    assert taken >= 5  # the last one is taken by stop
    assert nvml.running == 0
    time.sleep(0.02)
    assert len(sampler.samples) == taken


# ------------------------------------------------------------------------------------------- finding the device


def _visible(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, uuid: str | None) -> None:
    import torch

    properties = SimpleNamespace(name="NVIDIA something", **({} if uuid is None else {"uuid": uuid}))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_device_is_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    _visible(monkeypatch, nvml, "1234")
    sampler = open_sampler("cuda:1", clock=VirtualClock())
    assert sampler is not None
    assert (sampler.handle, sampler.name, sampler.period_s) == ("GPU-1234", "NVIDIA something", telemetry.PERIOD_S)
    _visible(monkeypatch, nvml, None)
    by_number = open_sampler("cuda:1", clock=VirtualClock())
    assert by_number is not None
    assert by_number.handle == "handle 1"


def test_another_device_is_never_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    _visible(monkeypatch, nvml, "another")
    assert open_sampler("cuda", clock=VirtualClock()) is None
    _visible(monkeypatch, nvml, None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert open_sampler("cuda", clock=VirtualClock()) is None
    assert nvml.running == 0


@pytest.mark.parametrize("library", [None, FakeNvml(init=NvmlError(9))], ids=["no library", "no driver"])
def test_without_the_driver_there_is_none_and_no_noise(
    library: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)  # None: the import fails
    assert open_sampler("cuda", clock=VirtualClock()) is None
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_the_real_library_gives_nothing_on_a_machine_without_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert open_sampler("cuda", clock=VirtualClock()) is None
    assert open_sampler("cpu", clock=VirtualClock()) is None


@pytest.mark.gpu
def test_a_real_device_reports_its_memory_and_clocks() -> None:
    import torch

    from specbench.engine.clock import WallClock

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    sampler = open_sampler("cuda", clock=WallClock(), period_s=0.01)
    assert sampler is not None
    torch.zeros(1 << 20, device="cuda")
    with sampler:
        time.sleep(0.3)
    found = summary(sampler, make_trace([make_request([Round(3)], times=(0.1, 0.2))]))
    assert found.device == sampler.name
    assert found.samples > 3
    assert found.readings["memory_used"].least > 0
    assert found.readings["sm_clock"].least > 0
    assert found.energy_j is None or found.energy_j > 0
