"""A node takes back the priority that Ray takes from its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, threading
from pathlib import Path
from tuner.fleet import node

os.nice(7)
here, done = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: (here.set(), done.wait()))
thread.start()
here.wait()
if {refused}:
    def refuse(*_): raise PermissionError
    os.setpriority = refuse
node.take_priority_back()
print(sorted({{os.getpriority(os.PRIO_PROCESS, int(each.name)) for each in Path("/proc/self/task").iterdir()}}))
done.set()
"""


def _may_raise() -> bool:
    program = "import os; os.nice(1); os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)"
    return subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("refused", [False, True])
def test_every_thread_has_the_priority_of_the_parent_where_that_is_allowed(refused):
    if not refused and not _may_raise():
        pytest.skip("this user may not raise a priority")
    command = [sys.executable, "-c", PROGRAM.format(refused=refused)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    normal = os.getpriority(os.PRIO_PROCESS, 0)
    found = json.loads(done.stdout)
    assert found[-1] == (min(normal + 7, 19) if refused else normal)
    assert found == [normal] or refused  # a library's own thread may be older than the program's first line
