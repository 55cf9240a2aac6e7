"""How many GPUs there are, without torch."""

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
