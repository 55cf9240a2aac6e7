"""How many GPUs there are, without torch, and how a GPU fares."""

import pynvml
import pytest

from tuner.sweep import nvml


@pytest.mark.parametrize(
    ("listed", "expected"),
    [(None, 4), ("", None), ("0", 1), ("2,1", 2), ("3,4,0", 1), ("0,0", None), ("GPU-4fe2", None), ("0,-1", None)],
)
def test_what_cuda_visible_devices_leaves_of_four(monkeypatch, listed, expected):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(nvml, "_whole_gpus", lambda: 4)
    monkeypatch.setattr(nvml.metadata, "version", lambda _name: "2.13.0+cu130")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert nvml.gpu_count() == expected


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0+rocm7.0"])
def test_a_torch_without_cuda_tells_itself(monkeypatch, version):
    monkeypatch.setattr(nvml, "_whole_gpus", lambda: 4)
    monkeypatch.setattr(nvml.metadata, "version", lambda _name: version)
    assert nvml.gpu_count() is None


def test_the_interpreter_is_not_looked_past(monkeypatch):
    monkeypatch.setattr(nvml, "_whole_gpus", lambda: 4)
    monkeypatch.setattr(nvml.metadata, "version", lambda _name: "2.13.0")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert nvml.gpu_count() is None


@pytest.mark.parametrize(
    ("untold", "expected"),
    [
        (None, nvml.GpuSample(1980, 640.5, 0x20)),
        ("nvmlDeviceGetClockInfo", nvml.GpuSample(None, 640.5, 0x20)),
        ("nvmlDeviceGetPowerUsage", nvml.GpuSample(1980, None, 0x20)),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", nvml.GpuSample(1980, 640.5, None)),
    ],
)
def test_a_gpu_that_does_not_tell_one_figure_tells_the_others_and_is_seen_to_be_throttled(
    monkeypatch, untold, expected
):
    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", lambda _handle, _clock: 1980)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda _handle: 640_500)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda _handle: 0x20)
    if untold:
        monkeypatch.setattr(pynvml, untold, refuse)
    found = nvml.GpuMonitor(object()).read()
    assert found == expected
    assert found.throttled == (expected.throttle is not None)
