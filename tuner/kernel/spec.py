"""The contract of a kernel: what the search, the runtime and the tests ask of one implementation of an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.problem import Problem

if TYPE_CHECKING:
    import torch


class Inputs(Protocol):
    """One set of operands and the output a launch writes."""

    @property
    def output(self) -> torch.Tensor:
        """What `launch` writes; the tuner poisons it before a check."""
        ...

    @property
    def buffer(self) -> torch.Tensor:
        """The one contiguous allocation `output` lies inside, guard bands around it."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the set: how much of the L2 one call touches."""
        ...


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of an op, as its module describes it. Found by the entry-point group `tuner.kernels`.

    Attributes:
        op: the operation it implements ("matmul").
        name: its name, unique within the op; a config names its kernel.
        version: raised when old timings no longer speak for it.
        supports: why it cannot serve a problem on a device (a sentence), or None when it can.
        space: its search space for a problem on a device.
        default_config: the config to use when nobody tuned the problem: a formula.
        make_inputs: operands N(0, 1) of a problem on a torch device, seeded; the output lies inside guard bands.
        launch: write `inputs.output` by a config; all that the op does is inside (zeroing, reduction, copies).
        vendor: the same result by torch's own library, into the same output; what winners are compared with. Raises
            NotImplementedError where that library has nothing for the problem.
        reference: the result in float64, from the inputs; shape of the output.
        tolerance: largest error accepted, as `verify.error` defines it.
        compile: compile for the active driver's target without launching; returns Triton's CompiledKernel.
        compile_class: a string equal for two (problem, config) pairs exactly when they share a binary.
        simplicity: sorts configs from simplest: of a tie the simplest wins.
        source_hash: hash of the kernel's source, to notice a change nobody gave a version.
        shared_bytes: shared memory that one block of a config's binary takes, predicted, as its space's rules do; None
            where nothing is predicted.
        estimate_us: how long a config takes, by a model, microseconds; None where there is none. It ranks configs
            before any is compiled, and weighs a neighbour's winner against the formula where nobody tuned a problem;
            no trial and no winner is decided by it.
        runtime_parameters: parameters passed at launch, not compiled in: configs that differ in nothing else share a
            binary.
        precedence: how early its `default_config` is asked for where nobody tuned a problem: of all kernels that serve
            it the highest comes first; of equals the one whose config its `estimate_us` says is faster.
        unmeasurable: why a problem that it supports cannot be measured (a sentence), or None.
        read: the problem that cells describe, by the names of its key, of an op whose problems have no M, N and K
            (`tuner.problem.generic_key`); None of all others.
        borrows: whether a lookup may take the config of another key of such an op.
        origin: how another process imports the kernel, see `tuner.reference`; "" where its entry point says so.
        flops, bytes_moved: floating-point operations, and the fewest bytes of device memory.
    """

    op: str
    name: str
    version: int
    supports: Callable[[Problem, Device], str | None]
    space: Callable[[Problem, Device], SearchSpace]
    default_config: Callable[[Problem, Device], Config]
    make_inputs: Callable[[Problem, str, int], Inputs]
    launch: Callable[[Any, Config], None]
    vendor: Callable[[Any], None]
    reference: Callable[[Any], torch.Tensor]
    tolerance: Callable[[Problem], float]
    compile: Callable[[Problem, Config], Any]
    compile_class: Callable[[Problem, Config], str]
    simplicity: Callable[[Config], tuple[Any, ...]]
    source_hash: Callable[[], str]
    shared_bytes: Callable[[Config, Problem, Device], int] | None = None
    estimate_us: Callable[[Config, Problem, Device], float] | None = None
    runtime_parameters: tuple[str, ...] = ()
    precedence: Callable[[Problem, Device], int] = lambda _problem, _device: 0
    unmeasurable: Callable[[Problem], str | None] = lambda _problem: None
    read: Callable[[Mapping[str, str]], Problem] | None = None
    borrows: bool = True
    origin: str = ""
    flops: Callable[[Problem], int] = lambda problem: problem.flops
    bytes_moved: Callable[[Problem], int] = lambda problem: problem.bytes_moved
