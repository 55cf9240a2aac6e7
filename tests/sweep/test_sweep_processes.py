"""The processes of a sweep, before and after they have met."""

import subprocess
import sys

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.sweep import sweep_processes

pytest.importorskip("triton")


def test_compilers_for_the_machines_gpu_start_unasked_and_end_with_them(monkeypatch):
    monkeypatch.setattr(sweep_processes, "first_arch", lambda: "sm_90")
    monkeypatch.setattr(sweep_processes, "Worker", Somebody)
    monkeypatch.setattr("tuner.sweep.supervisor.WorkerSupervisor", lambda worker: worker)
    with sweep_processes.SweepProcesses([0]) as processes:
        assert processes.pool.arch == "sm_90"
        device, _ = processes.wait_until_ready()
        assert device == KNOWN["sm_90"]
    assert not processes.pool._pool.result().active


def test_under_the_interpreter_nothing_compiles(monkeypatch):
    monkeypatch.setattr(sweep_processes, "Worker", Somebody)
    monkeypatch.setattr("tuner.sweep.supervisor.WorkerSupervisor", lambda worker: worker)
    with sweep_processes.SweepProcesses([None]) as processes:
        assert processes.wait_until_ready()[0] == INTERPRETER
        assert processes.pool is None


def test_what_ends_the_start_ends_the_workers_that_were_started(monkeypatch):
    """Python waits at its end for a worker that was left, which ignores SIGTERM."""
    killed = []
    monkeypatch.setattr(Somebody, "kill", lambda self: killed.append(self.gpu))
    monkeypatch.setattr(sweep_processes, "Worker", Somebody)
    monkeypatch.setitem(sys.modules, "tuner.sweep.supervisor", None)
    with pytest.raises(ImportError):
        sweep_processes.SweepProcesses([0, 1])
    assert sorted(killed) == [0, 1]


def test_while_the_workers_start_nothing_imports_torch_beside_them():
    child = "import sys, tuner.sweep.sweep_processes, tuner.sweep.supervisor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", child], check=False).returncode == 0


class Somebody:
    """As much of a lane as SweepProcesses asks for."""

    def __init__(self, gpu, *, gate=None):
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
