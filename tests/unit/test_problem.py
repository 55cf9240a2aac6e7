"""What a problem and a lookup may be given: dtypes, sizes and devices as torch, numpy and drivers spell them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import tuner
from tuner.errors import DeviceError, ProblemError
from tuner.hardware.device import INTERPRETER, KNOWN, describe
from tuner.problem import Problem
from tuner.problem.gemm_fields import MAX_SIZE

SHAPES = [
    *((MAX_SIZE, 1, 1), (1, MAX_SIZE, 1), (1, 1, MAX_SIZE), (MAX_SIZE, 8, 8), (8, MAX_SIZE, 8), (8, 8, MAX_SIZE)),
    *((MAX_SIZE - 15, 16, 16), (MAX_SIZE - 127, MAX_SIZE - 127, 64), (MAX_SIZE, MAX_SIZE, MAX_SIZE)),
]
KINDS = [
    {"dtype": "bf16", "layout": "nt"},
    {"dtype": "fp32", "layout": "tn"},
    {"dtype": "i8", "layout": "nn"},
    {"dtype": "e4m3", "layout": "nt", "scaling": "block"},
    {"dtype": "fp16", "b_padded": True, "epilogue": "bias+gelu"},
    {"dtype": "fp16", "op": "bmm", "extras": {"batch": MAX_SIZE}},
    {"dtype": "fp16", "op": "grouped_mm", "extras": {"groups": 4}},
]


@pytest.fixture(autouse=True)
def untuned(monkeypatch, tmp_path):
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "none.db"))
    tuner.use(None)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind.values())))
def test_a_problem_of_the_largest_sizes_has_a_config(kind, shape):
    for arch in ("sm_90", "sm_100"):
        problem = Problem(*shape, **kind)
        assert tuner.lookup(problem, KNOWN[arch]).rule == "default"
        assert str(problem) in tuner.explain(problem, KNOWN[arch])


def test_torchs_dtypes_stand_for_their_names():
    assert Problem(8, 8, 8, dtype=torch.bfloat16) == Problem(8, 8, 8, dtype="bf16")
    each = Problem(8, 8, 8, a_dtype=torch.float8_e4m3fn, b_dtype=torch.float8_e5m2, out_dtype=torch.float32)
    assert each == Problem(8, 8, 8, a_dtype="e4m3", b_dtype="e5m2", out_dtype="fp32")
    assert Problem.keyed("norm", {"N": 8}, dtype=torch.float16) == Problem.keyed("norm", {"N": 8}, dtype="fp16")
    for wrong in (torch.int64, 5, None, np.float16):
        with pytest.raises(ProblemError, match=r"unknown dtype .*: expected one of float32"):
            Problem(8, 8, 8, dtype=wrong)


def test_any_type_of_whole_number_is_a_size_and_ends_as_an_int():
    given = Problem(np.int64(8), np.uint8(16), torch.tensor(32), op="bmm", extras={"batch": np.int64(4)})
    assert given == Problem(8, 16, 32, op="bmm", extras={"batch": 4})
    assert json.loads(json.dumps(given.fields())) == given.fields()
    assert json.dumps(Problem(8, 8, 8, dtype="e4m3", fast_accum=np.bool_(False)).fields())
    assert given.with_shape(np.int32(1), 2, 3) == Problem(1, 2, 3, op="bmm", extras={"batch": 4}, aligned=True)
    for wrong in (True, np.True_, 8.0, "8", None, torch.ones(2, dtype=torch.int64)):
        with pytest.raises(ProblemError, match="M must be an integer, got"):
            Problem(wrong, 8, 8)
    for wrong in ([4], None, torch.ones(1)):
        with pytest.raises(ProblemError, match="bmm: batch must be a number, a boolean or a string, got"):
            Problem(8, 8, 8, op="bmm", extras={"batch": wrong})


@pytest.mark.parametrize("name", ["nvidia-h200-sm90-132", "NVIDIA H200", "nvidia h200", "H200", "h200"])
def test_a_device_is_known_by_its_slug_and_by_its_name(name):
    problem = Problem(64, 64, 64)
    assert tuner.lookup(problem, name) is tuner.lookup(problem, KNOWN["sm_90"])
    assert tuner.explain(problem, name) == tuner.explain(problem, KNOWN["sm_90"])
    assert tuner.digest(name) == tuner.digest(KNOWN["sm_90"])
    for name in ("interpreter", "Triton interpreter"):
        assert tuner.lookup(problem, name) is tuner.lookup(problem, INTERPRETER)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sm_90", "'sm_90' is an architecture: expected a device; use 'nvidia-h100-80gb-hbm3-sm90-132' or "),
        ("gfx942", "'gfx942' is an architecture: expected a device; use 'amd-instinct-mi300x-gfx942-304'"),
        ("nvidia", "'nvidia' is the name of several devices: expected a device; use 'nvidia-"),
        ("H1000", "unknown device 'H1000': expected one of amd-instinct-mi300x-gfx942-304, "),
        ("132", "unknown device '132': expected one of "),
        ("", "unknown device '': expected one of "),
        (0, "device is 0: expected a slug, a name or a Device; for GPU 0 use tuner.device.current(0)"),
        (torch.device("cuda:0"), "device is device(type='cuda', index=0): expected a slug"),
    ],
    ids=str,
)
def test_what_is_no_device_is_one_line_that_names_the_devices(name, message):
    for ask in (tuner.lookup, tuner.explain):
        with pytest.raises(DeviceError) as raised:
            ask(Problem(64, 64, 64), name)
        assert str(raised.value).startswith(message)
        assert "\n" not in str(raised.value)


def test_a_device_of_a_table_is_known_by_name_and_several_of_one_name_are_listed(make_row, make_table, tmp_path):
    other = describe(name="NVIDIA H200", arch="sm_90", sm_count=66, memory_bytes=2**36, l2_bytes=2**25)
    tuner.use(make_table(make_row(64), device=other).write(tmp_path))
    assert tuner.lookup(Problem(64, 64, 64), other.slug)
    expected = r"'NVIDIA H200' is the name of several devices: expected a device; use 'nvidia-h200-sm90-132' or '.*-66'"
    with pytest.raises(DeviceError, match=expected):
        tuner.lookup(Problem(64, 64, 64), "NVIDIA H200")
    with pytest.raises(DeviceError, match=r"'sm_90' is an architecture: .*-132' or '.*-66'"):
        tuner.lookup(Problem(64, 64, 64), "sm_90")


@pytest.mark.parametrize("name", ["aligned", "fast_accum", "b_padded"])
@pytest.mark.parametrize("value", ["no", "", 2, 1.0, [], (True, False), np.array([True])], ids=repr)
def test_what_is_true_or_false_is_not_guessed_from_other_values(name, value):
    for given in ({name: value}, {"extras": {name: value}} if name != "aligned" else {name: value}):
        with pytest.raises(ProblemError, match=f"{name} must be True or False, got"):
            Problem(16, 16, 15, dtype="e4m3", layout="nt", **given)


@pytest.mark.parametrize("value", [1, np.True_, True], ids=repr)
def test_a_truth_value_of_another_type_names_the_same_problem(value):
    plain = Problem(16, 16, 15, dtype="fp16", aligned=True, b_padded=True, layout="nt")
    given = Problem(16, 16, 15, dtype="fp16", aligned=value, b_padded=value, layout="nt")
    assert json.dumps(given.fields()) == json.dumps(plain.fields())


@pytest.mark.parametrize("ask", [tuner.lookup, tuner.explain])
@pytest.mark.parametrize("problem", [None, "16x16x16", (16, 16, 16), {"m": 16}, tuner.Config("pointer")], ids=repr)
def test_what_is_no_problem_is_one_line_of_a_lookup(ask, problem):
    for device in (INTERPRETER, "nvidia-h200-sm90-132"):
        with pytest.raises(ProblemError, match=r"^not a problem: .*expected a tuner\.Problem"):
            ask(problem, device)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, 512, 256, layout="nt", epilogue="bias+silu"),
        Problem(7, 100, 33, dtype="float32", layout="tn", precision="tf32"),
        Problem(64, 512, 257, dtype="bf16", layout="nt", b_padded=True),
        Problem(64, 512, 256, a_dtype="e4m3", b_dtype="e5m2", layout="nt", scaling="row", fast_accum=False),
        Problem(8, 512, 256, op="bmm", extras={"batch": 4}),
    ],
    ids=str,
)
def test_a_copy_with_another_part_is_what_its_parts_make(problem):
    """Copies skip the checks of a new problem, so that a lookup of a new M is fast."""
    for copy in (problem.with_m(3), problem.with_m(np.int64(2**31 - 1)), problem.exchanged(), problem.group()):
        made = Problem.from_fields(copy.fields())
        assert (copy, hash(copy), copy.family, type(copy.m)) == (made, hash(made), made.family, int)
    assert problem.exchanged().exchanged().shape == problem.shape
    for wrong in (0, 2**31, True, 1.5):
        with pytest.raises(ProblemError, match="M must be"):
            problem.with_m(wrong)


@pytest.mark.parametrize("extras", [5, [1], "ab", {5: 6}])
def test_extras_are_values_by_name(extras):
    with pytest.raises(ProblemError, match="expected a dict of names and values"):
        Problem(1, 1, 1, extras=extras)


@pytest.mark.parametrize("op", ["", "../matmul", "a b", None, 5])
def test_what_is_no_name_of_an_op_is_refused(op):
    with pytest.raises(ProblemError, match="is no name of an op: expected letters, digits"):
        Problem(16, 16, 16, op=op)
