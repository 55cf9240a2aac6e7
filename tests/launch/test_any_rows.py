"""A new M of a range whose binaries ship is launched as the long way would: ready, or by an earlier M's plan."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.hardware.device import KNOWN, triton_version
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem

TMA = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 3, "launch_pdl": False}
IN_TURNS = ("ping_pong", "any_height_ping_pong")
BY_KERNEL = {
    "pointer": Config("pointer", **{**TMA, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 32}, GROUP_SIZE_M=1),
    "tma": Config("tma", **TMA, GROUP_SIZE_M=4),
    **dict.fromkeys(("swap_ab", "gemv", "cluster_k", "warp_specialized", "any_width", "any_height", *IN_TURNS)),
}
"""Configs, and kernels whose default is taken."""
MS = {
    "swap_ab": (2, 64),
    "gemv": (2, 4),
    "cluster_k": (17, 64),
    "any_width": (129, 256),
    **dict.fromkeys(IN_TURNS, (257, 512)),
}
"""The ranges of kernels for few rows, and for many; the others' is 65 to 256."""
COLUMNS = {"any_height": 6144}
"""Of kernels that serve no 256; 6,144 are tiles for clusters."""


@pytest.fixture(scope="module")
def ship(make_stub, make_rows, make_family, tmp_path_factory):
    """Ships a family's table of one range, by one kernel, and copies whose index says less.

    One says nothing of what the range launches, as version 1 of the format did; the other nothing of the range. What
    is asked for again is compiled once and given as copies, which a test may spoil.
    """
    known = {}

    def compiled(*problems: Problem, config: Config, first: int) -> Path:
        folder = tmp_path_factory.mktemp("ranges")
        families = tuple(make_family(each.m, first=first, problem=each) for each in problems)
        path = replace(make_rows(dict.fromkeys(problems, config)), families=families).write(folder)
        assert make_stub().run("ship.py", str(path)).printed["failed"] == [[]]
        return path

    def ship(*problems: Problem, config: Config, first: int = 65) -> tuple[Path, Path, Path]:
        if (key := (problems, config, first)) not in known:
            known[key] = compiled(*problems, config=config, first=first)
        path = known[key]
        copies = [tmp_path_factory.mktemp("tables") / "tables" for _ in range(3)]
        for copy, edited in zip(copies, (lambda ranges: ranges, without_launches, lambda _: {}), strict=True):
            shutil.copytree(path.parent, copy)
            edit_ranges(copy, edited)
        return tuple(copy / path.name for copy in copies)

    return ship


def edit_ranges(folder: Path, edited) -> None:
    (index,) = folder.glob("*.kernels/index.json")
    document = json.loads(index.read_text())
    index.write_text(json.dumps({**document, "ranges": edited(document["ranges"])}))


def without_launches(ranges):
    return {key: [each[:3] for each in every] for key, every in ranges.items()}


def without_addresses(launch):
    """A launch but for the addresses that it was given; the stub's descriptors say all else that they were made of."""
    numbers = [param[8:] if len(param) == 128 else b"" if launch_address(param) else param for param in launch.params]
    return launch.name, launch.grid, launch.block, launch.shared_bytes, launch.attributes, numbers


def assert_each_call_launched_its_own(report):
    memory = [
        {at for i, param in enumerate(launch.params) if (at := launch.address(i)) > 2**32 and len(param) in (8, 128)}
        for launch in report.launches
    ]
    for addresses, told in zip(memory, report.printed["calls"], strict=True):
        assert addresses == {*told["given"], told["out"]}


def launch_address(param: bytes) -> bool:
    return len(param) == 8 and int.from_bytes(param, "little") > 2**32


