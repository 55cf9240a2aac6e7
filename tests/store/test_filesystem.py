from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path, PurePosixPath

import pytest

from tuner.store import filesystem
from tuner.store.store import Store

MOUNTS = """\
overlay / overlay rw,relatime 0 0
proc /proc proc rw 0 0
/dev/nvme0n1 /scratch ext4 rw 0 0
filer:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/me/local xfs rw 0 0
//win/share /mnt/my\\040share cifs rw 0 0
me@far:/ /mnt/ssh fuse.sshfs rw 0 0
me /mnt/layers fuse.fuse-overlayfs rw 0 0
10.0.0.1@tcp:/lus /lustre lustre rw 0 0
/dev/sdc1 /covered ext4 rw 0 0
filer:/c /covered nfs rw 0 0
host /mnt/host 9p rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "file_system", "network"),
    [
        ("/root/tuner.db", "overlay", False),
        ("/scratch/a/tuner.db", "ext4", False),
        ("/scratchpad/tuner.db", "overlay", False),
        ("/home/me/tuner.db", "nfs4", True),
        ("/home/me/local/tuner.db", "xfs", False),
        ("/mnt/my share/tuner.db", "cifs", True),
        ("/mnt/ssh/tuner.db", "fuse.sshfs", True),
        ("/mnt/layers/tuner.db", "fuse.fuse-overlayfs", False),
        ("/lustre/tuner.db", "lustre", True),
        ("/covered/tuner.db", "nfs", True),
        ("/mnt/host/tuner.db", "9p", True),
    ],
)
def test_network_file_systems_are_told_from_local_disks(path, file_system, network):
    found = filesystem.file_system(PurePosixPath(path), MOUNTS)
    assert (found, filesystem.is_network(found)) == (file_system, network)


def mode_of(database: Path) -> str:
    with closing(sqlite3.connect(database)) as plain:
        return plain.execute("PRAGMA journal_mode").fetchone()[0]


@pytest.fixture
def on_nfs(tmp_path, monkeypatch):
    """This folder seems to lie on NFS."""
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nfiler:/x {tmp_path.resolve()} nfs4 rw 0 0\n")
    return lambda: monkeypatch.setattr(filesystem, "_MOUNTS", mounts)


def test_a_local_database_logs_ahead(tmp_path):
    Store.open(str(tmp_path / "tuner.db")).close()
    assert mode_of(tmp_path / "tuner.db") == "wal"


def test_a_database_on_a_network_file_system_does_not_log_ahead(tmp_path, on_nfs):
    on_nfs()
    Store.open(str(tmp_path / "tuner.db")).close()
    assert mode_of(tmp_path / "tuner.db") == "delete"


def test_a_database_that_moved_to_a_network_file_system_stops_logging_ahead(tmp_path, on_nfs):
    Store.open(str(tmp_path / "tuner.db")).close()
    on_nfs()
    Store.open(str(tmp_path / "tuner.db")).close()
    assert mode_of(tmp_path / "tuner.db") == "delete"


def test_a_system_without_a_list_of_mounts_counts_as_local(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "absent")
    assert filesystem.journal_mode(tmp_path / "tuner.db") == "wal"
