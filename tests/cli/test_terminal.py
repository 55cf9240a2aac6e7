"""What a terminal shows: tables that can be read whatever its width, colours unless they are not wanted."""

from __future__ import annotations

import io
import re
import sys

import pytest

from tuner.cli import doctor
from tuner.cli.doctor_checks import Diagnosis, Status
from tuner.cli.output import print_table

COLUMNS = ("problem", "config", "us", "vs default")
ROWS = [("matmul 16x6144x4096 bfloat16 nt", "swap_ab 64x64x128 loads tma stages 6", "13.742", "1.034x")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch):
    """Run a function on a terminal of so many columns; returns the lines it printed."""

    def shown(function, *arguments, width: int = 80, **options) -> list[str]:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        function(*arguments, **options)
        return terminal.getvalue().splitlines()

    return shown


def plain(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[\d*m", "", line) for line in lines]


@pytest.mark.parametrize("width", [60, 70])
def test_a_table_folds_its_words_and_never_its_numbers(shown, width):
    lines = plain(shown(print_table, COLUMNS, ROWS, empty="", width=width))
    assert len(lines) > 2
    assert max(map(len, lines)) <= width
    assert all(number in lines[1] for number in ("13.742", "1.034x"))


def test_rows_are_blocks_in_a_terminal_too_narrow_to_fold_them(shown):
    (problem, config, us, _), unknown = ROWS[0], ""
    lines = plain(shown(print_table, COLUMNS, [*ROWS, (problem, config, us, unknown)], empty="", width=40))
    block = [f"problem     {problem}", f"config      {config}", f"us          {us}"]
    assert lines == [*block, "vs default  1.034x", "", *block]


def test_no_color_is_heeded(shown, monkeypatch):
    finding = Diagnosis("gpu", Status.WRONG, "gone")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m" in shown(doctor._print, finding)[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(doctor._print, finding) == ["wrong gpu       gone"]


@pytest.mark.parametrize(("own", "styled"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_table_has_no_escape_codes_where_they_are_not_wanted(monkeypatch, own, styled):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm", "COLUMNS": "200"} | own).items():
        monkeypatch.setenv(name, value)
    print_table(COLUMNS, ROWS, empty="")
    assert ("\x1b[" in terminal.getvalue()) is styled


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"FORCE_COLOR": "1"},
        {"FORCE_COLOR": "1", "NO_COLOR": "1"},
        {"FORCE_COLOR": "1", "TERM": "dumb"},
    ],
)
def test_lines_in_a_pipe_are_whole_though_colours_are_forced(monkeypatch, own):
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm", "COLUMNS": "60"} | own).items():
        monkeypatch.setenv(name, value)
    print_table(COLUMNS, ROWS, empty="")
    assert len(pipe.getvalue().splitlines()) == 2
    assert ("\x1b[" in pipe.getvalue()) is (own == {"FORCE_COLOR": "1"})
