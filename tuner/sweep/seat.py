"""A worker's place on a GPU that several share: whose turn it is, and whose problem has the memory.

They take turns. A turn is one request and its replies, and whatever a worker does on the GPU is part of its turn, from
opening it to its death.
"""

from __future__ import annotations

import math
import time

LARGE = 1 / 6
"""A problem that takes a larger share of the GPU's memory gets no other beside it: half of it is left for trials."""


class Seat:
    """One of the places on a GPU.

    Attributes:
        others: the others on the same GPU.
        is_on_device: whether it is this place's turn.
        is_alone: whether its problem has to have the GPU's memory for itself.
        is_set: whether its problem is set up.
        holds_memory: whether its worker has operands of a problem, this one or the one before.
    """

    def __init__(self) -> None:
        """Begin as the only place, without a problem."""
        self.others: tuple[Seat, ...] = ()
        self.is_on_device = self.is_alone = self.is_set = self.holds_memory = False
        self._since, self._order = math.inf, 0

    def share(self) -> Seat:
        """Return another place on the same GPU."""
        another = Seat()
        another.others = (self, *self.others)
        another._order = len(another.others)
        for each in another.others:
            each.others += (another,)
        return another

    def leave(self) -> None:
        """Leave the GPU to the others."""
        for other in self.others:
            other.others = tuple(each for each in other.others if each is not self)
        self.others = ()

    def begin(self) -> None:
        """Have a new problem."""
        self.is_alone = self.is_set = False
        self._since = time.monotonic()

    def begin_anew_alone(self) -> None:
        """Have the problem set up once more, when no other takes the GPU's memory."""
        self.is_alone, self.is_set = True, False

    def end(self) -> None:
        """Have no problem."""
        self.is_set, self._since = False, math.inf

    def set_up(self, share: float) -> None:
        """Have the problem set up, which takes a share of the GPU's memory."""
        self.is_set = True
        self.is_alone = self.is_alone or share > LARGE

    def vacate(self) -> None:
        """Have another worker, which holds nothing."""
        self.is_on_device = self.is_set = self.holds_memory = False

    @property
    def age(self) -> tuple[float, int, int]:
        """The least has the oldest problem and comes first; of free places, one on a GPU with the fewest problems."""
        return self._since, sum(other._since < math.inf for other in self.others), self._order

    @property
    def is_first(self) -> bool:
        """Whether no other place has an older problem."""
        return all(self.age < other.age for other in self.others)

    @property
    def has_room(self) -> bool:
        """Whether the GPU has room for its problem: once all that are there are set up and leave memory."""
        return all(other.is_set and not other.is_alone for other in self.others if other._since < math.inf)

    @property
    def is_beside(self) -> bool:
        """Whether another worker has operands of a problem."""
        return any(other.holds_memory for other in self.others)

    def has_turn(self, *, takes_memory: bool = False) -> bool:
        """Return whether no other is in the way."""
        return not any(
            other.is_on_device or (takes_memory and other.holds_memory and (self.is_alone or other.is_alone))
            for other in self.others
        )
