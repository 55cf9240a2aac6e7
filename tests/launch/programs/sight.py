"""What the driver says of a GPU that is there, and of one that is not; then what a worker says of the first.

Prints both, whether torch was imported, whether the worker sees the same, and its last word: a torch without CUDA, or
for which the GPUs are hidden, finds none.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from tuner.errors import DeviceError
from tuner.sweep.sighting import sight
from tuner.sweep.worker import Worker


def main() -> None:
    there, missing = sight(0), sight(1)
    assert there is not None
    found = {"device": dataclasses.astuple(there), "missing": missing, "torch": "torch" in sys.modules}
    worker = Worker(0)
    found["same"] = dataclasses.astuple(worker.sighted()) == dataclasses.astuple(there)
    try:
        worker.hello()
    except DeviceError as e:
        found["refused"] = str(e)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
