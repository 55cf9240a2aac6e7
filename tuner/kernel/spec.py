"""The contract of a kernel: what the search, the runtime and the tests ask of one implementation of an op."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tuner.errors import BrokenKernelError, KernelError, UsageError
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.problem import Problem

if TYPE_CHECKING:
    import torch

_ANSWERS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "unserved": ((str, type(None)), "None, or a sentence that says why it cannot serve the problem"),
    "unmeasurable": ((str, type(None)), "None, or a sentence that says why the problem cannot be measured"),
    "space": (SearchSpace, "a SearchSpace that has its name"),
    "default_config": (Config, "a Config that has its name"),
    "precedence": ((int, float), "an integer"),
    "simplicity": (tuple, "a tuple"),
    "source_hash": (str, "a string"),
    "compile_class": (str, "a string"),
    "estimate_us": ((int, float, type(None)), "microseconds, or None"),
    "estimates_us": (Mapping, "a mapping from configs to microseconds"),
}
"""What functions of a spec return, as a type and in words."""
_SIGNIFICAND_BITS = {"float32": 11, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}
"""Significant bits that a default tolerance counts; for float32 those of TF32, which `tl.dot` uses by default."""


class Inputs(Protocol):
    """One set of operands and the output that a launch writes."""

    @property
    def output(self) -> torch.Tensor:
        """What `launch` writes; the tuner poisons it before a check."""
        ...

    @property
    def buffer(self) -> torch.Tensor:
        """The contiguous allocation that `output` lies inside, with guard bands around it."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the set, which is how much of the L2 one call touches."""
        ...


@dataclass(frozen=True, slots=True)
class Invariance:
    """How the results of a kernel for problems with `invariant` are checked bit for bit.

    The kernel's space and default config keep to one order of sums for all problems that differ in M alone.

    Attributes:
        witness: returns what every config must write, bit for bit: new memory of the output's shape and dtype, written
            by one config that does not depend on M.
        rows: returns the inputs of the same problem with the first rows alone, with an output of their own.
    """

    witness: Callable[[Any], torch.Tensor]
    rows: Callable[[Any, int], Any]


def _no_vendor(_inputs: Any) -> None:
    raise NotImplementedError("no library is known to compute this")


def _tolerance(problem: Problem) -> float:
    bits = _SIGNIFICAND_BITS.get(problem.out_dtype)
    return 0.0 if bits is None else 16 * 2.0**-bits


def _no_compile(problem: Problem, config: Config) -> Any:
    raise KernelError(f"{config.kernel} of {problem.op} is compiled by its launch only: its KernelSpec has no compile")


def _source_hash(launch: Callable[..., Any], *judges: Callable[..., Any]) -> str:
    """Hash the file that defines a launch, or the function itself where there is no such file; and those of others."""
    try:
        source = inspect.getsource(inspect.getmodule(launch) or launch)
    except (OSError, TypeError):
        source = repr(launch)
    others = {name: text for name, text in sources_of(judges).items() if text != source}
    return hashlib.sha256("".join([source, *others.values()]).encode()).hexdigest()


