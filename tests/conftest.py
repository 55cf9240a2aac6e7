"""A kernel of a third party, rows that it won, and a process that sees no table but the test's own."""

from __future__ import annotations

import argparse
import atexit
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner import cli
from tuner.hardware import device as devices
from tuner.hardware.device import IDENTITY, KNOWN, Device, Environment
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace
from tuner.lookup import advice, sources
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem.family import Family, Range

NEEDS_TORCH = re.compile(r"^(import|from) (torch|triton|tuner\.kernels)\b", re.MULTILINE)
WITHOUT_TORCH = importlib.util.find_spec("torch") is None
H200 = KNOWN["sm_90"]
TRITON = "3.7.1"
SINGLE = (
    *("tests/cli/test_capture.py", "tests/cli/test_run.py", "tests/cli/test_streams.py"),
    *("tests/postgres/test_server_away.py", "tests/store/test_damage.py", "tests/unit/test_mutated_tables.py"),
    *("tests/compile/test_batched.py", "tests/compile/test_elementwise.py", "tests/compile/test_padded.py"),
    *("tests/compile/test_sampled_space.py", "tests/compile/test_scaled.py"),
    *("tests/sweep/test_contest.py", "tests/sweep/test_shared_gpu.py", "tests/sweep/test_sweep.py"),
)
"""Files whose tests share nothing and together take a minute: pytest-xdist hands these tests out one by one."""
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are small here, and torch's threads would spin meanwhile
MADE = Provenance(Environment(TRITON, "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0.1.0")


def pytest_report_header() -> str | None:
    return "torch is not installed: modules that import it are left out" if WITHOUT_TORCH else None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """CI has a torch for one Python only; under the others the tests that need none run."""
    if WITHOUT_TORCH and collection_path.suffix == ".py" and NEEDS_TORCH.search(collection_path.read_text()):
        return True
    return None


def pytest_unconfigure() -> None:
    """Leave unsaid how many problems tests looked up untuned: the stream that a test logged to is closed by then."""
    atexit.unregister(advice._report_others)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long-part", type=_part, metavar="I/N", help="with -m '': of long tests, those of part I of N")


def _part(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not 0 < int(index) <= int(count):
        raise argparse.ArgumentTypeError(f"{text} is no part: expected I/N, from 1/N to N/N")
    return int(index), int(count)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with long tests come first and those of tests/unit last: no process is left alone with much to do.

    A file's long tests are in one part: what it sets up is set up once. Those of `SINGLE` files are in a part each. The
    parts take turns by name, so that none has many more than another.
    """
    long = [item for item in items if item.get_closest_marker("long")]
    if part := config.getoption("long_part"):
        index, count = part
        turns = {name: turn % count for turn, name in enumerate(sorted({_together(item.nodeid) for item in long}))}
        left_out = {item for item in long if turns[_together(item.nodeid)] != index - 1}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
        long = [item for item in long if item not in left_out]
    first = {item.path for item in long}
    items.sort(key=lambda item: 0 if item.path in first else 2 if item.nodeid.startswith("tests/unit/") else 1)


def _together(nodeid: str) -> str:
    """What of a test's name it shares with the tests that it runs beside: the file's, or none of a `SINGLE` file."""
    return nodeid if nodeid.startswith(SINGLE) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a process whole files, for what a file sets up is set up once, or single tests of files that set up nothing.

    All that needs a GPU goes to one process. What `--dist` names instead, pytest-xdist does.
    """
    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False  # `pytest_collection_modifyitems` decides the order
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "gpu" if nodeid.startswith("tests/gpu/") else _together(nodeid)

    return Files(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    """Escape lone surrogates in what a test logged or printed: mangled tables hold some, pytest-xdist sends UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def toy_spec(name: str = "toy", version: int = 1) -> KernelSpec:
    """A kernel that is never launched here: two axes, and a rule that a device's shared memory decides."""

    def too_big(config: Config, problem: Problem, device: Device) -> str | None:
        needed = config.integer("BLOCK_SIZE_M") * 1024
        return f"{needed} bytes of shared memory" if needed > device.shared_bytes else None

    def space(problem: Problem, device: Device) -> SearchSpace:
        axes = {"BLOCK_SIZE_M": (16, 32, 64, 512), "num_warps": (4, 8)}
        return SearchSpace(name, problem, device, axes, (Rule("shared memory", "the guide", too_big, fatal=True),))

    unused: Any = None
    return KernelSpec(
        op="matmul",
        name=name,
        version=version,
        supports=lambda problem, device: "no tt" if problem.layout == "tt" else None,
        space=space,
        default_config=lambda problem, device: Config(name, BLOCK_SIZE_M=16, num_warps=4),
        make_inputs=unused,
        launch=unused,
        reference=unused,
        source_hash=lambda: "none",
    )


@dataclass(frozen=True, eq=False)
class Installed:
    """An entry point of a package that is not there."""

    name: str
    load: Callable[[], object]
    value: str = "test"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python with some arguments; it is killed at the end if it is still there."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str | Path | int) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([sys.executable, *map(str, command)], text=True, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def installed() -> type[Installed]:
    """What `install` takes of a package whose import is watched."""
    return Installed


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Make kernels the only ones installed: specs, by their names, or entry points."""

    def put(*kernels: KernelSpec | Installed) -> None:
        points = [
            Installed(f"{kernel.op}.{kernel.name}", lambda kernel=kernel: kernel)
            if isinstance(kernel, KernelSpec)
            else kernel
            for kernel in kernels
        ]
        registry.forget()
        monkeypatch.setattr(registry, "entry_points", lambda group: points)

    yield put
    registry.forget()


@pytest.fixture
def toy(install, monkeypatch: pytest.MonkeyPatch) -> KernelSpec:
    """The only kernel installed."""
    spec = toy_spec()
    install(spec)
    monkeypatch.setattr(devices, "triton_version", lambda: TRITON)
    return spec


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No table, database or package is found but what the test names; nothing is left behind."""
    monkeypatch.delenv("TUNER_TABLES", raising=False)
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "absent" / "tuner.db"))
    monkeypatch.setattr(sources, "entry_points", lambda group: [])
    tuner.use(None)
    yield
    tuner.use(None)


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    def make(m: int = 64, n: int = 512, k: int = 256, *, block: int = 32, version: int = 1, **parts: Any) -> Row:
        made = parts.pop("made", MADE)
        kernel = parts.pop("kernel", "toy")
        config = parts.pop("config", Config(kernel, BLOCK_SIZE_M=block, num_warps=4))
        return Row(Problem(m, n, k, **parts), config, version, made, 12.5, 1.25, 0.95, 2)

    return make


@pytest.fixture(scope="session")
def make_table() -> Callable[..., Table]:
    def make(*rows: Row, op: str = "matmul", device: Device = H200, families: tuple[Family, ...] = ()) -> Table:
        return Table(op, device, "2026-01-31T12:00:00Z", rows, families)

    return make


@pytest.fixture(scope="session")
def make_family() -> Callable[..., Family]:
    def make(*last_ms: int, first: int = 1, problem: Problem | None = None, **parts: Any) -> Family:
        problem = problem or Problem(1, 512, 256)
        firsts = [first, *(last + 1 for last in last_ms)]
        spans = zip(firsts, last_ms, strict=False)
        return Family(problem.group(), tuple(Range(first, last, last, "measured") for first, last in spans), **parts)

    return make


@pytest.fixture
def make_database() -> Callable[..., Path]:
    """A database of the real schema with rows as its winners, the later row decided later; its log is checkpointed."""

    def make(path: Path, *rows: Row, device: Device = H200, families: tuple[Family, ...] = ()) -> Path:
        from tuner.store import schema

        if not path.exists():
            schema.upgrade(str(path))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA journal_mode = WAL")
            for row in rows:
                add_winner(connection, row, device)
            for family in families:
                add_family(connection, family, device)
        return path

    return make


def key_of(connection: sqlite3.Connection, table: str, **columns: Any) -> int:
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    where = " AND ".join(f"{name} IS ?" for name in columns)
    found = connection.execute(f"SELECT {table}_id FROM {table} WHERE {where}", (*columns.values(),)).fetchone()
    if found:
        return int(found[0])
    cursor = connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", (*columns.values(),))
    return int(cursor.lastrowid or 0)


def problem_key(connection: sqlite3.Connection, problem: Problem) -> int:
    extras = json.dumps(dict(problem.extras), sort_keys=True, separators=(",", ":"))
    return key_of(connection, "problem", **{**problem.fields(), "extras": extras})


def add_family(connection: sqlite3.Connection, family: Family, device: Device) -> None:
    """A family decided after those that are there, by a run of its own."""
    (device_id,) = connection.execute("SELECT device_id FROM device WHERE slug = ?", (device.slug,)).fetchone()
    (count,) = connection.execute("SELECT count(*) FROM family").fetchone()
    run = {"device_id": device_id, "environment_id": 1, "protocol": 1, "tool_version": "0.1.0", "argv": "[]"}
    run |= {"uuid": f"ladder {count}", "host": "here", "started_at": "2026-01-31T11:00:00Z", "status": "DONE"}
    checked, geomean, worst = family.check or (0, None, None)
    family_id = key_of(
        connection,
        "family",
        run_id=key_of(connection, "run", **run),
        device_id=device_id,
        environment_id=1,
        problem_id=problem_key(connection, family.at(family.last_m)),
        checked=checked,
        regret_geomean=geomean,
        regret_worst=worst,
        decided_at=f"2026-01-31T12:00:{count:02}Z",
    )
    for each in family.ranges:
        parts = {"first_m": each.first_m, "last_m": each.last_m, "evidence": each.evidence}
        key_of(
            connection,
            "family_range",
            **{"family_id": family_id, "problem_id": problem_key(connection, family.at(each.row_m)), **parts},
        )


def add_winner(connection: sqlite3.Connection, row: Row, device: Device) -> None:
    key = partial(key_of, connection)
    device_id = key("device", **{name: getattr(device, name) for name in IDENTITY})
    versions = dict(zip(("triton", "torch", "backend", "driver", "python"), astuple(row.made.environment), strict=True))
    environment_id = key("environment", **versions, hash="-".join(versions.values()))
    op = row.problem.op
    kernel_id = key("kernel", op=op, name=row.config.kernel, version=row.kernel_version, source_hash="none")
    config_id = key("config", kernel_id=kernel_id, parameters=row.config.parameters_json, hash=row.config.digest)
    problem_id = problem_key(connection, row.problem)
    shared = {"device_id": device_id, "environment_id": environment_id}
    version = {"protocol": row.made.protocol, "tool_version": row.made.tool_version}
    run = {**shared, **version, "uuid": f"run {shared} {version}", "argv": "[]", "host": "here"}
    run_id = key("run", **run, started_at="2026-01-31T11:00:00Z", status="DONE")
    trial = {"run_id": run_id, "problem_id": problem_id, "config_id": config_id, "state": "COMPLETE"}
    figures = {"median_us": row.median_us, "samples": 30, "message": "", "measured_at": "2026-01-31T11:30:00Z"}
    trial_id = key("trial", **trial, **figures)
    evidence = {
        "median_us": row.median_us,
        "default_us": row.vs_default and row.vs_default * row.median_us,
        "vendor_us": row.vs_vendor and row.vs_vendor * row.median_us,
        "ties": json.dumps([{"kernel": row.config.kernel, "parameters": dict(row.config)}] * row.ties),
    }
    count = connection.execute("SELECT count(*) FROM winner").fetchone()[0]
    keys = {**shared, "problem_id": problem_id, "config_id": config_id, "trial_id": trial_id, "run_id": run_id}
    decided_at = f"2026-01-31T12:{count // 60 % 60:02}:{count % 60:02}Z"
    key("winner", **keys, **evidence, decided_at=decided_at)


class Forks:
    """Runs programs in forks of one process that has imported torch and Triton (tests/fork_server.py).

    They share a seed of strings' hashes: what must hold between any two processes is for processes of their own.
    """

    def __init__(self, name: str, work: Path, env: Mapping[str, str], *flags: str) -> None:
        self.work = work
        self.env = dict(env)
        self.address = f"triton-tuner-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}-{name}"
        self.command = [sys.executable, *flags, str(Path(__file__).with_name("fork_server.py")), self.address]
        self.server: socket.socket | None = None

    def run(
        self,
        program: Path,
        *arguments: str,
        env: Mapping[str, str],
        modules: Sequence[str] = (),
        timeout: float = 240,
    ):
        """As subprocess.run, of a Python program; `env` must find the same libraries as the server's.

        The server imports `modules` first, unless it has.
        """
        asked = {"program": str(program), "arguments": arguments, "env": dict(env), "modules": modules}
        return self._ask(asked, timeout)

    def tuner(self, *arguments: object, env: Mapping[str, str], cwd: Path, timeout: float = 240):
        """As subprocess.run, of `python -m tuner`; PYTHONPATH may name packages that the server has not seen."""
        words = [*map(str, arguments)]
        return self._ask({"program": "tuner", "arguments": words, "env": dict(env), "cwd": str(cwd)}, timeout)

    def _ask(self, asked: dict[str, Any], timeout: float):
        out, err = self.work / "stdout", self.work / "stderr"
        line = json.dumps({**asked, "stdout": str(out), "stderr": str(err)}).encode() + b"\n"
        try:
            self.server = self.server or self._connected()
            self.server.settimeout(timeout)
            self.server.sendall(line)
            answer = self.server.recv(16)
        except TimeoutError:
            self.stop()
            pytest.fail(f"{asked['program']} has not ended after {timeout} s")
        except BaseException:
            self.stop()
            raise
        assert answer, "the server of forks has ended: see what it wrote to stderr"
        told = out.read_text(), err.read_text()
        return subprocess.CompletedProcess([asked["program"], *asked["arguments"]], int(answer), *told)

    def _connected(self) -> socket.socket:
        """Who is the first to ask starts the server, which is in the background once the command has ended."""
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect("\0" + self.address)
        except ConnectionRefusedError:
            devices = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            subprocess.run(self.command, env=self.env, start_new_session=True, check=True, **devices)
            server.connect("\0" + self.address)
        return server

    def stop(self) -> None:
        """End the fork that is waited for, and with the last who leaves the server."""
        if self.server is not None:
            self.server.close()
            self.server = None


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Forks]]:
    """Make a server of forks, or ask the one of that name, that has an environment and Python's own flags."""
    started = []

    def start(name: str, env: Mapping[str, str], *flags: str) -> Forks:
        started.append(Forks(name, tmp_path_factory.mktemp("forks"), env, *flags))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def compiling(forks: Callable[..., Forks]) -> Forks:
    """Forks that compile: to whom a warning is an error, but in commands."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return forks("compiling", env, "-W", "error")


@pytest.fixture
def count_calls() -> Callable[[Callable[[], object]], int]:
    """Count the Python functions that a function calls: what it costs, on a machine however busy."""

    def count(function: Callable[[], object]) -> int:
        called = 0

        def note(_frame: object, event: str, _argument: object) -> None:
            nonlocal called
            called += event == "call"

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            function()
        finally:
            sys.setprofile(before)
        return called

    return count


@pytest.fixture(scope="session", autouse=True)
def _workers_are_forked() -> Iterator[None]:
    import forked  # found by pytest's settings; programs that import this file have none

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", forked.get_context)
        yield


@pytest.fixture
def small_disk(tmp_path: Path):
    """A disk of 512 KiB, where one may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def no_added_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel that another test, or what pytest collects, has added; and none of this one's for the next."""
    monkeypatch.setattr(registry, "_added", {})
    registry.forget()
    yield
    registry.forget()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process; returns exit code, stdout, stderr."""
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            cli.main([str(argument) for argument in arguments])
        return exited.value.code, *capsys.readouterr()

    return run
