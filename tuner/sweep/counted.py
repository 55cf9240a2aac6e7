"""Which runs' trials and decisions count for a run: all, or where it measures afresh only some."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.sweep.storage import StoreReader


@dataclass(slots=True)
class Counted:
    """The runs that count.

    Attributes:
        ids: theirs, as far as they are known; None where all count.
        since: the first of them by its name, where those that began later count too.
    """

    ids: frozenset[int] | None = None
    since: str | None = None

    def has(self, run_id: int) -> bool:
        """Whether a run's trials and decisions count."""
        return self.ids is None or run_id in self.ids

    def joined(self, *run_ids: int) -> Counted:
        """Return the same runs and others."""
        return self if self.ids is None else replace(self, ids=self.ids | {*run_ids})

    def renew(self, store: StoreReader) -> None:
        """Take note of the runs that began since the last call."""
        if self.ids is not None and self.since is not None:
            self.ids |= store.runs_since(self.since)


ALL = Counted()
