"""What a command that measures has when it is stopped: it is shown and kept before the command ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from tuner.cli.output import quantity
from tuner.errors import TunerError

T = TypeVar("T")


def collect(measured: Iterable[T], say: Callable[[T, int], None]) -> tuple[list[T], BaseException | None]:
    """Go through what is measured until it ends, fails or is interrupted.

    Args:
        measured: yields each result when it is there.
        say: called with each result and how many there are by then.

    Returns:
        The results, and the KeyboardInterrupt or TunerError that ended it before it was done, if one did: the caller
        raises it after it has shown and kept the results.
    """
    found: list[T] = []
    try:
        for one in measured:
            found.append(one)
            say(one, len(found))
    except (KeyboardInterrupt, TunerError) as e:
        return found, e
    return found, None


def say_unplayed(count: int, noun: str) -> None:
    """Say on stderr how many were not measured, where some were not."""
    if count:
        click.echo(f"{quantity(count, noun)} not measured", err=True)
