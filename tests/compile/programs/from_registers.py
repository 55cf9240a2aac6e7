"""Compile tiles whose A comes from registers, and print as JSON what is wrong with them.

Usage: from_registers.py ARCH SHARE, which compiles one of so many tiles of each problem.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.cost import products
from tuner.kernels.cost.tile import Sides
from tuner.kernels.gemm.hopper import resources
from tuner.sweep import binary_resources, cross_target

TF32 = {"dtype": "fp32", "precision": "tf32"}
PROBLEMS = {
    "warp_specialized": [
        Problem(4096, 4096, 4096, layout="nn", **TF32),
        Problem(200, 4096, 4096, layout="nn", epilogue="bias+gelu", **TF32),
        Problem(2048, 1024, 4096, layout="tt", epilogue="bias", out_dtype="bf16", **TF32),
        Problem(300, 4096, 4096, layout="nn", out_dtype="fp16", **TF32),
    ],
    "cluster_k": [Problem(200, 512, 4096, layout="nn", **TF32), Problem(20, 512, 4096, layout="nn", **TF32)],
}
SIDES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_N_REST", "BLOCK_SIZE_K", "num_warps")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
SERIALIZED = "wgmma.mma_async instructions are serialized"
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?P<predicate>@!?U?P\w+ )?(?P<name>[\w.]+)\s*(?P<operands>[^;]*);")
WIDTHS = {".64": 2, ".128": 4}
PRODUCT, WAIT = "HGMMA", "WARPGROUP.DEPBAR"
A_REGISTERS = 4
"""Registers of A in one wgmma of 32-bit operands."""
ENDS = ("EXIT", "RET")
WITHOUT_RESULT = ("ST", "SYNCS", "BAR", "UTMA", "RED", "WARPGROUP", "BRA", "BRX", "NANOSLEEP", "FENCE", "ERRBAR")


def main(arch: str, share: int) -> None:
    device, found = KNOWN[arch], []
    cross_target.activate(arch)
    for name, problems in PROBLEMS.items():
        spec = registry.find("matmul", name)
        for problem in problems:
            configs = spec.space(problem, device).configs()
            tiles = {tuple(one.get(side) for side in SIDES): one for one in configs}
            ahead = [one for one in tiles.values() if loads_ahead(one, problem)]
            for config in dict.fromkeys([*ahead[:1], *[*tiles.values()][::share]]):
                found.append({"case": f"{problem} {config}", **told(spec, problem, config)})
    sys.stdout.write(json.dumps(found))


def loads_ahead(config: Config, problem: Problem) -> bool:
    return products.loads_ahead(Sides.of(resources.as_computed(config, problem)[0]))


def told(spec: Any, problem: Problem, config: Config) -> dict[str, Any]:
    """What ptxas says of a config, and what its instructions do."""
    binary = spec.compile(problem, config)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(binary.asm["ptx"])
        said = run("ptxas", "-v", "-arch=sm_90a", str(ptx), "-o", str(cubin)).stderr
        code = instructions(run("nvdisasm", "-hex", str(cubin)).stdout)
    return {
        "serialized": SERIALIZED in said,
        "products": sum(name.startswith(PRODUCT) for _, name, *_ in code),
        "overwritten": overwritten(code),
        "spill_bytes": binary_resources.read_resources(binary, 0).spill_bytes,
    }


def run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TOOLS / tool), *arguments], check=True, capture_output=True, text=True)


def instructions(listing: str) -> list[tuple[bool, str, str, tuple[int, ...]]]:
    """Each instruction: whether it is predicated, its name and operands, and where it may jump to."""
    lines, labels, found = listing.splitlines(), dict[str, int](), list[tuple[bool, str, str]]()
    for line in lines:
        if match := re.match(r"(\.L_x_\d+):", line):
            labels[match[1]] = len(found)
        elif match := INSTRUCTION.search(line):
            found.append((match["predicate"] is not None, match["name"], match["operands"].strip()))
    return [
        (guarded, name, operands, tuple(labels[label] for label in re.findall(r"\.L_x_\d+", operands)))
        for guarded, name, operands in found
    ]


def overwritten(code: list[tuple[bool, str, str, tuple[int, ...]]]) -> list[str]:
    """Instructions that write registers of an A that a product still under way may read, on any path."""
    before: list[frozenset[int] | None] = [None] * len(code)
    todo, wrong = [(0, frozenset[int]())], set[str]()
    while todo:
        at, under_way = todo.pop()
        if at >= len(code) or (before[at] is not None and under_way <= before[at]):
            continue
        under_way |= before[at] or frozenset()
        before[at] = under_way
        guarded, name, operands, targets = code[at]
        if written(name, operands) & under_way:
            wrong.add(f"{at}: {name} {operands}")
        if name.startswith(PRODUCT):
            first = re.match(r"R\d+, R(\d+), gdesc", operands)
            assert first, f"a product whose A is in shared memory: {operands}"
            under_way |= frozenset(range(int(first[1]), int(first[1]) + A_REGISTERS))
        elif name.startswith(WAIT):
            assert operands.endswith("0x0"), f"a wait that leaves products under way: {operands}"
            under_way = frozenset()
        todo += [(target, under_way) for target in targets]
        if guarded or not (name.startswith(("BRA", "BRX")) or name in ENDS):
            todo.append((at + 1, under_way))
    return sorted(wrong)


def written(name: str, operands: str) -> frozenset[int]:
    """The registers that an instruction writes, except a product its sums."""
    match = re.match(r"R(\d+)\b", operands)
    if match is None or name.startswith((PRODUCT, *WITHOUT_RESULT)):
        return frozenset()
    width = next((count for suffix, count in WIDTHS.items() if suffix in name or ".WIDE" in name), 1)
    return frozenset(range(int(match[1]), int(match[1]) + width))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
