"""Captured calls as problems of a kernel: what `tuner run --captured` measures, checks and stores.

A kernel is tuned as one under `tuner.tuned` is, with arguments that are made after a captured call. What it should
compute is not known, so its first config says it. Children find the kernel by its origin, which names the folders.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tuner import reference
from tuner.adopt import calls as captured
from tuner.adopt.calls import Call
from tuner.adopt.inputs import ReplayedInputs, expected
from tuner.adopt.kernel import WideList, options_of
from tuner.adopt.values import Decoder
from tuner.errors import KernelError, TunerError, in_short
from tuner.launch import compat
from tuner.problem import Problem
from tuner.tuned.arguments import Arguments, are_addresses, tensors_of
from tuner.tuned.spec import spec_of
from tuner.tuned.tuned_kernel import TunedKernel


class ReplayedKernel(TunedKernel):
    """A kernel of another library, with the calls of it that folders hold.

    Attributes:
        folders: where they were captured.
        where: where the kernel is imported from.
        calls: its calls by problem.
        steering: by problem, the numbers of the integer tensors that it writes: they may steer the next launch.
        widen: whether configs beside the library's own are tried.
    """

    def __init__(self, autotuner: Any, where: str, folders: Sequence[Path]) -> None:
        """Take over what the autotuner was given."""
        self.folders, self.where = folders, where
        self.calls: dict[Problem, Call] = {}
        self.steering: dict[Problem, set[int]] = {}
        super().__init__(autotuner.fn, options_of(autotuner), autotuner.configs)
        self.config_list: WideList = WideList(self.options.name, autotuner.configs)
        self.widen = False
        self.arguments_factory.make_inputs = self._make
        self.spec = dataclasses.replace(
            spec_of(self),
            make_inputs=lambda problem, device, seed: ReplayedInputs(self, problem, device, seed),
            reference=lambda inputs: expected(self, inputs),
        )

    @property
    def origin(self) -> str:
        """How another process finds the kernel with its calls."""
        return f"{__name__}:{'|'.join(_word(str(folder)) for folder in self.folders)}.{_word(self.where)}"

    def add(self, call: Call) -> Problem:
        """Take a call, and return its problem.

        Raises:
            KernelError: it is damaged, or the kernel takes other arguments now.
        """
        import torch

        captured.check(call, self)
        try:
            with torch.device("meta"):
                arguments = arguments_of(call, self)
            problem = self.signature.problem(self.signature.named(arguments.args, arguments.kwargs))
            has_addresses = holds_addresses(call)
        except Exception as e:  # whatever a damaged file makes of torch and Triton
            raise KernelError(f"a captured call of {call.kernel} cannot be made again ({in_short(e)})") from e
        if not arguments.outputs:
            raise KernelError(f"no argument of {call.kernel} is a tensor, so no config can be told right: left alone")
        if has_addresses:
            raise KernelError(
                f"an argument of {call.kernel} holds addresses, which nothing can be made for: left alone"
            )
        self.calls[problem] = call
        return problem

    def candidates(self, problem: Problem) -> list[Any]:
        """Return the configs to try, which are more than the library's own where they are widened."""
        found = super().candidates(problem)
        if not self.widen:
            return found
        kept = [captured.parameters(self.config_list, config.kwargs) for config in found]
        wider = self.config_list.neighbours
        return [*found, *(each for each in wider if captured.parameters(self.config_list, each.kwargs) in kept)]

    def _make(self, problem: Problem) -> Arguments:
        call = self.calls.get(problem)
        if call is None:
            raise KernelError(f"no call of it was captured in {' and '.join(map(str, self.folders))} for {problem}")
        return arguments_of(call, self)


def arguments_of(call: Call, kernel: TunedKernel) -> Arguments:
    """Make the arguments of a call on torch's current device."""
    decoder = Decoder(call.storages)
    args = [decoder.value(each) for each in call.args]
    kwargs = {name: decoder.value(each) for name, each in call.kwargs.items()}
    named = kernel.signature.named(args, kwargs)
    outputs = list(tensors_of(named))
    contents = decoder.kept, decoder.unkept, decoder.floats
    return Arguments(_Grid(call, kernel), args, kwargs, outputs, {"contents": contents})


