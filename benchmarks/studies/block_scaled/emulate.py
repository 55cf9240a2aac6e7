"""Run the kernels' own Python source with threads and numpy instead of Triton, to check protocol and numbers.

Gluon has no interpreter. This replaces Triton's modules by small stand-ins before the kernels are imported: a partition
of warps is a thread, TMA is a thread that copies later, a wgmma reads its operands only when it is waited for, and a
TMA store only when its buffer is waited for. So a stage that is released or read too early gives wrong numbers here, and a
barrier that is never completed a time-out. What this cannot check: what Triton and ptxas make of the source, layouts.
"""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
import types

import numpy as np

context = threading.local()
LIMIT_S = 20.0
failures: list[str] = []


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
        if bitcast:
            return self.view(np.int32 if dtype is gl.int32 else np.float32)
        return self


def tensor(array):
    return np.asarray(array).view(Tensor)


class Constant(int):
    @property
    def value(self):
        return int(self)


class DType:
    def __init__(self, name, bits):
        self.name, self.primitive_bitwidth = name, bits

    def is_int(self):
        return self.name.startswith("int")


class Memory:
    """A view of shared memory."""

    def __init__(self, array, dtype):
        self.array, self.dtype = array, dtype

    @property
    def shape(self):
        return self.array.shape

    def index(self, i):
        assert 0 <= i < len(self.array), (i, self.array.shape)
        return self.array[i] if isinstance(self.array[i], Barrier) else Memory(self.array[i], self.dtype)

    def slice(self, start, length, dim=0):
        assert start >= 0 and start + length <= self.array.shape[dim], (start, length, dim, self.array.shape)
        at = [slice(None)] * self.array.ndim
        at[dim] = slice(start, start + length)
        return Memory(self.array[tuple(at)], self.dtype)

    def permute(self, order):
        return Memory(self.array.transpose(order), self.dtype)

    def reshape(self, shape):
        view = self.array.reshape(shape)
        assert np.shares_memory(view, self.array)
        return Memory(view, self.dtype)

    def load(self, layout=None):
        jitter()
        return tensor(self.array.copy())

    def store(self, values):
        assert self.array.shape == values.shape, (self.array.shape, values.shape)
        self.array[...] = values


class Barrier:
    def __init__(self):
        self.condition = threading.Condition()
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count):
        self.count = self.pending = count

    def _turn(self):
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending = self.count
            self.condition.notify_all()
        assert self.pending >= 0 and self.bytes >= 0, "more arrivals or bytes than expected"

    def arrive(self, expected=0, times=1):
        with self.condition:
            self.bytes += expected
            self.pending -= times
            self._turn()

    def deliver(self, number):
        with self.condition:
            # Bytes may come before they are expected only where another block's load signals this one (multicast).
            self.bytes -= number
            if self.bytes >= 0:
                self._turn()

    def wait(self, phase):
        with self.condition:
            if not self.condition.wait_for(lambda: self.phase != phase, LIMIT_S):
                raise TimeoutError("a barrier was never completed")


class Named:
    def __init__(self):
        self.condition, self.arrived, self.turn = threading.Condition(), 0, 0

    def come(self, wait):
        with self.condition:
            self.arrived += 1
            turn = self.turn
            if self.arrived == 2:
                self.arrived, self.turn = 0, turn + 1
                self.condition.notify_all()
            elif wait and not self.condition.wait_for(lambda: self.turn != turn, LIMIT_S):
                raise TimeoutError("a named barrier was never completed")


def jitter():
    if random.random() < 0.02:
        time.sleep(random.random() * 0.002)


class Descriptor:
    def __init__(self, array, block, dtype):
        self.array, self.dtype, self.layout = array, dtype, None
        self.block_type = types.SimpleNamespace(shape=list(block))
        self.bytes = int(np.prod(block)) * dtype.primitive_bitwidth // 8

    def cut(self, at):
        found = np.zeros(self.block_type.shape, self.array.dtype)
        row, column = at
        part = self.array[row : row + found.shape[0], column : column + found.shape[1]]
        found[: part.shape[0], : part.shape[1]] = part
        return found


