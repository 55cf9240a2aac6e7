"""A model's steps by torch and by `tuner.models.accelerate`: time, numbers, share of products, first step.

    python benchmarks/claims/model_play.py --out RESULT.json --folder DIR [--model llama-8b] [--layers 6]
        [--parts tune,import,play,compiled,first,batches] [--rehearse]

The models have the layer shapes of the models named and random weights; all else is transformers', but for plain causal
attention (no window, no soft cap). `tune` writes the model's config, then runs `tuner model`, `tuner run` and `tuner
export --with-kernels` in DIR, as a user would. `import`, which is not among the default parts, takes its place: it
runs `tuner model` and brings that model's part of the tables that come with triton-tuner, with kernels. The other parts
are processes of their own that see the tables in DIR alone and an empty compile cache, or the one of --cache. DIR keeps
what they read, so a part can be run again, and RESULT is written anew after each part. With --shipped the other parts
need no `tune`, and see the tables that come with triton-tuner alone. --earlier names a checkout of an earlier version:
`import` then brings that version's tables too, and `first` has its first steps in turns with the others.

A decode step is one token of each of `batch` sequences without a cache, so all that is not attention over the past. A
prefill is one sequence, of which the last token alone goes through the last layer. Both ways share the weights, and
take turns in each round in an order drawn anew; `torch_over_tuner` is the median over the rounds of torch's time over
ours. Eager steps are timed on the host, captured ones (a CUDA graph of one step) by events. `batches` are eager decode
steps of 64 numbers of sequences that the process has not had before, after steps of 1 and of 256: the first step of
each and the second. `relative_error` is the norm of the difference from the same model in float64 over that model's
norm. --rehearse plays a tiny model under Triton's interpreter, to see that the script runs.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from commands import environment, tuner, where_time_went

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import turns

LLAMA = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA |= {"rms_norm_eps": 1e-5}
QWEN = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
GEMMA = {"hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16, "num_key_value_heads": 8}
QWEN_MOE = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
QWEN_MOE |= {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "norm_topk_prob": True}
MIXTRAL = {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}
TINY_MOE = {"hidden_size": 64, "moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-8b": ("LlamaConfig", {**LLAMA, "vocab_size": 128256}),
    "qwen": ("Qwen2Config", {**QWEN, "vocab_size": 152064}),  # 7B of Qwen 2.5: q, k and v have a bias
    "gemma": ("Gemma2Config", {**GEMMA, "head_dim": 256, "vocab_size": 256000}),  # 9B of Gemma 2: tied weights
    "qwen-moe": ("Qwen3MoeConfig", {**QWEN_MOE, "vocab_size": 151936}),  # 30B-A3B of Qwen 3
    "mixtral": ("MixtralConfig", {**MIXTRAL, "vocab_size": 32000}),  # 8x7B
    "tiny": ("Qwen2Config", {**TINY, "vocab_size": 256}),
    "tiny-moe": ("Qwen3MoeConfig", {**TINY, **TINY_MOE, "vocab_size": 256}),
}
PARTS = ("tune", "play", "compiled", "first", "batches")
OTHER_PARTS = ("import",)
FULL_SPEED = 1.3
"""By how much longer than the shortest a loop may take on a host at full speed."""
MOST_SEQUENCES = 128
GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
Starts = dict[str, list[dict[str, Any]]]
"""What each start found, by its kind."""


def config_of(options: argparse.Namespace) -> Any:
    import transformers

    kind, sizes = MODELS[options.model]
    config = getattr(transformers, kind)(num_hidden_layers=options.layers, **sizes)
    config.architectures = [kind.replace("Config", "ForCausalLM")]
    return config


def tune(options: argparse.Namespace) -> dict[str, Any]:
    """Find, tune and export the model's families; seconds of each command."""
    database, here = ["--db", "tuner.db"], ["--device", "interpreter"] if options.rehearse else []
    limits = ["--trials", "2"] if options.rehearse else ["--time-budget", options.time_budget]
    found, seconds = told_by(
        options,
        run=["run", "--suite", "suite.csv", *database, *here, *limits],
        export=["export", "tables", *database, *(here or ["--with-kernels"])],
    )
    winners = [winner for each in found["run"]["problems"] if (winner := each["winner"])]
    measured = sum(each["measured"] for each in found["run"]["problems"])
    return {
        "seconds": seconds,
        "run": {"problems": len(found["run"]["problems"]), "measured": measured, **where_time_went(found["run"])},
        "suite": (options.folder / "suite.csv").read_text().splitlines(),
        "untried": len(found["run"]["untried"]),
        "winners": {said(each["problem"]): [each["kernel"], each["median_us"], each["vs_vendor"]] for each in winners},
    }


