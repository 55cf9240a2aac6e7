"""The Python files of packages that need more than tests do: the wheel of the exact version, unpacked into a cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "flag_gems": "5.0.2"}
EXPERTS = ("vllm", "sglang")
_KEPT = (".py", ".json", ".yaml")


def folder(name: str) -> Path:
    """Return a folder for `sys.path` in which a package's Python files and configs lie; downloads them once."""
    cache = Path(os.environ.get("TUNER_TEST_CACHE") or Path.home() / ".cache" / "triton-tuner-tests")
    found = cache / f"{name}-{VERSIONS[name]}"
    if not found.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _unpack(_wheel(name, Path(scratch)), Path(scratch) / "unpacked")
            try:
                (Path(scratch) / "unpacked").rename(found)
            except OSError:  # another process was quicker
                assert found.exists()
    return found


def path_of(*names: str) -> str:
    """Return the folders as PYTHONPATH has them, before what it holds already."""
    return os.pathsep.join([*map(str, map(folder, names)), *filter(None, [os.environ.get("PYTHONPATH")])])


def _wheel(name: str, into: Path) -> Path:
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    # The wheel is read, never installed, so these only have to be what the packages have wheels for.
    tags = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")
    platform = [word for tag in tags for word in ("--platform", tag)]
    python = ["--python-version", "3.12", "--dest", str(into)]
    subprocess.run([*asked, *platform, *python, f"{name}=={VERSIONS[name]}"], check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def _unpack(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into, [name for name in archive.namelist() if name.endswith(_KEPT)])
    wheel.unlink()
