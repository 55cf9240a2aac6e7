"""Records the matrix products of this process for `tuner capture`: which, with which Ms, and how often.

A call is recorded where torch's dispatcher hands it to the CPU's or the GPU's kernel. So calls of every thread, of
backward passes and of programs that TorchInductor compiled are seen. The kernel that runs is torch's own.

Like `products`, this module imports only the standard library, and torch, which the program has imported.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

FORMAT, VERSION = "triton-tuner calls", 1
SUFFIX = ".calls"
MAX_FAMILIES = 1024
"""How many families are kept. Of calls of further families only the total is kept."""
MAX_MS = 128
"""How many Ms of a family are kept. Further ones count as the next power of two."""
_KEYS = ("CPU", "CUDA")


class Journal:
    """The calls of this process, in a file of its own to which lines are appended.

    A line is written when a count reaches a power of two, and at the end. So a process that is killed loses no family
    and no M, and its counts are known to within a factor of two; that takes neither a thread nor a clock. The file is
    opened for each line, because a program may close every descriptor that it does not know.
    """

    def __init__(self, folder: str, fields: tuple[str, ...]) -> None:
        self._folder = folder
        self._fields = fields
        self.library: object = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a signal handler may multiply too
        self._counts: dict[tuple[Any, ...], dict[int, int]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._others = 0
        self._path = ""
        self._is_open = True

    def in_child(self) -> None:
        """Start with no counts in a forked process, because those so far are the parent's."""
        is_open = self._is_open
        self._begin()
        self._is_open = is_open

    def note(self, product: tuple[Any, ...], m: int) -> None:
        """Count a call."""
        with self._lock:
            ms = self._counts.get(product)
            if ms is None:
                if len(self._counts) >= MAX_FAMILIES:
                    self._others += 1
                    return
                ms = self._counts[product] = {}
            if m not in ms and len(ms) >= MAX_MS:
                m = 1 << (m - 1).bit_length()
            count = ms[m] = ms.get(m, 0) + 1
            if count & (count - 1) == 0:
                self._write(self._line(product, m, count))

    def finish(self) -> None:
        """Write the counts that are no powers of two."""
        with self._lock:
            lines = [
                self._line(product, m, count)
                for product, ms in self._counts.items()
                for m, count in ms.items()
                if count & (count - 1)
            ]
            if self._others:
                lines.append(json.dumps(["left out", self._others]) + "\n")
            if lines:
                self._write("".join(lines))

    def give_up(self, reason: object) -> None:
        """Print once that nothing more is recorded in this process, and let the process go on."""
        if self._is_open:
            self._is_open = False
            try:
                sys.stderr.write(f"tuner capture: nothing more is recorded in process {os.getpid()}: {reason}\n")
            except Exception:  # noqa: BLE001  a program may have closed or replaced it
                return

    def _line(self, product: tuple[Any, ...], m: int, count: int) -> str:
        number = self._numbers.get(product)
        if number is not None:
            return f"[{number},{m},{count}]\n"
        number = self._numbers[product] = len(self._numbers)
        return json.dumps([number, m, count, product]) + "\n"

    def _write(self, text: str) -> None:
        if not self._is_open:
            return
        if not self._path:
            self._path = os.path.join(self._folder, f"{os.getpid()}-{os.urandom(6).hex()}{SUFFIX}")  # noqa: PTH118
            text = json.dumps({"format": FORMAT, "version": VERSION, "fields": self._fields}) + "\n" + text
        content = text.encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                if os.write(descriptor, content) < len(content):
                    self.give_up(f"{self._folder} is full")
            finally:
                os.close(descriptor)
        except OSError as e:
            self.give_up(f"cannot write into {self._folder}: {e.strerror}")


def start(folder: str, products: Any) -> None:
    """Record into a folder from now on, or print a line that says why that is not possible.

    Args:
        folder: where the journal goes.
        products: the module `tuner.models.products`.
    """
    journal = Journal(folder, products.Product._fields)
    try:
        _take_kernels(journal, products)
    except Exception as e:  # noqa: BLE001  whatever torch has changed, the program goes on
        journal.give_up(f"this torch cannot be recorded ({type(e).__name__}: {e})")
        return
    os.register_at_fork(after_in_child=journal.in_child)
    atexit.register(journal.finish)


def _take_kernels(journal: Journal, products: Any) -> None:
    """Replace each kernel of a matrix product by one that also notes the call."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    journal.library = library  # the kernels stay registered as long as it exists
    nested = threading.local()
    for name in products.OPERATORS:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            operator = f"aten::{name}" if overload == "default" else f"aten::{name}.{overload}"
            for key in _KEYS:
                try:
                    own = torch.library.get_kernel(operator, key)
                except RuntimeError:  # this torch has no such kernel: one without a GPU, for instance
                    continue
                kernel = _noting(own, name, journal, products.describe, nested)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
                    library.impl(operator.removeprefix("aten::"), kernel, key, with_keyset=True)


def _noting(
    own: Any, name: str, journal: Journal, describe: Callable[..., Any], nested: threading.local
) -> Callable[..., Any]:
    """Return a kernel that runs torch's own and notes the call, but not the calls that torch's own makes inside."""
    import torch

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(nested, "inside", False):
            return own.call_boxed(keys, *args, **kwargs)
        nested.inside = True
        try:
            out = own.call_boxed(keys, *args, **kwargs)
        finally:
            nested.inside = False
        try:
            first = args[0]
            tf32 = first.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"
            if (call := describe(name, args, kwargs, out, tf32=tf32)) is not None:
                journal.note(*call)
        except Exception as e:  # noqa: BLE001  the program must not fail because it is recorded
            journal.give_up(f"{name}: {type(e).__name__}: {e}")
        return out

    return kernel
