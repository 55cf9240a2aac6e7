"""`tuner export --with-kernels`, as a process of its own: it makes itself compile for the table's GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tuner import registry
from tuner.config import Config
from tuner.device import KNOWN
from tuner.kernels import pointer  # these tests compile

H200 = KNOWN["sm_90"]
WON = Config(
    pointer.NAME,
    BLOCK_SIZE_M=64,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=32,
    GROUP_SIZE_M=1,
    num_warps=4,
    num_stages=3,
    launch_pdl=False,
)


@pytest.fixture
def export(tmp_path, make_database, make_row):
    version = registry.find("matmul", WON.kernel).version
    db = make_database(tmp_path / "tuner.db", make_row(256, 256, 256, config=WON, version=version, dtype="float16"))

    def export(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        command = [sys.executable, "-m", "tuner", "export", *map(str, arguments), "--db", str(db)]
        environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), **environment}
        return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False, timeout=240)

    return export


def test_kernels_are_written_beside_the_table_and_the_package_data_names_them(export, tmp_path):
    done = export(tmp_path / "src", "--package", "mylib.tuned", "--with-kernels", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    folder = tmp_path / "src" / "mylib" / "tuned" / f"matmul--{H200.slug}.kernels"
    (written,) = told["kernels"]
    assert (written["path"], written["failed"]) == (str(folder), [])
    assert '"mylib.tuned" = ["*.json", "*.kernels/*"]' in told["pyproject"]
    index = json.loads((folder / "index.json").read_text())
    assert index["target"] == ["cuda", 90, 32]
    # The winner's, the default's, and the default's for operands that are not aligned.
    assert written["kernels"] == len(index["kernels"]) == 3
    names = {f"{digest}.{suffix}" for entry in index["kernels"] for suffix, digest in entry["files"].items()}
    assert {file.name for file in folder.iterdir()} == names | {"index.json"}
    assert written["bytes"] == sum((folder / name).stat().st_size for name in names)


def test_kernels_ship_beside_tables_only_and_are_not_compiled_under_the_interpreter(export, tmp_path):
    done = export(tmp_path, "--with-kernels", "--format", "vllm")
    assert (done.returncode, "--with-kernels ships kernels beside tables" in done.stderr) == (2, True)
    done = export(tmp_path, "--with-kernels", TRITON_INTERPRET="1")
    assert (done.returncode, "cannot be done under TRITON_INTERPRET=1" in done.stderr) == (2, True)
