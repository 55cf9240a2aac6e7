"""`--kernel` and `--problem`: kernels under `tuner.tuned`, ops, and problems by the names of their keys."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tuner import reference
from tuner.errors import KernelError, UsageError
from tuner.kernel import KernelSpec, registry
from tuner.problem import Problem, generic_key
from tuner.problem import suite as suite_files
from tuner.problem import text as problem_text
from tuner.problem.family import Ladder

if TYPE_CHECKING:
    from tuner.adopt.replay import Folders

NOTICE_S = 10.0
LIMIT_S = 60.0
"""The same as for a worker: `tuner.sweep.child.IMPORT_LIMIT_S`."""
_EXPECTED = "expected my_pkg.my_module:my_kernel, FILE.py:NAME or an op"
_KERNEL = "A kernel under tuner.tuned, my_pkg.my_module:my_kernel or FILE.py:NAME, or an op"
_PROBLEM = "A problem by the names of --kernel's key (of an op: a suite's columns)"

kernel_option = click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="MODULE:NAME",
    help=f"{_KERNEL}; may be repeated.",
)
problem_option = click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="M=4096,N=1024",
    help=f"{_PROBLEM}; may be repeated.",
)
# Of these a command takes one. They are `multiple` so that it can say so: click would take the last without a word.
one_kernel_option = click.option("--kernel", "kernels", multiple=True, metavar="MODULE:NAME", help=f"{_KERNEL}.")
one_problem_option = click.option("--problem", "problems", multiple=True, metavar="M=4096,N=1024", help=f"{_PROBLEM}.")


def typed_dtype(ctx: click.Context) -> str | None:
    """Return `--dtype` if it was typed, because its default is meant for GEMMs."""
    typed = ctx.get_parameter_source("dtype") is ParameterSource.COMMANDLINE
    return str(ctx.params["dtype"]) if typed else None


def find(name: str) -> KernelSpec:
    """Return the kernel of a reference "module:name", or one of the installed kernels of an op.

    Raises:
        UsageError: there is none, or it is a KernelSpec that no entry point gives, or one whose name another has.
        KernelError: its module cannot be imported.
    """
    if ":" in name:
        with limited_import(name):
            loaded = reference.load(name)
        spec = registry.spec_in(loaded)
        if spec is None:  # decorated by a call: the reference then names the plain function
            named = [each for each in registry.specs().values() if each.origin == name]
            spec = named[0] if len(named) == 1 else None
        if spec is None:
            raise UsageError(_not_tuned(name, loaded))
        if not spec.origin:
            return _installed(name, spec)
    else:
        specs = [spec for (op, _), spec in registry.specs().items() if op == name]
        if not specs:
            if ops := sorted({op for op, kernel in registry.specs() if kernel == name}):
                raise UsageError(f"{name} is one kernel of {ops[0]}: type --kernel {ops[0]}, whose kernels compete")
            expected = registry.CAPTURED if registry.is_of_library(name) else _EXPECTED
            raise UsageError(f"no installed kernel is called {name!r}: {expected}")
        spec = specs[0]
        if spec.origin and len(specs) > 1:
            origins = " or ".join(f"--kernel {each.origin}" for each in specs)
            raise UsageError(f"{len(specs)} kernels are called {name!r}: type {origins}")
    return spec


def _installed(name: str, spec: KernelSpec) -> KernelSpec:
    """Return the KernelSpec of a reference as its entry point gives it; one that would not be used is an error."""
    installed = registry.specs().get((spec.op, spec.name))
    if installed is spec:
        return spec
    where, _, attribute = name.rpartition(":")
    file = Path(where).resolve() if where.endswith(".py") else None
    value = f"{_module_of(file) if file else where}:{attribute}"
    holder = ""
    for point in registry.points():
        used, faults = registry.used(point)
        if point.value == value and faults:
            raise UsageError(f"{point.name} ({value}) {faults[0]}")
        if installed in used:
            holder = point.value
            if holder == value and str(file) == getattr(sys.modules[point.module], "__file__", None):
                return installed  # the file was imported under another name than the entry point's
    if installed is not None:
        which = f"the {spec.op}/{spec.name} that is installed, which is {holder}"
        raise UsageError(f"{name} is not {which}: give one of them another name")
    raise UsageError(
        f"{name} is a KernelSpec without an entry point, which it needs (docs/own-kernel.md): in its package's "
        f'pyproject.toml write "{spec.op}.{spec.name}" = "{value}" under [project.entry-points."{registry.GROUP}"], '
        "and install the package"
    )


def _module_of(file: Path) -> str:
    """Return the name by which an installed package would import a file of it."""
    folders = list(itertools.takewhile(lambda folder: (folder / "__init__.py").exists(), file.parents))
    return ".".join([*(folder.name for folder in reversed(folders)), file.stem])


def _not_tuned(name: str, loaded: object) -> str:
    """Say of what is no kernel of ours how it becomes one."""
    from tuner.launch import compat

    below = loaded
    while below is not None and not isinstance(below, compat.Autotuner):
        below = getattr(below, "fn", None)
    if below is None:
        return f"{name} is no kernel under tuner.tuned: put @tuner.tuned(...) above its @triton.jit"
    return (
        f"{name} is under triton.autotune: write @tuner.tuned(...) in its place; or, to leave it as it is, type "
        "tuner capture --adopt PACKAGE --out calls -- COMMAND, then tuner run --captured calls"
    )


@contextlib.contextmanager
def limited_import(name: str) -> Iterator[None]:
    """Say that an import takes long, and raise KernelError inside it when it takes too long."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    for heavy in ("torch", "triton"):  # from a cold disk these take long without hanging
        importlib.import_module(heavy)
    noticed = False

    def ring(_number: int, _frame: object) -> None:
        nonlocal noticed
        if noticed:
            raise KernelError(
                f"the import of {name} did not end within {LIMIT_S:g} s: put what it waits for into a function"
            )
        noticed = True
        click.echo(f"{name} is still being imported; it is given up after {LIMIT_S:g} s", err=True)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, NOTICE_S, LIMIT_S - NOTICE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def find_captured(folders: Sequence[Path]) -> Folders:
    """Return the adopted kernels that folders hold calls of; each that cannot be replayed is a line on stderr."""
    from tuner.adopt import replay  # torch, Triton and the libraries themselves

    with limited_import(f"what was captured in {' and '.join(map(str, folders))}"):
        replayed = replay.open_folders(folders)
    for fault in replayed.faults:
        click.echo(f"left out: {fault}", err=True)
    return replayed


