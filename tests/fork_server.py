"""Runs Python programs in forks of this process, which has imported torch and Triton: each alone would take seconds to.

Reads one JSON object a line, {"program", "arguments", "env", "stdout", "stderr"}; answers each with the exit status.
Triton is also hashed once here, as every process does that compiles.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import torch  # noqa: F401
import triton  # noqa: F401
from triton.experimental.gluon.nvidia import hopper  # noqa: F401
from triton.runtime import cache

ANSWERS = os.dup(1)


def serve() -> dict[str, Any] | None:
    """Fork once for each line: what a fork is to do, in the fork; None, here, at the end."""
    for line in iter(sys.stdin.readline, ""):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy has threads, which wait
            child = os.fork()
        if child == 0:
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        os.write(ANSWERS, b"%d\n" % os.waitstatus_to_exitcode(status))
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
    sys.path[0] = str(Path(asked["program"]).parent)


cache.triton_key()
if asked := serve():
    become(asked)
    runpy.run_path(asked["program"], run_name="__main__")
