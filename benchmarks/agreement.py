"""Do two independent sweeps agree? The winners of two databases, paired in one process.

python benchmarks/agreement.py --first A.db --second B.db --out RESULT.json
"""

from __future__ import annotations

import argparse

import paired
import record

from tuner.store.store import Store


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", required=True)
    parser.add_argument("--second", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with Store.open(args.first, read_only=True) as one, Store.open(args.second, read_only=True) as two:
        first = {winner.problem: winner.config for winner in one.winners()}
        second = {winner.problem: winner.config for winner in two.winners()}
    rows = []
    with paired.gpu() as bench:
        for problem in sorted(set(first) & set(second)):
            configs = {"first": first[problem], "second": second[problem]}
            same = configs["first"] == configs["second"]
            ratio = 1.0 if same else bench.ratios(problem, configs, base="first")["second"]
            rows.append({"problem": str(problem), "same_config": same, "second_over_first": round(ratio, 4)})
            print(f"{problem!s:44} {'same' if same else 'other':6} {ratio:.4f}", flush=True)
    close = sum(abs(row["second_over_first"] - 1) < 0.01 for row in rows)
    summary = {"problems": len(rows), "same_config": sum(r["same_config"] for r in rows), "within_1_percent": close}
    print(summary)
    record.write(args.out, {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
