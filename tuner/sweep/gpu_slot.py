"""A worker's slot on a GPU that several share: whose problem is the oldest, and whose has the memory.

Who uses the GPU at what moment the workers decide among themselves, see `tuner.sweep.gpu_gate`.
"""

from __future__ import annotations

import math
import time

LARGE = 1 / 6
"""A problem that takes a larger share of the GPU's memory gets no other beside it: half of it is left for trials."""


class GpuSlot:
    """The slot of one worker on a GPU.

    Attributes:
        others: the other slots of the same GPU.
        is_alone: whether its problem needs the GPU's memory for itself.
        is_set: whether its problem is set up.
        holds_memory: whether its worker has operands of a problem, this one or the one before.
    """

    def __init__(self) -> None:
        """Begin as the GPU's only slot, without a problem."""
        self.others: tuple[GpuSlot, ...] = ()
        self.is_alone = self.is_set = self.holds_memory = False
        self._since, self._order = math.inf, 0

    def share(self) -> GpuSlot:
        """Return another slot of the same GPU."""
        another = GpuSlot()
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
        """Take a new problem."""
        self.is_alone = self.is_set = False
        self._since = time.monotonic()

    def restart_alone(self) -> None:
        """Note that the problem has to be set up once more, when no other problem takes the GPU's memory."""
        self.is_alone, self.is_set = True, False

    def end(self) -> None:
        """Give up the problem, which has ended."""
        self.is_set, self._since = False, math.inf

    def set_up(self, share: float) -> None:
        """Note that the problem is set up and takes this share of the GPU's memory."""
        self.is_set = True
        self.is_alone = self.is_alone or share > LARGE

    def vacate(self) -> None:
        """Note that the worker was replaced; the new one holds nothing."""
        self.is_set = self.holds_memory = False

    @property
    def age(self) -> tuple[float, int, int]:
        """Sorts slots: the oldest problem comes first; of free slots, those on the GPUs with the fewest problems."""
        return self._since, sum(other._since < math.inf for other in self.others), self._order

    @property
    def is_first(self) -> bool:
        """Whether no other slot of the GPU has an older problem."""
        return all(self.age < other.age for other in self.others)

    @property
    def has_room(self) -> bool:
        """Whether a problem may begin here: those in other slots are set up, and none needs the memory for itself."""
        return all(other.is_set and not other.is_alone for other in self.others if other._since < math.inf)

    @property
    def shares_memory(self) -> bool:
        """Whether another worker of the GPU holds operands too."""
        return any(other.holds_memory for other in self.others)

    @property
    def may_allocate(self) -> bool:
        """Whether the worker may allocate operands now: no problem that needs the memory for itself is in the way."""
        return not any(other.holds_memory and (self.is_alone or other.is_alone) for other in self.others)
