"""Private names of torch and of Triton are in one module, with a fallback or an error where one is missing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tuner.errors import TunerError
from tuner.launch import compat

ROOT = Path(__file__).parents[2]
INTERNAL = ("triton.runtime", "triton.compiler", "triton.backends")


def is_private(name):
    parts = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return hidden or name.startswith(INTERNAL)


def private_names(tree):
    """Names of torch and Triton that a module imports, or reads by a dotted path from what it imported."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {each.asname or each.name.split(".")[0]: each.name for each in node.names}
            yield from (each.name for each in node.names if each.name.split(".")[0] in ("torch", "triton"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("torch", "triton"):
            known |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            yield from (f"{node.module}.{each.name}" for each in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            place = known.get(root, "")
            if place.split(".")[0] in ("torch", "triton"):
                yield f"{place if root != place.split('.')[0] else root}.{rest}"


def found_in(source):
    return sorted(filter(is_private, private_names(ast.parse(source))))


def test_no_other_module_reads_a_private_name_of_torch_or_triton():
    paths = [path for room in ("tuner", "kernels") for path in sorted((ROOT / room).rglob("*.py"))]
    assert {
        str(path.relative_to(ROOT)): names
        for path in paths
        if path.name != "compat.py" and (names := found_in(path.read_text()))
    } == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._scaled_mm(a)",
        "from torch.autograd import forward_ad\nforward_ad._current_level",
        "def f():\n    from torch._inductor import list_mode_options",
        "import torch\ntorch.ops.aten._scaled_mm_v2.out",
        "from triton.runtime.driver import driver",
        "import triton\ntriton.compiler.make_backend(target)",
    ],
)
def test_a_private_name_is_noticed(source):
    assert found_in(source)


def test_a_public_name_is_not_taken_for_a_private_one():
    assert found_in("import torch\nfrom triton import knobs\ntorch.mm(a, b).__class__\nknobs.runtime.interpret") == []


def test_a_missing_name_has_its_fallback_and_is_looked_up_once(monkeypatch):
    monkeypatch.setitem(compat._TORCH, "gone", ("json:gone", None))
    try:
        assert compat.gone is None
        assert vars(compat)["gone"] is None
    finally:
        vars(compat).pop("gone", None)


def test_a_missing_name_that_nothing_replaces_says_which_releases_have_it(monkeypatch):
    monkeypatch.setitem(compat._TRITON, "gone", ("json:decoder.gone", compat._REQUIRED))
    with pytest.raises(TunerError, match=r"json.decoder.gone is not there: expected Triton 3.6 to 3.9"):
        _ = compat.gone


def test_without_a_level_of_forward_derivatives_every_call_is_checked(monkeypatch):
    forward_ad = pytest.importorskip("torch.autograd.forward_ad", reason="torch is not installed")
    monkeypatch.delattr(forward_ad, compat.FORWARD_LEVEL)
    assert compat.forward_ad_state()[compat.FORWARD_LEVEL] >= 0


@pytest.mark.parametrize("name", [*compat._TORCH, *compat._TRITON])
def test_every_name_is_there_or_has_a_fallback(name):
    for package in ("torch", "triton"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    getattr(compat, name)
