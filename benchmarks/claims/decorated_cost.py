"""What a decorator costs the host at each launch of a layer norm: triton.autotune, the same adopted, and tuner.tuned.

    python benchmarks/claims/decorated_cost.py --out RESULT.json

Host time alone, as launch_cost.py measures it: all launch the same config of the same kernel, which each of them
knows already. Bursts take turns in an order drawn anew each round; `over_plain_us` is the median of the rounds'
differences.
"""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl
from launch_cost import parser, summary, timed

import tuner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

ROWS, COLUMNS = 64, 1024
CONFIGS = [triton.Config({"BLOCK_SIZE": 1024}, num_warps=4), triton.Config({"BLOCK_SIZE": 2048}, num_warps=8)]


@triton.jit
def layer_norm(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK_SIZE)
    x = tl.load(X + row * stride + at, mask=at < N, other=0.0).to(tl.float32)
    mean = tl.sum(x) / N
    centred = tl.where(at < N, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    w, b = tl.load(W + at, mask=at < N), tl.load(B + at, mask=at < N)
    tl.store(Y + row * stride + at, centred * rstd * w + b, mask=at < N)


def paths(device: str) -> dict[str, Callable[[], object]]:
    """The same launch by every way."""
    x, y = (torch.empty(ROWS, COLUMNS, device=device, dtype=torch.float16) for _ in range(2))
    w, b = (torch.empty(COLUMNS, device=device, dtype=torch.float16) for _ in range(2))
    mean, rstd = (torch.empty(ROWS, device=device) for _ in range(2))
    arguments, grid = (x, y, w, b, mean, rstd, COLUMNS, COLUMNS, 1e-5), (ROWS,)
    # Both take the first config: that is what is to be compared, not what they choose.
    autotuned = triton.autotune(CONFIGS, ["N"], do_bench=lambda _call, quantiles: [1.0] * len(quantiles))(layer_norm)
    tuned = tuner.tuned(CONFIGS, ["N"], name="layer_norm", default=CONFIGS[0])(layer_norm)
    chosen = CONFIGS[0].all_kwargs()
    autotuned[grid](*arguments)  # so that adoption below finds its key decided
    adopted = triton.autotune(CONFIGS, ["N"])(layer_norm)
    tuner.adopt(__name__, on_miss="first")
    return {
        "kernel[grid]": lambda: layer_norm[grid](*arguments, **chosen),
        "triton.autotune": lambda: autotuned[grid](*arguments),
        "triton.autotune, adopted": lambda: adopted[grid](*arguments),
        "tuner.tuned": lambda: tuned[grid](*arguments),
    }


def main() -> None:
    args = parser().parse_args()
    logging.disable(logging.WARNING)
    times = timed(paths(args.device), args)
    host = {name: summary(found) for name, found in times.items()}
    for name, found in times.items():
        longer = [ours - plain for ours, plain in zip(found, times["kernel[grid]"], strict=True)]
        host[name]["over_plain_us"] = round(statistics.median(longer), 3)
        print(name, host[name])
    record.write(args.out, {"shape": (ROWS, COLUMNS), "rounds": args.rounds, "host": host})


if __name__ == "__main__":
    main()
