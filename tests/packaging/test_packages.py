"""What pyproject.toml says is shipped, held to the folders that there are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = {package: ROOT / folder for package, folder in SETUPTOOLS["package-dir"].items()}


def test_every_folder_with_an_init_is_a_package_and_nothing_else_is():
    found = {
        ".".join((package, *init.parent.relative_to(folder).parts))
        for package, folder in FOLDERS.items()
        for init in folder.rglob("__init__.py")
    }
    assert SETUPTOOLS["packages"] == sorted(found)


def test_every_module_lies_in_a_package():
    modules = {module.parent for folder in FOLDERS.values() for module in folder.rglob("*.py")}
    assert [folder for folder in modules if not (folder / "__init__.py").exists()] == []


def test_every_file_that_is_no_module_is_package_data_and_every_pattern_finds_one():
    for package, folder in FOLDERS.items():
        patterns = {pattern: set(folder.glob(pattern)) for pattern in SETUPTOOLS["package-data"].get(package, [])}
        assert all(patterns.values()), patterns
        data = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
        assert data == set().union(*patterns.values())
