"""Runs a user's `make_inputs`: on any device whatever it names, seeded, and checked against the problem asked for."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tuner.errors import KernelError, TunerError
from tuner.problem import Problem
from tuner.problem.generic_key import SOURCE
from tuner.tuned import user_errors
from tuner.tuned.arguments import Arguments, memory_of, tensors_of
from tuner.tuned.signature import Signature

MakeInputs = Callable[[Problem], Arguments]
_PARTS: tuple[tuple[str, Any, str], ...] = (
    ("grid", (Sequence, Callable), "programs along one to three axes, or a function that returns them"),
    ("args", Sequence, "a tuple"),
    ("kwargs", Mapping, "arguments by name"),
    ("outputs", Sequence, "a list"),
    ("held", Mapping, "objects by name"),
)
"""The parts of `Arguments`, of which kinds they are, and how a message says that."""
_SHAPED = 8
"""How many problems' arguments without memory are kept, since compiling and listing problems take turns."""


class ArgumentsFactory:
    """Makes the arguments of a kernel's calls.

    Attributes:
        make_inputs: the user's function; None where there is none.
        heuristics: the values of `triton.heuristics` decorators above ours, the outermost first; every call gets them.
    """

    def __init__(self, signature: Signature, outputs: Sequence[str]) -> None:
        """Keep what is needed; nothing runs yet. `outputs` are written where `Arguments.outputs` is empty."""
        self.make_inputs: MakeInputs | None = None
        self.heuristics: list[dict[str, Callable[[dict[str, Any]], Any]]] = []
        self._signature, self._outputs = signature, tuple(outputs)
        self._shaped: OrderedDict[Problem, Arguments] = OrderedDict()

    def asked(self, wanted: Problem, *, any_dtype: bool) -> Problem:
        """Complete a typed problem with what nobody types: the dtypes and alignments that `make_inputs` chooses.

        Args:
            wanted: the problem as it was typed.
            any_dtype: whether no dtype was typed.
        """
        arguments = self._anywhere(wanted)
        found = self._problem(arguments)
        self._compare(wanted, found, {name for name, _ in wanted.extras} | (set() if any_dtype else {"dtype"}))
        self._keep(found, arguments)
        return found

    def shaped(self, problem: Problem) -> Arguments:
        """Return the arguments of a problem's call, without memory where possible; they must not be written."""
        if problem not in self._shaped:
            arguments = self._anywhere(problem)
            self._compare(problem, self._problem(arguments), None)
            self._keep(problem, arguments)
        self._shaped.move_to_end(problem)
        return self._shaped[problem]

    def made(self, problem: Problem, device: str, seed: int) -> Arguments:
        """Make the arguments of a problem's call on a torch device, with a seed.

        Raises:
            KernelError: there is no `make_inputs`, it failed, or it made another problem.
        """
        arguments = self._run(problem, device, seed)
        self._compare(problem, self._problem(arguments), None)
        return arguments

    def _keep(self, problem: Problem, arguments: Arguments) -> None:
        self._shaped[problem] = arguments
        while len(self._shaped) > _SHAPED:
            self._shaped.popitem(last=False)

    def _anywhere(self, problem: Problem) -> Arguments:
        try:
            return self._run(problem, "meta", 0)
        except KernelError:
            return self._run(problem, "cpu", 0)  # it may look at values; an error of this attempt is reported

    def _run(self, problem: Problem, device: str, seed: int) -> Arguments:
        import torch

        op = self._signature.op
        if self.make_inputs is None:
            raise KernelError(
                f"{op} has no make_inputs, so nothing is known to measure it on: give one, @{op}.make_inputs above a "
                "function from a Problem to tuner.Arguments, or tuner.tuned(make_inputs=...)"
            )
        try:
            with _everything_on(device), _seeded(device, seed):
                arguments = self.make_inputs(problem)
        except (TunerError, torch.cuda.OutOfMemoryError, MemoryError):
            raise
        except Exception as e:
            # A user's function may raise anything. This problem then cannot be tuned, but others can.
            said = user_errors.said(self.make_inputs, e)
            raise KernelError(f"make_inputs of {op} failed for {problem}: {said}") from e
        if not isinstance(arguments, Arguments):
            raise KernelError(f"make_inputs of {op} returned a {type(arguments).__name__}: expected tuner.Arguments")
        _check_parts(op, arguments)
        return self._completed(arguments)

    def _completed(self, arguments: Arguments) -> Arguments:
        """Add what heuristics above the decorator set, and complete and check the outputs."""
        kwargs = dict(arguments.kwargs)
        for values in self.heuristics:
            for name, heuristic in values.items():
                kwargs[name] = heuristic(self._signature.named(arguments.args, kwargs))
        op, outputs = self._signature.op, tuple(arguments.outputs) or self._outputs
        if not outputs:
            raise KernelError(
                f"make_inputs of {op} names no outputs, and nothing wins that is not compared: outputs=[...]"
            )
        tensors = tensors_of(self._signature.named(arguments.args, kwargs))
        for name in outputs:
            if (name not in tensors) if isinstance(name, str) else (memory_of(name) is None):
                known = ", ".join(tensors) or "none"
                raise KernelError(f"make_inputs of {op}: output {name!r} is no tensor of the call: it has {known}")
        return Arguments(arguments.grid, tuple(arguments.args), kwargs, outputs, dict(arguments.held))

    def _problem(self, arguments: Arguments) -> Problem:
        return self._signature.problem(self._signature.named(arguments.args, arguments.kwargs))

    def _compare(self, wanted: Problem, found: Problem, names: set[str] | None) -> None:
        """Raise where `make_inputs` made another problem than was wanted; `names` limits what is compared."""
        asked = {**dict(wanted.extras), "dtype": wanted.a_dtype}
        theirs = {**dict(found.extras), "dtype": found.a_dtype}
        names = asked.keys() | theirs.keys() if names is None else names
        for name in sorted(names - {SOURCE}):  # a row of before sources were recorded has none
            if asked.get(name) != theirs.get(name):
                raise KernelError(
                    f"make_inputs of {self._signature.op} made {found} for {wanted}: {name} is "
                    f"{theirs.get(name, 'not there')}, expected {asked.get(name, 'none')}: heed "
                    "it there, or leave it out of the problem"
                )


