"""Configs of an invariant family are compiled to products of one instruction, whatever M and the kernel."""

from __future__ import annotations

from collections import defaultdict

import pytest

PRODUCTS = {
    "sm_90": {
        "bf16": ["wgmma.mma_async m64 k16"],
        "bf16 in parts": ["wgmma.mma_async m64 k16"],
        "tf32": ["wgmma.mma_async m64 k8"],
        "e4m3": ["wgmma.mma_async m64 k32"],
        "e4m3, moved": ["wgmma.mma_async m64 k32"],
        "e4m3, blocks": ["wgmma.mma_async m64 k32"],
        "ieee": ["fma"],
    },
    "sm_80": {
        "bf16": ["mma.sync m16 k16"],
        "bf16 in parts": ["mma.sync m16 k16"],
        "tf32": ["mma.sync m16 k8"],
        "ieee": ["fma"],
    },
}


@pytest.mark.parametrize("arch", list(PRODUCTS))
@pytest.mark.long
def test_a_family_is_multiplied_by_one_instruction(arch, run_program):
    found = defaultdict(set)
    for one in run_program("invariant.py", arch):
        found[one["kind"]].add(tuple(one["products"]))
    assert found == {kind: {tuple(products)} for kind, products in PRODUCTS[arch].items()}
