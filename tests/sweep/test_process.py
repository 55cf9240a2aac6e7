"""What children of a sweep leave behind is removed, and what others still use is not."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tuner.sweep.process import scratch_folder


def test_folders_of_killed_processes_are_removed_but_not_those_of_another_containers(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with scratch_folder() as mine:
        head, _, _ = Path(mine).name.rpartition("-")
        namespace = head.split("-")[2]
        left = tmp_path / f"tuner-sweep-{namespace}-{ended.pid}-x"
        foreign = tmp_path / f"tuner-sweep-{int(namespace) + 1}-{ended.pid}-x"  # its number is another process's there
        for folder in (left, foreign):
            folder.mkdir()
        with scratch_folder():
            assert [folder.exists() for folder in (Path(mine), left, foreign)] == [True, False, True]
