"""b_padded is a key of problems where it changes the fastest config, and of no others; lookups use what padded won."""

from __future__ import annotations

import pytest
import torch

from tuner.hardware import device as devices
from tuner.hardware.device import KNOWN
from tuner.kernel.registry import default_config, serving
from tuner.kernels.base.operands import is_aligned, make_operands, row_alignment
from tuner.kernels.gemm.padded.copy import pad
from tuner.kernels.gemm.padded.spec import SPEC
from tuner.lookup.match_rules import refusal
from tuner.problem import Problem, suite

H200 = KNOWN["sm_90"]
ODD = {"dtype": "bf16", "layout": "nt"}


def test_b_padded_is_kept_where_rows_of_b_are_unaligned_and_dropped_elsewhere():
    assert Problem(64, 64, 65, **ODD, b_padded=True) != Problem(64, 64, 65, **ODD)
    assert Problem(64, 64, 72, **ODD, b_padded=True) == Problem(64, 64, 72, **ODD)
    assert Problem(64, 1, 65, **ODD, b_padded=True) == Problem(64, 1, 65, **ODD)
    assert Problem(64, 65, 64, dtype="bf16", b_padded=True).b_padded
    assert not Problem(64, 64, 65, **ODD, b_padded=True).exchanged().b_padded


def test_b_padded_passes_through_fields_and_suites(tmp_path):
    problem = Problem(64, 64, 65, **ODD, b_padded=True)
    assert Problem.from_fields(problem.fields()) == problem
    file = tmp_path / "suite.csv"
    file.write_text("m,n,k,dtype,layout,b_padded\n64,64,65,bf16,nt,true\n64,64,65,bf16,nt,\n")
    assert suite.load(str(file)) == [problem, Problem(64, 64, 65, **ODD)]


def test_its_inputs_have_padded_rows_of_b_alone():
    operands = make_operands(Problem(48, 64, 65, **ODD, b_padded=True), "cpu", 0)
    assert operands.b.stride() == (1, 128)
    assert operands.a.stride() == (65, 1)


@pytest.mark.parametrize(
    ("matrix", "bytes_"),
    [
        (torch.empty(4, 64, dtype=torch.float16), 128),
        (torch.empty(4, 72, dtype=torch.float16), 16),
        (torch.empty(4, 65, dtype=torch.float16), 2),
        (torch.empty(4, 72, dtype=torch.float16)[:, :65], 16),
        (torch.empty(4, 64, dtype=torch.float16)[:, 1:], 1),
        (torch.empty(4, 128, dtype=torch.float16)[:, ::2], 1),
        (torch.empty(4, 64, dtype=torch.float16).t(), 128),
        (torch.empty(1, 65, dtype=torch.float16), 128),
        (torch.empty(1, 65, dtype=torch.float16).expand(4, 65), 1),
    ],
)
def test_how_far_apart_rows_lie(matrix, bytes_):
    assert row_alignment(matrix) == bytes_
    # TMA may take what is not aligned for other kernels, never the other way round.
    assert not is_aligned(matrix) or bytes_ >= 16 or matrix.stride(0) == 0


@pytest.mark.parametrize(
    ("problem", "first"),
    [
        (Problem(1023, 2047, 4093, **ODD), True),
        (Problem(100, 2047, 4093, **ODD), True),
        (Problem(60, 2047, 4093, **ODD), False),  # so few rows that loads of their elements take less than a copy of B
        (Problem(8192, 1024, 479, **ODD), True),
        (Problem(8192, 1024, 29, **ODD), False),
        (Problem(32, 50257, 768, **ODD), True),  # the output alone is unaligned: nothing is copied
        (Problem(100, 2047, 4093, **ODD, b_padded=True), True),
        (Problem(3000, 3000, 3000, **ODD), False),
        (Problem(6, 3072, 8192, dtype="fp16", layout="tn"), False),
        (Problem(50, 3072, 8192, dtype="fp16", layout="tn"), True),
    ],
)
def test_it_is_the_default_where_copies_take_less_than_loads_of_single_elements(problem, first):
    kernels = [spec.name for spec in serving(problem, H200)]
    assert "padded" in kernels
    assert (kernels[0] == "padded") == first
    assert (default_config(problem, H200).kernel == "padded") == first


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "gfx942"])
def test_devices_without_tma_never_see_it(arch):
    assert "TMA needs sm_90" in SPEC.supports(Problem(1023, 2047, 4093, **ODD), KNOWN[arch])


def test_a_row_that_padded_won_is_used_by_a_lookup(make_row):
    problem = Problem(600, 700, 801, **ODD)
    configs = SPEC.space(problem, H200).configs()
    for config in configs[:: len(configs) // 20]:
        row = make_row(*problem.shape, **ODD, config=config, kernel="padded", version=SPEC.version)
        assert refusal(row, problem, H200) is None, config
    lacking = make_row(*problem.shape, **ODD, config=configs[0].replace(PAD="c"), version=SPEC.version)
    assert "PAD is 'c'" in refusal(lacking, problem, H200)


@pytest.mark.parametrize(("m", "n", "chosen"), [(512, 512, {"a", "b"}), (512, 520, {"b"}), (520, 512, {"a"})])
def test_of_one_operand_to_pad_the_larger_is_tried(m, n, chosen):
    configs = SPEC.space(Problem(m, n, 520, **ODD), H200).configs()
    assert {config["PAD"] for config in configs} == chosen | {"ab"}


@pytest.mark.parametrize("k", [4065, 4073, 4095])
def test_padded_rows_of_8_bits_are_no_odd_ones_that_clusters_would_share(k, monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")
    problem = Problem(4095, 4093, k, dtype="e4m3", layout="nt", out_dtype="bf16", aligned=False)
    config = SPEC.default_config(problem, H200)
    assert "num_ctas" not in config
    assert SPEC.space(problem, H200).rejection(config) is None


@pytest.mark.parametrize(("k", "offered"), [(1, False), (2, True)])
def test_one_row_of_b_in_float32_never_goes_to_wgmma_as_it_lies(k, offered):
    problem = Problem(512, 512, k, dtype="fp32", layout="nt", precision="tf32")
    inner = {config["INNER"] for config in SPEC.space(problem, H200).configs()}
    assert ("warp_specialized" in inner) == offered
    assert offered or SPEC.default_config(problem, H200)["INNER"] != "warp_specialized"


@pytest.mark.parametrize("m", [2, 6, 15])
def test_few_rows_of_a_transposed_a_are_loaded_one_by_one_beside_rows_of_b_that_are_not_copied(m):
    config = default_config(Problem(m, 3072, 8192, dtype="fp16", layout="tn"), H200)
    assert config.kernel == ("gemv" if m <= 2 else "swap_ab")
    assert config.get("LOADS", "pointer") == "pointer"


@pytest.mark.parametrize(
    ("shape", "layout", "programs"),
    [
        ((8000, 4098, 66), "nt", 500 + 257),  # 16 rows of 256 bytes each, of A and of B
        ((8001, 4098, 66), "nn", 501 + 33 * 5),  # 16 rows of A; of B two rows of 2 KiB
        ((8001, 66, 300), "tn", 150 * 8 + 19),  # A as it is stored, [K, M]
        ((1023, 2047, 4093), "nt", 512 * 4 + 1024 * 4),
    ],
    ids=str,
)
def test_a_program_of_the_copy_has_four_kib_of_as_many_rows_as_that_makes(shape, layout, programs):
    (launch,) = pad(make_operands(Problem(*shape, dtype="bf16", layout=layout), "meta", 0), "none")[1]
    assert launch.grid == (programs,)
