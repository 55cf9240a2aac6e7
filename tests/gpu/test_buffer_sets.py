"""What is timed is right on every buffer set: what a config launched is launched again on the others' addresses."""

from __future__ import annotations

import pytest
import torch

from tuner.hardware.device import current
from tuner.kernel import registry
from tuner.launch.plan import recorded
from tuner.problem import Problem
from tuner.sweep import buffer_sets, verify

SETS = 3
PROBLEMS = {
    "decode": Problem(16, 1024, 2048, dtype="bfloat16", layout="nt"),
    "one row": Problem(1, 1024, 2048, dtype="bfloat16", layout="nt"),
    "square": Problem(1024, 1024, 1024, dtype="float16"),
    "bias": Problem(192, 512, 1024, dtype="bfloat16", layout="nt", epilogue="bias+gelu"),
    "unaligned": Problem(127, 255, 511, dtype="bfloat16", layout="nt"),
    "fp8": Problem(64, 1024, 2048, dtype="float8_e4m3fn", layout="nt", scaling="row"),
    "blocks": Problem(64, 1024, 2048, dtype="float8_e4m3fn", layout="nt", scaling="block"),
    "batch": Problem(64, 256, 128, dtype="bfloat16", layout="nt", op="bmm", extras={"batch": 8}),
    "gated": Problem(192, 512, 1024, dtype="bfloat16", layout="nt", epilogue="silu", op="gated_linear"),
    "softmax": Problem(512, 1000, 1, dtype="bfloat16", op="softmax"),
    "rms_norm": Problem(512, 1000, 1, dtype="bfloat16", op="rms_norm", extras={"eps": 1e-6}),
}


@pytest.fixture(params=[pytest.param(problem, id=name) for name, problem in PROBLEMS.items()])
def problem(request):
    return request.param


def test_every_set_gets_what_it_should(problem):
    repeated = 0
    for spec in registry.serving(problem, current()):
        sets = [spec.make_inputs(problem, "cuda", seed) for seed in range(SETS)]
        fresh = spec.make_inputs(problem, "cuda", SETS)
        config = spec.default_config(problem, current())
        with recorded() as seen:
            spec.launch(fresh, config)
        call = buffer_sets.launches_again(seen, fresh, sets)
        del seen, fresh
        if call is None:
            assert problem.extras, f"{spec.name} is not repeated"
            continue
        repeated += 1
        for each in sets:
            verify.poison(each)
        torch.cuda.synchronize()  # another stream writes next
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call(0)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            for index in (*range(1, SETS), *range(1, SETS)):
                call(index)
            graph.capture_end()
            graph.replay()
        torch.cuda.synchronize()
        for each in sets:
            found = verify.check(each, spec.reference(each), problem.k, spec.tolerance(problem))
            assert found.failure is None, f"{spec.name}: {found.failure}"
    assert repeated, "no kernel's launches are repeated"
