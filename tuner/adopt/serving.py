"""Chooses the config of a call of an adopted kernel: its winner, or what `on_miss` says. What ships is not compiled."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from tuner.adopt import compiles, hook
from tuner.adopt.kernel import is_of, kernel_of, op_of
from tuner.errors import TunerError, first_line
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.launch import active_driver, compile_cache
from tuner.launch.binaries import NotShippedError, ShippedBinaries
from tuner.launch.failure import is_no_fault
from tuner.lookup import lookup as lookups
from tuner.lookup import strict
from tuner.lookup.decision import Decision, Match
from tuner.problem import Problem
from tuner.tuned import traced
from tuner.tuned.arguments import Arguments, of_the_kernel
from tuner.tuned.first_launch import failures_of_a_config, launch_first_that_runs
from tuner.tuned.tuned_kernel import TunedKernel

ON_MISS = ("autotune", "nearest", "first")
TUNED, NOT_TUNED, LEFT = "tuned", "not tuned", "left"
"""What a key got: its winner, another config by `on_miss`, or what Triton decides."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Shipped:
    """Finds what ships for a kernel. Triton launches the later calls of a key, whose errors we do not see."""

    kernel: TunedKernel
    is_for_triton: ClassVar = True

    def __call__(self) -> ShippedBinaries | None:
        return self.kernel.shipped()

    @property
    def advice(self) -> str:
        """What to type where no binary fits such a call."""
        command = f"tuner export DIR --with-kernels --kernel {self.kernel.origin}"
        return f"; nothing is compiled (strict); to ship one: {command}"