def problem_of(spec: KernelSpec, text: str, *, dtype: str | None) -> Problem:
    """Return the problem that a text names; see `problems_of`."""
    read = spec.read or functools.partial(problem_text.read, spec.op)
    return read(_with_dtype(generic_key.cells(text), dtype))


def problems_of(
    spec: KernelSpec, texts: Sequence[str], suites: Sequence[str], *, dtype: str | None
) -> list[Problem | Ladder]:
    """Return the problems and ladders of a kernel that were typed or are listed in CSV files.

    Args:
        spec: the kernel.
        texts: problems such as "M=4096,N=1024", of an op also "M=1-512,N=1024,K=64,batch=1-64".
        suites: CSV files whose columns are named as its key; the package's suites hold GEMMs only.
        dtype: the dtype of problems that name none; None lets `make_inputs` choose.

    Raises:
        ProblemError, SuiteError: a text or a file cannot be read.
        KernelError: `make_inputs` is missing or does not make such a problem.
    """

    def read(cells: Mapping[str, str]) -> Sequence[Problem | Ladder]:
        cells = _with_dtype(cells, dtype)
        return problem_text.read_all(spec.op, cells) if spec.read is None else [spec.read(cells)]

    problems = [each for text in texts for each in read(generic_key.cells(text))]
    for name in suites:
        if not name.endswith(".csv") and "/" not in name:
            found = f"the suite {name!r} is of GEMMs" if name in suite_files.names() else f"there is no suite {name!r}"
            raise UsageError(f"{found}: --kernel takes FILE.csv, with columns named as its key")
        problems += suite_files.load_with_ladders(name, read=read)
    return problems


def _with_dtype(cells: Mapping[str, str], dtype: str | None) -> dict[str, str]:
    default = {} if dtype is None else {"dtype": dtype}
    return default | {name: cell for name, cell in cells.items() if cell}
