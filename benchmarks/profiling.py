"""What holds a row back: the winner and torch's kernel under Nsight Compute, their limits side by side.

    python benchmarks/profiling.py --db tuned.db --suite benchmarks/suites/public.csv --shapes 32x32x16384 --out R.json

Caches are flushed before each pass, clocks are left alone, so times are not those of protocol 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import record

SECTIONS = (
    "SpeedOfLight",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "LaunchStats",
    "Occupancy",
    "WarpStateStats",
)
KEPT = {
    "gpu__time_duration.sum": "us",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_pct",
    "dram__bytes_read.sum.per_second": "dram_read_rate",
    "lts__t_sector_hit_rate.pct": "l2_hit_pct",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_pct",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "l1_pct",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_pct",
    "launch__grid_size": "programs",
    "launch__block_size": "threads",
    "launch__registers_per_thread": "registers",
    "launch__shared_mem_per_block_dynamic": "shared",
    "launch__waves_per_multiprocessor": "waves",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_pct",
    "sm__cycles_active.avg": "cycles_active",
    "sm__cycles_elapsed.max": "cycles_elapsed",
}
"""Column of Nsight Compute's raw page to its short name here."""
_STALL = "smsp__average_warps_issue_stalled_"
_SPIN = "spin_kernel"
_LIMIT_S = 300


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", required=True)
    parser.add_argument("--suite", required=True)
    parser.add_argument("--shapes", default="", help="MxNxK, comma separated; all of the suite when empty")
    parser.add_argument("--out", required=True)
    parser.add_argument("--ncu", default=shutil.which("ncu") or "/usr/local/cuda/bin/ncu")
    args = parser.parse_args()
    program = Path(__file__).with_name("profiled.py")
    command = [sys.executable, str(program), args.db, args.suite, *filter(None, args.shapes.split(","))]
    sections = [word for section in SECTIONS for word in ("--section", section)]
    options = ["--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw", *sections]
    done = subprocess.run([args.ncu, *options, *command], capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    lines = done.stdout.splitlines()
    contestants = [json.loads(line.split(" ", 1)[1]) for line in lines if line.startswith("profiled ")]
    table = [line for line in lines if line.startswith('"')]
    if not contestants or len(table) < 3:
        sys.exit(f"nothing was profiled (exit code {done.returncode}): {(done.stderr or done.stdout)[-2000:]}")
    rows = [{**contestant, "kernels": kernels} for contestant, kernels in zip(contestants, grouped(table), strict=True)]
    record.write(args.out, {"rows": rows})
    for row in rows:
        for kernel in row["kernels"]:
            figures = " ".join(f"{name} {kernel[name]}" for name in KEPT.values() if name in kernel)
            print(
                f"{row['problem']} | {row['contestant'][:60]} | {kernel['name'][:40]} | {figures} | {kernel['stalls']}"
            )


def grouped(table):
    """The launches of each contestant: what follows a spin kernel, up to the next."""
    header, units, *launches = csv.reader(table)
    found = []
    for launch in launches:
        columns = dict(zip(header, launch, strict=True))
        if _SPIN in columns["Kernel Name"]:
            found.append([])
        else:
            found[-1].append(figures(columns, dict(zip(header, units, strict=True))))
    return found


def figures(columns, units):
    """What is kept of one launch, and what its warps waited for most."""
    kept = {"name": columns["Kernel Name"].split("(")[0]}
    for column, name in KEPT.items():
        if columns.get(column):
            unit = units[column]
            kept[name] = number(columns[column]) if name == "us" or not unit else f"{columns[column]} {unit}"
            if name == "us" and unit == "ns":
                kept[name] = round(kept[name] / 1e3, 2)
    tensor = {c: number(v) for c, v in columns.items() if "pipe_tensor" in c and "pct" in c and v}
    kept["tensor_pct"] = max(tensor.values(), default=None)
    stalls = {
        column[len(_STALL) :].split("_per_issue")[0]: number(value)
        for column, value in columns.items()
        if column.startswith(_STALL) and column.endswith("_per_issue_active.ratio") and value
    }
    kept["stalls"] = dict(sorted(stalls.items(), key=lambda stall: -stall[1])[:4])
    return kept


def number(text):
    return float(text.replace(",", ""))


if __name__ == "__main__":
    main()
