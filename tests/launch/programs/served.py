"""Call matmul, or another op, over the stub in one of the ways below; prints what it gave, and what was taken how."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import stub_driver
import stub_matmul
import torch
from triton import knobs
from triton.runtime import driver

import tuner
from tuner.errors import InputError
from tuner.kernel import registry
from tuner.kernels import bmm, gated_linear, grouped_mm, matmul, rms_norm, softmax, vector_add
from tuner.kernels.ops.matmul import CALL_CACHE
from tuner.launch import launch as launching
from tuner.launch import step

compiles = stub_matmul.activate()
looked: list[None] = []
compiled_in: list[float] = []
"""The offsets of the norms that were launched by no plan."""


def counted(run: Callable[..., None]) -> Callable[..., None]:
    """Launches that were not a plan's."""

    def counting(launches: Any) -> None:
        looked.append(None)
        compiled_in.extend(each.constants["OFFSET"] for each in launches if "OFFSET" in each.constants)
        run(launches)

    return counting


launching.run = counted(launching.run)
told: list[dict[str, Any]] = []


def call(*tensors: torch.Tensor, op: Callable[..., torch.Tensor] = matmul, **options: Any) -> torch.Tensor:
    """One call; what it gave, its result's address, and whether it took the long way."""
    before = len(looked)
    result = op(*tensors, **options)
    given = [*tensors, *(option for option in options.values() if isinstance(option, torch.Tensor))]
    told.append({"given": stub_matmul.pointers(*given), "out": result.data_ptr(), "looked": len(looked) - before})
    keep.append((given, result))
    return result


keep: list[Any] = []  # memory that is freed would be given out again, and every address would be the same


def without(kernel: str) -> None:
    """Leave a kernel out: most of these programs look at launches whose operands come as a call gave them."""
    every = registry.of
    registry.of = lambda op: {name: spec for name, spec in every(op).items() if name != kernel}


def specialized() -> None:
    """By a table's configs of `warp_specialized`: of the output, then of the transposed output."""
    tuner.use(sys.argv[2])
    again()
    for _ in range(3):
        call(stub_matmul.half(256, 128), stub_matmul.half(128, 1024))


def families() -> None:
    """By a table's ranges, at the Ms given; the kernels' modules that are there after each call, and steps made."""
    tuner.use(sys.argv[2])
    make, made = step._direct_steps, list[Any]()
    step._direct_steps = lambda *given: made.append(given) or make(*given)
    layout, k, n = [*sys.argv[4:], *("nn", "256", "256")[len(sys.argv) - 4 :]]
    weight = stub_matmul.half(int(n), int(k)).t() if layout == "nt" else stub_matmul.half(int(k), int(n))
    for m in json.loads(sys.argv[3]):
        call(stub_matmul.half(m, int(k)), weight)
        told[-1]["imported"] = [name for name in ("pointer", "tma") if f"tuner.kernels.gemm.{name}" in sys.modules]
        told[-1]["steps"] = len(made)


def indirect() -> None:
    """The same where what lies beneath `CompiledKernel.run` is not known; how many plans for other Ms are kept."""
    step.RecordedLaunch.is_direct = lambda *_: False
    families()
    told[-1]["kept"] = sum(map(len, CALL_CACHE._any_rows._by_kind.values()))


def gated() -> None:
    """A gated linear layer by a table's ranges, at the Ms given."""
    tuner.use(sys.argv[2])
    gate, up = stub_matmul.half(256, 512), stub_matmul.half(256, 512)
    for m in json.loads(sys.argv[3]):
        call(stub_matmul.half(m, 512), gate, up, op=gated_linear)


def last_tokens() -> None:
    """Products and gated layers of the last token of each sequence, by a table's ranges: batches, dense or strided."""
    tuner.use(sys.argv[2])
    gate, up = stub_matmul.half(256, 512), stub_matmul.half(256, 512)
    for batch, dense in json.loads(sys.argv[4]):
        hidden = stub_matmul.half(batch * 16, 512).view(batch, 16, 512)
        keep.append(hidden)
        x = stub_matmul.half(batch, 512).view(batch, 1, 512) if dense else hidden[:, -1:]
        if sys.argv[3] == "gated":
            call(x[:, 0], gate, up, op=gated_linear)
        else:
            call(x, gate.t())


