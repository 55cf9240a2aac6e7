"""The rooms of CONTRIBUTING: arrows point down only, and what a serving process imports stays small."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuner

TUNER = Path(tuner.__file__).parent
KERNELS = Path(importlib.util.find_spec("tuner.kernels").submodule_search_locations[0])
MIGRATIONS = Path(importlib.util.find_spec("tuner._migrations").submodule_search_locations[0])
REPOSITORY = Path(__file__).parents[2]
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
FLOORS, KERNEL_FLOORS = (
    tuple(tuple(line.split()) for line in block.split("\n")[1:-1])
    for block in re.findall(r"^```(\n[a-z_ \n]+)```$", CONTRIBUTING, re.MULTILINE)
)
"""Rooms of `tuner` and of `tuner.kernels` as CONTRIBUTING.md lists them, the highest floor first."""
FACE = {"__init__.py", "__main__.py", "config.py", "device.py", "registry.py", "space.py", "suite.py"}
"""Public names of rooms, and `python -m tuner`: they may show any room, and no room imports them."""
HEAVY = {"sqlalchemy", "alembic", "click", "rich", "ray"}
GPU = {"torch", "triton"}
LOGGER = "logging.getLogger"
SERVING = ("ground", "problem", "hardware", "kernel", "lookup", "launch", "tuned", "adopt", "models", "kernels")
WITHOUT_GPU = ("ground", "problem", "hardware", "kernel", "lookup", "tuned", "adopt")
"""Rooms that import torch and Triton inside functions only."""


def modules(room: str) -> Iterator[Path]:
    if room == "ground":
        yield from (path for path in TUNER.glob("*.py") if path.name not in FACE)
    elif room == "kernels":
        yield from KERNELS.rglob("*.py")
    else:
        yield from (TUNER / room).rglob("*.py")


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Full names a module imports, inside functions and by string too; what only a type checker sees is no import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in node.body
        for child in ast.walk(part)
    }
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    loggers = {
        node.args[0] for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == LOGGER
    }
    if top_level_only:
        functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        unseen |= {child for function in functions for child in ast.walk(function)}
    for node in ast.walk(tree):
        if node in unseen or node in docstrings or node in loggers:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room is meant"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(r"(tuner(?:\.\w+)+)", node.value)
            if named and is_module(named[1]):
                yield named[1]


def is_module(name: str) -> bool:
    parts = name.split(".")[1:]
    root = KERNELS.joinpath(*parts[1:]) if parts[0] == "kernels" else TUNER.joinpath(*parts)
    return len(parts) > 1 and (root.with_suffix(".py").exists() or (root / "__init__.py").exists())


def room_of(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "tuner" or len(parts) == 1:
        return None
    if f"{parts[1]}.py" in FACE:
        return "face"
    return parts[1] if parts[1] == "kernels" or (TUNER / parts[1] / "__init__.py").exists() else "ground"


def kernel_room_of(name: str) -> str | None:
    parts = name.split(".")
    if parts[:2] != ["tuner", "kernels"] or len(parts) < 3:
        return None
    return parts[2] if (KERNELS / parts[2] / "__init__.py").exists() else "face"


def floor(room: str, floors: tuple[tuple[str, ...], ...]) -> int:
    (found,) = [height for height, rooms in enumerate(reversed(floors)) if room in rooms]
    return found


def upward(room: str, paths: Iterator[Path], floors: tuple[tuple[str, ...], ...], home) -> list[str]:
    """Imports of a room from above it, or from the face."""
    found = []
    for path in paths:
        for name in imports(path):
            other = home(name)
            if other not in {None, room} and (other == "face" or floor(other, floors) > floor(room, floors)):
                found.append(f"{path.name} imports {name}")
    return found


def test_every_module_that_contributing_names_is_there():
    named = set(re.findall(r"`([\w/]+\.py)`", CONTRIBUTING))
    there = [path.as_posix() for root in (TUNER, KERNELS, REPOSITORY / "tests") for path in root.rglob("*.py")]
    assert len(named) > 30
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in there)]


def test_every_room_has_a_floor():
    rooms = {path.parent.name for path in TUNER.glob("*/__init__.py")} | {"ground", "kernels"}
    assert sorted(rooms) == sorted(room for rooms in FLOORS for room in rooms)
    rooms = {path.parent.name for path in KERNELS.glob("*/__init__.py")}
    assert sorted(rooms) == sorted(room for rooms in KERNEL_FLOORS for room in rooms)


@pytest.mark.parametrize("room", [room for rooms in FLOORS for room in rooms])
def test_arrows_point_down_only(room):
    assert list(modules(room))
    assert upward(room, modules(room), FLOORS, room_of) == []


@pytest.mark.parametrize("room", [room for rooms in KERNEL_FLOORS for room in rooms])
def test_arrows_of_the_kernels_rooms_point_down_only(room):
    assert upward(room, (KERNELS / room).rglob("*.py"), KERNEL_FLOORS, kernel_room_of) == []


def test_no_module_imports_itself_by_way_of_others():
    def name_of(path: Path) -> str:
        root, prefix = (KERNELS, "tuner.kernels") if KERNELS in path.parents else (TUNER, "tuner")
        parts = path.relative_to(root).with_suffix("").parts
        return ".".join((prefix, *(parts[:-1] if parts[-1] == "__init__" else parts)))

    everything = {name_of(path): path for root in (TUNER, KERNELS) for path in root.rglob("*.py")}
    below = {
        name: {
            found
            for imported in imports(path)
            for found in [imported if imported in everything else imported.rpartition(".")[0]]
            if found in everything and not name.startswith(f"{found}.")
        }
        for name, path in everything.items()
        if path.name not in FACE or path.parent not in (TUNER, KERNELS)
    }
    while leaves := [name for name, others in below.items() if not others & below.keys()]:
        for name in leaves:
            del below[name]
    assert {name: others & below.keys() for name, others in below.items()} == {}


@pytest.mark.parametrize("room", SERVING)
def test_the_rooms_of_a_serving_process_import_no_database_and_no_command_line(room):
    assert [
        f"{path.name} imports {name}" for path in modules(room) for name in imports(path) if name.split(".")[0] in HEAVY
    ] == []


@pytest.mark.parametrize("room", WITHOUT_GPU)
def test_torch_and_triton_are_imported_inside_functions_only(room):
    assert [
        f"{path.name} imports {name}"
        for path in modules(room)
        for name in imports(path, top_level_only=True)
        if name.split(".")[0] in GPU
    ] == []


def test_ray_is_imported_in_the_fleet_alone_and_when_it_is_asked_for():
    elsewhere = [path for path in TUNER.rglob("*.py") if (TUNER / "fleet") not in path.parents]
    assert [path.name for path in elsewhere if "ray" in {name.split(".")[0] for name in imports(path)}] == []
    assert [
        path.name for path in modules("fleet") for name in imports(path, top_level_only=True) if name[:3] == "ray"
    ] == []
    assert any(name == "ray" for path in modules("fleet") for name in imports(path))


def test_the_store_knows_neither_torch_nor_triton():
    assert [name for path in modules("store") for name in imports(path) if name.split(".")[0] in GPU] == []


def test_a_migration_imports_nothing_of_ours():
    versions = MIGRATIONS / "versions"
    assert list(versions.glob("0001*.py"))
    assert [name for path in versions.glob("*.py") for name in imports(path) if name.split(".")[0] == "tuner"] == []


SERVE = """
import os, sys
events = []
sys.addaudithook(lambda event, args: events.append((event, *map(str, args[:2]))))
before = dict(os.environ)
import tuner
loaded = set(sys.modules)
assert not loaded & {"torch", "triton", "sqlalchemy", "alembic", "click", "rich", "numpy"}, loaded
rooms = {"tuner.version", "tuner.adopt", "tuner.lookup", "tuner.tuned"}
assert {name for name in loaded if name.startswith("tuner.")} == rooms, "modules are imported when they are asked for"
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
others = [name for name in sys.modules if "softmax" in name and name != "tuner.kernels.softmax"]
assert not others, "an op imports no other op"
from tuner.models import accelerate
heavy = {"sqlalchemy", "alembic", "click", "rich", "ray", "transformers", "msgspec"}  # the last for large tables alone
heavy &= set(sys.modules)
assert not heavy, heavy
"""


ACCELERATE = """
import sys
import torch
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.SiLU()
        self.gate_proj, self.up_proj = (nn.Linear(4096, 14336, bias=False, device="meta") for _ in range(2))
        self.down_proj = nn.Linear(14336, 4096, bias=False, device="meta")

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))

