"""Routing: who draws which experts, recorded ids, and tokens sorted by expert as the packages' docstrings describe."""

from __future__ import annotations

import json

import pytest
import torch

from tuner.errors import ProblemError
from tuner.moe import routing


def test_tokens_are_sorted_as_in_the_packages_own_example():
    # The docstring of moe_align_block_size, whose experts are numbered from 1.
    ids = torch.tensor([[2, 3, 4], [1, 2, 4], [1, 3, 4], [1, 2, 3]], dtype=torch.int32) - 1
    blocks = routing.align(ids, 4, 4, 12 + 4 * 3)
    assert blocks.padded.tolist() == [16]
    assert blocks.ids.tolist()[:16] == [3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12]
    assert blocks.experts.tolist()[:4] == [0, 1, 2, 3]


@pytest.mark.parametrize("block_m", [16, 64])
def test_every_block_holds_tokens_of_its_own_expert_and_every_position_is_there_once(block_m):
    ids = routing.draw("zipf", (100, 16, 4), 3)
    blocks = routing.align(ids, block_m, 16, 400 + 16 * (block_m - 1))
    flat, padded = ids.flatten(), int(blocks.padded)
    seen = []
    for block, expert in enumerate(blocks.experts[: padded // block_m].tolist()):
        positions = blocks.ids[block * block_m : (block + 1) * block_m]
        held = positions[positions < 400].long()
        assert held.numel()
        assert (flat[held] == expert).all()
        seen += held.tolist()
    assert sorted(seen) == list(range(400))
    assert (blocks.ids[padded:] == 400).all()


@pytest.mark.parametrize("name", ["uniform", "zipf"])
def test_a_tokens_experts_differ_and_a_seed_gives_the_same_draw_again(name):
    ids = routing.draw(name, (512, 32, 8), 1)
    assert all(len(set(token)) == 8 for token in ids.tolist())
    assert torch.equal(ids, routing.draw(name, (512, 32, 8), 1))
    assert not torch.equal(ids, routing.draw(name, (512, 32, 8), 2))


def test_zipf_loads_its_fullest_expert_more_than_uniform_does():
    loads = {name: routing.draw(name, (4096, 64, 2), 0).flatten().bincount().max() for name in ("uniform", "zipf")}
    assert loads["zipf"] > 3 * loads["uniform"]


def test_recorded_ids_are_played_in_order_from_anywhere(tmp_path):
    file = tmp_path / "ids.json"
    file.write_text("\ufeff" + json.dumps([[token % 5, 5 + token % 3] for token in range(30)]), encoding="utf-8")
    name = routing.record(file, 8, 2)
    drawn = routing.draw(name, (12, 8, 2), 7).tolist()
    assert drawn in [[[(first + i) % 30 % 5, 5 + (first + i) % 30 % 3] for i in range(12)] for first in range(30)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[0, 1], [2, 8]]", "token 1 goes to expert 8: expected 0 to 7"),
        ("[[0, 1], [2, -1]]", "token 1 goes to expert -1"),
        ("[[0, 1, 2]]", r"token 0 goes to \[0, 1, 2\]: expected 2 different experts"),
        ("[[1, 1]]", "expected 2 different experts"),
        ("[[0, 1.5]]", "expected 2 different experts"),
        ("[[0, [1]]]", "expected 2 different experts"),
        ("[]", "is no list of tokens"),
        ("{", "cannot be read"),
        (None, "is no regular file"),
    ],
)
def test_a_bad_recording_is_one_line(content, said, tmp_path):
    file = tmp_path / "ids.json"
    if content is None:
        file.symlink_to("/dev/null")
    else:
        file.write_text(content)
    with pytest.raises(ProblemError, match=said) as refused:
        routing.record(file, 8, 2)
    assert "\n" not in str(refused.value)


def test_an_unknown_routing_is_one_line():
    with pytest.raises(ProblemError, match="unknown routing 'fair'"):
        routing.check("fair")
