"""One short round of benchmarks/claims/launch_cost.py and decorated_cost.py, run as programs over the stub."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import tempfile
from pathlib import Path

import stub_driver
import stub_matmul

from tuner.hardware import device

CLAIMS = Path(__file__).parents[3] / "benchmarks" / "claims"


def host(script: str, *arguments: str) -> dict[str, dict[str, float]]:
    """The figures that a script writes after three rounds of two calls each."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        result = Path(folder) / "result.json"
        options = ["--device", "cpu", "--rounds", "3", "--burst", "2", "--out", str(result), *arguments]
        sys.argv = [str(CLAIMS / script), *options]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return json.loads(result.read_text())["host"]


sys.path.insert(0, str(CLAIMS))  # as Python does for a script
stub_matmul.activate()
figures = host("launch_cost.py", "--processes", "0")
device.current = lambda _index=None: device.KNOWN["sm_90"]
stub_driver.tell(figures=figures, decorated=host("decorated_cost.py"))