@pytest.mark.parametrize(
    "kernel", [each if each == "warp_specialized" else pytest.param(each, marks=pytest.mark.long) for each in BY_KERNEL]
)
def test_every_m_is_launched_as_the_long_way_does_and_takes_it_once(kernel, ship, make_stub):
    first, last = MS.get(kernel, (65, 256))
    problem = Problem(last, COLUMNS.get(kernel, 256), 512, layout="nt")
    config = BY_KERNEL[kernel] or registry.find("matmul", kernel).default_config(problem, KNOWN["sm_90"])
    paths = ship(problem, config=config, first=first)
    middle = (first + last) // 2
    ms = [middle, *range(first, last, 1 if last < 16 else 7), last, middle, first, last, last, middle]
    arguments = (json.dumps(ms), "nt", "512", str(problem.n))
    ready, short, long = (make_stub().run("served.py", "families", str(each), *arguments) for each in paths)
    for report in (ready, short):
        assert [*map(without_addresses, report.launches)] == [*map(without_addresses, long.launches)]
        assert_each_call_launched_its_own(report)
        assert report.printed["compiled"] == long.printed["compiled"] == 0
    assert "no tuned config" not in long.stderr
    assert sum(told["looked"] for told in long.printed["calls"]) == len(set(ms))
    # All of the family's ranges are prepared at its first call.
    assert [told["looked"] for told in short.printed["calls"]] == [1] + [0] * (len(ms) - 1)
    assert not any(told["looked"] for told in ready.printed["calls"])


tiles_of_any_height = pytest.mark.skipif(
    not triton_version().startswith("3.7."), reason="tiles of any height run under Triton 3.7 alone"
)


@pytest.mark.parametrize(
    ("kernel", "first", "last"),
    [
        ("gated_pointer", 65, 256),
        pytest.param("gated_warp_specialized", 65, 256, marks=pytest.mark.long),
        pytest.param("gated_any_height", 129, 256, marks=[pytest.mark.long, tiles_of_any_height]),
        pytest.param("gated_any_height", 257, 512, marks=[pytest.mark.long, tiles_of_any_height]),
        pytest.param("gated_gemv", 1, 2, marks=pytest.mark.long),
    ],
)
def test_a_gated_layer_with_two_weights_is_launched_by_what_ships_and_by_earlier_plans(
    kernel, first, last, ship, make_stub
):
    problem = Problem(last, 256, 512, layout="nt", epilogue="silu", op="gated_linear")
    config = registry.find("gated_linear", kernel).default_config(problem, KNOWN["sm_90"])
    paths = ship(problem, config=config, first=first)
    ms = [last - 1, *range(first, last + 1, 1 if last < 16 else 7), last, first, last - 1]
    ready, short, long = (make_stub().run("served.py", "gated", str(each), json.dumps(ms)) for each in paths)
    for report in (ready, short):
        assert [*map(without_addresses, report.launches)] == [*map(without_addresses, long.launches)]
        assert_each_call_launched_its_own(report)
        assert report.printed["compiled"] == long.printed["compiled"] == 0
    assert "no tuned config" not in long.stderr
    assert sum(told["looked"] for told in long.printed["calls"]) == len(set(ms))
    assert [told["looked"] for told in short.printed["calls"]] == [1] + [0] * (len(ms) - 1)
    assert not any(told["looked"] for told in ready.printed["calls"])


NORM = Problem(256, 512, 1, op="rms_norm", extras={"eps": 1e-6})


def test_a_norm_with_an_offset_is_never_served_by_what_ships_for_its_family(ship, make_stub):
    config = Config("rms_norm_whole", BLOCK_SIZE_M=1, num_warps=4, launch_pdl=True)
    paths = ship(NORM, config=config)
    calls = [[100, 0.0], [100, 1.0], [100, 0.0], [100, 1.0], [70, 1.0], [70, 0.0], [100, 0.5], [70, 0.5], [100, 1.0]]
    ready, short, long = (make_stub().run("served.py", "norms", str(each), json.dumps(calls)) for each in paths)
    for report, plain in ((ready, []), (short, [0.0])):
        told = report.printed["calls"]
        assert [each["offsets"] for each in told] == [plain, [1.0], [], [], [], [], [0.5], [], []]
        assert [each["made"] for each in told] == [0, 1, 0, 0, 0, 0, 1, 0, 0]
        assert_each_call_launched_its_own(report)
    assert [each["offsets"] for each in long.printed["calls"]] == [[0.0], [1.0], [], [], [1.0], [0.0], [0.5], [0.5], []]


