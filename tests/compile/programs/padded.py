"""What padded compiles to for one architecture, its copies and its GEMM; print a JSON list, one row a problem."""

from __future__ import annotations

import json
import re
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernels.base.operands import make_operands
from tuner.kernels.gemm.padded.spec import SPEC, program
from tuner.launch.launch import compile_launches
from tuner.sweep import cross_target

PROBLEMS = [
    Problem(1023, 2047, 4093, dtype="bf16", layout="nt"),
    Problem(3000, 3000, 3000, dtype="bf16", layout="nt", epilogue="bias+gelu"),
    Problem(40, 2046, 4094, dtype="e4m3", layout="nt"),
    Problem(300, 1030, 515, dtype="fp16", layout="nt", b_padded=True),
]


def main(arch: str) -> None:
    cross_target.activate(arch)
    device = KNOWN[arch]
    rows = []
    for index, problem in enumerate(PROBLEMS):
        configs = SPEC.space(problem, device).configs()
        config = SPEC.default_config(problem, device) if index % 2 else configs[len(configs) // 3]
        copies, gemm = program(make_operands(problem, "meta", 0), config)
        copied = compile_launches([copies])
        multiplied = compile_launches([gemm])
        rows.append(
            {
                "case": f"{problem} {config}",
                "loads": sorted(set(re.findall(r"ld\.global\S*?((?:\.v\d)?\.b\d+) ", copied.asm["ptx"]))),
                "stores": sorted(set(re.findall(r"st\.global\S*?((?:\.v\d)?\.b\d+) ", copied.asm["ptx"]))),
                "shared_bytes": multiplied.metadata.shared,
                "predicted_bytes": SPEC.shared_bytes(config, problem, device),
                "by_pointer": "st.global" in multiplied.asm["ptx"],
            }
        )
    sys.stdout.write(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1])
