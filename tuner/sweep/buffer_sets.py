"""Launches a config on one buffer set after the other, at the least cost for the host.

A capture takes hundreds of calls. What a call launched is launched again on other addresses, as repeated calls of a
program are (`tuner.launch.plan`), which takes an eighth of the time of Triton's own path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.errors import TunerError
from tuner.kernel import Inputs
from tuner.launch.plan import Recording, make_plan, recorded_launches

if TYPE_CHECKING:
    from tuner.sweep.timer import Call

_ALIGNMENT = 16
"""Whether an address is a multiple of it is part of what Triton compiles a kernel for."""


def launches_again(seen: Recording, inputs: Inputs, sets: Sequence[Inputs]) -> Call | None:
    """Return what repeats a recorded call on a set, given its index; None where other addresses are not all it takes.

    Args:
        seen: what the call launched, by which all of its output was written.
        inputs: the call's operands.
        sets: operands of the same shapes and dtypes.
    """
    recorded, *others = [_addresses(each) for each in (inputs, *sets)]
    if not recorded or any(
        [at % _ALIGNMENT for at in other] != [at % _ALIGNMENT for at in recorded] for other in others
    ):
        return None
    try:
        launches = recorded_launches(seen, recorded)
        if launches is None:
            return None
        plan = make_plan(seen, launches, inputs.output.device.index or 0)
    except (TunerError, RuntimeError, OSError):  # of the driver, or of a Triton that lacks something
        return None
    launch, stream_of, device = plan.launcher(), plan.stream_of, plan.index

    def call(index: int) -> None:
        launch(stream_of(device), *others[index])

    return call


def _addresses(inputs: Inputs) -> list[int]:
    """Where a set's tensors begin; the output stands for the allocation around it."""
    if not dataclasses.is_dataclass(inputs):
        return []
    given = (getattr(inputs, field.name) for field in dataclasses.fields(inputs) if field.name != "buffer")
    return [each.data_ptr() for each in given if hasattr(each, "data_ptr")]