def sources_of(functions: Iterable[Callable[..., Any] | None]) -> dict[str, str]:
    """Return the text of each file that defines one of these functions, by its module, as far as there is one."""
    found = {}
    for name in dict.fromkeys(getattr(function, "__module__", None) for function in functions):
        if name in sys.modules:
            with contextlib.suppress(OSError, TypeError):
                found[name] = inspect.getsource(sys.modules[name])
    return found


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of an op, found through the entry-point group `tuner.kernels`.

    The fields up to `reference` are required; the others have defaults.

    Attributes:
        op: the operation it implements ("matmul").
        name: its name, unique within the op; a config names its kernel.
        version: an integer from 1 on; raise it when old timings no longer hold for the kernel.
        supports: returns why it cannot serve a problem on a device (a sentence), or None if it can.
        space: returns its search space for a problem on a device.
        default_config: returns the config for an untuned problem, by a formula.
        make_inputs: makes operands N(0, 1) of a problem on a torch device, seeded; the output lies inside guard bands.
        launch: writes `inputs.output` by a config, and includes all steps of the op (zeroing, reduction, copies).
        reference: returns the result in float64, in the output's shape.
        vendor: writes the same result by torch's own library into the same output, or returns it in new memory if the
            library takes no output; winners are timed beside it. It raises NotImplementedError, as the default does,
            if that library cannot compute the problem.
        tolerance: returns the largest error accepted, as `tuner.sweep.verify.error` defines it. The default is 16
            roundings of the output's dtype, and 0 for integers.
        compile: compiles for the active driver's target without launching, and returns Triton's CompiledKernel. Without
            it, configs are compiled one by one where they are measured, and cannot be inspected or shipped as binaries.
        compile_class: returns a string that is equal for two (problem, config) pairs exactly if they share a binary.
            By default no two pairs share one.
        simplicity: returns a sort key for configs; the least is the simplest, which wins a tie. By default all are
            equally simple, and their canonical order decides.
        source_hash: returns a hash of the kernel's source, which shows changes that did not raise the version. By
            default the files that define `launch`, `reference` and `make_inputs` are hashed. Wrong results of another
            source are tried again.
        former_source_hash: returns what `source_hash` did in databases that name no source in their problems; "" where
            there are none.
        shared_bytes: predicts the shared memory of one block of a config's binary, bytes, as its space's rules do; None
            if nothing is predicted.
        estimate_us: predicts a config's time, microseconds; None without a model. It ranks configs before any is
            compiled, and chooses among the kernels' default configs for an untuned problem. It decides no trial and no
            winner.
        estimates_us: predicts the same for many configs at once, if that is faster than one by one.
        runtime_parameters: parameters passed at launch, not compiled in: configs that differ only in these share a
            binary.
        precedence: returns a rank for an untuned problem: of the kernels that serve it, the one with the highest rank
            gives the default config. Of equal ranks, the one whose config `estimate_us` predicts to be faster does.
        unmeasurable: returns why a problem that it supports cannot be measured (a sentence), or None.
        has_inputs: returns whether there is a `make_inputs`, without which `tuner run` measures nothing.
        read: for an op without M, N and K (`tuner.problem.generic_key`), makes a problem from strings by the names of
            its key; None for all other ops.
        borrows: whether a lookup may use the config of another key of such an op.
        origin: how another process imports the kernel, see `tuner.reference`; "" if its entry point says so.
        invariance: how bits are checked if it serves problems with `invariant`; None if it does not.
        flops, bytes_moved: return the floating-point operations and the fewest bytes of device memory of a problem.

    Raises:
        UsageError: the version is no such number.
    """

    op: str
    name: str
    version: int
    supports: Callable[[Problem, Device], str | None]
    space: Callable[[Problem, Device], SearchSpace]
    default_config: Callable[[Problem, Device], Config]
    make_inputs: Callable[[Problem, str, int], Inputs]
    launch: Callable[[Any, Config], None]
    reference: Callable[[Any], torch.Tensor]
    vendor: Callable[[Any], Any] = _no_vendor
    tolerance: Callable[[Problem], float] = _tolerance
    compile: Callable[[Problem, Config], Any] = _no_compile
    compile_class: Callable[[Problem, Config], str] = lambda problem, config: f"{problem} {config.digest}"
    simplicity: Callable[[Config], tuple[Any, ...]] = lambda _config: ()
    source_hash: Callable[[], str] = None  # type: ignore[assignment]  # set below: the default needs `launch`
    former_source_hash: Callable[[], str] = lambda: ""
    shared_bytes: Callable[[Config, Problem, Device], int] | None = None
    estimate_us: Callable[[Config, Problem, Device], float] | None = None
    estimates_us: Callable[[Iterable[Config], Problem, Device], Mapping[Config, float]] | None = None
    runtime_parameters: tuple[str, ...] = ()
    precedence: Callable[[Problem, Device], int] = lambda _problem, _device: 0
    unmeasurable: Callable[[Problem], str | None] = lambda _problem: None
    has_inputs: Callable[[], bool] = lambda: True
    read: Callable[[Mapping[str, str]], Problem] | None = None
    borrows: bool = True
    origin: str = ""
    invariance: Invariance | None = None
    flops: Callable[[Problem], int] = lambda problem: problem.flops
    bytes_moved: Callable[[Problem], int] = lambda problem: problem.bytes_moved

    def __post_init__(self) -> None:
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 1:
            which = f"the version of the kernel {self.op}/{self.name}"
            raise UsageError(f"{which} must be an integer from 1 on, got {self.version!r:.60}")
        if self.source_hash is None:
            by_files = functools.partial(_source_hash, self.launch, self.reference, self.make_inputs)
            object.__setattr__(self, "source_hash", by_files)

    def unserved(self, problem: Problem, device: Device) -> str | None:
        """Return why it cannot serve a problem on a device (a sentence), or None when it can."""
        if self.invariance is None and problem.invariant:
            return "it keeps to no one order of sums, as invariant asks"
        return self.supports(problem, device)

    def check_answer(self, name: str, answer: object) -> None:
        """Raise BrokenKernelError where what a function of this spec returned is none of what it may return."""
        expected, words = _ANSWERS.get(name, (object, ""))
        if not isinstance(answer, expected):
            raise self.broken(name, f"returned {answer!r:.60}: expected {words}")
        if isinstance(answer, (Config, SearchSpace)) and answer.kernel != self.name:
            raise self.broken(name, f"returned one of the kernel {answer.kernel!r:.60}: expected {words}")

    def broken(self, name: str, found: str) -> BrokenKernelError:
        """Return the error for one of its functions, and what was found of it."""
        return BrokenKernelError.of("supports" if name == "unserved" else name, f"{self.op}/{self.name}", found)

    @property
    def compiles_ahead(self) -> bool:
        """Whether its configs can be compiled without a launch."""
        return self.compile is not _no_compile
