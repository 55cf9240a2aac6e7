"""A kernel under `tuner.tuned` reaches the driver as the plain kernel with that config does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.lookup.table import Provenance, Row, Table
from tuner.problem import Problem


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    made = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0.1.0")
    problem = Problem.keyed("scale", {"N": 1000, "stride.one": True}, dtype="float32")
    row = Row(problem, Config("scale", BLOCK=128, num_stages=3, num_warps=4), 1, made, 10.0, 1.5, None, 1)
    table = Table("scale", KNOWN["sm_90"], "2026-01-31T12:00:00Z", (row,))
    return table.write(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def reports(stub, table):
    """Of a process that finds nothing compiled, and of the next one; forks find Triton hashed."""
    return [stub.run("tuned.py", str(table), alone=True) for _ in range(2)]


@pytest.fixture(scope="module")
def report(reports):
    return reports[0]


def test_grid_block_and_arguments_are_those_of_the_plain_kernel(report):
    tuned, plain = report.launches[:6], report.launches[6:12]
    assert [launch.grid for launch in tuned] == [(8, 1, 1)] * 4 + [(4, 1, 1), (8, 1, 1)]
    assert tuned == plain


def test_a_key_is_looked_up_once(report):
    assert report.printed["looked"] == [
        "scale N=1000 float32 one(stride)",
        "scale N=1000 float32 unaligned(x) one(stride)",
        "scale N=1000 float32 unaligned(stride)",
        "scale N=500 float32 one(stride)",
        "summed float32",
        "patient float32 one(stride)",
        "patient float32 one(stride)",
    ]


def test_the_plain_kernel_finds_every_binary_compiled(report):
    assert report.printed["compiled"] == 3  # a stride of 1 or not, an address of 16 bytes or not


def test_an_untuned_kernel_launches_by_the_first_config_that_the_device_takes(report):
    assert report.printed["warps"] == 1
    assert [launch.block for launch in report.launches[12:13]] == [(32, 1, 1)]
    assert "summed cannot be launched by BLOCK: 256, num_warps: 8" in report.stderr
    assert "out of resource: shared memory" in report.stderr


def test_a_config_is_no_worse_for_a_device_whose_memory_was_full(report):
    assert report.printed["raised"] == "Triton Error [CUDA]: out of memory"
    assert report.printed["patient"] == {"BLOCK": 64}
    assert "patient cannot be launched" not in report.stderr


def test_the_next_process_launches_the_same_without_hashing_triton(reports):
    first, second = reports
    assert (first.printed["hashed"], second.printed["hashed"]) == (True, False)
    assert (second.printed["compiled"], second.loads) == (0, first.loads)
    assert [(each.name, each.grid, each.block) for each in second.launches] == [
        (each.name, each.grid, each.block) for each in first.launches
    ]


def test_a_winner_whose_kernel_ships_is_launched_without_a_compile(make_stub, report, table, tmp_path):
    shipped = Path(shutil.copy(table, tmp_path))
    told = make_stub().run("ship.py", str(shipped), alone=True).printed
    assert (told["kernels"], told["failed"]) == ([1], [[]])
    served = make_stub().run("tuned.py", str(shipped))
    # An unaligned address and another stride are other binaries than the row's problem takes.
    assert (report.printed["compiled"], served.printed["compiled"]) == (3, 2)
    assert [(each.name, each.grid, each.block) for each in served.launches] == [
        (each.name, each.grid, each.block) for each in report.launches
    ]
