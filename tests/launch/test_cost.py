"""benchmarks/launch_cost.py takes every path to the driver that it names."""

from __future__ import annotations

from collections import Counter


def test_every_path_to_a_product_launches_the_same_kernel(stub):
    report = stub.run("cost.py")
    figures = report.printed["figures"]
    assert all(figure["median_us"] > 0 for figure in figures.values())
    products = {"tuner matmul", "tuner matmul(out=)", "part: a plan's launch", "kernel[grid]", "CompiledKernel.run"}
    others = {"tuner bmm", "tuner bmm(out=)", "tuner grouped_mm", "tuner softmax", "tuner vector_add"}
    assert products | others <= set(figures)
    launched = Counter((launch.name, launch.grid, launch.shared_bytes) for launch in report.launches)
    # Of each path a round to warm up and three, of two calls each; one call more shows what a product launches.
    ((_, of_products), (_, of_bmm), *rest) = launched.most_common()
    assert (of_products, of_bmm) == (1 + len(products) * 8, 2 * 8)
    assert [count for _, count in rest] == [8] * 3