engine: queue.Queue = queue.Queue()


def run_engine():
    held = []
    while True:
        try:
            held.append(engine.get(timeout=0.0005))
        except queue.Empty:
            pass
        while held and (len(held) > 3 or random.random() < 0.7):
            held.pop(random.randrange(len(held)))()


def async_load(desc, at, barrier, buffer, multicast=False):
    ctas = context.cluster.ctas
    to = [(barrier, buffer)]
    if multicast:
        if context.rank:
            return
        to = [(other.twin(barrier), other.twin_memory(buffer)) for other in ctas]

    def copy():
        for into_barrier, into in to:
            into.array[...] = desc.cut(at)
            into_barrier.deliver(desc.bytes)

    engine.put(copy)


class Pending:
    """Sums of a wgmma that nobody may read yet."""

    def __init__(self, run):
        self.run, self.value = run, None


def warpgroup_mma(a, b, acc, use_acc=True, is_async=False):
    assert not use_acc and is_async
    pending = Pending(lambda: tensor(np.asarray(getattr(a, "array", a)) @ b.array.astype(np.float32)))
    context.flight.append(pending)
    return pending


def warpgroup_mma_wait(outstanding, deps):
    jitter()
    while len(context.flight) > outstanding:
        first = context.flight.pop(0)
        first.value = first.run()
    found = tuple(each.value if isinstance(each, Pending) and each.value is not None else each for each in deps)
    return found[0] if len(found) == 1 else found


def async_store(desc, at, buffer):
    def copy():
        row, column = at
        height, width = buffer.array.shape
        inside = desc.array[row : row + height, column : column + width]
        inside[...] = buffer.array[: inside.shape[0], : inside.shape[1]]

    context.stores.append(copy)


def store_wait(pending):
    while len(context.stores) > pending:
        context.stores.pop(0)()


class Block:
    """A CTA: its shared memory by the order of allocation, so that a cluster's blocks have twins."""

    def __init__(self, cluster, rank):
        self.cluster, self.rank, self.memories, self.named = cluster, rank, [], (Named(), Named())
        cluster.ctas.append(self)

    def allocate(self, dtype, shape, layout=None):
        if dtype is gl.int64:
            array = np.empty(shape[0], object)
            for i in range(shape[0]):
                array[i] = Barrier()
        else:
            array = np.full(shape, np.nan, np.float32)
        self.memories.append(Memory(array, dtype))
        return self.memories[-1]

    def twin(self, barrier):
        for other in self.cluster.ctas:
            for number, memory in enumerate(other.memories):
                if memory.array.dtype == object:
                    for i, each in enumerate(memory.array):
                        if each is barrier:
                            return self.memories[number].array[i]
        raise AssertionError

    def twin_memory(self, buffer):
        for other in self.cluster.ctas:
            for number, memory in enumerate(other.memories):
                if memory.array.dtype != object and np.shares_memory(memory.array, buffer.array):
                    for i in range(len(memory.array)):
                        if np.shares_memory(memory.array[i], buffer.array):
                            return Memory(self.memories[number].array[i], memory.dtype)
        raise AssertionError


