"""The child process that compiles one config: a request on stdin, the result in a file; what it prints is a log."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep import cross_target
from tuner.sweep.binary_resources import read_resources
from tuner.sweep.process import die_with_parent

_TEXTS = ("ttir", "ttgir", "llir", "ptx", "amdgcn")


def main(ready: str) -> None:
    """Compile what stdin asks for.

    Args:
        ready: a file to make when all is imported: from here on the time counts.
    """
    die_with_parent()
    request = json.loads(sys.stdin.read())
    try:
        cross_target.activate(request["arch"])
        registry.load(request["references"])
        problem = Problem.from_fields(request["problem"])
        spec = registry.find(problem.op, request["kernel"], problem.source)
        Path(ready).touch()
        found = _compiled(spec, problem, request)
    except Exception as e:  # noqa: BLE001  the boundary of a child process: whatever the compiler raised is the result
        found = {"error": f"{type(e).__name__}: {(str(e).strip().splitlines() or [''])[0]}"[:500]}
    Path(request["result"]).write_text(json.dumps(found))


def _compiled(spec: Any, problem: Problem, request: Mapping[str, Any]) -> dict[str, Any]:
    config = Config(request["kernel"], **request["config"])
    start = time.perf_counter()
    compiled = spec.compile(problem, config)
    resources = read_resources(compiled, (time.perf_counter() - start) * 1e3)
    stages = {name: _text(compiled.asm[name]) for name in _TEXTS if name in compiled.asm}
    if sass := _sass(compiled):
        stages["sass"] = sass
    metadata = {
        "num_warps": int(compiled.metadata.num_warps),
        "num_stages": int(getattr(compiled.metadata, "num_stages", 0)),
        "num_ctas": int(getattr(compiled.metadata, "num_ctas", 1)),
    }
    return {"stages": stages, "metadata": metadata, "resources": dataclasses.asdict(resources)}


def _text(stage: Any) -> str:
    return stage.decode(errors="replace") if isinstance(stage, bytes) else str(stage)


def _sass(compiled: Any) -> str | None:
    """The machine code as cuobjdump writes it, None without one."""
    if "cubin" not in compiled.asm:
        return None
    try:
        return str(compiled.asm["sass"])
    except (OSError, RuntimeError, KeyError, ValueError):
        # The disassembler is no part of every wheel; without it the other stages are there all the same.
        return None


if __name__ == "__main__":
    main(sys.argv[1])
