"""Where the command line starts, as `tuner` and as `python -m tuner`."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Iterable
from typing import Any


def main() -> None:
    """Run the command line. Until it is imported, which takes a while from a cold disk, signals end it at once.

    So they do when it has ended, while Python waits for threads. What then is destroyed is let be: a signal would kill
    the process, whose exit code nobody expects, or abort it within a library.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    atexit.register(_handle, ours, signal.SIG_IGN)  # as the first one, so that it is the last to be called
    _handle(ours, _leave)
    from tuner import cli

    for number, handler in ours.items():
        signal.signal(number, handler)
    try:
        cli.main()
    finally:
        _handle(ours, lambda *_: os._exit(130))


def _handle(numbers: Iterable[signal.Signals], handler: Any) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _leave(_number: int, _frame: object) -> None:
    """End the process: nothing has begun, and what is being imported might drop an exception or show its traceback."""
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
