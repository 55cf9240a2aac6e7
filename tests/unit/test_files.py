"""Files are written complete or not at all."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tuner import files
from tuner.errors import TableError, TunerError


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "table.json"
    path.write_text("before")
    assert files.write_text(path, "after \N{DUCK}") == path
    assert path.read_text(encoding="utf-8") == "after \N{DUCK}"
    assert list(tmp_path.iterdir()) == [path]


def test_writers_of_one_process_number_do_not_take_each_others_temporary_file(tmp_path):
    """Threads have one; so may processes of two containers that share a folder."""
    text = "x" * 100_000
    with ThreadPoolExecutor(4) as threads:
        written = list(threads.map(lambda _: files.write_text(tmp_path / "one.json", text), range(400)))
    assert len(written) == 400
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("one.json", text)]


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
    with pytest.raises(TableError, match=f"^cannot write {path}: No such file or directory: name another place$"):
        files.write_text(path, "", error=TableError)


def test_a_folder_is_made_with_those_above_it_and_a_file_in_its_place_is_refused(tmp_path):
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for taken in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TableError, match="is not a folder: name a folder to write into"):
            files.make_folder(taken)
    for impossible in ("a" * 5000, "a\0b"):
        with pytest.raises(TableError, match=r"^cannot make the folder .{1,400}$"):
            files.make_folder(tmp_path / impossible)


def test_a_pipe_or_a_device_is_never_replaced_by_a_file(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(TableError, match=f"^{path} is no regular file: expected a file: name another file$"):
        files.write_text(path, "text", error=TableError)
    assert path.is_fifo()


@pytest.mark.parametrize("is_there", [True, False], ids=["a file", "nothing yet"])
def test_of_a_link_what_it_links_to_is_replaced_and_the_link_stays(tmp_path, is_there):
    folder, link, through = tmp_path / "folder", tmp_path / "links" / "latest.json", tmp_path / "links" / "through"
    folder.mkdir()
    link.parent.mkdir()
    real = folder / "real.json"
    if is_there:
        real.write_text("before")
    through.symlink_to("../folder")
    link.symlink_to("through/chain.json")
    (folder / "chain.json").symlink_to("real.json")
    before = sorted(folder.iterdir())
    assert files.write_text(link, "after") == link
    assert link.is_symlink()
    assert (folder / "chain.json").is_symlink()
    assert real.read_text() == link.read_text() == "after"
    assert sorted(folder.iterdir()) == sorted({*before, real})
    assert sorted(link.parent.iterdir()) == [link, through]


@pytest.mark.parametrize("opened", ["a pipe", "a file", "a file that was removed"])
def test_what_a_process_has_open_is_not_replaced_through_a_link(tmp_path, opened):
    kept, link = tmp_path / "kept", tmp_path / "stdout"
    if opened == "a pipe":
        reader, descriptor = os.pipe()
    else:
        descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT)
        reader = os.dup(descriptor)
        if opened == "a file that was removed":
            kept.unlink()
    before = sorted(tmp_path.iterdir())
    try:
        link.symlink_to(f"/proc/self/fd/{descriptor}")
        for path in (link, Path("/proc/self/fd") / str(descriptor)):
            with pytest.raises(TableError, match=f"^{path} is no regular file: expected a file: name another file$"):
                files.write_text(path, "text", error=TableError)
        assert link.readlink() == Path(f"/proc/self/fd/{descriptor}")
        assert os.fstat(descriptor).st_size == 0
        assert sorted(tmp_path.iterdir()) == sorted([*before, link])
    finally:
        os.close(descriptor)
        os.close(reader)


@pytest.mark.parametrize("target", ["pipe", "latest.json"], ids=["a pipe", "itself"])
def test_a_link_to_what_is_no_file_stays(tmp_path, target):
    link = tmp_path / "latest.json"
    os.mkfifo(tmp_path / "pipe")
    link.symlink_to(target)
    with pytest.raises(TableError, match=f"^(cannot open the file )?{link}"):
        files.write_text(link, "text", error=TableError)
    assert link.readlink() == Path(target)
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_BYTES", 1 << 20)
    path = tmp_path / "table.json"
    path.write_bytes(bytes(1 << 20))
    assert len(files.read_bytes(path, "table")) == 1 << 20
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(TunerError, match=f"^{path} has more than .* GiB: expected a table"):
        files.read_bytes(path, "table")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", "\ufeff{}".encode("utf-16"), b"[" * 100_000, b"9" * 10_000])
def test_what_is_no_json_is_one_line_with_what_to_do(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(TableError, match=rf"^{path}: no record: not JSON \(.+\): begin anew$"):
        files.read_json(path, "record", "begin anew", error=TableError)


def test_a_byte_order_mark_and_the_line_ends_of_windows_are_let_pass(tmp_path):
    path = tmp_path / "record.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": 1}, indent=1).replace("\n", "\r\n").encode())
    assert files.read_json(path, "record", "") == {"a": 1}
