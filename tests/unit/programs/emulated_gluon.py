"""Stand-ins for Triton's modules, by which a warp-specialized Gluon kernel for Hopper runs on threads and numpy.

Gluon has no interpreter. The stand-ins replace Triton's modules before a kernel is imported: a partition is a thread,
TMA and asynchronous copies are a thread that copies later and out of order, a wgmma reads its operands only when it is
waited for, a TMA store its buffer only when that is waited for. So a stage that is released or read too early gives
wrong sums, and where all threads wait for barriers that nobody will complete, the run ends and says so. Layouts, PTX
and the memory model are not checked.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import json
import queue
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

THREADS = 32
"""Threads of the loading warp, which arrive one by one where they copy."""
TRIES = 5
"""Runs of a faulty kernel: what comes too early is not always wrong."""
context = threading.local()
failures: list[str] = []
engine: queue.Queue = queue.Queue()
moment = threading.Condition()
"""Held while barriers or the fields of `State` are read or written."""


class Fault(NamedTuple):
    """Text of a module's source to replace, the text to put there, and the case in which that must be seen."""

    module: str
    old: str
    new: str
    case: Any


class State:
    """Threads that have not ended, except those that wait for others to end; copies under way; barriers awaited."""

    running = 1
    copies = 0
    waiting: list[tuple[Barrier, int]] = []  # noqa: RUF012  one for all


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
        # A copy: registers hold values, which no other tensor shares.
        return self.view(np.int32 if dtype is INT32 else np.float32) if bitcast else self.copy()


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


INT32, INT64, FLOAT32 = DType("int32", 32), DType("int64", 64), DType("fp32", 32)
BF16, F8 = DType("bf16", 16), DType("fp8", 8)


class Pointer:
    def __init__(self, array, at=0, dtype=None):
        self.array, self.at, self.dtype = array, at, types.SimpleNamespace(element_ty=dtype)

    def __add__(self, offsets):
        return Pointer(self.array, self.at + offsets, self.dtype.element_ty)


def load(pointer, mask, other):
    return tensor(np.where(mask, pointer.array[np.where(mask, pointer.at, 0)], np.float32(other)))


def store(pointer, values, mask):
    pointer.array[np.asarray(pointer.at)[mask]] = np.asarray(values)[mask]


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
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count):
        self.count = self.pending = count

    def arrive(self, expected=0, times=1):
        with moment:
            self.bytes += expected
            self.pending -= times
            assert min(self.pending, self.bytes) >= 0, "more arrivals or bytes than expected"
            if self.pending == self.bytes == 0:
                self.phase ^= 1
                self.pending = self.count
                moment.notify_all()

    def wait(self, phase):
        jitter()
        with moment:
            awaited = (self, phase)
            State.waiting.append(awaited)
            check_progress()
            moment.wait_for(lambda: self.phase != phase or failures)
            State.waiting.remove(awaited)
            if failures:
                raise RuntimeError("stopped, as another failed")


def check_progress():
    """Fail if all threads wait for barriers that nobody will complete. The lock is held."""
    stuck = all(barrier.phase == phase for barrier, phase in State.waiting)
    if State.waiting and len(State.waiting) == State.running and State.copies == 0 and stuck:
        fail("all wait for barriers that are never completed")


def fail(said):
    with moment:
        failures.append(said)
        moment.notify_all()


class Descriptor:
    def __init__(self, array, block, dtype):
        self.array, self.dtype, self.layout = array, dtype, None
        self.block_type = types.SimpleNamespace(shape=list(block))
        self.bytes = int(np.prod(block)) * dtype.primitive_bitwidth // 8

    def check(self, at, memory):
        # Coordinates along a row are multiples of 16 bytes.
        assert at[1] * self.dtype.primitive_bitwidth % 128 == 0
        assert list(memory.array.shape) == self.block_type.shape

    def there(self, at, memory):
        assert min(at) >= 0
        return self.array[at[0] : at[0] + memory.array.shape[0], at[1] : at[1] + memory.array.shape[1]]

    def load_into(self, at, memory):
        self.check(at, memory)
        there = self.there(at, memory)
        memory.array[...] = 0
        memory.array[: there.shape[0], : there.shape[1]] = there

    def store_from(self, at, memory):
        self.check(at, memory)
        there = self.there(at, memory)
        there[...] = memory.array[: there.shape[0], : there.shape[1]]


