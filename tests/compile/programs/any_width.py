"""Compile tiles of any width or height, and print as JSON what came of each. Usage: any_width.py ARCH."""

from __future__ import annotations

import json
import re
import sys

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile import any_width
from tuner.kernels.gemm.any_tile.any_height_tile import as_computed
from tuner.kernels.gemm.hopper.resources import row_length
from tuner.sweep import binary_resources, cross_target

PLAIN = Problem(2048, 3584, 18944, dtype="bf16", layout="nt")
WIDE = Problem(640, 10240, 5120, dtype="fp16", layout="nt", out_dtype="fp32", epilogue="bias+gelu")
ODD = Problem(5000, 5000, 5000, dtype="bf16", layout="nt")
FEW = Problem(129, 7168, 8192, dtype="bf16", layout="nt", epilogue="bias+gelu")
TWO_TILES = Problem(250, 5120, 8192, dtype="bf16", layout="nt", epilogue="bias")
MANY = Problem(900, 7168, 5120, dtype="bf16", layout="nt", epilogue="bias+gelu")
MANY_WIDE = Problem(900, 5000, 5120, dtype="fp16", layout="nt", out_dtype="fp32")
FEW_WIDE = Problem(250, 7168, 8192, dtype="fp16", layout="nt", out_dtype="fp32")
ALONG_N = Problem(900, 7168, 5120, dtype="bf16", layout="nn", epilogue="bias+gelu")
ALONG_BOTH = Problem(896, 7168, 5120, dtype="fp16", layout="tn", epilogue="bias")
EIGHT_BITS = Problem(200, 7168, 8192, dtype="e4m3", layout="nt", epilogue="bias+gelu")
EIGHT_BITS_SCALED = Problem(500, 4096, 8192, dtype="e4m3", layout="nt", scaling="row", epilogue="bias")
TILES = [
    (PLAIN, 128, 224, 4, {}),
    (PLAIN, 128, 176, 5, {}),
    (PLAIN, 192, 160, 4, {}),
    (PLAIN, 192, 208, 4, {}),
    (PLAIN, 192, 224, 4, {}),
    (ODD, 192, 208, 4, {}),
    (PLAIN, 256, 160, 4, {}),
    (PLAIN, 256, 192, 3, {}),
    (WIDE, 128, 208, 4, {}),
    (ODD, 256, 160, 4, {"num_ctas": 2}),
    (ODD, 128, 240, 4, {"num_ctas": 2, "SHARE_B": True}),
    (ODD, 192, 144, 4, {"num_ctas": 2}),
    (TWO_TILES, 128, 80, 7, {}),
    (TWO_TILES, 128, 80, 7, {"num_ctas": 2, "SHARE_B": True}),
]
"""Of `any_width`: problems, rows, columns, stages and options."""
HEIGHTS = [
    (FEW, 144, 64, 8, {"num_ctas": 4}),
    (FEW, 144, 128, 5, {}),
    (FEW, 80, 192, 5, {}),
    (TWO_TILES, 208, 192, 4, {}),
    (TWO_TILES, 144, 192, 5, {}),
    (FEW_WIDE, 256, 64, 4, {"num_ctas": 4}),
    (FEW_WIDE, 256, 128, 4, {}),
    (FEW_WIDE, 128, 64, 7, {}),
    (MANY, 200, 256, 3, {}),
    (MANY, 136, 128, 5, {}),
    (MANY, 152, 192, 4, {}),
    (MANY_WIDE, 208, 256, 3, {}),
    (EIGHT_BITS, 200, 64, 6, {"num_ctas": 4}),
    (EIGHT_BITS, 104, 192, 4, {"num_ctas": 2, "SHARE_B": True}),
    (EIGHT_BITS_SCALED, 168, 128, 5, {}),
    (EIGHT_BITS_SCALED, 104, 256, 4, {}),
    (EIGHT_BITS, 208, 192, 4, {}),
    (ALONG_N, 152, 192, 4, {}),
    (ALONG_N, 208, 192, 4, {}),
    (ALONG_N, 200, 256, 3, {"num_ctas": 2, "SHARE_B": True}),
    (ALONG_BOTH, 192, 128, 4, {}),
    (ALONG_BOTH, 136, 128, 4, {}),
    (ALONG_BOTH, 72, 64, 8, {"num_ctas": 4}),
    (ALONG_BOTH, 184, 192, 4, {}),
    (ALONG_BOTH, 200, 256, 3, {"num_ctas": 2, "SHARE_B": True}),
    (ALONG_BOTH, 128, 256, 4, {}),
    (ALONG_BOTH, 192, 192, 4, {"num_ctas": 4}),
]
"""The same of `any_height`."""
FEW_TILES = Problem(306, 1024, 14336, dtype="bf16", layout="nt", epilogue="bias+gelu")
FEW_TILES_WIDE = Problem(616, 368, 16384, dtype="fp16", layout="nn", out_dtype="fp32")
BY_BLOCKS = Problem(80, 12288, 4096, dtype="e4m3", layout="nt", scaling="block", epilogue="bias+gelu")
BY_BLOCKS_WIDE = Problem(147, 5120, 8192, dtype="e5m2", layout="nt", scaling="block", out_dtype="fp32")
FEW_TILES_ALONG_M = Problem(896, 544, 14080, dtype="bf16", layout="tn")
SPLITS = [
    (FEW_TILES, 40, 64, 12, {"SPLIT_K": 2, "num_ctas": 8}),
    (FEW_TILES, 104, 128, 7, {"SPLIT_K": 4, "num_ctas": 4}),
    (FEW_TILES, 104, 256, 5, {"SPLIT_K": 8, "num_ctas": 8}),
    (FEW_TILES, 184, 256, 4, {"SPLIT_K": 4, "num_ctas": 8, "SHARE_B": True}),
    (FEW_TILES_WIDE, 256, 64, 5, {"SPLIT_K": 4, "num_ctas": 8}),
    (FEW_TILES_WIDE, 192, 192, 4, {"SPLIT_K": 2, "num_ctas": 4, "SHARE_B": True}),
    (FEW_TILES_ALONG_M, 128, 192, 5, {"SPLIT_K": 2, "num_ctas": 2}),
    (FEW_TILES_ALONG_M, 152, 128, 5, {"SPLIT_K": 4, "num_ctas": 4}),
    (BY_BLOCKS, 80, 128, 8, {"SPLIT_K": 1}),
    (BY_BLOCKS, 80, 192, 6, {"SPLIT_K": 2, "num_ctas": 2}),
    (BY_BLOCKS_WIDE, 88, 192, 6, {"SPLIT_K": 1, "num_ctas": 4}),
    (BY_BLOCKS_WIDE, 112, 192, 5, {"SPLIT_K": 2, "num_ctas": 4, "SHARE_B": True}),
    (BY_BLOCKS_WIDE, 128, 128, 6, {"SPLIT_K": 2, "num_ctas": 2}),
    (BY_BLOCKS_WIDE, 128, 64, 6, {"SPLIT_K": 1}),
    (FEW_TILES_ALONG_M, 40, 256, 5, {"SPLIT_K": 2, "num_ctas": 4, "SHARE_B": True}),
]
"""The same of `any_height_split`."""
WARPS = {
    "any_width": lambda rows, _columns: 12 if rows == 192 else 8,
    **dict.fromkeys(("any_height", "any_height_split"), lambda _rows, columns: 8 if columns == 256 else columns // 16),
}
ORDERS = {"any_width": {"GROUP_SIZE_M": 8}, "any_height": {"GROUP_SIZE_M": 1}, "any_height_split": {}}


def main(arch: str) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    found = []
    tiles = {"any_width": TILES, "any_height": HEIGHTS, "any_height_split": SPLITS}
    cases = [(name, tile) for name, them in tiles.items() for tile in them]
    for name, (problem, rows, columns, stages, options) in cases:
        spec = registry.find("matmul", name)
        config = Config(
            spec.name,
            BLOCK_SIZE_M=rows,
            BLOCK_SIZE_N=columns,
            BLOCK_SIZE_K=row_length(problem),
            **ORDERS[name],
            launch_pdl=True,
            num_stages=stages,
            num_warps=WARPS[name](rows, columns),
            **options,
        )
        compiled = spec.compile(problem, config)
        inner, computed = (config, problem) if name == "any_width" else (as_computed(config), problem.exchanged())
        assembly, llir = compiled.asm["ptx"], compiled.asm["llir"]
        resources = binary_resources.read_resources(compiled, 0.0)
        found.append(
            {
                "case": f"{problem} {config}",
                "refused": spec.unserved(problem, device)
                or spec.space(problem, device).rejection(config, fatal_only=True),
                "spill_bytes": resources.spill_bytes,
                "shared_bytes": resources.shared_bytes,
                "predicted_bytes": spec.shared_bytes(config, problem, device),
                "widths": sorted({*map(int, re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k", assembly))}),
                "columns": columns if name == "any_width" else rows,
                "wgmmas": 2 if config["num_warps"] == 12 and max(rows, columns) > 192 else 1,
                "multicasts": ".multicast::cluster" in assembly,
                "shares": "num_ctas" in options and name != "any_height_split",
                "misplaced": any_width.misplaced(llir, inner, computed),
                "misplaced_larger": any_width.misplaced(llir, inner.replace(num_stages=stages + 1), computed),
            }
        )
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
