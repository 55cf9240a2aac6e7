"""Blocks of experts of transformers' models by their own forward and by `tuner.kernels.fused_experts`.

    python benchmarks/claims/experts_blocks.py --out RESULT.json [--models qwen3-30b,olmoe-7b] [--tokens 1,8] [--vllm]
    python benchmarks/claims/experts_blocks.py --out RESULT.json --rehearse

`tuner run` first tunes each model's block for the numbers of tokens played, and nothing else. Blocks have the models'
sizes and random weights; tokens are sent to experts drawn uniformly, anew for each number of tokens. Captured: a CUDA
graph of one call, whose weights are read from memory as they do not stay in the L2 for the most part; both ways take
turns in an order drawn anew. `skewed`: the same with experts drawn in proportion to 1 / rank (Zipf), by the configs
that were tuned for uniform routing. Host: until the call returns, by the same tokens' tensor again, and by one that was
never seen. `error` is the norm of the difference from torch's own numbers over their norm. With --vllm `tuner moe`
tunes vLLM's kernel for the same layers: `vllm_products_us` is the time of its two products alone, without routing,
activation and sum.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from commands import tuner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import turns

MODELS = {
    "qwen3-30b": ("qwen3_moe", "Qwen3Moe", {"moe_intermediate_size": 768, "num_experts": 128}, 2048, 768, 128, 8),
    "mixtral-8x7b": ("mixtral", "Mixtral", {"intermediate_size": 14336, "num_local_experts": 8}, 4096, 14336, 8, 2),
    "olmoe-7b": ("olmoe", "Olmoe", {"intermediate_size": 1024, "num_experts": 64}, 2048, 1024, 64, 8),
    "qwen2-57b": ("qwen2_moe", "Qwen2Moe", {"moe_intermediate_size": 2560, "num_experts": 64}, 3584, 2560, 64, 8),
    "tiny": ("mixtral", "Mixtral", {"intermediate_size": 48, "num_local_experts": 4}, 64, 48, 4, 2),
}
"""By name: transformers' module and prefix, the config's sizes, and hidden, intermediate, experts and top_k."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="qwen3-30b,mixtral-8x7b,olmoe-7b,qwen2-57b")
    parser.add_argument("--tokens", type=turns.numbers, default=[1, 8, 32, 128, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if options.rehearse:
        options.models, options.tokens, options.rounds = "tiny", [1, 5], 2
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUNER_DB"] = f"{folder}/tuner.db"
        for name in options.models.split(","):
            winners, seconds = tuned(folder, name, options)
            found[name] = {"winners": winners, "tuning_s": seconds}
            if options.vllm:
                found[name]["vllm_products_us"] = vllms(folder, name, options)
        for name, model in found.items():  # after all, because this process reads the database once
            model["tokens"] = played(name, options)
            record.write(options.out, found)
            for tokens, each in model["tokens"].items():
                timed, others = each["captured"], model.get("vllm_products_us", {}).get(tokens, "")
                us, ratios = timed["tuner_ms"] * 1e3, (timed["torch_over_tuner"], each["skewed"]["torch_over_tuner"])
                print(f"{name:14} {tokens:>5}", us, *ratios, others, each["error"], each["host_fresh_us"])


def tuned(folder: str, name: str, options: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """Tune a block for the tokens that are played; the winners and how long it took."""
    _, _, _, hidden, intermediate, experts, top_k = MODELS[name]
    rows = [f"fused_experts,{m},{intermediate},{hidden},bf16,nt,silu,{experts},{top_k}" for m in options.tokens]
    (Path(folder) / "suite.csv").write_text("\n".join(["op,m,n,k,dtype,layout,epilogue,groups,top_k", *rows]) + "\n")
    here = ["--device", "interpreter", "--trials", "2"] if options.rehearse else []
    begun = time.perf_counter()
    document = tuner(Path(folder), "run", "--suite", "suite.csv", "--db", "tuner.db", *here, accept=(0, 1))
    winners = [winner for each in document["problems"] if (winner := each["winner"])]
    return {str(w["problem"]["m"]): [w["kernel"], w["config"], w["median_us"]] for w in winners}, round(
        time.perf_counter() - begun, 1
    )


def vllms(folder: str, name: str, options: argparse.Namespace) -> dict[str, float]:
    """Microseconds of both products by vLLM's kernel with the fastest of its configs that was found."""
    _, _, _, hidden, intermediate, experts, top_k = MODELS[name]
    sizes = {"experts": experts, "intermediate": intermediate, "hidden": hidden, "topk": top_k}
    layer = [word for key, size in sizes.items() for word in (f"--{key}", str(size))]
    ms = ",".join(map(str, options.tokens))
    document = tuner(
        Path(folder), "moe", *layer, "--m", ms, "--for", "vllm", "--out", f"vllm-{name}", "--db", f"vllm-{name}.db"
    )
    return {str(row["m"]): round(row["us"], 2) for row in document["rows"]}


def played(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both ways at each number of tokens."""
    import torch

    block, found = block_of(name), {}
    for tokens in options.tokens:
        x, *given = tensors_of(name, tokens, "uniform", options)
        ways = {"torch": block, "tuner": by_kernel(block)}
        with torch.inference_mode():
            a, b = (way(x, *given).double() for way in ways.values())
            each = {"error": round(((a - b).norm() / a.norm()).item(), 6)}
            each["host_us"] = {who: host_us(way, x, given) for who, way in ways.items()}
            each["host_fresh_us"] = {who: host_us(way, x, given, fresh=True) for who, way in ways.items()}
            each["captured"] = paired(ways, (x, *given), options)
            each["skewed"] = paired(ways, tensors_of(name, tokens, "zipf", options), options)
        found[str(tokens)] = each
    return found


def by_kernel(block: Any) -> Any:
    from tuner.kernels import fused_experts

    return lambda x, *given: fused_experts(x, block.gate_up_proj, block.down_proj, *given)


def tensors_of(name: str, tokens: int, routing: str, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Tokens, their experts and the experts' shares."""
    import torch

    from tuner.moe.routing import draw

    *_, hidden, _, experts, top_k = MODELS[name]
    device = "cpu" if options.rehearse else "cuda"
    generator = torch.Generator(device).manual_seed(tokens)
    x = torch.randn(tokens, hidden, device=device, generator=generator).bfloat16()
    shares = torch.rand(tokens, top_k, device=device, generator=generator)
    chosen = draw(routing, (tokens, experts, top_k), tokens).to(device, torch.int64)
    return x, chosen, (shares / shares.sum(-1, keepdim=True)).bfloat16()


def paired(ways: dict[str, Any], given: tuple[Any, ...], options: argparse.Namespace) -> dict[str, Any]:
    """Both ways in turns: as captured graphs, or under the interpreter as they are."""
    steps = [lambda way=way: way(*given) for way in ways.values()]
    if options.rehearse:
        return turns.paired(*steps, turns.host_seconds, options.rounds)
    graphs = [turns.captured(step) for step in steps]
    return turns.paired(*graphs, turns.device_seconds, options.rounds)


def block_of(name: str) -> Any:
    """A model's block of experts with random weights."""
    from importlib import import_module

    import torch

    module, prefix, sizes, hidden, *_, top_k = MODELS[name]
    package = f"transformers.models.{module}"
    config = getattr(import_module(package), f"{prefix}Config")(hidden_size=hidden, num_experts_per_tok=top_k, **sizes)
    config._experts_implementation = "grouped_mm"
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        made = getattr(import_module(f"{package}.modeling_{module}"), f"{prefix}Experts")(config).bfloat16()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return made.requires_grad_(False)


def host_us(way: Any, x: Any, given: Any, *, fresh: bool = False, calls: int = 20, rounds: int = 5) -> float:
    """Microseconds until a call returns: the median of rounds of calls, between which the device ends its work.

    With `fresh` each call has a copy of x that no call before had.
    """
    found, seen = [], []
    for _ in range(rounds):
        seen += [x.clone() if fresh else x for _ in range(calls)]
        turns.wait()
        begun = time.perf_counter()
        for each in seen[-calls:]:
            way(each, *given)
        found.append((time.perf_counter() - begun) / calls * 1e6)
    turns.wait()
    return round(statistics.median(found), 1)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
