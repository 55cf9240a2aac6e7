"""The sources of lookups in their order, and what each holds for the devices that were asked about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.lookup.decision import Match
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.lookup_lock import lookup_lock
from tuner.lookup.row import Row
from tuner.problem import Problem
from tuner.problem.batches import split
from tuner.problem.family import Range

if TYPE_CHECKING:
    from tuner.lookup.sources import Source


class ReadSources:
    """The sources, each read once for a device, when its turn comes: a hit in the first reads no other.

    Attributes:
        named: what `use` named, the latest first.
    """

    def __init__(self, named: tuple[Source, ...]) -> None:
        """Begin with nothing read."""
        self.named = named
        self._all: list[Source] | None = None
        self._winners: dict[tuple[str, int], DeviceWinners] = {}
        self._relatives: dict[tuple[str, int], list[DeviceWinners]] = {}
        self._devices: dict[str, Device] = {}

    def all(self) -> list[Source]:
        """All sources in the order they are asked."""
        with lookup_lock():
            if self._all is None:
                from tuner.lookup import sources

                self._all = [*self.named, *sources.default_sources()]
            return self._all

    def device(self, named: str) -> Device:
        """The device of a slug or name.

        Raises:
            DeviceError: none is known by it, or several are.
        """
        if (known := self._devices.get(named)) is None:
            from tuner.lookup import device_names

            known = self._devices[named] = device_names.named(named, self.all())
        return known

    def own(self, slug: str, *, ours: bool | None = None) -> Iterator[DeviceWinners]:
        """What each source holds for a device itself.

        Args:
            slug: the device's.
            ours: True for the tables that come with triton-tuner alone, False for all others; these need not be read
                where the others serve.
        """
        asked = [index for index, source in enumerate(self.all()) if ours is None or _is_ours(source) == ours]
        return (self._read(index, slug) for index in asked)

    def is_ours(self, name: str) -> bool:
        """Whether a source of this name comes with triton-tuner."""
        return any(source.name == name for source in self.all() if _is_ours(source))

    def of_relatives(self, device: Device) -> Iterator[DeviceWinners]:
        """What each source holds for other devices of a device's architecture."""
        for index, source in enumerate(self.all()):
            with lookup_lock():
                if (device.slug, index) not in self._relatives:
                    found = devices.of_one_arch(device, source.slugs())
                    self._relatives[device.slug, index] = [self._read(index, slug) for slug in found]
            yield from self._relatives[device.slug, index]

    def ranges_of_family(self, problem: Problem, device: Device, match: Match) -> Iterator[tuple[Range, Row]]:
        """The ranges of a problem's family with their rows, in the source that gave an answer and before it."""
        key, batch = split(problem)
        for winners in self.own(device.slug):
            tuned = winners.families.get(key)
            if (family := tuned.at(batch) if tuned else None) is not None:
                for place, each in enumerate(family.ranges):
                    yield from ((each, row) for row in winners.rows.get(family.row(place), ()))
            if winners.source == match.source:
                break  # what no lookup has read so far stays unread

    def _read(self, index: int, slug: str) -> DeviceWinners:
        if (known := self._winners.get((slug, index))) is not None:
            return known  # what is there stays, so this needs no lock
        with lookup_lock():
            if (slug, index) not in self._winners:
                self._winners[slug, index] = self.all()[index].winners(slug)._replace(device=slug)
            return self._winners[slug, index]


def _is_ours(source: Source) -> bool:
    return getattr(source, "is_ours", False)
