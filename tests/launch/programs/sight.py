"""What the driver says of a GPU that is there, and of one that is not; prints both, and whether torch was imported."""

from __future__ import annotations

import dataclasses
import json
import sys

from tuner.sweep.sighting import sight

there, missing = sight(0), sight(1)
assert there is not None
found = {"device": dataclasses.astuple(there), "missing": missing, "torch": "torch" in sys.modules}
sys.stdout.write(json.dumps(found) + "\n")
