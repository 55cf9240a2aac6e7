"""Which trials a page shows where there are more than a browser can draw."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.store.listing import TrialRow

MOST_TRIALS = 20_000


def thinned(trials: Sequence[TrialRow], kept: set[int], *, most: int = MOST_TRIALS) -> list[TrialRow]:
    """Return all trials, or about `most` of them: those of `kept` and every n-th of the others, in their order.

    Args:
        trials: the trials, the oldest first.
        kept: ids of trials that are in every case shown.
        most: how many.
    """
    others = [trial.trial_id for trial in trials if trial.trial_id not in kept]
    room = max(0, most - (len(trials) - len(others)))
    if len(others) <= room:
        return list(trials)
    # Spread evenly over the run: of n others, those at 0, n/room, 2n/room ...
    chosen = kept | {others[number * len(others) // room] for number in range(room)}
    return [trial for trial in trials if trial.trial_id in chosen]
