"""Where the command line starts, as `tuner` and as `python -m tuner`."""

from __future__ import annotations

import contextlib
import os
import signal


def main() -> None:
    """Run the command line. Until it is imported, which takes a while from a cold disk, signals end it at once."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    for number in ours:
        signal.signal(number, _leave)
    from tuner import cli

    for number, handler in ours.items():
        signal.signal(number, handler)
    cli.main()


def _leave(_number: int, _frame: object) -> None:
    """End the process: nothing has begun, and what is being imported might drop an exception or show its traceback."""
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
