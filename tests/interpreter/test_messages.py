"""What an op's error says to type works: each refused call, what its message says, and the call typed so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tuner.kernels import bmm, grouped_mm, matmul, pad_weight, softmax, vector_add


def whole(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, which every dtype and every order of summing gives exactly."""
    return (torch.arange(torch.Size(shape).numel()) % 3).view(shape).to(dtype)


A, B, C = whole(3, 4), whole(4, 5), whole(5)
HALVES = A.half(), B.half()
SMALL = A.to(torch.float8_e4m3fn), B.to(torch.float8_e4m3fn)
BYTES = A.to(torch.int8), B.to(torch.int8)
ROW, COLUMN, STACK, WIDE = whole(4), whole(4), whole(2, 4, 5), whole(3, 2, 4, 5)
MATRICES = whole(2, 3, 4)
ONE, BOTH = torch.ones(1), {"scale_a": torch.ones(1), "scale_b": torch.ones(1)}
ENDS = torch.tensor([1, 3], dtype=torch.int32)
DOUBLE = torch.empty(3, 5, dtype=torch.float64)
LEARNT = A.clone().requires_grad_()
Call = Callable[[], Any]

TABLE: dict[str, tuple[Call, str, Call, torch.Tensor]] = {
    "out of a dtype that no op has": (
        lambda: matmul(A, B, out=DOUBLE),
        "float8_e4m3fn, float8_e5m2; leave out= away and use .to(torch.float64)",
        lambda: matmul(A, B).to(torch.float64),
        (A @ B).double(),
    ),
    "out of another dtype": (
        lambda: matmul(*HALVES, out=torch.empty(3, 5)),
        "out is float32: expected float16; to have float32, add out_dtype=torch.float32",
        lambda: matmul(*HALVES, out=torch.empty(3, 5), out_dtype=torch.float32),
        A @ B,
    ),
    "out of floats for int8": (
        lambda: matmul(*BYTES, out=torch.empty(3, 5)),
        "out is float32: expected int32; leave out= away and use .to(torch.float32)",
        lambda: matmul(*BYTES).to(torch.float32),
        A @ B,
    ),
    "out_dtype for int8": (
        lambda: bmm(BYTES[0][None], BYTES[1][None], out_dtype=torch.float32),
        "out_dtype is float32: expected int32; leave out_dtype= away and use .to(torch.float32)",
        lambda: bmm(BYTES[0][None], BYTES[1][None]).to(torch.float32),
        (A @ B)[None],
    ),
    "outs of two dtypes": (
        lambda: grouped_mm([A, A], [B, B], out=[torch.empty(3, 5), DOUBLE]),
        "out[1] is float64 and out[0] float32: expected one dtype; leave out= away",
        lambda: grouped_mm([A, A], [B, B])[1],
        A @ B,
    ),
    "a vector for b": (
        lambda: matmul(A, COLUMN),
        "b has shape [4]: expected [K, N]; use matmul(a, b.unsqueeze(1)).squeeze(-1)",
        lambda: matmul(A, COLUMN.unsqueeze(1)).squeeze(-1),
        A @ COLUMN,
    ),
    "a vector for b of a batch": (
        lambda: matmul(MATRICES, COLUMN),
        "use matmul(a, b.unsqueeze(1)).squeeze(-1)",
        lambda: matmul(MATRICES, COLUMN.unsqueeze(1)).squeeze(-1),
        MATRICES @ COLUMN,
    ),
    "a vector for a": (
        lambda: matmul(ROW, B),
        "a has shape [4]: expected [..., M, K]; use matmul(a.unsqueeze(0), b).squeeze(0)",
        lambda: matmul(ROW.unsqueeze(0), B).squeeze(0),
        ROW @ B,
    ),
    "a batch of both": (
        lambda: matmul(MATRICES, STACK),
        "b has shape [2, 4, 5]: expected [K, N]; use bmm(a, b)",
        lambda: bmm(MATRICES, STACK),
        MATRICES @ STACK,
    ),
    "batches that broadcast": (
        lambda: matmul(MATRICES, WIDE),
        "use bmm(a.expand(3, 2, -1, -1).flatten(0, -3), b.expand(3, 2, -1, -1).flatten(0, -3)).unflatten(0, (3, 2,))",
        lambda: bmm(MATRICES.expand(3, 2, -1, -1).flatten(0, -3), WIDE.expand(3, 2, -1, -1).flatten(0, -3)).unflatten(
            0, (3, 2)
        ),
        MATRICES @ WIDE,
    ),
    "one a for a batch": (
        lambda: matmul(A, STACK),
        "use bmm(a.expand(2, -1, -1).flatten(0, -3), b.expand(2, -1, -1).flatten(0, -3)).unflatten(0, (2,))",
        lambda: bmm(A.expand(2, -1, -1).flatten(0, -3), STACK.flatten(0, -3)).unflatten(0, (2,)),
        A @ STACK,
    ),
    "a transposed weight": (
        lambda: matmul(A, whole(5, 4)),
        "a weight stored [N, K] goes in as weight.t()",
        lambda: matmul(A, whole(5, 4).t()),
        A @ whole(5, 4).t(),
    ),
    "two dtypes": (
        lambda: matmul(A, HALVES[1]),
        "a is float32 and b float16: expected one dtype; use b.to(a.dtype)",
        lambda: matmul(A, HALVES[1].to(A.dtype)),
        A @ B,
    ),
    "a bias in steps": (
        lambda: matmul(A, B, bias=whole(10)[::2]),
        "bias is not contiguous: expected stride 1; use bias.contiguous()",
        lambda: matmul(A, B, bias=whole(10)[::2].contiguous()),
        A @ B + whole(10)[::2],
    ),
    "a bias of int8": (
        lambda: matmul(*BYTES, bias=C),
        "bias is given and the result is int32: leave it out, or use matmul with scales",
        lambda: matmul(*BYTES, bias=C, out_dtype=torch.float32, **BOTH),
        A @ B + C,
    ),
    "one scale": (
        lambda: matmul(*SMALL, scale_a=ONE),
        "scale_a is given without scale_b: expected both; scale_b may be torch.ones(1, device=a.device)",
        lambda: matmul(*SMALL, scale_a=ONE, scale_b=torch.ones(1, device=A.device), out_dtype=torch.float32),
        A @ B,
    ),
    "a scale for rows alone": (
        lambda: matmul(*SMALL, scale_a=torch.ones(3, 1), scale_b=ONE),
        "one scale for all rows goes in as scale.expand(rows, 1).contiguous()",
        lambda: matmul(
            *SMALL, scale_a=ONE.expand(3, 1).contiguous(), scale_b=torch.ones(1, 5), out_dtype=torch.float32
        ),
        A @ B,
    ),
    "what the library lacks": (
        lambda: matmul(*HALVES, bias=C, backend="vendor"),
        "backend 'vendor': torch adds a bias of the output's dtype: use 'auto' or 'triton'",
        lambda: matmul(*HALVES, bias=C, backend="auto"),
        (A @ B + C).half(),
    ),
    "out beside a gradient": (
        lambda: matmul(LEARNT, B, out=torch.empty(3, 5)),
        "call it under torch.no_grad() or use .detach()",
        lambda: matmul(LEARNT.detach(), B, out=torch.empty(3, 5)),
        A @ B,
    ),
    "one matrix for a batch": (
        lambda: bmm(A, STACK),
        "a has shape [3, 4]: expected [B, M, K]; use a.expand(2, -1, -1)",
        lambda: bmm(A.expand(2, -1, -1), STACK),
        A @ STACK,
    ),
    "a batch of batches": (
        lambda: bmm(WIDE.mT, WIDE),
        "use bmm(a.flatten(0, -3), b.flatten(0, -3)) and .unflatten(0, ...)",
        lambda: bmm(WIDE.mT.flatten(0, -3), WIDE.flatten(0, -3)).unflatten(0, (3, 2)),
        WIDE.mT @ WIDE,
    ),
    "a vector in a list": (
        lambda: grouped_mm([ROW], [B]),
        "pair 0: a has shape [4]: expected [M, K]; use a.unsqueeze(0)",
        lambda: grouped_mm([ROW.unsqueeze(0)], [B])[0],
        (ROW @ B)[None],
    ),
    "a stack in place of a list": (
        lambda: grouped_mm([A, A], STACK),
        "b is of type Tensor and a a list: expected a list of 2 matrices; use list(b)",
        lambda: torch.stack(grouped_mm([A, A], list(STACK))),
        A @ STACK,
    ),
    "a list in place of a stack": (
        lambda: grouped_mm(A, list(STACK), ENDS),
        "b is a list and a is not: expected [G, K, N] with offs; use torch.stack(b), or two lists",
        lambda: grouped_mm(A, torch.stack(list(STACK)), ENDS),
        torch.cat([A[:1] @ STACK[0], A[1:] @ STACK[1]]),
    ),
    "offs beside lists": (
        lambda: grouped_mm([A], [B], ENDS),
        "offs is given and a is a list: expected no offs with lists; leave offs away",
        lambda: grouped_mm([A], [B])[0],
        A @ B,
    ),
    "offs of 64 bits": (
        lambda: grouped_mm(A, STACK, ENDS.long()),
        "offs is int64: expected int32; use offs.int()",
        lambda: grouped_mm(A, STACK, ENDS.long().int()),
        torch.cat([A[:1] @ STACK[0], A[1:] @ STACK[1]]),
    ),
    "one value for x": (
        lambda: vector_add(whole(1), C),
        "x [1] and y [5] do not fit: expected one length; one value for all goes in as x.expand(5)",
        lambda: vector_add(whole(1).expand(5), C),
        whole(1) + C,
    ),
    "a matrix for a vector": (
        lambda: vector_add(A, A),
        "x has shape [3, 4]: expected [M]; use x.flatten()",
        lambda: vector_add(A.flatten(), A.flatten()).view_as(A),
        A + A,
    ),
    "a number's softmax": (
        lambda: softmax(torch.ones(())),
        "x has shape []: expected [..., N]; use x.reshape(1)",
        lambda: softmax(torch.ones(()).reshape(1)),
        torch.ones(1),
    ),
    "weights of a batch": (
        lambda: pad_weight(STACK),
        "weight has shape [2, 4, 5]: expected [N, K]; pad the matrices of a batch singly",
        lambda: torch.stack([*map(pad_weight, STACK)]),
        STACK,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_a_message_says_to_type_works(name, refused):
    call, words, mended, expected = TABLE[name]
    refused(call, words)
    torch.testing.assert_close(mended(), expected)
