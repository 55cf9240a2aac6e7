"""Files are written complete or not at all."""

from __future__ import annotations

import pytest

from tuner import files
from tuner.errors import TableError, TunerError


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "table.json"
    path.write_text("before")
    assert files.write_text(path, "after \N{DUCK}") == path
    assert path.read_text(encoding="utf-8") == "after \N{DUCK}"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError, OSError])
def test_a_write_that_fails_in_the_middle_leaves_the_file_as_it_was(tmp_path, raised):
    path = tmp_path / "table.json"
    path.write_text("before")

    def fill(temporary):
        temporary.write_text("half of it")
        raise raised

    with pytest.raises(TunerError if raised is OSError else raised):
        files.write(path, fill)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_one_line_of_the_kind_asked_for(tmp_path):
    path = tmp_path / "missing" / "table.json"
    with pytest.raises(TableError, match=f"^cannot write {path}: No such file or directory$"):
        files.write_text(path, "", error=TableError)


def test_a_folder_is_made_with_those_above_it_and_a_file_in_its_place_is_refused(tmp_path):
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for taken in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TableError, match="is not a folder: name a folder to export into"):
            files.make_folder(taken)
