"""`tuner run --ray` on a local Ray cluster of three nodes, under the interpreter; the kernel travels to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.long

MODULE = """
import os, time
import torch, triton, triton.language as tl
import tuner
from beside import FACTOR

with open(os.environ["SEEN"], "a") as seen:
    seen.write(__file__ + "\\n")
GATE = os.environ["SEEN"] + ".closed"

@tuner.tuned(
    name="scale", version=1, key=["N"],
    configs=[triton.Config({"BLOCK": block}) for block in (16, 32, 64, 128)],
)
@triton.jit
def scale(x_ptr, y_ptr, N, factor, BLOCK: tl.constexpr):
    for start in range(0, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < N) * factor, mask=at < N)

@scale.make_inputs
def inputs(problem):
    x = torch.randn(problem["N"], dtype=problem.torch_dtype)
    y = torch.empty_like(x)
    return tuner.Arguments(grid=(1,), args=(x, y, problem["N"], FACTOR), outputs=["y_ptr"])

@scale.reference
def expected(args):
    while os.path.exists(GATE):
        time.sleep(0.1)
    return args["x_ptr"].double() * args["factor"]
"""
SIZES = tuple(range(256, 256 + 9 * 32, 32))
LIMIT_S = 240  # three nodes import torch and Triton on a machine that other tests keep busy


class RayCluster:
    """Three nodes on this machine, in processes of their own."""

    def __init__(self, start) -> None:
        self._process = start(Path(__file__).with_name("cluster_program.py"), 3)
        self.address = self._process.stdout.readline().strip()
        assert self.address, self._process.stderr.read()

    def tell(self, word: str) -> None:
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        self._process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the kernel's module is, with the file that it imports; nothing of it is installed."""
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "mine.py").write_text(MODULE)
    (folder / "beside.py").write_text("FACTOR = 2.0\n")
    (folder / "sizes.csv").write_text("\n".join(["N,dtype", *(f"{size},fp32" for size in SIZES), ""]))
    return folder


@pytest.fixture(scope="module")
def cluster(folder):
    environment = {**os.environ, "SEEN": str(folder / "seen"), "RAY_DEDUP_LOGS": "0"}
    environment.pop("TRITON_INTERPRET", None)
    started = []

    def start(*command):
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        with (folder / "cluster.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, *map(str, command)], text=True, cwd="/", env=environment, stderr=log, **pipes
                )
            )
        return started[0]

    found = RayCluster(start)
    yield found
    found.close()


