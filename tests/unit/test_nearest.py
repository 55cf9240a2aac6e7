"""A binary serves a call if all that it assumes of the arguments holds there; of several, the one that assumes most."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from tuner.launch import compat, nearest


@triton.jit
def kernel(x, count, offset, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK) + offset, count)


def specialized(x: str = "*fp32:16", count: str = "i32", offset: str = "i32", block: object = 64) -> nearest.Arguments:
    """What Triton would compile for: `i32` any number, `i32:16` a multiple of 16, `1` the number 1."""
    signature, constants, attributes = {}, {(3,): block}, {}
    for at, (name, said) in enumerate({"x": x, "count": count, "offset": offset}.items()):
        kind, _, multiple = said.partition(":")
        signature[name] = "constexpr" if kind == "1" else kind
        if kind == "1":
            constants[at,] = 1
        if multiple:
            attributes[at,] = [["tt.divisibility", 16]]
    made = nearest.arguments_of(compat.ASTSource(kernel, {**signature, "BLOCK": "constexpr"}, constants, attributes))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("binary", "call", "refused"),
    [
        ({}, {}, []),
        ({}, {"count": "i32:16", "offset": "1"}, []),
        ({"count": "i32:16"}, {"count": "i32:16"}, []),
        ({"count": "i32:16"}, {}, ["count"]),
        ({"count": "i32:16"}, {"count": "1"}, ["count"]),
        ({"count": "1"}, {}, ["count"]),
        ({"count": "i64"}, {"count": "1"}, ["count"]),
        ({"x": "*fp32"}, {}, []),
        ({}, {"x": "*fp32"}, ["x"]),
        ({"x": "*fp16:16"}, {}, ["x"]),
        ({"block": 128}, {"offset": "i64"}, ["offset", "BLOCK"]),
        ({"block": 1}, {"block": True}, ["BLOCK"]),
    ],
)
def test_a_binary_refuses_the_arguments_that_do_not_keep_what_it_assumes(binary, call, refused):
    assert nearest.misfits(specialized(**binary), specialized(**call)) == refused


def test_a_binary_assumes_more_the_more_of_its_arguments_are_known():
    ascending = [specialized("*fp32"), specialized(), specialized(count="i32:16"), specialized(count="1", offset="1")]
    assert [nearest.facts(each) for each in ascending] == [1, 2, 3, 4]


def test_a_tuple_among_the_arguments_is_compared_by_no_rule():
    assert nearest.arguments_of(compat.ASTSource(kernel, {"x": ("i32", "i32")})) is None
