"""What captured programs compile of a library: files, whole or not there, that ship where nothing else covers them."""

from __future__ import annotations

import json
import shutil
import signal

import pytest

pytest.importorskip("triton")

from tuner.adopt import calls, compiled_files
from tuner.hardware.device import KNOWN
from tuner.launch.binaries import INDEX, folder_name

COMPILED = {"TRITON_INTERPRET": "0"}
SLUG = KNOWN["sm_90"].slug
PROCESSES = """
import os, signal, subprocess, sys
import theirs.plain as plain
plain.compile_for(16)
if not os.fork():
    plain.compile_for(32)
    os._exit(0)
os.wait()
program = "import theirs.plain as plain; plain.compile_for(16, 64)"
both = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
assert [each.wait() for each in both] == [0, 0]
plain.compile_for(128)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def captured(capture, tmp_path_factory):
    """A folder with what several processes compiled, one of which was killed."""
    folder = tmp_path_factory.mktemp("captured") / "calls"
    done = capture(PROCESSES, folder, env=COMPILED)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (line,) = done.stderr.splitlines()
    assert "4 binaries of kernels without configs; to ship them: tuner export DIR --with-kernels --captured " in line
    return folder


@pytest.fixture
def export(tuner_command, tmp_path):
    """Export folders without any database: what is shipped, and what was said."""

    def run(*folders):
        given = [word for folder in folders for word in ("--captured", folder)]
        environment = {"TUNER_DB": str(tmp_path / "none.db")}
        done = tuner_command("export", tmp_path / "out", "--with-kernels", *given, env=environment)
        index = tmp_path / "out" / folder_name("theirs", SLUG) / INDEX
        return (json.loads(index.read_text())["kernels"] if index.exists() else None), done

    return run


@pytest.mark.long
def test_forks_and_processes_that_are_killed_keep_each_binary_once(captured):
    found, faults = compiled_files.load([captured])
    assert (len(found), faults) == (4, [])
    assert {(each.kernel, each.device, each.triton) for each in found} == {
        ("theirs.plain:copy", SLUG, compiled_files.devices.triton_version())
    }
    assert all(each.decoded().keys() == {"json", "cubin"} for each in found)
    assert all(path.name.endswith(compiled_files.SUFFIX) for path in captured.iterdir())


def test_binaries_ship_without_a_table_and_each_once(captured, export, tmp_path):
    shutil.copytree(captured, tmp_path / "again")
    kernels, done = export(captured, tmp_path / "again")
    assert (len(kernels), done.returncode, done.stderr) == (4, 0, "")
    assert {each["kernel"] for each in kernels} == {"theirs.plain:copy"}


def test_what_ships_with_a_table_of_the_device_is_left_out(captured, tmp_path):
    found, _ = compiled_files.load([captured])
    keys = [each.entry["key"] for each in found]
    (written,) = compiled_files.export(found, tmp_path, {SLUG: keys[:1], "another": keys})
    assert written.keys == set(keys[1:])
    assert compiled_files.export(found, tmp_path, {SLUG: keys}) == []


WITHIN = """
import tuner, theirs.plain as plain
with tuner.capture("FOLDER", "theirs"):
    plain.compile_for(16)
"""


def test_a_capture_within_another_keeps_what_is_compiled_in_both(capture, tmp_path):
    folders = [tmp_path / "around", tmp_path / "within"]
    done = capture(WITHIN.replace("FOLDER", str(folders[1])), folders[0], env=COMPILED)
    assert done.returncode == 0, done.stderr
    assert [len(calls.paths(each, compiled_files.SUFFIX)) for each in folders] == [1, 1]


def change_format(document):
    document["format"] = "triton-tuner captured call"


def change_version(document):
    document["version"] = 2


def change_kernel(document):
    document["kernel"] = "theirs.plain:other"


def change_device(document):
    document["device"] = "../elsewhere"


def change_contents(document):
    document["contents"]["cubin"] = document["contents"]["cubin"][:-8]


def change_entry(document):
    del document["entry"]["source"]


def change_triton(document):
    document["triton"] = "3.5.0"


BROKEN = [
    (change_format, "no captured binary: remove it, and capture again"),
    (change_version, "a captured binary of version 2: expected 1"),
    (change_kernel, "a damaged captured binary (ValueError: its name is of another binary)"),
    (change_device, "a damaged captured binary (ValueError: it names another folder)"),
    (change_contents, "a damaged captured binary (ValueError: its contents were changed)"),
    (change_entry, "a damaged captured binary (KeyError: 'source')"),
    (change_triton, "left out: binaries of theirs: 1, made by Triton 3.5.0, here is"),
    (None, "no captured binary: not JSON"),
]


def test_a_file_that_cannot_be_shipped_is_one_line_and_the_others_ship(captured, export, tmp_path):
    first, *_ = calls.paths(captured, compiled_files.SUFFIX)
    for number, (change, _) in enumerate(BROKEN):
        folder = tmp_path / str(number)
        folder.mkdir()
        text, document = first.read_text(), json.loads(first.read_text())
        if change is None:
            text = text[: len(text) // 2]
        else:
            change(document)
            text = json.dumps(document)
        name = first.name
        if change is change_triton:
            del document["format"], document["version"]
            name = compiled_files.Binary(**document).file_name
        (folder / name).write_text(text)
        (folder / f".{first.name}.1.tmp").write_text("of a process that was killed")
    kernels, done = export(captured, *(tmp_path / str(number) for number in range(len(BROKEN))))
    assert (len(kernels), done.returncode) == (4, 0)
    lines = done.stderr.splitlines()
    assert len(lines) == len(BROKEN)
    for _, words in BROKEN:
        assert len([line for line in lines if words in line and line.startswith("left out: ")]) == 1


def test_nothing_to_ship_is_an_error(export, tmp_path):
    (tmp_path / "empty").mkdir()
    kernels, done = export(tmp_path / "empty")
    assert (kernels, done.returncode, done.stderr.count("\n")) == (None, 1, 1)


BOUND = """
import theirs.plain as plain
from tuner.adopt import recorder
recorder.MOST_CALLS = 2
plain.compile_for(16, 32, 64, 128)
print("went on")
"""


@pytest.mark.long
def test_a_folder_is_bounded_and_a_full_disk_is_one_line(capture, tmp_path):
    done = capture(BOUND, tmp_path / "bounded", env=COMPILED)
    assert done.stdout == "went on\n"
    bound, found = done.stderr.splitlines()
    assert bound.endswith("holds 2 binaries: name another folder for more")
    assert "2 binaries of kernels without configs" in found
    under = ["bash", "-c", 'ulimit -f 0; exec "$@"', "-"]
    done = capture(BOUND, tmp_path / "full", env={**COMPILED, "PYTHONDONTWRITEBYTECODE": "1"}, under=under)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert len([line for line in done.stderr.splitlines() if "nothing more is recorded" in line]) == 1
