"""Options that no axis has: where they can be, who has them, and that spaces do not grow by them."""

import pytest

import tuner
from tuner import Problem
from tuner.errors import KernelError
from tuner.hardware.device import INTERPRETER, KNOWN, triton_version
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace

pytest.importorskip("triton")
H200, B200, A100, MI300 = (KNOWN[arch] for arch in ("sm_90", "sm_100", "sm_80", "gfx942"))
SQUARE = Problem(4096, 4096, 4096, dtype="bf16", layout="nt")
FEW_ROWS = Problem(16, 6144, 4096, dtype="bf16", layout="nt")
LONG = Problem(4096, 32768, 1, dtype="bf16", op="softmax")


@pytest.mark.parametrize("option", [{"num_ctas": 2}, {"maxnreg": 128}, {"warp_specialize": True}])
@pytest.mark.parametrize("name", ["pointer", "tma", "persistent_tma", "split_k", "swap_ab"])
def test_options_that_never_won_are_no_parameters_any_more(name, option):
    spec = registry.find("matmul", name)
    config = spec.default_config(FEW_ROWS, B200).replace(**option)
    assert spec.space(FEW_ROWS, B200).rejection(config, fatal_only=True) == (
        f"parameters: {next(iter(option))} is no parameter on sm_100"
    )


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize("option", [{"num_ctas": 2}, {"maxnreg": 128}, {"warp_specialize": True}])
def test_a_row_with_a_former_option_is_passed_over_with_one_line(make_row, make_table, tmp_path, caplog, option):
    spec = registry.find("matmul", "tma")
    config = spec.default_config(SQUARE, H200).replace(**option)
    row = make_row(4096, 4096, 4096, config=config, version=spec.version, dtype="bf16", layout="nt")
    tuner.use(make_table(row).write(tmp_path))
    assert [tuner.lookup(SQUARE, H200).rule for _ in range(3)] == 3 * ["default"]
    (record,) = caplog.records
    assert f"{next(iter(option))} is no parameter" in record.getMessage()


@pytest.mark.parametrize("device", [H200, B200, A100, MI300, INTERPRETER], ids=lambda device: device.arch)
def test_refinements_are_outside_of_the_space_and_yet_configs_that_a_lookup_takes(device):
    found = set()
    for spec in registry.serving(SQUARE, device):
        space = spec.space(SQUARE, device)
        configs = space.configs()
        assert not any(set(space.options) & config.keys() for config in configs)
        assert len(spec.space(SQUARE, device).options) == len(set(space.options))
        for config in configs[::40]:
            for refined in space.refinements(config):
                found |= set(space.options) & refined.keys()
                assert space.tries(refined), refined
                assert not space.odd_parameters(refined), refined
                assert spec.simplicity(config) < spec.simplicity(refined)
    clusters = device is H200 and triton_version().startswith("3.7.")
    assert found == ({"num_ctas", "SHARE_B"} if clusters else set())


@pytest.mark.skipif(not triton_version().startswith("3.7."), reason="cluster_k runs under Triton 3.7 alone")
def test_a_space_tries_refinements_that_exchange_an_option_of_theirs():
    """A search won by them, and `tuner verify` called them untried."""
    few = Problem(16, 1024, 4096, dtype="bf16", layout="nt")
    space = registry.find("matmul", "cluster_k").space(few, H200)
    refined = [one for config in space.configs()[::2] for one in space.refinements(config)]
    assert len(refined) > 20
    assert all(space.tries(one) for one in refined)
    assert not any(space.tries(one.replace(PDL_TRIGGER=3)) for one in refined)


def test_a_space_tries_its_configs_and_their_refinements_and_nothing_else():
    big = Rule("big", "here", lambda config, _problem, _device: "128" if config.get("maxnreg") == 128 else None)
    refine = lambda config, _problem, _device: [config.replace(maxnreg=value) for value in (96, 128)]  # noqa: E731
    axes = {"BLOCK": (1, 2, 4)}
    space = SearchSpace("toy", SQUARE, H200, axes, (big,), options=("maxnreg",), refine=refine)
    config = Config("toy", BLOCK=2)
    assert space.refinements(config) == [config.replace(maxnreg=96)]
    assert space.tries(config)
    assert space.tries(config.replace(maxnreg=96))
    assert not space.tries(config.replace(maxnreg=128))
    assert not space.tries(config.replace(maxnreg=64))
    assert not space.tries(config.replace(BLOCK=8))
    assert space.odd_parameters(config.replace(other=1)) == {"other"}


