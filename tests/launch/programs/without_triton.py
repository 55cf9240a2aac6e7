"""Call matmul from a table whose launches ship ready to run, where Triton cannot be imported; prints what it gave."""

from __future__ import annotations

import json
import sys

sys.modules["triton"] = None  # type: ignore[assignment]  # an import of it fails from here on

import torch  # noqa: E402

import tuner  # noqa: E402
from tuner.hardware.device import KNOWN  # noqa: E402
from tuner.kernels import matmul  # noqa: E402
from tuner.kernels.ops import arguments, dispatch  # noqa: E402

STREAM = 9
torch._C._cuda_getCurrentRawStream = lambda _device: STREAM
torch._C._cuda_getDevice = lambda: 0
dispatch.device_of = lambda _index: KNOWN["sm_90"]
arguments.has_kernels = lambda _device: True
arguments.check_kinds = lambda _a, _b: None

tuner.use(sys.argv[1])
weight = torch.empty(256, 512, dtype=torch.float16)
bias = torch.empty(256, dtype=torch.float16)
calls, keep = [], []
for m in json.loads(sys.argv[2]):
    a = torch.empty(m, 512, dtype=torch.float16)
    for options in ({}, {"bias": bias}):
        result = matmul(a, weight.t(), **options)
        given = [a, weight, *options.values()]
        calls.append({"given": [each.data_ptr() for each in given], "out": result.data_ptr()})
        keep.append((a, result))
asked = sorted({"tuner.kernel.spec", "tuner.kernel.space"} & sys.modules.keys())
sys.stdout.write(json.dumps({"calls": calls, "stream": STREAM, "asked": asked}) + "\n")