def norms() -> None:
    """Norms with the numbers of rows and the offsets given, by a table's ranges; what the long way compiled in."""
    tuner.use(sys.argv[2])
    weight = stub_matmul.half(1, 512)[0]
    for m, offset in json.loads(sys.argv[3]):
        before = len(compiled_in), compiles.compiled + compiles.from_cache
        call(stub_matmul.half(m, 512), weight, op=rms_norm, eps=1e-6, offset=offset)
        told[-1] |= {"offsets": compiled_in[before[0] :]}
        told[-1] |= {"made": compiles.compiled + compiles.from_cache - before[1]}


def refused() -> None:
    """By a table's ranges; the device refuses the first launch after that of the first M."""
    tuner.use(sys.argv[2])
    for m in json.loads(sys.argv[3]):
        call(stub_matmul.half(m, 256), stub_matmul.half(256, 256))
        os.environ["CUDA_STUB_REFUSED"] = "1"


def heard() -> None:
    """By a table's ranges, while a hook listens to what is loaded; then to launches."""
    tuner.use(sys.argv[2])
    first, second = json.loads(sys.argv[3])
    for name, m in (("kernel_load_start_hook", first), ("launch_enter_hook", second)):
        heard_of: list[Any] = []
        hook, hear = getattr(knobs.runtime, name), lambda *about, to=heard_of: to.append(about)
        hook.add(hear)
        call(stub_matmul.half(m, 256), stub_matmul.half(256, m))
        hook.remove(hear)
        told[-1]["heard"] = len(heard_of)


def any_rows() -> None:
    """By a table's ranges, calls of several kinds at one M and then at others; each kind has its own plans."""
    tuner.use(sys.argv[2])
    first, *others = json.loads(sys.argv[3])
    weight = torch.nn.Parameter(stub_matmul.half(256, 256))
    bias, spaced = torch.empty(256, dtype=torch.float16), stub_matmul.half(512, 512)
    room = stub_matmul.half(256, 256)

    def kind(name: str, run: Callable[[int], torch.Tensor]) -> None:
        for m in (first, *others):
            with torch.no_grad():
                result = run(m)
            told[-1] |= {"kind": name, "m": m, "shape": [*result.shape], "strides": [*result.stride()]}

    kind("matrix", lambda m: call(stub_matmul.half(m, 256), weight))
    kind("one memory", lambda m: call(room[:m], weight))
    kind("rows of one", lambda m: call(stub_matmul.half(m, 256).view(m, 1, 256), weight))
    kind("one of rows", lambda m: call(stub_matmul.half(m, 256).view(1, m, 256), weight))
    kind("bias", lambda m: call(stub_matmul.half(m, 256), weight, bias=bias))
    kind("out", lambda m: call(stub_matmul.half(m, 256), weight, out=stub_matmul.half(m, 256)))
    kind("transposed", lambda m: call(stub_matmul.half(256, m).t(), weight))
    kind("spaced", lambda m: call(spaced[:m, :256], weight))
    kind("unaligned", lambda m: call(stub_matmul.half(m, 256, shift=1), weight))
    kind("float32", lambda m: call(torch.empty(m, 256), torch.empty(256, 256)))
    tuner.use(sys.argv[2])
    kind("afresh", lambda m: call(stub_matmul.half(m, 256), weight))


def again() -> None:
    for _ in range(3):
        call(stub_matmul.half(256, 256), stub_matmul.half(256, 256))


def operator() -> None:
    """As a program of torch.compile calls it, first of all and without some of torch's keys."""
    through = torch.ops.triton_tuner.matmul
    without = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Negative))
    for context in (without, contextlib.nullcontext(), contextlib.nullcontext()):
        a, b = stub_matmul.half(256, 256), stub_matmul.half(256, 256)
        with context:
            call(a, b, op=lambda a, b: through(a, b, None, None, None, "none", None, None, None))


