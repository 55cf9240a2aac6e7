"""Kernels of a library that knows nothing of us are launched by tuned configs, and cost what Triton's own do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.lookup.table import Provenance, Row, Table
from tuner.problem import Problem

PROGRAMS = Path(__file__).parent / "programs"
sys.path.append(str(PROGRAMS))
import decorated  # noqa: E402  a row names its source

MADE = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0.1.0")
SOURCES = """
import library
from tuner.adopt.kernel import kernel_of
print(*(kernel_of(each).source_hash[:16] for each in (library.scale, library.shift, library.summed)))
"""


@pytest.fixture
def stub(make_stub):
    """A cache for each test: Triton keeps there what it measured."""
    return make_stub()


@pytest.fixture
def bare(stub, tmp_path):
    """A machine without a C compiler, on which nothing is cached."""
    stub.work = tmp_path / "bare"
    stub.work.mkdir()
    (stub.work / "bin").mkdir()
    return stub, {"PATH": str(stub.work / "bin"), "HOME": str(stub.work)}


@pytest.fixture(scope="module")
def sources():
    """The sources of the library's kernels, in their order there."""
    found = subprocess.run([sys.executable, "-c", SOURCES], cwd=PROGRAMS, capture_output=True, text=True, check=True)
    return dict(zip(("scale", "shift", "summed"), found.stdout.split(), strict=True))


@pytest.fixture
def tables(tmp_path, sources):
    """Writes a table a kernel: kernel=(extras, config), with another source where it is given."""

    def write(source=None, **rows):
        for name, (extras, config) in rows.items():
            op = f"library-{name}"
            key = {**extras, "kernel.source": source or sources[name]}
            row = Row(Problem.keyed(op, key, dtype="float32"), Config(op, **config), 1, MADE, 10.0, 1.5, None, 1)
            Table(op, KNOWN["sm_90"], "2026-01-31T12:00:00Z", (row,)).write(tmp_path)
        return str(tmp_path)

    return write


SCALE = {"N": 1000, "stride.one": True}, {"BLOCK": 256, "num_stages": 3, "num_warps": 8}
SHIFT = {"N": 1000}, {"BLOCK": 128, "num_stages": 3, "num_warps": 4}
SUMMED = {"N": 64}, {"BLOCK": 256, "num_stages": 3, "num_warps": 8}


def test_a_winner_is_launched_unmeasured_and_known_keys_call_nothing_of_ours(stub, tables):
    told = stub.run("adopted.py", tables(scale=SCALE, shift=SHIFT), "autotune").printed
    assert told["served"] == [[0, 256, 8, True], [0, 256, 8, False]]
    assert told["own subclass"] == [[0, 128, 4, True], [0, 128, 4, False]]
    assert told["own calls"] == [3, 3]
    assert told["zeroed"], "as Triton leaves the arguments of reset_to_zero"
    assert told["missed"][0][0] == 3
    assert told["missed"][1] == [0, *told["missed"][0][1:3], False]
    assert len(list(stub.work.rglob("*.autotune.json"))) == 2, "of the missed key, and of the one that was undone"


def test_undone_triton_is_as_it_was_and_decides_itself(stub, tables):
    told = stub.run("adopted.py", tables(scale=SCALE), "autotune").printed
    assert told["as it was"]
    assert told["kept"] == [2, 1], "what Triton measured itself stays"
    assert told["undone"][0] == 3
    assert not told["undone"][3]


@pytest.mark.parametrize(("on_miss", "config"), [("nearest", [256, 8]), ("first", [64, 2])])
def test_a_miss_takes_what_was_asked_for(stub, tables, on_miss, config):
    told = stub.run("adopted.py", tables(scale=SCALE), on_miss).printed
    assert told["served"][0] == [0, 256, 8, True]
    assert told["missed"] == [[0, *config, True], [0, *config, False]]
    assert told["own subclass"] == [[0, 64, 2, True], [0, 64, 2, False]]


def test_a_winner_that_does_not_launch_is_one_line_and_triton_tunes(stub, tables):
    report = stub.run("adopted.py", tables(summed=SUMMED), "autotune")
    assert report.printed["does not launch"] == [[2, 64, 2, True], [0, 64, 2, False]]
    assert report.stderr.count("library-summed is left to Triton: BLOCK: 256, num_warps: 8") == 1


@pytest.mark.parametrize("on_miss", ["nearest", "first"])
def test_a_winner_that_does_not_launch_is_replaced_where_nothing_may_be_measured(stub, tables, on_miss):
    report = stub.run("adopted.py", tables(summed=SUMMED), on_miss)
    assert report.printed["does not launch"] == [[0, 64, 2, True], [0, 64, 2, False]]
    assert report.stderr.count("library-summed cannot be launched by BLOCK: 256, num_warps: 8") == 1


