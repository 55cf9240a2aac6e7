"""The floors of DESIGN: arrows point down only, and what a serving process imports stays small."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuner

ROOT = Path(tuner.__file__).parent
HOMES = {
    "kernels": Path(importlib.util.find_spec("tuner.kernels").submodule_search_locations[0]),
    "_migrations": Path(importlib.util.find_spec("tuner._migrations").submodule_search_locations[0]),
}
BELOW = {
    "ground": set(),
    "runtime": {"ground"},
    "decorator": {"runtime", "ground"},
    "store": {"ground"},
    "kernels": {"runtime", "ground"},
    "sweep": {"decorator", "store", "runtime", "ground"},
    "export": {"store", "runtime", "ground"},
    "contest": {"sweep", "runtime", "ground"},
    "inspection": {"sweep", "runtime", "ground"},
    "cli": {"decorator", "inspection", "contest", "sweep", "export", "store", "runtime", "ground"},
    "_migrations": {"store"},  # env.py alone, for autogenerate: see the test of the versions below
}
"""Floor to the floors it may import, besides itself. tuner/__init__.py is the face: it shows ground and runtime."""
DOORS = {"__init__.py", "__main__.py"}  # of the package tuner itself: `python -m tuner` opens the command line
HEAVY = {"sqlalchemy", "alembic", "click", "rich"}
GPU = {"torch", "triton"}


def modules(floor: str) -> Iterator[Path]:
    if floor == "ground":
        yield from (path for path in ROOT.glob("*.py") if path.name not in DOORS)
    else:
        yield from HOMES.get(floor, ROOT / floor).rglob("*.py")


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Full names a module imports; what only the type checker sees is no import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    if top_level_only:
        functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        unseen |= {child for function in functions for child in ast.walk(function)}
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which floor is meant"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floor_of(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "tuner":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in BELOW else "ground"


@pytest.mark.parametrize("floor", BELOW)
def test_arrows_point_down_only(floor):
    paths = list(modules(floor))
    assert paths
    upward = [
        f"{path.name} imports {name}"
        for path in paths
        for name in imports(path)
        if floor_of(name) not in {None, floor, *BELOW[floor]}
    ]
    assert upward == []


@pytest.mark.parametrize("floor", ["ground", "runtime", "decorator", "kernels"])
def test_the_floors_of_a_serving_process_import_no_database_and_no_command_line(floor):
    assert [
        f"{path.name} imports {name}"
        for path in modules(floor)
        for name in imports(path)
        if name.split(".")[0] in HEAVY
    ] == []


@pytest.mark.parametrize("floor", ["ground", "runtime", "decorator"])
def test_torch_and_triton_are_imported_inside_functions_only(floor):
    assert [
        f"{path.name} imports {name}"
        for path in modules(floor)
        for name in imports(path, top_level_only=True)
        if name.split(".")[0] in GPU
    ] == []


def test_the_store_knows_neither_torch_nor_triton():
    assert [name for path in modules("store") for name in imports(path) if name.split(".")[0] in GPU] == []


def test_a_migration_imports_nothing_of_ours():
    versions = HOMES["_migrations"] / "versions"
    assert list(versions.glob("0001*.py"))
    assert [name for path in versions.glob("*.py") for name in imports(path) if floor_of(name)] == []


SERVE = """
import os, sys
events = []
sys.addaudithook(lambda event, args: events.append((event, *map(str, args[:2]))))
before = dict(os.environ)
import tuner
loaded = set(sys.modules)
assert not loaded & {"torch", "triton", "sqlalchemy", "alembic", "click", "rich", "numpy"}, loaded
assert not [name for name in loaded if name.startswith("tuner.")], "modules are imported when they are asked for"
assert set(tuner.__all__) <= set(dir(tuner))
assert all(callable(getattr(tuner, name)) for name in tuner.__all__)
assert tuner.problem.parse_shape("1x2x3") == (1, 2, 3)
assert dict(os.environ) == before
started = [event for event in events if event[0] in ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork")]
assert not started, started
written = [event for event in events if event[0] == "open" and any(c in event[2] for c in "wax+")]
written = [event for event in written if "__pycache__" not in event[1]]
assert not written, written
connected = [event for event in events if event[0].startswith(("sqlite3.connect", "socket."))]
assert not connected, connected

from tuner import registry
from tuner.device import KNOWN
device = KNOWN["sm_90"]
tuner.use(sys.argv[1])
problem = tuner.Problem(64, 512, 256)
assert tuner.lookup(problem, device).rule in ("exact", "default")
assert problem and tuner.explain(problem, device)
from tuner.kernels import matmul
assert not [name for name in sys.modules if "softmax" in name], "an op imports no other op"
heavy = set(sys.modules) & {"sqlalchemy", "alembic", "click", "rich"}
assert not heavy, heavy
"""


def test_importing_has_no_side_effects_and_a_lookup_imports_nothing_heavy(tmp_path, make_row, make_table, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed: no kernel answers")
    path = make_table(make_row()).write(tmp_path)
    command = [sys.executable, "-c", SERVE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