def ordinary() -> None:
    """As where what lies beneath `CompiledKernel.run` is not known."""
    assert callable(step.RecordedLaunch.is_direct)
    step.RecordedLaunch.is_direct = lambda *_: False
    again()


def streams() -> None:
    a, b = stub_matmul.half(256, 256), stub_matmul.half(256, 256)
    for handle in (11, 12, 11):
        with stub_matmul.on_stream(handle):
            call(a, b)
    call(a, b)


def threads() -> None:
    def work(handle: int) -> None:
        with stub_matmul.on_stream(handle):
            for _ in range(25):
                a, b = stub_matmul.half(256, 256), stub_matmul.half(256, 256)
                result = matmul(a, b)
                told.append({"stream": handle, "given": stub_matmul.pointers(a, b), "out": result.data_ptr()})
                keep.append((a, b, result))

    with ThreadPoolExecutor(2) as workers:
        list(workers.map(work, (21, 22)))  # raises what a thread raised


def alignment() -> None:
    for _ in range(2):
        for shift in (0, 1, 8):
            call(stub_matmul.half(256, 256, shift), stub_matmul.half(256, 256))


def kinds() -> None:
    """Every one of these is another plan; each is made, then used."""
    square = stub_matmul.half(256, 256)
    for _ in range(2):
        call(square, stub_matmul.half(256, 256))
        call(square, square)
        call(square, square.t())
        call(stub_matmul.half(512, 256), stub_matmul.half(256, 256))
        call(stub_matmul.half(6 * 64, 256).view(6, 64, 256), stub_matmul.half(256, 128))
        call(square, stub_matmul.half(256, 256), bias=torch.empty(256, dtype=torch.float16))
        call(square, stub_matmul.half(256, 256), activation="relu")
        call(square, stub_matmul.half(256, 256), out_dtype=torch.float32)
        call(square, stub_matmul.half(256, 256), out=torch.empty(256, 256, dtype=torch.float16))
        call(square, stub_matmul.half(256, 256), out=torch.empty(256, 256, dtype=torch.float16).t())


def normalized(x: torch.Tensor, weight: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, weight, 1e-6, **options)


def ops() -> None:
    """The other ops, each made, then used."""
    square = stub_matmul.half(256, 256)
    batch, weights = square.view(4, 64, 256), torch.empty(4, 128, 256, dtype=torch.float16).mT
    ends = torch.tensor([64, 128, 192, 256], dtype=torch.int32)
    for _ in range(2):
        call(batch, weights, op=bmm)
        call(batch, weights, op=bmm, out=torch.empty(4, 64, 128, dtype=torch.float16))
        call(square, weights, ends, op=grouped_mm)
        call(stub_matmul.half(256, 256), op=softmax)
        call(stub_matmul.half(2, 131_072), op=softmax)  # rows shared by several programs: memory for their sums
        in_place = stub_matmul.half(256, 256)
        call(in_place, op=softmax, out=in_place)
        call(square, square[0], op=normalized)
        call(in_place, square[0], op=normalized, out=in_place)
        call(square, weights[0].mT, weights[1].mT, op=gated_linear)
        call(square, square, square, op=gated_linear, out=stub_matmul.half(256, 256))
        call(square[0], square[1], op=vector_add)
        call(square[0], square[0], op=vector_add)
        call(square[0], square[1], op=vector_add, out=torch.empty(256, dtype=torch.float16))


def alike() -> None:
    """As many elements, other sizes, in the same memory: one key, and the same addresses."""
    first, second = stub_matmul.half(256, 256), stub_matmul.half(256, 256)
    for _ in range(3):
        call(first.view(512, 128), second.view(128, 512))
        call(first.view(128, 512), second.view(512, 128))


