"""docs/benchmarks.md names the files of its figures, and benchmarks/ holds no script or result that nothing names."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
NAMING = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *(path for folder in ("benchmarks", "kernels", "tuner", "tests") for path in (ROOT / folder).rglob("*.py")),
]
"""Files whose words keep a result: CHANGELOG.md tells of the past, and this test names none."""


def programs(room: str) -> list[Path]:
    """The scripts of a room that run; the others are modules that they share."""
    return [
        path for path in sorted((BENCHMARKS / room).glob("*.py")) if 'if __name__ == "__main__":' in path.read_text()
    ]


def test_every_file_that_the_page_names_exists():
    named = set(re.findall(r"\b((?:claims|fit|checks|suites|data|results)/[\w.-]+\.\w+)", PAGE))
    assert named
    assert [name for name in sorted(named) if not (BENCHMARKS / name).exists()] == []


def test_every_script_of_a_claim_is_on_the_page():
    assert [path.name for path in programs("claims") if f"claims/{path.name}" not in PAGE] == []


def test_every_result_is_named_by_a_page_or_by_code():
    words = "\n".join(path.read_text() for path in NAMING if path.name not in ("CHANGELOG.md", Path(__file__).name))
    assert [path.name for path in sorted((BENCHMARKS / "results").iterdir()) if path.name not in words] == []


EXPLAIN = """
import contextlib, io, runpy, sys
for script in sys.argv[1:]:
    sys.argv, sys.path[0] = [script, "--help"], script.rpartition("/")[0]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    assert "--out" in said.getvalue(), script
"""


@pytest.mark.parametrize("room", ["claims", "fit", "checks", "studies"])
def test_every_script_imports_and_explains_itself(room):
    pytest.importorskip("triton", reason="the scripts time kernels")
    left_out = {"checks/sanitized.py"}  # sanitizer.py starts it, with a kernel's name
    of_kernels = ("any_height", "any_height_split", "block_scaled", "gated_heights", "ping_pong")
    fits = [f"fit/{name}.py" for name in of_kernels]
    needs = {"fit/calibrate.py": "catboost", "fit/gemv.py": "catboost", **dict.fromkeys(fits, "scipy")}
    left_out |= {script for script, package in needs.items() if importlib.util.find_spec(package) is None}
    scripts = [str(path) for path in programs(room) if f"{room}/{path.name}" not in left_out]
    done = subprocess.run([sys.executable, "-c", EXPLAIN, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
