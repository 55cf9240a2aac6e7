"""The operands of a problem of experts, and the results that its launches should write."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tuner.kernels.base import interpreted
from tuner.kernels.base.operands import Values
from tuner.moe import routing
from tuner.moe.layer import Layer, layer_of
from tuner.moe.routing import Blocks
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.tuned import accuracy

BLOCKS_M = (16, 32, 64, 128, 256)
"""Every BLOCK_SIZE_M that is tried."""
EXCHANGED_M = 8
"""A BLOCK_SIZE_M that is tried too where vLLM's kernel exchanges weights and tokens, because it ships such rows."""
_OF_DEFAULTS = (1, 2, 4, 8)
"""The BLOCK_SIZE_M of vLLM's default configs for few tokens where weights have groups."""
_DEVIATION = {4: 4.61, 8: 73.9}
"""The standard deviation of all integers of so many bits, sqrt((4**bits - 1) / 12)."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """One GEMM of the layer.

    Attributes:
        a: [rows, K]; a row is a token (gate-up), or one of a token's experts (down).
        b: [experts, N, K]; uint8 with groups, for int4 two neighbours along K in a byte, the first in its low bits.
        c: [tokens, top_k, N], which a launch writes.
        a_scale, b_scale: float32, or None: one element and [experts]; with blocks [rows, K / block] and
            [experts, N / block, K / block]; for int8 weights, None and [experts, N]; with groups, None and
            [experts, N, K / group] of A's dtype.
        b_zp: uint8 [experts, N, K / group], the weights' zero points, for int4 two neighbours along N in a byte; None
            where there are none.
        top_k: how many rows of `c` a row of `a` has.
        weighted: whether the result is multiplied by the token's weight of the expert.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    a_scale: torch.Tensor | None
    b_scale: torch.Tensor | None
    top_k: int
    weighted: bool
    b_zp: torch.Tensor | None = None


def blocks_m(problem: Problem) -> tuple[int, ...]:
    """Return every BLOCK_SIZE_M that tokens are sorted for."""
    layer = layer_of(problem)
    if problem["package"] == "vllm" and layer.group_size is not None:
        return (*_OF_DEFAULTS, *BLOCKS_M)
    return (EXCHANGED_M, *BLOCKS_M) if problem["package"] == "vllm" and layer.dtype == "fp8_w8a8" else BLOCKS_M


