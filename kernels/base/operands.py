"""One set of GEMM operands: how the tensors lie in memory, and inputs made for tuning."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch

from tuner.errors import ProblemError
from tuner.problem import Problem
from tuner.problem import dtype as dtypes

VECTOR_BYTES = 16
"""The widest load of one thread, and what cp.async and TMA ask of an address."""
SCALE_GROUP = 128
"""Neighbours that share a scale with scaling "block": along K, and columns of B too."""
ROW_BYTES = 128
"""Of a cache line. Rows whose length is a multiple of it all begin at whole lines: TMA reads others more slowly."""
_GUARD_BYTES = 256
_INT8_UNIT = 1 / 73.9
"""Over the spread of all 256 values, sqrt((256² - 1) / 12)."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Tensors of one GEMM: the `Inputs` of every kernel of the op `matmul`.

    Attributes:
        a: [M, K], any strides.
        b: [K, N], any strides.
        out: [M, N], any strides that do not overlap.
        bias: [N] or None.
        problem: what is computed.
        buffer: the allocation `out` lies inside; `out` itself where there is none around it.
        scale_a, scale_b: float32 scales of the operands, None for none. With `problem.scaling` "scalar" one element
            each; "row": [M] and [N], contiguous; "block": [M, ceil(K/128)] and [ceil(K/128), ceil(N/128)], any strides.
    """

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    bias: torch.Tensor | None
    problem: Problem
    buffer: torch.Tensor
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None

    def exchanged(self) -> Operands:
        """The same product read as `out.T = b.T @ a.T`: views, nothing is copied. The bias then runs along the rows."""
        return replace(
            self,
            a=_transposed(self.b),
            b=_transposed(self.a),
            out=_transposed(self.out),
            problem=exchanged(self.problem),
            scale_a=_turned(self.scale_b),
            scale_b=_turned(self.scale_a),
        )

    @property
    def output(self) -> torch.Tensor:
        """What a launch writes."""
        return self.out

    @property
    def nbytes(self) -> int:
        """Bytes of the operands and the output."""
        tensors = (self.a, self.b, self.out, self.bias, self.scale_a, self.scale_b)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def _turned(scale: torch.Tensor | None) -> torch.Tensor | None:
    return scale if scale is None or scale.dim() < 2 else scale.t()


def _transposed(matrix: torch.Tensor) -> torch.Tensor:
    """`matrix.t()`; one contiguous row becomes a column of strides (1, K), which (1, 1) would not tell from a row."""
    rows, columns = matrix.shape
    return matrix.as_strided((columns, 1), (1, columns)) if rows == 1 and matrix.stride(1) == 1 else matrix.t()


@functools.lru_cache(maxsize=4096)
def exchanged(problem: Problem) -> Problem:
    """`problem.exchanged()`, remembered: every launch asks."""
    return problem.exchanged()


@dataclass(frozen=True, slots=True)
class Placement:
    """How a matrix lies in memory.

    Attributes:
        transposed: columns are contiguous, not rows. False also where neither is.
        vector: elements, a power of two up to 16 bytes' worth, that divide its leading stride and its contiguous
            extent; 1 where its address is no multiple of 16 bytes or neither dimension is contiguous.
    """

    transposed: bool
    vector: int


def placement(matrix: torch.Tensor) -> Placement:
    """Describe a matrix (2-D, any strides)."""
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
    transposed = column_stride != 1 and row_stride == 1
    if column_stride != 1 and not transposed:
        return Placement(False, 1)
    if matrix.data_ptr() % VECTOR_BYTES:
        return Placement(transposed, 1)
    lead, extent, others = (column_stride, rows, columns) if transposed else (row_stride, columns, rows)
    # The stride of a dimension of one element is never used, whatever torch says it is.
    lead = 0 if others == 1 else lead
    return Placement(transposed, math.gcd(lead, extent, VECTOR_BYTES // matrix.element_size()))


def is_aligned(*matrices: torch.Tensor) -> bool:
    """Whether every matrix's address, leading stride and contiguous extent is a multiple of 16 bytes."""
    return all(placement(matrix).vector * matrix.element_size() == VECTOR_BYTES for matrix in matrices)


def row_alignment(matrix: torch.Tensor) -> int:
    """Bytes, a power of two up to `ROW_BYTES`, that divide the distance between contiguous rows (or columns).

    TMA takes a matrix from 16 (`VECTOR_BYTES`) on, whatever its extents are. 1 where the address is no multiple of 16
    bytes, rows overlap, or neither dimension is contiguous.
    """
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
    if column_stride != 1:
        rows, columns, row_stride, column_stride = columns, rows, column_stride, row_stride
    if column_stride != 1 or matrix.data_ptr() % VECTOR_BYTES:
        return 1
    if rows == 1:
        # The stride of a dimension of one element is never used, whatever torch says it is.
        return ROW_BYTES
    return math.gcd(row_stride * matrix.element_size(), ROW_BYTES) if row_stride >= columns else 1


