"""A problem: what is computed, with everything that may change which config is fastest."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tuner.errors import ProblemError
from tuner.problem import dtype as dtypes
from tuner.problem import gemm_fields, merged_parts, op_counts
from tuner.problem import generic_key as keyed
from tuner.problem.gemm_fields import ACTIVATIONS, COARSE_SUMS, LAYOUTS
from tuner.problem.generic_key import Extra

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, init=False, order=True)
class Problem:
    """One GEMM, `out[M, N] = epilogue(a[M, K] @ b[K, N])`, or a problem of another op.

    Attributes:
        op: what is computed ("matmul").
        m, n, k: sizes in elements; at least 1 to be tuned or looked up.
        a_dtype, b_dtype, out_dtype: torch's dtype names.
        layout: row-major storage of A, then B: nn, nt, tn, tt.
        aligned: every operand's address, leading stride and contiguous extent is a multiple of 16 bytes. For the op
            `vector_add` only the addresses count, and neighbours must be one element apart.
        epilogue: "none", "bias", an activation, or "bias+" an activation.
        precision: "ieee", "tf32" or "tf32x3" for float32, "default" for every other dtype.
        extras: further keys as sorted (name, value) pairs: "scaling" where operands are scaled, "fast_accum" where it
            is not the default, "b_padded" where only B's rows are aligned, "invariant", and the keys of other ops, as
            the "eps" that every problem of `rms_norm` has.
        family: every part but `m`, equal for all problems that differ only in M; made once, for lookups.

    A problem whose layout is `tuner.problem.generic_key.LAYOUT` has all of its key in `extras`: see `Problem.keyed`.
    """

    op: str
    m: int
    n: int
    k: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    layout: str
    aligned: bool
    epilogue: str
    precision: str
    extras: tuple[tuple[str, Extra], ...]
    family: tuple[Any, ...] = field(repr=False, compare=False)
    _hash: int = field(repr=False, compare=False)

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        *,
        dtype: str | torch.dtype = "float16",
        a_dtype: str | torch.dtype | None = None,
        b_dtype: str | torch.dtype | None = None,
        out_dtype: str | torch.dtype | None = None,
        layout: str = "nn",
        aligned: bool | None = None,
        epilogue: str = "none",
        precision: str | None = None,
        scaling: str | None = None,
        fast_accum: bool | None = None,
        b_padded: bool = False,
        invariant: bool = False,
        op: str = "matmul",
        extras: Mapping[str, Extra] | None = None,
    ) -> None:
        """Check and canonicalise the parts of a problem.

        Args:
            m, n, k: sizes in elements.
            dtype: the dtype of both operands unless `a_dtype` or `b_dtype` is given; torch's, its names or short ones.
            a_dtype, b_dtype, out_dtype: the dtypes of A, B and the output; the output defaults to what torch would
                return (bfloat16 for fp8 and scaled int8).
            layout: nn, nt, tn, tt.
            aligned: by default, what contiguous tensors of this shape are.
            epilogue: see the class.
            precision: see the class; float32 defaults to "ieee".
            scaling: how fp8 or int8 operands are scaled: none, scalar, row, block.
            fast_accum: whether Hopper's fp8 tensor cores may sum all of K by themselves, like use_fast_accum of
                torch._scaled_mm; by default it follows from the output's dtype.
            b_padded: B is stored as `tuner.kernels.pad_weight` stores a weight: its address and leading stride are
                multiples of 16 bytes though its contiguous extent is not. Ignored where the extent is one too.
            invariant: a row's bits must not depend on M: all problems that differ in M alone sum along K in one order.
                For the op matmul only.
            op: the operation.
            extras: further keys of the problem.

        Raises:
            ProblemError: a part is invalid; the message says what was found and what was expected.
        """
        if layout == keyed.LAYOUT:
            self._set(keyed.fields(op, a_dtype or dtype, extras or {}, (m, n, k)))
            return
        keyed.check_name(op)
        keyed.check_extras(extras)
        a_dtype, b_dtype = dtypes.canonical(a_dtype or dtype), dtypes.canonical(b_dtype or dtype)
        extras = dict(extras or {})
        given = (
            ("scaling", scaling),
            ("fast_accum", fast_accum),
            ("b_padded", None if b_padded is False else b_padded),
            ("invariant", None if invariant is False else invariant),
        )
        extras |= {name: value for name, value in given if value is not None}
        extras = {name: gemm_fields.check_extra(op, name, value) for name, value in extras.items()}
        gemm_fields.check_scaling(op, extras, a_dtype)
        if op == "rms_norm":
            extras["eps"] = gemm_fields.check_eps(extras.get("eps"))
        elif op == "merged_linear":
            extras[merged_parts.PARTS] = merged_parts.check_parts(extras.get(merged_parts.PARTS), n)
        scaled = "scaling" in extras
        out_dtype = dtypes.canonical(out_dtype) if out_dtype else dtypes.default_out(a_dtype, scaled=scaled)
        if extras.get("fast_accum") is (out_dtype in COARSE_SUMS):
            del extras["fast_accum"]
        if layout not in LAYOUTS:
            raise ProblemError(f"unknown layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
        precision = gemm_fields.check_precision(precision, a_dtype)
        gemm_fields.check_invariant(op, extras, precision)
        m, n, k = (gemm_fields.check_size(name, size) for name, size in (("M", m), ("N", n), ("K", k)))
        if not gemm_fields.gains_by_padding(n, k, b_dtype, layout):
            extras.pop("b_padded", None)
        values: dict[str, Any] = {
            "op": op,
            "m": m,
            "n": n,
            "k": k,
            "a_dtype": a_dtype,
            "b_dtype": b_dtype,
            "out_dtype": out_dtype,
            "layout": layout,
            "aligned": gemm_fields.contiguous_aligned(op, (m, n, k), (a_dtype, b_dtype, out_dtype), layout)
            if aligned is None
            else gemm_fields.check_extra(op, "aligned", aligned),
            "epilogue": gemm_fields.check_epilogue(epilogue),
            "precision": precision,
            "extras": tuple(sorted(extras.items())),
        }
        self._set(values)

    @staticmethod
    def keyed(op: str, key: Mapping[str, Extra], *, dtype: str | torch.dtype = "float16") -> Problem:
        """Make a problem of an op without M, N and K: `Problem.keyed("layer_norm", {"M": 4096, "N": 1024})`.

        Args:
            op: the operation, which is the `name` given to `tuner.tuned`.
            key: the values that identify the problem, by name, and facts about arguments
                (`tuner.problem.generic_key`).
            dtype: the dtype of most operands: torch's, or its name.

        Raises:
            ProblemError: a name or a value is invalid.
        """
        return Problem(1, 1, 1, op=op, layout=keyed.LAYOUT, dtype=dtype, extras=key)

    def _set(self, values: Mapping[str, Any]) -> None:
        parts = tuple(values.values())
        self._set_parts(parts, (parts[0], *parts[2:]))

    def _set_parts(self, parts: tuple[Any, ...], family: tuple[Any, ...]) -> None:
        """Set every part, in the order of `_PARTS`."""
        for set_part, value in zip(_SETTERS, parts, strict=True):
            set_part(self, value)
        object.__setattr__(self, "family", family)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # The cached hash holds strings' hashes, which differ between processes: rebuild it there.
        return (Problem.from_fields, (self.fields(),))

    def __getitem__(self, name: str) -> Extra:
        """What `extras` holds under a name: `problem["N"]` of a problem that has an N of its own."""
        for each, value in self.extras:
            if each == name:
                return value
        known = ", ".join(known for known, _ in self.extras if known != keyed.SOURCE) or "none"
        raise KeyError(f"{self.op} has no key {name!r}: it has {known}")

    def __str__(self) -> str:
        if self.is_keyed:
            return " ".join((self.op, *keyed.words(self.extras, self.a_dtype)))
        said = [f"{self.op} {self.m}x{self.n}x{self.k}", self.dtype_label, self.layout]
        if self.epilogue != "none":
            said.append(self.epilogue)
        if self.precision not in ("default", "ieee"):
            said.append(self.precision)
        if not self.aligned:
            said.append("unaligned")
        said.extend(f"{name}={value}" for name, value in self.extras)
        return " ".join(said)

    @property
    def is_keyed(self) -> bool:
        """Whether all of its key is in `extras`; `m`, `n` and `k` are 1 then and say nothing."""
        return self.layout == keyed.LAYOUT

    @property
    def source(self) -> str:
        """Which kernel it is a problem of, where several may have its op's name (`generic_key.SOURCE`); else ""."""
        return str(dict(self.extras).get(keyed.SOURCE, "")) if self.is_keyed else ""

    @property
    def torch_dtype(self) -> torch.dtype:
        """`a_dtype` as torch has it."""
        return dtypes.to_torch(self.a_dtype)

    @property
    def dtype_label(self) -> str:
        """Dtypes for people: "float16", or "float8_e5m2*float8_e4m3fn->float16" where they differ from the usual."""
        if self.is_keyed:
            return self.a_dtype
        label = self.a_dtype if self.a_dtype == self.b_dtype else f"{self.a_dtype}*{self.b_dtype}"
        return label if self.out_dtype == dtypes.default_out(self.a_dtype) else f"{label}->{self.out_dtype}"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return self.m, self.n, self.k

    @property
    def has_bias(self) -> bool:
        """Whether the epilogue adds a bias [N]."""
        return self.epilogue.split("+")[0] == "bias"

    @property
    def activation(self) -> str:
        """The activation of the epilogue, "none" if there is none."""
        last = self.epilogue.split("+")[-1]
        return last if last in ACTIVATIONS else "none"

    @property
    def flops(self) -> int:
        """Floating-point operations, 2·M·N·K for each product; 0 where they are unknown."""
        return 0 if self.is_keyed else op_counts.flops(self.op, self.shape, self.extras)

    @property
    def bytes_moved(self) -> int:
        """The fewest bytes of memory: A and B read once, the output written once; 0 where they are unknown."""
        if self.is_keyed:
            return 0
        return op_counts.bytes_moved(self.shape, (self.a_dtype, self.b_dtype, self.out_dtype), self.extras)

    @property
    def scaling(self) -> str:
        """How the operands are scaled: "none", or what `extras` holds under that name ("scalar", "row", "block")."""
        return str(dict(self.extras).get("scaling", "none"))

    @property
    def fast_accum(self) -> bool:
        """Whether Hopper's fp8 tensor cores may sum all of K by themselves; by default the output's dtype decides."""
        return bool(dict(self.extras).get("fast_accum", self.out_dtype in COARSE_SUMS))

    @property
    def b_padded(self) -> bool:
        """Whether B's address and leading stride are multiples of 16 bytes though its contiguous extent is not."""
        return bool(dict(self.extras).get("b_padded", False))

    @property
    def invariant(self) -> bool:
        """Whether a row's bits must not depend on M."""
        return ("invariant", True) in self.extras and not self.is_keyed

    def as_invariant(self) -> Problem:
        """Return the same problem with rows whose bits do not depend on M.

        Raises:
            ProblemError: it has no such form.
        """
        if self.is_keyed:
            raise ProblemError(f"{self.op} has no invariant form, matmul alone has: leave invariant out")
        return Problem.from_fields(self.fields() | {"extras": {**dict(self.extras), "invariant": True}})

    def unscaled(self) -> Problem:
        """Return the same product of the same operands without scales."""
        extras = {name: value for name, value in self.extras if name != "scaling"}
        return Problem(**self.fields() | {"extras": extras})

    def exchanged(self) -> Problem:
        """Return the problem of the transposed output, `out.T[N, M] = b.T @ a.T`."""
        flipped = {"n": "t", "t": "n"}
        layout = flipped[self.layout[1]] + flipped[self.layout[0]]
        swapped = {"m": self.n, "n": self.m, "a_dtype": self.b_dtype, "b_dtype": self.a_dtype, "layout": layout}
        return self._changed(**swapped, extras=tuple(pair for pair in self.extras if pair[0] != "b_padded"))

    def with_m(self, m: int) -> Problem:
        """Return the same problem with another M; `aligned` stays as it is.

        Raises:
            ProblemError: it is no size, or the problem has a key in place of M, N and K.
        """
        if self.is_keyed:
            return self.with_shape(m, 1, 1)  # which says what is wrong
        op, *others = self.family
        made = object.__new__(Problem)
        made._set_parts((op, gemm_fields.check_size("M", m), *others), self.family)
        return made

    def _changed(self, **parts: Any) -> Problem:
        """Return a copy with other parts, known to be valid: checks are most of what a new problem takes."""
        made = object.__new__(Problem)
        made._set({name: getattr(self, name) for name in _PARTS} | parts)
        return made

    def with_shape(self, m: int, n: int, k: int) -> Problem:
        """Return the same class of problem at another shape; `aligned` stays as it is."""
        return Problem(**self.fields() | {"m": m, "n": n, "k": k})

    def group(self) -> Problem:
        """Return this problem with M = 1, which is equal for all problems that differ only in M."""
        return self.with_m(1)

    def fields(self) -> dict[str, Any]:
        """Return every part by name as JSON holds it, with `extras` as a dict; `from_fields` reads it back."""
        return {name: getattr(self, name) for name in _PARTS} | {"extras": dict(self.extras)}

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> Problem:
        """Return the problem that `fields()` described.

        Raises:
            ProblemError: a part is missing or invalid.
        """
        try:
            return Problem(**fields)
        except TypeError as e:
            raise ProblemError(f"not a problem: {json.dumps(dict(fields), default=str)} ({e})") from e


_PARTS = tuple(part.name for part in dataclasses.fields(Problem) if part.compare)
_SETTERS = tuple(getattr(Problem, name).__set__ for name in _PARTS)
"""What sets the parts of a frozen object: their slots, in a third of the time that `object.__setattr__` takes."""
