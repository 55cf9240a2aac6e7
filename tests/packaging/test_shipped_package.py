"""What users install: our wheel, and the wheel of a library that ships tables, in an environment of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.problem import Problem
from tuner.store import schema

pytest.importorskip("triton", reason="a lookup checks configs against the kernels, which import Triton")
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
H200 = KNOWN["sm_90"]
PROBLEM = Problem(64, 4096, 4096, dtype="bfloat16", layout="nt")
PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "mylib"
version = "1.0"
[tool.setuptools]
packages = ["mylib", "mylib.tuned"]
"""
LOOK_UP = """
import json, sys
import tuner
from tuner.hardware.device import KNOWN
match = tuner.lookup(tuner.Problem(64, 4096, 4096, dtype="bfloat16", layout="nt"), KNOWN["sm_90"])
answer = {"file": tuner.__file__, "rule": match.rule, "source": match.source, "config": dict(match.config)}
answer["imported"] = sorted({"mylib", "sqlalchemy", "alembic", "click", "rich"} & set(sys.modules))
print(json.dumps(answer))
"""


@dataclass(frozen=True)
class Fresh:
    """An environment with both wheels, and nothing of this checkout."""

    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TUNER", "VIRTUAL"))
        }
        clean["TUNER_DB"] = str(self.folder / "absent.db")
        program, *arguments = command
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=self.folder,
            env=clean,
        )


def build(source: Path, out: Path, *options: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Our sdist, and the wheel built from it: of a copy, for a stale build folder would add what is long gone."""
    folder = tmp_path_factory.mktemp("dist")
    skipped = shutil.ignore_patterns(".git", "*.egg-info", "build", "dist", "__pycache__", "tests", ".*_cache")
    shutil.copytree(ROOT, folder / "copy", ignore=skipped)
    build(folder / "copy", folder)
    return folder


@pytest.fixture
def tuned(tmp_path, make_row, make_database) -> Path:
    """A database with one winner of a real kernel on a GPU."""
    config = registry.default_config(PROBLEM, H200)
    version = registry.find("matmul", config.kernel).version
    row = make_row(*PROBLEM.shape, dtype="bfloat16", layout="nt", config=config, version=version)
    return make_database(tmp_path / "tuner.db", row)


@pytest.fixture
def library(tmp_path, tuned) -> Path:
    """The wheel of a library whose tables `tuner export --package` wrote, with the lines that it printed."""
    project = tmp_path / "project"
    command = [sys.executable, "-m", "tuner", "export", str(project), "--package", "mylib.tuned", "--db", str(tuned)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60)
    (project / "pyproject.toml").write_text(f"{PYPROJECT}{json.loads(done.stdout)['pyproject']}\n")
    build(project, tmp_path / "wheels", "--wheel")
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    return wheel


@pytest.fixture
def fresh(tmp_path, dist, library) -> Fresh:
    folder = tmp_path / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    wheels = [str(next(dist.glob("*.whl"))), str(library)]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", *wheels]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    # torch, Triton and SQLAlchemy come from the folders of this environment. A folder that a .pth file names is put on
    # the path, but its own .pth files are not read: the editable install of this checkout, one of those, stays out.
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    return Fresh(folder)


def test_a_shipped_table_is_found_in_a_fresh_environment_without_a_database(fresh):
    done = fresh.run("python", "-c", LOOK_UP)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert Path(answer["file"]).is_relative_to(fresh.folder)
    assert (answer["rule"], answer["source"]) == ("exact", "package mylib.tuned")
    assert answer["config"] == dict(registry.default_config(PROBLEM, H200))
    assert answer["imported"] == []
    assert not (fresh.folder / "absent.db").exists()

    shown = fresh.run("tuner", "lookup", "64x4096x4096", "--dtype", "bf16", "--layout", "nt", "--device", H200.slug)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "rule exact, grade" in shown.stdout

    # So are tables of our own, for what nobody else tuned.
    own = fresh.run("tuner", "lookup", "100x6144x4096", "--dtype", "bf16", "--layout", "nt", "--device", H200.slug)
    assert (own.returncode, "from package tuner.tables.shipped" in own.stdout) == (0, True), own.stdout

    # The migrations are in the wheel: a new database is made, and an old one could be upgraded.
    made = fresh.run("tuner", "db", "upgrade", "--db", "new.db")
    assert made.returncode == 0, made.stderr
    assert schema.HEAD in fresh.run("tuner", "db", "current", "--db", "new.db").stdout


def test_the_wheel_holds_one_top_level_name_and_all_that_a_run_needs(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tuner"}
    expected = {f"tuner/{path.relative_to(ROOT / 'tuner')}" for path in (ROOT / "tuner").rglob("*.py")}
    expected |= {f"tuner/kernels/{path.relative_to(ROOT / 'kernels')}" for path in (ROOT / "kernels").rglob("*.py")}
    expected |= {f"tuner/_migrations/{path.relative_to(ROOT / 'migrations')}" for path in _migrations()}
    expected |= {f"tuner/problem/suites/{path.name}" for path in (ROOT / "tuner" / "problem" / "suites").glob("*.csv")}
    data = {"tuner/py.typed", "tuner/sweep/portfolio.json", "tuner/kernels/cost/calibration.npz"}
    assert expected | data <= set(names)


def test_the_sdist_holds_what_a_rebuild_needs_and_nothing_private(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        *(f"migrations/{p.relative_to(ROOT / 'migrations')}" for p in _migrations()),
    }
    assert wanted <= names
    assert not [name for name in names if name.endswith((".db", ".pyc")) or name.startswith((".git", "build"))]


def _migrations() -> list[Path]:
    return [path for path in (ROOT / "migrations").rglob("*") if path.suffix in (".py", ".mako")]
