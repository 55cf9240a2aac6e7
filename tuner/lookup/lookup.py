"""Look a problem's config up, in under a microsecond once it was asked for.

A lookup never measures, compiles or writes anything.

The match rules (match_rules.py) decide what a problem gets; a resolver (resolver.py) has the sources and the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tuner import entry_points as entries
from tuner.bounded import make_room
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.lookup import match_rules
from tuner.lookup.decision import Match
from tuner.lookup.lookup_lock import lookup_lock
from tuner.lookup.resolver import Resolver
from tuner.lookup.row import Row
from tuner.problem import Problem
from tuner.problem.family import Range


def lookup(problem: Problem, device: Device | str | None = None) -> Match:
    """Return the config to use for a problem: its own, that of the range with its M, or the default formula's.

    Args:
        problem: what is to be computed.
        device: the GPU model to look up for, or its slug, name or a word of it ("nvidia-h200-sm90-132", "NVIDIA H200",
            "h200"); None is the device of this process, found once.

    Returns:
        The match. A second lookup of the same problem returns the same object.

    Raises:
        DeviceError: no device was given and this process has none, or the name is unknown.
        KernelError: no installed kernel serves the problem on the device.
        ProblemError: `problem` is no `Problem`.
    """
    try:
        if device is None:
            return _resolver.own[problem]
        return _resolver.answers.by_slug[device.slug][problem]  # type: ignore[union-attr]  # a name has no slug
    except (KeyError, AttributeError, TypeError):
        pass  # an error below is not to be shown as raised while this one was handled
    return _resolver.answer(problem, device)


def ranges_of_family(problem: Problem, device: Device, match: Match) -> Iterator[tuple[Range, Row]]:
    """The ranges of Ms of a problem's family, with rows that may serve them; `match` is what `lookup` returned."""
    return _resolver.sources.ranges_of_family(problem, device, match)


def defaults_up_to(problem: Problem, device: Device, most_m: int) -> Iterator[tuple[range, Match]]:
    """The Ms of a problem's family up to one for which the formula answers, range by range, and its answers.

    What was not asked before is decided here. A call that gets it is logged and counted when it is made.
    """
    return _resolver.defaults_up_to(problem, device, most_m)


def use(where: str | Path | None) -> None:
    """Ask a table, a folder of tables or a SQLite database before every other source; the one named last comes first.

    Args:
        where: a path. None forgets every path named and everything read, so the next lookup reads again.

    Raises:
        TableError: the path cannot be read, or is a folder without tables or with one that cannot be read. The sources
            stay as they were.
    """
    global _resolver  # noqa: PLW0603  one assignment swaps sources and answers together: no reader sees half of it
    if where is None:
        entries.forget()
        source = None
    else:
        from tuner.lookup import sources

        source = sources.named(where)
    with lookup_lock():
        _resolver = Resolver(()) if source is None else Resolver((source, *_resolver.sources.named))
    forget()


def record_misses(where: str | Path | None) -> None:
    """Count calls of untuned problems from now on, for a file that `tuner run --from-misses` reads.

    The counts are added to the file at the end of the process and by `tuner.flush_misses()`. Calls of tuned problems
    cost nothing more. `$TUNER_MISSES` does the same from a process's first miss on.

    Args:
        where: the file, made if missing. None ends the counting.

    Raises:
        TableError: the file is no record of misses, or the file named before cannot be written.
    """
    global _resolver  # noqa: PLW0603
    from tuner.lookup import miss_counts

    miss_counts.start(where)
    with lookup_lock():
        _resolver = Resolver(_resolver.sources.named)  # answers and plans of before count nothing
    forget()


def row_of(problem: Problem, device: Device) -> Row | None:
    """The row that serves a problem, measured for this very one; None where another row or the formula does.

    Decides anew at each call: for what is asked once.

    Raises:
        KernelError: see `lookup`.
    """
    decision = resolver().decide(problem, device)
    return decision.row if decision.match.rule == "exact" else None


def near_configs(problem: Problem, device: Device) -> list[Config]:
    """The configs that other keys of a kernel under `tuner.tuned` were tuned to, those of the nearest key first."""
    _, by_source, _ = _resolver.explanation(problem, device)
    return match_rules.near_configs(problem, device, by_source)


def counter(problem: Problem, device: Device) -> Callable[[], Any] | None:
    """What counts a call that does not ask `lookup`; None unless its problem is missed and misses are recorded."""
    missed = _resolver.answers.missed.get((device.slug, problem))
    return None if missed is None else missed.counter.count


def on_change(forgets: Callable[[], Any]) -> None:
    """Register a function to call whenever earlier answers no longer hold."""
    _on_change.append(forgets)


def forget() -> None:
    """Call every function that `on_change` registered."""
    for forgets in _on_change:
        forgets()


def drop(problem: Problem, device: Device | None, match: Match, reason: str) -> Match:
    """Stop using a match in this process, because it cannot be launched; returns the match that takes its place.

    It is one warning. A formula's config is replaced by the next kernel's.

    Args:
        problem, device: what `match` was looked up for.
        match: the answer that failed.
        reason: what happened.

    Raises:
        KernelError: see `lookup`; or nothing is left.
    """
    where = device or resolver().here()
    with lookup_lock():
        make_room(match_rules.failed, match_rules.MOST_FAILED)
        match_rules.failed[where.slug, problem, match.config] = reason
        _resolver.answers.drop(problem, where.slug)
    return lookup(problem, device)


def resolver() -> Resolver:
    """The current resolver; `use` puts another in its place."""
    return _resolver


_resolver = Resolver(())
_on_change: list[Callable[[], Any]] = []
