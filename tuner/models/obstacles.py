"""Reasons why `accelerate` leaves a layer on torch, those that several kinds of layers share.

They are worded so that they fit one layer and many: `accelerate` counts the layers with the same reason.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import nn

from tuner.hardware import device as devices
from tuner.kernels.ops import arguments
from tuner.launch.call_cache import PLAIN_TENSORS
from tuner.lookup import evidence, lookup
from tuner.models.class_patch import PatchedLayer, is_patched
from tuner.problem import Problem

_BY_DEVICE_MAP = " by Hugging Face's accelerate, for a device_map or offloading"


def class_obstacle(layer: nn.Module) -> str | None:
    """That a layer's forward or class was changed by somebody else, or None."""
    if "forward" in vars(layer):
        return f"the forward was replaced{_BY_DEVICE_MAP if hasattr(layer, '_hf_hook') else ''}"
    if isinstance(layer, PatchedLayer) and not is_patched(layer):
        return f"{type(layer).__name__} is a subclass made after accelerate()"
    return None


def tensor_obstacle(weights: Iterable[torch.Tensor]) -> str | None:
    """That weights are of classes that compute in their own way, or None."""
    odd = {type(each).__name__ for each in weights if type(each) not in PLAIN_TENSORS}
    return f"the weights are of class {', '.join(sorted(odd))}" if odd else None


def device_obstacle(device: torch.device) -> str | None:
    """That no kernel runs on a device, or None."""
    return None if arguments.has_kernels(device) else f"on {device.type}: move the model to a GPU first"


def table_obstacle(family: Problem, index: int | None) -> str | None:
    """That no table of a CUDA device has a problem's family, which "auto" asks for, or None."""
    return _table_obstacle(lookup.resolver(), family, index)


@functools.lru_cache(maxsize=1024)
def _table_obstacle(_of: object, family: Problem, index: int | None) -> str | None:
    device = devices.current(index)
    if evidence.is_tuned(family, device):
        return None
    return f"no table of {device.slug} has the family: `tuner model` lists what to tune"


lookup.on_change(_table_obstacle.cache_clear)
