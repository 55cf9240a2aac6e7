"""Run the source of `block_scaled_warp_specialized` with threads and numpy instead of Triton; print the differences.

Gluon has no interpreter. Stand-ins replace Triton's modules before the kernel is imported: a partition is a thread, TMA
and asynchronous copies are a thread that copies later and out of order, a wgmma reads its operands only when it is
waited for, a TMA store its buffer only when that is waited for. So a stage that is released or read too early gives
wrong sums, and a barrier that is never completed a time-out. It cannot check layouts, PTX or the memory model.

Usage: emulated_ring.py; the JSON is a list of {case, fault, difference}.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import random
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).parents[3] / "kernels" / "gemm" / "block_scaled" / "hopper_jit.py"
LIMIT_S = 6.0
THREADS = 32
"""Threads of the loading warp, which arrive one by one where they copy."""
CASES = [
    # M, N, K; BLOCK_SIZE_M and N; EPILOGUE_PARTS, STAGES, GROUP_SIZE_M; whether TMA can read the scales.
    ((260, 296, 1536), (128, 128), (2, 3, 2), True),
    ((260, 296, 1536), (128, 128), (4, 5, 16), True),
    ((131, 200, 896), (128, 128), (2, 3, 1), False),
    ((131, 200, 896), (128, 64), (1, 4, 4), False),
    ((61, 264, 1152), (64, 128), (4, 3, 1), False),
    ((64, 200, 2048), (64, 64), (1, 12, 1), True),
    ((5, 136, 2048), (8, 64), (1, 2, 1), False),
    ((13, 136, 512), (16, 128), (2, 3, 1), True),
    ((1, 72, 72), (8, 64), (1, 4, 1), False),
]
FAULTS = {
    "a stage released before its operands were read": (
        "            second, first = warpgroup_mma_wait(1, deps=(second, first))\n"
        "            mbarrier.arrive(free.index(before), count=1)\n",
        "            mbarrier.arrive(free.index(before), count=1)\n"
        "            second, first = warpgroup_mma_wait(1, deps=(second, first))\n",
    ),
    "another stage released": (
        "            mbarrier.arrive(free.index(before), count=1)\n            sums",
        "            mbarrier.arrive(free.index(stage), count=1)\n            sums",
    ),
    "products added before they were there": ("warpgroup_mma_wait(1, deps", "warpgroup_mma_wait(2, deps"),
    "the scale of another step": ("== step % VECTOR", "== step % 2"),
    "another row's scale": ("of_rows.slice(FIRST,", "of_rows.slice(64 - FIRST,"),
    "one arrival too few": ("else 33)", "else 32)"),
}
context = threading.local()
failures: list[str] = []
engine: queue.Queue = queue.Queue()


class Tensor(np.ndarray):
    @property
    def type(self):
        return types.SimpleNamespace(layout=None)

    def expand_dims(self, axis):
        return np.expand_dims(self, axis)

    def permute(self, order):
        return self.transpose(order)

    def split(self):
        return self[..., 0], self[..., 1]

    def to(self, dtype, bitcast=False):
        return self.view(np.int32 if dtype is INT32 else np.float32) if bitcast else self


def tensor(array):
    return np.asarray(array).view(Tensor)


class Constant(int):
    @property
    def value(self):
        return int(self)


class Pointer:
    def __init__(self, array, at=0):
        self.array, self.at = array, at

    def __add__(self, offsets):
        return Pointer(self.array, self.at + offsets)


class Memory:
    """A view of shared memory, whose every first value is NaN."""

    def __init__(self, array, dtype):
        self.array, self.dtype = array, dtype

    def index(self, i):
        assert 0 <= i < len(self.array)
        return self.array[i] if isinstance(self.array[i], Barrier) else Memory(self.array[i], self.dtype)

    def slice(self, start, length, dim):
        assert 0 <= start <= start + length <= self.array.shape[dim]
        return Memory(self.array[(slice(None),) * dim + (slice(start, start + length),)], self.dtype)

    def permute(self, order):
        return Memory(self.array.transpose(order), self.dtype)

    def reshape(self, shape):
        view = self.array.reshape(shape)
        assert np.shares_memory(view, self.array)
        return Memory(view, self.dtype)

    def load(self, layout):
        jitter()
        return tensor(self.array.copy())

    def store(self, values):
        assert self.array.shape == values.shape
        self.array[...] = values


class Barrier:
    def __init__(self):
        self.condition = threading.Condition()
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count):
        self.count = self.pending = count

    def arrive(self, expected=0, times=1):
        with self.condition:
            self.bytes += expected
            self.pending -= times
            assert min(self.pending, self.bytes) >= 0, "more arrivals or bytes than expected"
            if self.pending == self.bytes == 0:
                self.phase ^= 1
                self.pending = self.count
                self.condition.notify_all()

    def wait(self, phase):
        with self.condition:
            if not self.condition.wait_for(lambda: self.phase != phase, LIMIT_S):
                raise TimeoutError("a barrier was never completed")


class Descriptor:
    def __init__(self, array, block, dtype):
        self.array, self.dtype, self.layout = array, dtype, None
        self.block_type = types.SimpleNamespace(shape=list(block))
        self.bytes = int(np.prod(block)) * dtype.primitive_bitwidth // 8

    def load_into(self, at, memory):
        # Coordinates along a row are multiples of 16 bytes.
        assert at[1] * self.dtype.primitive_bitwidth % 128 == 0
        assert list(memory.array.shape) == self.block_type.shape
        there = self.array[at[0] : at[0] + memory.array.shape[0], at[1] : at[1] + memory.array.shape[1]]
        memory.array[...] = 0
        memory.array[: there.shape[0], : there.shape[1]] = there


class DType:
    def __init__(self, name, bits):
        self.name, self.primitive_bitwidth = name, bits

    def is_int(self):
        return self.name.startswith("int")


INT32, INT64, FLOAT32 = DType("int32", 32), DType("int64", 64), DType("fp32", 32)


class Pending:
    """The products of a wgmma, which nobody may read yet."""

    def __init__(self, a, b):
        self.operands, self.value = (a, b), None

    def done(self):
        a, b = self.operands
        self.value = tensor(a.array @ b.array)


def jitter():
    if random.random() < 0.02:
        time.sleep(random.random() * 0.001)


def copy_out_of_order():
    held = []
    while True:
        with contextlib.suppress(queue.Empty):
            held.append(engine.get(timeout=0.0005))
        while held and (len(held) > 3 or random.random() < 0.7):
            held.pop(random.randrange(len(held)))()


def guarded(function, *arguments):
    try:
        function(*arguments)
    except Exception as e:  # noqa: BLE001  whatever fails in a thread is told
        failures.append(f"{getattr(function, '__name__', function)}: {type(e).__name__}: {e}")


def async_load(desc, at, barrier, memory):
    def copy():
        desc.load_into(at, memory)
        barrier.arrive(expected=-desc.bytes, times=0)

    engine.put(lambda: guarded(copy))


def copy_global_to_shared(memory, pointer, mask):
    context.copies.append((memory, pointer, mask))


def arrive_when_copied(barrier, increment_count):
    assert not increment_count
    copies, context.copies = context.copies, []

    def copy():
        for memory, pointer, mask in copies:
            inside = np.flatnonzero(mask)
            memory.array[...] = 0
            memory.array[inside] = pointer.array[np.asarray(pointer.at)[inside]]
        barrier.arrive(times=THREADS)

    engine.put(lambda: guarded(copy))


def warpgroup_mma(a, b, sums, use_acc, is_async):
    assert (is_async, use_acc) == (True, False)
    context.flight.append(Pending(a, b))
    return context.flight[-1]


def warpgroup_mma_wait(outstanding, deps):
    jitter()
    while len(context.flight) > outstanding:
        context.flight.pop(0).done()
    found = tuple(one.value if isinstance(one, Pending) and one.value is not None else one for one in deps)
    return found[0] if len(found) == 1 else found


def async_store(desc, at, memory):
    def copy():
        inside = desc.array[at[0] : at[0] + memory.array.shape[0], at[1] : at[1] + memory.array.shape[1]]
        inside[...] = memory.array[: inside.shape[0], : inside.shape[1]]

    context.stores.append(copy)


def store_wait(pending):
    while len(context.stores) > pending:
        context.stores.pop(0)()


def allocate(dtype, shape, layout):
    if dtype is not INT64:
        return Memory(np.full(shape, np.nan, np.float32), dtype)
    array = np.empty(shape[0], object)
    array[:] = [Barrier() for _ in range(shape[0])]
    return Memory(array, dtype)


def warp_specialize(partitions, warps, registers):
    program = context.program

    def run(function, arguments):
        context.program, context.flight, context.stores, context.copies = program, [], [], []
        function(*arguments)
        assert not context.flight + context.stores + context.copies

    together([(lambda one=one: guarded(run, *one)) for one in partitions])


def together(functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def install():
    """Put the stand-ins where kernels import Triton from."""

    def same(function=None, **_):
        return function or (lambda one: one)

    class Module(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *_, **__: None

    def module(name, **fields):
        made = sys.modules[name] = Module(name)
        made.__dict__.update(fields, __path__=[])
        return made

    gl = module(
        "triton.experimental.gluon.language",
        constexpr=Constant,
        constexpr_function=same,
        int32=INT32,
        int64=INT64,
        float32=FLOAT32,
        to_tensor=tensor,
        zeros=lambda shape, dtype, layout: tensor(np.zeros(shape, np.float32)),
        arange=lambda first, beyond, layout: tensor(np.arange(first, beyond, dtype=np.int32)),
        where=lambda which, x, y: tensor(np.where(which, x, y)) if np.ndim(which) else (x if which else y),
        sum=lambda x, axis: tensor(np.asarray(x).sum(axis=axis, dtype=x.dtype).reshape(1)),
        static_range=range,
        convert_layout=lambda x, *_, **__: x,
        program_id=lambda axis: context.program[0],
        num_programs=lambda axis: context.program[1],
        allocate_shared_memory=allocate,
        warp_specialize=warp_specialize,
    )
    tl = module("triton.language", constexpr=Constant, minimum=min, maximum=max)
    module("triton", jit=same, language=tl, __version__="3.7.1")
    module("triton.experimental", gluon=module("triton.experimental.gluon", jit=same, constexpr_function=same))
    sys.modules["triton.experimental.gluon"].language = gl
    mbarrier = module(
        "mbarrier",
        init=lambda barrier, count: barrier.init(count),
        wait=lambda barrier, phase: barrier.wait(phase),
        arrive=lambda barrier, count: barrier.arrive(times=count),
        expect=lambda barrier, size: barrier.arrive(expected=size),
    )
    copying = module("async_copy", async_load=copy_global_to_shared, mbarrier_arrive=arrive_when_copied)
    nvidia = "triton.experimental.gluon.language.nvidia"
    module(nvidia)
    module(f"{nvidia}.ampere", async_copy=copying)
    module(
        f"{nvidia}.hopper",
        mbarrier=mbarrier,
        tma=module("tma", async_load=async_load, async_store=async_store, store_wait=store_wait),
        warpgroup_mma=warpgroup_mma,
        warpgroup_mma_wait=warpgroup_mma_wait,
    )
    threading.Thread(target=copy_out_of_order, daemon=True).start()


def loaded(change=("", "")):
    """The kernel's module, with a part of its source replaced."""
    text = SOURCE.read_text()
    assert text.count(change[0]) == 1 or not change[0]
    kernel = sys.modules["emulated"] = types.ModuleType("emulated")
    exec(compile(text.replace(*change) if change[0] else text, "emulated", "exec"), kernel.__dict__)
    kernel.kept, kernel.await_predecessor = lambda sums: sums, lambda PDL: None
    from tuner.kernels.gemm.hopper import output

    output.synchronize, output.saturate = lambda: None, lambda values, dtype: values
    return kernel


