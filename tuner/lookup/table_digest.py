"""A table's digest: SHA-256 over the file's text without the lines of its date and of the digest itself.

So it is checked without parsing anything, unless another program rewrote the file (indented otherwise, its keys
sorted): of such a file the table that was read is written again, and its digest compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

_SIGNATURE = re.compile(rb'\n  "date": "[^"\\\n]*",\n  "digest": "(sha256:[0-9a-f]{64})",(?=\n)')
_ONE_A_LINE = ("environments", "rows", "families")


def unsigned_text(document: Mapping[str, Any]) -> str:
    """A file's text without its date and digest.

    Raises:
        ValueError: a number is none that JSON has.
    """
    dumped = partial(json.dumps, allow_nan=False)
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
