"""Draws which experts tokens go to (uniform, skewed or recorded), and sorts tokens by expert as the kernels need it.

A problem names its routing. One launch runs `DRAWS` draws of it one after the other, so that a config is chosen over
all of them even if it is launched only a few times. A trial's time is that of all draws together.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import files
from tuner.errors import ProblemError

if TYPE_CHECKING:
    import torch

UNIFORM, ZIPF, RECORDED = "uniform", "zipf", "recorded-"
_EXPONENT = 1.0
"""The exponent of the Zipf distribution: the expert of rank r is drawn in proportion to r ** -_EXPONENT."""
_recorded: dict[str, torch.Tensor] = {}
"""Recorded expert ids [tokens, top_k] by the name of their routing, in this process."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tokens sorted by expert, in blocks of one expert each.

    Attributes:
        ids: int32, positions in the flattened expert ids [tokens * top_k], sorted by expert; each expert's are padded
            with `tokens * top_k` to whole blocks. None where each block is one position, in order.
        experts: int32, the expert of each block.
        padded: int32 [1], how many of `ids` are used.
    """

    ids: torch.Tensor | None
    experts: torch.Tensor
    padded: torch.Tensor


def check(routing: str) -> str:
    """Return a routing's name, or raise ProblemError if this process cannot draw it."""
    if routing in (UNIFORM, ZIPF) or routing in _recorded:
        return routing
    raise ProblemError(f"unknown routing {routing!r}: expected {UNIFORM}, {ZIPF} or a file that `record` reads")


def record(file: Path, experts: int, top_k: int) -> str:
    """Read recorded expert ids, and return the name of their routing, which has a hash of the ids.

    Args:
        file: JSON, a list with the expert ids of each token: [[0, 5], [3, 1], ...].
        experts, top_k: how many experts there are, and to how many each token goes.

    Raises:
        ProblemError: the file cannot be read, or its ids are out of range or not `top_k` different ones a token.
    """
    import torch

    if not file.exists():
        raise ProblemError(f"there is no routing {file}: expected {UNIFORM}, {ZIPF} or a file of JSON")
    content = files.read_bytes(file, "recording", error=ProblemError)
    try:
        recording = files.parse_json(content)
    except ValueError as e:
        raise ProblemError(
            f"routing {file} cannot be read ({e}): expected {UNIFORM}, {ZIPF} or a file of JSON such as "
            "[[0, 5], [3, 1]]"
        ) from e
    if not isinstance(recording, list) or not recording:
        raise ProblemError(f"routing {file} is no list of tokens: expected JSON such as [[0, 5], [3, 1]]")
    for token, ids in enumerate(recording):
        whole = isinstance(ids, list) and all(type(each) is int for each in ids)
        if not whole or len(ids) != top_k or len(set(ids)) != top_k:
            raise ProblemError(
                f"routing {file}: token {token} goes to {json.dumps(ids)[:80]}: expected {top_k} different experts"
            )
        if odd := [each for each in ids if not 0 <= each < experts]:
            raise ProblemError(f"routing {file}: token {token} goes to expert {odd[0]}: expected 0 to {experts - 1}")
    name = RECORDED + hashlib.sha256(json.dumps(recording).encode()).hexdigest()[:12]
    _recorded[name] = torch.tensor(recording, dtype=torch.int32)
    return name


def draw(routing: str, sizes: tuple[int, int, int], seed: int) -> torch.Tensor:
    """Draw the experts of each token: int32 [tokens, top_k] on the host, different ones for each token.

    Args:
        routing: its name.
        sizes: tokens, experts and top_k.
        seed: of the draw; of a recording it says where the draw begins.
    """
    import torch

    tokens, experts, top_k = sizes
    random = torch.Generator().manual_seed(seed)
    if check(routing) in _recorded:
        ids = _recorded[routing]
        first = int(torch.randint(len(ids), (), generator=random))
        return ids[(first + torch.arange(tokens)) % len(ids)]
    # The largest of log weights with Gumbel noise are a draw without replacement (Vieira 2014, "Gumbel-max trick").
    keys = -torch.log(-torch.log(torch.rand(tokens, experts, generator=random).clamp_(1e-12, 1 - 1e-7)))
    if routing == ZIPF:
        ranks = torch.randperm(experts, generator=random) + 1
        keys -= _EXPONENT * ranks.log()
    return keys.topk(top_k).indices.int()


def align(ids: torch.Tensor, block_m: int, experts: int, slots: int) -> Blocks:
    """Sort tokens by expert, and pad each expert's to whole blocks, as the packages' `moe_align_block_size` does.

    Args:
        ids: the experts of each token, int32 [tokens, top_k].
        block_m: positions in a block.
        experts: how many there are.
        slots: how many positions the package allocates, from which the kernel's grid follows.
    """
    import torch

    flat = ids.flatten().long()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=experts)
    blocks = (counts + block_m - 1) // block_m
    starts = blocks.cumsum(0) * block_m - blocks * block_m
    within = torch.arange(flat.numel()) - (counts.cumsum(0) - counts)[flat[order]]
    filled = torch.full((slots,), flat.numel(), dtype=torch.int32)
    filled[starts[flat[order]] + within] = order.int()
    owners = torch.zeros(-(-slots // block_m), dtype=torch.int32)
    owners[: int(blocks.sum())] = torch.repeat_interleave(torch.arange(experts), blocks).int()
    return Blocks(filled, owners, (blocks.sum() * block_m).int().reshape(1))