def holds_addresses(call: Call) -> bool:
    """Return whether an integer tensor of a call holds addresses."""

    def holds(each: Any) -> bool:
        if not isinstance(each, Mapping):
            return False
        if "tuple" in each or "named" in each:
            return any(map(holds, each.get("tuple") or each.get("named", ())))
        tensor = each.get("tensor") or each.get("descriptor", {}).get("base") or {}
        return are_addresses(tensor.get("values", ()))

    return any(map(holds, (*call.args, *call.kwargs.values())))


class _Grid:
    """The grid of a call by the parameters of a config."""

    def __init__(self, call: Call, kernel: TunedKernel) -> None:
        self._known = kernel.config_list
        self._names = sorted({name for pairs, _ in call.grids for name in pairs})
        self._grids = {str(dict(sorted(pairs.items()))): tuple(programs) for pairs, programs in call.grids}

    def __call__(self, meta: Mapping[str, Any]) -> Sequence[int]:
        given = {name: meta[name] for name in self._names if name in meta}
        found = self._grids.get(str(captured.parameters(self._known, given)))
        if not found:
            raise KernelError(f"no grid was captured for {given}: capture it again")
        return found


class Folders:
    """The kernels of the calls that folders hold, by where they are imported from.

    Attributes:
        problems: what was captured, in the order of the files.
        faults: in one line each, what cannot be replayed and why.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        """Read the calls, import their kernels and register them in this process."""
        self.kernels: dict[str, ReplayedKernel] = {}
        self.problems: list[Problem] = []
        found, self.faults = captured.load(folders)
        lost: set[str] = set()
        for call in found:
            if call.kernel in lost:
                continue
            try:
                if call.kernel not in self.kernels:
                    self.kernels[call.kernel] = ReplayedKernel(autotuner_at(call.kernel), call.kernel, folders)
                self.problems.append(self.kernels[call.kernel].add(call))
            except TunerError as e:
                self.faults.append(str(e))
                if call.kernel not in self.kernels:
                    lost.add(call.kernel)
        self.problems = list(dict.fromkeys(self.problems))
        for kernel in self.kernels.values():
            kernel.register()

    def __getattr__(self, name: str) -> ReplayedKernel:
        try:
            return self.kernels[unquote(name)]
        except KeyError:
            raise AttributeError(name) from None


def autotuner_at(where: str) -> Any:
    """Import the autotuner of a kernel, which may lie below `triton.heuristics`.

    Raises:
        KernelError: it is not there.
    """
    try:
        found = reference.load(where)
    except TunerError as e:
        raise KernelError(f"{where} was captured and is not there any more: {e}") from e
    while found is not None and not isinstance(found, compat.Autotuner):
        found = getattr(found, "fn", None)
    if found is None or isinstance(found, TunedKernel):
        raise KernelError(f"{where} was captured under triton.autotune and is not under it now: capture it again")
    return found


def _word(text: str) -> str:
    """Return a text as one part of a reference, which has no dot and no colon."""
    return quote(text, safe="/").replace(".", "%2E")


@functools.cache
def _opened(folders: tuple[Path, ...]) -> Folders:
    return Folders(folders)


def open_folders(folders: Iterable[Path]) -> Folders:
    """Return the kernels of folders, which are read once in a process.

    Several folders are opened together: a kernel that is registered twice would know the calls of one of them alone.
    """
    return _opened(tuple(dict.fromkeys(folder.absolute() for folder in folders)))


def __getattr__(name: str) -> Folders:
    """Return folders by their names in an origin: another process imports `tuner.adopt.replay:FOLDER|FOLDER.KERNEL`."""
    folders = [Path(unquote(each)) for each in name.split("|")]
    if not all(folder.is_absolute() for folder in folders):
        raise AttributeError(name)
    return open_folders(folders)
