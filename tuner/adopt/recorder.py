"""Records the calls of autotuned kernels in this process, each kernel and key once, and what others compile.

A call's record is written before the kernel runs, because afterwards nobody could tell what an integer tensor held. So
a process that is killed has lost nothing, and forked processes need no more than the parent's list of what is written.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import files
from tuner.adopt import calls, compiled_files
from tuner.adopt.calls import MOST_CALLS, Call
from tuner.adopt.compiled_files import Binary, place_of
from tuner.adopt.kernel import kernel_of
from tuner.adopt.values import Encoder
from tuner.errors import SuiteError, TunerError, in_short
from tuner.problem import Problem
from tuner.tuned.arguments import Arguments

if TYPE_CHECKING:
    from tuner.launch.compile_cache import Compiled


class Recorder:
    """Writes the calls of this process into a folder. Whatever fails is one line, and the program goes on."""

    def __init__(self, folder: Path) -> None:
        """Make the folder where it is missing.

        Raises:
            TableError: it is no folder, or may not be written into.
        """
        files.make_folder(folder)
        self._folder = folder
        self._seen: set[Hashable] = set()
        self._is_open = True
        self._renew()
        os.register_at_fork(after_in_child=self._renew)  # another thread may hold the lock meanwhile

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def note(self, autotuner: Any, where: str, problem: Problem, call: Arguments) -> None:
        """Record a call of an autotuner, unless one of the same kernel and key was recorded.

        Args:
            autotuner: what is called.
            where: where it is imported from.
            problem: the call's problem.
            call: what is passed.
        """
        if (where, problem) not in self._seen and not _graph_is_captured():
            self._once((where, problem), where, lambda: described(autotuner, where, problem, call))

    def note_compiled(self, function: Any, compiled: Compiled) -> None:
        """Record what a jit function was compiled to, unless it was recorded."""
        where = place_of(function)
        self._once((where, compiled.key), where, lambda: compiled_files.described(function, compiled))

    def _once(self, what: Hashable, where: str, describe: Callable[[], Call | Binary]) -> None:
        with self._lock:
            if not self._is_open or what in self._seen:
                return
            self._seen.add(what)
            try:
                self._write(describe())
            except SuiteError as e:
                self._give_up(str(e))
            except Exception as e:  # noqa: BLE001  the program must not end of what is noted about it
                say(f"{where} is not recorded: {e if isinstance(e, TunerError) else in_short(e)}")

    def _write(self, record: Call | Binary) -> None:
        path = self._folder / record.file_name
        is_known = path.exists()
        if is_known and not (isinstance(record, Call) and calls.is_outdated(path, record)):
            return
        suffix, noun = (calls.SUFFIX, "calls") if isinstance(record, Call) else (compiled_files.SUFFIX, "binaries")
        if not is_known and len(calls.paths(self._folder, suffix)) >= MOST_CALLS:
            self._give_up(f"{self._folder} holds {MOST_CALLS} {noun}: name another folder for more")
            return
        files.write_text(path, record.dumps(), error=SuiteError)

    def _give_up(self, reason: str) -> None:
        self._is_open = False
        say(f"nothing more is recorded in process {os.getpid()}: {reason}")


def described(autotuner: Any, where: str, problem: Problem, call: Arguments) -> Call:
    """Return the record of a call; see `Recorder.note`.

    Raises:
        KernelError: an argument is of no kind that can be made again.
    """
    encoder = Encoder()
    programs = calls.grids(autotuner, kernel_of(autotuner).signature, call)
    args = [encoder.value(each) for each in call.args]
    kwargs = {name: encoder.value(each) for name, each in call.kwargs.items()}
    return Call(where, str(problem), calls.about(autotuner), encoder.storages, args, kwargs, programs)


def _graph_is_captured() -> bool:
    """Whether a CUDA graph is being recorded, when nothing can be read; the key's next call is recorded instead."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def say(text: str) -> None:
    """Write one line for whoever runs the program."""
    try:
        sys.stderr.write(f"tuner capture: {text}\n")
    except Exception:  # noqa: BLE001  a program may have closed or replaced it
        return
