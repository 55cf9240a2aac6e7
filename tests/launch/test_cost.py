"""benchmarks/launch_cost.py takes every path to the driver that it names."""

from __future__ import annotations


def test_every_path_launches_the_same_kernel(stub):
    report = stub.run("cost.py")
    figures = report.printed["figures"]
    assert all(figure["median_us"] > 0 for figure in figures.values())
    launching = {"tuner matmul", "tuner matmul(out=)", "kernel[grid]", "CompiledKernel.run"}
    assert launching <= set(figures)
    # Two calls make the plans; then a round to warm up and three, of two calls each.
    assert len(report.launches) == 2 + len(launching) * (1 + 3) * 2
    assert len({(launch.name, launch.grid, launch.shared_bytes) for launch in report.launches}) == 1
