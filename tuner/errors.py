"""The errors users meet. Each message says what was found, what was expected and what to type next."""

from __future__ import annotations


def one_line(text: object) -> str:
    """Return a text, or what an error says, in one line."""
    return " ".join(line for each in str(text).splitlines() if (line := each.strip()))


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, its class's name where it says nothing."""
    return (_point(error) or type(error).__name__)[:300]


def in_short(error: BaseException) -> str:
    """Return an error's class, and the first line of what it says."""
    return f"{type(error).__name__}: {_point(error)}"[:500]


def _point(error: BaseException) -> str:
    """The first line of what an error says; with the last where it only announces it, as Triton's and pydantic's do."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[-1]}"
    return lines[0] if lines else ""


class TunerError(Exception):
    """Base of every error this package raises on purpose. Its message is one line, ready to print."""

    def __str__(self) -> str:
        return one_line(super().__str__())  # what another library said, or a user typed, may have several


class UsageError(TunerError, ValueError):
    """What the caller typed or passed makes no sense; the command line exits with 2."""


class ProblemError(UsageError):
    """A problem with an invalid shape, dtype, layout, epilogue or precision."""


class ConfigError(UsageError):
    """A config that cannot be read, or that its kernel does not have."""


class InputError(UsageError):
    """Operands that an op cannot take, because of their shapes, dtypes or devices."""


class KernelError(TunerError):
    """No kernel serves a problem, or a kernel could not be loaded from its entry point."""


class BrokenKernelError(KernelError):
    """The code of a kernel, a third party's for one, raised or returned what it must not: it cannot serve its problem.

    Attributes:
        kernel: which; two may have one name. "" where that is not known.
    """

    kernel = ""

    @staticmethod
    def of(what: str, kernel: str, found: str) -> BrokenKernelError:
        """Return the error for a part of a kernel ("supports", "matmul/mine"), and what was found of it."""
        return BrokenKernelError(f"{what} of the kernel {kernel} {found}: mend it, or uninstall its package")


class SuiteError(TunerError):
    """A suite that could not be read; the message names the file and the line."""


class DeviceError(TunerError):
    """A device that is not there, or that is unknown."""


class StoreError(TunerError):
    """A database that could not be opened, read or written."""


class SchemaError(StoreError):
    """A database whose schema is behind or ahead of this version of triton-tuner."""


class ModelError(TunerError):
    """A model whose config cannot be read, or whose products cannot be found."""


class TableError(TunerError):
    """An exported table that could not be read or written."""


class AbsentError(TableError):
    """Nothing is where somebody said that a table, a folder of them, a package or a database is."""


class SweepError(TunerError):
    """A sweep that could not go on, for instance because no worker could be started."""
