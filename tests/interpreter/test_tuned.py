"""Kernels under `tuner.tuned` as they are launched: which config a call gets, and that nothing else changed."""

from __future__ import annotations

import contextlib
import logging
import sqlite3

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import tuner
from tuner.errors import TunerError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup import misses
from tuner.problem import Problem

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (16, 64) for warps in (4, 8)]


@triton.jit
def doubled(x_ptr, y_ptr, x_stride, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at * x_stride, mask=at < N), mask=at < N)


@triton.jit
def summed(x_ptr, total_ptr, N, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at) if EVEN else tl.load(x_ptr + at, mask=at < N, other=0.0)
    tl.atomic_add(total_ptr, tl.sum(x))


@triton.jit
def copied(desc_x, desc_y, N, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    desc_y.store([start], desc_x.load([start]))


@pytest.fixture(autouse=True)
def alone(monkeypatch, no_tables):
    """No kernel of another test's, and none of this one's for the next."""
    monkeypatch.setattr(registry, "_added", {})
    registry.forget()
    yield
    registry.forget()


@pytest.fixture
def database(monkeypatch, tmp_path):
    """The database that misses are measured into."""
    path = tmp_path / "tuner.db"
    monkeypatch.setenv("TUNER_DB", str(path))
    tuner.use(None)
    return path


@pytest.fixture
def won(tmp_path, make_row, make_table):
    """Name a table in which configs won problems of an op."""

    def name(op, *winners):
        made = make_row().made
        rows = [
            make_row(made=made).__class__(problem, config, 1, made, 10.0, 1.5, None, 1) for problem, config in winners
        ]
        table = make_table(*rows, device=INTERPRETER)
        tuner.use(table.__class__(op, table.device, table.date, table.rows).write(tmp_path))

    return name


def grid(meta):
    return (triton.cdiv(meta["N"], meta["BLOCK"]),)


def call(kernel, size=100, dtype=torch.float32, stride=1):
    x = torch.randn(size * stride).to(dtype)
    y = torch.zeros(size, dtype=dtype)
    kernel[grid](x, y, stride, size)
    assert torch.equal(y, 2 * x[::stride])
    return kernel.best_config


def config(kernel, block, warps=4):
    return Config(kernel, BLOCK=block, num_stages=3, num_warps=warps)


def key(op, dtype="float32", **extras):
    return Problem.keyed(op, {"x_stride.one": True, **extras}, dtype=dtype)


def test_a_tuned_key_gets_its_config_and_an_untuned_one_the_nearest_with_one_line_that_says_what_to_type(won, caplog):
    kernel = tuner.tuned(CONFIGS, ["N"], name="near")(doubled)
    won("near", (key("near", N=100), config("near", 64, 8)), (key("near", N=4096), config("near", 64, 4)))
    assert call(kernel, 100) is CONFIGS[3]
    assert caplog.records == []
    assert [call(kernel, size) for size in (3000, 3000, 60)] == [CONFIGS[2], CONFIGS[2], CONFIGS[3]]
    assert [record.getMessage().partition(": using that of ")[0] for record in caplog.records] == [
        "no tuned config for near N=3000 float32 one(x_stride) on interpreter",
    ]
    assert caplog.records[0].getMessage().endswith("doubled --problem N=3000,x_stride.one=true,dtype=float32")


def test_neighbours_are_listed_though_a_key_is_a_number_in_one_and_a_word_in_another(won):
    tuner.tuned(CONFIGS, ["N"], name="mixed", default=CONFIGS[0])(doubled)
    won("mixed", *((key("mixed", N=size), config("mixed", 64)) for size in ("none", 8, "many", 2)))
    assert "\nnearest tuned problems:\n" in tuner.explain(key("mixed", "float16", N=8))


def test_dtypes_and_strides_are_part_of_the_key_without_being_named(won):
    kernel = tuner.tuned(CONFIGS, ["N"], name="unnamed")(doubled)
    won(
        "unnamed",
        (key("unnamed", N=64), config("unnamed", 64, 8)),
        (key("unnamed", "float16", N=64), config("unnamed", 64, 4)),
        (Problem.keyed("unnamed", {"N": 64}, dtype="float32"), config("unnamed", 16, 8)),
        (Problem.keyed("unnamed", {"N": 64, "x_stride.aligned": False}, dtype="float32"), config("unnamed", 16, 4)),
    )
    found = [call(kernel, 64), call(kernel, 64, torch.float16), call(kernel, 64, stride=16), call(kernel, 64, stride=3)]
    assert found == [CONFIGS[3], CONFIGS[2], CONFIGS[1], CONFIGS[0]]


def test_an_address_that_16_bytes_do_not_divide_is_another_key(won):
    kernel = tuner.tuned(CONFIGS, ["N"], name="shifted")(doubled)
    won(
        "shifted",
        (key("shifted", N=8), config("shifted", 64)),
        (key("shifted", N=8, **{"x_ptr.aligned": False}), config("shifted", 16)),
    )
    memory, y = torch.zeros(64), torch.zeros(8)
    blocks = []
    for start in (0, 1, 4, 1):
        kernel[grid](memory[start:], y, 1, 8)
        blocks.append(kernel.best_config.kwargs["BLOCK"])
    assert blocks == [64, 16, 64, 16]


def test_where_nobody_tuned_the_given_default_serves_and_no_neighbour_does(won):
    by_size = lambda problem: CONFIGS[1 if problem["N"] > 1000 else 2]  # noqa: E731
    kernel = tuner.tuned(CONFIGS, ["N"], name="given", default=by_size)(doubled)
    won("given", (key("given", N=4096), config("given", 64, 8)))
    assert [call(kernel, size) for size in (4096, 2000, 500)] == [CONFIGS[3], CONFIGS[1], CONFIGS[2]]


def test_nothing_is_measured_and_nothing_written_on_a_miss(database):
    kernel = tuner.tuned(CONFIGS, ["N"], name="silent")(doubled)
    assert call(kernel) is CONFIGS[0]
    assert not database.exists()


def test_a_config_that_is_no_longer_listed_is_not_used(won):
    kernel = tuner.tuned(CONFIGS, ["N"], name="shrunk")(doubled)
    won("shrunk", (key("shrunk", N=100), config("shrunk", 32)))
    assert call(kernel, 100) is CONFIGS[0]


def test_configs_that_prune_configs_by_leaves_out_are_neither_borrowed_nor_the_default(won):
    def early(configs, named, **kwargs):
        return [each for each in configs if each.kwargs["BLOCK"] <= {**named, **kwargs}["N"]]

    prune = {"early_config_prune": early, "perf_model": lambda BLOCK, **_: -BLOCK, "top_k": 1}
    kernel = tuner.tuned(CONFIGS, ["N"], name="pruned", prune_configs_by=prune)(doubled)
    assert call(kernel, 100) is CONFIGS[2]
    won("pruned", (key("pruned", N=4096), config("pruned", 64)))
    assert call(kernel, 20).kwargs == {"BLOCK": 16}


def test_tune_on_miss_measures_copies_once_and_the_next_process_looks_it_up(database, caplog):
    caplog.set_level(logging.WARNING)
    kernel = tuner.tuned(CONFIGS, ["N"], name="measured", restore_value=["y_ptr"], tune_on_miss=True)(doubled)
    first = call(kernel, 300)
    assert "tuned measured N=300 float32 one(x_stride) in" in caplog.text
    with contextlib.closing(sqlite3.connect(database)) as store:
        assert store.execute("select count(*) from winner").fetchone() == (1,)
        assert store.execute("select count(*), count(distinct state) from trial").fetchone() == (4, 1)
    caplog.clear()
    tuner.use(None)
    kernel.cache.clear()
    assert call(kernel, 300) == first
    assert caplog.records == []


def test_what_a_measured_kernel_adds_to_is_added_to_once(database):
    kernel = tuner.tuned(CONFIGS[:3], ["N"], name="added", tune_on_miss=True)(summed)
    x, total = torch.ones(64), torch.full((1,), 5.0)
    kernel[grid](x, total, 64, True)
    assert total.item() == 69.0


def test_measured_copies_keep_the_strides_and_the_memory_that_views_share(database):
    kernel = tuner.tuned(CONFIGS, ["N"], name="views", tune_on_miss=True)(doubled)
    both = torch.randn(2 * 300)
    before = both[0::2].clone()
    kernel[grid](both, both[300:], 2, 100)  # reads every second element of the first 200
    assert torch.equal(both[300:400], 2 * before[:100])


@pytest.mark.parametrize("above", [False, True])
def test_heuristics_work_above_and_below(above):
    even = triton.heuristics({"EVEN": lambda args: args["N"] % 16 == 0})
    decorate = tuner.tuned(CONFIGS[:1], ["N"], name=f"even_{above}")
    kernel = even(decorate(summed)) if above else decorate(even(summed))
    for size in (64, 60, 64):
        x, total = torch.ones(64), torch.zeros(1)
        kernel[grid](x, total, size)
        assert total.item() == size


def test_a_configs_pre_hook_sets_the_block_of_descriptors_before_each_launch():
    def shape(args):
        for name in ("desc_x", "desc_y"):
            args[name].block_shape = [args["BLOCK"]]

    configs = [triton.Config({"BLOCK": block}, pre_hook=shape) for block in (16, 32)]
    kernel = tuner.tuned(configs, ["N"], name="described", default=configs[1])(copied)
    x = torch.randn(128)
    for _ in range(3):
        y = torch.zeros(128)
        kernel[lambda meta: (128 // meta["BLOCK"],)](
            TensorDescriptor(x, [128], [1], [1]), TensorDescriptor(y, [128], [1], [1]), 128
        )
        assert torch.equal(x, y)
    assert kernel.best_config is configs[1]


def test_one_line_of_a_program_may_pass_none_here_and_a_tensor_there():
    kernel = tuner.tuned(CONFIGS, ["N"], name="kinds")(optional)
    for _ in range(2):
        for bias in (None, torch.ones(64), torch.ones(64).half()):
            y = torch.zeros(64)
            kernel[grid](y, bias, N=64)
            assert torch.equal(y, torch.zeros(64) if bias is None else torch.ones(64))
            assert kernel.best_config is CONFIGS[0]
    assert sorted(map(str, kernel.cache)) == ["kinds N=64 float32", "kinds N=64 float32 float16(b_ptr)"]


@triton.jit
def optional(y_ptr, b_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if b_ptr is not None:
        tl.store(y_ptr + at, tl.load(b_ptr + at, mask=at < N).to(tl.float32), mask=at < N)


def test_a_key_may_be_a_list_a_dtype_or_none():
    kernel = tuner.tuned(CONFIGS, ["kind", "N"], name="kindly")(shaped)
    for kind in ([2, 3], torch.float16, None, [2, 3]):
        y = torch.zeros(8)
        kernel[grid](y, kind, N=8)
        assert y.sum() == 8
    assert [*map(str, kernel.cache)] == [f"kindly N=8 kind={kind} float32" for kind in ("2x3", "float16", "none")]


@triton.jit
def shaped(y_ptr, kind: tl.constexpr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 1.0, mask=at < N)


def test_every_call_of_a_missed_key_is_counted(tmp_path):
    kernel = tuner.tuned(CONFIGS, ["N"], name="counted")(doubled)
    tuner.record_misses(tmp_path / "misses.json")
    for size in (100, 100, 100, 50):
        call(kernel, size)
    tuner.flush_misses()
    tuner.record_misses(None)
    found = misses.load(tmp_path / "misses.json").problems("interpreter")
    assert {str(problem): calls for problem, calls in found.items()} == {
        "counted N=100 float32 one(x_stride)": 3,
        "counted N=50 float32 one(x_stride)": 1,
    }


def test_a_call_that_gives_what_configs_give_is_one_clear_line():
    kernel = tuner.tuned(CONFIGS, ["N"], name="twice")(doubled)
    with pytest.raises(
        TunerError, match=r"^twice: BLOCK is given by the call and by configs: leave one out$"
    ) as raised:
        kernel[grid](torch.zeros(4), torch.zeros(4), 1, 4, BLOCK=16)
    assert raised.value.__context__ is None, "a traceback would begin with the key that was not found"


def test_run_launches_as_the_brackets_do_and_a_call_without_a_grid_is_refused():
    kernel = tuner.tuned(CONFIGS, ["N"], name="plain")(doubled)
    x, y = torch.ones(8), torch.zeros(8)
    kernel.run(x, y, 1, 8, grid=(1,), warmup=False)
    assert y.sum() == 16
    with pytest.raises(TunerError, match=r"^plain needs a grid: doubled\[grid\]"):
        kernel(x, y, 1, 8)


def test_a_database_named_later_is_asked_anew(won):
    kernel = tuner.tuned(CONFIGS, ["N"], name="renewed")(doubled)
    assert call(kernel, 100) is CONFIGS[0]
    won("renewed", (key("renewed", N=100), config("renewed", 64, 8)))
    assert call(kernel, 100) is CONFIGS[3]


@triton.jit
def by_address(addresses, count, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for each in range(count):
        x = tl.load(addresses + 2 * each).to(tl.pointer_type(tl.float32))
        y = tl.load(addresses + 2 * each + 1).to(tl.pointer_type(tl.float32))
        tl.store(y + at, 2 * tl.load(x + at, mask=at < N), mask=at < N)


def test_outputs_that_only_a_table_of_addresses_names_are_compared():
    kernel = tuner.tuned(CONFIGS, ["count"], name="grouped")(by_address)

    @kernel.make_inputs
    def inputs(problem):
        x, y = ([torch.randn(20) for _ in range(problem["count"])] for _ in range(2))
        table = torch.tensor([each.data_ptr() for pair in zip(x, y, strict=True) for each in pair])
        return tuner.Arguments((2,), (table, problem["count"], 20), outputs=y, held={"x": x})

    @kernel.reference
    def expected(args):
        return tuple(2 * x for x in args["x"])

    problem = kernel.spec.read({"count": "3"})
    assert str(problem) == "grouped count=3 int64"
    made = kernel.spec.make_inputs(problem, "cpu", 0)
    reference = kernel.spec.reference(made)
    made.poison()
    assert made.error_ratio(reference) > 1
    kernel.spec.launch(made, config("grouped", 16))
    assert made.error_ratio(reference) == 0
