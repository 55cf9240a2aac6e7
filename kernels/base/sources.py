"""A digest of the kernels' sources, which says whether what was exported is what these kernels launch."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator

from tuner.files import content

_HERE = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120


@functools.cache
def digest() -> str:
    """SHA-256 over the kernels' modules; "" where they are not files, as in a zip archive."""
    found = hashlib.sha256()
    try:
        names = sorted(_modules(_HERE))
        for name in names:
            source = content(f"{_HERE}/{name}")
            found.update(f"{name} {len(source)}\n".encode())
            found.update(source)
    except OSError:
        return ""
    return found.hexdigest() if names else ""


def _modules(folder: str, above: str = "") -> Iterator[str]:
    """The modules in a folder and below it, by their paths from it; not by `glob`: a first call waits for this."""
    with os.scandir(folder) as entries:
        for each in entries:
            if each.name.startswith((".", "__pycache__")):
                continue
            if each.name.endswith(".py"):
                yield above + each.name
            elif each.is_dir():
                yield from _modules(each.path, f"{above}{each.name}/")
