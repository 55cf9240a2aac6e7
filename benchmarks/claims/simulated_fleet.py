"""A fleet of a thousand nodes, simulated: the queue of `tuner run --ray` over durations that were recorded.

    python benchmarks/claims/simulated_fleet.py --out benchmarks/results/simulated-fleet.json

The queue is the very one that a driver uses; it is told a time that is simulated. Problems take as long as some that
were recorded on an H200, in races or in exhaustive searches, with as many trials: that is the load of one GPU, and a
node has one. The queue does not know it, and has its own estimate. Nodes die, join late, and some are slow. What the
ledger takes is measured here, on a SQLite file: the CPU of the queue, of a turn's commit, of a trial (read from a reply
and stored) and of a winner in it. A node's call waits for the ledger's turn, and its GPU idles while it has nothing to
do. The ideal is what all nodes' GPUs would take if each worked from its first second to the last, or to its death,
without any loss.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import pickle
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

from tuner.fleet.node import STREAM_S
from tuner.fleet.queue import LEASE_S, Queue, Work
from tuner.fleet.work import cost_s
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import KernelVersion, Outcome, Resources, State, Trial, Verdict
from tuner.store.rows import trial_values
from tuner.store.store import Store

RESULTS = Path(__file__).parents[1] / "results"
RACES = ("race-h200.json", "race-again-h200.json", "race-triton36-h200.json", "waves-h200.json")
EXHAUSTIVE = ("ops-h200.json",)
TRIALS = 50
"""Configs in a problem of which the ledger's costs are measured, about what the recorded races tried."""
CALL_S = 0.00066
"""What a call to a node takes of the driver's CPU beside reading the reply's trials; mean of 2,000 under Ray 2.60."""
DEATHS_AN_HOUR = 0.1
LOOKAHEAD = 12
"""Problems that a node's sweep has taken up beyond the one under way, to compile ahead: they are not stolen."""
NOTICED_S = 15.0
"""How long Ray takes to say that a node is gone; half of the deaths are hangs, which only the lease ends."""


