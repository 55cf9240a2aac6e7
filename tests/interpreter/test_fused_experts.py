"""fused_experts is right for any tokens, sizes and routing, with choices of no expert too, and refuses what is none."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from checked import check_configs
from torch.autograd import forward_ad

from tuner import Problem
from tuner.errors import InputError, KernelError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels import fused_experts
from tuner.kernels.base.activations import activated
from tuner.kernels.experts.operands import ExpertsOperands, make_operands, reference, tolerance, vendor
from tuner.kernels.ops import fused_experts as fused_experts_op
from tuner.launch import compat
from tuner.launch.plan import Recording
from tuner.problem.dtype import name_of
from tuner.problem.gemm_fields import ACTIVATIONS
from tuner.sweep import verify

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = ((16, 32), (24, 40), (33, 65), (96, 7), (1, 1))
"""N and K; of some neither is a multiple of any block."""


def problem_of(m: int, n: int, k: int, experts: int, top_k: int, **rest) -> Problem:
    extras = {"groups": experts, "top_k": top_k}
    return Problem(m, n, k, **{"layout": "nt", "epilogue": "silu", **rest}, op="fused_experts", extras=extras)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def given(m: int = 9, n: int = 24, k: int = 40, experts: int = 4, top_k: int = 2, dtype=torch.float32) -> list:
    """Tokens, weights, experts of each token, and shares of a token that add up to 1."""
    x, gate_up, down = drawn(m, k), drawn(experts, 2 * n, k) / k**0.5, drawn(experts, k, n) / n**0.5
    shares, chosen = drawn(m, experts, seed=1).softmax(-1).topk(top_k)
    return [*(each.to(dtype) for each in (x, gate_up, down)), chosen, shares / shares.sum(-1, keepdim=True)]


def expected(x, gate_up, down, experts, shares, activation: str = "silu") -> torch.Tensor:
    """Token by token and choice by choice, in float64."""
    rows = torch.zeros(x.shape, dtype=torch.float64)
    for token, choice in itertools.product(range(len(x)), range(experts.shape[1])):
        expert = int(experts[token, choice])
        if 0 <= expert < len(down):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            values = down[expert].double() @ (activated(gate, activation) * up)
            rows[token] += values * shares[token, choice].double()
    return rows


def limit_of(x: torch.Tensor, down: torch.Tensor) -> float:
    return tolerance(problem_of(1, down.shape[2], down.shape[1], 1, 1, dtype=name_of(x.dtype)))


def assert_right(out: torch.Tensor, tensors, activation: str = "silu") -> None:
    x, _, down, *_ = tensors
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    right = expected(*tensors, activation=activation)
    assert verify.error(out, right, x.shape[1]) <= limit_of(x, down)


PROBLEMS = [
    problem_of(5, 40, 70, 5, 2, dtype="fp16", epilogue="gelu"),
    problem_of(37, 48, 32, 3, 3, dtype="bf16"),
    problem_of(70, 33, 65, 4, 1, dtype="fp32", epilogue="none"),
    problem_of(1, 32, 64, 8, 4, dtype="fp32", precision="tf32"),
    problem_of(16, 32, 64, 2, 2, dtype="fp16", aligned=False),
    problem_of(41, 40, 72, 3, 2, dtype="bf16"),
]
BY_DESCRIPTOR = (PROBLEMS[1], PROBLEMS[5])


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_config_is_right_and_keeps_inside_its_output(problem):
    specs = {spec.name: spec for spec in registry.serving(problem, INTERPRETER)}
    assert set(specs) == {"experts_pointer"} | ({"experts_tma"} if problem in BY_DESCRIPTOR else set())
    for spec in specs.values():
        configs = {spec.default_config(problem, INTERPRETER), *spec.space(problem, INTERPRETER).configs()}
        check_configs(spec, problem, configs)


def test_the_reference_is_what_a_loop_over_tokens_gives():
    made = make_operands(PROBLEMS[0], "cpu", 3)
    made.experts[1:3, 0] = torch.tensor([-1, 5])
    right = expected(made.a, made.b, made.down, made.experts, made.shares, "gelu")
    torch.testing.assert_close(reference(made), right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m", [1, 5, 70])
def test_any_tokens_and_sizes(m, dtype):
    for n, k in SIZES:
        tensors = given(m, n, k, dtype=dtype)
        assert_right(fused_experts(*tensors), tensors)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation):
    tensors = given()
    assert_right(fused_experts(*tensors, activation=activation), tensors, activation)


@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_a_token_may_be_sent_to_one_expert_some_or_all(top_k):
    tensors = given(11, experts=8, top_k=top_k)
    assert_right(fused_experts(*tensors), tensors)


def test_one_expert_alone_and_more_experts_than_slots():
    for experts, top_k in ((1, 1), (50, 2)):
        tensors = given(6, experts=experts, top_k=top_k)
        assert_right(fused_experts(*tensors), tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shared", ["float32", "as x"])
def test_experts_of_both_widths_and_shares_of_both_dtypes(kind, shared, dtype):
    x, gate_up, down, experts, shares = given(dtype=dtype)
    shares = shares if shared == "float32" else shares.to(dtype)
    tensors = x, gate_up, down, experts.to(kind), shares
    assert_right(fused_experts(*tensors), tensors)


def test_shares_need_not_add_up_to_one_and_may_be_negative_or_zero():
    *tensors, _ = given()
    tensors = *tensors, torch.linspace(-1, 1, 18).reshape(9, 2)
    assert_right(fused_experts(*tensors), tensors)
    tensors = *tensors[:4], torch.zeros(9, 2)
    assert (fused_experts(*tensors) == 0).all()


def test_experts_without_a_token_and_one_with_all_of_them():
    x, gate_up, down, _, shares = given(40, experts=6)
    for chosen in ([0, 1], [5, 4], [3, 0]):
        tensors = x, gate_up, down, torch.tensor(chosen).expand(40, 2).contiguous(), shares
        assert_right(fused_experts(*tensors), tensors)


def test_an_expert_may_be_chosen_twice():
    x, gate_up, down, _, shares = given()
    tensors = x, gate_up, down, torch.tensor([2, 2]).expand(9, 2), shares
    assert_right(fused_experts(*tensors), tensors)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("none", [-1, 4, -(2**31), 2**31 - 1])
def test_a_choice_that_is_no_expert_is_left_out(none, kind):
    x, gate_up, down, experts, shares = given(20)
    experts = experts.to(kind)
    experts[3, 0] = experts[4, 1] = none
    experts[7] = experts[19] = none
    tensors = x, gate_up, down, experts, shares
    out = torch.full_like(x, float("nan"))
    fused_experts(*tensors, out=out)
    assert_right(out, tensors)
    assert (out[[7, 19]] == 0).all()
    assert (out[3] != 0).all()
    # Values of no expert count for nothing, whatever their share is.
    shares[3, 0] = shares[7, 0] = float("nan")
    assert torch.equal(fused_experts(*tensors), out)


@pytest.mark.parametrize("none", [-1, 4])
def test_all_choices_are_no_experts(none):
    x, gate_up, down, experts, shares = given()
    out = torch.full_like(x, float("nan"))
    assert fused_experts(x, gate_up, down, torch.full_like(experts, none), shares, out=out) is out
    assert (out == 0).all()


def test_an_expert_of_64_bits_is_not_read_as_one_of_32():
    x, gate_up, down, experts, shares = given()
    assert (fused_experts(x, gate_up, down, experts + 2**32, shares) == 0).all()


def test_more_slots_than_a_program_reads_at_a_time():
    x, gate_up, down, experts, shares = given(700, 8, 8, experts=3)
    experts[::7, 0] = -1
    tensors = x, gate_up, down, experts, shares
    assert_right(fused_experts(*tensors), tensors)


def test_rows_longer_than_a_program_of_the_last_launch():
    tensors = given(3, 8, 2500)
    assert_right(fused_experts(*tensors), tensors)


def test_the_result_is_written_into_out_and_nowhere_else():
    tensors = given(dtype=torch.float16)
    wide = torch.full((9, 60), 7.0, dtype=torch.float16)
    out = wide[:, 3:43]
    assert fused_experts(*tensors, out=out) is out
    assert_right(out, tensors)
    assert (wide[:, :3] == 7).all()
    assert (wide[:, 43:] == 7).all()
    assert torch.equal(out, fused_experts(*tensors))


def test_sizes_of_zero():
    x, gate_up, down, experts, shares = given()
    assert fused_experts(x[:0], gate_up, down, experts[:0], shares[:0]).shape == (0, 40)
    assert fused_experts(x[:, :0], gate_up[..., :0], down[:, :0], experts, shares).shape == (9, 0)
    without = [
        (x, gate_up[:, :0], down[..., :0], experts, shares),
        (x, gate_up, down, experts[:, :0], shares[:, :0]),
        (x, gate_up[:0], down[:0], experts[:, :0], shares[:, :0]),
    ]
    for tensors in without:
        out = torch.full_like(x, float("nan"))
        assert fused_experts(*tensors, out=out) is out
        assert (out == 0).all()


def test_repeated_calls_read_what_their_tensors_hold_then():
    tensors = given()
    out = torch.empty_like(tensors[0])
    for turn in range(3):
        assert_right(fused_experts(*tensors), tensors)
        fused_experts(*tensors, out=out)
        assert_right(out, tensors)
        x, _, _, experts, shares = tensors
        x.copy_(drawn(*x.shape, seed=turn + 5))
        experts.copy_((experts + 1) % 4)
        shares.copy_(shares.flip(1))


def test_calls_that_alternate_are_not_mixed_up():
    one, other = given(9), given(9, experts=6, top_k=3)
    narrow = [*one[:3], one[3].int(), one[4]]
    for _ in range(2):
        for tensors in (one, other, narrow):
            assert_right(fused_experts(*tensors), tensors)
        assert_right(fused_experts(*one, activation="relu"), one, "relu")


VIEWS = {
    "rows of x apart": lambda x, g, d, e, s: (spread(x), g, d, e, s),
    "one row of x for all": lambda x, g, d, e, s: (x[:1].expand(9, -1), g, d, e, s),
    "every other row of x": lambda x, g, d, e, s: (x.repeat_interleave(2, 0)[::2], g, d, e, s),
    "x off a 16-byte address": lambda x, g, d, e, s: (shifted(x), g, d, e, s),
    "rows of the weights apart": lambda x, g, d, e, s: (x, spread(g), spread(d), e, s),
    "weights off a 16-byte address": lambda x, g, d, e, s: (x, shifted(g), shifted(d), e, s),
    "experts in steps": lambda x, g, d, e, s: (x, g, d, e.repeat_interleave(2, 1)[:, ::2], s),
    "experts by columns": lambda x, g, d, e, s: (x, g, d, e.t().contiguous().t(), s),
    "shares by columns": lambda x, g, d, e, s: (x, g, d, e, s.t().contiguous().t()),
    "one share for all": lambda x, g, d, e, s: (x, g, d, e, torch.full((1, 1), 0.5).expand(9, 2)),
    "every other expert in numbers": lambda x, g, d, e, s: (x, g, d, e, s.repeat_interleave(3, 0)[::3]),
}


def spread(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 13), float("nan"), dtype=tensor.dtype)
    wide[..., 5:-8] = tensor
    return wide[..., 5:-8]


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    return room[1:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_views(view, dtype):
    tensors = VIEWS[view](*given(dtype=dtype))
    for _ in range(2):
        assert_right(fused_experts(*tensors), tensors)


def test_one_expert_of_a_weight_may_lie_anywhere():
    x, gate_up, down, _, _ = given(experts=5)
    tensors = x, gate_up[3:4], down[3:4], torch.zeros(9, 1, dtype=torch.int32), torch.ones(9, 1)
    assert_right(fused_experts(*tensors), tensors)


def test_the_key_is_sizes_dtype_experts_and_how_memory_lies(monkeypatch):
    asked = []
    monkeypatch.setattr(
        fused_experts_op, "launch", lambda tensors, problem, device: asked.append(problem) or Recording()
    )
    fused_experts(*given(dtype=torch.float16))
    fused_experts(*given(3, 16, 32, 6, 3), activation="none")
    x, *rest = given(dtype=torch.bfloat16)
    fused_experts(shifted(x), *rest)
    assert asked == [
        problem_of(9, 24, 40, 4, 2, dtype="fp16"),
        problem_of(3, 16, 32, 6, 3, dtype="fp32", epilogue="none"),
        problem_of(9, 24, 40, 4, 2, dtype="bf16", aligned=False),
    ]


@pytest.mark.parametrize("group_m", [1, 3])
@pytest.mark.parametrize("kernel", ["experts_pointer", "experts_tma"])
def test_rows_of_tiles_may_share_columns_of_a_weight(kernel, group_m):
    problem = problem_of(90, 64, 64, 2, 2, dtype="bf16")
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32}
    config = Config(kernel, **tile, GROUP_SIZE_M=group_m, num_stages=1, num_warps=4)
    inputs = make_operands(problem, "cpu", 2)
    verify.poison(inputs)
    registry.find("fused_experts", kernel).launch(inputs, config)
    assert verify.check(inputs, reference(inputs), 64, tolerance(problem)).failure is None


def test_drawn_inputs_send_each_token_to_top_k_experts_whose_shares_add_up_to_one():
    made = make_operands(problem_of(200, 16, 16, 16, 4, dtype="bf16"), "cpu", 0)
    assert all(len(set(row)) == 4 for row in made.experts.tolist())
    assert set(made.experts.flatten().tolist()) == set(range(16))
    torch.testing.assert_close(made.shares.sum(-1), torch.ones(200))
    again, other = (make_operands(made.problem, "cpu", seed) for seed in (0, 1))
    assert torch.equal(made.experts, again.experts)
    assert not torch.equal(made.experts, other.experts)


@pytest.mark.skipif(compat.grouped_mm is None, reason="this torch has no grouped GEMM")
def test_torchs_own_way_passes_the_same_check_and_says_what_it_lacks():
    problem = problem_of(30, 64, 128, 4, 2, dtype="bf16")
    made = make_operands(problem, "cpu", 0)
    vendor(made)
    assert verify.error(made.out, reference(made), 128) <= tolerance(problem)
    for lacking, words in (({"dtype": "fp16"}, "takes bfloat16, not float16"), ({"aligned": False}, "aligned to 16")):
        other = make_operands(problem_of(30, 64, 128, 4, 2, **{"dtype": "bf16", **lacking}), "cpu", 0)
        with pytest.raises(NotImplementedError, match=words):
            vendor(other)


WRONG = {
    "choices exchanged": lambda made: {"shares": made.shares.flip(1)},
    "other experts": lambda made: {"experts": (made.experts + 1) % 4},
    "one choice left out": lambda made: {"experts": torch.where(made.experts == 2, -1, made.experts)},
    "gate and up exchanged": lambda made: {"b": made.b.roll(made.b.shape[1] // 2, 1)},
    "the last column of N left out": lambda made: {
        "down": torch.cat([made.down[..., :-1], 0 * made.down[..., -1:]], 2)
    },
    "no share": lambda made: {"shares": torch.ones_like(made.shares)},
}


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("wrong", WRONG)
def test_the_judge_sees_each_kind_of_fault(wrong, dtype):
    problem = problem_of(64, 64, 128, 4, 2, dtype=dtype)
    made: ExpertsOperands = make_operands(problem, "cpu", 0)
    right = reference(made)
    assert verify.error(right.to(made.a.dtype), right, 128) <= tolerance(problem)
    found = reference(dataclasses.replace(made, **WRONG[wrong](made)))
    assert verify.error(found, right, 128) > 2 * tolerance(problem)


@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_a_gradient_is_refused_and_none_is_taken_under_no_grad(place, refused):
    tensors = given()
    tensors[place].requires_grad_()
    refused(lambda: fused_experts(*tensors), "requires a gradient, and there is none: call it under torch.no_grad()")
    with torch.no_grad():
        assert_right(fused_experts(*tensors), tensors)
        assert not fused_experts(*tensors).requires_grad
    refused(lambda: fused_experts(*tensors), "requires a gradient")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use of it, for tangents
def test_a_tangent_is_refused():
    x, *rest = given()
    with forward_ad.dual_level(), pytest.raises(InputError, match="an operand requires a gradient"):
        fused_experts(forward_ad.make_dual(x, x), *rest)


X, GATE_UP, DOWN, EXPERTS, SHARES = GIVEN = given(3, 8, 16)


def call(**changed):
    """A call of three tokens whose other arguments fit."""
    return fused_experts(**{"x": X, "gate_up": GATE_UP, "down": DOWN, "experts": EXPERTS, "shares": SHARES, **changed})


FIVE, FOUR_EACH = EXPERTS[:, :1].expand(3, 5), SHARES[:, :1].expand(3, 5)
ERRORS = {
    "x is None: expected a torch.Tensor": lambda: call(x=None),
    "gate_up is None: expected a torch.Tensor": lambda: call(gate_up=None),
    "down is of type list: expected a torch.Tensor": lambda: call(down=[1.0]),
    "experts is None: expected a torch.Tensor": lambda: call(experts=None),
    "shares is of type float: expected a torch.Tensor": lambda: call(shares=1.0),
    "gate_up is sparse_coo: expected a dense tensor": lambda: call(gate_up=GATE_UP.to_sparse()),
    "x is on meta": lambda: call(x=X.to("meta")),
    "experts is on meta and x on cpu: expected one device; use experts.to(x.device)": lambda: call(
        experts=EXPERTS.to("meta")
    ),
    "x is float64: expected one of float32, float16, bfloat16; convert it with x.to(...)": lambda: call(x=X.double()),
    "gate_up is float16: expected float32; use gate_up.to(...)": lambda: call(gate_up=GATE_UP.half()),
    "down is bfloat16: expected float32; use down.to(...)": lambda: call(down=DOWN.bfloat16()),
    "experts is float32: expected int64 or int32; use experts.to(...)": lambda: call(experts=EXPERTS.float()),
    "shares is float16: expected float32; use shares.to(...)": lambda: call(shares=SHARES.half()),
    "shares is float64: expected float32 or float16; use shares.to(...)": lambda: call(
        x=X.half(), gate_up=GATE_UP.half(), down=DOWN.half(), shares=SHARES.double()
    ),
    "x has shape [1, 3, 16], gate_up [4, 16, 16] and down [4, 16, 8]: expected [M, K], [E, 2 * N, K] and [E, K, N]": (
        lambda: call(x=X[None])
    ),
    "x has shape [3, 16], gate_up [16, 16] and down [4, 16, 8]: expected [M, K]": lambda: call(gate_up=GATE_UP[0]),
    "x [3, 15], gate_up [4, 16, 16] and down [4, 16, 8] do not fit: expected [M, 16] and [4, 16, 16] beside": (
        lambda: call(x=X[:, :15])
    ),
    "gate_up [4, 8, 16] and down [4, 16, 8] do not fit": lambda: call(gate_up=GATE_UP[:, :8]),
    "gate_up [3, 16, 16] and down [4, 16, 8] do not fit": lambda: call(gate_up=GATE_UP[:3]),
    "down [4, 8, 16] do not fit": lambda: call(down=DOWN.mT),
    "experts has shape [2, 2] and shares [3, 2]: expected [3, top_k] both": lambda: call(experts=EXPERTS[:2]),
    "experts has shape [3] and shares [3, 2]: expected [3, top_k] both": lambda: call(experts=EXPERTS[:, 0]),
    "experts has shape [3, 2] and shares [3, 1]: expected [3, top_k] both": lambda: call(shares=SHARES[:, :1]),
    "experts has shape [3, 5]: expected at most 4 choices of as many experts": lambda: call(
        experts=FIVE, shares=FOUR_EACH
    ),
    "x's rows are not contiguous: use x.contiguous()": lambda: call(x=X.t().contiguous().t()),
    "gate_up's rows are not contiguous: use gate_up.contiguous()": lambda: call(gate_up=GATE_UP.mT.contiguous().mT),
    "down's rows are not contiguous: use down.contiguous()": lambda: call(down=DOWN.mT.contiguous().mT),
    "gate_up's experts do not lie one behind the other: use gate_up.contiguous()": lambda: call(
        gate_up=GATE_UP.repeat_interleave(2, 0)[::2]
    ),
    "down's experts do not lie one behind the other: use down.contiguous()": lambda: call(
        down=DOWN[:1].expand(4, 16, 8)
    ),
    "activation is 'tanh': expected one of": lambda: call(activation="tanh"),
    "out has shape [3, 15]: expected [3, 16]": lambda: call(out=torch.empty(3, 15)),
    "out is float16: expected float32, as x is": lambda: call(out=torch.empty(3, 16).half()),
    "out is of type int: expected a torch.Tensor; leave out= away": lambda: call(out=3),
    "out's rows are not contiguous: use torch.empty_like(x)": lambda: call(out=torch.empty(16, 3).t()),
    "out has elements that share memory": lambda: call(out=torch.empty(1, 16).expand(3, 16)),
    "out shares memory with an operand": lambda: call(out=X),
    "requires a gradient": lambda: call(down=DOWN.clone().requires_grad_()),
}  # fmt: skip


@pytest.mark.parametrize("message", list(ERRORS))
def test_what_does_not_fit_is_one_clear_error(message, refused):
    refused(ERRORS[message], message)


REMEDIES = {
    "x's rows": lambda: call(x=X.t().contiguous().t().contiguous()),
    "gate_up's rows": lambda: call(gate_up=GATE_UP.mT.contiguous().mT.contiguous()),
    "gate_up's experts": lambda: call(gate_up=GATE_UP.repeat_interleave(2, 0)[::2].contiguous()),
    "experts.to": lambda: call(experts=EXPERTS.float().to(torch.int64)),
    "shares.to": lambda: call(shares=SHARES.double().to(torch.float32)),
    "x.to(...)": lambda: call(x=X.double().to(torch.float32)),
    "out": lambda: call(out=torch.empty_like(X)),
}


@pytest.mark.parametrize("remedy", REMEDIES)
def test_what_a_message_says_to_type_works(remedy):
    assert_right(REMEDIES[remedy](), GIVEN)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (problem_of(8, 16, 16, 4, 2, layout="nn"), "no layout nn: expected nt, weights stored"),
        (problem_of(8, 16, 16, 4, 2, epilogue="bias+silu"), "no epilogue bias.silu: experts have no bias"),
        (problem_of(8, 16, 16, 4, 2, dtype="e4m3"), "no float8_e4m3fn: it takes float32, float16, bfloat16"),
        (problem_of(8, 16, 16, 4, 2, dtype="bf16", out_dtype="fp32"), "tokens, weights and output are of one dtype"),
        (problem_of(8, 16, 16, 4, 5), "top_k is 5 of 4 experts"),
        (problem_of(8, 16, 16, 5000, 5), "expected at most as many, and 4096 experts"),
        (problem_of(8, 2**30, 16, 4, 2), "N is 1073741824: expected at most 1073741823, as gate and up have twice as"),
        (problem_of(2**30, 16, 16, 4, 2), "1073741824 tokens with 2 experts each: expected at most 2147483647"),
        (
            Problem(8, 16, 16, layout="nt", op="fused_experts", extras={"groups": 4}),
            "top_k is None: expected an integer",
        ),
        (
            Problem(8, 16, 16, layout="nt", op="fused_experts", extras={"top_k": 4}),
            "groups is None: expected an integer",
        ),
        (
            Problem(8, 16, 16, layout="nt", op="fused_experts", extras={"groups": 4, "top_k": 2, "listed": True}),
            "no extras listed: leave them out",
        ),
    ],
    ids=str,
)
def test_a_problem_that_is_none_is_refused_with_the_reason(problem, reason):
    with pytest.raises(KernelError, match=reason):
        registry.serving(problem, INTERPRETER)


@pytest.mark.long
def test_torch_compile_runs_it_between_its_graphs():
    torch.compiler.reset()
    graphs = []

    def counted(graph, _inputs):
        graphs.append(graph)
        return graph

    x, *rest = given()
    compiled = torch.compile(lambda x, *rest: fused_experts(x * 2, *rest) + 1, backend=counted)
    for _ in range(2):
        right = expected(x * 2, *rest) + 1
        torch.testing.assert_close(compiled(x, *rest).double(), right, rtol=1e-5, atol=1e-5)
    assert 1 <= len(graphs) <= 4
