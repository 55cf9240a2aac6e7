"""Runs a model's own code on the CPU with random numbers, to learn what it computes."""

from __future__ import annotations

from collections.abc import Callable

import torch


def run_on_cpu(function: Callable[..., object], *args: object) -> object:
    """What a function of a model returns without gradients and autocast; None where it raises.

    Args:
        function: A model's own code, which may raise anything: then torch keeps the layer.
        args: Its arguments, on the CPU.
    """
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
            return function(*args)
    except Exception:  # noqa: BLE001  see `function`
        return None
