"""Mangled tables and databases: `tuner verify` reports, a lookup goes on, and no config comes out that cannot run.

Mutation `n` is the same each time. The first hundreds are always tried, 10,000 tables and 500 databases with `-m ""`.
"""

from __future__ import annotations

import copy
import json
import logging
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the installed kernels' rules need torch and Triton")

from tuner.errors import TableError
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.ops import ready  # noqa: F401  it trusts shipped rows, as in a process that launches
from tuner.lookup import database, match_rules, sources, table
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem.family import Check, Family, Range
from tuner.tables.verify.finding import Level
from tuner.tables.verify.inspection import Inspection, inspect

H200 = KNOWN["sm_90"]
OLDER = Provenance(Environment("3.6.0", "2.12.0", "cuda 12.8", "570.1", "3.11.7"), 1, "0.1.0")
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 7, 1.5, 64, 65536, 2**31, 2**63, 10**30, 1e308, -0.0),
    *(float("nan"), float("inf"), "", "x", "128", "0", "nan", "pointer", "tma", "split_k", "float8_e4m3fn", "tt"),
    *("\ud800", "\x00", "\x1b[31m", "\N{DUCK}", "a" * 10_000, [], {}, [[]], [1], {"a": 1}, {"m": 1}),
)
"""What takes the place of a value."""


def winners() -> list[Row]:
    """Rows as a sweep decides them: configs of several kernels of matmul, each out of its own search space."""
    rows: list[Row] = []
    wanted = {
        "pointer": Problem(512, 768, 1024, dtype="bf16"),
        "tma": Problem(1024, 1024, 1024, dtype="bf16", layout="nt"),
        "persistent_tma": Problem(4096, 2048, 512, dtype="e4m3", layout="nt", scaling="row"),
        "split_k": Problem(64, 1024, 8192, layout="nt", epilogue="bias+gelu"),
    }
    for number, (name, problem) in enumerate(wanted.items()):
        spec = registry.find("matmul", name)
        assert spec.supports(problem, H200) is None
        config = spec.default_config(problem, H200)
        made = (
            OLDER if number % 2 else Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0")
        )
        rows.append(Row(problem, config, spec.version, made, 12.5 + number, 1.25, 1.05, 2))
    return rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return winners()


def families_of(rows: list[Row]) -> tuple[Family, ...]:
    """Two families of ranges over these rows, and one of which a range has no row."""
    first, second, third, _ = (row.problem for row in rows)
    return (
        Family(first.group(), (Range(1, first.m, first.m, "measured"),), Check(20, 1.004, 1.03)),
        Family(second.group(), (Range(9, 700, 64, "estimated"), Range(701, second.m, second.m, "measured"))),
        Family(
            third.group(),
            (Range(1025, third.m, third.m, "measured"), Range(third.m + 1, 2**31 - 1, 2**20, "estimated")),
        ),
    )


@pytest.fixture(scope="module")
def text(rows) -> str:
    return Table("matmul", H200, "2026-01-31T12:00:00Z", tuple(rows), families_of(rows)).dumps()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document, the deepest too."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def mutated(original: str, number: int) -> bytes:
    """Mutation `number` of a table's file."""
    chance = random.Random(number)
    content = bytearray(original.encode())
    kind = chance.choice(["bytes", "bytes", "cut", *["document"] * 7])
    if kind == "cut":
        return bytes(content[: chance.randrange(len(content))])
    if kind == "bytes":
        for _ in range(chance.choice([1, 1, 2, 8])):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        return bytes(content)
    document = json.loads(original)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        change(document, chance)
    return json.dumps(document).encode()


