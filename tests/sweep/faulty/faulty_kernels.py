"""A third party's kernel whose configs fail in every way a sweep must survive. It needs no Triton.

The parameter `behaviour` says what a launch (on the interpreter's device) or a compile does; `index` tells configs
apart. In the folder `shared`, workers that share the device write to `log` what they do there, whether behind a gate
that lets nobody else pass, and when, and have a file each for the inputs that they hold.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from tuner.hardware.device import INTERPRETER, Environment
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.store.records import Outcome, State
from tuner.sweep import messages, worker
from tuner.sweep.gpu_gate import GpuGate

GUARD = 64
PAUSE_S = 1.5
_PAUSES = (1, 4)  # a replay of the search, and a round of the finals; before each comes a check
_calls = itertools.count()
GOOD = "good"
BEHAVIOURS = (GOOD, "slow", "wrong", "unwritten", "stray", "raise", "segfault", "stop", "hang", "out_of_resources")


@dataclass(frozen=True, eq=False)
class Inputs:
    a: torch.Tensor
    b: torch.Tensor
    buffer: torch.Tensor
    output: torch.Tensor
    nbytes: int
    extras: dict


class OutOfResources(RuntimeError):  # noqa: N818  named as Triton's is
    pass


_alone = GpuGate.alone
_here = SimpleNamespace(is_alone=False)


@contextmanager
def _alone_and_known(self):
    """Let a worker pass alone, and know of it."""
    with _alone(self):
        _here.is_alone = True
        yield
        _here.is_alone = False


GpuGate.alone = _alone_and_known


@contextmanager
def _on_device(extras, what):
    """Note a use of the device; run out of memory in a greedy one where another living process holds inputs."""
    begun = time.monotonic()
    try:
        if extras.get("greedy") == what:
            holders = {int(held.name.partition("-")[0]) for held in Path(extras["shared"]).glob("*-*")}
            if any(Path(f"/proc/{pid}").exists() for pid in holders - {os.getpid()}):
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        yield
    finally:
        if "shared" in extras:
            with Path(extras["shared"], "log").open("a") as log:
                how = "alone" if _here.is_alone else "shared"
                log.write(f"{extras['name']} {what} {os.getpid()} {how} {begun} {time.monotonic()}\n")


def _make_inputs(problem, device, seed):
    extras = dict(problem.extras)
    torch.cuda.memory_reserved = lambda: 2**60 if "large" in extras else 0
    with _on_device(extras, "finals" if seed > 1_000_000 else "inputs"):
        inputs = _random_inputs(problem, device, seed, extras)
    if "shared" in extras:
        held = Path(extras["shared"], f"{os.getpid()}-{id(inputs)}")
        held.touch()
        weakref.finalize(inputs, held.unlink)
    return inputs


def _random_inputs(problem, device, seed, extras):
    generator = torch.Generator(device).manual_seed(seed)
    a = torch.randn(problem.m, problem.k, generator=generator, device=device)
    b = torch.randn(problem.k, problem.n, generator=generator, device=device)
    buffer = torch.zeros(problem.m * problem.n + 2 * GUARD, device=device)
    output = buffer[GUARD:-GUARD].view(problem.m, problem.n)
    return Inputs(a, b, buffer, output, 4 * (a.numel() + b.numel() + output.numel()), extras)


def _launch(inputs, config):
    with _on_device(inputs.extras, "launch"):
        _behave(inputs, config)


def _vendor(inputs):
    with _on_device(inputs.extras, "vendor"):
        torch.mm(inputs.a, inputs.b, out=inputs.output)


def _behave(inputs, config):
    behaviour = config["behaviour"]
    time.sleep(config.integer("sleep_ms") / 1e3)
    torch.mm(inputs.a, inputs.b, out=inputs.output)
    if behaviour == "slow":
        time.sleep(0.02)
    elif behaviour == "wrong":
        inputs.output[0, 0] += 1.0
    elif behaviour == "unwritten":
        inputs.output[-1, -1] = float("nan")
    elif behaviour == "stray":
        inputs.buffer[-1] = 0.0
    elif behaviour == "raise":
        raise RuntimeError("no such instruction\nsecond line")
    elif behaviour == "out_of_resources":
        raise OutOfResources("shared memory, required: 300000")
    elif behaviour in ("segfault", "deadly"):
        ctypes.string_at(0)
    elif behaviour == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif behaviour == "hang":
        time.sleep(3600)
    elif behaviour == "stuck":
        with _on_device(inputs.extras, "stuck"):
            pass
        time.sleep(3600)
    elif behaviour == "pause" and next(_calls) in _PAUSES:
        subprocess.Popen(["sh", "-c", f"sleep {PAUSE_S}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)


def _compile(problem, config):
    behaviour = config["behaviour"]
    if behaviour == "raise":
        raise ValueError("cannot lower this\nsecond line")
    if behaviour == "segfault":
        os.write(2, b"LLVM ERROR: unreachable executed\n")
        os.abort()
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "full":
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as e:
            raise RuntimeError("cannot lower this") from e
    if behaviour == "hang":
        time.sleep(3600)
    if behaviour == "slow":
        sys.stdout.write("ptx " * 20_000)
        sys.stdout.flush()
    if behaviour in ("late", "stuck"):
        _wait_for(dict(problem.extras))
    return Binary(config)


def _wait_for(extras):
    """Wait until the log has a line that begins as `until` says."""
    log, latest = Path(extras["shared"], "log"), time.monotonic() + extras.get("limit_s", 20)
    while time.monotonic() < latest and not (log.exists() and f"\n{extras['until']} " in f"\n{log.read_text()}"):
        time.sleep(0.05)


class Binary:
    def __init__(self, config):
        self.asm = {"hsaco": config.digest.encode()}
        self.metadata = SimpleNamespace(num_warps=4, shared=2**40 if config["behaviour"] == "big" else 512)


def _space(problem, device):
    count = dict(problem.extras).get("configs", 8)
    behaviours = str(dict(problem.extras).get("behaviours", GOOD)).split(",")
    sleep_ms = dict(problem.extras).get("sleep_ms", 0)
    axes = {"behaviour": tuple(behaviours), "index": tuple(range(count)), "sleep_ms": (sleep_ms,)}
    return SearchSpace("faulty", problem, device, axes)


SPEC = KernelSpec(
    op="faulty",
    name="faulty",
    version=1,
    supports=lambda problem, device: None,
    space=_space,
    default_config=lambda problem, device: Config(
        "faulty",
        behaviour=str(dict(problem.extras).get("default", GOOD)),
        index=0,
        sleep_ms=dict(problem.extras).get("sleep_ms", 0),
    ),
    make_inputs=_make_inputs,
    launch=_launch,
    vendor=_vendor,
    reference=lambda inputs: inputs.a.double() @ inputs.b.double(),
    tolerance=lambda problem: 1e-5,
    compile=_compile,
    compile_class=lambda problem, config: f"{config['behaviour']} {config['index']}",
    simplicity=lambda config: (config["index"],),
)


def serve_alone(connection, gpu, log, *, gate=None):
    """Serve as a worker that cannot open its device beside another."""
    if connection.poll():
        worker.serve(connection, gpu, log, gate=gate)
    os._exit(3)


def die_at_once(_connection, _gpu, log, *, gate=None):
    Path(log).write_text("no such file\nlibcuda.so.1: cannot open\n")
    os._exit(3)


def lose_the_context(connection, _gpu, _log, *, gate=None):
    """Serve as a worker whose finals' first config loses the CUDA context: it says so and ends."""
    connection.recv()
    connection.send(messages.Hello(INTERPRETER, Environment("3.7.1", "2.13.0", "interpreter", "", "3.12")))
    while not isinstance(request := connection.recv(), messages.PlayFinals):
        connection.send(messages.Ready(0))
    config = request.finalists[0]
    connection.send(messages.Heartbeat(config))
    connection.send(messages.Result(config, Outcome(State.RUNTIME_ERROR, "RuntimeError: an illegal memory access")))
    connection.send(messages.Idle(context_lost=True))
