"""`tuner.adopt` and `$TUNER_ADOPT`: name the libraries whose kernels are served."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from importlib.machinery import PathFinder

from tuner.adopt import capture, serving
from tuner.errors import TunerError, UsageError, one_line

LIBRARIES, MISS, SUMMARY = "TUNER_ADOPT", "TUNER_ON_MISS", "TUNER_ADOPT_SUMMARY"
_log = logging.getLogger(__name__)
_from_environment: dict[str, Adoption] = {}


class Adoption(AbstractContextManager["Adoption"]):
    """Libraries whose kernels are served, until it is undone.

    Attributes:
        libraries: the packages or modules named.
        on_miss: what a key gets that nobody tuned.
    """

    def __init__(self, libraries: tuple[str, ...], on_miss: str) -> None:
        """Begin."""
        self.libraries, self.on_miss = libraries, on_miss
        self._server = serving.Server(libraries, on_miss)
        serving.serve(self._server)

    def summary(self) -> str:
        """What the keys of these libraries' autotuned kernels got so far, in one line; "" where none was launched."""
        outcomes = self._server.outcomes
        if not outcomes:
            return ""
        parts = [f"{outcomes[serving.TUNED]} tuned"]
        if others := outcomes[serving.NOT_TUNED]:
            parts.append(f"{others} not tuned, with the {self.on_miss} config")
        if left := outcomes[serving.LEFT]:
            ops = [*self._server.left]
            parts.append(f"{left} left to Triton, of {', '.join(ops[:3])}{', ...' if len(ops) > 3 else ''}")
        count = outcomes.total()
        return f"{', '.join(self.libraries)}: {count} key{'s' * (count != 1)}: {'; '.join(parts)}"

    def undo(self) -> None:
        """Leave the libraries' kernels to Triton as they were; a second time it does nothing."""
        serving.stop(self._server)

    def __exit__(self, *_: object) -> None:
        self.undo()


def adopt(*libraries: str, on_miss: str = "autotune") -> Adoption:
    """Give tuned configs to the autotuned kernels of libraries, before or after the libraries are imported.

    For each new key of a kernel under `triton.autotune`, or under a subclass of Triton's `Autotuner`, the config is
    looked up before anything is measured. Nothing else about the kernel changes, and other libraries' kernels stay as
    they were (docs/adopt.md).

    Args:
        libraries: names of packages or modules: "fla", "liger_kernel".
        on_miss: what an untuned key gets. "autotune": Triton measures it. "nearest": the config of the nearest tuned
            key, or without one the first of the list. "first": the first config of the list that can be launched.

    Returns:
        An `Adoption`: its `undo()` undoes it, and so does the end of a `with` statement.

    Raises:
        UsageError: there is no library of that name, or `on_miss` is none of these.
    """
    if not libraries:
        raise UsageError('tuner.adopt names no library: name those whose kernels to serve, tuner.adopt("fla")')
    if on_miss not in serving.ON_MISS:
        raise UsageError(f"on_miss is {on_miss!r:.60}: expected {', '.join(serving.ON_MISS)}")
    for library in libraries:
        if not isinstance(library, str) or not _is_there(library):
            raise UsageError(f"there is no library {library!r:.60} to adopt: name it as it is imported")
        if not _is_found_below(library):
            _log.warning("there is no module %s (yet) whose kernels to adopt: name it as it is imported", library)
    return Adoption(libraries, on_miss)


def from_environment() -> None:
    """Adopt what `$TUNER_ADOPT` names, each library once a process. What is wrong with it is one warning.

    Where `$TUNER_CAPTURE` names a folder, the libraries' calls are captured instead, and nothing is served.
    """
    libraries = [name for each in os.environ.get(LIBRARIES, "").split(",") if (name := each.strip())]
    if os.environ.get(capture.FOLDER):
        try:
            capture.from_environment(libraries)
        except TunerError as e:
            _log.warning("no kernel is captured: %s", one_line(e))
        return
    on_miss = os.environ.get(MISS) or "autotune"
    if libraries and on_miss not in serving.ON_MISS:
        _log.warning("no kernel is adopted: $%s is %.60r: expected %s", MISS, on_miss, ", ".join(serving.ON_MISS))
        return
    for name in libraries:
        if name in _from_environment:
            continue
        try:
            adopted = _from_environment[name] = adopt(name, on_miss=on_miss)
            if os.environ.get(SUMMARY):
                atexit.register(_tell, adopted)
        except (TunerError, ImportError) as e:
            _log.warning("%s is not adopted: %s", name, one_line(e))


def _tell(adopted: Adoption) -> None:
    """Say at a process's end what its keys got."""
    if said := adopted.summary():
        with contextlib.suppress(OSError, ValueError):  # a program may have closed it
            sys.stderr.write(f"tuner: {said}\n")


def _is_found_below(library: str) -> bool:
    """Return whether a module is there, as far as that can be told without importing anything."""
    places: Iterable[str] = ()
    name = ""
    for part in library.split("."):
        name, above = f"{name}.{part}" if name else part, name
        if name in sys.modules:
            places = getattr(sys.modules[name], "__path__", ())
            continue
        spec = PathFinder.find_spec(name, list(places)) if above else importlib.util.find_spec(name)
        if spec is None:
            return False
        places = spec.submodule_search_locations or ()
    return True


def _is_there(library: str) -> bool:
    root = library.partition(".")[0]
    if not all(part.isidentifier() for part in library.split(".")):
        return False
    return root in sys.modules or importlib.util.find_spec(root) is not None
