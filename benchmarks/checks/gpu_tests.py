"""Run the tests that need a GPU and keep how they ended.

python benchmarks/checks/gpu_tests.py --out RESULT.json [--processes 8]

Several processes share the GPU, by pytest-xdist: nothing here is timed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

sys.path.insert(0, str(Path(__file__).parents[1]))
import record


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    # Single tests, not files as tests/conftest.py has it: that would leave all of them to one process.
    shared = ["-n", str(args.processes), "--dist", "worksteal"] if args.processes > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # What else may be installed there: pytest-benchmark warns beside pytest-xdist, and warnings are errors here.
        plugins = ["-p", "no:cacheprovider", "-p", "no:benchmark"]
        options = ["-q", "-m", "", *plugins, f"--junitxml={report}", *shared]  # long ones too: CI has no GPU
        command = [sys.executable, "-m", "pytest", "tests/gpu", *options]
        done = subprocess.run(command, check=False)
        suite = ET.parse(report).getroot().find("testsuite")
    cases = {f"{case.get('classname')}::{case.get('name')}": outcome(case) for case in suite.iter("testcase")}
    counts = {kind: sum(one.startswith(kind) for one in cases.values()) for kind in ("passed", "failed", "skipped")}
    summary = {"exit_code": done.returncode, **counts}
    print(summary)
    record.write(args.out, {"summary": summary, "cases": cases})


def outcome(case):
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return f"failed: {(found.get('message') or '')[:1000]}"
    skipped = case.find("skipped")
    return "passed" if skipped is None else f"skipped: {skipped.get('message')}"


if __name__ == "__main__":
    main()
