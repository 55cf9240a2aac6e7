"""What docs/ops.md shows of one config by hand: square tiles of 32 give the right [128, 256]."""

from __future__ import annotations

import re
from pathlib import Path

import torch

DOCS = Path(__file__).parents[2] / "docs" / "ops.md"


def test_square_tiles_of_32_multiply_128x64_by_64x256():
    section = DOCS.read_text().split("### One config by hand")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    out, a, b = names["out"], names["a"], names["b"]
    assert out.shape == (128, 256)
    assert a.shape == (128, 64)
    torch.testing.assert_close(out, a @ b)
    assert {names["config"][f"BLOCK_SIZE_{axis}"] for axis in "MNK"} == {32}
    space = names["kernel"].space(names["problem"], names["current"]())
    assert "no power of two" in space.rejection(names["config"].replace(BLOCK_SIZE_M=24), fatal_only=True)
