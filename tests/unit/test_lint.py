"""The check of what a search would try, held against every installed kernel's own search space."""

from __future__ import annotations

import dataclasses
import random

import pytest

pytest.importorskip("triton", reason="the installed kernels' rules need torch and Triton")

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernel.space import Rule
from tuner.launch import launch
from tuner.launch.launch_range import launch_ranges
from tuner.lookup import match_rules
from tuner.lookup.device_winners import DeviceWinners, by_problem
from tuner.lookup.families import ByKey
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem.family import Family, Range
from tuner.tables.dispatcher import dispatcher
from tuner.tables.verify import lint
from tuner.tables.verify.finding import Level
from tuner.tables.verify.lint import Subject

MADE = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0.1.0")
PROBLEMS = (
    Problem(1, 4096, 1024, dtype="bf16", layout="nt"),
    Problem(1000, 1024, 2048, dtype="e4m3", layout="nt", scaling="block"),
    Problem(255, 511, 1023, dtype="bf16", layout="nt", epilogue="bias+gelu"),
    Problem(4096, 4096, 4096, dtype="fp16"),
    Problem(512, 512, 512, op="bmm", extras={"batch": 8}),
    Problem(64, 768, 2048, layout="nt", op="fused_experts", epilogue="silu", extras={"groups": 128, "top_k": 8}),
    Problem(2, 4864, 896, layout="nt", op="gated_linear", epilogue="silu"),
    Problem(300, 4864, 896, dtype="bf16", layout="nt", op="gated_linear", epilogue="silu"),
    Problem(1, 6144, 4096, dtype="bf16", layout="nt", op="merged_linear", extras={"parts": "4096+1024+1024"}),
    Problem(4096, 1, 1, op="vector_add", dtype="fp32"),
    Problem(512, 4096, 1, op="softmax", dtype="bf16"),
    Problem(512, 4096, 1, op="rms_norm", dtype="bf16", extras={"eps": 1e-6}),
)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_nothing_is_said_of_configs_out_of_a_kernels_own_space(problem, arch):
    device = KNOWN[arch]
    able = [
        spec for (op, _), spec in registry.specs().items() if op == problem.op and not spec.supports(problem, device)
    ]
    assert able or arch != "sm_90"
    for spec in able:
        configs = spec.space(problem, device).configs()
        sample = random.Random(0).sample(configs, min(8, len(configs)))
        for config in [*sample, spec.default_config(problem, device)]:
            row = Row(problem, config, spec.version, MADE, 10.0, 1.1, 1.1, 1)
            found = lint.check(Subject("here", Table(problem.op, device, "2026-01-31T12:00:00Z", (row,))))
            assert [finding for finding in found if finding.level is not Level.NOTE] == [], config


@pytest.mark.parametrize("name", ["pointer", "tma", "persistent_tma", "split_k"])
def test_a_tile_beyond_every_axis_is_reported_and_no_source_is_hashed_for_it(name, monkeypatch):
    monkeypatch.setattr(launch, "source_hash", None)  # for each such row of a table it takes 30 ms
    device, problem = KNOWN["sm_90"], Problem(4096, 4096, 4096, dtype="fp16", layout="nt")
    spec = registry.find("matmul", name)
    for block in (96, 2048):
        config = spec.default_config(problem, device).replace(BLOCK_SIZE_N=block)
        row = Row(problem, config, spec.version, MADE, 10.0, 1.1, 1.1, 1)
        found = lint.check(Subject("here", Table("matmul", device, "2026-01-31T12:00:00Z", (row,))))
        assert {(finding.level, finding.check) for finding in found} == {(Level.ERROR, "invalid")}


