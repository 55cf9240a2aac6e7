"""One set of a kernel's arguments, as the sweep measures and checks it (`tuner.kernel.spec.Inputs`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.errors import KernelError
from tuner.tuned import accuracy
from tuner.tuned.arguments import Arguments, memory_of


class CallInputs:
    """Arguments of one call, and what is done to them around each launch.

    Attributes:
        arguments: of the call.
        named: the same by name.
        checking: whether the next launch's outputs are compared: then no hook may change them after it.
    """

    def __init__(
        self,
        arguments: Arguments,
        named: dict[str, Any],
        *,
        reset_to_zero: Sequence[str] = (),
        restore_value: Sequence[str] = (),
        tolerance: float | None = None,
    ) -> None:
        """Keep copies of what each launch is to find.

        Args:
            arguments: of the call, every output named.
            named: the same by name.
            reset_to_zero, restore_value: names, as for `triton.autotune`.
            tolerance: largest error accepted; by each output's dtype unless given.
        """
        self.arguments, self.named, self.checking = arguments, named, False
        self._tolerance = tolerance
        self._zeroed = [memory for name in reset_to_zero if (memory := memory_of(named.get(name))) is not None]
        kept = [memory for name in restore_value if (memory := memory_of(named.get(name))) is not None]
        self._restored = [(memory, memory.detach().clone()) for memory in kept]
        self._outputs = dict(_output(each, index, named) for index, each in enumerate(arguments.outputs))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Their names, in order; those of tensors that are no arguments are made up."""
        return tuple(self._outputs)

    @property
    def output(self) -> Any:
        """The first output: what a caller without names would look at."""
        return next(iter(self._outputs.values()))

    @property
    def buffer(self) -> Any:
        """The same: a user's tensors have no guard bands around them."""
        return self.output

    @property
    def nbytes(self) -> int:
        """Bytes of all memory that the arguments name, each once."""
        storages = {}
        for value in (*self.named.values(), *self._outputs.values(), *self.arguments.held.values()):
            if (memory := memory_of(value)) is not None:
                storages[memory.untyped_storage().data_ptr()] = memory.untyped_storage().nbytes()
        return max(1, sum(map(int, storages.values())))

    def prepare(self) -> None:
        """Zero and restore what the kernel adds to or changes in place."""
        import torch

        with torch.no_grad():  # an operand may be a parameter
            for tensor in self._zeroed:
                tensor.zero_()
            for tensor, original in self._restored:
                tensor.copy_(original)

    def poison(self) -> None:
        """Fill every output that a launch does not find prepared, so that an element nobody wrote shows."""
        ready = [*self._zeroed, *(tensor for tensor, _ in self._restored)]
        for tensor in self._outputs.values():
            if not any(tensor is other for other in ready):
                accuracy.poison(tensor.detach())
        self.checking = True

    def written(self) -> dict[str, Any]:
        """Copies of the outputs by name."""
        return {name: tensor.detach().clone() for name, tensor in self._outputs.items()}

    def error_ratio(self, expected: dict[str, Any]) -> float:
        """The largest error of the outputs, as a share of what is accepted.

        Raises:
            KernelError: an output and what is expected differ in shape.
        """
        worst = 0.0
        for name, tensor in self._outputs.items():
            if tensor.shape != expected[name].shape:
                shapes = f"{list(expected[name].shape)} for {name}, which has shape {list(tensor.shape)}"
                raise KernelError(f"reference gave shape {shapes}")
            worst = max(worst, accuracy.error_ratio(tensor, expected[name], self._tolerance))
        return worst


def _output(each: Any, index: int, named: dict[str, Any]) -> tuple[str, Any]:
    return (each, memory_of(named[each])) if isinstance(each, str) else (f"output {index}", each)