@pytest.mark.parametrize(
    ("source", "config", "said"),
    [
        (None, {"BLOCK": 512, "num_stages": 3, "num_warps": 8}, "it is none of the configs that the decorator lists"),
        (None, {"BLOCK": "wide", "num_stages": 3, "num_warps": 8}, "it is none of the configs"),
        ("0" * 16, SCALE[1], "has tuned configs of another source"),
    ],
)
def test_rows_that_do_not_serve_are_one_line_and_triton_tunes(stub, tables, source, config, said):
    report = stub.run("adopted.py", tables(source=source, scale=(SCALE[0], config)), "autotune")
    assert report.printed["served"][0][0] == 3
    assert report.printed["served"][1][3] is False
    assert len([line for line in report.stderr.splitlines() if "library-scale " in line and said in line]) == 1
    assert "Traceback" not in report.stderr


@pytest.mark.parametrize("compiler", [True, False], ids=["compiler", "none"])
def test_a_strict_process_launches_what_ships_and_names_what_to_export(tables, make_stub, bare, compiler):
    folder = Path(tables(scale=SCALE))
    (table,) = folder.glob("*.json")
    assert make_stub().run("ship_library.py", str(table)).printed == {"kernels": 1, "failed": []}
    stub, environment = (make_stub(), {}) if compiler else bare
    report = stub.run("strict_library.py", str(folder), **environment)
    assert report.printed["compiled"] == 0
    assert report.printed["launchers"] == ["CudaLauncher" if compiler else "DriverLauncher"]
    assert report.printed["served"] == [256, 256, 256], "another N is served by the binary of the nearest key"
    for said in report.printed["missing"]:
        assert "nothing is compiled (strict)" in said
        assert said.count("tuner export DIR --with-kernels --kernel library:scale") == 1
    assert len(report.launches) == 3


def test_under_torch_compile_the_graph_holds_the_winner_alone(stub, tables):
    folder = Path(tables(scale=SCALE))
    key = {**SCALE[0], "kernel.source": decorated.scale.source_hash[:16]}
    row = Row(Problem.keyed("scale", key, dtype="float32"), Config("scale", **SCALE[1]), 1, MADE, 10.0, 1.5, None, 1)
    Table("scale", KNOWN["sm_90"], "2026-01-31T12:00:00Z", (row,)).write(folder)
    ran = stub.run("traced.py", str(folder))
    told = ran.printed
    assert told["tuned"] == [[256], [256]]
    assert told["adopted"] == [[256], [256], [64, 128, 256]]
    assert told["both ways"] == [[[256], [256]]] * 4, "forward and backward"
    assert told["first"] == [64]
    assert told["looked at"] == [[256], [256]], "a function that prunes may look at tensors"
    assert told["failed"] == [[64, 128, 256]] * 2, "TorchInductor measures what cannot be chosen"
    assert ran.stderr.count("prune_configs_by of library-scale failed: ") == 1
    assert told["as it was"] == [False, [64, 128, 256]]
    assert told["again"] == [256], "adopted when torch's module was there, and nobody asked"
    assert told["plain"] == told["undone"] == [64, 128, 256]


def said(stderr):
    """The lines about binaries; Triton may warn of matters of its own."""
    return [line for line in stderr.splitlines() if "kernels" in line or "binaries" in line]


@pytest.fixture(scope="module")
def captured(make_stub, tmp_path_factory):
    """A folder with what a process compiled of the library under a capture."""
    folder = tmp_path_factory.mktemp("captured")
    made = make_stub().run("launch_library.py", "capture", str(folder))
    assert made.printed == {"compiled": 5}
    return folder


@pytest.fixture(scope="module")
def exported(captured, tmp_path_factory):
    """The folder that `tuner export` wrote of it, without any table and without a database."""
    folder = tmp_path_factory.mktemp("exported")
    assert f"library--{KNOWN['sm_90'].slug}.kernels: 3 kernels" in export(captured, folder)
    return folder


def export(captured, folder):
    """Export what was captured; returns what is said of it."""
    command = [sys.executable, "-m", "tuner", "export", str(folder), "--with-kernels", "--captured", str(captured)]
    environment = {**os.environ, "TUNER_DB": str(folder / "none.db"), "TUNER_ADOPT": "library", "TUNER_STRICT": "1"}
    done = subprocess.run(command, cwd=PROGRAMS, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, said(done.stderr)) == (0, []), done.stderr
    return done.stdout


def built(stub):
    """What a C compiler made of Triton, in the cache of a stub."""
    return [path.name for path in stub.work.rglob("*.so")]