def test_a_refine_that_fails_is_one_error_that_names_it_and_the_config():
    def refine(config, problem):
        return []

    space = SearchSpace("toy", SQUARE, H200, {"BLOCK": (1, 2)}, refine=refine)
    with pytest.raises(KernelError, match=r"^refine of the kernel matmul/toy failed for toy\(BLOCK=1\): TypeError: .+"):
        space.refinements(Config("toy", BLOCK=1))


def test_long_rows_of_16_bits_may_stay_packed_so_that_two_programs_reside():
    spec = registry.find("softmax", "softmax_whole")
    space = spec.space(LONG, H200)
    packed = [config for config in space.configs() if "RECOMPUTED" in config]
    assert {(config["num_warps"], config["maxnreg"]) for config in packed} == {(8, 128), (16, 64), (32, 32)}
    assert all(space.tries(config) for config in packed)
    for other in (LONG.with_shape(4096, 8192, 1), Problem(4096, 32768, 1, dtype="fp32", op="softmax")):
        assert not any("RECOMPUTED" in config for config in spec.space(other, H200).configs())
    assert not any("RECOMPUTED" in config for config in spec.space(LONG, MI300).configs())
    on_amd = spec.default_config(LONG, MI300).replace(RECOMPUTED=True)
    assert "not for gfx942" in spec.space(LONG, MI300).rejection(on_amd, fatal_only=True)


@pytest.mark.parametrize(
    ("device", "options", "found"),
    [
        (MI300, {"maxnreg": 128}, "an option of NVIDIA's assembler"),
        (H200, {"maxnreg": 100}, "a multiple of 8 from 24 to 248"),
        (H200, {"maxnreg": 256}, "a multiple of 8 from 24 to 248"),
        (H200, {"maxnreg": 248, "num_warps": 16}, "a multiprocessor has 65536"),
        (H200, {"maxnreg": 128, "num_warps": 16}, None),
    ],
)
def test_a_limit_of_registers_that_the_device_cannot_have_is_refused_with_the_reason(device, options, found):
    spec = registry.find("softmax", "softmax_whole")
    config = spec.default_config(LONG, device).replace(**options)
    reason = spec.space(LONG, device).rejection(config, fatal_only=True)
    assert reason is None if found is None else found in reason, reason


@pytest.mark.parametrize(
    ("problem", "device", "options", "found"),
    [
        (FEW_ROWS, H200, {"PREFETCH_KIB": 32, "PDL_TRIGGER": 6}, None),
        (FEW_ROWS, B200, {"PREFETCH_KIB": 256}, None),
        (FEW_ROWS, H200, {"PREFETCH_KIB": 33}, "PREFETCH_KIB is 33: expected a power of two from 1 to 256"),
        (FEW_ROWS, H200, {"PREFETCH_KIB": True}, "expected a power of two"),
        (FEW_ROWS, H200, {"PDL_TRIGGER": 0}, "PDL_TRIGGER is 0: expected 1 to 8 eighths"),
        (FEW_ROWS, H200, {"PDL_TRIGGER": 9}, "expected 1 to 8 eighths"),
        (FEW_ROWS, H200, {"PDL_TRIGGER": 6, "launch_pdl": False}, "without launch_pdl the next kernel starts after"),
        (FEW_ROWS, H200, {"PREFETCH_KIB": 32, "launch_pdl": False}, "without launch_pdl"),
        (FEW_ROWS, A100, {"PREFETCH_KIB": 32}, "without launch_pdl"),
        (FEW_ROWS, MI300, {"PDL_TRIGGER": 6}, "without launch_pdl"),
        (Problem(16, 6144, 4096, dtype="bf16"), H200, {"PREFETCH_KIB": 32}, "rows of B along K"),
        (Problem(16, 6144, 4095, dtype="bf16", layout="nt"), H200, {"PREFETCH_KIB": 32}, "multiples of 16 bytes"),
    ],
)
def test_overlap_with_the_kernel_before_and_after_takes_programmatic_launch_and_rows_along_k(
    problem, device, options, found
):
    spec = registry.find("matmul", "swap_ab")
    config = spec.default_config(problem, device).replace(**options)
    reason = spec.space(problem, device).rejection(config, fatal_only=True)
    assert reason is None if found is None else found in reason, reason