def test_a_norm_with_an_offset_comes_first_and_one_without_is_served_by_what_ships(ship, make_stub):
    path, *_ = ship(NORM, config=Config("rms_norm_whole", BLOCK_SIZE_M=1, num_warps=4, launch_pdl=True))
    calls = json.dumps([[100, 1], [70, 0], [100, 0], [70, -0.0], [70, 1.0]])
    told = make_stub().run("served.py", "norms", str(path), calls).printed["calls"]
    assert [each["offsets"] for each in told] == [[1.0], [], [], [], []]
    assert [each["made"] for each in told] == [1, 0, 0, 0, 0]


def test_what_ships_ready_is_launched_where_there_is_no_triton(ship, make_stub):
    plain, with_bias = (Problem(128, 256, 512, layout="nt", epilogue=epilogue) for epilogue in ("none", "bias"))
    path, *_ = ship(plain, with_bias, config=BY_KERNEL["tma"])
    report = make_stub().run("without_triton.py", str(path), "[128, 70, 65, 70]", alone=True)
    assert "no tuned config" not in report.stderr
    assert {launch.stream for launch in report.launches} == {report.printed["stream"]}
    assert report.printed["asked"] == [], "no kernel's contract is imported"
    assert_each_call_launched_its_own(report)


@pytest.mark.parametrize(
    "edited",
    [
        {"sources": "of other kernels"},
        *(pytest.param(each, marks=pytest.mark.long) for each in ({"sources": ""}, {"target": ["cuda", 100, 32]})),
    ],
    ids=str,
)
def test_what_other_kernels_or_another_gpu_launch_is_not_used(edited, ship, make_stub):
    path, *_ = ship(Problem(128, 256, 256), config=BY_KERNEL["tma"])
    (index,) = path.parent.glob("*.kernels/index.json")
    index.write_text(json.dumps({**json.loads(index.read_text()), **edited}))
    report = make_stub().run("served.py", "families", str(path), "[100]")
    assert [told["looked"] for told in report.printed["calls"]] == [1]


def damaged(launches, **changed):
    return {**launches, "launches": [{**each, **changed} for each in launches["launches"]]}


@pytest.mark.parametrize(
    "edited",
    [
        lambda launches: damaged(launches, arguments=["no number"]),
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (
                lambda launches: damaged(launches, arguments=[["descriptor", 0, 0, {"shape": [1]}]]),
                lambda launches: damaged(launches, arguments=[]),
                lambda launches: damaged(launches, kernel="none"),
                lambda launches: damaged(launches, grid=["x"]),
                lambda launches: {**launches, "launches": launches["launches"] * 2},
                lambda launches: {**launches, "operands": launches["operands"][:2]},
                lambda launches: {**launches, "operands": [[[1, 256], "float16"]] * 3},
                lambda _: {},
                lambda _: [1],
            )
        ),
    ],
)
def test_launches_that_do_not_fit_are_not_used(edited, ship, make_stub):
    path, *_ = ship(Problem(128, 256, 256), config=BY_KERNEL["tma"])
    edit_ranges(path.parent, lambda ranges: {k: [[*e[:3], edited(e[3])] for e in every] for k, every in ranges.items()})
    report = make_stub().run("served.py", "families", str(path), "[100]")
    assert [told["looked"] for told in report.printed["calls"]] == [1]
    assert_each_call_launched_its_own(report)


