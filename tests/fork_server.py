"""Runs Python programs in forks of this process, which has imported torch, Triton and, to compile, the kernels.

Each alone would take seconds to; a test of imports has a process of its own. Triton is also hashed once here, as every
process does that compiles. A fork ends once what it registered for its end has run: to take torch and Triton down takes
a second more, and copies most of the memory that it shares.
All processes of a pytest-xdist ask one server, which goes into the background once it listens to the address that it is
given, and ends once none of them is there. One line of JSON asks for a fork: {"program", "arguments", "env", "stdout",
"stderr"}; the answer is its exit status. Where "cwd" is there too, the program is a module, as of `python -m`, which
runs in that folder. What "modules" names is imported here before it is forked, for the forks after it as well.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

LISTENER = socket.socket(socket.AF_UNIX)
try:
    LISTENER.bind("\0" + sys.argv[1])  # a name without a file
except OSError:
    os._exit(0)  # another process has just started one
LISTENER.listen()
if os.fork():
    os._exit(0)
GRACE_S = 3
"""How long the server waits for somebody to ask it, where nobody is there."""

status = [1]
"""The exit status of a fork, if its program raises no other."""


@atexit.register  # before all others are, so that it comes after them
def leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status[0])


import torch.distributed.tensor  # noqa: E402, F401  by whatever registers an operator, with all of sympy
import triton  # noqa: E402, F401
from triton.experimental.gluon.nvidia import hopper  # noqa: E402, F401
from triton.runtime import cache  # noqa: E402

from tuner.kernel import registry  # noqa: E402

CLIENTS: list[socket.socket] = []
RUNNING: dict[int, tuple[int, socket.socket]] = {}
"""By their descriptors the forks that run, and who waits for each."""


def serve() -> dict[str, Any] | None:
    """Fork for each line: what a fork is to do, in the fork; None, here, once nobody is left to ask."""
    while True:
        ready, _, _ = select.select([LISTENER, *CLIENTS, *RUNNING], [], [], None if CLIENTS or RUNNING else GRACE_S)
        if not ready:
            return None
        for each in ready:
            if each is LISTENER:
                CLIENTS.append(LISTENER.accept()[0])
            elif each in RUNNING:
                answer(each)
            elif not (line := line_of(each)):
                leave_alone(each)
            elif asked := forked(each, json.loads(line)):
                return asked


def line_of(client: socket.socket) -> bytes:
    """The next line; nothing from one who has left."""
    line = b""
    with contextlib.suppress(ConnectionError):  # of one who was killed
        while more := client.recv(1 << 20):
            line += more
            if line.endswith(b"\n"):
                return line
    return b""


def leave_alone(client: socket.socket) -> None:
    """Nobody waits any longer for what this one asked for."""
    CLIENTS.remove(client)
    client.close()
    for child, waiting in RUNNING.values():
        if waiting is client:
            for kill in (os.killpg, os.kill):  # it may not have a group of its own yet
                with contextlib.suppress(ProcessLookupError):
                    kill(child, signal.SIGKILL)


def answer(running: int) -> None:
    child, client = RUNNING.pop(running)
    os.close(running)
    _, ended = os.waitpid(child, 0)
    with contextlib.suppress(OSError):  # it has left
        client.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended))


def forked(client: socket.socket, asked: dict[str, Any]) -> dict[str, Any] | None:
    for module in asked.get("modules", ()):
        importlib.import_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy has threads, which wait
        child = os.fork()
    if not child:
        os.setsid()
        return asked
    RUNNING[os.pidfd_open(child)] = child, client
    return None


def become(asked: dict[str, Any]) -> None:
    """This fork has the environment, arguments and files of a process of its own."""
    for each in (LISTENER, *CLIENTS):
        each.close()
    for running in RUNNING:
        os.close(running)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in ((1, asked["stdout"]), (2, asked["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[:] = [asked["program"], *asked["arguments"]]
    sys.path[0] = asked.get("cwd") or str(Path(asked["program"]).parent)


def become_command(cwd: str) -> None:
    """Packages may be there that the server has not seen, and what it was told of warnings is for programs alone."""
    os.chdir(cwd)
    found = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[1:1] = [each for each in map(os.path.abspath, found) if each not in sys.path]
    importlib.invalidate_caches()
    registry.forget()
    sys.warnoptions.clear()
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)


cache.triton_key()
if "TRITON_INTERPRET" not in os.environ:  # a pytest, which has one module's kernels to import at most
    registry.specs()
gc.freeze()  # a pytest collects garbage some times before it ends: not among all that is imported here
if asked := serve():
    become(asked)
    try:
        if "cwd" in asked:
            become_command(asked["cwd"])
            runpy.run_module(asked["program"], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(asked["program"], run_name="__main__")
        status[0] = 0
    except SystemExit as e:
        status[0] = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise
