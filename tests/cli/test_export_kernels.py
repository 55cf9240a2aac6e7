"""`tuner export --with-kernels`, as a process of its own: it makes itself compile for the table's GPU."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tuner import cli
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.gemm.pointer import spec as pointer  # these tests compile
from tuner.lookup.row import Row
from tuner.problem import Problem
from tuner.tables.binaries import CompiledEntry, Written, write_entries

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
def export(compiling, tmp_path, make_database, make_row):
    version = registry.find("matmul", WON.kernel).version
    db = make_database(tmp_path / "tuner.db", make_row(256, 256, 256, config=WON, version=version, dtype="float16"))

    def export(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        kept |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), **environment}
        return compiling.tuner("export", "--db", db, *arguments, env=kept, cwd=tmp_path)

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
    # The winner's, and the default's for operands that are not aligned.
    assert written["kernels"] == len(index["kernels"]) == 2
    names = {f"{digest}.{suffix}" for entry in index["kernels"] for suffix, digest in entry["files"].items()}
    assert {file.name for file in folder.iterdir()} == names | {"index.json"}
    assert written["bytes"] == sum((folder / name).stat().st_size for name in names)


def test_a_cache_that_cannot_be_written_is_told_with_what_to_type(export, tmp_path):
    (tmp_path / "file").touch()
    done = export(tmp_path / "out", "--with-kernels", TRITON_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert done.returncode == 1
    assert "Triton's cache cannot be written (NotADirectoryError" in done.stderr.splitlines()[-1]
    assert "set $TRITON_CACHE_DIR to another folder, then type the same command again" in done.stderr


def test_a_folder_of_kernels_alone_is_verified_by_its_index_and_files(tmp_path, capsys):
    folder = tmp_path / "library--h200-sxm-sm90-132sm-139gib.kernels"
    contents = {"json": b"{}", "cubin": b"code"}
    digests = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in contents.items()}
    entry = {"key": "1", "source": "s", "signature": [], "constants": [], "files": digests}
    write_entries(folder, {"1": CompiledEntry(entry, contents)}, ("3.7.1", ["cuda", 90, 32]))

    def verified() -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["verify", str(tmp_path)])
        return ended.value.code, capsys.readouterr().out

    assert verified() == (0, f"{tmp_path}: 0 tables, 0 rows, 1 folder of kernels: clean\n")
    (folder / f"{digests['cubin']}.cubin").write_bytes(b"coda")
    code, said = verified()
    assert code == 1
    assert f"1 of its 2 files are missing or were changed, the first {digests['cubin']}.cubin" in said
    (folder / "index.json").write_text('{"format": "triton-tuner kernels", "version": 9}')
    code, said = verified()
    assert (code, "its index.json cannot be read: format 'triton-tuner kernels' 9" in said) == (1, True)


def test_verify_names_rows_whose_kernels_were_not_written(export, tmp_path, capsys, make_database, make_row):
    assert export("tables", "--with-kernels").returncode == 0

    def verified() -> list[tuple[str, str]]:
        with pytest.raises(SystemExit):
            cli.main(["verify", str(tmp_path / "tables"), "--json"])
        (place,) = json.loads(capsys.readouterr().out)["places"]
        return [(each["level"], each["found"]) for each in place["findings"] if each["check"] == "kernels"]

    assert verified() == []
    version = registry.find("matmul", WON.kernel).version
    other = Config(WON.kernel, **{**dict(WON.pairs), "BLOCK_SIZE_K": 64})
    rows = [
        make_row(m, 256, 256, config=config, version=version, dtype="float16")
        for m, config in ((256, WON), (512, WON), (768, other))
    ]
    db = make_database(tmp_path / "later.db", *rows)
    assert export("tables", "--db", db).returncode == 0
    ((level, found),) = verified()
    assert level == "warning"
    assert found.startswith("it was written without 2 of 3 rows, the first matmul 512x256x256 ")
    assert export("tables", "--with-kernels", "--db", db).returncode == 0
    assert verified() == []
    index = tmp_path / "tables" / f"matmul--{H200.slug}.kernels" / "index.json"
    document = json.loads(index.read_text())
    assert len(document.pop("rows")) == len(rows)
    index.write_text(json.dumps(document))
    assert verified() == [], "an index of before names no rows"


def write_one(folder, number: int) -> Written:
    contents = {"json": f"{number}".encode(), "cubin": f"{number}".encode() * 10_000}
    digests = {suffix: hashlib.sha256(content).hexdigest() for suffix, content in contents.items()}
    entry = CompiledEntry({"key": str(number), "files": digests}, contents)
    return write_entries(folder, {str(number): entry}, ("3.7.1", ["cuda", 90, 32]))


def named_by_index(folder) -> set[str]:
    (entry,) = json.loads((folder / "index.json").read_text())["kernels"]
    return {f"{digest}.{suffix}" for suffix, digest in entry["files"].items()}


def test_exports_into_one_folder_at_the_same_time_leave_the_files_of_one_of_them(tmp_path):
    (tmp_path / "__init__.py").touch()  # a package keeps nothing of the export before
    folder = tmp_path / "kernels"
    with ThreadPoolExecutor(4) as threads:
        assert [one.kernels for one in threads.map(lambda number: write_one(folder, number), range(200))] == [1] * 200
    assert {file.name for file in folder.iterdir()} == named_by_index(folder) | {"index.json"}


def test_what_a_running_server_has_not_loaded_yet_stays_for_one_more_export(tmp_path):
    folder = tmp_path / "kernels"
    named: list[set[str]] = []
    for number in range(3):
        write_one(folder, number)
        (folder / "killed.tmp").touch()
        named.append(named_by_index(folder))
    write_one(folder, 3)
    assert {file.name for file in folder.iterdir()} == named[2] | named_by_index(folder) | {"index.json"}
    (folder / "index.json").write_text("{")
    write_one(folder, 4)
    assert {file.name for file in folder.iterdir()} == named_by_index(folder) | {"index.json"}


def test_rows_that_a_lookup_refuses_have_no_kernels_and_are_told(export, tmp_path, make_database, make_row):
    def row(m: int, config: Config) -> Row:
        version = registry.find("matmul", WON.kernel).version
        return make_row(m, 256, 256, config=config, version=version, dtype="float16")

    parameters = dict(WON.pairs)
    del parameters["BLOCK_SIZE_N"]
    short = row(64, Config(pointer.NAME, **parameters))
    db = make_database(tmp_path / "both.db", short, row(256, WON))
    done = export("both", "--with-kernels", "--db", db)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"left out of the kernels: {short.problem}: pointer takes other parameters: BLOCK_SIZE_N ")
    assert f"both/matmul--{H200.slug}.kernels: 2 kernels, " in done.stdout
    done = export("none", "--with-kernels", "--db", make_database(tmp_path / "none.db", short))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "no kernel of matmul--nvidia-h200-sm90-132.json compiled: matmul 64x256x256 " in done.stderr


def test_kernels_ship_beside_tables_only_and_are_not_compiled_under_the_interpreter(export, tmp_path):
    done = export(tmp_path, "--with-kernels", "--format", "vllm")
    assert (done.returncode, "--with-kernels ships kernels beside tables" in done.stderr) == (2, True)
    done = export(tmp_path, "--with-kernels", TRITON_INTERPRET="1")
    assert (done.returncode, "cannot be done under TRITON_INTERPRET=1" in done.stderr) == (2, True)
    assert not list(tmp_path.glob("*.json")), "nothing half-written"


def test_of_the_interpreters_winners_no_kernels_ship_and_that_is_said(
    run, no_tables, tmp_path, make_database, make_row
):
    version = registry.find("matmul", WON.kernel).version
    row = make_row(256, 256, 256, config=WON, version=version, dtype="float16")
    db = make_database(tmp_path / "tuner.db", row, device=INTERPRETER)
    code, out, err = run("export", tmp_path / "out", "--device", "interpreter", "--with-kernels", "--db", db)
    assert (code, out.count("\n")) == (0, 1)
    assert err == "matmul on interpreter ships without kernels: nothing is compiled there\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["matmul--interpreter.json"]


MODULE = """
import torch, triton, triton.language as tl
import tuner

