"""Kernels that ship beside a table are launched as they are: a process that serves from them compiles nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem

TMA = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 3, "launch_pdl": False}
WINNERS = {
    Problem(256, 256, 256): Config("pointer", **{**TMA, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 32}, GROUP_SIZE_M=1),
    Problem(256, 512, 256): Config("tma", **TMA, GROUP_SIZE_M=1),
    Problem(64, 64, 1024): Config("split_k", **TMA, LOADS="tma", SPLIT_K=4),
    Problem(127, 129, 131): Config("padded", **TMA, GROUP_SIZE_M=1, INNER="tma", PAD="ab"),
}


@pytest.fixture(scope="module")
def shipped(make_stub, tmp_path_factory, make_rows):
    """A table, and the folder of its kernels."""
    folder = tmp_path_factory.mktemp("shipped")
    path = make_rows(WINNERS).write(folder)
    told = make_stub().run("ship.py", str(path), alone=True).printed
    assert told["failed"] == [[]]
    return path, Path(told["paths"][0]), told


@pytest.fixture
def copy(shipped, tmp_path):
    """A copy of the table and its kernels, to be spoilt."""
    path, kernels, _ = shipped
    shutil.copytree(kernels, tmp_path / kernels.name)
    return Path(shutil.copy(path, tmp_path)), tmp_path / kernels.name


def serve(stub, path: Path, problem: Problem):
    return stub.run("served.py", "table", str(path), json.dumps(problem.shape))


@pytest.fixture(scope="module", params=WINNERS, ids=str)
def served(request, make_stub, shipped):
    """A problem, and what serving it from the table and its kernels came to."""
    return request.param, serve(make_stub(), shipped[0], request.param)


def test_a_served_matmul_compiles_nothing(served):
    problem, report = served
    assert (report.printed["compiled"], report.printed["from_cache"]) == (0, 0)
    is_ready = WINNERS[problem].kernel in {"pointer", "tma"}  # the others need memory of their own
    assert [told["looked"] for told in report.printed["calls"]] == [0 if is_ready else 1, 0, 0]
    assert report.launches


def test_a_shipped_kernel_is_launched_as_a_compiled_one_is(served, make_stub, shipped, tmp_path):
    problem, ours = served
    triton = serve(make_stub(), Path(shutil.copy(shipped[0], tmp_path)), problem)
    assert triton.printed["compiled"] > 0
    for one, other in zip(ours.launches, triton.launches, strict=True):
        assert (one.name, one.grid, one.block, one.shared_bytes) == (
            other.name,
            other.grid,
            other.block,
            other.shared_bytes,
        )
        # Numbers are the same; addresses are each process's own.
        assert [p for p in one.params if len(p) == 4] == [p for p in other.params if len(p) == 4]
        assert [len(p) for p in one.params] == [len(p) for p in other.params]


def test_every_m_of_a_range_ships_where_a_kernel_has_another_binary_for_it(make_stub, make_rows, make_family, tmp_path):
    """`gemv` has the power of two that covers M in its binary, and the row that serves a range has one M."""
    problem = Problem(4, 256, 256, layout="nt")
    winner = registry.find("matmul", "gemv").default_config(problem, KNOWN["sm_90"])
    path = replace(make_rows({problem: winner}), families=(make_family(4, problem=problem),)).write(tmp_path)
    assert make_stub().run("ship.py", str(path)).printed["failed"] == [[]]
    report = make_stub().run("served.py", "families", str(path), json.dumps([1, 2, 3, 4]), "nt")
    assert report.printed["compiled"] == 0
    assert {launch.name for launch in report.launches} == {"gemv_kernel"}
    assert len({launch.name for launch in report.launches}) < len(report.loads)


@pytest.fixture(scope="module")
def two_kernels(make_stub, make_rows, make_family, tmp_path_factory):
    """A table of a family with two ranges, each with a kernel of its own."""
    winners = {Problem(m, 256, 256): config for m, config in zip((64, 256), WINNERS.values(), strict=False)}
    family = make_family(64, 256, problem=Problem(256, 256, 256))
    path = replace(make_rows(winners), families=(family,)).write(tmp_path_factory.mktemp("two"))
    make_stub().run("ship.py", str(path))
    return path


def test_a_binary_is_loaded_for_the_first_m_that_needs_it(make_stub, two_kernels):
    """A family has dozens, each read, checked and loaded in part of a millisecond; a process needs few of them."""
    one, both, again = (
        make_stub().run("served.py", "families", str(two_kernels), ms)
        for ms in ("[40]", "[40, 200]", "[40, 200, 41, 99]")
    )
    assert [len(each.loads) for each in (one, both, again)] == [1, 2, 2]
    assert [len(each.launches) for each in (one, both, again)] == [1, 2, 4]
    assert not any(call["looked"] for call in again.printed["calls"])
    assert again.printed["compiled"] == 0


def test_a_binary_is_loaded_while_a_stream_is_captured(make_stub, two_kernels):
    """A graph of a new batch is captured like any other."""
    report = make_stub().run("served.py", "families", str(two_kernels), "[40, 200]", CUDA_STUB_CAPTURED="1")
    assert (len(report.loads), len(report.launches), report.printed["compiled"]) == (2, 2, 0)
    assert not any(call["looked"] for call in report.printed["calls"])


def test_a_binary_of_a_later_range_that_was_changed_is_compiled_instead(make_stub, two_kernels, tmp_path):
    path = Path(shutil.copytree(two_kernels.parent, tmp_path / "tables")) / two_kernels.name
    (kernels,) = path.parent.glob("*.kernels")
    index = json.loads((kernels / "index.json").read_text())
    every = [each for ranges in index["ranges"].values() for each in ranges]
    later = {launch["kernel"] for first, _, _, launches in every if first > 64 for launch in launches["launches"]}
    for entry in index["kernels"]:
        if entry["key"] in later:
            (kernels / f"{entry['files']['cubin']}.cubin").write_bytes(b"changed")
    report = make_stub().run("served.py", "families", str(path), "[40, 200, 201]")
    assert [call["looked"] for call in report.printed["calls"]] == [0, 1, 0]
    assert report.printed["compiled"] == 1
    assert (report.stderr.count("was changed"), len(report.launches)) == (1, 3)


@pytest.fixture(scope="module")
def four_ranges(make_stub, make_rows, make_family, tmp_path_factory):
    """A table of a family with four ranges, with its kernels."""
    winners = dict.fromkeys((Problem(m, 256, 256) for m in (64, 128, 192, 256)), WINNERS[Problem(256, 512, 256)])
    family = make_family(64, 128, 192, 256, problem=Problem(256, 256, 256))
    path = replace(make_rows(winners), families=(family,)).write(tmp_path_factory.mktemp("ranges"))
    make_stub().run("ship.py", str(path))
    return path


def test_a_range_is_made_ready_for_the_first_m_that_is_in_it(make_stub, four_ranges):
    """A family has dozens of ranges: what launches them would be a tenth of its first call."""
    told = make_stub().run("served.py", "families", str(four_ranges), "[40, 200, 201, 100, 41]").printed["calls"]
    assert [call["steps"] for call in told] == [2, 3, 3, 4, 5], "the first call runs its own, and stores a plan of it"
    assert [call["looked"] for call in told] == [0] * 5


def test_no_range_is_kept_where_the_driver_alone_cannot_launch_it(make_stub, four_ranges):
    """It would be tried, and stored again, at each M."""
    report = make_stub().run("served.py", "indirect", str(four_ranges), "[40, 200, 201, 100]")
    assert (report.printed["calls"][-1]["kept"], len(report.launches)) == (0, 4)


def test_the_default_beside_a_winner_is_shipped_for_operands_that_are_not_aligned(make_stub, shipped):
    path, _, _ = shipped
    report = make_stub().run("served.py", "unaligned", str(path))
    assert (report.printed["compiled"], report.printed["from_cache"]) == (0, 0)
    assert len(report.launches) == 2


def test_files_are_named_for_what_they_hold_and_an_export_again_leaves_the_same(make_stub, copy):
    path, kernels = copy
    before = {file.name: file.read_bytes() for file in kernels.iterdir()}
    (kernels / ("0" * 64 + ".cubin")).write_bytes(b"of an older table")
    make_stub().run("ship.py", str(path))
    assert {file.name for file in kernels.iterdir()} == set(before)
    index = json.loads(before["index.json"])
    named = {f"{digest}.{suffix}" for entry in index["kernels"] for suffix, digest in entry["files"].items()}
    assert named == set(before) - {"index.json"}


def edit_index(folder: Path, **changed: object) -> None:
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | changed))


def test_kernels_of_another_triton_are_compiled_instead_and_that_is_said_once(make_stub, copy):
    path, kernels = copy
    edit_index(kernels, triton="3.5.0", ranges={})
    report = serve(make_stub(), path, next(iter(WINNERS)))
    assert report.printed["compiled"] == 1
    assert report.stderr.count("was made by Triton 3.5.0") == 1


def test_what_ships_ready_is_launched_under_any_triton(make_stub, copy):
    path, kernels = copy
    edit_index(kernels, triton="3.5.0")
    report = serve(make_stub(), path, next(iter(WINNERS)))
    assert report.printed["compiled"] == 0
    assert "3.5.0" not in report.stderr


def test_kernels_of_another_architecture_are_not_used(make_stub, copy):
    path, kernels = copy
    edit_index(kernels, target=["cuda", 80, 32])
    assert serve(make_stub(), path, next(iter(WINNERS))).printed["compiled"] == 1


def test_a_binary_that_was_changed_is_compiled_instead(make_stub, copy):
    path, kernels = copy
    for binary in kernels.glob("*.cubin"):
        binary.write_bytes(binary.read_bytes() + b"\0")
    report = serve(make_stub(), path, next(iter(WINNERS)))
    assert report.printed["compiled"] == 1
    assert report.stderr.count("was changed: export again with --with-kernels") == 1


def test_a_kernel_of_other_source_is_compiled_instead(make_stub, copy):
    path, kernels = copy
    index = json.loads((kernels / "index.json").read_text())
    edit_index(kernels, kernels=[{**entry, "source": "other"} for entry in index["kernels"]], ranges={})
    report = serve(make_stub(), path, next(iter(WINNERS)))
    assert report.printed["compiled"] == 1
    assert "another version than was compiled" in report.stderr


@pytest.mark.parametrize("ranges", [[], {"key": 1}, {"key": [[1, 2]]}, {"key": [[1, 2, [[["m"]]]]]}])
def test_ranges_that_cannot_be_read_are_one_warning(make_stub, copy, ranges):
    path, kernels = copy
    edit_index(kernels, ranges=ranges)
    report = serve(make_stub(), path, next(iter(WINNERS)))
    assert report.printed["compiled"] == 1
    assert report.stderr.count("export it again with --with-kernels") == 1


def test_kernels_whose_keys_are_none_are_compiled_instead(make_stub, copy):
    path, kernels = copy
    index = json.loads((kernels / "index.json").read_text())
    edit_index(kernels, kernels=[{**entry, "key": []} for entry in index["kernels"]])
    assert serve(make_stub(), path, next(iter(WINNERS))).printed["compiled"] == 1


@pytest.mark.parametrize("index", ["", "{}", '{"format": "triton-tuner kernels", "version": 3}'])
def test_an_index_that_cannot_be_read_is_one_warning(make_stub, copy, index):
    path, kernels = copy
    (kernels / "index.json").write_text(index)
    report = serve(make_stub(), path, next(iter(WINNERS)))
    assert report.printed["compiled"] == 1
    assert report.stderr.count("export it again with --with-kernels") == 1
