"""Which node works on which problem: leases, given back when a node dies and stolen when another has nothing to do.

The queue knows neither Ray nor a clock: every call that depends on time is told the time, in seconds. There is one
queue for each device and environment.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Node = str

LEASE_S = 20.0
"""A node that was silent for this long loses its leases; a live one answers twice a second."""
HORIZON_S = 30.0
"""How much work a GPU holds, by its estimate: enough to compile ahead, and not to run dry beside a slow driver."""
MAX_DEATHS = 3
"""Work that this many nodes had begun when they died is given up: it may be what they died of."""
_NONE = object()
"""The class of a node that has taken nothing yet."""


@dataclass(frozen=True, slots=True)
class Work(Generic[K]):
    """Work that is leased to one node as a whole.

    Attributes:
        key: what it is: a problem or a ladder.
        cost_s: how long one GPU will take, by an estimate.
        compile_class: work of one class shares binaries, so it goes to as few nodes as possible.
    """

    key: K
    cost_s: float
    compile_class: Hashable = None


@dataclass(slots=True)
class _Member(Generic[K]):
    """A node at work.

    Attributes:
        gpus: how many it has; 1 with the interpreter.
        joined, heard: when it came and when it was last heard of, as every `now` is.
        held: of each of its leases, whether the work has begun.
        unsent: leases that it has not been told of, as they were stolen for it.
        asked_back: leases that it was asked to give back.
        held_s, done_s: estimated seconds of one GPU's work that it holds, and that it has done.
        compile_class: that of the work it took last.
    """

    gpus: int
    joined: float
    heard: float
    held: dict[K, bool] = field(default_factory=dict)
    unsent: list[K] = field(default_factory=list)
    asked_back: set[K] = field(default_factory=set)
    held_s: float = 0.0
    done_s: float = 0.0
    compile_class: Hashable = _NONE

    def speed(self, now: float) -> float | None:
        """How fast each of its GPUs works, in estimated seconds of work per second; None as long as nothing ended."""
        return self.done_s / max(now - self.joined, 1e-9) / self.gpus if self.done_s else None


class Queue(Generic[K]):
    """Work that is waiting, held by nodes, or over.

    Classes go together: a node takes from the class that it is on, and then from the one with the most work left for
    each GPU on it. Within a class the longest work goes first. Near the end nodes hold less and less. Every `now` is in
    seconds of one clock that never goes back, as `time.monotonic`.
    """

    def __init__(self, work: Iterable[Work[K]]) -> None:
        """List what is to be done; of two pieces of work with one key the first counts."""
        self._work: dict[K, Work[K]] = {}
        for each in work:
            self._work.setdefault(each.key, each)
        self._waiting: dict[Hashable, deque[K]] = {}
        for each in sorted(self._work.values(), key=lambda one: -one.cost_s):
            self._waiting.setdefault(each.compile_class, deque()).append(each.key)
        self._left_s = {name: sum(self._work[key].cost_s for key in keys) for name, keys in self._waiting.items()}
        self._waiting_s, self._count = sum(self._left_s.values()), len(self._work)
        self._gpus_on = dict.fromkeys(self._waiting, 0)
        self._members: dict[Node, _Member[K]] = {}
        self._thieves: dict[K, Node] = {}
        self._stolen: set[K] = set()
        self._deaths: dict[K, int] = {}
        self._gpu_speed, self._speed, self._speed_at = 1.0, 0.0, 0.0
        self._in_vain_at = -math.inf
        self.over: set[K] = set()
        self.given_up: set[K] = set()

    def __len__(self) -> int:
        """How much is neither over nor given up."""
        return len(self._work) - len(self.over) - len(self.given_up)

    @property
    def unfinished(self) -> list[K]:
        """What is neither over nor given up, in the order it was listed."""
        return [key for key in self._work if key not in self.over and key not in self.given_up]

    def held(self, node: Node) -> Sequence[K]:
        """What a node holds, whether or not it was sent."""
        return tuple(self._members[node].held)

    def join(self, node: Node, gpus: int, now: float) -> None:
        """Take on a node with this many GPUs; a node may join at any time."""
        self._members[node] = _Member(gpus, now, now)
        self._speed = 0.0  # to be worked out again

    def heartbeat(self, node: Node, now: float) -> None:
        """Renew a node's leases."""
        self._members[node].heard = now

    def take(self, node: Node, now: float) -> list[K]:
        """Lease a node what it should hold beyond what it has; what it stole comes first."""
        member = self._members[node]
        taken, member.unsent = member.unsent, []
        self._watch_speed(now)
        speed = member.gpus * (member.speed(now) or self._gpu_speed)
        share_s = min(self._waiting_s / 2 * speed / self._speed, HORIZON_S * member.gpus)
        while self._count and (len(member.held) < 2 * member.gpus or member.held_s < share_s):
            if self._would_delay(member, speed):
                break
            taken.append(self._next(member))
            self._lease(member, taken[-1])
        return taken

    def begun(self, node: Node, key: K) -> None:
        """Note that a node has begun something, which is no longer stolen from it."""
        member = self._members[node]
        if key in member.held:
            member.held[key] = True

    def ended(self, node: Node, key: K) -> None:
        """Note that a node is done with something that it holds, however it went."""
        member = self._members[node]
        if key in member.held:
            self._release(member, key)
            member.done_s += self._work[key].cost_s
            self.over.add(key)

    def steal(self, thief: Node, now: float) -> tuple[Node, list[K]] | None:
        """Choose what a node with nothing to do should get of another that has not begun it.

        The other node is asked to give it back, once, and says by `returned` what it had not begun. What was stolen
        once stays where it went.

        Returns:
            The node to ask, and for what; None where there is nothing to steal, or the thief has work or is waiting.
        """
        mine = self._members[thief]
        if self._count or len(mine.held) >= mine.gpus or thief in self._thieves.values():
            return None
        if 0 <= now - self._in_vain_at < 1:
            return None
        free = {node: self._stealable(each) for node, each in self._members.items() if node != thief}
        late = {node: sum(self._work[key].cost_s for key in keys) for node, keys in free.items()}
        speeds = {node: each.gpus * (each.speed(now) or self._gpu_speed) for node, each in self._members.items()}
        late = {node: cost_s / speeds[node] for node, cost_s in late.items() if cost_s}
        if not late:
            self._in_vain_at = now
            return None
        victim = max(late, key=lambda node: late[node])
        asked = free[victim][: max(1, len(free[victim]) // 2)][: mine.gpus]
        self._members[victim].asked_back.update(asked)
        self._thieves.update(dict.fromkeys(asked, thief))
        return victim, asked

    def returned(self, node: Node, asked: Iterable[K], returned: Iterable[K]) -> None:
        """Note what a node that was asked gave back: it goes to the thief, or waits again where that one died."""
        member, given = self._members[node], set(returned)
        for key in asked:
            member.asked_back.discard(key)
            thief = self._thieves.pop(key, None)
            if key not in given or key not in member.held:
                continue
            self._release(member, key)
            self._stolen.add(key)
            if thief in self._members:
                self._lease(self._members[thief], key)
                self._members[thief].unsent.append(key)
            else:
                self._put_back(key)

    def leave(self, node: Node, *, died: bool = True) -> list[K]:
        """Take a node's leases back: it died, or is done.

        Returns:
            What is given up, because too many nodes died that had begun it.
        """
        member = self._members.pop(node)
        self._speed = 0.0
        self._move(member, _NONE)
        lost = []
        for key, begun in member.held.items():
            self._thieves.pop(key, None)
            self._deaths[key] = self._deaths.get(key, 0) + (died and begun)
            if self._deaths[key] >= MAX_DEATHS:
                self.given_up.add(key)
                lost.append(key)
            else:
                self._put_back(key)
        for key in [key for key, thief in self._thieves.items() if thief == node]:
            self._thieves[key] = ""  # it is given back all the same, and waits
        return lost

    def expired(self, now: float) -> list[Node]:
        """The nodes that have been silent for too long; `leave` takes their leases back."""
        return [node for node, member in self._members.items() if now - member.heard > LEASE_S]

    def _stealable(self, member: _Member[K]) -> list[K]:
        return [
            key
            for key, begun in member.held.items()
            if not begun and key not in self._stolen and key not in member.asked_back and key not in member.unsent
        ]

    def _lease(self, member: _Member[K], key: K) -> None:
        member.held[key] = False
        member.held_s += self._work[key].cost_s

    def _release(self, member: _Member[K], key: K) -> None:
        del member.held[key]
        member.held_s -= self._work[key].cost_s

    def _put_back(self, key: K) -> None:
        work = self._work[key]
        self._waiting[work.compile_class].appendleft(key)
        self._add(work, 1)

    def _next(self, member: _Member[K]) -> K:
        if member.compile_class is _NONE or not self._waiting[member.compile_class]:
            # What is left for each GPU, were this node's to come to it.
            left = {name: self._left_s[name] / (self._gpus_on[name] + member.gpus) for name in self._waiting}
            self._move(member, max((name for name in left if self._waiting[name]), key=lambda name: left[name]))
        key = self._waiting[member.compile_class].popleft()
        self._add(self._work[key], -1)
        return key

    def _add(self, work: Work[K], count: int) -> None:
        self._left_s[work.compile_class] += count * work.cost_s
        self._waiting_s += count * work.cost_s
        self._count += count

    def _would_delay(self, member: _Member[K], speed: float) -> bool:
        """Whether a slow node would end its next work later than the others do when they take that, too."""
        cost_s = self._waiting_s / self._count
        ends_s = max(member.held_s + cost_s, cost_s * member.gpus) / speed
        return ends_s > self._waiting_s / self._speed + 2 * cost_s / self._gpu_speed

    def _watch_speed(self, now: float) -> None:
        """Work out how fast a GPU is in the mean, and all together; once a second, for there may be thousands."""
        if 0 <= now - self._speed_at < 1 and self._speed:
            return
        known = [(each.gpus, speed) for each in self._members.values() if (speed := each.speed(now)) is not None]
        gpus = sum(gpus for gpus, _ in known)
        self._gpu_speed = sum(gpus * speed for gpus, speed in known) / gpus if gpus else 1.0
        self._speed = self._gpu_speed * sum(each.gpus for each in self._members.values())
        self._speed_at = now

    def _move(self, member: _Member[K], compile_class: Hashable) -> None:
        if member.compile_class in self._gpus_on:
            self._gpus_on[member.compile_class] -= member.gpus
        member.compile_class = compile_class
        if compile_class in self._gpus_on:
            self._gpus_on[compile_class] += member.gpus