def test_a_stale_row_is_not_used_though_its_launches_ship(make_stub, make_rows, make_family, tmp_path):
    problem = Problem(128, 256, 256)
    table = replace(make_rows({problem: BY_KERNEL["tma"]}), families=(make_family(128, first=65, problem=problem),))
    path = table.write(tmp_path)
    make_stub().run("ship.py", str(path))
    newer = tuple(replace(row, kernel_version=row.kernel_version + 1) for row in table.rows)
    assert replace(table, rows=newer).write(tmp_path) == path
    report = make_stub().run("served.py", "families", str(path), "[100, 128]")
    assert [told["looked"] for told in report.printed["calls"]] == [1, 1]
    assert "stale" in report.stderr


def test_a_binary_that_was_changed_is_not_launched(ship, make_stub):
    path, *_ = ship(Problem(128, 256, 256), config=BY_KERNEL["tma"])
    for cubin in path.parent.glob("*.kernels/*.cubin"):
        cubin.write_bytes(cubin.read_bytes()[:-1])
    report = make_stub().run("served.py", "families", str(path), "[100]")
    assert [told["looked"] for told in report.printed["calls"]] == [1]
    assert report.printed["compiled"] == 1
    assert report.stderr.count("was changed") == 1


def test_what_the_device_refuses_takes_the_long_way(ship, make_stub):
    path, *_ = ship(Problem(128, 256, 256), config=BY_KERNEL["tma"])
    report = make_stub().run("served.py", "families", str(path), "[100, 90]", CUDA_STUB_REFUSED="1")
    assert report.printed["calls"][0]["looked"] == 1
    assert_each_call_launched_its_own(report)


def test_who_listens_hears_of_what_ships_ready(ship, make_stub):
    low, high = Problem(64, 64, 256), Problem(128, 128, 256)
    path, *_ = ship(low, high, config=BY_KERNEL["tma"], first=1)
    report = make_stub().run("served.py", "heard", str(path), "[64, 128]")
    assert [(told["looked"], told["heard"] > 0) for told in report.printed["calls"]] == [(1, True), (1, True)]


@pytest.fixture(scope="module")
def kinds(ship, make_stub):
    problem, config = Problem(128, 256, 256), BY_KERNEL["tma"]
    with_bias = Problem(128, 256, 256, epilogue="bias")
    paths = ship(problem, with_bias, config=config)
    return [make_stub().run("served.py", "any_rows", str(each), "[96, 80, 128, 66]") for each in paths]


def looked(report, kind: str) -> list[int]:
    return [told["looked"] for told in report.printed["calls"] if told["kind"] == kind]


def test_what_other_rows_do_not_change_is_served_by_an_earlier_plan(kinds):
    ready, short, long = kinds
    for kind in ("matrix", "rows of one", "one of rows", "bias", "afresh"):
        # What has three dimensions shares its kind with the matrix only where its plan was made.
        assert sum(looked(short, kind)) <= 1, kind
        assert sum(looked(long, kind)) == 4, kind
    assert looked(short, "matrix") == looked(short, "bias") == looked(short, "afresh") == [1, 0, 0, 0]
    for kind in ("matrix", "rows of one", "one of rows", "bias", "afresh", "out"):
        assert looked(ready, kind) == [0, 0, 0, 0], kind


def test_an_address_alone_does_not_say_how_many_rows_there_are(kinds):
    """A buffer of activations lies where it lay, with other rows each time; the plans of matrices serve it."""
    _, short, long = kinds
    assert looked(short, "one memory") == looked(long, "one memory") == [0, 0, 0, 0]


def test_what_other_rows_change_takes_the_long_way(kinds):
    ready, short, _ = kinds
    for kind in ("out", "transposed", "spaced", "unaligned", "float32"):
        assert looked(short, kind) == [1, 1, 1, 1], kind
    for kind in ("transposed", "spaced", "unaligned", "float32"):
        assert looked(ready, kind) == [1, 1, 1, 1], kind


def test_results_and_launches_are_those_of_the_long_way(kinds):
    *both, long = kinds
    for report in both:
        for one, other in zip(report.printed["calls"], long.printed["calls"], strict=True):
            assert (one["shape"], one["strides"]) == (other["shape"], other["strides"])
        assert [*map(without_addresses, report.launches)] == [*map(without_addresses, long.launches)]
        assert_each_call_launched_its_own(report)