def devices() -> None:
    """There are two, and another than the operands' is the current one at the later calls."""
    current = [0]

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    torch.cuda.device, torch.cuda.device_count = device, lambda: 2
    driver.active.get_current_device = lambda: current[0]
    driver.active.get_current_stream = lambda _device=None: 30 + current[0]
    a, b, out = (stub_matmul.half(256, 256) for _ in range(3))
    for current[0] in (0, 1, 0, 1):
        call(a, b)
        call(a, b, out=out)
        told[-1]["current"] = current[0]


def modes() -> None:
    """What torch knows of a tensor besides its memory."""
    plain, complex_ = stub_matmul.half(256, 256), torch.empty(256, 256, dtype=torch.complex64)
    weight = torch.nn.Parameter(stub_matmul.half(256, 256))
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            told_of(call(plain, weight))
    for tensor in (complex_.imag, complex_.imag, complex_.conj().imag):
        told_of(call(tensor, torch.empty(256, 256)))


def told_of(result: torch.Tensor) -> None:
    told[-1]["wants_gradient"] = result.requires_grad


def crowded() -> None:
    """More addresses than descriptors are kept for."""
    without("swap_ab")  # whose default loads by pointers here
    step.MOST_DESCRIPTORS = 3
    operands = [(stub_matmul.half(256, 256), stub_matmul.half(256, 256)) for _ in range(5)]
    for _ in range(3):
        for a, b in operands:
            call(a, b)


def scales() -> None:
    a, b = (torch.empty(256, 256, dtype=torch.float8_e4m3fn) for _ in range(2))
    one, other = torch.ones(1), torch.ones(1)
    for _ in range(2):
        call(a, b.t(), scale_a=one, scale_b=one)
        call(a, b.t(), scale_a=one, scale_b=other)


def hooks() -> None:
    a, b = stub_matmul.half(256, 256), stub_matmul.half(256, 256)
    heard = []

    def hear(metadata: Any) -> None:
        heard.append(metadata.get()["name"])

    call(a, b)
    call(a, b)
    knobs.runtime.launch_enter_hook.add(hear)
    call(a, b)
    knobs.runtime.launch_enter_hook.remove(hear)
    call(a, b)
    told.append({"heard": heard})


def sources() -> None:
    a, b = stub_matmul.half(256, 256), stub_matmul.half(256, 256)
    for table in (None, None, sys.argv[2], sys.argv[2]):
        if table != (told[-1].get("table") if told else None):
            tuner.use(table)
        call(a, b)
        told[-1]["table"] = table


def failing() -> None:
    """The table's config needs more shared memory than this device has."""
    os.environ["CUDA_STUB_SHARED"] = "98304"
    tuner.use(sys.argv[2])
    for _ in range(3):
        call(stub_matmul.half(256, 256), stub_matmul.half(256, 256))


def table() -> None:
    tuner.use(sys.argv[2])
    m, n, k = json.loads(sys.argv[3])
    turned = sys.argv[4:] == ["nt"]
    for _ in range(3):
        call(stub_matmul.half(m, k), stub_matmul.half(n, k).t() if turned else stub_matmul.half(k, n))


def missed() -> None:
    """256x256x256 is in the table and 128x128x128 is not: three calls of the one, five of the other."""
    tuner.use(sys.argv[2])
    call(stub_matmul.half(128, 128), stub_matmul.half(128, 128))
    tuner.record_misses(sys.argv[3])
    for _ in range(3):
        call(stub_matmul.half(256, 256), stub_matmul.half(256, 256))
        call(stub_matmul.half(128, 128), stub_matmul.half(128, 128))
    for _ in range(2):
        call(stub_matmul.half(128, 128), stub_matmul.half(128, 128), out=stub_matmul.half(128, 128))


def unaligned() -> None:
    tuner.use(sys.argv[2])
    for _ in range(2):
        call(stub_matmul.half(256, 256, shift=1), stub_matmul.half(256, 256, shift=1))