class Pending:
    """The products of a wgmma, which nobody may read yet."""

    def __init__(self, a, b, before):
        self.operands, self.before, self.value = (a, b), before, None

    def done(self):
        a, b = self.operands
        before = self.before.value if isinstance(self.before, Pending) else self.before
        self.value = tensor(a.array @ b.array if before is None else before + a.array @ b.array)


def jitter():
    if random.random() < 0.02:
        time.sleep(random.random() * 0.001)


def copy_later(copy):
    with moment:
        State.copies += 1
    engine.put(copy)


def copy_out_of_order():
    held = []
    while True:
        with contextlib.suppress(queue.Empty):
            held.append(engine.get(timeout=0.0005))
        while held and (len(held) > 3 or random.random() < 0.7):
            guarded(held.pop(random.randrange(len(held))))
            with moment:
                State.copies -= 1
                check_progress()
                moment.notify_all()


def guarded(function, *arguments):
    try:
        function(*arguments)
    except Exception as e:  # noqa: BLE001  whatever fails in a thread is told
        fail(f"{getattr(function, '__name__', function)}: {type(e).__name__}: {e}")


def async_load(desc, at, barrier, memory):
    def copy():
        desc.load_into(at, memory)
        barrier.arrive(expected=-desc.bytes, times=0)

    copy_later(copy)


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

    copy_later(copy)


def warpgroup_mma(a, b, sums, use_acc=True, is_async=False):
    assert is_async
    context.flight.append(Pending(a, b, sums if use_acc else None))
    return context.flight[-1]


def warpgroup_mma_wait(outstanding, deps):
    jitter()
    while len(context.flight) > outstanding:
        context.flight.pop(0).done()
    found = tuple(one.value if isinstance(one, Pending) and one.value is not None else one for one in deps)
    return found[0] if len(found) == 1 else found


def async_store(desc, at, memory):
    context.stores.append(lambda: desc.store_from(at, memory))


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
        assert not context.flight + context.stores + context.copies, "ended before what it had started"

    together([(lambda one=one: guarded(run, *one)) for one in partitions])


def together(functions):
    def run(function):
        guarded(function)
        with moment:
            State.running -= 1
            check_progress()

    with moment:
        State.running += len(functions) - 1
    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with moment:
        State.running += 1


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
        load=load,
        store=store,
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
        arrive=lambda barrier, count, pred=True: barrier.arrive(times=count) if pred else None,
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


def loaded(name: str, fault: Fault | None = None) -> types.ModuleType:
    """The kernel's module, imported anew with a fault in its source or in that of a module which it imports."""
    for known in [one for one in sys.modules if one.startswith("tuner.kernels")]:
        del sys.modules[known]
    if fault is not None:
        spec = importlib.util.find_spec(fault.module)
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, f"{fault.module} has this {text.count(fault.old)} times: {fault.old}"
        changed = sys.modules[fault.module] = importlib.util.module_from_spec(spec)
        exec(compile(text.replace(fault.old, fault.new), spec.origin, "exec"), changed.__dict__)
    return importlib.import_module(name)


def failure_of(program: Callable[[], None], programs: int) -> str | None:
    """Run a kernel's programs, all at once; return what failed first."""
    failures.clear()

    def run(index):
        context.program = (index, programs)
        program()

    together([(lambda index=index: run(index)) for index in range(programs)])
    with moment:
        moment.wait_for(lambda: State.copies == 0)
    return failures[0] if failures else None


def report(
    name: str,
    cases: Iterable[Any],
    faults: Mapping[str, Fault],
    difference: Callable[[types.ModuleType, Any], float | str],
) -> None:
    """Print, as JSON, a list of {case, fault, difference}: of the kernel in all cases, and of each fault in its own."""
    install()
    kernel = loaded(name)
    found = [{"case": str(case), "fault": None, "difference": difference(kernel, case)} for case in cases]
    for said, fault in faults.items():
        faulty = loaded(name, fault)
        tries = (difference(faulty, fault.case) for _ in range(TRIES))
        seen = next(itertools.dropwhile(lambda one: one == 0.0, tries), 0.0)
        found.append({"case": str(fault.case), "fault": said, "difference": seen})
    sys.stdout.write(json.dumps(found))
