"""Tiles whose A comes from registers: no product waits for the one before, and none reads what is loaded already."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tuner.hardware.device import triton_version


@pytest.mark.skipif(not triton_version().startswith("3.7."), reason="cluster_k runs under Triton 3.7 alone")
@pytest.mark.parametrize("share", [12, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("arch", ["sm_90"])
def test_registers_of_products_under_way_are_left_alone_and_ptxas_serializes_none(arch, share, run_program):
    found = run_program("from_registers.py", arch, share)
    assert len(found) >= 90 // share
    for one in found:
        assert one["products"], one["case"]
        assert not one["overwritten"], one["case"]
        assert not one["serialized"], one["case"]
        assert one["spill_bytes"] == 0, one["case"]


LOOP = """
.L_x_1:
        /*0100*/                   LDS R{loaded}, [R4] ;
        /*0110*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0120*/                   HGMMA.64x64x8.F32.TF32 R24, R56, gdesc[UR8], R24, gsb0 ;
        /*0130*/               @P0 BRA `(.L_x_1) ;
        /*0140*/                   EXIT ;
"""


@pytest.mark.parametrize(("loaded", "early"), [(57, True), (60, False)])
def test_registers_that_are_loaded_too_early_are_seen_around_the_end_of_a_loop(loaded, early):
    pytest.importorskip("triton")
    path = Path(__file__).parent / "programs/from_registers.py"
    spec = importlib.util.spec_from_file_location("from_registers", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert bool(program.overwritten(program.instructions(LOOP.format(loaded=loaded)))) == early
