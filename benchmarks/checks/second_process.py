"""What the next process sees: every tuned shape `exact`, right results, nothing measured, nothing compiled or written.

python benchmarks/checks/second_process.py --db TUNED.db --out RESULT.json
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import triton

import tuner
from tuner.hardware import device
from tuner.kernel import registry
from tuner.kernels import matmul
from tuner.lookup.database import read_winners
from tuner.sweep import verify

sys.path.insert(0, str(Path(__file__).parents[1]))
import record


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    os.environ["TUNER_DB"] = args.db
    before = digest(args.db)
    compiles = Counter()
    triton.knobs.compilation.listener = lambda *_, cache_hit=False, **__: compiles.update([bool(cache_hit)])
    here = device.current()
    rows = []
    for row in read_winners(Path(args.db), here.slug).rows:
        problem = row.problem
        spec = registry.find(problem.op, row.config.kernel)
        inputs = spec.make_inputs(problem, "cpu" if here.is_interpreter else "cuda", 11)
        start = time.perf_counter()
        match = tuner.lookup(problem)
        lookup_us = (time.perf_counter() - start) * 1e6
        verify.poison(inputs)
        matmul(inputs.a, inputs.b, bias=inputs.bias, out=inputs.output, out_dtype=inputs.output.dtype)
        check = verify.check(inputs, spec.reference(inputs), problem.k, spec.tolerance(problem))
        rows.append(
            {
                "problem": str(problem),
                "rule": match.rule,
                "grade": match.grade,
                "winner_is_used": match.config == row.config,
                "wrong": check.failure,
                "first_lookup_us": round(lookup_us, 1),
            }
        )
    summary = {
        "problems": len(rows),
        "rules": dict(Counter(row["rule"] for row in rows)),
        "winners_used": sum(row["winner_is_used"] for row in rows),
        "wrong_results": sum(row["wrong"] is not None for row in rows),
        "compiled_anew": compiles[False],
        "loaded_from_triton_cache": compiles[True],
        "measuring_code_imported": sorted(name for name in sys.modules if name.startswith("tuner.sweep.timer")),
        "database_unchanged": digest(args.db) == before,
        "files_beside_it": sorted(path.name for path in Path(args.db).parent.glob(Path(args.db).name + "*")),
    }
    print(summary)
    record.write(args.out, {"summary": summary, "rows": rows})


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
