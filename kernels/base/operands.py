"""The operands of a GEMM: how they lie in memory, and how inputs for tuning are made."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tuner.errors import ProblemError
from tuner.problem import Problem
from tuner.problem import dtype as dtypes

VECTOR_BYTES = 16
"""Bytes of the widest load of one thread, and the alignment that cp.async and TMA require of an address."""
SCALE_GROUP = 128
"""How many neighbouring elements share a scale with scaling "block": along K, and in B along N too."""
ROW_BYTES = 128
"""Bytes of a cache line. TMA is slower to read rows whose length is not a multiple of it."""
INT32_SPAN = 2**31
"""An offset from here on needs 64 bits."""
_GUARD_BYTES = 256
_INT8_UNIT = 1 / 73.9
"""The reciprocal of the standard deviation of all 256 values, sqrt((256² - 1) / 12)."""


class Written:
    """What the dataclasses of operands have as `Inputs`, those with an `out` and a `buffer`."""

    __slots__: tuple[str, ...] = ()
    out: torch.Tensor

    @property
    def output(self) -> torch.Tensor:
        """The tensor that a launch writes."""
        return self.out

    @property
    def nbytes(self) -> int:
        """Size of the operands and the output in bytes."""
        given = (getattr(self, name) for name in self.__slots__ if name != "buffer")
        return sum(each.numel() * each.element_size() for each in given if isinstance(each, torch.Tensor))


@dataclass(frozen=True, eq=False, slots=True)
class Operands(Written):
    """The tensors of one GEMM, which are the `Inputs` of every kernel of the op `matmul`.

    Attributes:
        a: [M, K], any strides.
        b: [K, N], any strides.
        out: [M, N], any strides that do not overlap.
        bias: [N] or None.
        problem: what is computed.
        buffer: the allocation that contains `out`, or `out` itself.
        scale_a, scale_b: float32 scales of the operands, or None. Their shapes by `problem.scaling` are, for "scalar",
            one element each; for "row", [M] and [N], contiguous; for "block", [M, ceil(K/128)] and
            [ceil(K/128), ceil(N/128)], any strides.
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
        """Views of the tensors for the product `out.T = b.T @ a.T`, whose bias runs along the rows."""
        matrices = _transposed(self.b), _transposed(self.a), _transposed(self.out)
        scales = _turned(self.scale_b), _turned(self.scale_a)
        return Operands(*matrices, self.bias, exchanged(self.problem), self.buffer, *scales)


def _turned(scale: torch.Tensor | None) -> torch.Tensor | None:
    return scale if scale is None or scale.dim() < 2 else scale.t()


def _transposed(matrix: torch.Tensor) -> torch.Tensor:
    """`matrix.mT`, where a contiguous row becomes a column with strides (1, K): (1, 1) could also be a row's."""
    rows, columns = matrix.shape[-2:]
    if rows == 1 and matrix.stride(-1) == 1:
        return matrix.as_strided((*matrix.shape[:-2], columns, 1), (*matrix.stride()[:-2], 1, columns))
    return matrix.mT


def count_of(problem: Problem, name: str) -> int:
    """The number of products of a problem, from its extras.

    Raises:
        ProblemError: the extras lack it.
    """
    count = dict(problem.extras).get(name)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ProblemError(f"{name} is {count!r}: expected an integer from 1 on, as extras={{'{name}': 8}}")
    return count


@functools.lru_cache(maxsize=4096)
def exchanged(problem: Problem) -> Problem:
    """`problem.exchanged()`, cached because every launch needs it."""
    return problem.exchanged()


