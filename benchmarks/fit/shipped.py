"""Tune what the tables that come with triton-tuner are for, and unite the winners with them.

    python benchmarks/fit/shipped.py --out FOLDER [--time-budget 500s] [--shard I/N]
    python benchmarks/fit/shipped.py --out FOLDER --only-list

The families are those of the suite `decode` and of the models in benchmarks/data/models.json, each sharded as it says
there, for batches of 1 to 256; with `--suites decode benchmarks/suites/{experts,mlps,norms}.csv` more experts, gated
MLPs and norms too. What most of them share comes first; what ships already is left out. The database stays in
FOLDER: typed again, the command goes on where it ended, and what other shards or machines tuned is united by
`tuner merge` or by running this with their databases (--also). benchmarks/data/shipped-h100.db.xz and
shipped-h200.db.xz have the trials and winners that ship, gated-h200.db.xz, norms-h200.db.xz and
merged-shipped-h200.db.xz those of an H200's gated MLPs, norms and attention, adding-h200.db.xz of the products that
add the residual, and split-h200.db.xz of bfloat16 layers with 65 to 256 rows, tuned again since `any_height_split` is
here: unpacked as FOLDER/shipped.db one saves their time. Needs transformers.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import tuner as triton_tuner
from tuner.errors import DeviceError
from tuner.lookup import families as families_of
from tuner.lookup import table as tables_of
from tuner.problem import Problem, suite

sys.path.insert(0, str(Path(__file__).parents[1] / "claims"))
from commands import tuner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "benchmarks" / "data" / "models.json"
TABLES = ROOT / "tuner" / "tables" / "shipped"
PACKAGE = "tuner.tables.shipped"
MOST_BYTES = 2_000_000
FEW_ROWS = 64
LITTLE = 0.97
"""A row whose ratio to torch's library is less is called behind it."""
COLUMNS = ("m", "n", "k", "dtype", "layout", "epilogue", "scaling", "op", "groups", "top_k", "eps", "parts")
OPS = ("matmul", "gated_linear", "merged_linear", "fused_experts", "rms_norm")
MEASURED = ("exact", "family")
"""The rules of lookups that answer by what was measured of the family on the device."""
Family = tuple[str, ...]
"""The values of COLUMNS."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--tables", type=Path, default=TABLES, help="where the tables are united")
    parser.add_argument("--suites", nargs="*", default=["decode"], help="whose families are tuned, too")
    parser.add_argument("--m", default="1-256")
    parser.add_argument("--slug", default="nvidia-h200-sm90-132", help="the device whose shipped families are left out")
    parser.add_argument("--device", default="auto", help="as `tuner run` takes it")
    parser.add_argument("--time-budget", default="1h")
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--trials", help="as `tuner run` takes it")
    parser.add_argument("--also", nargs="*", default=[], metavar="DB")
    parser.add_argument("--fewest", type=int, default=1, help="the least Ms that a row serves, if all are beyond 64")
    parser.add_argument("--gain", type=float, default=0.0, help="the least that a row saves where the next could serve")
    parser.add_argument("--only-list", action="store_true", help="write FOLDER/shipped.csv and tune nothing")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # most families are known to nobody yet
    args.out.mkdir(parents=True, exist_ok=True)
    folder = args.out.resolve()
    users = families(rows(folder, args))
    wanted = [each for each in sorted(users, key=lambda each: -len(users[each])) if not ships(each, args.slug)]
    write(folder / "shipped.csv", wanted, users)
    print(f"{len(users)} families, {len(wanted)} of them not in the tables yet: {folder / 'shipped.csv'}", flush=True)
    if not args.only_list and wanted:
        tune(folder, args)


def families(named: Iterator[tuple[str, dict[str, str]]]) -> dict[Family, list[str]]:
    """Every family with the models and suites that have it, in their order."""
    users: dict[Family, list[str]] = {}
    for name, row in named:
        if (row.get("op") or "matmul") in OPS and row["dtype"] != "float32":
            family = tuple(row.get(column) or "" for column in COLUMNS)
            users.setdefault(family, []).append(name)
    return {family: list(dict.fromkeys(names)) for family, names in users.items()}


def rows(folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of every model's suite, as `tuner model` writes it, then those of the suites."""
    for name, model in json.loads(args.models.read_text()).items():
        config = folder / f"{name}.json"
        config.write_text(json.dumps(model["config"]))
        for ranks in model["tp"]:
            listed = folder / f"{name}-{ranks}.csv"
            tuner(folder, "model", str(config), "--tp", str(ranks), "--m", args.m, "--out", str(listed))
            with listed.open(newline="") as file:
                lines = (line for line in file if not line.startswith("#"))
                yield from ((name, row) for row in csv.DictReader(lines))
    for name in args.suites:
        for problem in suite.load(name):
            row = {"n": str(problem.n), "k": str(problem.k), "dtype": problem.a_dtype, "layout": problem.layout}
            if problem.op != "matmul":
                row |= {"op": problem.op, "epilogue": problem.epilogue, **{k: str(v) for k, v in problem.extras}}
            yield name, {"m": args.m, **row}


