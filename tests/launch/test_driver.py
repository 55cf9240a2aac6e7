"""Where no C compiler is, kernels reach the driver all the same, exactly as Triton's own launcher would launch them."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table
from tuner.problem import Problem, generic_key

H200 = KNOWN["sm_90"]
MADE = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0.1.0")
TILE = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 64,
    "num_warps": 4,
    "num_stages": 3,
    "launch_pdl": False,
}
EIGHT = {"a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn", "out_dtype": "bfloat16", "scaling": "scalar"}
FEW = Problem(8, 256, 512, dtype="bfloat16", layout="nt", epilogue="bias+silu")
CLUSTER = Problem(8, 512, 2048, dtype="bfloat16", layout="nt")
SPECIALIZED = Problem(256, 512, 512, dtype="bfloat16", layout="nt")
ANY_WIDTH = Problem(264, 512, 512, dtype="bfloat16", layout="nt")
IN_TURNS = Problem(384, 512, 512, dtype="bfloat16", layout="nt", epilogue="bias")
TALL_IN_TURNS = Problem(384, 512, 512, layout="nt", **{**EIGHT, "scaling": "row"})
ANY_HEIGHT = Problem(129, 6144, 512, dtype="bfloat16", layout="nt", epilogue="bias")  # in clusters
sys.path.append(str(Path(__file__).parent / "programs"))
import decorated  # noqa: E402, F401  its rows name its source

SOURCE = registry.find("scale", "scale").source_hash()[:16]
SCALE = Problem.keyed("scale", {"N": 1000, "stride.one": True, generic_key.SOURCE: SOURCE}, dtype="float32")
WINNERS = {
    Problem(256, 256, 256): Config("pointer", **TILE, GROUP_SIZE_M=1),
    Problem(256, 512, 256): Config("tma", **TILE, GROUP_SIZE_M=1),
    Problem(64, 64, 1024): Config("split_k", **{**TILE, "launch_pdl": True}, LOADS="tma", SPLIT_K=4),
    FEW: Config("swap_ab", **{**TILE, "BLOCK_SIZE_M": 16}, LOADS="tma", SPLIT_K=2),
    CLUSTER: registry.find("matmul", "cluster_k").default_config(CLUSTER, H200),
    SPECIALIZED: registry.find("matmul", "warp_specialized").default_config(SPECIALIZED, H200),
    ANY_WIDTH: registry.find("matmul", "any_width").default_config(ANY_WIDTH, H200),
    ANY_HEIGHT: registry.find("matmul", "any_height").default_config(ANY_HEIGHT, H200),
    **{
        problem: registry.find("matmul", name).default_config(problem, H200)
        for problem, name in {IN_TURNS: "ping_pong", TALL_IN_TURNS: "any_height_ping_pong"}.items()
    },
    SCALE: Config("scale", BLOCK=128, num_stages=3, num_warps=4),
    **{
        problem: registry.default_config(problem, H200)
        for problem in (
            Problem(256, 256, 256, layout="nt", **EIGHT),
            Problem(64, 128, 256, layout="nt", op="bmm", extras={"batch": 4}),
            Problem(2, 131_072, 1, op="softmax"),
            Problem(256, 1, 1, op="vector_add"),
            Problem(256, 1024, 1, op="rms_norm", extras={"eps": 1e-6}),
            Problem(8, 256, 512, dtype="bfloat16", layout="nt", epilogue="silu", op="gated_linear"),
            Problem(256, 256, 512, dtype="bfloat16", layout="nt", epilogue="silu", op="gated_linear"),
        )
    },
}
NO_COMPILER = {"PATH": "/nowhere", "CC": "/nowhere/cc"}
PDL, CLUSTERS = 6, 4


@pytest.fixture(scope="module")
def shipped(make_stub, tmp_path_factory):
    """A folder of tables, one an op, each with its kernels."""
    folder = tmp_path_factory.mktemp("shipped")
    paths = []
    for op in dict.fromkeys(problem.op for problem in WINNERS):
        rows = [row(problem, config) for problem, config in WINNERS.items() if problem.op == op]
        paths.append(Table(op, H200, "2026-01-31T12:00:00Z", tuple(rows)).write(folder))
    told = make_stub().run("ship.py", *map(str, paths), alone=True).printed
    assert not any(told["failed"])
    return folder


def row(problem: Problem, config: Config) -> Row:
    version = 1 if problem is SCALE else registry.find(problem.op, config.kernel).version
    return Row(problem, config, version, MADE, 12.5, 1.25, None, 1)


@pytest.fixture(scope="module")
def bare(make_stub, shipped, tmp_path_factory):
    """What a process without compiler launches of what ships, and the stub with the cache that it left."""
    stub = make_stub()
    stub.work = tmp_path_factory.mktemp("bare")  # its cache is empty
    return stub, stub.run("bare.py", str(shipped), "late", **NO_COMPILER)


@pytest.fixture(scope="module")
def by_triton(make_stub, shipped, tmp_path_factory):
    """What a process launches that has a compiler, Triton's driver and no kernels; it compiles all of them."""
    folder = tmp_path_factory.mktemp("tables")
    for path in shipped.glob("*.json"):
        shutil.copy(path, folder)
    return make_stub().run("bare.py", str(folder), "triton")


