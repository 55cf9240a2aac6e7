"""Kernels under `tuner.tuned` as they are launched: which config a call gets, and that nothing else changed."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import hashlib
import importlib.util
import inspect
import json
import logging
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
import uuid
from typing import NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import tuner
from tuner.errors import KernelError, ProblemError, TunerError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup import misses
from tuner.problem import Problem
from tuner.store.store import RunStatus, Store
from tuner.sweep import gpu_lock
from tuner.tuned import on_miss

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


pytestmark = pytest.mark.usefixtures("no_tables", "no_added_kernels")


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

    def name(op, *winners, of=None):
        """Without `of`, the kernel that was tuned, rows do not say for which source, as before they could."""
        made = make_row().made
        rows = [
            make_row(made=made).__class__(
                of.signature.keyed(dict(problem.extras), problem.a_dtype) if of else problem,
                *(config, 1, made, 10.0, 1.5, None, 1),
            )
            for problem, config in winners
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
    won("near", (key("near", N=100), config("near", 64, 8)), (key("near", N=4096), config("near", 64, 4)), of=kernel)
    assert call(kernel, 100) is CONFIGS[3]
    assert caplog.records == []
    assert [call(kernel, size) for size in (3000, 3000, 60)] == [CONFIGS[2], CONFIGS[2], CONFIGS[3]]
    assert [record.getMessage().partition(": using that of ")[0] for record in caplog.records] == [
        "no tuned config for near N=3000 float32 one(x_stride) on interpreter",
    ]
    told, typed = caplog.records[0].getMessage(), f"tuner run --kernel {__name__}:doubled"
    problem = "--problem N=3000,x_stride.one=true,dtype=float32"
    assert told.endswith(f"to tune it: give the kernel inputs (@doubled.make_inputs), then {typed} {problem}")
    kernel.make_inputs(lambda problem: None)
    tuner.use(None)
    won("near", (key("near", N=100), config("near", 64, 8)), of=kernel)
    call(kernel, 3000)
    assert caplog.records[-1].getMessage().endswith(f"to tune it: {typed} {problem}")


def test_a_table_that_is_named_during_a_keys_first_launch_is_asked_from_the_next_on(won):
    def named_by_another_thread(_arguments):
        won("meanwhile", (key("meanwhile", N=100), config("meanwhile", 64, 8)), of=kernel)

    def hook(arguments):
        thread = threading.Thread(target=named_by_another_thread, args=(arguments,))
        thread.start()
        thread.join()

    first = triton.Config({"BLOCK": 16}, num_warps=4, pre_hook=hook)
    kernel = tuner.tuned([first, *CONFIGS[1:]], ["N"], name="meanwhile", default=first)(doubled)
    assert [call(kernel, 100) for _ in range(2)] == [first, CONFIGS[3]]


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
    won("given", (key("given", N=4096), config("given", 64, 8)), of=kernel)
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


def test_configs_of_its_own_that_early_config_prune_returns_are_launched_measured_and_looked_up(database):
    def own(_configs, _named, **_rest):
        return [triton.Config({"BLOCK": block}, num_warps=2) for block in (32, 128)]

    prune = {"early_config_prune": own}
    for tune_on_miss in (False, True):
        kernel = tuner.tuned(
            CONFIGS, ["N"], name="own", prune_configs_by=prune, restore_value=["y_ptr"], tune_on_miss=tune_on_miss
        )(doubled)
        assert call(kernel, 300).num_warps == 2
    won_by = call(kernel, 300)
    again = tuner.tuned(CONFIGS, ["N"], name="own", prune_configs_by=prune)(doubled)
    tuner.use(None)
    assert call(again, 300).all_kwargs() == won_by.all_kwargs()


def test_what_prunes_and_raises_is_one_clear_line():
    prune = {"early_config_prune": lambda configs, named, **_: configs[named["M"] :]}
    kernel = tuner.tuned(CONFIGS, ["N"], name="raising", prune_configs_by=prune)(doubled)
    with pytest.raises(KernelError, match=r"^prune_configs_by of raising failed: KeyError: 'M'$"):
        call(kernel, 300)


def test_what_prunes_by_an_argument_that_a_call_gives_by_name_is_told_where_it_is():
    prune = {"early_config_prune": lambda configs, named, **_: configs[named["N"] :]}
    kernel = tuner.tuned(CONFIGS, ["N"], name="by_name", prune_configs_by=prune)(doubled)
    x = torch.ones(64)
    message = "prune_configs_by of by_name failed: KeyError: 'N': the call gives N by name, so take it from **kwargs"
    with pytest.raises(KernelError, match=f"^{re.escape(message)}$"):
        kernel[(1,)](x, torch.empty_like(x), 1, N=64)


@pytest.mark.parametrize(
    ("most", "message"),
    [
        (0.1, "top_k of ranked is 0.1 and leaves none of 4 configs: expected one"),
        (0, "top_k of ranked is 0 and leaves none of 4 configs: expected one"),
        (-1, "top_k of ranked is -1 and leaves none of 4 configs: expected one"),
        (2.5, "top_k of ranked is 2.5: expected an integer, or a share up to 1.0"),
        ("2", "top_k of ranked is '2': expected an integer, or a share up to 1.0"),
    ],
)
def test_a_top_k_that_leaves_no_config_or_is_no_number_is_one_clear_line(caplog, most, message):
    prune = {"perf_model": lambda BLOCK, **_: -BLOCK, "top_k": most}
    kernel = tuner.tuned(CONFIGS, ["N"], name="ranked", prune_configs_by=prune)(doubled)
    with pytest.raises(KernelError, match=f"^{re.escape(message)}$"):
        call(kernel, 300)
    assert [said for said in caplog.messages if not said.startswith("no tuned config")] == []


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


STORING = """
import sys
import torch, triton, triton.language as tl
import tuner

