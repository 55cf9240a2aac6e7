"""A layer of experts on one rank, and its GEMMs as problems of the op `fused_moe`.

A problem's M is a number of tokens. Its N and K are those of gate-up, [2 * intermediate, hidden], unless it is of
`down` alone, [hidden, intermediate]. What else decides which config is fastest is in its extras:

    package           whose kernel: "vllm" or "sglang"
    gemm              what one launch runs: "both" GEMMs with one config, "gate_up" or "down"
    experts, top_k    the layer's
    quant             "fp8_w8a8", "int8_w8a16" or "int4_w4a16"; bf16 and fp16 have none
    block_n, block_k  the block of weights that shares a scale, where scales are of blocks
    group_size        how many weights along K share a scale, where scales are of groups; zero_points: 1 with these
    routing, draws    which tokens go to which experts, and how many draws of it one launch runs: `tuner.moe.routing`
    block_m           the only BLOCK_SIZE_M that is tried, where the other GEMM's config decides it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.errors import ProblemError
from tuner.problem import Problem
from tuner.problem.generic_key import Extra

OP = "fused_moe"
PACKAGES = ("vllm", "sglang")
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""The numbers of tokens that vLLM's and SGLang's own tuners try."""
DRAWS = 4
"""How many draws of the routing one launch runs."""
_OPERANDS = {
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "fp8_w8a8": ("float8_e4m3fn", "float8_e4m3fn"),
    "int8_w8a16": ("bfloat16", "int8"),
    "int4_w4a16": ("bfloat16", "int8"),
}
"""The dtypes of A and B, by vLLM's and SGLang's names for what a layer multiplies. A byte holds two int4."""
_GROUPED = ("int4_w4a16", "int8_w8a16")
_SMALLEST_GROUP = 32  # below it both packages refuse to load a model
_SMALLEST_BLOCK_OF_VLLM = 32
"""vLLM divides blocks that do not divide a rank's size, but not below this: its refine_fp8_moe_block_shape."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of experts.

    Attributes:
        experts: how many a rank holds.
        hidden: the size of a token's vector.
        intermediate: the size between the two GEMMs, over all ranks; gate and up have this size each.
        top_k: how many experts a token goes to.
        dtype: "bf16", "fp16", "fp8_w8a8", "int8_w8a16" or "int4_w4a16".
        block_shape: the (N, K) of the block of weights that shares a scale; None for one scale an expert (fp8), or one
            a column (int8).
        tp: over how many ranks the intermediate size is divided.
        group_size: how many weights of a column share a scale, which is [0, group_size] as the packages' block_shape;
            None without groups. int4 has them always, int8 may.
        zero_points: whether groups have zero points too, as AWQ's have.
    """

    experts: int
    hidden: int
    intermediate: int
    top_k: int
    dtype: str = "bf16"
    block_shape: tuple[int, int] | None = None
    tp: int = 1
    group_size: int | None = None
    zero_points: bool = False

    def __post_init__(self) -> None:
        """Raise ProblemError for a layer that the kernels do not take."""
        for name in ("experts", "hidden", "intermediate", "top_k", "tp"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ProblemError(f"{name} must be an integer from 1 on, got {value!r}")
        if self.dtype not in _OPERANDS:
            raise ProblemError(f"unknown dtype {self.dtype!r} of experts: expected one of {', '.join(_OPERANDS)}")
        if self.top_k > self.experts:
            raise ProblemError(f"top_k is {self.top_k}: expected at most {self.experts}, the number of experts")
        if self.intermediate % self.tp:
            raise ProblemError(f"intermediate {self.intermediate} does not divide by tp {self.tp}: choose another tp")
        if self.block_shape is not None:
            self._check_blocks(*self.block_shape)
        self._check_groups(self.group_size)

    def _check_blocks(self, block_n: int, block_k: int) -> None:
        if self.dtype != "fp8_w8a8":
            raise ProblemError(f"block_shape is for fp8_w8a8, these experts are {self.dtype}: leave --block-shape out")
        for block in (block_n, block_k):
            if block < 16 or block & (block - 1):
                raise ProblemError(f"block_shape is {block_n},{block_k}: expected powers of two, for instance 128,128")
            for name, size in (("hidden", self.hidden), ("intermediate on one rank", self.shard)):
                if size % block:
                    tp = "a smaller --tp, or " if self.tp > 1 else ""
                    common = math.gcd(self.hidden, self.shard, block_n, block_k)
                    fit = f"of sizes up to {math.gcd(size, block)} here"
                    if name != "hidden" and common >= _SMALLEST_BLOCK_OF_VLLM:
                        fit = f"which vLLM makes {common},{common} here"
                    raise ProblemError(
                        f"{name} is {size}, which does not divide into blocks of {block} with one scale: type {tp}"
                        f"the --block-shape of the weights, {fit}"
                    )

    def _check_groups(self, size: int | None) -> None:
        if size is None:
            if self.zero_points and self.dtype not in _GROUPED:
                raise ProblemError(
                    f"zero points are for int4_w4a16 and int8_w8a16, these experts are {self.dtype}: leave "
                    "--zero-points out, or type --dtype int4_w4a16 --group-size 128"
                )
            if self.dtype == "int4_w4a16" or self.zero_points:
                raise ProblemError("int4_w4a16 and zero points are of groups of weights: type --group-size 128")
            return
        if self.dtype not in _GROUPED:
            also = " and --zero-points" if self.zero_points else ""
            raise ProblemError(
                f"group_size is for int4_w4a16 and int8_w8a16, these experts are {self.dtype}: leave "
                f"--group-size{also} out"
            )
        if size < _SMALLEST_GROUP or size & (size - 1):
            raise ProblemError(f"group_size is {size}: expected a power of two from {_SMALLEST_GROUP} on, such as 128")
        for name, extent in (("hidden", self.hidden), ("intermediate on one rank", self.shard)):
            if extent % size:
                halved = math.gcd(self.hidden, self.shard, size)
                fit = f": the packages halve it, type --group-size {halved}" if halved >= _SMALLEST_GROUP else ""
                raise ProblemError(f"{name} is {extent}, which does not divide into groups of {size}{fit}")

    @property
    def shard(self) -> int:
        """The intermediate size on one rank, which is the N of the packages' file names."""
        return self.intermediate // self.tp

    @property
    def config_dtype(self) -> str | None:
        """The dtype as the packages' own functions name it: None for bf16 and fp16."""
        return None if self.dtype in ("bf16", "fp16") else self.dtype

    @property
    def blocks(self) -> list[int] | None:
        """The block_shape that the packages' own functions take."""
        if self.group_size is not None:
            return [0, self.group_size]
        return None if self.block_shape is None else list(self.block_shape)

    @property
    def weight_bits(self) -> int:
        """Bits of a weight."""
        return 4 if self.dtype == "int4_w4a16" else 8 if self.config_dtype else 16

    def problems(self, package: str, m: int, routing: str = "uniform") -> tuple[Problem, ...]:
        """Return what is tuned for M tokens: one problem for vLLM, whose file has one config for both GEMMs; two else.

        Args:
            package: "vllm" or "sglang".
            m: tokens.
            routing: its name, see `tuner.moe.routing`.

        Raises:
            ProblemError: the package is unknown, or M is no size.
        """
        if package not in PACKAGES:
            raise ProblemError(f"unknown package {package!r}: expected one of {', '.join(PACKAGES)}")
        gemms = ("both",) if package == "vllm" else ("gate_up", "down")
        return tuple(self.problem(package, m, gemm, routing) for gemm in gemms)

    def problem(self, package: str, m: int, gemm: str, routing: str = "uniform", block_m: int | None = None) -> Problem:
        """Return one problem; `block_m` is the only BLOCK_SIZE_M to try, None for all."""
        a, b = _OPERANDS[self.dtype]
        extras: dict[str, Extra] = {"package": package, "gemm": gemm, "experts": self.experts, "top_k": self.top_k}
        extras |= {"routing": routing, "draws": DRAWS}
        if self.config_dtype:
            extras["quant"] = self.config_dtype
        if self.block_shape is not None:
            extras["block_n"], extras["block_k"] = self.block_shape
        if self.group_size is not None:
            extras |= {"group_size": self.group_size, **({"zero_points": 1} if self.zero_points else {})}
        if block_m is not None:
            extras["block_m"] = block_m
        n, k = (self.hidden, self.shard) if gemm == "down" else (2 * self.shard, self.hidden)
        out = "bfloat16" if b != "float16" else "float16"
        return Problem(m, n, k, op=OP, a_dtype=a, b_dtype=b, out_dtype=out, layout="nt", extras=extras)


def layer_of(problem: Problem) -> Layer:
    """Return the layer on one rank that a problem is of.

    Raises:
        ProblemError: it is no problem of `Layer.problems`.
    """
    extras: Mapping[str, Extra] = dict(problem.extras)
    try:
        hidden, shard = (problem.n, problem.k) if extras["gemm"] == "down" else (problem.k, problem.n // 2)
        blocks = (int(extras["block_n"]), int(extras["block_k"])) if "block_n" in extras else None
        plain = "fp16" if problem.a_dtype == "float16" else "bf16"
        dtype = str(extras.get("quant", plain))
        group_size = int(extras["group_size"]) if "group_size" in extras else None
        sizes = (int(extras["experts"]), hidden, shard, int(extras["top_k"]))
        return Layer(*sizes, dtype, blocks, group_size=group_size, zero_points="zero_points" in extras)
    except KeyError as e:
        raise ProblemError(f"{problem} lacks {e}: make it by tuner.moe.layer.Layer.problems") from None
