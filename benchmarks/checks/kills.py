"""Kills at random what two runs that share a server's database consist of, and counts what that cost.

    python benchmarks/checks/kills.py --out RESULT.json [--kills 20] [--problems 24] [--seed 0]

The victims are workers, compile processes, the runs themselves (then the same command is typed again) and the server
(which is started again), each by SIGKILL. The runs tune under the interpreter, and compile for sm_90 beside it. A trial
is acknowledged once `Store.record` has returned; it is measured again where a run ended another trial of its config
later. What was in flight, or had ended less than a second before its run was killed, may be measured again, and so may
a config that was under way in a worker that died (its trial says CRASHED).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / part) for part in ("benchmarks", "tests/postgres"))
import record
from private_server import Server, programs, running

from tuner.store.store import Store

KINDS = ("worker", "compiler", "driver", "server")
DEAD_AFTER_S = 10.0
"""In place of a minute, so that what a killed run had is taken over sooner."""
YOUNG_S = 1.0
LAUNCHER = """
import json, sys, time
from tuner.cli.run_output import Progress
from tuner.hardware.device import KNOWN
from tuner.store import runs
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep import loop, sweep_processes
from tuner.sweep.compile_pool import CompilePool

log = open(sys.argv.pop(1), "a", buffering=1)
runs.DEAD_AFTER_S, loop.HEARTBEAT_S = float(sys.argv.pop(1)), 1.0
UNCERTAIN = (State.CRASHED, State.TIMEOUT)

def say(what, problem, config, outcome):
    if outcome.state not in UNCERTAIN:
        log.write(json.dumps([what, time.time(), f"{problem} {config}"]) + chr(10))

def told(original, say_all):
    def told(self, *given, **options):
        result = original(self, *given, **options)
        say_all(*given)
        return result
    return told

def recorded(run, trials):
    for each in trials:
        say("acknowledged", each.problem, each.config, each.outcome)

def start_pool(self, device):
    return self._stack.enter_context(CompilePool(KNOWN["sm_90"], workers=2))