@tuner.tuned([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})], ["N"], name="stored", tune_on_miss=True)
@triton.jit
def stored(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < N), mask=at < N)

print("ready", flush=True)
sys.stdin.readline()
for size in range(int(sys.argv[1]), int(sys.argv[1]) + 6):
    stored[(triton.cdiv(size, 16),)](torch.ones(size), torch.zeros(size), size)
"""


def test_processes_that_tune_on_a_miss_at_once_and_beside_a_run_store_every_winner_and_trial(database, tmp_path):
    (tmp_path / "storing.py").write_text(STORING)
    command = [sys.executable, "storing.py"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with contextlib.ExitStack() as held:
        started = [
            held.enter_context(subprocess.Popen([*command, str(first)], **pipes, cwd=tmp_path, text=True))
            for first in (17, 33, 49)
        ]
        assert [process.stdout.readline() for process in started] == ["ready\n"] * 3
        store = held.enter_context(Store.open(str(database)))
        held.enter_context(store.sole_writer())  # as a run does for as long as it takes
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [process.communicate(timeout=100)[1] for process in started]
        assert [process.returncode for process in started] == [0] * 3, told
        lines = "".join(told).splitlines()  # neither a miss before each nor a count of misses at the end
        assert (len(lines), {line.partition(" N=")[0] for line in lines}) == (18, {"tuned stored"}), told
        assert (len(store.winners()), store.count_trials()) == (18, 36)
        assert {run.status for run in store.runs()} == {RunStatus.DONE}


def test_tune_on_miss_does_not_wait_for_a_card_that_another_process_measures_on(database, caplog, monkeypatch):
    card = f"GPU-test-{uuid.uuid4()}"
    opened = on_miss.open_session
    monkeypatch.setattr(on_miss, "open_session", lambda *args: dataclasses.replace(opened(*args), gpu_uuid=card))
    kernel = tuner.tuned(CONFIGS, ["N"], name="busy", restore_value=["y_ptr"], tune_on_miss=True)(doubled)
    with gpu_lock.hold([card]):
        call(kernel, 300)
    assert f"is not tuned now: {card} is measured on by process {os.getpid()}" in caplog.text
    call(kernel, 301)
    with contextlib.closing(sqlite3.connect(database)) as store:
        assert store.execute("select distinct gpu_uuid from trial").fetchall() == [(card,)]
        assert store.execute("select count(*) from winner").fetchone() == (1,)
    gpu_lock.hold([card], wait=False).close()
    (gpu_lock.FOLDER / f"triton-tuner-gpu-{card}.lock").unlink()


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


class Pair(NamedTuple):
    x: torch.Tensor
    n: int


@triton.jit
def stepped(pair, y_ptrs, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(pair.x + at, mask=at < pair.n) + 1
    tl.store(pair.x + at, v, mask=at < N)
    tl.store(y_ptrs[0] + at, v + (BLOCK == 64), mask=at < N)  # one of the blocks is wrong


def test_measuring_leaves_alone_what_a_call_holds_in_tuples_and_compares_it(database):
    kernel = tuner.tuned(CONFIGS, ["N"], name="stepped", tune_on_miss=True)(stepped)
    x, y = torch.zeros(100), torch.zeros(100)
    kernel[grid](Pair(x, 100), (y,), 100)
    assert torch.equal(x, torch.ones(100))
    assert kernel.best_config.kwargs == {"BLOCK": 16}
    with contextlib.closing(sqlite3.connect(database)) as store:
        states = store.execute("select state, count(*) from trial group by state order by state").fetchall()
    assert states == [("COMPLETE", 2), ("WRONG_RESULT", 2)]


@triton.jit
def twice_by_address(table, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(table + 1).to(tl.pointer_type(tl.float32))
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(y + at, 2 * tl.load(x + at, mask=at < N), mask=at < N)


def test_what_cannot_be_compared_is_not_measured_on_a_miss(database, caplog):
    kernel = tuner.tuned(CONFIGS, ["N"], name="of_a_table", tune_on_miss=True)(twice_by_address)
    x, y = torch.randn(100), torch.zeros(100)
    kernel[grid](torch.tensor([x.data_ptr(), y.data_ptr()]), 100)
    assert torch.equal(y, 2 * x)
    assert "is not tuned now: table holds addresses" in caplog.text
    kernel = tuner.tuned(CONFIGS, ["N"], name="of_no_change", tune_on_miss=True)(doubled)
    kernel[grid](torch.zeros(100), torch.zeros(100), 1, 100)
    assert "is not tuned now: of_no_change changes none of its arguments here" in caplog.text
    with contextlib.closing(sqlite3.connect(database)) if database.exists() else contextlib.nullcontext() as store:
        assert store is None or not store.execute("select * from winner").fetchall()


def test_outputs_within_a_tuple_are_named_by_their_places():
    kernel = tuner.tuned(CONFIGS, ["N"], name="placed")(stepped)

    @kernel.make_inputs
    def inputs(problem):
        size, pair = problem["N"], Pair(torch.zeros(problem["N"]), problem["N"])
        return tuner.Arguments(grid, (pair, (torch.empty(size),), size), outputs=["y_ptrs.0"])

    made = kernel.spec.make_inputs(kernel.spec.read({"N": "100"}), "cpu", 0)
    assert made.nbytes == 2 * 400
    expected = kernel.spec.reference(made)
    assert [*expected] == ["y_ptrs.0"]
    assert torch.equal(expected["y_ptrs.0"], torch.ones(100))


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


@pytest.mark.parametrize("change", ["another list", "in place"])
def test_configs_that_take_the_place_of_the_list_are_heeded(won, change):
    kernel = tuner.tuned(CONFIGS, ["N"], name="changed")(doubled)
    won("changed", (key("changed", N=100), config("changed", 64, 8)), of=kernel)
    assert call(kernel, 100) is CONFIGS[3]
    other = triton.Config({"BLOCK": 32})
    if change == "in place":
        kernel.configs[:] = [other]
        assert call(kernel, 101) is other
    else:
        kernel.configs = [other]
        assert call(kernel, 100) is other
    assert kernel.spec.default_config(key("changed", N=7), INTERPRETER) == config("changed", 32)
    kernel.configs = CONFIGS
    assert call(kernel, 100) is CONFIGS[3]


@pytest.mark.parametrize(("configs", "zeroed"), [(CONFIGS, True), (CONFIGS[:1], False)])
def test_what_is_reset_to_zero_is_so_at_the_first_call_of_a_key_as_triton_does_it(configs, zeroed):
    totals = []
    theirs = triton.autotune(configs, ["N"], reset_to_zero=["total_ptr"], do_bench=lambda *_, **__: [1.0] * 3)(summed)
    for kernel in (theirs, tuner.tuned(configs, ["N"], name="reset", reset_to_zero=["total_ptr"])(summed)):
        memory, found = torch.ones(65), []
        total = torch.full((1,), 100.0)
        for x, size in ((memory[:64], 64), (memory[:64], 64), (memory[1:], 64), (memory[:32], 32)):
            kernel[grid](x, total, size, False)
            found.append(total.item())
            if kernel is not theirs:
                tuner.use(None)  # all is looked up again, and nothing is zeroed for that
        totals.append(found)
    assert totals[0] == totals[1]
    assert (totals[0][0] == 64) is zeroed


def test_parameters_and_descriptors_are_reset_too_and_an_argument_that_is_left_out_is_not():
    total = torch.nn.Parameter(torch.full((1,), 100.0))
    kernel = tuner.tuned(CONFIGS, ["N"], name="parameter", reset_to_zero=["total_ptr"])(summed)
    kernel[grid](torch.ones(64), total, 64, True)
    assert total.item() == 64
    y = torch.full((128,), 7.0)
    described = [TensorDescriptor(each, [128], [1], [16]) for each in (torch.ones(128), y)]
    kernel = tuner.tuned(CONFIGS[:2], ["N"], name="described", reset_to_zero=["desc_y"])(copied)
    kernel[(1,)](*described, 128)
    assert y.sum() == 16
    kernel = tuner.tuned(CONFIGS, ["N"], name="left_out", reset_to_zero=["b_ptr"])(optional)
    kernel[grid](torch.zeros(64), None, N=64)


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
    assert max(made.error_ratios(reference).values()) > 1
    kernel.spec.launch(made, config("grouped", 16))
    assert max(made.error_ratios(reference).values()) == 0


MODULE = """
import triton, triton.language as tl
import tuner

