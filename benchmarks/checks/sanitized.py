"""A few launches of one kernel for compute-sanitizer to watch; nothing else runs on the GPU. See sanitizer.py.

Operands and reference are made on the host, so that only the kernel's own launches are looked at; the output is an
allocation of its own, so that memcheck sees the first byte written behind it.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch

from tuner.hardware import device as devices
from tuner.kernel import registry
from tuner.problem import dtype
from tuner.sweep import verify
from tuner.sweep.measure import failure_of

sys.path.extend(str(Path(__file__).parents[2] / part) for part in ("benchmarks", "tests/numerics"))
from attempts import laid_out
from covering import Coverage

SIZES = (3, 17, 130, 272)
"""Small, as a tool takes a thousand times as long; ragged, with several tiles and steps along K still."""
WIDE = (784, 1000)
"""M and N for kernels that serve nothing smaller: more tiles than there are multiprocessors."""
LONG = (520, 1032)
"""K for kernels that serve nothing shorter: they split it."""


def main(op: str, name: str) -> int:
    here = devices.current()
    spec = registry.find(op, name)
    for sizes in ((SIZES, SIZES, SIZES), (WIDE, WIDE, SIZES), (SIZES, SIZES, LONG)):
        coverage = Coverage(spec, here, sizes, refined=True)
        if coverage.problems:
            break
    chosen = sample(coverage.problems)
    failures = 0
    for case in coverage.cases():
        if (case.problem, case.view) in chosen:
            failure = launched(spec, case, here)
            failures += failure is not None
            print(f"{'right' if failure is None else failure}: {case}", flush=True)
    return 1 if failures else 0


def sample(problems):
    """Of each operand size in bytes the first problem with the longest K: another path to the tensor cores each."""
    longest = {}
    for problem, view in problems:
        size = dtype.ITEMSIZE[problem.a_dtype]
        if size not in longest or problem.k > longest[size][0].k:
            longest[size] = problem, view
    return set(longest.values())


def launched(spec, case, device) -> str | None:
    """Why a launch failed or was wrong; None when it was right."""
    host = laid_out(spec.make_inputs(case.problem, "cpu", case.seed), case.view)
    inputs = host if device.is_interpreter else moved(host)
    try:
        spec.launch(inputs, case.config)
        if not device.is_interpreter:
            torch.cuda.synchronize()
    except Exception as e:  # noqa: BLE001  whatever a launch raises is what is reported
        return failure_of(e).message
    error = verify.error(inputs.output.cpu(), spec.reference(host), case.problem.k)
    tolerance = spec.tolerance(case.problem)
    return None if error <= tolerance else f"error {error:.3g}, at most {tolerance:.3g} is right"


def moved(inputs):
    """The same on the GPU, the output in an allocation of just its own size."""
    names = {field.name for field in dataclasses.fields(inputs)} - {"out", "buffer"}
    placed = {name: on_gpu(getattr(inputs, name)) for name in names}
    out = torch.empty_strided(inputs.out.shape, inputs.out.stride(), dtype=inputs.out.dtype, device="cuda")
    return dataclasses.replace(inputs, **placed, out=out, buffer=out)


def on_gpu(value):
    """A tensor with all of its storage and its strides, or several; anything else as it is."""
    if isinstance(value, (tuple, list)):
        return type(value)(on_gpu(part) for part in value)
    if not isinstance(value, torch.Tensor):
        return value
    storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    return storage.cuda().as_strided(value.shape, value.stride(), value.storage_offset())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
