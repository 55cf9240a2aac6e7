"""Host functions of kernels/ are annotated: mypy lets functions there be untyped, because jit functions are."""

from __future__ import annotations

import ast
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"
JIT = {
    "any_size",
    "blocks.any_size",
    "triton.jit",
    "triton.constexpr_function",
    "gluon.jit",
    "gluon.constexpr_function",
}


def is_jit(function):
    decorators = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    return any(ast.unparse(each) in JIT for each in decorators)


def is_annotated(function, *, method):
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    named = named[1:] if method and named and named[0].arg in ("self", "cls") else named
    return function.returns is not None and all(each.annotation is not None for each in named)


def test_every_function_of_the_kernels_but_jit_functions_is_annotated():
    bare = []
    for path in sorted(KERNELS.rglob("*.py")):
        tree = ast.parse(path.read_text())
        methods = {id(each) for cls in ast.walk(tree) if isinstance(cls, ast.ClassDef) for each in cls.body}
        bare += [
            f"{path.relative_to(KERNELS)}:{each.lineno} {each.name}"
            for each in ast.walk(tree)
            if isinstance(each, ast.FunctionDef) and not is_jit(each)
            if not is_annotated(each, method=id(each) in methods)
        ]
    assert bare == []


def test_the_link_by_which_the_type_checker_sees_the_kernels_points_to_them():
    assert (KERNELS.parent / "tuner" / "kernels").resolve() == KERNELS.resolve()
