"""Landscapes for the search's replay: every config's time on recorded problems, the fastest measured again together.

    tuner run --suite FILE.csv --strategy exhaustive --db NEW.db
    python benchmarks/fit/landscapes.py --db NEW.db --out benchmarks/data/NAME.json.gz

A sweep replays a config once to three times, so the fastest of a thousand is partly luck: what counts as the best, and
how one replay scatters, come from rounds that the fastest play together. TRITON_INTERPRET=1 rehearses without a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import time
from pathlib import Path

import torch

from tuner.hardware import device as devices
from tuner.kernel import registry
from tuner.store.listing import TrialFilter
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep.measure import Measurement
from tuner.sweep.nvml import GpuMonitor
from tuner.sweep.timer import GraphTimer, HostTimer

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

NEAR = 1.2
"""Within this of the fastest a config plays the rounds."""
_LEAST = 8
"""Configs that play at least: by these the sweep's figures are brought to the same scale."""
_BATCH = 16


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--db", required=True, help="of an exhaustive sweep")
    parser.add_argument("--top", type=int, default=80, help="configs measured together at most")
    parser.add_argument("--rounds", type=int, default=15, help="that they play")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    here = devices.current()
    with torch.no_grad() if here.is_interpreter else torch.cuda.stream(torch.cuda.Stream()):
        entries = [entry(problem, us, here, args) for problem, us in swept(args.db, here).items()]
    configs = sorted({config for one in entries for config in (*one["us"], *one["rounds"])})
    place = {config: number for number, config in enumerate(configs)}
    for one in entries:
        us, one["rounds"] = one["us"], {place[config]: times for config, times in one["rounds"].items()}
        one |= {"configs": [place[config] for config in us], "us": list(us.values())}
    document = {"configs": [[config.kernel, dict(config.pairs)] for config in configs], "problems": entries}
    document |= record.header()
    with gzip.GzipFile(args.out, "wb", mtime=0) as file:
        file.write(json.dumps(document, separators=(",", ":"), default=str).encode())


def swept(path, device):
    """Of each problem the times of today's configs in a sweep's database."""
    with Store.open(path, read_only=True) as store:
        found = {winner.problem: {} for winner in store.winners() if winner.problem.op == "matmul"}
        spaces = {p: {s.name: s.space(p, device) for s in registry.serving(p, device)} for p in found}
        for row in store.trials(TrialFilter(state=State.COMPLETE)):
            space = spaces.get(row.problem, {}).get(row.config.kernel)
            if space is not None and space.rejection(row.config) is None:
                found[row.problem][row.config] = row.outcome.median_us
    return found


def entry(problem, known, device, args):
    """A problem's part of the document, all times on the scale of the rounds."""
    spec = registry.serving(problem, device)[0]
    timer = HostTimer() if device.is_interpreter else GraphTimer(device.l2_bytes)
    timer.search_rounds = 1
    measurement = Measurement(spec, problem, timer, GpuMonitor(), "cpu" if device.is_interpreter else "cuda")
    asked = near(known, None)
    outcomes = dict(measurement.search(asked, lambda _config: None, drop=()))
    again = {config: outcome.median_us for config, outcome in outcomes.items() if outcome.median_us is not None}
    playing = near(again, args.top)
    begin = time.perf_counter()
    list(measurement.search(playing[:_BATCH], lambda _config: None, drop=()))
    both_s = (time.perf_counter() - begin) / len(playing[:_BATCH])
    shots = {config: measurement._capture(measurement._call(config)) for config in playing}
    timer.replay(list(shots.values()))
    begin = time.perf_counter()
    times = [timer.replay(list(shots.values())) for _ in range(args.rounds)]
    replay_s = (time.perf_counter() - begin) / args.rounds / len(shots)
    played = dict(zip(shots, zip(*times, strict=True), strict=True))
    rounds = {config: [float(f"{us:.5g}") for us in of_one] for config, of_one in played.items()}
    scale = statistics.median(statistics.median(us) / known[config] for config, us in rounds.items())
    print(f"{problem!s:44} {len(known):5} configs, {len(rounds)} in rounds", flush=True)
    return {
        "problem": problem.fields(),
        "label": str(problem),
        "us": {config: float(f"{scale * us:.5g}") for config, us in sorted(known.items())},
        "rounds": rounds,
        "enter_ms": round((both_s - replay_s) * 1e3, 3),
        "replay_ms": round(replay_s * 1e3, 3),
    }


def near(us, top):
    """Configs within reach of the fastest, from that on."""
    ranked = sorted((time_us, config) for config, time_us in us.items())
    within = [config for time_us, config in ranked if time_us <= NEAR * ranked[0][0]]
    return (within if len(within) >= _LEAST else [config for _, config in ranked[:_LEAST]])[:top]


if __name__ == "__main__":
    main()
