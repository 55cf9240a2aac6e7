"""The device that a slug, a driver's name or a word such as h200 stands for: of a source's rows, or a known one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tuner.errors import DeviceError
from tuner.hardware.device import INTERPRETER, MODELS, Device, slug_of

if TYPE_CHECKING:
    from tuner.lookup.sources import Source


def named(name: object, sources: Iterable[Source]) -> Device:
    """Return the device of a slug ("nvidia-h200-sm90-132"), or of a name in any case ("NVIDIA H200") or a word of it.

    Raises:
        DeviceError: there is none, or more than one; an architecture is not a device.
        TableError: the source that has rows for it cannot be read.
    """
    if not isinstance(name, str):
        raise DeviceError(
            f"device is {name!r}: expected a slug, a name or a Device; for GPU 0 use tuner.device.current(0)"
        )
    known = {device.slug: device for device in (INTERPRETER, *MODELS)}
    holding = {slug: source for source in sources for slug in source.slugs()}
    slugs = sorted({*known, *holding})
    found = matching(slugs, name)
    if len(found) == 1 and found[0] in holding:
        known |= {device.slug: device for device in holding[found[0]].devices()}
    if len(found) == 1 and found[0] in known:
        return known[found[0]]
    if its := found or [slug for slug in slugs if slug.split("-")[-2:-1] == [name.lower().replace("_", "")]]:
        what = "the name of several devices" if found else "an architecture"
        raise DeviceError(f"{name!r} is {what}: expected a device; use {' or '.join(map(repr, its))}")
    raise DeviceError(f"unknown device {name!r}: expected one of {', '.join(slugs)}")


def matching(slugs: Iterable[str], name: str) -> list[str]:
    """The slugs that a name stands for: itself; else those of devices called so; else those with it as a word."""
    given = list(slugs)
    if name in given:
        return [name]
    return [slug for slug in given if _is_of(slug, name)] or [slug for slug in given if name.lower() in _words(slug)]


def is_named(slug: str, name: str | None) -> bool:
    """Whether a name stands for a slug, among others perhaps; None stands for all."""
    return name is None or bool(matching([slug], name))


def _is_of(slug: str, name: str) -> bool:
    """Whether a slug is of a device that its driver calls by a name."""
    _, *rest = slug.rsplit("-", 2)
    if len(rest) < 2:
        return slug == INTERPRETER.slug and name.lower() == INTERPRETER.name.lower()
    return slug == slug_of(name, rest[0], int(rest[1]) if rest[1].isdigit() else 0)


def _words(slug: str) -> list[str]:
    """The words of a device's name in its slug, without architecture and number of multiprocessors."""
    return slug.split("-")[:-2]