def test_ranges_without_a_row_and_those_that_their_config_cannot_serve_are_reported():
    device, problem = KNOWN["sm_90"], Problem(64, 4096, 4096, dtype="bf16", layout="nt")
    small, tall = registry.find("matmul", "gemv"), registry.find("matmul", "pointer")
    rows = tuple(
        Row(at, spec.default_config(at, device), spec.version, MADE, 10.0, 1.1, 1.1, 1)
        for at, spec in ((problem.with_shape(1, 4096, 4096), small), (problem, tall))
    )
    ranges = (Range(1, 1, 1, "estimated"), Range(2, 8, 8, "measured"), Range(9, 64, 64, "estimated"))
    table = Table("matmul", device, "2026-01-31T12:00:00Z", rows, (Family(problem.group(), ranges),))
    found = [finding for finding in lint.check(Subject("here", table)) if finding.check == "range"]
    assert [(finding.level, finding.found.partition(":")[0]) for finding in found] == [
        (Level.ERROR, "M 2-8 of matmul Mx4096x4096 bfloat16 nt"),
        (Level.NOTE, "M 1-64 of matmul Mx4096x4096 bfloat16 nt"),
    ]
    assert "2 of 3 ranges by the cost model" in found[1].found
    assert found[0].advice == "tuner run --shape 1-512x4096x4096 --dtype bfloat16 --layout nt"


def test_a_range_whose_config_cannot_run_at_its_first_m_is_reported(toy, install):
    def tall(config, problem, device):
        return "taller than M" if config.integer("BLOCK_SIZE_M") > problem.m else None

    def space(problem, device):
        found = toy.space(problem, device)
        return dataclasses.replace(found, rules=(*found.rules, Rule("height", "a guide", tall, fatal=True)))

    install(dataclasses.replace(toy, space=space))
    row = Row(Problem(64, 512, 256), Config("toy", BLOCK_SIZE_M=32, num_warps=4), 1, MADE, 10.0, 1.1, 1.1, 1)
    for first, reported in ((1, True), (32, False)):
        family = Family(row.problem.group(), (Range(first, 64, 64, "measured"),))
        table = Table("matmul", KNOWN["sm_90"], "2026-01-31T12:00:00Z", (row,), (family,))
        found = [finding for finding in lint.check(Subject("here", table)) if finding.check == "range"]
        assert [finding.level for finding in found] == [Level.ERROR] * reported
        assert all("taller than M" in finding.found for finding in found)


def test_a_range_of_aligned_ms_is_served_though_its_ends_are_none_of_them():
    """With A stored along M the Ms of an aligned family are multiples of 8, and a range begins after another's last."""
    device, problem = KNOWN["sm_90"], Problem(512, 4096, 4096, dtype="bf16", layout="tn")
    spec = registry.find("matmul", "tma")
    row = Row(problem, spec.default_config(problem, device), spec.version, MADE, 10.0, 1.1, 1.1, 1)
    found = Family(problem.group(), (Range(257, 519, 512, "measured"),))
    table = Table("matmul", device, "2026-01-31T12:00:00Z", (row,), (found,))
    assert not [each for each in lint.check(Subject("here", table)) if each.level is Level.ERROR]
    winners = DeviceWinners("here", by_problem([row]), device.slug, ByKey([found]))
    for m in (264, 512):
        decision = match_rules.of_family(problem.with_m(m), device, [winners])
        assert decision is not None
        assert (decision.match.config, decision.fallen) == (row.config, ())
    assert dispatcher(table).ranges == 1
    launched = launch_ranges(problem, row.config, 257, 519)
    assert launched == []


def test_a_table_of_an_adopted_librarys_kernel_is_no_error():
    problem = Problem.keyed("fla-ops-kernel", {"N": 100, "kernel.source": "0" * 16}, dtype="float32")
    row = Row(problem, Config("fla-ops-kernel", BLOCK=64, num_stages=3, num_warps=1), 1, MADE, 10.0, 1.5, None, 1)
    found = lint.check(Subject("here", Table(problem.op, KNOWN["sm_90"], "2026-01-31T12:00:00Z", (row,))))
    assert {finding.level for finding in found} == {Level.NOTE}
    assert any("1 row of an adopted library's kernel" in finding.found for finding in found)