def ships(family: Family, slug: str) -> bool:
    """Whether the tables that come with triton-tuner say for a device's every M of a family what was measured there."""
    named = dict(zip(COLUMNS, family, strict=True))
    first, last = (int(named["m"].split("-")[end]) for end in (0, -1))
    found = (triton_tuner.lookup(suite.problem_of({**named, "m": str(m)}), slug) for m in range(first, last + 1))
    try:
        return all(each.rule in MEASURED and each.source == f"package {PACKAGE}" for each in found)
    except DeviceError:  # nothing ships for such a device
        return False


def write(path: Path, wanted: list[Family], users: Mapping[Family, list[str]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow((*COLUMNS, "group"))
        table.writerows((*family, " ".join(users[family])) for family in wanted)


def tune(folder: Path, args: argparse.Namespace) -> None:
    """Tune the suite, unite what was found with the tables, and say what they hold now."""
    options = ["--device", args.device, "--time-budget", args.time_budget, "--shard", args.shard]
    options += ["--trials", args.trials] if args.trials else []
    # A budget that is spent, or a problem without a winner, is no reason to leave the others out.
    tuner(folder, "run", "--suite", "shipped.csv", "--db", "shipped.db", *options, accept=(0, 1))
    if args.also:
        tuner(folder, "merge", "shipped.db", *args.also)
    tuner(
        folder, "export", "tables", "--db", "shipped.db", *(["--device", args.device] if args.device != "auto" else [])
    )
    tuner(folder, "verify", "--strict", "tables")
    tuner(folder, "import", "tables", "--out", str(args.tables.resolve()))
    leave_out_what_serves_nothing(args.tables)
    if args.fewest > 1:
        for each in (folder / "tables").glob("*.json"):
            leave_out_rows_for_few(args.tables / each.name, args.fewest)
    if args.gain:
        for each in (folder / "tables").glob("*.json"):
            leave_out_rows_that_gain_little(args.tables / each.name, args.gain)
    tuner(folder, "verify", "--strict", str(args.tables.resolve()))
    for path in args.tables.glob("*.json"):
        print(path.name, beside_torch(tables_of.load(path)))
    size = sum(path.stat().st_size for path in args.tables.glob("*.json"))
    print(f"{args.tables}: {size:,} bytes of {MOST_BYTES:,}")
    if size > MOST_BYTES:
        sys.exit("too large for the wheel: leave models out")


def beside_torch(whole: tables_of.Table) -> dict[str, float]:
    """What a table's rows say of torch's library: its time over theirs, and how many are more than 3% behind it."""
    ratios = [row.vs_vendor for row in whole.rows if row.vs_vendor]
    behind = sum(each < LITTLE for each in ratios)
    return {"rows": len(whole.rows), "beside torch": len(ratios), "geomean": record.geomean(ratios), "behind": behind}


def leave_out_rows_for_few(path: Path, fewest: int) -> None:
    """Leave out a table's rows that serve fewer Ms, all beyond FEW_ROWS rows; the rows of Ms above serve these."""
    whole = tables_of.load(path)
    served: dict[Problem, int] = {}
    for family in whole.families:
        for each in family.ranges:
            count = each.last_m - each.first_m + 1 if each.first_m > FEW_ROWS else fewest
            served[family.at(each.row_m)] = served.get(family.at(each.row_m), 0) + count
    keep(path, whole, {row.problem for row in whole.rows if served.get(row.problem, fewest) >= fewest})


def leave_out_rows_that_gain_little(path: Path, gain: float) -> None:
    """Leave out a table's rows beyond FEW_ROWS if the next one takes less than `gain` (0.02: 2%) longer for more rows.

    So much is lost at most where a config takes no longer for fewer rows. Rows that serve other Ms than their own, or
    whose next one does, stay.
    """
    whole = tables_of.load(path)
    us, left_out = {row.problem: row.median_us for row in whole.rows}, set[Problem]()
    for family in whole.families:
        far = {each.row_m for each in family.ranges if not each.first_m <= each.row_m <= each.last_m}
        next_one: Problem | None = None
        for each in reversed(family.ranges):
            row = family.at(each.row_m)
            is_plain = each.first_m > FEW_ROWS and each.row_m not in far
            if is_plain and next_one is not None and us[next_one] < (1 + gain) * us[row]:
                left_out.add(row)
            else:
                next_one = None if each.row_m in far else row
    keep(path, whole, {row.problem for row in whole.rows} - left_out)


def keep(path: Path, whole: tables_of.Table, problems: Set[Problem]) -> None:
    """Write a table anew with the rows of some problems; the next ones serve the ranges of the others."""
    rows = tuple(row for row in whole.rows if row.problem in problems)
    families = tuple(families_of.shippable(whole.families, problems))
    dataclasses.replace(whole, rows=rows, families=families).write(path.parent)


def leave_out_what_serves_nothing(tables: Path) -> None:
    """Of a family's rows keep those that its ranges name: the others were raced to check them.

    A first lookup reads the whole table.
    """
    for path in tables.glob("*.json"):
        whole = tables_of.load(path)
        families = {family.problem.family for family in whole.families}
        named = {family.problem.with_m(each.row_m) for family in whole.families for each in family.ranges}
        kept = tuple(row for row in whole.rows if row.problem in named or row.problem.family not in families)
        dataclasses.replace(whole, rows=kept).write(tables)


if __name__ == "__main__":
    main()