def test_an_m_that_another_row_serves_is_launched_by_its_own_config(make_stub, make_rows, make_family, tmp_path):
    """A row of the M itself comes before the range that holds it."""
    range_of, exact = Problem(128, 256, 256), Problem(96, 256, 256)
    rows = {range_of: BY_KERNEL["tma"], exact: BY_KERNEL["pointer"]}
    path = replace(make_rows(rows), families=(make_family(128, first=65, problem=range_of),)).write(tmp_path)
    make_stub().run("ship.py", str(path))
    report = make_stub().run("served.py", "families", str(path), "[100, 96, 90]")
    assert [told["looked"] for told in report.printed["calls"]] == [0, 0, 0]
    assert [any(len(param) == 128 for param in launch.params) for launch in report.launches] == [True, False, True]


@pytest.fixture(scope="module")
def two_ranges(make_stub, make_rows, make_family, tmp_path_factory):
    """A table of two ranges by two kernels, with their binaries."""
    low, high = Problem(64, 256, 256), Problem(128, 256, 256)
    rows = {low: BY_KERNEL["pointer"], high: BY_KERNEL["tma"]}
    table = replace(make_rows(rows), families=(make_family(64, 128, problem=high),))
    path = table.write(tmp_path_factory.mktemp("two"))
    make_stub().run("ship.py", str(path))
    edit_ranges(path.parent, without_launches)
    return path


def test_the_first_call_of_a_later_range_takes_no_long_way(two_ranges, make_stub):
    report = make_stub().run("served.py", "families", str(two_ranges), "[50, 100, 90, 60]")
    assert [told["looked"] for told in report.printed["calls"]] == [1, 0, 0, 0]
    assert [any(len(param) == 128 for param in launch.params) for launch in report.launches] == [
        False,
        True,
        True,
        False,
    ]
    assert_each_call_launched_its_own(report)


def test_what_fails_when_it_is_tried_takes_the_long_way(two_ranges, make_stub):
    report = make_stub().run("served.py", "refused", str(two_ranges), "[50, 100, 90, 60]")
    assert [told["looked"] for told in report.printed["calls"]] == [1, 1, 0, 0]
    assert len(report.launches) == 4


@pytest.mark.parametrize(
    "places", [[[[0, 7]]], *(pytest.param(each, marks=pytest.mark.long) for each in ([[[0]]], [[[99]]], [], [[], []]))]
)
def test_places_that_do_not_hold_m_are_not_used(places, ship, make_stub):
    path, *_ = ship(Problem(128, 256, 256), config=BY_KERNEL["tma"])
    edit_ranges(path.parent, lambda ranges: {key: [[65, 128, places]] for key in ranges})
    report = make_stub().run("served.py", "families", str(path), "[100, 90]")
    assert [told["looked"] for told in report.printed["calls"]] == [1, 1]


@pytest.mark.parametrize("kind", ["matmul", pytest.param("gated", marks=pytest.mark.long)])
def test_the_strides_of_a_single_row_are_no_other_rows(kind, ship, make_stub):
    """Torch calls the last token of one sequence contiguous; those of several, of the same stride, it does not."""
    if kind == "gated":
        problem = Problem(64, 256, 512, layout="nt", epilogue="silu", op="gated_linear")
        config = registry.find("gated_linear", "gated_pointer").default_config(problem, KNOWN["sm_90"])
    else:
        problem, config = Problem(64, 256, 512, layout="nt"), BY_KERNEL["pointer"]
    batches = json.dumps([[2, True], [1, False], [4, False], [4, True], [3, False]])
    paths = ship(problem, config=config, first=1)
    ready, short, long = (make_stub().run("served.py", "last_tokens", str(each), kind, batches) for each in paths)
    for report in (ready, short):
        assert [*map(without_addresses, report.launches)] == [*map(without_addresses, long.launches)]