def _check_parts(op: str, arguments: Arguments) -> None:
    """Raise where a part is of a wrong kind: as when the kernel's own arguments are given in the place of these."""
    for name, kind, expected in _PARTS:
        value = getattr(arguments, name)
        if not isinstance(value, kind) or isinstance(value, str):
            raise KernelError(
                f"make_inputs of {op}: {name} is a {type(value).__name__}: expected {expected}; write "
                "tuner.Arguments(grid=..., args=(...), outputs=[...])"
            )


@contextlib.contextmanager
def _everything_on(device: str) -> Iterator[None]:
    """Make every tensor on a device, even where a user's code names another."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Elsewhere(TorchFunctionMode):  # type: ignore[misc]  # torch is not seen by the type checker
        """Replaces any device that is named."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func in (torch.Tensor.cuda, torch.Tensor.cpu):
                return args[0].to(device)
            if kwargs.get("device") is not None:
                kwargs["device"] = device
            if func is torch.Tensor.to:
                args = tuple(device if isinstance(arg, (str, torch.device)) else arg for arg in args)
            return func(*args, **kwargs)

    with torch.device(device), Elsewhere():
        yield


@contextlib.contextmanager
def _seeded(device: str, seed: int) -> Iterator[None]:
    """Seed torch; on the CPU, which may be a user's process, restore its generator afterwards."""
    import torch

    if device == "cuda":
        torch.manual_seed(seed)
        yield
    else:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