def padded_extent(extent: int, element_size: int) -> int:
    """Elements of a row of `extent` elements of so many bytes, padded to a multiple of `ROW_BYTES`."""
    unit = ROW_BYTES // element_size
    return -(-extent // unit) * unit


def bias_dtype(problem: Problem) -> torch.dtype:
    """Dtype of a tuned problem's bias: the output's, bfloat16 where that is an 8-bit float."""
    return dtypes.to_torch("bfloat16" if dtypes.is_fp8(problem.out_dtype) else problem.out_dtype)


def cannot_align(problem: Problem) -> str | None:
    """Why a problem that says it is aligned cannot be, or None."""
    if problem.aligned and not _aligned_by_sizes(problem):
        return "aligned operands need contiguous extents of a multiple of 16 bytes, these are not"
    return None


def shift_of(problem: Problem) -> int:
    """How many elements the operands begin off a 16-byte address: 1 where only that leaves them unaligned, else 0.

    Raises:
        ProblemError: The problem says that it is aligned and its sizes cannot be.
    """
    if reason := cannot_align(problem):
        raise ProblemError(f"{problem}: {reason}; leave `aligned` out")
    return int(_aligned_by_sizes(problem) and not problem.aligned)


def _aligned_by_sizes(problem: Problem) -> bool:
    return bool(Problem.from_fields({**problem.fields(), "aligned": None}).aligned)


def make_operands(problem: Problem, torch_device: str, seed: int) -> Operands:
    """Operands N(0, 1) of a problem; int8 ones uniform over all of its values, and scales of 1/2 to 1.

    Scales of int8 make such an operand's spread 1 at most, as N(0, 1) has.

    A problem that is not aligned though its sizes would be gets A and B one element off a 16-byte address; one whose B
    is padded gets rows of B as `padding.pad_weight` lays them, but for the zeros.

    Args:
        problem: what is computed.
        torch_device: "cuda:0", "cpu"; "meta" gives tensors without memory, for a compile.
        seed: of the values.

    Raises:
        ProblemError: the problem says it is aligned and its sizes cannot be.
    """
    shift = shift_of(problem)
    m, n, k = problem.shape
    values = Values(torch_device, seed)
    a = values.matrix(m, k, dtypes.to_torch(problem.a_dtype), problem.layout[0] == "t", shift)
    b_dtype = dtypes.to_torch(problem.b_dtype)
    b = values.matrix(k, n, b_dtype, problem.layout[1] == "t", shift, padded=problem.b_padded)
    bias = values.vector(n, bias_dtype(problem)) if problem.has_bias else None
    scale_a, scale_b = _scales(problem, values)
    out, buffer = guarded(m, n, dtypes.to_torch(problem.out_dtype), torch_device)
    return Operands(a, b, out, bias, problem, buffer, scale_a, scale_b)


def scale_shapes(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shapes of the scales of A and B that a problem's kernels take, None without scales."""
    m, n, k = problem.shape
    blocks_n, blocks_k = -(-n // SCALE_GROUP), -(-k // SCALE_GROUP)
    shapes = {"scalar": ((), ()), "row": ((m,), (n,)), "block": ((m, blocks_k), (blocks_k, blocks_n))}
    return shapes.get(problem.scaling)


def _scales(problem: Problem, values: Values) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    shapes = scale_shapes(problem)
    if shapes is None:
        return None, None
    largest = _INT8_UNIT if problem.a_dtype == "int8" else 1.0
    # Blocks as the kernels that quantize store them: columns of A's contiguous, B's as its weight lies.
    scale_a, scale_b = (_turned(values.scales(shape[::-1], largest)) for shape in shapes)
    return scale_a, scale_b


class Values:
    """Draws N(0, 1) on the device itself: a copy from the host of 1 GiB takes longer than a hundred trials."""

    def __init__(self, torch_device: str, seed: int) -> None:
        self._device = torch_device
        self._generator = None if torch_device == "meta" else torch.Generator(torch_device).manual_seed(seed)

    def vector(self, size: int, dtype: torch.dtype, shift: int = 0) -> torch.Tensor:
        """`size` elements, `shift` of them into their memory."""
        storage = torch.empty(size + shift, dtype=dtype, device=self._device)
        if self._generator is not None:
            # Drawn in chunks: float32 values of a large 8-bit operand would take four times its memory.
            for chunk in storage.split(1 << 26):
                if dtype == torch.int8:
                    chunk.random_(-128, 128, generator=self._generator)
                else:
                    chunk.copy_(torch.randn(chunk.shape, generator=self._generator, device=self._device))
        return storage[shift:]

    def scales(self, shape: tuple[int, ...], largest: float) -> torch.Tensor:
        """Scales from half of `largest` to it."""
        scales = torch.empty(shape, device=self._device)
        if self._generator is not None:
            scales.uniform_(largest / 2, largest, generator=self._generator)
        return scales

    def matrix(
        self, rows: int, columns: int, dtype: torch.dtype, transposed: bool, shift: int, *, padded: bool = False
    ) -> torch.Tensor:
        """[rows, columns], row-major or transposed; what lies between padded rows is drawn too."""
        if transposed:
            return self.matrix(columns, rows, dtype, False, shift, padded=padded).t()
        lead = padded_extent(columns, dtype.itemsize) if padded else columns
        return self.vector(rows * lead, dtype, shift).view(rows, lead)[:, :columns]


def guarded(m: int, n: int, dtype: torch.dtype, torch_device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """An output between two guard bands, each of one row and 256 bytes at least, so that a stray store shows."""
    unit = _GUARD_BYTES // dtype.itemsize
    guard = (n // unit + 2) * unit
    buffer = torch.empty(guard + m * n + guard, dtype=dtype, device=torch_device)
    return buffer[guard : guard + m * n].view(m, n), buffer