def warp_specialize(partitions, warps, registers):
    parent = context.block, context.program, context.programs, context.rank, context.cluster

    def run(function, arguments):
        context.block, context.program, context.programs, context.rank, context.cluster = parent
        context.flight, context.stores = [], []
        try:
            function(*arguments)
            assert not context.flight and not context.stores
        except BaseException as e:  # noqa: BLE001
            import traceback

            failures.append(
                f"{function.__name__} rank {context.rank}: {type(e).__name__}: {e} {traceback.format_exc()[-600:]}"
            )

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def install():
    """Put stand-ins where the kernels import Triton from."""
    same = lambda function=None, **_: function if function is not None else (lambda f: f)  # noqa: E731
    nothing = lambda *_, **__: None  # noqa: E731

    class Anything(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return nothing

    def module(name, **fields):
        made = Anything(name)
        made.__dict__.update(fields)
        made.__path__ = []
        sys.modules[name] = made
        return made

    global gl
    gl = module(
        "triton.experimental.gluon.language",
        constexpr=Constant,
        constexpr_function=same,
        int32=DType("int32", 32),
        int64=DType("int64", 64),
        float32=DType("fp32", 32),
        DotOperandLayout=nothing,
        zeros=lambda shape, dtype=None, layout=None: tensor(np.zeros(shape, np.float32)),
        arange=lambda a, b, layout=None: tensor(np.arange(a, b, dtype=np.int32)),
        where=lambda c, x, y: tensor(np.where(c, x, y)) if np.ndim(c) else (x if c else y),
        sum=lambda x, axis: tensor(np.asarray(x).sum(axis=axis, dtype=x.dtype).reshape(1)),
        static_range=range,
        static_assert=nothing,
        convert_layout=lambda x, *_, **__: x,
        program_id=lambda axis: context.program,
        num_programs=lambda axis: context.programs,
        num_ctas=lambda: len(context.cluster.ctas),
        allocate_shared_memory=lambda dtype, shape, layout=None: context.block.allocate(dtype, shape),
        warp_specialize=warp_specialize,
    )
    tl = module("triton.language", constexpr=Constant, minimum=min, maximum=max)
    module("triton", jit=same, cdiv=lambda a, b: -(-a // b), language=tl, __version__="3.7.1")
    gluon = module("triton.experimental.gluon", jit=same, constexpr_function=same, language=gl)
    module("triton.experimental", gluon=gluon)
    tma = module("tma", async_load=async_load, async_store=async_store, store_wait=store_wait)

    def expect(barrier, number, pred=True):
        barrier.arrive(number)

    mbarrier = module(
        "mbarrier",
        init=lambda barrier, count: barrier.init(count),
        wait=lambda barrier, phase: barrier.wait(phase),
        arrive=lambda barrier, count=1, pred=True: barrier.arrive(times=count) if pred else None,
        expect=expect,
    )
    module("triton.experimental.gluon.language.nvidia")
    module(
        "triton.experimental.gluon.language.nvidia.hopper",
        fence_async_shared=nothing,
        mbarrier=mbarrier,
        tma=tma,
        warpgroup_mma=warpgroup_mma,
        warpgroup_mma_wait=warpgroup_mma_wait,
    )
    threading.Thread(target=run_engine, daemon=True).start()


def emulate(kernels, v, m, n, k, clusters=2, seed=0):
    """Compare a variant with numpy; returns the largest difference."""
    draw = np.random.default_rng(seed)
    a, weight = (draw.integers(-3, 4, (rows, k)).astype(np.float32) for rows in (m, n))
    fine = draw.integers(1, 9, (k // 128, m)).astype(np.float32) / 8
    coarse = draw.integers(1, 9, (-(-n // 128), k // 128)).astype(np.float32) / 8
    out = np.full((m, n), np.nan, np.float32)
    f8, f32 = DType("fp8", 8), gl.float32
    left, right, rows, columns = (weight, a, n, m) if v.swapped else (a, weight, m, n)
    parts = v.warpgroups if v.ctas > 1 else 1
    side = v.bm if v.swapped else v.bn
    block_c = (v.store_n, 64) if v.swapped else (64, v.store_n)
    arguments = (
        Descriptor(left, (v.bm // parts, 128), f8),
        Descriptor(right, (min(v.bn, 128), 128), f8),
        Descriptor(fine, (1, v.bn if v.swapped else v.bm // parts), f32),
        Descriptor(coarse, (max(1, side // 128), 32), f32),
        Descriptor(out, block_c, DType("bf16", 16)),
        rows,
        columns,
        k,
        v.group,
        v.bm,
        v.bn,
        v.stages,
        v.warpgroups,
        v.share_b,
        v.swapped,
        v.mode,
        v.store_n,
        v.turns,
        False,
        v.depth,
        v.a_loaded,
        40,
        232,
    )
    failures.clear()
    blocks = []
    for program in range(clusters):
        cluster = types.SimpleNamespace(ctas=[], meeting=None)
        made = [Block(cluster, rank) for rank in range(v.ctas)]
        cluster.started = threading.Barrier(v.ctas * (v.warpgroups + 4))  # with the loader and three idle warps
        blocks += [(program, cluster, block) for block in made]

    def run(program, cluster, block):
        context.block, context.program, context.programs = block, program, clusters
        context.rank, context.cluster = block.rank, cluster
        kernels.staged_kernel(*arguments)

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        return failures[0]
    expanded = np.repeat(np.repeat(coarse, 128, 0)[:n], 128, 1)
    expected = (a * np.repeat(fine.T, 128, 1)).astype(np.float64) @ (weight * expanded).astype(np.float64).T
    return float(np.abs(out - expected).max())


def patched():
    """The kernels' module, with what is written in PTX replaced."""
    install()
    import kernels
    from tuner.kernels.gemm.hopper import cluster, output

    def meet():
        context.cluster.started.wait(LIMIT_S)

    def free_barriers(stages, warpgroups, ctas):
        made = context.block.allocate(gl.int64, [stages, 1])
        for each in made.array:
            each.init(warpgroups * ctas if context.rank == 0 else warpgroups)
        return made

    def release(free, stage, ctas, pred=True):
        if pred:
            free.index(stage).arrive()
            if ctas > 1 and context.rank:
                context.cluster.ctas[0].twin(free.index(stage)).arrive()

    cluster.rank_of = lambda ctas: context.rank if ctas > 1 else 0
    cluster.meet, cluster.free_barriers, cluster.publish_barriers = meet, free_barriers, lambda: None
    kernels.release = release
    kernels.await_free = lambda free, stage, phase, ctas: free.index(stage).wait(phase)
    kernels.kept = lambda sums: sums
    kernels.synchronize = output.synchronize = lambda: None
    kernels.named = lambda name, wait: context.block.named[name].come(wait)
    kernels.await_predecessor = lambda pdl: None
    return kernels


if __name__ == "__main__":
    kernels = patched()
    import importlib.util

    found = sys.modules
    spec = importlib.util.find_spec("variants")
    text = open(spec.origin).read().split("ELEMENTS =")[0].split("from triton")[0].replace("import torch\n", "")
    # Only the dataclass and the table, without torch and the descriptors.
    whole = open(spec.origin).read()
    table = whole[whole.index("@dataclass") : whole.index("def described")]
    names = {"dataclass": __import__("dataclasses").dataclass, "__name__": "table"}
    sys.modules["table"] = types.ModuleType("table")
    exec(compile("from __future__ import annotations\n" + table, "table", "exec"), names)  # noqa: S102
    bad = 0
    chosen = sys.argv[1:]
    cases = [(name, v, 512, 1024, 1536) for name, v in names["VARIANTS"].items()]
    cases += [(f"{name}_{m}", v, m, 512, 2048) for m, table in names["SMALL"].items() for name, v in table.items()]
    if "ragged" in chosen:
        cases = [(name, v, m - 12, n - 40, k) for name, v, m, n, k in cases]
        chosen = [name for name in chosen if name != "ragged"]
    for name, v, m, n, k in cases:
        if v.mode == "bare" or (chosen and name not in chosen):
            continue
        start = time.time()
        worst = emulate(kernels, v, m, n, k)
        bad += worst != 0.0
        print(f"{name:18} {m}x{n}x{k} largest difference {worst} ({time.time() - start:.1f} s)", flush=True)
    sys.exit(bad > 0)