@tuner.tuned([triton.Config({"BLOCK": 128})], ["N"])
@triton.jit
def doubled(x_ptr, y_ptr, N, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, (2 * tl.load(x_ptr + at, mask=at < N)).to(KIND), mask=at < N)

@doubled.make_inputs
def inputs(problem):
    assert problem["N"] < 100, "too long"
    x = torch.randn(problem["N"])
    return tuner.Arguments((1,), (x, torch.empty_like(x), problem["N"], tl.float32), outputs=["y_ptr"])
"""


@pytest.mark.long
def test_a_kernel_under_tuned_ships_where_it_is_named_and_what_does_not_compile_is_told(
    export, tmp_path, make_database, make_row
):
    def row(op: str, size: int) -> Row:
        config = Config(op, BLOCK=128, num_stages=3, num_warps=4)
        return replace(make_row(), problem=Problem.keyed(op, {"N": size}, dtype="float32"), config=config)

    (tmp_path / "mine.py").write_text(MODULE)
    db = make_database(tmp_path / "keyed.db", row("doubled", 64), row("doubled", 640), row("other", 64))
    done = export("tables", "--with-kernels", "--kernel", "mine:doubled", "--json", "--db", db)
    assert done.returncode == 0, done.stderr
    (written,) = json.loads(done.stdout)["kernels"]
    assert (written["kernels"], written["path"]) == (1, f"tables/doubled--{H200.slug}.kernels")
    assert "make_inputs of doubled failed for doubled N=640 float32: AssertionError: too long" in written["failed"][0]
    assert "other ships without kernels: say which it is, --kernel MODULE:NAME" in done.stderr


def test_a_kernel_is_named_to_be_compiled_only(export):
    done = export("tables", "--kernel", "mine:doubled")
    assert (done.returncode, done.stderr) == (2, "tuner: --kernel names a kernel to compile: add --with-kernels\n")


COMPILES_NOTHING = """
import sys
from triton.backends.nvidia.compiler import CUDABackend
from tuner import cli

