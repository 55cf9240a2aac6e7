"""From what size on a table's file is read sooner by msgspec, its import included, than by plain JSON.

    python benchmarks/studies/table_readers.py --out RESULT.json

Each reading is the first of a fresh process, in turns; figures are medians in milliseconds. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "claims"))
import record
from commands import fresh
from written import table_of

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.problem import Problem

ROWS = (500, 1_250, 2_000, 3_000, 5_000)
TURNS = 15
READ = """
import sys, time
from pathlib import Path
import tuner
from tuner.lookup import loaded_table
loaded_table.LARGE = int(sys.argv[2])
start = time.perf_counter()
loaded_table.load(Path(sys.argv[1]))
print(1e3 * (time.perf_counter() - start))
"""
READERS = {"json": 1 << 40, "msgspec": 0}
"""By reader, from how many bytes on msgspec is to read."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in ROWS:
            found.append(read(Path(folder) / str(rows), rows))
            print(found[-1], flush=True)
    record.write(args.out, {"tables": found})


def read(folder: Path, rows: int) -> dict[str, Any]:
    problems = [Problem(m, 4096, 4096, dtype="bfloat16", layout="nt") for m in range(1, rows + 1)]
    config = registry.find("matmul", "pointer").default_config(problems[0], KNOWN["sm_90"])
    path = table_of(folder, KNOWN["sm_90"], problems, config)
    turns = [{name: float(fresh(READ, str(path), str(large))) for name, large in READERS.items()} for _ in range(TURNS)]
    medians = {f"{name}_ms": round(statistics.median(turn[name] for turn in turns), 2) for name in READERS}
    return {"bytes": path.stat().st_size, "rows": rows, **medians}


if __name__ == "__main__":
    main()
