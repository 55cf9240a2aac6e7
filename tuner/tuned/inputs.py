"""One call's arguments, as the sweep measures and checks them (`tuner.kernel.spec.Inputs`)."""

from __future__ import annotations

from typing import Any

from tuner.errors import KernelError
from tuner.tuned import accuracy
from tuner.tuned.arguments import Arguments, memory_of, tensors_of
from tuner.tuned.options import Options


class CallInputs:
    """The arguments of one call, and what is done to them around each launch (`tuner.sweep.verify.SelfChecked`).

    Attributes:
        arguments: the call's arguments.
        named: the same arguments by name.
        tolerance: the error accepted, None where each output's dtype has its own.
        checking: whether the next launch's outputs will be compared, so that no hook may change them afterwards.
    """

    if_unwritten = "; an output that the kernel adds to, or writes in part, belongs in reset_to_zero or restore_value"

    def __init__(self, arguments: Arguments, named: dict[str, Any], options: Options) -> None:
        """Copy what has to be restored before each launch; a kernel with a `pre_hook` zeroes by that."""
        self.arguments, self.named, self.checking = arguments, named, False
        self.tolerance = options.tolerance
        zeroed = () if options.pre_hook is not None else options.reset_to_zero
        self._zeroed = [memory for name in zeroed if (memory := memory_of(named.get(name))) is not None]
        kept = [memory for name in options.restore_value if (memory := memory_of(named.get(name))) is not None]
        self._restored = [(memory, memory.detach().clone()) for memory in kept]
        tensors = tensors_of(named)
        self._outputs = dict(_output(each, index, tensors) for index, each in enumerate(arguments.outputs))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs' names in order; a tensor that is no argument is named by its position."""
        return tuple(self._outputs)

    @property
    def output(self) -> Any:
        """The first output, for callers that know only one."""
        return next(iter(self._outputs.values()))

    @property
    def buffer(self) -> Any:
        """The first output itself, because a user's tensors have no guard bands."""
        return self.output

    @property
    def nbytes(self) -> int:
        """Bytes of all allocations that the arguments use, each counted once."""
        storages = {}
        held = tensors_of(self.arguments.held)
        for memory in (*tensors_of(self.named).values(), *self._outputs.values(), *held.values()):
            storages[memory.untyped_storage().data_ptr()] = memory.untyped_storage().nbytes()
        return max(1, sum(map(int, storages.values())))

    def prepare(self) -> None:
        """Zero and restore the arguments that the kernel adds to or changes in place."""
        import torch

        with torch.no_grad():  # an operand may be a parameter
            for tensor in self._zeroed:
                tensor.zero_()
            for tensor, original in self._restored:
                tensor.copy_(original)

    def poison(self) -> None:
        """Fill every output that is neither zeroed nor restored, so that unwritten elements can be told."""
        ready = [*self._zeroed, *(tensor for tensor, _ in self._restored)]
        for tensor in self._outputs.values():
            if not any(tensor is other for other in ready):
                accuracy.poison(tensor.detach())
        self.checking = True

    def written(self) -> dict[str, Any]:
        """Return copies of the outputs by name."""
        return {name: tensor.detach().clone() for name, tensor in self._outputs.items()}

    def error_ratios(self, expected: dict[str, Any]) -> dict[str, float]:
        """Return each output's error as a share of the accepted error.

        Raises:
            KernelError: an output differs in shape from what is expected.
        """
        self.check_shapes(expected)
        return {
            name: accuracy.error_ratio(tensor, expected[name], self.tolerance_of(tensor))
            for name, tensor in self._outputs.items()
        }

    def check_shapes(self, expected: dict[str, Any]) -> None:
        """Check that the outputs have the shapes of what is expected.

        Raises:
            KernelError: one has not.
        """
        for name, tensor in self._outputs.items():
            if tensor.shape != expected[name].shape:
                shapes = f"{list(expected[name].shape)} for {name}, which has shape {list(tensor.shape)}"
                raise KernelError(f"reference gave shape {shapes}")

    def tolerance_of(self, output: Any) -> float | None:  # noqa: ARG002
        """Return the error accepted of an output, None where its dtype says it."""
        return self.tolerance


def _output(each: Any, index: int, tensors: dict[str, Any]) -> tuple[str, Any]:
    return (each, tensors[each]) if isinstance(each, str) else (f"output {index}", each)