def bring(options: argparse.Namespace) -> dict[str, Any]:
    """Find the model's families, and bring theirs of the tables that come with triton-tuner; seconds of each."""
    from tuner.hardware.device import current

    part = []
    if not options.rehearse:  # no table has the families of a tiny model
        part = ["--suite", "suite.csv", "--device", current().slug, "--with-kernels"]
    found, seconds = told_by(options, brought=["import", "triton-tuner", "--out", "tables", *part])
    brought = found["brought"]
    if options.earlier:  # kernels are ready for the version that compiled them
        changed = {"PYTHONPATH": earlier_path(options)}
        tuner(options.folder, "import", "triton-tuner", "--out", "earlier-tables", *part, **changed)
    return {
        "seconds": seconds,
        "rows": sum(each["rows"] for each in brought["tables"]),
        "kernels": sum(each["kernels"] for each in brought.get("kernels", ())),
        "kernels_bytes": sum(each["bytes"] for each in brought.get("kernels", ())),
    }


def earlier_path(options: argparse.Namespace) -> str:
    """Where Python finds the earlier version before this one."""
    return os.pathsep.join(filter(None, (str(options.earlier.resolve()), os.environ.get("PYTHONPATH"))))


def told_by(options: argparse.Namespace, **others: list[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """Write the model's config, have `tuner model` find its families, then run others; what each said, and seconds."""
    folder, found, seconds = options.folder, {}, {}
    config = config_of(options)
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    for name, arguments in {
        "model": ["model", "config.json", "--m", options.m, "--out", "suite.csv"],
        **others,
    }.items():
        begun = time.perf_counter()
        # A problem without a winner is the last thing that should end a play: torch serves it.
        found[name] = tuner(folder, *arguments, accept=(0, 1) if name == "run" else (0,))
        seconds[name] = round(time.perf_counter() - begun, 2)
        if name == "model":
            without_long_last_layer(folder / "suite.csv", config.vocab_size)
    return found, seconds


def said(problem: dict[str, Any]) -> str:
    return f"{problem['m']}x{problem['n']}x{problem['k']} {problem['epilogue']}"


def without_long_last_layer(suite: Path, vocabulary: int) -> None:
    """Drop the last layer's rows of prefills: the steps here take one token of each sequence through it."""

    def kept(found: re.Match[str]) -> str:
        short = [each for each in found[1].split(",") if not each.isdigit() or int(each) <= MOST_SEQUENCES]
        return f'"{",".join(short)}",{vocabulary},'

    suite.write_text(re.sub(rf'^"([^"]*)",{vocabulary},', kept, suite.read_text(), flags=re.MULTILINE))


def models(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The model as it is, an accelerated copy with the same weights, and what `accelerate` said."""
    from tuner.models import accelerate

    plain = plain_model(options)
    ours = turns.shared_copy(plain)
    return plain, ours, accelerate(ours, backend=options.backend)


def attention(_module: Any, q: Any, k: Any, v: Any, _mask: Any, scaling: float | None = None, **_: Any) -> Any:
    """Causal attention by torch, without transformers' masks, whose making waits for the device in every step."""
    import torch

    product = torch.nn.functional.scaled_dot_product_attention
    mixed = product(q, k, v, scale=scaling, is_causal=q.shape[2] > 1, enable_gqa=q.shape[1] != k.shape[1])
    return mixed.transpose(1, 2).contiguous(), None


def plain_model(options: argparse.Namespace) -> Any:
    import torch
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register("of_the_play", attention)
    torch.manual_seed(0)
    with torch.device("cpu" if options.rehearse else "cuda"):
        model = AutoModelForCausalLM.from_config(
            config_of(options), dtype=torch.bfloat16, attn_implementation="of_the_play"
        )
    return model.to("cpu" if options.rehearse else "cuda").eval().requires_grad_(False)


def sizes(options: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """The steps: a name, the number of sequences and of tokens in each."""
    for batch in options.batches:
        yield f"decode {batch}", batch, 1
    for length in options.prefills:
        yield f"prefill {length}", 1, length


def step_of(model: Any, batch: int, length: int) -> turns.Step:
    import torch

    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(batch * length)
    ids = torch.randint(model.config.vocab_size, (batch, length), device=device, generator=generator)
    return lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1).logits


def play(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Eager and captured steps of every size, the share of products, and the numbers."""
    import torch

    plain, ours, done = models(options)
    found: dict[str, Any] = {"accelerate": str(done), "eager": {}, "captured": {}}
    with torch.inference_mode():
        for name, batch, length in sizes(options):
            theirs_step, our_step = step_of(plain, batch, length), step_of(ours, batch, length)
            found["eager"][name] = turns.paired(theirs_step, our_step, turns.host_seconds, options.rounds)
            if torch.cuda.is_available():
                graphs = turns.captured(theirs_step), turns.captured(our_step)
                found["captured"][name] = turns.paired(*graphs, turns.device_seconds, options.rounds)
                del graphs
            keep(found)
        if (options.folder / "suite.csv").exists():
            found["products"] = {
                name: products(options, step_of(plain, batch, length), step_of(ours, batch, length))
                for name, batch, length in sizes(options)
            }
            keep(found)
        found["relative_error"] = errors(options, plain, ours)
    return found


def products(options: argparse.Namespace, theirs: turns.Step, ours: turns.Step) -> dict[str, Any]:
    """How many of the products that torch's profiler sees in a step run on ours, and are of a family of the suite."""
    from tuner import suite

    families = {each.shape[1:] for each in suite.load(f"{options.folder}/suite.csv")}
    before, after = (seen(step) for step in (theirs, ours))
    return {
        "torch": len(before),
        "of_families_of_the_suite": sum(each in families for each in before),
        "left_on_torch": len(after),
        "on_tuned_kernels": round(1 - len(after) / max(len(before), 1), 4),
    }


def seen(step: turns.Step) -> list[tuple[int, ...]]:
    """N and K of each product of torch's in a step."""
    from torch.profiler import ProfilerActivity, profile

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    events = [each for each in profiler.events() if each.name in GEMMS]
    return [(each.input_shapes[-1][-1], each.input_shapes[-1][-2]) for each in map(operands, events)]


def operands(event: Any) -> Any:
    """An event whose last shape is B's: addmm has two numbers behind it."""
    event.input_shapes = [shape for shape in event.input_shapes if len(shape) > 1]
    return event


def errors(options: argparse.Namespace, plain: Any, ours: Any) -> dict[str, Any]:
    """The relative error against float64 of the first layers by name, and of whole steps."""
    import torch

    def error(result: Any, exact: Any) -> float:
        return float(((result.double() - exact).norm() / exact.norm()).item())

    layers, found = dict(ours.named_modules()), {}
    firsts = {}
    for name, layer in plain.named_modules():
        if isinstance(layer, torch.nn.Linear):
            firsts.setdefault(tuple(layer.weight.shape), (name, layer))
    for batch in (options.batches[-1],):
        for name, layer in firsts.values():
            x = torch.randn(batch, layer.in_features, device=layer.weight.device, dtype=layer.weight.dtype)
            bias = None if layer.bias is None else layer.bias.double()
            exact = torch.nn.functional.linear(x.double(), layer.weight.double(), bias)
            found[f"{name}, {batch} rows"] = {"torch": error(layer(x), exact), "tuner": error(layers[name](x), exact)}
    runs = [(f"whole {name}", batch, length) for name, batch, length in sizes(options) if batch * length <= 1024]
    results = {name: (step_of(plain, *size)(), step_of(ours, *size)()) for name, *size in runs}
    wide = copy.deepcopy(plain).double()
    wide.config._experts_implementation = "eager"  # torch's grouped products take no float64
    for name, *size in runs:
        exact, (theirs, mine) = step_of(wide, *size)(), results[name]
        found[name] = {
            "torch": error(theirs, exact),
            "tuner": error(mine, exact),
            "same_next_token": float((theirs.argmax(-1) == mine.argmax(-1)).double().mean().item()),
        }
    return found


def compiled(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Steps under torch.compile, as they run from Python and as a CUDA graph of them; one program for each size."""
    import torch
    from torch._dynamo.utils import counters

    backend = "aot_eager" if options.rehearse else "inductor"
    pair = [torch.compile(model, backend=backend, dynamic=False) for model in models(options)[:2]]
    found: dict[str, Any] = {"from Python": {}, "captured": {}, "compile_s": {}, "graph_breaks": {}}
    with torch.inference_mode():
        for name, batch, length in sizes(options):
            if batch not in options.compiled or length > 1:
                continue
            theirs, ours = (step_of(model, batch, length) for model in pair)
            for whose, step in (("torch", theirs), ("tuner", ours)):
                counters.clear()
                found["compile_s"][f"{name}, {whose}"] = round(turns.host_seconds(step, 1), 2)
                found["graph_breaks"][f"{name}, {whose}"] = sum(counters["graph_break"].values())
            found["from Python"][name] = turns.paired(theirs, ours, turns.host_seconds, options.rounds)
            if torch.cuda.is_available():
                graphs = turns.captured(theirs), turns.captured(ours)
                found["captured"][name] = turns.paired(*graphs, turns.device_seconds, options.rounds)
            keep(found)
    return found


def batches(options: argparse.Namespace, _keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The first and the second step of batches that are new to the process, by torch and accelerated, in turns."""
    import torch

    pair = dict(zip(("torch", "tuner"), models(options)[:2], strict=True))
    most, count = (8, 4) if options.rehearse else (256, 64)
    drawn = random.Random(0).sample(range(2, most), count)
    took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pair}
    with torch.inference_mode():
        for batch in (1, most, *drawn):
            for name in random.Random(batch).sample(list(pair), 2):
                step = step_of(pair[name], batch, 1)
                for found in took[name]:
                    found.append(1e3 * turns.host_seconds(step, 1))
    return {
        name: {
            which: {
                "median_ms": round(statistics.median(each[2:]), 3),
                "most_ms": round(max(each[2:]), 3),
                "over_100_ms": sum(ms > 100 for ms in each[2:]),
                "total_s": round(sum(each[2:]) / 1e3, 3),
            }
            for which, each in zip(("first", "second"), found, strict=True)
        }
        for name, found in took.items()
    }


def first(options: argparse.Namespace) -> dict[str, Any]:
    """The first step of fresh processes, of torch alone and accelerated, in turns in an order drawn anew.

    With --earlier, an earlier version's accelerated steps are a third kind.

    A host may run Python at half the speed for a while. So a fixed loop is timed just before and after each step, and
    the ratio is also given of the starts whose slower loop took little longer than the fastest of all, and of the rest.
    """
    took: Starts = {"torch": [], "tuner": [], **({"earlier": []} if options.earlier else {})}
    for turn in range(options.starts):
        for name in random.Random(turn).sample(list(took), len(took)):
            took[name].append(child(options, f"first-{name}"))
    told = {"earlier_commit": commit_of(options.earlier)} if options.earlier else {}
    return {**told, **took, **by_speed(took)}


def commit_of(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def by_speed(took: Starts) -> dict[str, Any]:
    """Median times of first steps over torch's: of all starts that ended, of those at full speed, and of the others."""
    ended = {name: [each for each in some if "seconds" in each] for name, some in took.items()}
    if not all(ended.values()):
        return {}
    fastest = min(each["loop_s"] for some in ended.values() for each in some)

    def speed(*, full: bool) -> dict[str, Any]:
        most = FULL_SPEED * fastest
        found = {name: [each for each in some if (each["loop_s"] <= most) is full] for name, some in ended.items()}
        counts = {f"{name}_starts": len(some) for name, some in found.items()}
        return {**counts, **(over_torch(found) if all(found.values()) else {})}

    return {**over_torch(ended), "at_full_speed": {"loop_s": fastest, **speed(full=True)}, "slowed": speed(full=False)}


def over_torch(took: Starts) -> dict[str, float]:
    """Torch's median seconds, and the others' over these, by what they are called in results."""
    medians = {name: statistics.median(each["seconds"] for each in some) for name, some in took.items()}
    ratios = {f"{name}_over_torch": round(medians[name] / medians["torch"], 3) for name in took if name != "torch"}
    return {"torch_s": round(medians["torch"], 3), **ratios}


def first_step(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The first step of this process: `tuner` is imported and the model accelerated inside of the time.

    Of ours `all_ready` says that every tuned product had a ready launch, for which no kernel is imported.
    """
    import torch

    model = plain_model(options)
    step = step_of(model, options.batches[0], 1)
    turns.wait()
    if before := [each for each in sys.modules if each.partition(".")[0] == "tuner"]:
        sys.exit(f"{', '.join(before)} imported before the time begins")
    loop_s, ours = loop_seconds(), dict[str, Any]()
    begun = time.perf_counter()
    if name != "torch":
        from tuner.models import accelerate

        accelerate(model, backend=options.backend)
        ours["exchange_s"] = round(time.perf_counter() - begun, 4)
    with torch.inference_mode():
        step()
    turns.wait()
    seconds = round(time.perf_counter() - begun, 4)
    if ours:
        ours["all_ready"] = "tuner.kernels.ops.by_kernels" not in sys.modules  # imported by a call that is not ready
    return {"seconds": seconds, **ours, "loop_s": max(loop_s, loop_seconds())}


def loop_seconds() -> float:
    """How long a fixed loop of Python takes here and now, at best of five."""
    took: list[float] = []
    for _ in range(5):
        begun = time.perf_counter()
        found: dict[int, str] = {}
        for number in range(20_000):
            found[number % 997] = str(number)
        took.append(time.perf_counter() - begun)
    return round(min(took), 6)


def child(options: argparse.Namespace, part: str) -> Any:
    """What a part finds in a process of its own, with the exported tables and an empty compile cache."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", part]
    with tempfile.TemporaryDirectory() as cache:
        tables = {"TUNER_TABLES": "" if options.shipped else options.folder / "tables", "TUNER_DB": f"{cache}/none.db"}
        if part == "first-earlier":
            tables |= {"TUNER_TABLES": options.folder / "earlier-tables", "PYTHONPATH": earlier_path(options)}
        mode = {"TRITON_INTERPRET": "1"} if options.rehearse else {}
        values = environment(TRITON_CACHE_DIR=options.cache or cache, **tables, **mode)
        done = subprocess.run(command, env=values, check=False)
    result = options.folder / f"{part}.json"
    if done.returncode:
        print(f"{part} ended with {done.returncode}; what it had found is kept", file=sys.stderr)
    return json.loads(result.read_text()) if result.exists() else {"failed": done.returncode}


def run_child(options: argparse.Namespace) -> None:
    """Run a part here, and write what it finds as it goes."""
    result = options.folder / f"{options.child}.json"
    result.unlink(missing_ok=True)

    def keep(found: dict[str, Any]) -> None:
        result.write_text(json.dumps(found))

    if options.child.startswith("first-"):
        keep(first_step(options, options.child.removeprefix("first-")))
    else:
        keep({"play": play, "compiled": compiled, "batches": batches}[options.child](options, keep))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="kept between runs of parts; by default beside --out")
    parser.add_argument("--model", choices=MODELS, default="llama-8b")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--parts", default=",".join(PARTS), help="those to run now; others stay in --out as they are")
    parser.add_argument("--m", help="what `tuner model` is given; by default every size that is played")
    parser.add_argument("--time-budget", default="120s", help="of `tuner run`; torch serves what is left untuned")
    parser.add_argument("--batches", type=turns.numbers, default=[1, 8, 32, 128])
    parser.add_argument("--prefills", type=turns.numbers, default=[1024, 4096])
    parser.add_argument("--compiled", type=turns.numbers, default=[1, 32], help="batches that are compiled")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--starts", type=int, default=2, help="fresh processes of each kind")
    parser.add_argument("--earlier", type=Path, help="a checkout of an earlier version, for `import` and `first`")
    parser.add_argument("--shipped", action="store_true", help="serve by the tables that come with triton-tuner alone")
    parser.add_argument("--cache", type=Path, help="Triton's cache, as `tuner warm` fills it; by default an empty one")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rehearse:
        options.model = options.model if options.model.startswith("tiny") else "tiny"
        options.layers, options.backend, options.rounds, options.starts = 1, "tuner", 2, 1
        options.batches, options.prefills, options.compiled = [1, 4], [16], [4]
    options.folder = (options.folder or options.out.with_suffix("")).resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.m = options.m or ",".join(map(str, (*options.batches, *options.prefills)))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if options.child:
        run_child(options)
        return
    body = json.loads(options.out.read_text()) if options.out.exists() else {}
    body = {"model": options.model, "layers": options.layers, "backend": options.backend} | {
        part: body[part] for part in (*PARTS, *OTHER_PARTS) if part in body
    }
    for part in options.parts.split(","):
        begun = time.perf_counter()
        whole = {"tune": tune, "import": bring, "first": first}.get(part)
        found = child(options, part) if whole is None else whole(options)
        body[part] = {**found, "wall_s": round(time.perf_counter() - begun, 1)}
        record.write(options.out, body)
        print(f"{part}: {body[part]['wall_s']} s", file=sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