@pytest.fixture
def tune(folder, tmp_path):
    """Start `tuner run` of the sizes."""
    started = []

    def tune(*options: str, db: Path = tmp_path / "tuner.db") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tuner", "run", "--kernel", f"{folder}/mine.py:scale"]
        command += ["--suite", f"{folder}/sizes.csv", "--strategy", "exhaustive", "--json", "--db", str(db), *options]
        environment = {**os.environ, "TRITON_INTERPRET": "1", "SEEN": str(folder / "seen-here")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
        return started[-1]

    yield tune
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def gate(folder):
    """A file: as long as it is there, no node begins to measure a problem."""
    gate = folder / "seen.closed"
    yield gate
    gate.unlink(missing_ok=True)


def trials(db: Path) -> dict[tuple[str, str], int]:
    """How often each (problem, config) has a trial."""
    with closing(sqlite3.connect(db, timeout=30)) as connection:
        rows = connection.execute(
            "SELECT problem.extras, config.parameters, count(*) FROM trial JOIN problem USING (problem_id)"
            " JOIN config USING (config_id) GROUP BY 1, 2"
        )
        return {(extras, parameters): count for extras, parameters, count in rows}


def wait_for(db: Path, query: str, count: int, process) -> None:
    """Wait until a run's database holds so many of something."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(sqlite3.OperationalError):  # it is being made
            if db.exists():
                with closing(sqlite3.connect(db, timeout=30)) as connection:
                    if connection.execute(query).fetchone()[0] >= count:
                        return
        time.sleep(0.1)
    process.kill()
    pytest.fail(f"{query} did not reach {count}: {process.communicate()}")


@pytest.fixture(scope="module")
def of_one_node(folder, tmp_path_factory):
    """The trials that a run without Ray stores."""
    db = tmp_path_factory.mktemp("alone") / "tuner.db"
    command = [sys.executable, "-m", "tuner", "run", "--kernel", f"{folder}/mine.py:scale"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "SEEN": str(folder / "seen-here")}
    options = ["--suite", f"{folder}/sizes.csv", "--strategy", "exhaustive", "--db", str(db)]
    subprocess.run([*command, *options], cwd=db.parent, env=environment, capture_output=True, check=True)
    found = trials(db)
    assert len(found) == 4 * len(SIZES)
    return found


def test_three_nodes_store_what_one_does_and_a_second_driver_is_refused(
    cluster, tune, folder, gate, tmp_path, of_one_node
):
    gate.touch()
    process = tune("--ray", cluster.address)
    wait_for(tmp_path / "tuner.db", "SELECT count(*) FROM run", 3, process)
    second = tune("--ray", cluster.address)
    _, said = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 1
    assert "another `tuner run` or `tuner merge` is writing" in said.splitlines()[-1]
    gate.unlink()
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert len(told["nodes"]) == 3
    assert len({node["run"] for node in told["nodes"] if node["trials"]}) > 1
    (report,) = told["reports"]
    assert [problem for problem in report["problems"] if problem["winner"] is None] == []
    assert len(report["problems"]) == len(SIZES)
    assert trials(tmp_path / "tuner.db") == of_one_node
    seen = set((folder / "seen").read_text().split())
    assert seen
    assert not [path for path in seen if path.startswith(str(folder))], "the module travelled to the nodes"


def test_nothing_is_lost_when_a_node_is_killed_and_another_joins_late(cluster, tune, gate, tmp_path, of_one_node):
    db = tmp_path / "tuner.db"
    gate.touch()  # no problem is measured until all three are there
    process = tune("--ray", cluster.address)
    wait_for(db, "SELECT count(*) FROM run", 3, process)
    gate.unlink()
    wait_for(db, "SELECT count(*) FROM trial", 4, process)
    gate.touch()  # the problems that nodes take up from here on wait
    cluster.tell("kill")
    cluster.tell("add")
    wait_for(db, "SELECT count(*) FROM run", 4, process)
    gate.unlink()
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert [problem for problem in told["reports"][0]["problems"] if problem["winner"] is None] == []
    assert trials(db) == of_one_node
    assert len([node for node in told["nodes"] if node["lost"]]) == 1
    assert len(told["nodes"]) == 4


def test_a_killed_process_of_a_node_and_a_killed_driver_lose_nothing_and_the_next_driver_goes_on(
    cluster, tune, gate, tmp_path, of_one_node
):
    db = tmp_path / "tuner.db"
    first = tune("--ray", cluster.address)
    wait_for(db, "SELECT count(*) FROM trial", 4, first)
    gate.touch()  # the problems that nodes take up from here on wait
    cluster.tell("kill actor")
    wait_for(db, "SELECT count(*) FROM run", 4, first)  # another process takes its place
    gate.unlink()
    wait_for(db, "SELECT count(*) FROM trial", 10, first)
    gate.touch()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = trials(db)
    gate.unlink()
    assert 10 <= len(before) < len(of_one_node)
    second = tune("--ray", cluster.address)
    out, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0, err
    assert trials(db) == of_one_node
    (report,) = json.loads(out)["reports"]
    assert sum(problem["measured"] for problem in report["problems"]) == len(of_one_node) - len(before)


def test_ctrl_c_finishes_the_trials_under_way_on_every_node_and_keeps_them(cluster, tune, gate, tmp_path, of_one_node):
    db = tmp_path / "tuner.db"
    process = tune("--ray", cluster.address)
    wait_for(db, "SELECT count(*) FROM trial", 6, process)
    gate.touch()  # no node begins another problem before all know
    process.send_signal(signal.SIGINT)
    time.sleep(2)
    gate.unlink()
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    told = json.loads(out)
    assert told["reports"][0]["interrupted"]
    assert sum(node["trials"] for node in told["nodes"]) == len(trials(db)) < len(of_one_node)
    with closing(sqlite3.connect(db)) as connection:
        assert {status for (status,) in connection.execute("SELECT status FROM run")} == {"INTERRUPTED"}


def test_a_cluster_of_another_ray_is_one_line(cluster, tmp_path):
    program = "import ray, sys; ray.__version__ = '2.1.0'; from tuner import cli; cli.main(sys.argv[1:])"
    options = ["run", "--shape", "16x16x16", "--ray", cluster.address, "--db", str(tmp_path / "tuner.db")]
    command = [sys.executable, "-c", program, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tuner: Ray at {cluster.address}: Version mismatch")
    assert "pip install ray==2.1.0" in line
