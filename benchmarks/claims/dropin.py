"""Kernels of Triton's own tutorials under triton.autotune, and with that one line changed to tuner.tuned.

    python benchmarks/claims/dropin.py --tutorials DIR --out RESULT.json

DIR holds the unmodified files of Triton's source, python/tutorials/05-layer-norm.py, 06-fused-attention.py and
08-grouped-gemm.py; they are no part of this repository, and the result names each by its SHA-256. Of each a copy is
made in a temporary folder that ends before the first statement that runs something (they call and plot at module
level), and a second one in which `@triton.autotune(...)` reads `@tuner.tuned(..., tune_on_miss=True)`. The layer norm
has no decorator in that tutorial, so both copies get one, with one list of configs.

Every start is a process of its own, forked from one that imported torch and triton and nothing else. Its time begins
when CUDA is initialised and the operands are made, and ends when the first call's result is there: importing the copy
(and tuner), the lookup or the measurements, and what is compiled. `cold` has an empty compile cache, `warm` what the
process before compiled. The tuned copy's start is cold or warm with the winner in the database, which one process
before measured (`tuning`, on binaries that autotune's cold start had compiled).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import triton

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

LIMIT_S = 120
NORM, ATTENTION, GROUPED = "05-layer-norm.py", "06-fused-attention.py", "08-grouped-gemm.py"
LAYER_NORM = "@triton.jit\ndef _layer_norm_fwd_fused("
LAYER_NORM_LIST = (
    "@triton.autotune(configs=[triton.Config({'BLOCK_SIZE': b}, num_warps=w) for b in (1024, 2048, 4096) "
    "for w in (4, 8, 16)], key=['N'])\n"
)


class Case(NamedTuple):
    """A kernel of a tutorial, and one call of it."""

    name: str
    file: str
    kernel: str
    operands: Callable
    call: Callable


def layer_norm(module, x, w, b):
    y, mean, rstd = torch.empty_like(x), *(torch.empty(len(x), device=x.device) for _ in range(2))
    module._layer_norm_fwd_fused[(len(x),)](x, y, w, b, mean, rstd, x.stride(0), x.shape[1], 1e-5)
    return y, mean, rstd


def attention(module, q, k, v):
    return [module.attention(q, k, v, True, 1.3, False)]


def normal(*shapes):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [torch.randn(shape, device=device, dtype=torch.float16) for shape in shapes]


def grouped():
    sizes = (1024, 512, 256, 128)
    return normal(*((size, size) for size in sizes)), normal(*((size, size) for size in sizes))


CASES = (
    Case("layer norm", NORM, "_layer_norm_fwd_fused", lambda: normal((4096, 4096), 4096, 4096), layer_norm),
    Case("grouped GEMM", GROUPED, "grouped_matmul_kernel", grouped, lambda m, *given: m.group_gemm_fn(*given)),
    Case("fused attention", ATTENTION, "_attn_fwd", lambda: normal(*[(4, 32, 1024, 64)] * 3), attention),
    Case("grouped GEMM, TMA", GROUPED, "grouped_matmul_tma_kernel", grouped, lambda m, *a: m.group_gemm_tma_fn(*a)),
)


def definitions(text: str) -> str:
    """A tutorial up to its first statement that is no import, definition or assignment: what follows runs something."""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.Try, ast.If)
    for index, node in enumerate(ast.parse(text).body):
        if not isinstance(node, kept) and index:  # the first one is the docstring
            return "".join(text.splitlines(keepends=True)[: node.lineno - 1])
    return text


def tuned(text: str) -> str:
    """A copy whose kernels are under tuner.tuned: each `@triton.autotune(...)` reads so, with one option more."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        for decorator in getattr(node, "decorator_list", []):
            if not ast.unparse(decorator).startswith("triton.autotune("):
                continue
            last = decorator.keywords[-1].value
            line = lines[last.end_lineno - 1].encode()
            here = last.end_col_offset
            lines[last.end_lineno - 1] = (line[:here] + b", tune_on_miss=True" + line[here:]).decode()
            first = decorator.lineno - 1
            lines[first] = lines[first].replace("triton.autotune(", "tuner.tuned(", 1)
    return "".join(lines).replace("import triton\n", "import triton; import tuner\n", 1)


def copies(case: Case, tutorials: Path, folder: Path) -> dict[str, Path]:
    """Both copies, in which every line stands at the same place: a binary's key has it."""
    text = definitions((tutorials / case.file).read_text())
    if case.file.startswith("05") and "@triton.autotune" not in text:
        assert text.count(LAYER_NORM) == 1, f"{case.file}: _layer_norm_fwd_fused is not where it was"
        text = text.replace(LAYER_NORM, LAYER_NORM_LIST + LAYER_NORM)
    paths = {}
    for variant, content in (("autotune", text), ("tuned", tuned(text))):
        paths[variant] = folder / variant / f"tutorial_{case.file[:2]}.py"
        paths[variant].parent.mkdir(parents=True, exist_ok=True)
        paths[variant].write_text(content)
    return paths