@dataclass
class Node:
    """A simulated machine with one GPU.

    Attributes:
        pending: what it was sent, the problem under way first; it began at `free_s`.
        sent: what the ledger's turn gives it.
        asked: what it is to give back.
    """

    name: str
    joins_s: float
    dies_s: float
    speed: float
    hangs: bool
    free_s: float = 0.0
    pending: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def receive(self, now: float) -> None:
        """Take what was sent; a GPU that has nothing to do begins."""
        if not self.pending:
            self.free_s = now
        self.pending += self.sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--problems", type=int, default=100_000)
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the result")
    args = parser.parse_args()
    costs = ledger_costs()
    each = args.problems // args.nodes
    rows = []
    for name, files, fewer, seeds in (("races", RACES, 3, 5), ("exhaustive searches", EXHAUSTIVE, 2, 3)):
        durations = recorded(files)
        alone = [Simulation(durations, args.nodes, args.nodes * each, seed, None).run() for seed in range(seeds)]
        over = [found["makespan_over_ideal"] for found in alone]
        rows.append({"durations": name, "nodes": args.nodes, "ledger": "takes no time", "over_ideal_by_seed": over})
        rows[-1] |= {"median": statistics.median(over), "first_seed": alone[0]}
        for nodes in (args.nodes, args.nodes * fewer // 10):
            found = Simulation(durations, nodes, nodes * each, 0, costs).run()
            rows.append({"durations": name, "nodes": nodes, "ledger": "as measured", **found})
    body = {"ledger": costs, "rows": rows}
    record.write(args.out, body)
    for row in rows:
        print(json.dumps(row, indent=1))


def recorded(files: tuple[str, ...]) -> list[tuple[float, int]]:
    """Seconds that problems took, and how many configs were tried in them."""
    documents = (json.loads((RESULTS / name).read_text()) for name in files)
    return [(row["seconds"], row["measured"]) for document in documents for row in document["rows"]]


def ledger_costs() -> dict[str, float]:
    """Seconds of a commit, and of a trial and a winner in it, in a SQLite file of this disk."""
    environment = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7")
    kernel = KernelVersion("matmul", "pointer", 1, "none")
    configs = [Config("pointer", BLOCK_SIZE_M=16 << i % 4, BLOCK_SIZE_N=16 << i // 4, num_warps=4) for i in range(16)]
    configs += [Config("pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=16, num_stages=i) for i in range(TRIALS - 16)]
    outcome = Outcome(
        State.COMPLETE, "", 10.0, 9.9, 10.1, 30, 1e-3, Resources(12.0, 128, 0, 65536), 1980, 650.0, 0, "G"
    )
    with tempfile.TemporaryDirectory(dir=".") as folder, Store.open(f"{folder}/ledger.db") as store:
        run = store.begin_run(KNOWN["sm_90"], environment, argv=(), host="driver")
        problems = [Problem(64 * i, 512, 256) for i in range(1, 1201)]
        sent = {each: [trial_values(Trial(each, config, kernel, outcome)) for config in configs] for each in problems}

        def timed(some: list[Problem], *, decide: bool = False, clock: Any = time.process_time) -> float:
            begun = clock()
            for batch in [[each] for each in some] if clock is time.perf_counter else [some]:
                with store.in_one_transaction():
                    store.record_rows(run, [row for each in batch for row in sent[each]])
                    for each in batch if decide else ():
                        store.decide(run, each, kernel, Verdict(configs[0], 10.0, 11.0, 12.0, (configs[0],)))
            return (clock() - begun) / len(some)

        timed(problems[:100], decide=True)
        alone = timed(problems[100:400], clock=time.perf_counter)  # each in a transaction of its own, the disk included
        together = timed(problems[400:800])
        decided = timed(problems[800:], decide=True)
    read_s = reading_s(configs, kernel, outcome)
    return {
        "call_s": CALL_S,
        "commit_s": round(max(alone - together, 0.0), 6),
        "trial_s": round(together / TRIALS + read_s, 7),
        "winner_s": round(max(decided - together, 0.0), 6),
    }


def reading_s(configs: list[Config], kernel: KernelVersion, outcome: Outcome) -> float:
    """Seconds that a trial of a node's reply takes to be read."""
    outcomes = [dataclasses.replace(outcome, median_us=1.0 + i, power_w=500.0 + i) for i in range(len(configs))]
    problem = Problem(64, 512, 256)
    trials = [Trial(problem, config, kernel, each) for config, each in zip(configs, outcomes, strict=True)]
    reply = pickle.dumps(tuple(trial_values(trial) for trial in trials))
    begun = time.process_time()
    for _ in range(200):
        pickle.loads(reply)
    return (time.process_time() - begun) / 200 / len(trials)


class Simulation:
    """One fleet, from the start of its driver to the end of the last problem."""

    def __init__(
        self, durations: list[tuple[float, int]], nodes: int, problems: int, seed: int, costs: dict[str, float] | None
    ) -> None:
        self.random, self.costs = random.Random(seed), costs
        drawn = [self.random.choice(durations) for _ in range(problems)]
        self.duration_s, self.trials = [seconds for seconds, _ in drawn], [trials for _, trials in drawn]
        estimate_s = cost_s(Problem(64, 512, 256), KNOWN["sm_90"])
        self.queue = Queue([Work(key, estimate_s, key % 40) for key in range(problems)])
        expected_s = sum(self.duration_s) / nodes
        self.nodes = {f"n{index}": self.drawn(f"n{index}", expected_s) for index in range(nodes)}
        self.now = self.queue_cpu_s = self.ledger_s = 0.0
        self.calls = self.commits = self.lost = self.stolen = 0
        self.calls_due: list[tuple[float, str]] = []

    def drawn(self, name: str, expected_s: float) -> Node:
        """One in ten joins late, one in ten dies within an hour, one in twenty is two to four times as slow."""
        draw = self.random
        joins_s = draw.uniform(0, 0.3 * expected_s) if draw.random() < 0.1 else 0.0
        dies_s = joins_s + draw.expovariate(DEATHS_AN_HOUR / 3600) if DEATHS_AN_HOUR else float("inf")
        speed = 1 / draw.uniform(2, 4) if draw.random() < 0.05 else draw.uniform(0.95, 1.05)
        return Node(name, joins_s, dies_s, speed, draw.random() < 0.5)

    def run(self) -> dict[str, Any]:
        """Simulate; returns the figures."""
        self.calls_due = [(node.joins_s, node.name) for node in self.nodes.values()]
        heapq.heapify(self.calls_due)
        ended_s = 0.0
        while self.queue:
            self.now = max(self.now, self.calls_due[0][0])
            called = []
            while self.calls_due and self.calls_due[0][0] <= self.now:
                called.append(self.nodes[heapq.heappop(self.calls_due)[1]])
            delivered = [(node, self.ended_by(node)) for node in called if self.replies(node)]
            winners = [key for _, ended in delivered for key in ended]
            turn_s = self.turn_s(len(delivered), winners)
            begun = time.process_time()
            for node, ended in delivered:
                self.exchange(node, ended)
            spent_s = time.process_time() - begun
            self.queue_cpu_s += spent_s
            self.ledger_s += turn_s + spent_s
            self.now += turn_s + (0.0 if self.costs is None else spent_s)
            self.calls += len(delivered)
            self.commits += bool(winners)
            ended_s = self.now if winners else ended_s
            for node, _ in delivered:
                node.receive(self.now)
                heapq.heappush(self.calls_due, (self.now + STREAM_S, node.name))
        ideal_s = self.ideal()
        return {
            "ideal_s": round(ideal_s, 1),
            "makespan_s": round(ended_s, 1),
            "makespan_over_ideal": round(ended_s / ideal_s, 3),
            "ledger_busy": round(self.ledger_s / ended_s, 3),
            "ledger_cpu_s": round(self.ledger_s, 1),
            "queue_cpu_s": round(self.queue_cpu_s, 2),
            "calls_per_s": round(self.calls / ended_s),
            "commits_per_s": round(self.commits / ended_s, 1),
            "trials_per_s": round(sum(self.trials) / ended_s),
            "trials_per_s_of_a_gpu": round(sum(self.trials) / sum(self.duration_s), 1),
            "nodes_that_died": sum(node.dies_s < ended_s for node in self.nodes.values()),
            "begun_twice": self.lost,
            "stolen": self.stolen,
        }

    def turn_s(self, calls: int, ended: list[int]) -> float:
        """What a turn of the ledger takes beside the queue."""
        if self.costs is None:
            return 0.0
        stored_s = sum(self.trials[key] for key in ended) * self.costs["trial_s"] + len(ended) * self.costs["winner_s"]
        return calls * self.costs["call_s"] + stored_s + (self.costs["commit_s"] if ended else 0.0)

    def replies(self, node: Node) -> bool:
        """Whether a node replies; one that is dead leaves the queue when that is noticed."""
        if self.now < node.dies_s:
            return True
        noticed_s = node.dies_s + (LEASE_S if node.hangs else NOTICED_S)
        if self.now < noticed_s:
            heapq.heappush(self.calls_due, (noticed_s, node.name))
        elif node.name in self.queue.nodes:
            self.lost += len(node.pending[:1])
            self.queue.leave(node.name)
        return False

    def ended_by(self, node: Node) -> list[int]:
        """What a node ended since its last call."""
        ended = []
        while node.pending and (ends_s := node.free_s + self.duration_s[node.pending[0]] / node.speed) <= self.now:
            ended.append(node.pending.pop(0))
            node.free_s = ends_s
        return ended

    def exchange(self, node: Node, ended: list[int]) -> None:
        """One turn of the ledger for a node, as `tuner.fleet.ledger` has it."""
        queue = self.queue
        if node.name not in queue.nodes:
            queue.join(node.name, 1, self.now)
        queue.heartbeat(node.name, self.now)
        for key in ended:
            queue.ended(node.name, key)
        for key in node.pending[: 1 + LOOKAHEAD]:
            queue.begun(node.name, key)
        if node.asked:
            given = [key for key in node.asked if key in node.pending[1 + LOOKAHEAD :]]
            node.pending = [key for key in node.pending if key not in given]
            queue.returned(node.name, node.asked, given)
            self.stolen += len(given)
            node.asked = []
        node.sent = queue.take(node.name, self.now)
        if (found := queue.steal(node.name, self.now)) is not None:
            self.nodes[found[0]].asked += found[1]

    def ideal(self) -> float:
        """When all would have ended, had every node worked without a pause while it was there."""
        work_s, low, high = sum(self.duration_s), 0.0, 1e9
        for _ in range(100):
            middle = (low + high) / 2
            done_s = sum(node.speed * max(min(middle, node.dies_s) - node.joins_s, 0.0) for node in self.nodes.values())
            low, high = (low, middle) if done_s >= work_s else (middle, high)
        return high


if __name__ == "__main__":
    main()