def test_leaders_of_few_rows_are_tried_with_a_prefetch_and_with_a_later_next_kernel():
    for name, problem in (("swap_ab", FEW_ROWS), ("split_k", Problem(64, 256, 7168, dtype="bf16", layout="nt"))):
        space = registry.find("matmul", name).space(problem, H200)
        config = next(one for one in space.configs() if "PDL_TRIGGER" not in one)
        ahead = config.replace(PREFETCH_KIB=32)
        assert space.refinements(config)[:2] == [ahead, ahead.replace(PDL_TRIGGER=3)]
        assert config in space.configs(), "rows from before these options stay what they were"


def test_short_sums_are_tried_with_more_ahead_and_an_earlier_next_kernel():
    def tried(k: int) -> set[tuple[int, int]]:
        space = registry.find("matmul", "swap_ab").space(FEW_ROWS.with_shape(16, 8192, k), H200)
        plain = next(one for one in space.narrowed(BLOCK_SIZE_N=(64,), SPLIT_K=(1,)).configs() if one["SPLIT_K"] == 1)
        return {(one.integer("PDL_TRIGGER"), one.integer("PREFETCH_KIB")) for one in space.refinements(plain)}

    assert tried(4096) == {(0, 32), (3, 32), (6, 32)}
    assert tried(1024) == {(0, 32), (3, 32), (2, 64)}


def test_leaders_that_stream_the_weight_are_tried_with_the_first_bytes_of_each_row_ahead():
    problem = Problem(1, 6144, 4096, dtype="bf16", layout="nt")
    space = registry.find("matmul", "gemv").space(problem, H200)
    plain = next(one for one in space.configs() if one["BLOCK_SIZE_N"] == 2)
    found = [(one.integer("PREFETCH_KIB"), one.integer("PDL_TRIGGER")) for one in space.refinements(plain)]
    assert found == [(4, 0), (4, 4)]
    other_way = registry.find("matmul", "gemv").space(Problem(1, 6144, 4096, dtype="bf16"), H200)
    assert not other_way.refinements(other_way.configs()[0]), "where B is stored [K, N] no row of it is a program's"


def test_whole_sums_by_tma_in_few_waves_may_let_the_next_kernel_wait_for_their_last_step():
    def late(problem, **axes):
        return {one for one in swap_ab.space(problem, H200).narrowed(**axes).configs() if "PDL_TRIGGER" in one}

    swap_ab = registry.find("matmul", "swap_ab")
    found = late(FEW_ROWS)
    assert found
    assert {(one["PDL_TRIGGER"], one["LOADS"], one["SPLIT_K"]) for one in found} == {(8, "tma", 1)}
    assert not late(Problem(8, 28672, 4096, dtype="bf16", layout="nt"), BLOCK_SIZE_N=(64,))
    times = [tuple(swap_ab.estimate_us(one.replace(PDL_TRIGGER=at), FEW_ROWS, H200) for at in (8, 3)) for one in found]
    assert any(late_us < 0.95 * early_us for late_us, early_us in times)


def test_few_tiles_on_amd_are_tried_with_fewer_registers_by_waves_per_eu():
    problem = Problem(64, 256, 7168, dtype="bf16", layout="nt")
    space = registry.find("matmul", "split_k").space(problem, MI300)
    config = registry.find("matmul", "split_k").default_config(problem, MI300)
    assert space.refinements(config) == [config.replace(waves_per_eu=2)]
    assert "a SIMD has 1 to 8 waves" in space.rejection(config.replace(waves_per_eu=9), fatal_only=True)


def test_an_option_is_part_of_what_a_binary_depends_on():
    spec = registry.find("matmul", "swap_ab")
    config = spec.default_config(FEW_ROWS, H200).replace(PDL_TRIGGER=6)
    assert spec.compile_class(FEW_ROWS, config) != spec.compile_class(FEW_ROWS, config.replace(PDL_TRIGGER=3))
