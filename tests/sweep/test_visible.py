"""How many GPUs there are, without torch."""

import pytest

from tuner.sweep import visible_gpus


@pytest.mark.parametrize(
    ("listed", "expected"),
    [(None, 4), ("", None), ("0", 1), ("2,1", 2), ("3,4,0", 1), ("0,0", None), ("GPU-4fe2", None), ("0,-1", None)],
)
def test_what_cuda_visible_devices_leaves_of_four(monkeypatch, listed, expected):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(visible_gpus, "_count", lambda: 4)
    monkeypatch.setattr(visible_gpus.metadata, "version", lambda _name: "2.13.0+cu130")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert visible_gpus.gpu_count() == expected


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0+rocm7.0"])
def test_a_torch_without_cuda_tells_itself(monkeypatch, version):
    monkeypatch.setattr(visible_gpus, "_count", lambda: 4)
    monkeypatch.setattr(visible_gpus.metadata, "version", lambda _name: version)
    assert visible_gpus.gpu_count() is None


def test_the_interpreter_is_not_looked_past(monkeypatch):
    monkeypatch.setattr(visible_gpus, "_count", lambda: 4)
    monkeypatch.setattr(visible_gpus.metadata, "version", lambda _name: "2.13.0")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert visible_gpus.gpu_count() is None
