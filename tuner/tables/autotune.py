"""Winners as lists of configs for `triton.autotune`: each config that won anywhere on a device, once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import files
from tuner.errors import TableError
from tuner.kernel.config import Config
from tuner.lookup.table import Table

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What `triton.Config` takes beside `kwargs`."""
_OURS = ("launch_pdl",)
"""Left out, because only a kernel that waits for its predecessor itself may be launched so."""


@dataclass(frozen=True, slots=True)
class ConfigList:
    """The configs of one kernel that won a problem on one device.

    Attributes:
        op, kernel, device: what the list is for; the device by its slug.
        entries: arguments of `triton.Config`, those that won most problems first.
    """

    op: str
    kernel: str
    device: str
    entries: tuple[dict[str, Any], ...]

    @property
    def file_name(self) -> str:
        """`<op>.<kernel>.<device slug>.triton.json`, which no lookup takes for a table."""
        return f"{self.op}.{self.kernel}.{self.device}.triton.json"

    def write(self, directory: Path) -> Path:
        """Write the list into a folder, complete or not at all; returns its path."""
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in self.entries)
        return files.write_text(directory / self.file_name, f"[\n{lines}\n]\n", error=TableError)


def lists(tables: Iterable[Table]) -> list[ConfigList]:
    """A list for each op, kernel and device of some tables, in sorted order."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for table in tables:
        for row in table.rows:
            key = (table.op, row.config.kernel, table.device.slug)
            found.setdefault(key, Counter())[json.dumps(_entry(row.config))] += 1
    return [
        ConfigList(
            *key, tuple(json.loads(text) for text, _ in sorted(won.items(), key=lambda item: (-item[1], item[0])))
        )
        for key, won in sorted(found.items())
    ]


def _entry(config: Config) -> dict[str, Any]:
    parameters = {name: value for name, value in config.pairs if name not in _OURS}
    options = {name: parameters.pop(name) for name in _OPTIONS if name in parameters}
    return {"kwargs": parameters, **options}
