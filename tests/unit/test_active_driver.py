"""Which of Triton's drivers is active, and that its module is not built before a kernel needs it."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from tuner.launch import active_driver, compat


def tritons():
    """Stands for what Triton makes."""
    return "Triton's own"


def type_of_driver():
    return type(compat.driver.active).__name__


@pytest.fixture
def lent():
    """Lends, and takes back what is still lent at the end."""
    borrowers = []

    def lend(borrower: str) -> None:
        borrowers.append(borrower)
        active_driver.lend(borrower)

    yield lend
    for borrower in borrowers:
        active_driver.take_back(borrower)


@pytest.fixture
def no_driver(monkeypatch):
    """A process in which no driver is active, on a machine with the GPUs that are named."""
    config = type(compat.driver)()
    monkeypatch.setattr(compat, "driver", config)
    monkeypatch.setattr(compat.driver_module, compat.MAKES_DRIVER, tritons)
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


def test_while_it_is_lent_the_first_who_asks_triton_has_it_made(no_driver, lent):
    config = no_driver("nvidia")
    lent("fla")
    assert config._active is None
    assert type_of_driver() == "NvidiaDriver"
    assert "utils" not in vars(config.active)
    active_driver.take_back("fla")
    assert type_of_driver() == "NvidiaDriver", "it has loaded kernels"


def test_taken_back_by_all_tritons_function_is_its_own_again(no_driver, lent):
    no_driver("nvidia")
    lent("fla")
    lent("liger_kernel")
    active_driver.take_back("fla")
    active_driver.take_back("fla")
    assert getattr(compat.driver_module, compat.MAKES_DRIVER) is not tritons
    active_driver.take_back("liger_kernel")
    assert getattr(compat.driver_module, compat.MAKES_DRIVER) is tritons
    assert compat.driver.active == tritons()


def test_what_took_the_functions_place_meanwhile_stays_and_makes_tritons_own(no_driver, lent, monkeypatch):
    no_driver("nvidia")
    lent("fla")
    ours = getattr(compat.driver_module, compat.MAKES_DRIVER)
    with monkeypatch.context() as patch:
        patch.setattr(compat.driver_module, compat.MAKES_DRIVER, functools.partial(ours))
        active_driver.take_back("fla")
        assert compat.driver.active == tritons()
    lent("fla")
    active_driver.take_back("fla")
    assert getattr(compat.driver_module, compat.MAKES_DRIVER) is tritons


@pytest.mark.parametrize("makers", [(), ("amd",), ("amd", "nvidia")])
def test_lent_where_nvidias_is_not_the_only_driver_triton_makes_its_own(no_driver, lent, makers):
    no_driver(*makers)
    lent("fla")
    assert compat.driver.active == tritons()


def test_lent_to_a_program_without_torch_triton_makes_its_own(no_driver, lent, monkeypatch):
    no_driver("nvidia")
    lent("fla")
    monkeypatch.delitem(sys.modules, "torch")
    assert compat.driver.active == tritons()
    assert "torch" not in sys.modules


def test_lent_to_a_triton_with_another_driver_it_makes_its_own(no_driver, lent, monkeypatch):
    no_driver("nvidia")
    lent("fla")
    monkeypatch.setitem(compat._TRITON, "CudaDriver", ("triton.backends.nvidia.driver:Gone", compat._REQUIRED))
    monkeypatch.delitem(vars(compat), "CudaDriver", raising=False)
    monkeypatch.delitem(sys.modules, "tuner.launch.nvidia_driver", raising=False)
    assert compat.driver.active == tritons()


def test_a_triton_that_makes_it_elsewhere_is_left_alone(no_driver, lent, monkeypatch):
    no_driver("nvidia")
    monkeypatch.setattr(compat, "driver_module", None)
    lent("fla")