model = nn.Sequential(RMSNorm(4096), Gated()).bfloat16()
before = set(sys.modules)
from tuner.hardware import device
from tuner.kernels.ops import arguments
device.current = lambda index=None: next(each for each in device.MODELS if each.slug.startswith("nvidia-h100"))
arguments.has_kernels = lambda _: True  # that of the GPU that is not there
from tuner.models import accelerate
done = accelerate(model)
assert (len(done.exchanged), len(done.norms), len(done.mlps)) == (3, 1, 1), str(done)
added = {name.partition(".")[0] for name in set(sys.modules) - before} - {"tuner"}
assert not added & {"triton", "numpy", "sqlite3", "msgspec", "click", "rich", "sqlalchemy", "transformers"}, added
compiler = {"torch._dynamo", "torch._inductor", "torch.utils.flop_counter"} & (set(sys.modules) - before)
assert not compiler, compiler
kernels = {name for name in sys.modules if name.startswith("tuner.kernels.")}
assert not kernels & {"tuner.kernels.ops.fused_experts", "tuner.kernels.ops.softmax", "tuner.kernels.ops.bmm"}, kernels
"""


def test_accelerating_a_model_imports_neither_triton_nor_torchs_compiler(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed: there is no model")
    monkeypatch.setenv("TUNER_TABLES", "")
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "none.db"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    command = [sys.executable, "-B", "-c", ACCELERATE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_importing_has_no_side_effects_and_a_lookup_imports_nothing_heavy(tmp_path, make_row, make_table, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed: no kernel answers")
    path = make_table(make_row()).write(tmp_path)
    command = [sys.executable, "-B", "-c", SERVE, str(path)]  # -B: bytecode is Python's own, wherever it lies
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
