"""Which journal a SQLite file may use where it lies: all users of a write-ahead log must share memory."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

# fmt: off
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs",
    "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
})
# fmt: on
"""The types of file systems, as /proc/mounts spells them, that other machines may have mounted too."""

_MOUNTS = Path("/proc/mounts")


def journal_mode(path: Path) -> str:
    """The journal of a database at `path`: "wal" on a local disk, "delete" on a network file system.

    Source: https://www.sqlite.org/wal.html, "WAL does not work over a network filesystem".
    """
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return "wal"
    return "delete" if is_network(file_system(PurePosixPath(os.path.realpath(path)), mounts)) else "wal"


def file_system(path: PurePosixPath, mounts: str) -> str:
    """The type of the file system an absolute path lies on; of two mounts at one point the later covers the earlier."""
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = PurePosixPath(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))
        if len(point.parts) >= best and path.is_relative_to(point):
            best, found = len(point.parts), fields[2]
    return found


def is_network(file_system_type: str) -> bool:
    """Whether a type of file system is shared over a network. FUSE is taken to be (sshfs, s3fs), but for overlays."""
    if file_system_type.startswith("fuse."):
        return file_system_type != "fuse.fuse-overlayfs"
    return file_system_type in NETWORK
