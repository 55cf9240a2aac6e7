"""Captures the calls of adopted libraries' kernels while a program runs; nothing is measured meanwhile.

It takes the place of `Autotuner.run`, and of the `run` of libraries' subclasses, which need not end in Triton's. An
adopted kernel then runs by the first config of its list that launches, and Triton's own cache of what it tuned stays as
it is. Of kernels that have no config to choose, what they are compiled to is kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from tuner.adopt import compiles
from tuner.adopt.kernel import is_of, problem_of, triton_key, zeroes
from tuner.adopt.recorder import Recorder, say
from tuner.errors import KernelError, TunerError, UsageError
from tuner.launch import active_driver, compat, compile_cache
from tuner.tuned.arguments import Arguments, of_the_kernel
from tuner.tuned.first_launch import OncePerKey, launch_first_that_runs
from tuner.tuned.signature import base_of
from tuner.tuned.tuned_kernel import TunedKernel

FOLDER = "TUNER_CAPTURE"
_from_environment: list[Capture] = []
_ADVICE = 'expected a folder and names of packages, tuner.capture("calls", "fla") for instance'


class Capture:
    """Captures calls from its start to its stop."""

    def __init__(self, folder: str | Path, *libraries: str) -> None:
        """Take the folder to record into, and the packages whose kernels are adopted."""
        if not libraries or not all(name and isinstance(name, str) for name in libraries):
            raise UsageError(f"the libraries to adopt are {', '.join(map(repr, libraries)) or 'not named'}: {_ADVICE}")
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise UsageError(f"the folder to record into is {folder!r:.60}: {_ADVICE}")
        self._folder, self._libraries = Path(folder).absolute(), libraries
        self._chosen: dict[Hashable, Any] = {}
        self._left: set[tuple[str, str]] = set()  # the functions of which was said that they are not recorded
        self._zeroed: dict[str, OncePerKey] = {}
        self._taken: list[tuple[Any, Any, Any]] = []  # a class, its own `run`, and what took its place
        self._tuned = threading.local()  # its `base`: the function whose config this thread chooses
        self._functions: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def start(self) -> None:
        """Take the place of `Autotuner.run`, also of subclasses that are made later.

        Raises:
            TableError: the folder is none, or may not be written into.
        """
        self._recorder = Recorder(self._folder)
        for each in _with_subclasses(compat.Autotuner):
            self._take(each)
        take, former = self._take, vars(compat.Autotuner).get("__init_subclass__")

        def begin(cls: Any, /, **kwargs: Any) -> None:
            own = super(compat.Autotuner, cls).__init_subclass__ if former is None else former.__get__(None, cls)
            own(**kwargs)
            take(cls)

        self._former, self._begun = former, classmethod(begin)
        compat.Autotuner.__init_subclass__ = self._begun
        compiles.surround(self._compile)
        active_driver.lend(self)

    def stop(self) -> None:
        """Give its place back. Where another has taken it since, what it calls is Triton's own again."""
        self._libraries = ()
        active_driver.take_back(self)
        compiles.leave(self._compile)
        for function in self._functions.values():
            compile_cache.uninstall(function)
        if vars(compat.Autotuner).get("__init_subclass__") is self._begun:
            del compat.Autotuner.__init_subclass__
            if self._former is not None:  # a capture around this one goes on
                compat.Autotuner.__init_subclass__ = self._former
        for cls, own, ours in self._taken:
            if vars(cls).get("run") is ours:
                cls.run = own
        self._taken.clear()

    def _take(self, cls: Any) -> None:
        """Take the place of a class's own `run`."""
        own = vars(cls).get("run")
        if own is None or issubclass(cls, TunedKernel) or not self._libraries:
            return

        def run(autotuner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not is_of(autotuner, self._libraries) or isinstance(autotuner, TunedKernel):
                return own(autotuner, *args, **kwargs)
            return self._run(own, autotuner, args, kwargs)

        cls.run = run
        self._taken.append((cls, own, run))

    def _run(self, own: Any, autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = of_the_kernel(kwargs)
        warmup = bool(kwargs.get("warmup", False))
        call = Arguments(kwargs.get("grid", (1,)), args, named)
        try:
            problem, where = problem_of(autotuner, args, named), place_of(autotuner)
        except TunerError as e:
            base = base_of(autotuner)
            if (left := (base.__module__, base.__qualname__)) not in self._left:
                self._left.add(left)
                say(f"{base.__name__} is not recorded: {e}")
            return own(autotuner, *args, **kwargs)
        if not warmup:
            self._recorder.note(autotuner, where, problem, call)
        config = self._chosen.get((where, problem))
        order = [config] if config is not None else self._order(autotuner, args, kwargs)
        given = dict(zip(autotuner.arg_names, args, strict=False)) | kwargs
        if config is None and not warmup and len(autotuner.configs) > 1 and self._is_due(autotuner, where, given):
            autotuner.pre_hook({**given, **order[0].all_kwargs()}, reset_only=True)  # as Triton leaves what it measured

        def launch(**meta: Any) -> Any:
            return autotuner.fn.run(*args, **{**kwargs, **meta})

        before = getattr(self._tuned, "base", None)
        self._tuned.base = base_of(autotuner) if len(autotuner.configs) > 1 else before
        try:
            config, result, _ = launch_first_that_runs(launch, where, given, order)
        finally:
            self._tuned.base = before
        autotuner.best_config = self._chosen[where, problem] = config
        return result

    def _is_due(self, autotuner: Any, where: str, given: dict[str, Any]) -> bool:
        return zeroes(autotuner) and self._zeroed.setdefault(where, OncePerKey()).is_due(triton_key(autotuner, given))

    def _compile(self, function: Any, compiles_it: Callable[[], Any]) -> Any:
        """Compile as ever, and record what came of it; see `compiles.Around`."""
        if not is_of(function, self._libraries) or base_of(function) is getattr(self._tuned, "base", None):
            return compiles_it()
        compile_cache.install(function)
        self._functions[id(function)] = function
        with compile_cache.collect_compiled() as compiled:
            made = compiles_it()
        for each in compiled:
            self._recorder.note_compiled(function, each)
        return made

    def _order(self, autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if len(autotuner.configs) == 1:  # Triton prunes no single one
            return list(autotuner.configs)
        autotuner.nargs = dict(zip(autotuner.arg_names, args, strict=False))  # as its own run leaves it to pruning
        try:
            return list(autotuner.prune_configs(dict(kwargs)))
        finally:
            autotuner.nargs = None


@contextlib.contextmanager
def capture(folder: str | Path, *libraries: str) -> Iterator[None]:
    """Record a block's calls of libraries' autotuned kernels, for `tuner run --captured FOLDER`.

    Meanwhile nothing is measured: each kernel runs with the first of its configs that launches.

    Args:
        folder: the folder to write calls into; made if missing.
        libraries: names of packages, "fla" for instance.

    Raises:
        UsageError: no library is named.
        TableError: `folder` is no folder, or cannot be written into.
    """
    running = Capture(folder, *libraries)
    running.start()
    try:
        yield
    finally:
        running.stop()


def from_environment(libraries: Iterable[str]) -> None:
    """Capture libraries' calls from here on, into the folder that `$TUNER_CAPTURE` names; see `capture`."""
    if not _from_environment:
        _from_environment.append(Capture(os.environ[FOLDER], *libraries))
        _from_environment[0].start()


def _with_subclasses(cls: Any) -> Iterator[Any]:
    yield cls
    for each in cls.__subclasses__():
        yield from _with_subclasses(each)


def place_of(autotuner: Any) -> str:
    """Return where an autotuner is imported from, "package.module:name".

    Raises:
        KernelError: its module has no name for it.
    """
    base = base_of(autotuner)
    module = sys.modules.get(base.__module__)
    names = dict.fromkeys([base.__qualname__, *vars(module)] if module is not None else ())
    for name in names:
        found = getattr(module, name, None)
        while found is not None and found is not autotuner:  # below `triton.heuristics`, or a library's own decorator
            found = getattr(found, "fn", None)
        if found is autotuner:
            return f"{base.__module__}:{name}"
    raise KernelError(f"{base.__module__} has no name for {base.__qualname__}: define it at the module's top level")
