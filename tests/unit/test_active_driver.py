"""Which of Triton's drivers is active, and that its module is not built before a kernel needs it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from tuner.launch import active_driver, compat


@pytest.fixture
def no_driver(monkeypatch):
    """A process in which no driver is active, on a machine with the GPUs that are named."""
    config = type(compat.driver)()
    monkeypatch.setattr(compat, "driver", config)
    monkeypatch.delenv("TRITON_DEFAULT_BACKEND", raising=False)

    def machine(*makers: str):
        drivers = {name: SimpleNamespace(is_active=lambda name=name: name in makers) for name in ("amd", "nvidia")}
        monkeypatch.setattr(compat, "backends", {name: SimpleNamespace(driver=each) for name, each in drivers.items()})
        return config

    return machine


def test_on_nvidia_the_driver_is_active_before_its_module_is_built(no_driver):
    no_driver("nvidia")
    driver = active_driver.active()
    assert type(driver).__name__ == "NvidiaDriver"
    assert isinstance(driver, compat.CudaDriver)
    assert "utils" not in vars(driver)
    assert active_driver.active() is driver


def test_a_driver_that_is_active_stays(no_driver):
    config, other = no_driver("nvidia"), object()
    config.set_active(other)
    assert active_driver.active() is other


@pytest.mark.parametrize("makers", [(), ("amd",), ("amd", "nvidia")])
def test_where_nvidias_is_not_the_only_driver_triton_chooses(no_driver, makers):
    config = no_driver(*makers)
    active_driver.prepare()
    assert config._active is None


def test_a_backend_that_the_environment_chooses_is_tritons_to_open(no_driver, monkeypatch):
    config = no_driver("nvidia")
    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "amd")
    active_driver.prepare()
    assert config._active is None