class ExpertInputs:
    """The operands of a problem: the GEMMs that one launch runs, and the draws of the routing that it runs them for.

    All draws write the same outputs, as the layers of a model do. Those of the last draw are checked.

    Attributes:
        problem: what is computed.
        gemms: in the order of launches.
        draws: the experts of each token by draw, int32 [tokens, top_k].
        blocks: by BLOCK_SIZE_M, each draw's sorted tokens.
        weights: float32 [tokens, top_k].
    """

    if_unwritten = ""

    def __init__(self, problem: Problem, torch_device: str, seed: int, sizes_m: Sequence[int] = ()) -> None:
        """Draw operands from N(0, 1), scales from 1/2 to 1, and the routing; on "meta" nothing has values.

        Args:
            problem: what is computed.
            torch_device: where.
            seed: of the values.
            sizes_m: the BLOCK_SIZE_M that tokens are sorted for; all by default.
        """
        self.problem = problem
        layer, values = layer_of(problem), Values(torch_device, seed)
        sizes = problem.m, layer.experts, layer.top_k
        draws = int(problem["draws"])
        if torch_device == "meta":
            self.draws = [torch.zeros(sizes[0], sizes[2], dtype=torch.int32)]
        else:
            self.draws = [routing.draw(str(problem["routing"]), sizes, seed * draws + each) for each in range(draws)]
        self.blocks = {
            size: [_blocks_on(torch_device, problem, ids, size) for ids in self.draws]
            for size in sizes_m or blocks_m(problem)
        }
        self.weights = values.scales((problem.m, layer.top_k), 1.0)
        kind = problem["gemm"]
        self.gemms: list[Gemm] = []
        if kind != "down":
            self.gemms.append(_gemm(problem, values, (2 * layer.shard, layer.hidden), down=False))
        if kind != "gate_up":
            self.gemms.append(_gemm(problem, values, (layer.hidden, layer.shard), down=True))

    @property
    def output(self) -> torch.Tensor:
        """What the last launch writes, for callers that expect one output."""
        return self.gemms[-1].c

    @property
    def buffer(self) -> torch.Tensor:
        """The output itself: it has no guard bands, just as in the packages."""
        return self.output

    @property
    def nbytes(self) -> int:
        """Bytes of the operands and outputs."""
        tensors = (
            each
            for gemm in self.gemms
            for each in (gemm.a, gemm.b, gemm.c, gemm.b_scale, gemm.b_zp)
            if each is not None
        )
        return sum(each.numel() * each.element_size() for each in tensors)

    def poison(self) -> None:
        """Fill the outputs with NaN, so that an element that is never written is noticed."""
        for gemm in self.gemms:
            accuracy.poison(gemm.c)

    def error_ratios(self, expected: Sequence[torch.Tensor]) -> dict[str, float]:
        """Return the error of each GEMM's output as a share of the accepted error."""
        pairs = zip(self.gemms, expected, strict=True)
        return {f"GEMM {number}": accuracy.error_ratio(gemm.c, one) for number, (gemm, one) in enumerate(pairs, 1)}

    def interpreted(self) -> ExpertInputs:
        """Return operands that Triton's interpreter reads and rounds correctly: bfloat16 as float32."""
        copy = object.__new__(ExpertInputs)
        vars(copy).update(vars(self))
        copy.gemms = [
            dataclasses.replace(
                gemm,
                a=interpreted.widened(gemm.a),
                b=interpreted.widened(gemm.b),
                c=interpreted.output_for(gemm.c),
                b_scale=None if gemm.b_scale is None else interpreted.widened(gemm.b_scale),
            )
            for gemm in self.gemms
        ]
        return copy


def reference(inputs: ExpertInputs) -> list[torch.Tensor]:
    """Return what the last draw should leave in each GEMM's output, in float64."""
    return [_product(inputs, gemm) for gemm in inputs.gemms]


def _product(inputs: ExpertInputs, gemm: Gemm) -> torch.Tensor:
    ids = inputs.draws[-1].to(gemm.a.device)
    rows, columns = ids.numel(), gemm.b.shape[1]
    expected = torch.empty(rows, columns, dtype=torch.float64, device=gemm.a.device)
    flat = ids.flatten()
    for expert in flat.unique().tolist():
        chosen = (flat == expert).nonzero().flatten()
        taken = chosen // gemm.top_k
        a_scale = gemm.a_scale[taken] if gemm.a_scale is not None and gemm.a_scale.dim() == 2 else gemm.a_scale
        a = _dequantized(gemm.a[taken], a_scale)
        b = _dequantized(_weights(gemm, expert), None if gemm.b_scale is None else gemm.b_scale[expert])
        expected[chosen] = a @ b.t()
    if gemm.weighted:
        expected *= inputs.weights.flatten().double()[:, None]
    return expected.view(*ids.shape, columns)