def difference(kernel, shape, tile, others, by_tma):
    """The largest difference from float64, 0 if all is right; or what failed."""
    (m, n, k), (rows, columns), (parts, stages, group) = shape, tile, others
    draw, blocks, programs = np.random.default_rng(0), -(-k // 128), 2
    a, weight = (draw.integers(-3, 4, (extent, k)).astype(np.float32) for extent in (m, n))
    fine = draw.integers(1, 9, (blocks, m)).astype(np.float32) / 8
    coarse = draw.integers(1, 9, (-(-n // 128), blocks)).astype(np.float32) / 8
    out = np.full((m, n), np.nan, np.float32)
    f8, bf16 = DType("fp8", 8), DType("bf16", 16)
    scales = (Pointer(fine.ravel()), Pointer(coarse.ravel()), 1, m, 1, blocks)
    if by_tma:
        of_rows = Descriptor(fine, (1, max(64, rows)), FLOAT32)
        scales = (of_rows, Descriptor(coarse, (1, 32), FLOAT32), None, None, None, None)
    operands = (Descriptor(a, (rows, 128), f8), Descriptor(weight, (columns, 128), f8))
    stored = Descriptor(out, (64, columns // parts), bf16)
    tail = (m, n, k, *scales[2:], None, None, group, rows, columns, parts, max(1, rows // 64), stages, blocks % 4)
    failures.clear()

    def run(program):
        context.program = (program, programs)
        kernel.block_scaled_kernel(*operands, *scales[:2], stored, None, *tail, 40, 232, False, "none", False)

    together([(lambda program=program: guarded(run, program)) for program in range(programs)])
    if failures:
        return failures[0]
    scaled, weights = a * np.repeat(fine.T, 128, 1)[:, :k], np.repeat(np.repeat(coarse, 128, 0)[:n], 128, 1)[:, :k]
    return float(np.abs(out - scaled.astype(np.float64) @ (weight * weights).astype(np.float64).T).max())


def main() -> None:
    install()
    kernel = loaded()
    found = [{"case": str(case), "fault": None, "difference": difference(kernel, *case)} for case in CASES]
    for fault, change in FAULTS.items():
        faulty, case = loaded(change), CASES[2] if "arrival" in fault else CASES[0]
        # What comes too early is not always wrong.
        tries = (difference(faulty, *case) for _ in range(5))
        seen = next(itertools.dropwhile(lambda one: one == 0.0, tries), 0.0)
        found.append({"case": str(case), "fault": fault, "difference": seen})
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
