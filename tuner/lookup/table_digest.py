"""A table's digest: SHA-256 over the file's text without the lines of its date and of the digest itself.

It can be checked without parsing anything, unless another program rewrote the file (indented otherwise, its keys
sorted): such a file is brought into our form first, since the digest stands for what a table says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from tuner.hardware.device import IDENTITY, Environment
from tuner.lookup.regret import Regret
from tuner.lookup.row import PROBLEM, RESULT

PARTS = ("format", "version", "op", "device", "kernels", "environments", "regret", "rows")
"""The parts of a file in its order. The date and the digest stand after `op`; `regret` may be missing."""

_SIGNATURE = re.compile(rb'\n  "date": "[^"\\\n]*",\n  "digest": "(sha256:[0-9a-f]{64})",(?=\n)')
_ONE_A_LINE = ("environments", "rows")
_DEVICE = IDENTITY
_REGRET = tuple(field.name for field in fields(Regret))
_MADE = (*(field.name for field in fields(Environment)), "protocol", "tool_version")


def unsigned_text(document: Mapping[str, Any], *, strict: bool = True) -> str:
    """A file's text without its date and digest.

    Args:
        document: the other parts by name, in the order of PARTS.
        strict: raise ValueError for numbers that JSON lacks.
    """

    def dumped(value: Any) -> str:
        return json.dumps(value, allow_nan=not strict)

    lines = []
    for name, value in document.items():
        if name in _ONE_A_LINE:
            inner = ",\n".join(f"    {dumped(each)}" for each in value)
            lines.append(f"  {dumped(name)}: [\n{inner}\n  ]")
        else:
            lines.append(f"  {dumped(name)}: {dumped(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def signed_text(unsigned: str, date: str) -> str:
    """A file's text, made of the text without its date and digest."""
    place = unsigned.index('\n  "device": ')
    signature = f'\n  "date": {json.dumps(date)},\n  "digest": "{digest(unsigned)}",'
    return f"{unsigned[:place]}{signature}{unsigned[place:]}"


def digest(unsigned: str) -> str:
    """The digest of a file, given its text without date and digest."""
    return f"sha256:{hashlib.sha256(unsigned.encode()).hexdigest()}"


def is_as_written(content: bytes) -> bool:
    """Whether a file is as `signed_text` made it, to the byte but for its date."""
    signature = _SIGNATURE.search(content)
    if signature is None:
        return False
    found = hashlib.sha256(content[: signature.start()])
    found.update(memoryview(content)[signature.end() :])
    return f"sha256:{found.hexdigest()}".encode() == signature[1]


def is_intact(document: Mapping[str, Any]) -> bool:
    """Whether a parsed file says what it said when it was written.

    Raises:
        LookupError, TypeError: a part is missing or of another kind.
    """
    said = {name: document[name] for name in PARTS if name != "regret" or name in document}
    said |= {name: document[name] for name in sorted(document.keys() - {*PARTS, "date", "digest"})}
    said["device"] = _in_order(said["device"], _DEVICE)
    said["kernels"] = _in_order(said["kernels"])
    said["environments"] = [_in_order(made, _MADE) for made in said["environments"]]
    if isinstance(said.get("regret"), dict):
        said["regret"] = {name: _in_order(value, _REGRET) for name, value in _in_order(said["regret"]).items()}
    said["rows"] = [_row_in_order(raw) for raw in said["rows"]]
    return bool(document.get("digest") == digest(unsigned_text(said, strict=False)))


def _row_in_order(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    return {name: _in_order(value) for name, value in _in_order(raw, (*PROBLEM, *RESULT)).items()}


def _in_order(value: Any, names: Iterable[str] = ()) -> Any:
    """An object's parts in our order: the known ones, then the others sorted."""
    if not isinstance(value, dict):
        return value
    known = [name for name in names if name in value]
    return {name: value[name] for name in (*known, *sorted(value.keys() - set(known)))}
