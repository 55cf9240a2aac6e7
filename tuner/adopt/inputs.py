"""The arguments of a captured call as the sweep measures and checks them, and what its outputs should be.

Nobody says what the kernel writes. So the first config is launched on random contents, and every tensor whose bytes it
changed is compared from then on. A tensor that is written gets its contents back before each check, which tell elements
that were never written as well as NaN would, and which a kernel may read.

Nor does anybody say what is put into it. A recurrence that takes decays and small matrices makes of N(0, 1) numbers
that overflow, or in which two right configs differ. So floats are made smaller until roundings of them change little
(docs/adopt.md, "What is compared").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tuner.errors import KernelError
from tuner.problem import Problem
from tuner.tuned import accuracy
from tuner.tuned.arguments import is_same
from tuner.tuned.inputs import CallInputs
from tuner.tuned.spec import expected_from_first_config

if TYPE_CHECKING:
    from tuner.adopt.replay import ReplayedKernel

SPREADS = (1.0, 2.0**-3, 2.0**-6)
"""Standard deviations of floats, tried in this order."""
STEADY = 0.5
"""The share of the accepted error that roundings of the floats may cause."""


class ReplayedInputs(CallInputs):
    """The arguments of one captured call, filled anew.

    Attributes:
        unkept: the integer tensors whose values were not kept.
    """

    def __init__(self, kernel: ReplayedKernel, problem: Problem, device: str, seed: int) -> None:
        """Make the arguments on a torch device, with a seed."""
        arguments = kernel.arguments_factory.made(problem, device, seed)
        super().__init__(arguments, kernel.signature.named(arguments.args, arguments.kwargs), kernel.options)
        kept, self.unkept, self._floats = arguments.held["contents"]
        self._integers = [(tensor, tensor.clone()) for tensor in (*kept, *self.unkept)]
        self._steering = kernel.steering.setdefault(problem, set())
        self._originals: dict[int, tuple[Any, Any]] = {}

    def prepare(self) -> None:
        """Zero and restore what the library says, and the integers that the kernel writes: they may steer it."""
        super().prepare()
        for number in self._steering:
            tensor, original = self._integers[number]
            tensor.copy_(original)

    def keep(self) -> None:
        """Keep what all memory of the call holds now."""
        self._originals = {}
        for tensor in self._outputs.values():
            if (memory := _bytes_below(tensor)).data_ptr() not in self._originals:
                self._originals[memory.data_ptr()] = memory, memory.clone()

    def poison(self) -> None:
        """Give all memory back what it held."""
        for memory, original in self._originals.values():
            memory.copy_(original)
        self.checking = True

    def scale_floats(self, factor: float) -> None:
        """Multiply floats of more than 8 bits, as `keep` found them, by a factor."""
        self.poison()
        for each in self._floats:
            each.mul_(factor)
        self.keep()

    @contextmanager
    def rounded_floats(self) -> Iterator[None]:
        """Have floats of more than 8 bits differ by up to one rounding within the block."""
        import torch

        before = self._originals
        self.poison()
        for each in self._floats:
            rounding = 2.0 ** -accuracy.significant_bits(each.dtype)
            for part in each.split(1 << 24):
                part.mul_(1 + rounding * (2 * torch.rand(part.shape, device=part.device) - 1))
        self.keep()
        yield
        self._originals = before
        self.poison()

    def compare_written(self) -> tuple[str, ...]:
        """Compare from here on what was changed since `keep`, and small tensors of integers, which may hold the same.

        Returns:
            The names of those that were changed.
        """
        changed = {name for name, tensor in self._outputs.items() if not self._is_as_kept(tensor)}
        self._steering.update(
            number for number, (tensor, original) in enumerate(self._integers) if not is_same(tensor, original)
        )
        integers = {id(tensor) for tensor, _ in self._integers[: len(self._integers) - len(self.unkept)]}
        compared = {name: each for name, each in self._outputs.items() if name in changed or id(each) in integers}
        self._outputs = compared
        addresses = {_bytes_below(tensor).data_ptr() for tensor in compared.values()}
        self._originals = {at: each for at, each in self._originals.items() if at in addresses}
        return tuple(sorted(changed))

    def tolerance_of(self, output: Any) -> float | None:
        """Return what the coarsest float of the call allows: a kernel rounds to it on the way to a finer output."""
        if not output.is_floating_point():
            return None
        return max(accuracy.accepted(each.dtype) for each in (output, *self._floats) if each.is_floating_point())

    def fill_unkept(self, value: int) -> None:
        """Have the integers that were not kept hold one value, before each launch as well."""
        for tensor, original in self._integers[len(self._integers) - len(self.unkept) :]:
            tensor.fill_(value)
            original.fill_(value)
        self.keep()

    def is_unkept(self, output: str) -> bool:
        """Return whether an output holds integers that were not kept."""
        return any(self._outputs[output] is each for each in self.unkept)

    def _is_as_kept(self, tensor: Any) -> bool:
        import torch

        _, original = self._originals[_bytes_below(tensor).data_ptr()]
        view = original.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        return is_same(tensor, torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(*view))


def expected(kernel: ReplayedKernel, inputs: ReplayedInputs) -> dict[str, Any]:
    """Return what the first config that runs writes, once it is known that this can be compared with other configs'.

    Raises:
        KernelError: no config runs, the kernel writes nothing, or what it writes depends on more than was kept.
    """
    op = kernel.where
    inputs.keep()
    _choose_spread(kernel, inputs)
    expected_from_first_config(kernel, inputs)
    if not inputs.compare_written():
        raise KernelError(f"{op} writes none of its arguments, so no config can be told right: it is left alone")
    wanted = inputs.written()
    for name, tensor in wanted.items():
        if tensor.is_floating_point() and tensor.numel() and not bool(tensor.float().isfinite().any()):
            raise KernelError(
                f"{op} writes nothing finite into {name} where its inputs are random: its result depends on data that "
                "is not kept, and it is left alone"
            )
    if _differs(wanted, expected_from_first_config(kernel, inputs), inputs):
        raise KernelError(f"{op} writes other results from launch to launch: no config can be told right")
    if inputs.unkept:
        inputs.fill_unkept(1)
        other = expected_from_first_config(kernel, inputs)
        inputs.fill_unkept(0)
        # What a launch leaves of integers that were not kept differs anyway, unless it writes nothing else.
        names = [name for name in wanted if not inputs.is_unkept(name)]
        if _differs({name: wanted[name] for name in names or wanted}, other, inputs):
            sizes = ", ".join(f"{each.numel()} {each.dtype}" for each in inputs.unkept).replace("torch.", "")
            raise KernelError(f"the result of {op} depends on integers that were not kept ({sizes}): it is left alone")
    return wanted


def _choose_spread(kernel: ReplayedKernel, inputs: ReplayedInputs) -> None:
    """Make floats as small as it takes for their roundings not to matter; leave them where no spread does that."""
    now = SPREADS[0]
    for spread in SPREADS:
        inputs.scale_floats(spread / now)
        now = spread
        if _response(kernel, inputs) <= STEADY:
            return
    inputs.scale_floats(SPREADS[0] / now)


def _response(kernel: ReplayedKernel, inputs: ReplayedInputs) -> float:
    """Return what roundings of the floats change in the results, as a share of the accepted error."""
    as_they_are = expected_from_first_config(kernel, inputs)
    if not all(bool(each.float().isfinite().all()) for each in as_they_are.values() if each.is_floating_point()):
        return math.inf
    with inputs.rounded_floats():
        rounded = expected_from_first_config(kernel, inputs)
    return _largest_error(as_they_are, rounded, inputs)


def _differs(wanted: Mapping[str, Any], found: Mapping[str, Any], inputs: ReplayedInputs) -> bool:
    return _largest_error(wanted, found, inputs) > 1


def _largest_error(wanted: Mapping[str, Any], found: Mapping[str, Any], inputs: ReplayedInputs) -> float:
    return max(accuracy.error_ratio(found[name], each, inputs.tolerance_of(each)) for name, each in wanted.items())


def _bytes_below(tensor: Any) -> Any:
    """Return the whole memory that a tensor lies in, as bytes."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
