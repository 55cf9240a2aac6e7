"""Gated MLPs of transformers' models by torch, on tuned linear layers, and with gate and up in one launch.

    python benchmarks/claims/gated_mlps.py --out RESULT.json [--models llama-3-8b,qwen2.5-7b] [--tokens 1,8]
    python benchmarks/claims/gated_mlps.py --out RESULT.json --rehearse

Four blocks one behind the other, each with weights of its own, so that they are read from memory, and with its input
added to its result. Weights and inputs are random; the tables are those that come with triton-tuner, `auto`. Captured:
a CUDA graph of all four. Pairs take turns in an order drawn anew. `torch`: torch's time over that of
`tuner.models.accelerate`. `layers`: the time with linear layers accelerated alone over it. `compiled`: torch's time
over it, both compiled by torch.compile and captured. `error`: the norm of the difference from float64 over the norm, of
torch's block and of ours. Host: microseconds until a call of one block returns.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import experts_blocks

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import turns

MODELS = {
    "llama-3-8b": ("llama", "Llama", 4096, 14336),
    "qwen2.5-7b": ("qwen2", "Qwen2", 3584, 18944),
    "qwen3-4b": ("qwen3", "Qwen3", 2560, 9728),
    "gemma-2-9b": ("gemma2", "Gemma2", 3584, 14336),
    "phi-4": ("phi3", "Phi3", 5120, 17920),
    "llama-3-70b-tp4": ("llama", "Llama", 8192, 7168),
    "tiny": ("llama", "Llama", 64, 96),
}
"""By name: transformers' module and prefix, hidden and intermediate size."""
BLOCKS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(name for name in MODELS if name != "tiny"))
    parser.add_argument("--tokens", type=turns.numbers, default=[1, 8, 32, 128, 512, 1024, 4096])
    parser.add_argument("--compiled", type=turns.numbers, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if options.rehearse:
        options.models, options.tokens, options.rounds, options.compiled = "tiny", [1, 5], 2, []
    found: dict[str, Any] = {}
    for name in options.models.split(","):
        found[name] = played(name, options)
        record.write(options.out, found)
        for tokens, each in found[name]["tokens"].items():
            ratios = {key: each[key]["torch_over_tuner"] for key in ("torch", "layers", "compiled") if key in each}
            us = round(each["torch"]["tuner_ms"] * 1e3 / BLOCKS, 1)
            print(f"{name:16} {tokens:>5}", us, ratios, each["error"], each["host_us"], flush=True)


def played(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All ways at each number of tokens."""
    import torch

    from tuner.models import accelerate

    plain = blocks_of(name)
    layers, ours = (turns.shared_copy(plain) for _ in range(2))
    backend = "tuner" if options.rehearse else "auto"
    said = {
        "layers": str(accelerate(layers, only="*_proj", backend=backend)),
        "all": str(accelerate(ours, backend=backend)),
    }
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for tokens in options.tokens:
            x = tensor_of(name, tokens)
            each: dict[str, Any] = {"error": errors(plain, ours, x)}
            each["torch"] = experts_blocks.paired(chained(plain, ours), (x,), options)
            each["layers"] = experts_blocks.paired(chained(layers, ours), (x,), options)
            each["host_us"] = {
                who: experts_blocks.host_us(blocks[0], x, ())
                for who, blocks in (("torch", plain), ("layers", layers), ("tuner", ours))
            }
            if tokens in options.compiled:
                torch._dynamo.reset()
                ways = {who: torch.compile(way) for who, way in chained(plain, ours).items()}
                each["compiled"] = experts_blocks.paired(ways, (x,), options)
            found[str(tokens)] = each
    return {"accelerate": said, "tokens": found}


def chained(theirs: Any, ours: Any) -> dict[str, Any]:
    """Both ways through all blocks."""

    def through(blocks: Any) -> Any:
        def step(x: Any) -> Any:
            for block in blocks:
                x = x + block(x)
            return x

        return step

    return {"torch": through(theirs), "tuner": through(ours)}


def errors(plain: Any, ours: Any, x: Any) -> dict[str, float]:
    exact = copy.deepcopy(plain[0]).double()(x.double())
    return {
        who: round(((blocks[0](x).double() - exact).norm() / exact.norm()).item(), 6)
        for who, blocks in (("torch", plain), ("tuner", ours))
    }


def blocks_of(name: str) -> Any:
    """A model's MLPs with random weights."""
    import torch

    module, prefix, hidden, intermediate = MODELS[name]
    package = f"transformers.models.{module}"
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "pad_token_id": 0}
    config = getattr(import_module(package), f"{prefix}Config")(**sizes)
    kind = getattr(import_module(f"{package}.modeling_{module}"), f"{prefix}MLP")
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        made = torch.nn.ModuleList(kind(config) for _ in range(BLOCKS)).bfloat16()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return made.eval().requires_grad_(False)


def tensor_of(name: str, tokens: int) -> Any:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(tokens)
    return torch.randn(tokens, MODELS[name][2], device=device, generator=generator).bfloat16()


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
