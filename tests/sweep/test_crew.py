"""The processes of a sweep, before and after they have met."""

import subprocess
import sys

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.sweep import crew

pytest.importorskip("triton")


def test_compilers_for_the_machines_gpu_start_unasked_and_end_with_the_crew(monkeypatch):
    monkeypatch.setattr(crew, "first_arch", lambda: "sm_90")
    monkeypatch.setattr(crew, "Worker", Somebody)
    monkeypatch.setattr("tuner.sweep.supervisor.WorkerSupervisor", lambda worker: worker)
    with crew.Crew([0]) as hired:
        assert hired.pool.arch == "sm_90"
        device, _ = hired.wait_until_ready()
        assert device == KNOWN["sm_90"]
    assert not hired.pool._pool.result().active


def test_under_the_interpreter_nothing_compiles(monkeypatch):
    monkeypatch.setattr(crew, "Worker", Somebody)
    monkeypatch.setattr("tuner.sweep.supervisor.WorkerSupervisor", lambda worker: worker)
    with crew.Crew([None]) as hired:
        assert hired.wait_until_ready()[0] == INTERPRETER
        assert hired.pool is None


def test_what_ends_a_crews_start_ends_its_workers(monkeypatch):
    """Python waits at its end for a worker that was left, which ignores SIGTERM."""
    killed = []
    monkeypatch.setattr(Somebody, "kill", lambda self: killed.append(self.gpu))
    monkeypatch.setattr(crew, "Worker", Somebody)
    monkeypatch.setitem(sys.modules, "tuner.sweep.supervisor", None)
    with pytest.raises(ImportError):
        crew.Crew([0, 1])
    assert sorted(killed) == [0, 1]


def test_while_the_workers_start_nothing_imports_torch_beside_them():
    child = "import sys, tuner.sweep.crew, tuner.sweep.supervisor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", child], check=False).returncode == 0


class Somebody:
    """As much of a lane as a crew asks for."""

    def __init__(self, gpu):
        self.worker, self.gpu = self, gpu
        self.device = INTERPRETER if gpu is None else KNOWN["sm_90"]
        self.environment = self.gpu_uuid = None

    def hello(self, stop=None):
        return self

    def share(self):
        return self

    def send_kill(self):
        pass

    def kill(self):
        pass

    def close(self):
        pass