def fail(*_):
    raise RuntimeError("compiled by the command's own process")

CUDABackend.make_cubin = fail
cli.main(sys.argv[1:])
"""


def test_much_is_compiled_by_other_processes_and_what_fails_keeps_nothing_else_from_its_kernels(
    tmp_path, make_row, make_table
):
    def row(size: int, block: int = 128, warps: int = 4) -> Row:
        config = Config("doubled", BLOCK=block, num_stages=3, num_warps=warps)
        return replace(make_row(), problem=Problem.keyed("doubled", {"N": size}, dtype="float32"), config=config)

    shapes = [*itertools.product((32, 64, 128, 256, 512), (1, 2, 4, 8))]
    configs = ", ".join(f'triton.Config({{"BLOCK": {block}}}, num_warps={warps})' for block, warps in shapes)
    (tmp_path / "mine.py").write_text(MODULE.replace('triton.Config({"BLOCK": 128})', configs))
    (tmp_path / "tables").mkdir()
    rows = [row(number, *shape) for number, shape in enumerate(shapes, start=17)]
    make_table(*rows, row(640), op="doubled").write(tmp_path / "tables")
    stale = make_row(1, 256, 1, op="rms_norm", extras={"eps": 1e-5}, config=Config("rms_norm_whole"), version=99)
    make_table(stale, op="rms_norm").write(tmp_path / "tables")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    arguments = ["import", "tables", "--out", "out", "--with-kernels", "--kernel", "mine.py:doubled", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", COMPILES_NOTHING, *arguments],
        env=kept | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    told = json.loads(done.stdout)
    assert [Path(each["path"]).name for each in told["tables"]] == [
        f"{op}--{H200.slug}.json" for op in ("doubled", "rms_norm")
    ]
    ((written, (failure,)),) = [(each, each["failed"]) for each in told["kernels"]]
    assert failure.startswith("doubled N=640 float32: ")
    assert "make_inputs of doubled failed" in failure
    assert (written["path"], written["kernels"]) == (f"out/doubled--{H200.slug}.kernels", len(rows))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"tuner: no kernel of rms_norm--{H200.slug}.json compiled: ")
