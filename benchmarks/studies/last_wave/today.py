"""Today's configs for each problem, ranked by the package's own estimate: written to today.json, read on the GPU."""

import json
import time
from pathlib import Path

import tuner.problem.suite as suite
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.problem import Problem

SUITES = Path(__file__).parents[2] / "suites"
dev = KNOWN["sm_90"]
problems = [
    Problem(5000, 5000, 5000, dtype="bfloat16", layout="nt"),
    Problem(3000, 3000, 3000, dtype="bfloat16", layout="nt"),
    *suite.load(str(SUITES / "last-wave.csv")),
    *suite.load(str(SUITES / "attention.csv")),
]
out = {}
t0 = time.time()
for p in problems:
    best = {}
    for spec in registry.serving(p, dev):
        if spec.estimate_us is None or spec.name in ("padded",):
            continue
        try:
            configs = spec.space(p, dev).configs()
        except Exception as e:
            print(spec.name, e)
            continue
        for c in configs:
            tile = (
                spec.name,
                *(
                    c.get(k)
                    for k in (
                        "BLOCK_SIZE_M",
                        "BLOCK_SIZE_N",
                        "BLOCK_SIZE_N_REST",
                        "BLOCK_SIZE_K",
                        "num_warps",
                        "SPLIT_K",
                        "num_ctas",
                        "SHARE_B",
                        "SWAP_AB",
                    )
                ),
            )
            try:
                us = spec.estimate_us(c, p, dev)
            except Exception:
                continue
            if tile not in best or us < best[tile][0]:
                best[tile] = (us, c)
        if time.time() - t0 > 800:
            break
    ranked = sorted(best.values(), key=lambda x: x[0])
    default = registry.default_config(p, dev)
    if p.op == "bmm":
        chosen = [default]
        for kernel, most in (("bmm_tma", 4), ("bmm_pointer", 2)):
            chosen += [c for _, c in ranked if c != default and c.kernel == kernel][:most]
    else:
        chosen = [default] + [c for _, c in ranked if c != default][:6]
    out[str(p)] = [{"kernel": c.kernel, **dict(c)} for c in chosen]
    print(f"{time.time() - t0:.0f}s", p, [f"{us:.1f} {c}" for us, c in ranked[:2]], flush=True)
    Path(__file__).with_name("today.json").write_text(json.dumps(out, separators=(",", ":")))