def comparable(report):
    """Launches whose addresses are named by the call's tensor that lies there; what a call allocates has no name."""

    def told(param: bytes, call: list[int]) -> object:
        at = int.from_bytes(param[:8], "little")
        if len(param) not in (8, 128) or at < 2**32:
            return param
        return call.index(at) if at in call else None, param[8:]

    return [
        replace(launch, params=tuple(told(param, call) for param in launch.params))
        for launch, call in zip(report.launches, report.printed["calls"], strict=True)
    ]


@pytest.mark.long
def test_a_process_without_compiler_and_cache_serves_every_op_that_ships(bare):
    stub, report = bare
    assert (report.printed["compiled"], report.printed["from_cache"]) == (0, 0)
    assert report.printed["module"] == "NoneType"
    assert [path.name for path in stub.work.rglob("*") if path.suffix in (".so", ".cubin")] == []
    assert report.stderr == ""


@pytest.mark.long
def test_every_launch_is_bit_for_bit_the_one_of_tritons_launcher(bare, by_triton):
    assert by_triton.printed["compiled"] > 0
    ours, theirs = comparable(bare[1]), comparable(by_triton)
    assert len(ours) == len(theirs) >= 2 * len(WINNERS)
    for one, other in zip(ours, theirs, strict=True):
        assert one == other
    assert {PDL, CLUSTERS} <= {attribute[0] for launch in ours for attribute in launch.attributes}
    assert any(len(param) == 128 for launch in bare[1].launches for param in launch.params)


@pytest.fixture(scope="module")
def kinds(make_stub, tmp_path_factory):
    """What kernels that nobody shipped launch: by Triton's module, and where no compiler can build it."""
    stub = make_stub()
    ordinary = stub.run("kinds.py")
    stub.work = tmp_path_factory.mktemp("kinds")
    return ordinary, stub.run("kinds.py", "late", **NO_COMPILER)


def test_without_compiler_what_nobody_shipped_is_compiled_and_launched_with_the_same_arguments(kinds):
    ordinary, ours = ([one for one in report.launches if one.name == "kinds"] for report in kinds)
    assert len(ours) == 4  # an empty grid is no launch
    for one, other in zip(ours, ordinary, strict=True):
        assert one.params[1:] == other.params[1:]
        assert replace(one, params=()) == replace(other, params=())
    assert [launch.address(0) for launch in ours] == [kinds[1].printed["pointer"]] * 4


def test_without_compiler_a_tuple_among_the_arguments_is_one_error_that_says_what_to_do(kinds):
    ordinary, ours = kinds
    assert (ordinary.printed["unreachable"], len(ordinary.launches)) == ("", 5)
    assert ours.printed["unreachable"].startswith("KernelError: paired cannot be launched")
    assert "install a C compiler" in ours.printed["unreachable"]
    assert len(ours.launches) == 4
