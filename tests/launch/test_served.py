"""matmul's second call launches the plan that its first made: the same kernel, its own addresses, nothing looked up."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup import misses
from tuner.problem import Problem

PROBLEM = Problem(256, 256, 256, layout="nn")
TMA = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 3, "launch_pdl": False}
POINTER = Config("pointer", **{**TMA, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 32}, GROUP_SIZE_M=1)


@pytest.fixture(scope="module")
def served(stub):
    return lambda *arguments, **changed: stub.run("served.py", *arguments, **changed)


@pytest.fixture
def table(make_row, make_table, tmp_path):
    def table(problem: Problem, config: Config, *more: tuple[Problem, Config]) -> str:
        rows = [
            make_row(*each.shape, config=its, version=version(its), dtype="float16", layout=each.layout)
            for each, its in ((problem, config), *more)
        ]
        return str(make_table(*rows).write(tmp_path))

    def version(config: Config) -> int:
        return registry.find("matmul", config.kernel).version

    return table


def addresses(launch):
    """Of a, b and the output: the first three arguments that are memory, descriptors among them."""
    memory = [launch.address(index) for index, param in enumerate(launch.params) if len(param) in (8, 128)]
    return [address for address in memory if address > 2**32]


def operands(first, second, out):
    """Operands and output: of few rows of A the operands are exchanged."""
    return (*sorted((first, second)), out)


def assert_each_call_launched_its_own(report, per_call=1):
    assert len(report.launches) == per_call * len(report.printed["calls"])
    for launch, told in zip(report.launches, report.printed["calls"], strict=True):
        assert operands(*addresses(launch)[:3]) == operands(*told["given"][:2], told["out"])


@pytest.mark.parametrize("way", ["again", "ordinary", "operator"])
def test_the_second_call_looks_nothing_up_and_launches_the_same_kernel_on_its_own_operands(served, way):
    report = served(way)
    assert [told["looked"] for told in report.printed["calls"]] == [1, 0, 0]
    assert_each_call_launched_its_own(report)
    first, second, third = report.launches
    assert len(report.loads) == 1
    for launch in (second, third):
        assert (launch.name, launch.grid, launch.block) == (first.name, first.grid, first.block)
        assert (launch.shared_bytes, launch.stream) == (first.shared_bytes, first.stream)
        # All but the addresses: sizes, strides, nulls and the scratch pointers at the end.
        assert [p for p in launch.params if len(p) < 8] == [p for p in first.params if len(p) < 8]
        assert len(launch.params) == len(first.params)


def test_a_plan_of_gluon_descriptors_gives_operands_in_the_order_of_the_launch_it_was_made_of(served, table):
    tile = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_N_REST": 0, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    plain = Config(
        "warp_specialized", **tile, EPILOGUE_PARTS=1, SWAP_AB=False, launch_pdl=True, num_stages=6, num_warps=4
    )
    turned = Problem(256, 1024, 128, layout="nn"), plain.replace(SWAP_AB=True)
    report = served("specialized", table(PROBLEM, plain, turned))
    assert {launch.name for launch in report.launches} == {"warp_specialized_kernel"}
    calls = report.printed["calls"]
    assert [told["looked"] for told in calls] == [1, 0, 0, 1, 0, 0]
    for number, (launch, told) in enumerate(zip(report.launches, calls, strict=True)):
        (a, b), out = told["given"], told["out"]
        exchanged = number >= 3
        assert addresses(launch)[:3] == ([b, a, out] if exchanged else [a, b, out])


def test_the_first_call_of_a_family_imports_the_kernels_of_all_its_ranges(
    served, make_row, make_table, make_family, tmp_path
):
    tma = Config("tma", **TMA, GROUP_SIZE_M=1)
    rows = [
        make_row(m, 256, 256, config=its, version=registry.find("matmul", its.kernel).version)
        for m, its in ((64, POINTER), (256, tma))
    ]
    family = make_family(64, 256, problem=rows[0].problem)
    path = make_table(*rows, families=(family,)).write(tmp_path)
    report = served("families", str(path), "[40, 200]", alone=True)
    assert [told["imported"] for told in report.printed["calls"]] == [["pointer", "tma"]] * 2
    assert [any(len(param) == 128 for param in launch.params) for launch in report.launches] == [False, True]


def test_each_launch_goes_to_the_stream_of_its_moment(served):
    report = served("streams")
    assert [launch.stream for launch in report.launches] == [11, 12, 11, 7]
    assert [told["looked"] for told in report.printed["calls"]] == [1, 0, 0, 0]


def test_threads_launch_their_own_operands_on_their_own_streams(served):
    report = served("threads")
    launched = Counter((launch.stream, *operands(*addresses(launch)[:3])) for launch in report.launches)
    expected = Counter((told["stream"], *operands(*told["given"], told["out"])) for told in report.printed["calls"])
    assert launched == expected
    assert len(report.launches) == 50


def test_another_alignment_is_another_plan(served):
    report = served("alignment")
    looked = [told["looked"] for told in report.printed["calls"]]
    # 8 elements of 2 bytes are 16 bytes: as good as none.
    assert looked == [1, 1, 0, 0, 0, 0]
    shapes = [(launch.name, launch.grid, launch.shared_bytes) for launch in report.launches]
    by_shift = dict(zip((0, 1, 8), shapes[-3:], strict=True))
    assert by_shift[0] == by_shift[8] != by_shift[1]


def test_shapes_layouts_epilogues_dtypes_and_outputs_each_have_a_plan(served):
    report = served("kinds")
    calls = report.printed["calls"]
    half = len(calls) // 2
    assert [told["looked"] for told in calls] == [1] * half + [0] * half
    assert report.printed["plans"] == half
    assert_each_call_launched_its_own(report)
    for first, second in zip(report.launches[:half], report.launches[half:], strict=True):
        assert (first.name, first.grid, first.shared_bytes) == (second.name, second.grid, second.shared_bytes)


def test_every_op_has_plans(served):
    report = served("ops")
    calls = report.printed["calls"]
    half, launched = len(calls) // 2, len(report.launches) // 2
    assert [told["looked"] for told in calls] == [1] * half + [0] * half
    for first, second in zip(report.launches[:launched], report.launches[launched:], strict=True):
        assert (first.name, first.grid, first.shared_bytes) == (second.name, second.grid, second.shared_bytes)
    launches = iter(report.launches)
    for told in calls:
        expected = {*told["given"], told["out"]}
        memory = set()
        while not expected <= memory:  # softmax of long rows takes two launches
            memory |= set(addresses(next(launches)))
    assert next(launches, None) is None


def test_operands_of_as_many_elements_and_other_sizes_are_told_apart(served):
    report = served("alike")
    assert [told["looked"] for told in report.printed["calls"]] == [1, 1, 0, 0, 0, 0]
    for launch, told in zip(report.launches, report.printed["calls"], strict=True):
        assert {*addresses(launch)[:3]} == {*told["given"], told["out"]}  # one of them swaps its operands
    grids = [launch.grid for launch in report.launches]
    assert grids == grids[:2] * 3
    assert grids[0] != grids[1]


def test_a_plan_launches_on_the_device_of_its_operands_whichever_is_current(served):
    report = served("devices")
    calls = report.printed["calls"]
    assert [told["looked"] for told in calls] == [1, 1, *[0] * 6]
    assert {told["current"] for told in calls if "current" in told} == {0, 1}
    assert [launch.stream for launch in report.launches[2:]] == [30] * 6
    assert_each_call_launched_its_own(report)


def test_a_plan_is_for_tensors_that_torch_has_the_same_way(served):
    report = served("modes")
    calls = report.printed["calls"]
    # Under no_grad and inference_mode, each again; a gradient's forward pass is given the parameter as a plain tensor.
    assert [told["looked"] for told in calls[:5]] == [1, 1, 0, 0, 1]
    assert [told["wants_gradient"] for told in calls[:5]] == [False] * 4 + [True]
    # Twice as it is stored, then negated: that is a copy, and another kind.
    assert [told["looked"] for told in calls[5:]] == [1, 0, 1]
    took = [told["given"][0] in addresses(launch)[:2] for launch, told in zip(report.launches, calls, strict=True)]
    assert took == [*[True] * 7, False]


@pytest.mark.parametrize("maps", ["plain", "mixed", "checked"])
def test_more_addresses_than_arguments_are_kept_for_are_launched_all_the_same(served, maps):
    report = served("crowded", CUDA_STUB_MAPS=maps)
    assert [told["looked"] for told in report.printed["calls"]] == [1] + [0] * 14
    assert_each_call_launched_its_own(report)
    descriptors = [param for launch in report.launches for param in launch.params if len(param) == 128]
    rests = {(at[:8], at[8:]) for at in descriptors}
    assert len({rest for _, rest in rests}) == (len(rests) if maps == "mixed" else 2), "A and B differ from the output"


def test_one_scale_for_both_operands_and_two_are_told_apart(served):
    report = served("scales")
    calls = report.printed["calls"]
    assert [told["looked"] for told in calls] == [1, 1, 0, 0]
    for launch, told in zip(report.launches, calls, strict=True):
        a, b, scale_a, scale_b = told["given"]
        # The kernel exchanges the operands, and takes the second for its narrow tiles once more.
        assert addresses(launch) == [b, a, told["out"], b, scale_b, scale_a]


def test_a_hook_hears_of_launches_which_then_go_the_ordinary_way(served):
    *calls, heard = served("hooks").printed["calls"]
    assert [told["looked"] for told in calls] == [1, 0, 1, 0]
    assert len(heard["heard"]) == 1


def test_other_sources_make_other_plans(served, table):
    report = served("sources", table(PROBLEM, POINTER))
    assert [told["looked"] for told in report.printed["calls"]] == [1, 0, 1, 0]
    assert report.launches[0].grid == report.launches[1].grid
    assert [launch.grid for launch in report.launches[2:]] == [(4 * 2, 1, 1)] * 2


def test_a_config_that_cannot_be_launched_gives_way_to_the_default_with_one_warning(stub, table):
    greedy = POINTER.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_K=64, num_stages=4)
    report = stub.run("served.py", "failing", table(PROBLEM, greedy))
    assert [told["looked"] for told in report.printed["calls"]] == [2, 0, 0]
    assert len(report.launches) == 3
    assert len({launch.grid for launch in report.launches}) == 1
    assert report.stderr.count("failed at its first launch in this process: OutOfResources") == 1


def test_a_default_that_cannot_be_launched_gives_way_to_the_next_kernels_with_a_warning_each(served):
    report = served("failing_default", "32768")
    assert [told["looked"] for told in report.printed["calls"]] == [4, 0]  # swap_ab by pointers, by TMA, tma, pointer
    assert len(report.launches) == 2
    assert report.stderr.count("failed at its first launch in this process: OutOfResources") == 3


def test_where_no_default_can_be_launched_the_error_is_the_last_ones(served):
    report = served("failing_default", "1024")
    assert report.printed["calls"] == [{"raised": "OutOfResources"}, {"raised": "KernelError"}]
    assert report.launches == ()


def test_a_config_is_no_worse_for_a_device_whose_memory_was_full(served, table):
    report = served("full", table(PROBLEM, POINTER))
    raised, told = report.printed["calls"]
    assert raised == {"raised": "Triton Error [CUDA]: out of memory"}
    assert told["looked"] == 1
    assert [launch.grid for launch in report.launches] == [(4 * 2, 1, 1)]  # the tuned one's
    assert "failed at its first launch" not in report.stderr


@pytest.mark.parametrize("loads", ["pointer", "tma"])
def test_split_sums_get_memory_at_each_launch(served, table, loads):
    config = Config("split_k", **TMA, LOADS=loads, SPLIT_K=4)
    report = served("table", table(Problem(64, 64, 1024), config), json.dumps([64, 64, 1024]))
    assert [told["looked"] for told in report.printed["calls"]] == [1, 0, 0]
    assert_each_call_launched_its_own(report)
    for launch in report.launches:
        partials, counters = addresses(launch)[3:]
        assert launch.grid == (1, 4, 1)
        assert partials != counters


def test_what_is_fetched_ahead_is_each_calls_own_weight(served, table):
    options = {"launch_pdl": True, "PREFETCH_KIB": 32, "PDL_TRIGGER": 3}
    config = Config("split_k", **{**TMA, **options}, LOADS="tma", SPLIT_K=4)
    problem = Problem(64, 64, 1024, layout="nt")
    report = served("table", table(problem, config), json.dumps(problem.shape), problem.layout)
    assert [told["looked"] for told in report.printed["calls"]] == [1, 0, 0]
    assert_each_call_launched_its_own(report)
    for launch, told in zip(report.launches, report.printed["calls"], strict=True):
        assert addresses(launch)[3] == told["given"][1]


def test_a_padded_program_copies_into_fresh_memory_and_multiplies_it(served, table):
    config = Config("padded", **TMA, GROUP_SIZE_M=1, INNER="tma", PAD="ab")
    problem = Problem(127, 129, 131)
    report = served("table", table(problem, config), json.dumps(problem.shape))
    calls = report.printed["calls"]
    assert [told["looked"] for told in calls] == [1, 0, 0]
    for told, copy, multiply in zip(calls, report.launches[::2], report.launches[1::2], strict=True):
        a, a_copy, b, b_copy = addresses(copy)
        assert [a, b] == told["given"]
        assert addresses(multiply) == [a_copy, b_copy, told["out"]]
        assert {a_copy, b_copy}.isdisjoint(told["given"])


def test_what_an_op_refuses_is_refused_though_a_call_with_its_key_has_a_plan(served):
    report = served("not_alike")
    *calls, over, of_a, of_b = report.printed["calls"]
    assert [told["looked"] for told in calls] == [1, 1, 0, 0, 0, 0]
    assert "out shares memory with an operand" in over["refused"]
    assert "scale_a is given without scale_b" in of_a["refused"]
    assert "scale_b is given without scale_a" in of_b["refused"]
    assert len(report.launches) == len(calls)


def test_torch_func_maps_the_op_over_a_batch(served):
    report = served("mapped")
    *_, rows, weights = report.printed["calls"]
    _, of_rows, *of_weights = report.launches
    a, b, second = rows["given"]
    # Rows of one weight are one product; each weight has its own.
    assert rows["shape"] == weights["shape"] == [2, 256, 256]
    assert {*addresses(of_rows)[:2]} == {a, b}
    assert [{*addresses(launch)[:2]} for launch in of_weights] == [{a, b}, {a, second}]


def test_calls_by_a_plan_are_counted_where_the_problem_was_missed(served, table, tmp_path):
    record = tmp_path / "misses.json"
    report = served("missed", table(PROBLEM, POINTER), str(record))
    # Recording begins with plans forgotten; it costs no second lookup.
    assert [told["looked"] for told in report.printed["calls"]] == [1, 1, 1, 0, 0, 0, 0, 1, 0]
    ((missed, calls),) = misses.load(record).problems("nvidia-h200-sm90-132").items()
    assert (str(missed), calls) == ("matmul 97-128x128x128 float16 nn", 5)


def test_torchs_float32_setting_is_asked_at_each_call(served):
    report = served("changing")
    # Left out or "default" is the same call.
    assert [told["looked"] for told in report.printed["calls"]] == [1, 0, 1, 0, 0, 0, 0, 0]
    launched = [(launch.name, launch.grid, launch.shared_bytes) for launch in report.launches]
    ieee, tf32 = launched[0], launched[2]
    assert launched == [ieee, ieee, tf32, tf32] * 2
    assert ieee != tf32


def test_autocast_is_asked_at_each_call_and_has_plans_of_its_own(served):
    calls = served("autocasting").printed["calls"]
    plain, low, high = [[name] * 2 for name in ("float32", "bfloat16", "float16")]
    expected = [*plain * 3, *low, *plain, *low, *plain, *high, *plain, *high, *plain, *plain * 3, *high, *plain]
    assert [told["dtype"] for told in calls] == [*expected, *high, *plain]
    # Every kind of call is looked up once: the second of two calls runs a plan, and so do the last rounds.
    assert [told["looked"] for told in calls][1::2] == [0] * (len(calls) // 2)
    assert [told["looked"] for told in calls[-14:]] == [0] * 14


def test_a_plan_holds_no_tensor_of_the_call_it_was_made_of(served):
    report = served("forgotten")
    assert report.printed["plans"] == 4
    for told in report.printed["calls"]:
        assert told["after"] == told["before"]
