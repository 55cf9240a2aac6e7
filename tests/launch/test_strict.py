"""A strict process compiles nothing: what ships is launched, torch computes the rest, and both are counted."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup import misses
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table
from tuner.problem import Problem, generic_key

sys.path.append(str(Path(__file__).parent / "programs"))
import decorated  # noqa: F401  its rows name its source

H200 = KNOWN["sm_90"]
MADE = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0.1.0")
TMA = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 3, "launch_pdl": False}


def keyed(op: str, **key: object) -> Problem:
    source = registry.find(op, op).source_hash()[:16]
    return Problem.keyed(op, {**key, generic_key.SOURCE: source}, dtype="float32")


def block(op: str, size: int, warps: int) -> Config:
    return Config(op, BLOCK=size, num_stages=3, num_warps=warps)


WINNERS = {
    Problem(256, 256, 256): Config("pointer", **TMA, GROUP_SIZE_M=1),
    Problem(127, 129, 131): Config("padded", **TMA, GROUP_SIZE_M=1, INNER="tma", PAD="ab"),
    keyed("scale", N=1000, **{"stride.one": True}): block("scale", 128, 4),
    keyed("scale", N=500, **{"stride.one": True}): block("scale", 256, 8),
    keyed("shift", mode=0): block("shift", 64, 2),
    keyed("shift", mode=1): block("shift", 128, 4),
}


@pytest.fixture(scope="module")
def shipped(make_stub, tmp_path_factory):
    """A folder of tables and their kernels."""
    folder = tmp_path_factory.mktemp("shipped")
    paths = []
    for op in dict.fromkeys(problem.op for problem in WINNERS):
        version = {config: registry.find(op, config.kernel).version for p, config in WINNERS.items() if p.op == op}
        rows = [Row(p, c, version[c], MADE, 12.5, 1.25, None, 1) for p, c in WINNERS.items() if p.op == op]
        paths.append(Table(op, H200, "2026-01-31T12:00:00Z", tuple(rows)).write(folder))
    told = make_stub().run("ship.py", *map(str, paths), alone=True).printed
    assert not any(told["failed"])
    return folder


def leave_out(folder: Path, op: str, unwanted) -> None:
    """Take kernels out of a folder's index."""
    (index,) = folder.glob(f"{op}--*.kernels/index.json")
    document = json.loads(index.read_text())
    kept = [kernel for kernel in document["kernels"] if not unwanted(kernel)]
    assert 0 < len(kept) < len(document["kernels"])
    index.write_text(json.dumps(document | {"kernels": kept}))


@pytest.fixture
def serve(make_stub, shipped, tmp_path):
    """Runs a program on a copy of the tables, in a process without compiler, with an empty cache."""
    folder = Path(shutil.copytree(shipped, tmp_path / "tables"))
    stub = make_stub()
    stub.work = tmp_path / "work"
    stub.work.mkdir()

    def run(way: str, **env: str):
        environment = {"TUNER_STRICT": "1", "TUNER_MISSES": str(tmp_path / "misses.json"), **env}
        return stub.run("strict.py", way, str(folder), PATH="/nowhere", CC="/nowhere/cc", **environment)

    run.folder, run.work, run.misses = folder, stub.work, tmp_path / "misses.json"
    return run


def counted(path: Path) -> dict[tuple[str, str], int]:
    return {(str(miss.problem), miss.rule): calls for miss, calls in misses.load(path).calls.items()}


def test_what_ships_is_launched_and_torch_computes_the_rest_and_nothing_is_compiled(serve):
    report = serve("ops")
    assert [len(call["launches"]) for call in report.printed["calls"]] == [1, 1, 2, 0, 0, 0]
    assert [call["right"] for call in report.printed["calls"][3:]] == [True, True, True]
    assert (report.printed["compiled"], report.printed["from_cache"]) == (0, 0)
    assert [path for path in (serve.work / "triton").rglob("*") if path.is_file()] == []
    assert report.stderr.count("no shipped binary launches") == 1
    assert "torch's library serves it" in report.stderr


def test_where_one_launch_of_a_config_does_not_ship_none_is_made_and_the_call_counts_as_a_miss(serve):
    leave_out(serve.folder, "matmul", lambda kernel: "tensordesc" in str(kernel["signature"]))  # launched after copies
    report = serve("ops")
    assert [len(call["launches"]) for call in report.printed["calls"]] == [1, 1, 0, 0, 0, 0]
    found = counted(serve.misses)
    assert found["matmul 127x129x131 float16 nn unaligned", "no_binary"] == 1
    assert sum(found.values()) == 1 + 3
    assert "to ship one: tuner export DIR --with-kernels" in report.stderr


def test_every_op_goes_to_torch_and_what_torch_lacks_is_one_error_that_says_what_to_type(serve):
    report = serve("every_op")
    calls = report.printed["calls"]
    assert not any(call["launches"] for call in calls)
    assert [call["right"] for call in calls[:-2]] == [True] * (len(calls) - 2)
    for call in calls[-2:]:
        assert call["error"].startswith("no shipped binary launches")
        assert "then tuner export DIR --with-kernels" in call["error"]


def test_a_kernel_is_launched_by_the_nearest_binary_whose_assumptions_the_call_keeps(serve):
    leave_out(serve.folder, "scale", lambda kernel: ["BLOCK", "constexpr", "256", []] in kernel["arguments"])
    report = serve("decorated")
    own, sixteen, one, stride, address, neighbour, again, *shifts = report.printed["calls"]
    assert (report.printed["compiled"], report.printed["from_cache"]) == (0, 0)
    assert [len(call["launches"]) for call in (own, sixteen, one, neighbour, again)] == [1] * 5
    assert {json.loads(call["launches"][0])["block"][0] for call in (own, neighbour, again)} == {128}
    for call, name in ((stride, "stride"), (address, "x")):
        assert call["launches"] == []
        assert f"for another {name}; " in call["error"]
        assert "tuner export DIR --with-kernels --kernel " in call["error"]
    assert [json.loads(call["launches"][0])["block"][0] for call in shifts] == [64, 128, 128, 128, 128]
    found = counted(serve.misses)
    assert found["scale N=500 float32 one(stride)", "no_binary"] == 2
    assert found["shift mode=0 float32", "no_binary"] == 4


def test_a_strict_process_may_compile_again_and_a_nonsense_value_is_one_line(serve):
    calls = serve("switched", TUNER_STRICT="").printed["calls"]
    assert [len(call["launches"]) for call in calls] == [0, 1, 0]
    assert [call["right"] for call in calls] == [True, None, True]
    for call in serve("ops", TUNER_STRICT="yes").printed["calls"]:
        assert call["error"] == "$TUNER_STRICT is 'yes': expected 1, to compile nothing while serving, or 0"


def test_what_a_repeated_call_costs_is_the_same_strict_or_not(serve):
    assert serve("warm").printed["calls"] == serve("warm", TUNER_STRICT="0").printed["calls"]
