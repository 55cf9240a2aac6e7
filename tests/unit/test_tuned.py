"""What `tuner.tuned` is given: keys as problems, configs that can be kept, inputs held to what was asked, errors."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import re
import sys
import threading

import pytest
import torch
import triton
import triton.language as tl
from torch.fx.experimental.proxy_tensor import make_fx

import tuner
from tuner import reference
from tuner.errors import ConfigError, KernelError, TunerError, UsageError
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem, distance, generic_key
from tuner.problem import text as problem_text
from tuner.sweep import verify
from tuner.tuned import accuracy
from tuner.tuned.origin import origin_of
from tuner.tuned.triton_configs import ConfigList

H200 = KNOWN["sm_90"]
CONFIGS = [triton.Config({"BLOCK": block}) for block in (64, 128)]


@triton.jit
def add(x_ptr, y_ptr, out_ptr, x_stride, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at * x_stride, mask=at < N) + tl.load(y_ptr + at, mask=at < N), mask=at < N)


pytestmark = pytest.mark.usefixtures("no_added_kernels")


def inputs(problem):
    x, y = (torch.randn(problem["N"], dtype=problem.torch_dtype, device="cuda") for _ in range(2))
    out = torch.empty_like(x).cuda()
    return tuner.Arguments(grid=(1,), args=(x, y, out, x.stride(0), problem["N"]), outputs=["out_ptr"])


def decorated(**options):
    return tuner.tuned(**{"configs": CONFIGS, "key": ["N"], "name": "add", "make_inputs": inputs, **options})(add)


def test_a_key_of_any_names_is_a_problem_that_prints_pickles_and_comes_back_from_json():
    extras = {"M": 4096, "N": 1024, "Mean.dtype": "float32", "Rstd.dtype": "float32", "X.aligned": False}
    problem = Problem.keyed("layer_norm", extras, dtype="fp16")
    assert str(problem) == "layer_norm M=4096 N=1024 float16 float32(Mean,Rstd) unaligned(X)"
    assert (problem["N"], problem.torch_dtype, problem.aligned, problem.flops) == (1024, torch.float16, False, 0)
    assert Problem.from_fields(problem.fields()) == pickle.loads(pickle.dumps(problem)) == problem
    assert str(Problem.keyed("layer_norm", {"M": 4096, "N": 1024})) == "layer_norm M=4096 N=1024 float16"


def test_what_is_printed_to_type_is_read_back():
    problem = Problem.keyed(
        "add", {"N": 8, "CAUSAL": True, "KIND": "silu", "eps": 1e-5, "X.aligned": False}, dtype="bf16"
    )
    cells = generic_key.cells(problem_text.write_key(problem))
    dtype = cells.pop("dtype")
    assert Problem.keyed("add", {name: generic_key.value(cell) for name, cell in cells.items()}, dtype=dtype) == problem


@pytest.mark.parametrize(
    ("op", "extras", "message"),
    [
        ("matmul", {}, "'matmul' is an op of tuner.kernels: choose another name, my_matmul for instance"),
        ("a.b", {}, "'a.b' is no name of an op: expected letters, digits, '_', and single '-' between"),
        ("add", {"N": None}, "add: N must be a number, a boolean or a string, got None"),
        ("add", {"N.size": 3}, "add: 'N.size' is no name of a key: expected N, or an argument's fact such as X.dtype"),
    ],
)
def test_a_key_that_cannot_be_is_one_clear_line(op, extras, message):
    with pytest.raises(TunerError, match=f"^{re.escape(message)}$"):
        Problem.keyed(op, extras)


def test_sizes_and_layouts_of_gemms_are_as_before():
    with pytest.raises(KeyError):
        tuner.Problem(16, 16, 16)["N"]
    with pytest.raises(TunerError, match="has keys of its own: expected M, N and K of 1"):
        tuner.Problem(16, 16, 16, op="add", layout=generic_key.LAYOUT)
    assert not tuner.Problem(16, 16, 16).is_keyed


def test_neighbours_differ_in_numbers_not_in_words_dtypes_or_truth_values():
    def at(**extras):
        return Problem.keyed("add", {"N": 1023, "CAUSAL": True, **extras})

    assert distance.key_distance(at(), at(N=2047)) == pytest.approx(1.0)
    assert distance.key_distance(at(), at(**{"X.aligned": False})) == 1.0
    assert distance.key_distance(at(), at(CAUSAL=False)) is None
    assert distance.key_distance(at(), at(KIND="silu")) is None
    assert distance.key_distance(at(), Problem.keyed("add", {"N": 1023, "CAUSAL": True}, dtype="bf16")) is None


def test_a_calls_problem_has_dtypes_alignments_and_strides_and_no_size_that_the_key_does_not_name():
    signature = decorated(key=[]).signature
    x = torch.zeros(100, dtype=torch.float16)
    call = {"x_ptr": x[1:], "y_ptr": x, "out_ptr": torch.zeros(4), "N": 17, "x_stride": 3}
    assert str(signature.problem(call)) == "add float16 float32(out_ptr) unaligned(x_ptr,x_stride)"
    assert (
        str(signature.problem({**call, "x_stride": 1})) == "add float16 float32(out_ptr) unaligned(x_ptr) one(x_stride)"
    )


def test_configs_are_kept_as_they_are_and_found_again():
    listed = [
        triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2),
        triton.Config(
            {"BLOCK": 64, "DTYPE": tl.float16, "EPS": 0.5, "ACT": add, "NONE": None}, num_ctas=2, maxnreg=128
        ),
    ]
    choices = ConfigList("add", listed)
    plain = Config("add", BLOCK=64, num_stages=2, num_warps=8)
    assert choices.of(listed[0]) == plain
    assert choices.find(plain) is listed[0]
    other = dict(choices.of(listed[1]))
    assert (other["DTYPE"], other["EPS"], other["NONE"], other["num_ctas"], other["maxnreg"]) == (
        "fp16",
        "0.5",
        "None",
        2,
        128,
    )
    assert choices.find(Config("add", **other)) is listed[1]
    assert choices.find(Config("add", BLOCK=32, num_warps=2)).num_warps == 2


def test_configs_have_one_order_though_a_parameter_is_a_number_in_one_and_a_word_in_another():
    choices = ConfigList("add", [triton.Config({"BLOCK": 64, "GROUP": group}) for group in (None, 8, 0.5, 2)])
    ordered = sorted(choices.of(config) for config in choices.listed)
    assert [config["GROUP"] for config in ordered] == [2, 8, "0.5", "None"]
    assert all(sorted(each) == ordered for each in itertools.permutations(ordered))
    assert Config("add", BLOCK=32, GROUP="None") < ordered[0] < Config("sub", BLOCK=32)


def test_a_space_is_every_combination_of_its_values():
    choices = ConfigList("add", {"BLOCK": (64, 128), "num_warps": (4, 8)})
    assert [(c.kwargs["BLOCK"], c.num_warps) for c in choices.listed] == [(64, 4), (64, 8), (128, 4), (128, 8)]


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([{"BLOCK": 64}], "add: {'BLOCK': 64} is no config: expected a triton.Config"),
        (
            [triton.Config({"BLOCK": {1}})],
            "add: BLOCK of a config is {1}: expected a number, a boolean",
        ),
        ({"BLOCK": 64}, "add: the space gives BLOCK as 64: expected its values, (64,)"),
        ({"BLOCK": (64, 128), "num_warps": ()}, "add: the space gives num_warps no value: expected at least one, or"),
        ({"BLOCK": iter(())}, "add: the space gives BLOCK no value: expected at least one, or leave it out"),
        ([triton.Config({}, pre_hook=hook) for hook in (print, repr)], "two configs differ in nothing that is kept"),
    ],
)
def test_configs_that_cannot_be_kept_are_one_clear_line(configs, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        ConfigList("add", configs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"reset_to_zero": ["out"]},
            "add: reset_to_zero names 'out', which is no argument of the kernel: it",
        ),
        ({"reset_to_zero": "out"}, "add: reset_to_zero names 'o', which is no argument of the kernel: it has x_ptr"),
        ({"version": "2"}, "version must be an integer from 1 on, got '2'"),
        *(
            ({"tolerance": value}, f"tolerance must be a number from 0 on, got {value!r}")
            for value in (-1, float("nan"), float("inf"), "0.1", True)
        ),
        ({"default": {"BLOCK": 64}}, "add: {'BLOCK': 64} is no config: expected a triton.Config"),
        (
            {"prune_configs_by": [len]},
            "add: prune_configs_by is a list: expected a dict of early_config_prune, perf_model, top_k",
        ),
        ({"name": "my add"}, "'my add' is no name of an op: expected letters, digits, '_', and single '-' between"),
    ],
)
def test_options_that_cannot_be_meant_are_one_clear_line(options, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        decorated(**options)


def test_a_name_of_the_key_that_is_no_argument_is_left_out_with_a_warning_as_triton_leaves_it_out(caplog):
    kernel = decorated(key=["N", "n"])
    assert caplog.messages == ["add: its key names n, which is no argument of it: left out"]
    assert kernel.keys == ["N"]
    assert "n" not in kernel.spec.read({"N": "64", "dtype": "fp16"}).fields()["extras"]


def test_a_string_in_place_of_a_list_names_an_argument_or_one_a_letter_as_for_triton():
    kernel = decorated(key="N", reset_to_zero="out_ptr", restore_value=None)
    assert (kernel.keys, kernel.reset_to_zero, kernel.restore_value) == (["N"], ["out_ptr"], [])
    sized = tuner.tuned(CONFIGS, "MN", name="sized")(sizes)
    assert sized.keys == ["M", "N"]


@triton.jit
def sizes(x_ptr, M, N):
    tl.store(x_ptr, M + N)


def test_an_unknown_way_to_prune_is_left_out_with_a_warning_as_triton_leaves_it_out(caplog):
    kernel = decorated(prune_configs_by={"early": None, "top_k": 2})
    assert caplog.messages == [
        "add: prune_configs_by has no early: left out, expected early_config_prune, perf_model, top_k"
    ]
    assert kernel.configs_top_k == 2


@pytest.mark.parametrize("configs", [None, []])
def test_without_configs_there_is_tritons_own(configs):
    theirs = triton.autotune(configs=[], key=[])(add)
    assert decorated(configs=configs).configs == theirs.configs


def test_what_others_read_of_an_autotuner_is_there_as_triton_has_it():
    hook = lambda *_, **__: None  # noqa: E731
    prune = {"early_config_prune": hook, "perf_model": hook, "top_k": 1}
    options = {"pre_hook": hook, "post_hook": hook, "prune_configs_by": prune, "do_bench": hook}
    for given in ({}, {"reset_to_zero": ["out_ptr"], "restore_value": ["y_ptr"]}, options):
        theirs = triton.autotune(CONFIGS, ["N"], **given)(add)
        mine = decorated(make_inputs=None, **given)
        assert isinstance(mine, triton.KernelInterface)
        for name, value in vars(theirs).items():
            if not callable(value) or given is options:
                assert getattr(mine, name) == value, name
            else:
                assert callable(getattr(mine, name)), name
        assert (mine.nargs, mine.configs_timings, mine.bench_time, mine.best_config) == (None, {}, 0.0, None)
        if given is options:
            assert mine.do_bench is hook
    kernel = decorated(prune_configs_by={"early_config_prune": lambda configs, named, **_: configs[named["N"] :]})
    kernel.nargs = {"N": 1}
    assert kernel.prune_configs({}) == CONFIGS[1:]


@pytest.mark.parametrize("below", [triton.autotune, tuner.tuned])
def test_what_chooses_configs_below_it_is_refused(below):
    named = "@tuner.tuned" if below is tuner.tuned else "@triton.autotune"
    chosen = triton.heuristics({"x_stride": lambda args: 1})(below(CONFIGS, ["N"])(add))
    with pytest.raises(UsageError, match=f"^again: {named} stands below, and tuner.tuned takes its place: remove it$"):
        tuner.tuned(CONFIGS, ["N"], name="again")(chosen)


def test_torch_wraps_it_as_it_wraps_autotuned_kernels():
    def graph(kernel):
        def call(x, y):
            out = torch.empty_like(x)
            torch.library.wrap_triton(kernel)[lambda meta: (64 // meta["BLOCK"],)](x, y, out, 1, 64)
            return out

        traced = make_fx(call, tracing_mode="fake")(torch.ones(64), torch.ones(64))
        return re.sub("kernel_idx = [0-9]+|constant_args_idx = [0-9]+", "", traced.code)

    assert "triton_kernel_wrapper_mutation" in graph(decorated())
    assert graph(decorated()) == graph(triton.autotune(CONFIGS, ["N"])(add))


def test_a_function_without_jit_is_refused():
    with pytest.raises(UsageError, match=r"put it below$"):
        tuner.tuned(CONFIGS, [], name="python")(lambda x: x)
    with pytest.raises(UsageError, match=r"found 7: put @triton.jit below it$"):
        tuner.tuned(CONFIGS, [], name="number")(7)


def test_of_two_kernels_of_one_name_each_has_its_own_problems_and_a_module_loaded_again_adds_none():
    mine, again = decorated(), decorated()
    theirs = tuner.tuned(CONFIGS, [], name="add")(triton.jit(other.fn))
    assert registry.references() == (mine.spec.origin, theirs.spec.origin)
    assert sorted(registry.of("add")) == ["add", f"add ({theirs.spec.origin})"]
    for kernel in (theirs, again):
        problem = kernel.signature.keyed({}, "float16")
        assert registry.find("add", "add", problem.source) is kernel.spec
        assert registry.serving(problem, H200) == [kernel.spec]


@triton.jit
def other(x_ptr):
    tl.store(x_ptr, 1)


def test_inputs_are_made_without_memory_on_no_gpu_whatever_device_they_name():
    kernel = decorated()
    problem = kernel.spec.read({"N": "1000000000", "dtype": "bf16"})
    assert str(problem) == "add N=1000000000 bfloat16 one(x_stride)"
    made = kernel.spec.make_inputs(kernel.spec.read({"N": "64"}), "cpu", 3)
    assert [made.named[name].device.type for name in ("x_ptr", "out_ptr")] == ["cpu", "cpu"]
    torch.manual_seed(7)
    following = torch.randn(1)
    torch.manual_seed(7)
    again = kernel.spec.make_inputs(kernel.spec.read({"N": "64"}), "cpu", 3)
    assert torch.equal(made.named["x_ptr"], again.named["x_ptr"])
    assert torch.equal(torch.randn(1), following)  # the caller's generator was left alone


def looking(problem):
    made = inputs(problem)
    assert made.args[0].sum().item() != 0
    return made


def test_inputs_that_look_at_values_are_made_on_the_cpu():
    assert str(decorated(make_inputs=looking).spec.read({"N": "64"})) == "add N=64 float16 one(x_stride)"


def writing(*outputs):
    return lambda problem: dataclasses.replace(inputs(problem), outputs=outputs)


def always(**extras):
    return lambda problem: inputs(Problem.keyed("add", extras))


@pytest.mark.parametrize(
    ("make", "cells", "message"),
    [
        (None, "N=8", "add has no make_inputs, so nothing is known to measure it on: give one, @add.mak"),
        (lambda problem: 7, "N=8", "make_inputs of add returned a int: expected tuner.Arguments"),
        (
            lambda problem: problem["M"],
            "N=8",
            f"({__file__}, line ",
        ),
        (inputs, "N=8,dtype=int64", "make_inputs of add failed for add N=8 int64: NotImplementedError"),
        (
            lambda p: tuner.Arguments((1,), (), 8),
            "N=8",
            "make_inputs of add: kwargs is a int: expected arguments",
        ),
        (
            lambda p: tuner.Arguments(7),
            "N=8",
            "make_inputs of add: grid is a int: expected programs along one",
        ),
        (lambda p: tuner.Arguments("x"), "N=8", "make_inputs of add: grid is a str: expected programs along one to"),
        (lambda p: tuner.Arguments((1,), 7), "N=8", "make_inputs of add: args is a int: expected a tuple; write tuner"),
        (lambda p: tuner.Arguments((1,), (), {}, 3), "N=8", "make_inputs of add: outputs is a int: expected a list"),
        (lambda p: tuner.Arguments((1,), (), {}, "x"), "N=8", "make_inputs of add: outputs is a str: expected a list"),
        (
            lambda p: tuner.Arguments((1,), held=[1]),
            "N=8",
            "make_inputs of add: held is a list: expected objects by",
        ),
        (
            lambda p: dataclasses.replace(inputs(p), outputs=()),
            "N=8",
            "make_inputs of add names no outputs, and nothing wins",
        ),
        (
            lambda p: dataclasses.replace(inputs(p), outputs=["N"]),
            "N=8",
            "make_inputs of add: output 'N' is no tensor of the call",
        ),
        (
            lambda p: inputs(Problem.keyed("add", {"N": 9})),
            "N=8",
            "make_inputs of add made add N=9 float16 one(x_stride) for add N=8",
        ),
        (
            lambda p: inputs(Problem.keyed("add", {"N": 8})),
            "N=8,dtype=bf16",
            "dtype is float16, expected bfloat16: heed it there",
        ),
        (
            inputs,
            "N=8,x_ptr.aligned=false",
            "x_ptr.aligned is not there, expected False: heed it there, or leave it out",
        ),
    ],
)
def test_inputs_that_cannot_be_are_one_clear_line(make, cells, message):
    kernel = decorated(make_inputs=make)
    if make is None:
        assert message in kernel.spec.unmeasurable(kernel.spec.read(generic_key.cells(cells)))
        return
    with pytest.raises(KernelError, match=re.escape(message)) as raised:
        kernel.spec.read(generic_key.cells(cells))
    assert "\n" not in str(raised.value)


def test_a_reference_that_raises_is_one_clear_line():
    kernel = decorated(make_inputs=inputs, reference=lambda given: given["M"])
    spec = kernel.spec
    made = spec.make_inputs(spec.read({"N": "8"}), "cpu", 0)
    with pytest.raises(
        KernelError, match=r"^the reference of add failed: KeyError: 'M' \(.*test_tuned\.py, line \d+\)$"
    ):
        spec.reference(made)
    spec = decorated(make_inputs=inputs, reference=lambda _given: torch.zeros(3)).spec
    with pytest.raises(KernelError, match=r"^reference gave shape \[3\] for "):
        spec.reference(spec.make_inputs(spec.read({"N": "8"}), "cpu", 0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N", "not a problem: 'N': expected NAME=VALUE pairs, for instance M=4096,N=1024"),
        ("N=8,N=9", "not a problem: 'N=8,N=9': N is there twice"),
        ("M=8", "add has no key 'M': expected N, dtype"),
        (
            "N=8,x_ptr.dtype=3",
            "unknown dtype '3': expected torch's name or a short one, float16 or fp16 for instance",
        ),
        ("N=8,x_ptr.aligned=maybe", "add: x_ptr.aligned is 'maybe': expected false, or nothing where it is aligned"),
        ("N=8,x_ptr.aligned=true", "add: x_ptr.aligned is True: expected false, or nothing where it is aligned"),
        ("N=8,x_stride.one=false", "add: x_stride.one is False: expected true, or nothing where it is not 1"),
        ("N=8,dtype=fp12", f"torch {torch.__version__} has no dtype 'fp12': expected float16 or fp16 for instance"),
    ],
)
def test_a_problem_that_was_mistyped_is_one_clear_line(text, message):
    with pytest.raises(TunerError, match=f"^{re.escape(message)}$"):
        decorated().spec.read(generic_key.cells(text))


def test_the_dtype_of_one_argument_may_have_its_short_name():
    read = decorated(make_inputs=None).spec.read
    assert read({"N": "8", "x_ptr.dtype": "fp32"}) == read({"N": "8", "x_ptr.dtype": "float32"})


def test_a_space_offers_the_list_and_refuses_what_is_not_in_it():
    spec = decorated().spec
    problem = spec.read({"N": "64"})
    space = spec.space(problem, H200)
    listed = [Config("add", BLOCK=block, num_stages=3, num_warps=4) for block in (64, 128)]
    assert space.configs() == sorted(listed)
    assert spec.default_config(problem, H200) == listed[0]
    assert space.odd_parameters(listed[0]) == set()
    reason = space.rejection(listed[0].replace(BLOCK=32), fatal_only=True)
    assert reason == "configs: it is none of the configs that the decorator lists"
    assert spec.supports(Problem(1, 1, 1), H200) == "a problem of it is tuner.Problem.keyed('add', ...)"
    assert spec.supports(Problem.keyed("add", {"M": 3}), H200) == "its key has no M: it is N"


@pytest.mark.parametrize(
    ("dtype", "off", "right"),
    [
        (torch.float16, 2.0**-8, True),
        (torch.float16, 2.0**-5, False),
        (torch.bfloat16, 2.0**-5, True),
        (torch.float32, 2.0**-8, True),
        (torch.float32, 2.0**-5, False),
        (torch.int32, 0.0, True),
        (torch.int32, 1.0, False),
    ],
)
def test_an_output_is_right_within_some_roundings_of_its_size_and_whole_numbers_exactly(dtype, off, right):
    expected = torch.linspace(-100, 100, 201).to(dtype)
    output = expected.clone()
    output[7] += torch.tensor(off * 100).to(dtype)
    assert (accuracy.error_ratio(output, expected) <= 1) is right


def test_a_whole_number_that_is_wrong_is_told_from_one_that_nobody_wrote():
    found = verify.Comparison(
        accuracy.error_ratio(torch.tensor([1, 2]), torch.tensor([1, 3])), False, 1.0, output="out_ptr"
    )
    assert found.failure.startswith("out_ptr is off by 1.")
    nobody_wrote = torch.full((2,), torch.nan)
    found = verify.Comparison(accuracy.error_ratio(nobody_wrote, torch.ones(2), tolerance=0), False, 1.0)
    assert found.failure.startswith("left elements unwritten")


def test_of_several_outputs_the_worst_is_named_and_one_that_seems_unwritten_with_what_it_may_need():
    kernel = decorated(make_inputs=writing("x_ptr", "out_ptr"))
    made = kernel.spec.make_inputs(kernel.spec.read({"N": "8"}), "cpu", 0)
    expected = {name: tensor.clone() for name, tensor in made.written().items()}
    made.named["out_ptr"][3] += 1000
    assert re.match(
        r"out_ptr is off by \d[\d.e+]* times what is accepted$", verify.check(made, expected, 8, 1.0).failure
    )
    made.named["x_ptr"][3] = torch.nan
    said = verify.check(made, expected, 8, 1.0).failure
    assert said.startswith(
        "left elements of x_ptr unwritten, or wrote NaN or infinity; an output that the kernel adds to"
    )


def test_an_element_that_nobody_wrote_is_wrong_and_one_that_is_nan_in_both_is_not():
    for dtype in (torch.float16, torch.float8_e5m2, torch.int8, torch.uint8, torch.bool):
        output = torch.zeros(4).to(dtype)
        accuracy.poison(output)
        assert accuracy.error_ratio(output, torch.zeros(4).to(dtype)) > 1
    nan = torch.full((4,), torch.nan)
    assert accuracy.error_ratio(nan, nan) == 0
    assert accuracy.error_ratio(torch.zeros(4), torch.zeros(4) + 1, tolerance=3) <= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add", "'add' is no reference: expected package.module:name or path/of/file.py:name"),
        ("no_such_package.module:add", "there is no module 'no_such_package.module': run from its folder"),
        ("json:kernel", "json has no 'kernel': expected the name of a kernel in it"),
    ],
)
def test_a_reference_that_leads_nowhere_is_one_clear_line(text, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        reference.load(text)


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path):
    message = rf"^there is no file {tmp_path}/absent.py: expected path/of/file.py:name"
    with pytest.raises(KernelError, match=message):
        reference.load(f"{tmp_path}/absent.py:add")


def test_a_module_that_raises_is_one_clear_line(tmp_path):
    (tmp_path / "broken.py").write_text("raise ValueError('no such GPU')")
    with pytest.raises(KernelError, match=r"broken.py cannot be imported: ValueError: no such GPU$"):
        reference.load(f"{tmp_path}/broken.py:add")
    (tmp_path / "calling.py").write_text("from tuner.errors import InputError\nraise InputError('a is on cpu')")
    with pytest.raises(KernelError, match=r"calling.py cannot be imported: InputError: a is on cpu$"):
        reference.load(f"{tmp_path}/calling.py:add")
    (tmp_path / "inside.py").write_text("from . import sizes")
    message = r"inside.py cannot be imported: ImportError: .*relative import.*: name it as a module, my_pkg.my_module:"
    with pytest.raises(KernelError, match=message):
        reference.load(f"{tmp_path}/inside.py:add")


def test_a_kernel_that_a_child_cannot_import_is_said_when_it_is_asked_for():
    registry.load(["no_such_package:kernel"])
    with pytest.raises(KernelError, match="no_such_package:kernel did not load: UsageError: there is no module"):
        registry.serving(Problem.keyed("lost", {}), H200)
    registry._lost.clear()


def test_a_package_registers_a_decorated_kernel_by_its_entry_point(install, installed):
    kernel = decorated()
    registry._added.clear()
    install(installed("add.add", lambda: triton.heuristics({"x_stride": lambda args: 1})(kernel)))
    assert registry.find("add", "add") is kernel.spec
    assert kernel.arguments_factory.heuristics[0].keys() == {"x_stride"}


def test_tables_are_named_while_another_thread_launches_calls_of_other_forms():
    kernel, before = decorated(), sys.getswitchinterval()
    named = {"x_ptr": torch.ones(2), "y_ptr": torch.ones(2), "out_ptr": torch.ones(2), "x_stride": 1, "N": 2}
    forms = [dict(form) for form in itertools.permutations(named.items())]

    def remember() -> None:
        for form in forms:
            kernel._known.remember((), form, (CONFIGS[0], {}, None))

    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=remember)
    thread.start()
    try:
        while thread.is_alive():
            kernel._known.forget()
    finally:
        thread.join()
        sys.setswitchinterval(before)
    assert len(kernel._known.readers) == len(forms)


@pytest.mark.parametrize("given", [{}, {"__package__": None, "__spec__": None}], ids=["pdb", "cProfile"])
def test_a_kernel_of_a_script_is_imported_from_it_whatever_runs_it(given):
    """Their globals of a script, which `sys.modules` need not have."""
    script = {"__name__": "__main__", "__file__": "/scripts/train.py", **given}
    exec("def doubled(x_ptr): pass", script)
    assert origin_of(object(), script["doubled"], ["__main__"]) == "/scripts/train.py:doubled"
