"""Runs Python programs in forks of this process, which has imported torch, Triton and, to compile, the kernels.

Each alone would take seconds to; a test of imports has a process of its own. Triton is also hashed once here, as every
process does that compiles. A fork ends once what it registered for its end has run: to take torch and Triton down takes
a second more, and copies most of the memory that it shares.
Reads one JSON object a line, {"program", "arguments", "env", "stdout", "stderr"}; answers each with the exit status.
Where "cwd" is there too, the program is a module, as of `python -m`, which runs in that folder.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

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

ANSWERS = os.dup(1)


def serve() -> dict[str, Any] | None:
    """Fork once for each line: what a fork is to do, in the fork; None, here, at the end."""
    for line in iter(sys.stdin.readline, ""):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy has threads, which wait
            child = os.fork()
        if child == 0:
            return json.loads(line)
        _, ended = os.waitpid(child, 0)
        os.write(ANSWERS, b"%d\n" % os.waitstatus_to_exitcode(ended))
    return None


def become(asked: dict[str, Any]) -> None:
    """This fork has the environment, arguments and files of a process of its own."""
    os.close(ANSWERS)
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