class Placement(NamedTuple):
    """How a matrix lies in memory.

    Attributes:
        transposed: whether columns are contiguous instead of rows. False if neither are.
        vector: the largest power of two, up to 16 bytes of elements, that divides the leading stride and the contiguous
            extent; 1 if the address is not a multiple of 16 bytes or neither dimension is contiguous.
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
    """The largest power of two, up to `ROW_BYTES`, that divides the bytes between contiguous rows (or columns).

    TMA accepts a matrix if this is 16 (`VECTOR_BYTES`) or more, whatever its extents are. It is 1 if the address is not
    a multiple of 16 bytes, rows overlap, or neither dimension is contiguous.
    """
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
    if column_stride != 1:
        rows, columns, row_stride, column_stride = columns, rows, column_stride, row_stride
    if column_stride != 1 or matrix.data_ptr() % VECTOR_BYTES:
        return 1
    if rows == 1:
        # The stride of a dimension of one element is never used, whatever torch reports.
        return ROW_BYTES
    return math.gcd(row_stride * matrix.element_size(), ROW_BYTES) if row_stride >= columns else 1


def padded_extent(extent: int, element_size: int) -> int:
    """Length in elements of a row of `extent` elements once it is padded to a multiple of `ROW_BYTES` bytes."""
    unit = ROW_BYTES // element_size
    return -(-extent // unit) * unit


def bias_dtype(problem: Problem) -> torch.dtype:
    """Dtype of a tuned problem's bias: the output's, or bfloat16 if the output is an 8-bit float."""
    return dtypes.to_torch("bfloat16" if dtypes.is_fp8(problem.out_dtype) else problem.out_dtype)


def cannot_align(problem: Problem) -> str | None:
    """Why a problem that is declared aligned cannot be, or None."""
    if problem.aligned and not _aligned_by_sizes(problem):
        return "aligned operands need contiguous extents of a multiple of 16 bytes, these are not"
    return None


def shift_of(problem: Problem) -> int:
    """How many elements after a 16-byte address operands start: 1 if sizes are aligned but the problem is not, else 0.

    Raises:
        ProblemError: The problem is declared aligned and its sizes cannot be.
    """
    if reason := cannot_align(problem):
        raise ProblemError(f"{problem}: {reason}; leave `aligned` out")
    return int(_aligned_by_sizes(problem) and not problem.aligned)


@functools.lru_cache(maxsize=1024)
def _aligned_by_sizes(problem: Problem) -> bool:
    return bool(Problem.from_fields({**problem.fields(), "aligned": None}).aligned)


def make_operands(problem: Problem, torch_device: str, seed: int) -> Operands:
    """Draw a problem's operands: N(0, 1), or uniform over all values for int8, with scales from 1/2 to 1.

    The scales of int8 operands are divided by the standard deviation of int8, so that a scaled operand's is at most 1.
    If the problem is not aligned though its sizes are, A and B start one element after a 16-byte address. If its B is
    padded, rows of B lie as `pad_weight` lays them out, without the zeros.

    Args:
        problem: what is computed.
        torch_device: "cuda:0", "cpu", or "meta" for tensors without memory, to compile for.
        seed: seed of the random values.

    Raises:
        ProblemError: the problem is declared aligned and its sizes cannot be.
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
    """Shapes of the scales of A and B as the kernels take them, or None for a problem without scales."""
    m, n, k = problem.shape
    blocks_n, blocks_k = -(-n // SCALE_GROUP), -(-k // SCALE_GROUP)
    shapes = {"scalar": ((), ()), "row": ((m,), (n,)), "block": ((m, blocks_k), (blocks_k, blocks_n))}
    return shapes.get(problem.scaling)


def _scales(problem: Problem, values: Values) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    shapes = scale_shapes(problem)
    if shapes is None:
        return None, None
    largest = _INT8_UNIT if problem.a_dtype == "int8" else 1.0
    # Kernels that quantize store block scales with contiguous columns for A, and in the weight's layout for B.
    scale_a, scale_b = (_turned(values.scales(shape[::-1], largest)) for shape in shapes)
    return scale_a, scale_b


class Values:
    """Random values, drawn on the device because a copy of 1 GiB from the host takes longer than a hundred trials."""

    def __init__(self, torch_device: str, seed: int) -> None:
        self._device = torch_device
        self._generator = None if torch_device == "meta" else torch.Generator(torch_device).manual_seed(seed)

    def vector(self, size: int, dtype: torch.dtype, shift: int = 0) -> torch.Tensor:
        """A vector of `size` elements that starts `shift` elements into its allocation."""
        storage = torch.empty(size + shift, dtype=dtype, device=self._device)
        if self._generator is not None:
            # Draw in chunks, because the float32 values of a large 8-bit operand take four times its memory.
            for chunk in storage.split(1 << 26):
                if dtype == torch.int8:
                    chunk.random_(-128, 128, generator=self._generator)
                else:
                    chunk.copy_(torch.randn(chunk.shape, generator=self._generator, device=self._device))
        return storage[shift:]

    def scales(self, shape: tuple[int, ...], largest: float) -> torch.Tensor:
        """Scales between `largest / 2` and `largest`."""
        scales = torch.empty(shape, device=self._device)
        if self._generator is not None:
            scales.uniform_(largest / 2, largest, generator=self._generator)
        return scales

    def matrix(
        self, rows: int, columns: int, dtype: torch.dtype, transposed: bool, shift: int, *, padded: bool = False
    ) -> torch.Tensor:
        """A matrix [rows, columns], row-major or transposed; the padding of padded rows is random too."""
        if transposed:
            return self.matrix(columns, rows, dtype, False, shift, padded=padded).t()
        lead = padded_extent(columns, dtype.itemsize) if padded else columns
        return self.vector(rows * lead, dtype, shift).view(rows, lead)[:, :columns]


def guarded(m: int, n: int, dtype: torch.dtype, torch_device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """An output between two guard bands of at least a row and 256 bytes each, which reveal stray stores."""
    unit = _GUARD_BYTES // dtype.itemsize
    guard = (n // unit + 2) * unit
    buffer = torch.empty(guard + m * n + guard, dtype=dtype, device=torch_device)
    return buffer[guard : guard + m * n].view(m, n), buffer