@pytest.mark.parametrize("compiler", [True, False], ids=["compiler", "none"])
@pytest.mark.parametrize("strict", ["0", "1"])
def test_what_a_captured_program_compiled_is_launched_uncompiled_in_a_fresh_process(
    exported, make_stub, bare, strict, compiler
):
    stub, environment = (make_stub(), {}) if compiler else bare
    report = stub.run("launch_library.py", "serve", str(exported), TUNER_STRICT=strict, **environment)
    told = report.printed
    assert told["backend"] == "cuda"
    assert (told["module"] == "CudaUtils", bool(built(stub))) == (compiler, compiler)
    assert (told["compiled"], told["from_cache"]) == (0, 0)
    assert report.loads[:3] == ("double", "double", "negate")
    assert [launch.integer(2) for launch in report.launches[:4]] == [1000, 1024, 1000, 1000]
    assert {name.rpartition(".")[0] for name in told["for known keys"]} == (set() if compiler else {"tuner.launch"})
    assert told["stays"]
    assert told["as it was"]
    if strict == "1":
        assert told["missing"].startswith("the nearest binary of double that ships is for another x; nothing is")
        assert told["missing"].endswith(
            "(strict); to ship one: tuner capture --adopt library --out calls -- COMMAND, then "
            "tuner export DIR --with-kernels --captured calls"
        )
    else:
        assert told["missing"] == ""


@pytest.mark.parametrize(
    ("under", "first", "variables"),
    [
        (("exec", "--adopt", "library"), (), {}),
        ((), ("tuner.tuned.decorator",), {"TUNER_ADOPT": "library"}),  # which is half imported when Triton is
    ],
    ids=["exec", "import"],
)
def test_without_compiler_a_library_may_ask_for_the_driver_as_it_is_imported(exported, bare, under, first, variables):
    stub, environment = bare
    environment |= {"TUNER_TABLES": str(exported), **variables}
    told = stub.run("unaware.py", *first, alone=True, under=under, **environment).printed
    assert told == {"backend": "cuda", "shared_bytes": 232_448, "shipped": 0, "compiled": 1, "adopted": True}
    assert built(stub) == []


def test_binaries_that_ship_with_the_tables_of_such_kernels_serve_too(exported, make_stub, tmp_path):
    slug = KNOWN["sm_90"].slug
    for op in ("library-double", "library-negate"):
        shutil.copytree(exported / f"library--{slug}.kernels", tmp_path / f"{op}--{slug}.kernels")
    assert make_stub().run("launch_library.py", "serve", str(tmp_path), TUNER_STRICT="1").printed["compiled"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("library", "kernels"),
    [
        ("liger_kernel", {"_rms_norm_forward_kernel", "_rms_norm_backward_kernel", "_triton_rope"}),
        ("fla", {"fused_recurrent_gated_delta_rule_fwd_kernel"}),
    ],
)
def test_kernels_of_a_library_are_captured_and_launched_by_processes_without_compiler(bare, tmp_path, library, kernels):
    pytest.importorskip(library, reason=f"{library} is not installed")
    stub, environment = bare
    captured = stub.run("libraries.py", "capture", library, str(tmp_path / "calls"), **environment)
    assert captured.printed == {"compiled": len(kernels)}
    assert f"{library}--" in export(tmp_path / "calls", tmp_path / "out")
    environment |= {"TUNER_STRICT": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    report = stub.run("libraries.py", "serve", library, str(tmp_path / "out"), **environment)
    assert report.printed == {"compiled": 0}
    assert set(captured.loads) == set(report.loads) == kernels


def test_a_library_without_binaries_is_compiled_as_ever(make_stub, tables):
    report = make_stub().run("launch_library.py", "serve", tables(scale=SCALE))
    assert (report.printed["compiled"], said(report.stderr)) == (3, [])


def cut_index(index):
    index.write_text(index.read_text()[:-100])


def change_version(index):
    index.write_text(index.read_text().replace('"version":2', '"version":3'))


def change_triton(index):
    index.write_text(index.read_text().replace('"triton":"3', '"triton":"2'))


def change_source(index):
    document = json.loads(index.read_text())
    for number, entry in enumerate(document["kernels"]):
        entry["source"] = entry["key"] = f"{number:064}"
    index.write_text(json.dumps(document))


def change_binaries(index):
    for path in index.parent.glob("*.cubin"):
        path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (cut_index, ["is not used: "]),
        (change_version, ["is not used: format 'triton-tuner kernels' 3"]),
        (change_triton, ["to ship them for this Triton: tuner capture again, then tuner export DIR --with-kernels"]),
        (change_source, ["library:double has binaries of another source", "library:negate has binaries of another"]),
        (change_binaries, [".cubin was changed"] * 3),
    ],
)
def test_binaries_that_cannot_be_used_are_said_once_and_triton_compiles(exported, make_stub, tmp_path, change, lines):
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    (index,) = tmp_path.glob("*.kernels/index.json")
    change(index)
    report = make_stub().run("launch_library.py", "serve", str(tmp_path))
    assert report.printed["compiled"] == 3
    for wanted, line in zip(lines, said(report.stderr), strict=True):
        assert wanted in line
