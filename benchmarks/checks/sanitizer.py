"""compute-sanitizer over every kernel: memory out of bounds, races in shared memory, reads of what nobody wrote.

    python benchmarks/checks/sanitizer.py --out RESULT.json
    python benchmarks/checks/sanitizer.py --device interpreter --out RESULT.json     # no tool: a rehearsal

Each kernel is first run as it is, which compiles it into Triton's cache, then once under each tool. Exits 1 when a tool
reports anything, a result is wrong, or a run ends without the tool's summary.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

TOOLS = ("memcheck", "racecheck", "initcheck")
PLAIN = "plain"
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: .*\((\d+) errors?, (\d+) warnings?\)")
PROGRAM = Path(__file__).with_name("sanitized.py")
CUDA = "/usr/local/cuda/bin"
_LINES_KEPT = 60


def run(kernel, tool, sanitizer, limit_s):
    """One kernel under one tool: what was found, launches that were right, the output where not all is clean."""
    row, text = watched([sys.executable, str(PROGRAM), *kernel.split("/")], tool, sanitizer, limit_s)
    row = {"kernel": kernel, **row, "right": len(re.findall(r"^right: ", text, re.MULTILINE))}
    row["clean"] = row["ended"] == "exit code 0" and row["right"] > 0
    if tool != PLAIN:
        row["clean"] &= row["errors"] == row["warnings"] == 0
    if not row["clean"]:
        row["output"] = text.splitlines()[:_LINES_KEPT]
    return row


def watched(command, tool, sanitizer, limit_s):
    """A command under a tool: errors and warnings found, how it ended, seconds; and all that it said."""
    if tool != PLAIN:
        options = ["--tool", tool, "--target-processes", "application-only", "--report-api-errors", "no"]
        command = [sanitizer, *options, "--print-limit", "20", *command]
    begin = time.monotonic()
    # torch's allocator hands out parts of large blocks: an access beyond a tensor would be inside of one.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **told)
    try:
        text, _ = process.communicate(timeout=limit_s)
        ended = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        # The tool and the program under it.
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        ended = f"killed after {limit_s:.0f} s"
    errors, warnings = counted(text)
    seconds = round(time.monotonic() - begin, 1)
    return {"tool": tool, "errors": errors, "warnings": warnings, "ended": ended, "seconds": seconds}, text


def counted(text):
    """Errors and warnings by a tool's summary, None without one; of racecheck's a warning is within one warp."""
    found = SUMMARY.search(text)
    if found is None:
        return None, None
    errors, hazards, warnings = found.groups()
    return int(errors or hazards or 0), int(warnings or 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", choices=("auto", "interpreter"), default="auto")
    parser.add_argument("--kernel", action="append", help="op/name; all when not given")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="all when not given")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of all; what is left goes to one process")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--compute-sanitizer", default=shutil.which("compute-sanitizer") or f"{CUDA}/compute-sanitizer")
    args = parser.parse_args()
    interpreting = args.device == "interpreter"
    if interpreting:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not Path(args.compute_sanitizer).exists():
        parser.error(f"no {args.compute_sanitizer}: it comes with the CUDA toolkit; give --compute-sanitizer PATH")
    from tuner.kernel import registry

    kernels = args.kernel or [f"{op}/{name}" for op, name in sorted(registry.specs())]
    tools = [] if interpreting else args.tool or list(TOOLS)
    begin = time.monotonic()

    def one(pair):
        return run(*pair, args.compute_sanitizer, max(1.0, args.limit_s - (time.monotonic() - begin)))

    pool = ThreadPoolExecutor(args.jobs)
    rows = list(pool.map(one, [(kernel, PLAIN) for kernel in kernels]))
    # A kernel that serves nothing on this device prints nothing, and has nothing to watch.
    idle = [row["kernel"] for row in rows if row["ended"] == "exit code 0" and row["right"] == 0]
    rows = [row for row in rows if row["kernel"] not in idle]
    rows += pool.map(one, [(kernel, tool) for tool in tools for kernel in kernels if kernel not in idle])
    record.write(args.out, body(rows, idle, args, time.monotonic() - begin))
    for row in rows:
        print(*(f"{row[name]!s:12}" for name in ("kernel", "tool", "errors", "warnings", "seconds", "ended")))
    return 0 if rows and all(row["clean"] for row in rows) else 1


def body(rows, idle, args, seconds):
    tools = {
        tool: {
            "kernels": len(of_tool),
            "clean": sum(row["clean"] for row in of_tool),
            "errors": sum(row["errors"] or 0 for row in of_tool),
            "warnings": sum(row["warnings"] or 0 for row in of_tool),
            "launches": sum(row["right"] for row in of_tool),
        }
        for tool in (PLAIN, *TOOLS)
        if (of_tool := [row for row in rows if row["tool"] == tool])
    }
    summary = {"wall_s": round(seconds, 1), "tools": tools, "serve_nothing_here": idle}
    if len(tools) > 1:
        shown = subprocess.run([args.compute_sanitizer, "--version"], capture_output=True, text=True, check=False)
        summary["compute_sanitizer"] = shown.stdout.strip().rpartition("\n")[2]
    return {"summary": summary, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