def start(case: Case, path: Path, cache: Path, folder: Path, results: Path | None = None) -> dict:
    """Run the case's call in a new process: its seconds, its config, and how it was found."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(started, (CASES.index(case), path, cache, folder, results)).get(LIMIT_S)


def started(number: int, path: Path, cache: Path, folder: Path, results: Path | None) -> dict:
    """What `start` gives, in the new process."""
    case = CASES[number]
    os.environ |= {"TRITON_CACHE_DIR": str(cache), "TUNER_DB": str(folder / "tuner.db")}
    os.environ.pop("TUNER_TABLES", None)
    torch.manual_seed(0)
    operands = case.operands()
    synchronize()
    begun = time.perf_counter()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outputs = case.call(module, *operands)
    synchronize()
    found = {"seconds": round(time.perf_counter() - begun, 4)}
    kernel = getattr(module, case.kernel)
    found |= {"config": str(kernel.best_config), "measured": "tuner.sweep" in sys.modules}
    if "tuner" in sys.modules:
        import tuner

        found["rule"] = tuner.lookup(next(iter(kernel.cache))).rule
    if results is not None:
        torch.save([output.cpu() for output in outputs], results)
    return found


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def difference(first: Path, second: Path) -> float:
    """The largest difference of two runs' outputs, over the root mean square of that output; 0 says the same bits."""
    pairs = [(a.double(), b.double()) for a, b in zip(torch.load(first), torch.load(second), strict=True)]
    return max(float((a - b).abs().max() / a.square().mean().sqrt()) for a, b in pairs)


def compared(case: Case, tutorials: Path, folder: Path, starts: int) -> dict:
    """One case: seconds of each start, and whether both ways give the same numbers."""
    paths = copies(case, tutorials, folder)
    theirs, ours = folder / "cache-autotune", folder / "cache-tuned"
    outputs = {variant: folder / f"{variant}.pt" for variant in paths}
    cold = start(case, paths["autotune"], theirs, folder, outputs["autotune"])
    warm = [start(case, paths["autotune"], theirs, folder) for _ in range(starts)]
    tuning = start(case, paths["tuned"], theirs, folder)
    tuned_cold = start(case, paths["tuned"], ours, folder, outputs["tuned"])
    tuned_warm = [start(case, paths["tuned"], ours, folder) for _ in range(starts)]
    theirs_s, ours_s = ([each["seconds"] for each in some] for some in (warm, tuned_warm))
    return {
        "autotune_cold_s": cold["seconds"],
        "autotune_warm_s": theirs_s,
        "tuning_s": tuning["seconds"],
        "tuned_cold_s": tuned_cold["seconds"],
        "tuned_warm_s": ours_s,
        "times_faster_warm": round(statistics.median(theirs_s) / statistics.median(ours_s), 2),
        "times_faster_cold": round(cold["seconds"] / tuned_cold["seconds"], 2),
        "rules": sorted({each["rule"] for each in (tuned_cold, *tuned_warm)}),
        "measured_again": any(each["measured"] for each in (tuned_cold, *tuned_warm)),
        "autotune_config": cold["config"],
        "tuned_config": tuned_cold["config"],
        "same_config": cold["config"] == tuned_cold["config"],
        "largest_difference": difference(outputs["autotune"], outputs["tuned"]),
        "tutorial_sha256": hashlib.sha256((tutorials / case.file).read_bytes()).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tutorials", required=True, type=Path)
    parser.add_argument("--out", required=True)
    parser.add_argument("--starts", type=int, default=3, help="warm starts of each way")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="these only")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    sys.dont_write_bytecode = False  # modules come compiled after the first process, as an installer leaves them
    torch.set_num_threads(1)  # a child that is forked from OpenMP's threads would wait for them
    rows, failed = {}, {}
    for case in [case for case in CASES if not args.case or case.name in args.case]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = rows[case.name] = compared(case, args.tutorials, Path(folder), args.starts)
            except Exception as e:  # noqa: BLE001  of whatever kind: it is told, and the other cases go on
                failed[case.name] = f"{type(e).__name__}: {e}"
                print(f"{case.name:20}failed: {e}", flush=True)
                continue
        print(case.name, row, flush=True)
    record.write(args.out, {"starts": args.starts, "rows": rows, "failed": failed})
    print(json.dumps(failed, indent=1) if failed else f"triton {triton.__version__}: {args.out}")


if __name__ == "__main__":
    main()