class Server:
    """Serves the kernels of some libraries while it is asked (`hook.ask`, `compiles.surround`).

    Attributes:
        libraries: the packages or modules whose kernels are served.
        on_miss: what a key gets that nobody tuned: "autotune", "nearest" or "first".
        outcomes: how many keys were TUNED, NOT_TUNED or LEFT. A key that is asked for anew counts again.
        left: the ops of kernels with keys that were LEFT, in the order of their first.
    """

    def __init__(self, libraries: Sequence[str], on_miss: str) -> None:
        """Serve nothing yet."""
        self.libraries, self.on_miss = tuple(libraries), on_miss
        self.outcomes: Counter[str] = Counter()
        self.left: dict[str, None] = {}
        self._kernels: set[TunedKernel] = set()
        self._reported: set[Hashable] = set()
        self._functions: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._lock = threading.Lock()

    def choose(self, autotuner: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return the `triton.Config` of a call; None where Triton decides. See `hook.Choose`.

        Raises:
            NotShippedError: the process is strict, and no shipped binary launches the call.
        """
        if isinstance(autotuner, TunedKernel) or not is_of(autotuner, self.libraries):
            return None
        chosen = None
        try:
            chosen = self._chosen(kernel_of(autotuner), autotuner, kwargs)
        except NotShippedError:
            raise
        except TunerError as e:
            self._report(autotuner, "is left to Triton: %s", first_line(e))
        if chosen is None:
            self.outcomes[LEFT] += 1
            self.left.setdefault(op_of(autotuner))
        return chosen

    def choose_traced(self, autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the `triton.Config` of a call that is traced; None where TorchInductor decides."""
        if isinstance(autotuner, TunedKernel) or not is_of(autotuner, self.libraries):
            return None
        kernel, device = kernel_of(autotuner), devices.current()
        problem = kernel.signature.problem(kernel.signature.named(args, kwargs))
        with kernel.calling(problem, Arguments((), args, kwargs)):
            decision = lookups.resolver().decide(problem, device)
            order = self._order(kernel, decision, problem, device, is_strict=False)
        self._report_refusals(autotuner, decision, problem, device)
        if order:
            self._count(decision, is_first=True)
            return order[0]
        self.outcomes[LEFT] += 1
        self.left.setdefault(op_of(autotuner))
        return None

    def compile(self, function: Any, compiles_it: Callable[[], Any]) -> Any:
        """Have a jit function of the libraries look for what ships before it compiles; see `compiles.Around`."""
        if is_of(function, self.libraries):
            with self._lock:
                is_known = id(function) in self._functions
                self._functions[id(function)] = function
                for find in compiles.finders_of(function):
                    compile_cache.install(function, find)
            if not is_known:
                compiles.report_other_source(function)
        return compiles_it()

    def leave(self) -> None:
        """Let the kernels that were served compile as Triton does."""
        for kernel in self._kernels:
            compile_cache.uninstall(kernel.fn, _Shipped(kernel))
        self._kernels.clear()
        for function in self._functions.values():
            for find in compiles.finders_of(function):
                compile_cache.uninstall(function, find)
        self._functions.clear()

    def _chosen(self, kernel: TunedKernel, autotuner: Any, kwargs: Mapping[str, Any]) -> Any:
        args, device = tuple(autotuner.nargs.values()), devices.current()
        named = kernel.signature.named(args, kwargs)
        problem = kernel.signature.problem(named)
        is_strict = not device.is_interpreter and strict.is_on()
        with kernel.calling(problem, Arguments(kwargs.get("grid", ()), args, kwargs)):
            decision = lookups.resolver().decide(problem, device)
            order = self._order(kernel, decision, problem, device, is_strict=is_strict)
        is_told = self._report_refusals(autotuner, decision, problem, device)
        if not order:
            if not is_told:
                self._report_miss(problem)
            return None
        compile_cache.install(kernel.fn, _Shipped(kernel))
        self._kernels.add(kernel)

        def load(**meta: Any) -> Any:
            given = of_the_kernel(kwargs)
            made = kernel.fn.run(*args, grid=kwargs.get("grid", (1,)), warmup=True, **given, **meta)
            if kwargs.get("warmup") is False:
                getattr(made, "run", None)  # loads it, and finds that it needs more than the device has

        try:
            config, _, missing = launch_first_that_runs(load, problem.op, named, order)
        except NotShippedError as e:
            raise NotShippedError(strict.refusal(problem, device, decision.match, e.args[0])) from None
        except failures_of_a_config() as e:
            if is_no_fault(e):
                raise
            self._report(autotuner, "is left to Triton: %s cannot be launched (%s)", order[0], first_line(e))
            return None
        if missing is not None:
            strict.note(problem, device, decision.match, str(config))
        self._count(decision, is_first=config is order[0])
        return config

    def _count(self, decision: Decision, *, is_first: bool) -> None:
        self.outcomes[TUNED if is_first and decision.match.rule == "exact" else NOT_TUNED] += 1

    def _order(
        self, kernel: TunedKernel, decision: Decision, problem: Problem, device: Device, *, is_strict: bool
    ) -> list[Any]:
        """Return the `triton.Config`s to try, the best first; none where Triton is to measure."""
        match: Match = decision.match
        if is_strict:
            return kernel.listed([match.config, *lookups.near_configs(problem, device), *kernel.in_order(problem)])
        is_tuned = match.rule == "exact"
        if self.on_miss == "autotune":
            return kernel.listed([match.config]) if is_tuned else []
        others: list[Config] = kernel.in_order(problem)
        return kernel.listed([match.config, *others] if is_tuned or self.on_miss == "nearest" else others)

    def _report_refusals(self, autotuner: Any, decision: Decision, problem: Problem, device: Device) -> bool:
        """Log, once a kernel, why rows of it are not used; return whether there are any."""
        if decision.match.rule == "exact":
            return False
        refused = [each for each in decision.refused if each.rule == "exact"]
        if refused:
            config, source, reason = refused[0].row.config, refused[0].source, refused[0].reason
            self._report(autotuner, "has a tuned config that does not serve: %s from %s: %s", config, source, reason)
            return True
        others = [
            (winners.source, tuned.source[:8])
            for winners in lookups.resolver().sources.own(device.slug)
            for tuned in winners.rows
            if tuned.op == problem.op and tuned.source not in ("", problem.source)
        ]
        if others:
            said = "has tuned configs of another source: %s has %s, here it is %s: tune it again"
            self._report(autotuner, said, *others[0], problem.source[:8])
        return bool(others)

    def _report_miss(self, problem: Problem) -> None:
        """Log the first key of a library that Triton tunes itself."""
        library = next(each for each in self.libraries if f"{problem.op}-".startswith(f"{each.replace('.', '-')}-"))
        if library not in self._reported:
            self._reported.add(library)
            _log.warning(
                "nobody tuned %.500s: Triton tunes it and what else %s has untuned, in each process; to tune once: "
                "tuner capture --adopt %s --out calls -- COMMAND, then tuner run --captured calls",
                problem,
                library,
                library,
            )

    def _report(self, autotuner: Any, said: str, *values: Any) -> None:
        """Log a line about a kernel, once for each that reads so."""
        op = op_of(autotuner)
        if (op, said) not in self._reported:
            self._reported.add((op, said))
            _log.warning("%s %s", op, said % values)


def serve(server: Server) -> None:
    """Begin to serve."""
    active_driver.lend(server)
    hook.ask(server.choose)
    traced.ask(server.choose_traced)
    compiles.surround(server.compile)


def stop(server: Server) -> None:
    """Stop serving: keys that were served are Triton's to decide anew."""
    active_driver.take_back(server)
    compiles.leave(server.compile)
    traced.stop_asking(server.choose_traced)
    hook.stop_asking(server.choose)
    server.leave()