def _weights(gemm: Gemm, expert: int) -> torch.Tensor:
    """Return an expert's weights without their scales."""
    b = gemm.b[expert]
    if b.dtype != torch.uint8:
        return b
    packed = b.shape[1] != gemm.a.shape[1]
    b = _unpacked(b, 1).double() if packed else b.double()
    if gemm.b_zp is None:
        return b - (8 if packed else 128)
    zero = _unpacked(gemm.b_zp[expert], 0) if packed else gemm.b_zp[expert]
    return b - zero.repeat_interleave(b.shape[1] // zero.shape[1], 1)


def _unpacked(packed: torch.Tensor, dimension: int) -> torch.Tensor:
    return torch.stack((packed & 15, packed >> 4), dimension + 1).flatten(dimension, dimension + 1)


def _dequantized(matrix: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return a matrix in float64; it has one scale, one for each row, or one for each block of both dimensions."""
    wide = matrix.double()
    if scale is None:
        return wide
    if scale.dim() == 1 and scale.numel() == len(matrix) and scale.numel() != 1:
        return wide * scale.double()[:, None]
    for dimension in range(scale.dim() if scale.dim() == 2 else 0):
        scale = scale.repeat_interleave(matrix.shape[dimension] // scale.shape[dimension], dimension)
    return wide * scale.double()


def _gemm(problem: Problem, values: Values, shape: tuple[int, int], *, down: bool) -> Gemm:
    layer, (n, k) = layer_of(problem), shape
    rows, top_k = (problem.m * layer.top_k, 1) if down else (problem.m, layer.top_k)
    a = values.matrix(rows, k, dtypes.to_torch(problem.a_dtype), False, 0)
    c = torch.empty(problem.m, layer.top_k, n, dtype=dtypes.to_torch(problem.out_dtype), device=a.device)
    if layer.group_size is not None:
        return _grouped(layer, values, a, c, down=down)
    b = values.vector(layer.experts * n * k, dtypes.to_torch(problem.b_dtype)).view(layer.experts, n, k)
    a_scale = b_scale = None
    if layer.block_shape is not None:
        block_n, block_k = layer.block_shape
        a_scale = values.scales((rows, k // block_k), 1.0)
        b_scale = values.scales((layer.experts, n // block_n, k // block_k), 1.0)
    elif layer.dtype == "fp8_w8a8":
        a_scale, b_scale = values.scales((1,), 1.0), values.scales((layer.experts,), 1.0)
    elif layer.dtype == "int8_w8a16":
        b_scale = values.scales((layer.experts, n), 1 / _DEVIATION[8])
    return Gemm(a, b, c, a_scale, b_scale, top_k, down)


def _grouped(layer: Layer, values: Values, a: torch.Tensor, c: torch.Tensor, *, down: bool) -> Gemm:
    n, k = c.shape[2], a.shape[1]
    in_a_byte, groups = 8 // layer.weight_bits, k // (layer.group_size or k)

    def random_bytes(rows: int, columns: int) -> torch.Tensor:
        octets = values.vector(layer.experts * rows * columns, torch.int8)
        return octets.view(torch.uint8).view(layer.experts, rows, columns)

    scale = values.scales((layer.experts, n, groups), 1 / _DEVIATION[layer.weight_bits]).to(a.dtype)
    zero = random_bytes(n // in_a_byte, groups) if layer.zero_points else None
    return Gemm(a, random_bytes(n, k // in_a_byte), c, None, scale, 1 if down else layer.top_k, down, zero)


def _blocks_on(torch_device: str, problem: Problem, ids: torch.Tensor, block_m: int) -> Blocks:
    blocks = _sorted(str(problem["package"]), ids, block_m, layer_of(problem))
    tensors = (None if each is None else each.to(torch_device) for each in (blocks.ids, blocks.experts, blocks.padded))
    return Blocks(*tensors)


def _sorted(package: str, ids: torch.Tensor, block_m: int, layer: Layer) -> Blocks:
    """Return sorted tokens as a package allocates them.

    vLLM does not sort where there are few tokens and many experts, unless weights have groups.
    """
    total, experts = ids.numel(), layer.experts
    if package == "vllm":
        if total * 4 <= experts and layer.group_size is None:  # SPARSITY_FACTOR of its _prepare_expert_assignment
            return Blocks(None, ids.flatten(), torch.tensor([total * block_m], dtype=torch.int32))
        slots = total + experts * (block_m - 1)
        return routing.align(ids, block_m, experts, min(total * block_m, slots) if total < experts else slots)
    slots = total * block_m if total < experts + 1 else total + (experts + 1) * (block_m - 1)
    return routing.align(ids, block_m, experts, (slots + 3) // 4 * 4)
