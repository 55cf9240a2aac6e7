"""Writes the GEMM families of a model or a program as lines of a suite."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.models.products import Product
from tuner.problem import Problem, suite
from tuner.problem import dtype as dtypes
from tuner.problem.generic_key import Extra

Extras = tuple[tuple[str, Extra], ...]
_COLUMNS = (*suite.REQUIRED, *suite.OPTIONAL, *suite.OTHER_OPS, "count", "note")
_SHARED = ("op", "a_dtype", "b_dtype", "out_dtype", "layout", "aligned", "epilogue", "precision")
"""The fields that a product and its problem both have, with the same values."""


@dataclass(frozen=True, slots=True)
class Line:
    """A family with some Ms.

    Attributes:
        product: what is computed.
        ms: the column m: a size, a range, or several sizes.
        m: one of them.
        count: how often it is called.
        note: which layers call it.
        extras: what else the op's problem has: "top_k", "eps" or "parts" (`tuner.Problem`).
    """

    product: Product
    ms: str
    m: int
    count: int
    note: str = ""
    extras: Extras = ()

    def cells(self) -> dict[str, str]:
        """The cells by column; those with a problem's default are empty.

        Raises:
            ProblemError: there is no such problem.
        """
        product = self.product
        described = problem(product, self.m, self.extras)
        extras = dict(described.extras)
        usual = Problem.from_fields({**described.fields(), "aligned": None}).aligned
        out_dtype = dtypes.default_out(product.a_dtype, scaled=product.scaling != "none")
        return {
            "m": self.ms,
            "n": str(product.n),
            "k": str(product.k),
            "dtype": product.a_dtype,
            "layout": product.layout,
            "b_dtype": product.b_dtype if product.b_dtype != product.a_dtype else "",
            "out_dtype": product.out_dtype if product.out_dtype != out_dtype else "",
            "epilogue": product.epilogue if product.epilogue != "none" else "",
            "precision": product.precision if product.precision not in ("default", "ieee") else "",
            "aligned": str(product.aligned).lower() if product.aligned != usual else "",
            "scaling": product.scaling if product.scaling != "none" else "",
            "op": product.op if product.op != "matmul" else "",
            "batch": str(extras.get("batch", "")),
            "groups": str(extras.get("groups", "")),
            "top_k": str(extras.get("top_k", "")),
            "eps": str(extras.get("eps", "")),
            "parts": str(extras.get("parts", "")),
            "count": str(self.count),
            "note": self.note,
        }


def problem(product: Product, m: int, extras: Extras = ()) -> Problem:
    """The problem of a product with an M; `extras` as `Line` has them.

    Raises:
        ProblemError: there is no such problem.
    """
    number = {"bmm": "batch", "grouped_mm": "groups", "fused_experts": "groups"}.get(product.op)
    counted = {number: product.number} if number else {}
    return Problem(
        m,
        product.n,
        product.k,
        **{name: getattr(product, name) for name in _SHARED},
        scaling=None if product.scaling == "none" else product.scaling,
        extras=counted | dict(extras),
    )


def dumps(lines: Iterable[Line], *remarks: str) -> str:
    """The text of a suite (docs/suites.md) with remarks above it; columns that no line fills are left out.

    Raises:
        ProblemError: a line is no problem.
    """
    rows = [line.cells() for line in lines]
    columns = [name for name in _COLUMNS if name in suite.REQUIRED or any(row.get(name) for row in rows)]
    text = io.StringIO()
    text.writelines(f"# {remark}\n" for remark in remarks)
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
