"""Triton's key found again without hashing Triton: always the key that Triton would have found."""

from __future__ import annotations

import pytest

from tuner.launch import compile_cache

KNOWN = {"again", "once more", "mended"}
READ_ONLY = {"read-only", "read-only again"}


@pytest.fixture(scope="module")
def report(run_program, tmp_path_factory):
    return run_program("shortcut.py", tmp_path_factory.mktemp("module"))


@pytest.fixture(scope="module")
def told(report):
    return {row["case"]: row for row in report["told"]}


def test_every_start_has_the_very_binary_that_tritons_own_key_finds(told):
    assert [name for name, row in told.items() if not row["same"]] == []


def test_a_start_like_one_before_never_asks_for_tritons_key_and_every_other_does(told):
    assert {name for name, row in told.items() if not row["asked"]} == KNOWN


def test_a_change_of_source_function_constant_option_environment_or_target_is_another_binary(told):
    same = {name for name, row in told.items() if row["hash"] == told["first"]["hash"]}
    same_code = {"other Triton", "always compiled", "damaged", "of another key", "gone from Triton's cache", *READ_ONLY}
    # Two ptxas of one version are one to Triton; here they are two files.
    assert same == {"first", "other ptxas", *KNOWN, *same_code}


def test_whoever_listens_hears_of_a_kernel_from_the_cache(told):
    assert told["again"]["cached"] == [True]
    assert told["first"]["cached"] == told["gone from Triton's cache"]["cached"] == [False]


def test_what_cannot_be_used_is_one_warning(report):
    first, second, third = report["warned"]
    assert "is not used, Triton looks its kernel up itself" in first
    assert "it is for another key" in second
    assert third.endswith("so each start hashes Triton's sources: Read-only file system")


def test_a_file_of_tritons_that_changed_is_told_by_its_size_or_time(tmp_path):
    (tmp_path / "__pycache__").mkdir()
    source = tmp_path / "compiler.py"
    source.write_text("one")
    before = list(compile_cache._file_stats(tmp_path))
    (tmp_path / "__pycache__" / "compiler.pyc").write_text("made by an import")
    assert list(compile_cache._file_stats(tmp_path)) == before
    source.write_text("three")
    assert list(compile_cache._file_stats(tmp_path)) != before


def test_a_function_of_the_interpreter_or_none_at_all_is_left_alone():
    class Interpreted:
        def __init__(self):
            self.fn = len

    interpreted = Interpreted()
    compile_cache.install(interpreted)
    compile_cache.install(len)
    assert vars(interpreted) == {"fn": len}


def test_one_function_is_found_for_each_device_by_what_it_is(report):
    assert report["targets"] == {"arch": [90, 80], "asked": False}


def test_a_worker_need_not_ask_for_the_key_of_what_the_pool_compiled(run_program):
    assert run_program("ahead.py")
    assert run_program("ahead.py", "again")


def test_threads_that_install_at_the_same_time_keep_what_each_finds_binaries_by(run_program):
    assert run_program("installs.py") == [4]