def change(document: Any, chance: random.Random) -> None:
    everywhere = list(places(document))
    rows = [place for place in places(document.get("rows")) if isinstance(place[1], str)]  # half of all: rows' parts,
    rows += list(places(document.get("families")))  # and families'
    if not everywhere:
        return
    container, key = chance.choice(rows if rows and chance.random() < 0.5 else everywhere)
    value = container[key]
    match chance.choice(["replace", "replace", "drop", "type", "number", "twice", "swap", "add"]):
        case "replace":
            container[key] = copy.deepcopy(chance.choice(NASTY))
        case "drop":
            del container[key]
        case "type":
            container[key] = chance.choice([str(value), [value], {"value": value}, bool(value)])
        case "number" if isinstance(value, (int, float)):
            container[key] = value * chance.choice([-1, 2, 4, 0.5, 1024, 3])
        case "twice" if isinstance(container, list):
            container.insert(key, copy.deepcopy(value))
        case "swap":
            other, name = chance.choice(everywhere)
            container[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(value)
        case _ if isinstance(container, dict):
            container[chance.choice(["", "x", "num_warps", "M", "op", "\ud800"])] = copy.deepcopy(chance.choice(NASTY))


def meaning(content: bytes) -> str | None:
    """All that a digest covers; None where there is none."""
    try:
        document = json.loads(content)
        del document["date"], document["digest"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return json.dumps(document, sort_keys=True)


def can_run(problem: Problem, config: Config) -> str | None:
    """Why a config cannot run on the device, asked of its kernel directly."""
    spec = registry.find(problem.op, config.kernel)
    space = spec.space(problem, H200)
    for name, values in space.axes.items():
        if name in config and type(config[name]) is not type(values[0]):
            return f"{name} is {config[name]!r}"
    return spec.supports(problem, H200) or space.rejection(config, fatal_only=True)


@pytest.fixture(autouse=True)
def no_formula(monkeypatch):
    """Formulas have tests of their own, and take longer than all the rest here."""
    monkeypatch.setattr(registry, "default_config", lambda problem, device, without=None, **_: Config("pointer"))


def check_answers(winners: sources.DeviceWinners, problems: list[Problem]) -> None:
    """Whatever a source holds, each problem gets the formula or a config that can run."""
    between = [problem.with_shape(m, problem.n, problem.k) for problem in problems for m in (1, 500, 701, 2**31 - 1)]
    for problem in dict.fromkeys([*problems, *between, *winners.rows]):
        match = match_rules.decide(problem, H200, [winners]).match
        assert match.rule == "default" or can_run(problem, match.config) is None


def numbers(quick: int, count: int) -> list[object]:
    """Numbers of mutations, in portions, so that a failure names its portion at once; from `quick` on they are long."""
    later = [range(start, min(start + 500, count)) for start in range(quick, count, 500)]
    return [range(quick), *(pytest.param(portion, marks=pytest.mark.long) for portion in later)]


@pytest.mark.parametrize("portion", numbers(250, 1_250), ids=str)
def test_a_mangled_table_is_reported_and_costs_its_bad_rows_alone(portion, tmp_path, text, rows, caplog):
    path = tmp_path / f"matmul--{H200.slug}.json"
    problems = [row.problem for row in rows]
    for number in portion:
        content = mutated(text, number)
        path.write_bytes(content)
        report = report_of(path, number)
        same = meaning(content) == meaning(text.encode())
        assert same or any(finding.level is Level.ERROR for finding in report.findings), f"mutation {number}"
        caplog.clear()
        winners = sources.TableFile("t", path).winners(H200.slug)
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) <= 1, f"mutation {number}: one warning a file"
        assert same or warnings, f"mutation {number}: said nothing"
        if "not used" not in winners.note and warnings:
            faults = table.load(path).faults
            assert all(str(fault) in warnings[0] for fault in faults[:3])
        check_answers(winners, problems)


def report_of(path: Path, number: int) -> Inspection:
    try:
        return inspect(str(path))
    except Exception as e:
        raise AssertionError(f"mutation {number}: verify raised {e!r}") from e


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("good") / "tuner.db"


STATEMENTS = [
    *(
        f"UPDATE problem SET {name} = ? WHERE problem_id = 2"
        for name in ("m", "a_dtype", "layout", "extras", "aligned")
    ),
    *(f"UPDATE winner SET {name} = ? WHERE winner_id = 2" for name in ("median_us", "default_us", "vendor_us", "ties")),
    *(f"UPDATE device SET {name} = ?" for name in ("slug", "name", "sm_count", "shared_bytes")),
    *(f"UPDATE environment SET {name} = ? WHERE environment_id = 1" for name in ("triton", "driver")),
    *(f"UPDATE run SET {name} = ? WHERE run_id = 1" for name in ("protocol", "tool_version")),
    *(f"UPDATE kernel SET {name} = ? WHERE kernel_id = 1" for name in ("name", "version", "op")),
    "UPDATE config SET parameters = ? WHERE config_id = 1",
    *(f"UPDATE family SET {name} = ? WHERE family_id = 1" for name in ("checked", "regret_geomean", "decided_at")),
    *(
        f"UPDATE family_range SET {name} = ? WHERE family_range_id = 2"
        for name in ("first_m", "evidence", "problem_id")
    ),
    "UPDATE alembic_version SET version_num = ?",
]


def mangle(path: Path, number: int) -> None:
    """Mutation `number` of a database's file."""
    chance = random.Random(number)
    kind = chance.choice(["bytes", "bytes", "cut", "values", "values"])
    if kind == "values":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            values = [
                value for value in NASTY if isinstance(value, (float, str)) or value is None or value in (0, -1, 3)
            ]
            values += [b"\xff\xfe", sqlite3.Binary(b"3"), '{"BLOCK_SIZE_M": 100}', "[" * 5000]
            for statement in chance.sample(STATEMENTS, chance.choice([1, 2, 4])):
                value = chance.choice([v for v in values if v != "\ud800"])
                text = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
                try:
                    connection.execute(statement.replace("?", text), (value,))
                except sqlite3.IntegrityError:
                    continue  # NOT NULL, or unique
        return
    content = bytearray(path.read_bytes())
    if kind == "cut":
        path.write_bytes(content[: chance.randrange(len(content))])
        return
    used = [index for index, byte in enumerate(content) if byte]
    for _ in range(chance.choice([1, 2, 16, 200])):
        content[chance.choice(used) if chance.random() < 0.8 else chance.randrange(len(content))] ^= (
            1 << chance.randrange(8)
        )
    path.write_bytes(content)


@pytest.mark.parametrize("portion", numbers(200, 500), ids=str)
def test_a_mangled_database_never_raises_at_run_time(portion, tmp_path, good, rows, make_database, caplog):
    if not good.exists():
        make_database(good, *rows, families=families_of(rows))
    path = tmp_path / "tuner.db"
    problems = [row.problem for row in rows]
    for number in portion:
        for entry in tmp_path.iterdir():
            entry.unlink()
        shutil.copyfile(good, path)
        mangle(path, number)
        caplog.clear()
        winners = sources.Database("d", str(path)).winners(H200.slug)
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) <= 1, f"mutation {number}"
        check_answers(winners, problems)
        try:
            devices = database.read_devices(path) if path.stat().st_size else []
        except TableError:
            devices = []
        assert all(isinstance(device.slug, str) and isinstance(device.sm_count, int) for device in devices), number
        if number % 10 == 0:
            report_of(path, number)