Store.record = told(Store.record, recorded)
Progress.trial_ended = told(Progress.trial_ended, lambda job, *ended: say("measured", job.problem, *ended))
sweep_processes.SweepProcesses._start_pool = start_pool
from tuner.cli import main
main(sys.argv[1:])
"""


@dataclass
class Driver:
    """One of the two runs, started again when it was killed.

    Attributes:
        number: which of the two.
        folder: where it runs and keeps its logs.
        words: of its command.
        killed_at: when each of its processes was killed, by the name of that one's log.
        restarts: how often the command was typed again.
    """

    number: int
    folder: Path
    words: list[str]
    killed_at: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path()

    def start(self) -> None:
        self.log = self.folder / f"{self.number}-{time.time_ns()}.log"
        command = [sys.executable, "-c", LAUNCHER, str(self.log), str(DEAD_AFTER_S), *self.words]
        with (self.folder / "stderr.txt").open("ab") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, cwd=self.folder)

    def is_done(self) -> bool:
        """Whether it ended well; one that was killed, or could not begin without its server, is started again."""
        assert self.process is not None
        code = self.process.poll()
        if code:
            self.restarts += 1
            if self.restarts > 100:
                sys.exit(f"a run ends again and again:\n{(self.folder / 'stderr.txt').read_text()[-2000:]}")
            time.sleep(0.5)
            self.start()
        return code == 0

    def victims(self, kind: str) -> list[int]:
        """The processes of a kind."""
        assert self.process is not None
        children = descendants(self.process.pid)
        if kind == "driver":
            return [self.process.pid]
        servers = [pid for pid in children if "forkserver" in command_of(pid)]
        if kind == "compiler":
            return [pid for pid in servers if parent_of(pid) in servers]
        return [pid for pid in children if "spawn_main" in command_of(pid)]


@dataclass
class Site:
    """Where it happens: a server, its database and a folder."""

    server: Server
    url: str
    folder: Path


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        found += [*children, *(grandchild for child in children for grandchild in descendants(child))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--problems", type=int, default=24, help="of each pair of runs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    binaries = programs()
    if binaries is None:
        sys.exit("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="tuner-kills-") as name, running(binaries) as server:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
        server.execute("CREATE DATABASE kills", "ALTER DATABASE kills SET synchronous_commit = on")
        url = server.url("kills")
        drivers, killed = tortured(Site(server, url, folder), args.kills, args.problems, chance)
        found = counted(url, folder, drivers)
        found["spools_left"] = len(list((folder / "state").rglob("*.jsonl")))
    summary = {
        "kills": dict(Counter(killed)),
        "dead_after_s": DEAD_AFTER_S,
        "restarts": sum(driver.restarts for driver in drivers),
        **found,
    }
    print(summary)
    version = subprocess.run([str(binaries / "postgres"), "--version"], check=True, capture_output=True, text=True)
    record.write(args.out, {"server": version.stdout.strip(), "seed": args.seed, "summary": summary})
    if any(summary[each] for each in ("acknowledged_and_gone", "stored_twice", "measured_again", "without_winner")):
        sys.exit(1)


def tortured(site: Site, kills: int, problems: int, chance: random.Random) -> tuple[list[Driver], list[str]]:
    """Have pairs of runs tune one suite after the other until there were enough kills and the last pair is done."""
    drivers: list[Driver] = []
    killed: list[str] = []
    kinds = [kind for _ in range(-(-kills // len(KINDS))) for kind in chance.sample(KINDS, len(KINDS))][:kills]
    while len(killed) < kills:
        suite = site.folder / f"suite-{len(drivers)}.csv"
        rows = (f"softmax,{8 + len(drivers)},{64 * n},1,float16,nn\n" for n in range(1, problems + 1))
        suite.write_text("op,m,n,k,dtype,layout\n" + "".join(rows))
        words = ["run", "--suite", str(suite), "--device", "interpreter", "--strategy", "exhaustive", "--db", site.url]
        pair = [Driver(len(drivers) + number, site.folder, words) for number in (0, 1)]
        drivers += pair
        for driver in pair:
            driver.start()
        while not any(log.stat().st_size for log in site.folder.glob(f"{pair[0].number}-*.log")):
            time.sleep(0.05)
        due = time.monotonic() + chance.uniform(0, 4)
        while sum(driver.is_done() for driver in pair) < len(pair):
            if len(killed) < kills and time.monotonic() > due and kill(kinds[len(killed)], site.server, pair, chance):
                killed.append(kinds[len(killed)])
                print(f"{len(killed)}: {killed[-1]}", flush=True)
                due = time.monotonic() + chance.uniform(1, 6)
            time.sleep(0.05)
    return drivers, killed


def kill(kind: str, server: Server, pair: list[Driver], chance: random.Random) -> bool:
    """Kill one process of a kind; False where there is none just now."""
    if kind == "server":
        server.end(signal.SIGKILL)
        time.sleep(chance.uniform(0, 2))
        for _ in range(20):
            try:
                server.start()
                return True
            except AssertionError:  # its children end a moment later, and hold its memory until then
                time.sleep(0.5)
        sys.exit("the server does not start again")
    driver = chance.choice(pair)
    victims = driver.victims(kind)
    if not victims:
        return False
    try:
        os.kill(chance.choice(victims), signal.SIGKILL)
    except ProcessLookupError:
        return False
    if kind == "driver":
        assert driver.process is not None
        driver.killed_at[driver.log.name] = time.time()
        driver.process.wait()
    return True


def counted(url: str, folder: Path, drivers: list[Driver]) -> dict[str, int]:
    """What the database has, against what the runs' logs say."""
    with Store.open(url) as store:
        stored = Counter(f"{row.problem} {row.config}" for row in store.trials() if row.outcome.state != "CRASHED")
        winners = {winner.problem for winner in store.winners()}
        problems = {row.problem for row in store.trials()}
    killed_at = {name: at for driver in drivers for name, at in driver.killed_at.items()}
    acknowledged: set[str] = set()
    measured: dict[str, list[tuple[float, str]]] = {}
    for log in folder.glob("*.log"):
        for line in log.read_text().splitlines():
            what, at, trial = json.loads(line)
            if what == "acknowledged":
                acknowledged.add(trial)
            else:
                measured.setdefault(trial, []).append((at, log.name))
    again = [earlier for ends in measured.values() for earlier in sorted(ends)[:-1]]
    young = [at for at, name in again if killed_at.get(name, float("inf")) - at < YOUNG_S]
    return {
        "trials": sum(stored.values()),
        "acknowledged": len(acknowledged),
        "acknowledged_and_gone": len(acknowledged - stored.keys()),
        "stored_twice": sum(count - 1 for count in stored.values()),
        "measured_again": len(again) - len(young),
        "measured_again_younger_than_a_second": len(young),
        "problems": len(problems),
        "without_winner": len(problems - winners),
    }


if __name__ == "__main__":
    main()