@tuner.tuned([triton.Config({"BLOCK": block}) for block in (16, 64)], ["N"], restore_value=["y_ptr"])
@triton.jit
def scaled(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, times(tl.load(x_ptr + at, mask=at < N)), mask=at < N)

@triton.jit
def times(x):
    return x * 2

@scaled.make_inputs
def inputs(problem):
    x = torch.randn(problem["N"])
    return tuner.Arguments(lambda meta: (triton.cdiv(problem["N"], meta["BLOCK"]),), (x, x.clone(), problem["N"]))
import torch
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Write a module into a folder of its own and import it, whatever else has its name."""

    def imported(name, text, folder="one"):
        path = tmp_path / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module.scaled

    return imported


def scale(kernel, factor):
    x = torch.randn(100)
    y = torch.zeros(100)
    kernel[grid](x, y, 100)
    assert torch.equal(y, factor * x)
    return kernel.best_config.kwargs["BLOCK"]


OTHER = MODULE.replace("x * 2", "x * 3")


@pytest.mark.parametrize("again", [("theirs", "one"), ("mine", "two"), ("mine", "one")])
def test_kernels_of_one_name_from_two_modules_from_one_edited_or_under_one_name_keep_apart(imported, won, again):
    first = imported("mine", MODULE)
    assert scale(first, 2) == 16  # Triton's interpreter reads the file at the first call
    second = imported(again[0], OTHER, again[1])
    won("scaled", (Problem.keyed("scaled", {"N": 100}, dtype="float32"), config("scaled", 64)), of=first)
    for _ in range(2):
        assert (scale(first, 2), scale(second, 3)) == (64, 16)
    problems = [kernel.spec.read({"N": "100", "dtype": "float32"}) for kernel in (first, second)]
    assert len({*problems}) == 2
    assert "another source" in first.spec.supports(problems[1], INTERPRETER)


def test_a_row_for_another_source_is_not_served_where_its_kernel_was_never_imported(imported, won, caplog):
    """One module is as good as another: what another process tuned says by itself for which source."""
    gone = imported("mine", MODULE)
    registry._added.clear()
    won("scaled", (Problem.keyed("scaled", {"N": 100}, dtype="float32"), config("scaled", 64)), of=gone)
    kernel = imported("theirs", OTHER)
    assert scale(kernel, 3) == 16
    assert [record.getMessage().partition(": using")[0] for record in caplog.records] == [
        "no tuned config for scaled N=100 float32 on interpreter"
    ]


def test_the_same_source_under_another_module_and_loaded_again_is_the_same_kernel(imported, won):
    tuned = imported("mine", MODULE)
    won("scaled", (Problem.keyed("scaled", {"N": 100}, dtype="float32"), config("scaled", 64)), of=tuned)
    assert scale(imported("__main__moved", "# moved\n\n" + MODULE), 2) == 64
    assert scale(imported("mine", MODULE), 2) == 64


def test_kernels_that_one_function_makes_are_measured_and_served_each_by_itself(database, caplog):
    def make(factor):
        if factor == 2:

            def scaled(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
                at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < N), mask=at < N)

        else:

            def scaled(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
                at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                tl.store(y_ptr + at, 3 * tl.load(x_ptr + at, mask=at < N), mask=at < N)

        return tuner.tuned(CONFIGS[:2], ["N"], name="made", tune_on_miss=True)(triton.jit(scaled))

    double, triple = make(2), make(3)
    for _ in range(2):
        scale(double, 2)
        scale(triple, 3)
        double.cache.clear()
    with contextlib.closing(sqlite3.connect(database)) as store:
        assert store.execute("select count(*) from winner where superseded_by is null").fetchone() == (2,)


@pytest.mark.parametrize("fits", [True, False])
def test_a_database_of_before_sources_serves_only_what_its_text_was_tuned_for(make_database, make_row, tmp_path, fits):
    kernel = tuner.tuned(CONFIGS, ["N"], name="formerly")(doubled)
    row = dataclasses.replace(make_row(), problem=key("formerly", N=100), config=config("formerly", 64, 8))
    path = make_database(tmp_path / "formerly.db", row, device=INTERPRETER)
    text = inspect.getsource(kernel.base_fn) if fits else "another package's"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("update kernel set source_hash = ?", [hashlib.sha256(text.encode()).hexdigest()])
        database.commit()
    tuner.use(path)
    assert call(kernel, 100) is CONFIGS[3 if fits else 0]


def test_a_row_of_before_sources_were_recorded_serves_with_a_line_that_says_so(won, caplog):
    for name, default in (("plainly", None), ("defaulted", CONFIGS[0])):
        kernel = tuner.tuned(CONFIGS, ["N"], name=name, default=default)(doubled)
        won(name, (key(name, N=100), config(name, 64, 8)), (key(name, N=50), config(name, 64, 4)))
        assert call(kernel, 100) is CONFIGS[3]
        assert "whose row does not say for which source it was tuned" in caplog.messages[-1]
    assert call(kernel, 51) is CONFIGS[0]


class Mode(enum.Enum):
    FAST = object()


class Order(enum.IntEnum):
    ROWS = 7


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (np.float32("nan"), "nan"),
        ((1, math.nan), "1;nan"),
        ([[1, 2], [3]], "1x2;3"),
        (np.int64(7), "7"),
        (np.bool_(True), "True"),
        (-0.0, "0.0"),
        (10**400, str(10**400)),
        ("long " * 200, "long " * 200),
        ("\ud800", "\\ud800"),
        (b"\0a", "0061"),
        (Mode.FAST, "Mode.FAST"),
        (Order.ROWS, "7"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        (tl.bfloat16, "bfloat16"),
        (tl.constexpr(math.inf), "inf"),
        (relu, "relu@"),
    ],
)
def test_a_key_takes_what_triton_takes_looks_it_up_once_and_is_kept_in_plain_json(database, value, word):
    looked = []
    default = lambda problem: (looked.append(problem), CONFIGS[1])[1]  # noqa: E731  asked once a lookup
    kernel = tuner.tuned(CONFIGS, ["kind", "N"], name="kindly", default=default)(shaped)
    for size in (8, 4):  # the second is borrowed from nobody, however far
        for _ in range(3):
            kernel[grid](torch.zeros(8), value if value is relu else copy.copy(value), N=size)
    assert kernel.best_config is CONFIGS[1]
    assert len(kernel.cache) == len({*looked}) == 2
    assert all(len(reader.known) == 2 for reader in kernel._known.readers.values())
    for problem in kernel.cache:
        assert str(problem["kind"]).startswith(word)
        text = json.dumps(problem.fields(), allow_nan=False)
        assert Problem.from_fields(json.loads(text)) == problem


@pytest.mark.parametrize("value", [np.array(3), np.zeros((30, 30)), dict.fromkeys(range(10_000)), torch.device("cpu")])
def test_a_key_that_no_table_can_hold_is_one_short_line(value):
    kernel = tuner.tuned(CONFIGS, ["kind", "N"], name="odd")(shaped)
    with pytest.raises(ProblemError, match=r"odd: kind of the key is .*: expected a number") as raised:
        kernel[grid](torch.zeros(8), value, N=8)
    assert len(str(raised.value)) < 400


def test_a_miss_with_a_very_long_word_is_a_short_warning_whose_advice_can_be_followed(database, caplog):
    kernel = tuner.tuned(CONFIGS, ["kind", "N"], name="wordy")(shaped)
    kernel[grid](torch.zeros(8), "x" * 200_000, N=8)
    (warned,) = (record.getMessage() for record in caplog.records if "wordy" in record.getMessage())
    assert len(warned) < 2000
    assert warned.endswith("to record and tune it: TUNER_MISSES=misses.json, then tuner run --from-misses misses.json")


def test_keys_are_one_where_triton_has_one():
    kernel = tuner.tuned(CONFIGS, ["kind", "N"], name="alike")(shaped)
    for same in ((True, 1, 1.0, np.int64(1)), (0.0, -0.0, False)):
        kernel.cache.clear()
        for value in same:
            kernel[grid](torch.zeros(8), value, N=8)
        assert len(kernel.cache) == 1


def test_a_jit_function_of_the_key_is_known_by_what_it_computes():
    kernel = tuner.tuned(CONFIGS, ["kind", "N"], name="functions")(shaped)
    for function in (relu, doubled, triton.jit(relu.fn)):
        kernel[grid](torch.zeros(8), function, N=8)
    assert len(kernel.cache) == 2
