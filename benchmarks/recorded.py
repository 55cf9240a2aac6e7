"""Recorded landscapes, read: of each problem every config's time, what it costs to enter, how one replay scatters.

fit/landscapes.py records them into data/landscapes-h200.json.gz; data/unseen-trials-h200.csv.gz has trials of races,
data/experts-*.csv.gz of layers of experts.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import math
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store import schema
from tuner.store.records import State
from tuner.store.store import Store

ROOT = Path(__file__).parent
DATA = ROOT / "data" / "landscapes-h200.json.gz"
H200 = Device("nvidia-h200-sm90-132", "NVIDIA H200", "nvidia", "sm_90", 132, 150_000_000_000, 232_448, 62_914_560)


class Landscape:
    """One problem's recorded times.

    Attributes:
        problem, label: which.
        us: the time of every config whose kernel is there still, but what `is_gone`; for those measured again side by
            side, the median of rounds without what moved a round as a whole.
        best_us: the fastest of those.
        scatter: standard deviation of the log of one replay, beside the others of its round.
        enter_s, replay_s: what a config costs to enter, and one replay.
    """

    def __init__(self, entry, configs):
        self.problem, self.label = Problem.from_fields(entry["problem"]), entry["label"]
        self.enter_s, self.replay_s = entry["enter_ms"] / 1e3, entry["replay_ms"] / 1e3
        swept = dict(zip(entry["configs"], entry["us"], strict=True))
        logs = {int(number): [math.log(us) for us in times] for number, times in entry["rounds"].items()}
        count = min(len(times) for times in logs.values())
        moved = [statistics.median(times[i] for times in logs.values()) for i in range(count)]
        level = statistics.median(moved)
        flat = {number: [t - m + level for t, m in zip(times, moved, strict=False)] for number, times in logs.items()}
        again = {number: math.exp(statistics.median(times)) for number, times in flat.items()}
        ratio = statistics.median(swept[number] / us for number, us in again.items() if number in swept)
        self.scatter = statistics.median(statistics.stdev(times) for times in flat.values())
        self.best_us = min(again.values())
        truth = {number: max(us / ratio, self.best_us) for number, us in swept.items()} | again
        times = {configs[number]: us for number, us in truth.items()}
        self.us = {one: us for one, us in times.items() if is_served(one) and not is_gone(one, self.problem)}
        self.best_us = min(self.us.values())


def is_served(config):
    """Whether a config's kernel is there still, and the one that multiplies for it."""
    return {config.kernel, config.get("INNER", config.kernel)} <= {name for _, name in registry.specs()}


BY_TMA = ("tma", "persistent_tma", "warp_specialized", "cluster_k")
"""Kernels that load by TMA, beside those whose LOADS says so."""
FEW_TILES = 4
"""More tiles than this hide the last: their times over the estimates are about those of tiles that end with the rows,
and forests fitted with them err less at more than 256 rows."""
MOVED_COLUMNS = ("tma", "persistent_tma", "split_k", "swap_ab")


def is_gone(config, problem):
    """Whether a recorded time is of a last tile, or its second width, beyond the operand's end, moved back since.

    See docs/kernels.md, The last tile: all of these files were recorded before.
    """
    kernel = config.get("INNER", config.kernel)
    if config.get("LOADS", "tma" if kernel in BY_TMA else None) != "tma":
        return False
    rest = config.integer("BLOCK_SIZE_N_REST") if config.get("SWAP_AB", False) else 0
    sides = (problem.m, config.integer("BLOCK_SIZE_M") + rest, rest), (problem.n, config.integer("BLOCK_SIZE_N"), 0)
    moved = problem.layout[0] == "n", kernel in MOVED_COLUMNS and problem.aligned
    return any(
        back and (extent > block or rest) and extent % block != 0 and -(-extent // block) <= FEW_TILES
        for (extent, block, rest), back in zip(sides, moved, strict=True)
    )


def landscapes(path=DATA):
    """Every landscape of a file."""
    document = json.loads(gzip.decompress(Path(path).read_bytes()))
    configs = [Config(kernel, **parameters) for kernel, parameters in document["configs"]]
    return [Landscape(entry, configs) for entry in document["problems"]]


def trials(path, run):
    """Of each problem (bf16 nt) that one race of a file tried: every config's time, but what `is_gone`."""
    found = defaultdict(dict)
    with gzip.open(path, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["run"] == run:
                problem = Problem(int(row["m"]), int(row["n"]), int(row["k"]), dtype="bfloat16", layout="nt")
                config = Config(row["kernel"], **json.loads(row["config"]))
                if not is_gone(config, problem):
                    found[problem][config] = float(row["us"])
    return dict(found)


def covering(lands, *, within=1.02, most=24):
    """Greedy set cover: `most` configs at most, each with the numbers of the problems that it is the first to cover.

    A problem is covered by what is within `within` of its best.
    """
    covers = defaultdict(set)
    for number, land in enumerate(lands):
        for config, us in land.us.items():
            if us <= within * land.best_us:
                covers[config].add(number)
    chosen, open_ = [], set(range(len(lands)))
    while covers and open_ and len(chosen) < most:
        config = min(covers, key=lambda config: (-len(covers[config] & open_), config))
        if not covers[config] & open_:
            break
        chosen.append((config, sorted(covers[config] & open_)))
        open_ -= covers[config]
    return chosen


def database(path):
    """The device of one of data/*.db.xz, and its complete trials: every config's microseconds, by problem."""
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "trials.db"
        unpacked.write_bytes(lzma.decompress(path.read_bytes()))
        schema.upgrade(str(unpacked))
        with Store.open(str(unpacked), read_only=True) as store:
            (device,) = (row.device for row in store.devices())
            found = defaultdict(dict)
            for row in store.trials():
                if row.outcome.state is State.COMPLETE:
                    found[row.problem][row.config] = row.outcome.median_us
    return device, dict(sorted(found.items()))


def trials_of_experts(path):
    """Microseconds by layer, problem and config, as fit/experts.py writes them."""
    found = defaultdict(lambda: defaultdict(dict))
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            problem = Problem.from_fields(json.loads(row["problem"]))
            config = Config.from_json(str(problem["package"]), row["config"])
            found[row["layer"]][problem][config] = float(row["us"])
    return found
