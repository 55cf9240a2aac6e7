"""benchmarks/claims/launch_cost.py and decorated_cost.py take every path to the driver that they name."""

from __future__ import annotations

from collections import Counter

import pytest


@pytest.fixture(scope="module")
def report(stub):
    return stub.run("cost.py")


def test_every_path_to_a_product_launches_the_same_kernel(report):
    figures = report.printed["figures"]
    assert all(figure["median_us"] > 0 for figure in figures.values())
    products = {"tuner matmul", "tuner matmul(out=)", "part: a plan's launch", "kernel[grid]", "CompiledKernel.run"}
    products |= {"nn.Linear, accelerated", "tuner matmul, A at a fresh address", "tuner matmul, b.t() in the call"}
    others = {"tuner bmm", "tuner bmm(out=)", "tuner grouped_mm", "tuner softmax", "tuner vector_add"}
    assert products | others <= set(figures)
    plans = [launch for launch in report.launches if launch.name != "layer_norm"]
    launched = Counter((launch.name, launch.grid, launch.shared_bytes) for launch in plans)
    # Of each path a round to warm up and three, of two calls each; one call more shows what a product launches.
    ((_, of_products), (_, of_bmm), *rest) = launched.most_common()
    assert (of_products, of_bmm) == (1 + len(products) * 8, 2 * 8)
    assert [count for _, count in rest] == [8] * 3


def test_every_decorator_launches_the_same_kernel(report):
    ways = {"kernel[grid]", "triton.autotune", "triton.autotune, adopted", "tuner.tuned"}
    assert set(report.printed["decorated"]) == ways
    launched = [launch for launch in report.launches if launch.name == "layer_norm"]
    # Each way a round to warm up and three, of two calls each; one is called once before another is adopted.
    assert len(launched) == len(ways) * 4 * 2 + 1
    assert len({(launch.grid, launch.block, launch.shared_bytes) for launch in launched}) == 1