def not_alike() -> None:
    """What has a plan's key and is none of its calls: an output over an operand, a scale in the place of a bias."""
    room = stub_matmul.half(512, 256)
    a, b, out, bias = room[:256], stub_matmul.half(256, 256), room[256:], torch.empty(256)
    for _ in range(3):
        call(a, b, out=out)
        call(a, b, bias=bias)
    for given, options in (
        ((room[128:384], b), {"out": out}),
        ((a, b), {"scale_a": bias}),
        ((a, b), {"scale_b": bias}),
    ):
        try:
            call(*given, **options)
        except InputError as e:
            told.append({"refused": str(e)})


def changing() -> None:
    """torch's own setting decides how float32 is multiplied, at each call."""
    a, b = torch.empty(256, 256), torch.empty(256, 256)
    for precision in ("ieee", "tf32", "ieee", "tf32"):
        torch.backends.cuda.matmul.fp32_precision = precision
        call(a, b)
        call(a, b, precision="default")


def autocasting() -> None:
    """torch.autocast decides in which dtype equal tensors are multiplied, at each call."""
    a, b, row = torch.empty(256, 256), torch.empty(256, 256), torch.empty(256)
    half = row.bfloat16()
    for dtype in (None, torch.bfloat16, torch.float16, None, torch.float16):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            for op, given, options in (
                (matmul, (a, b), {}),
                (matmul, (a, b), {"out": torch.empty(256, 256)}),
                (bmm, (a[None], b[None]), {}),
                *([] if dtype is None else [(vector_add, (row, half), {})]),
            ):
                for _ in range(2):
                    call(*given, op=op, **options)
                    told[-1]["dtype"] = str(keep[-1][1].dtype).removeprefix("torch.")


def mapped() -> None:
    """By torch.func, whose tensors have no memory of their own."""
    a, weights = torch.empty(2, 256, 256, dtype=torch.float16), torch.empty(2, 256, 256, dtype=torch.float16)
    call(a[0], weights[0])
    for given, dims in (((a, weights[0]), (0, None)), ((a[0], weights), (None, 0))):
        result = torch.func.vmap(matmul, in_dims=dims)(*given)
        told.append({"given": stub_matmul.pointers(a, *weights), "shape": list(result.shape)})


def forgotten() -> None:
    """What a call was given may be freed, though its plan stays."""

    def holders(tensor: torch.Tensor) -> int:
        return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)

    for m, n, k in ((256, 256, 256), (64, 64, 1024), (127, 129, 131), (1, 512, 512)):
        a, b = stub_matmul.half(m, k), stub_matmul.half(k, n)
        before = [*map(holders, (a, b, torch.empty(4)))]
        out = matmul(a, b)
        told.append({"before": before, "after": [*map(holders, (a, b, out))]})


def full() -> None:
    """No memory for a binary at the first call."""
    os.environ["CUDA_STUB_FULL"] = "1"
    tuner.use(sys.argv[2])
    for _ in range(2):
        try:
            call(stub_matmul.half(256, 256), stub_matmul.half(256, 256))
        except RuntimeError as e:
            told.append({"raised": str(e)})
        os.environ.pop("CUDA_STUB_FULL", None)


def failing_default() -> None:
    """Twice; this device has so little shared memory."""
    os.environ["CUDA_STUB_SHARED"] = sys.argv[2]
    for _ in range(2):
        try:
            call(stub_matmul.half(256, 256), stub_matmul.half(256, 256))
        except Exception as e:  # noqa: BLE001  whatever it is, the test reads it
            told.append({"raised": type(e).__name__})


if sys.argv[1] not in ("specialized", "families", "refused", "any_rows"):
    without("warp_specialized")
if sys.argv[1] == "any_rows":
    without("padded")  # the default for an unaligned operand, whose product reads a copy
globals()[sys.argv[1]]()
stub_driver.tell(
    calls=told,
    compiled=compiles.compiled,
    from_cache=compiles.from_cache,
    plans=sum(map(len, CALL_CACHE.plans.by_key.values())),
    kernels=sorted(name for op_name, name in registry.specs() if op_name == "matmul"),
)
