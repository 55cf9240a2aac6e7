"""docs/tutorial.md, run as it stands: its files are written, its commands typed, and they print what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the tutorial's kernels run under Triton's interpreter")
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
DONE = "-- done:"


@dataclass
class Shell:
    """A shell in which one command is typed after the other, as a reader does."""

    process: subprocess.Popen[str]

    def type(self, command: str) -> tuple[int, str]:
        """What a command ends with, and all that it prints."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\necho; echo '{DONE}' $?\n")
        self.process.stdin.flush()
        printed = ""
        for line in self.process.stdout:
            if line.startswith(DONE):
                return int(line.removeprefix(DONE)), printed.removesuffix("\n")
            printed += line
        raise AssertionError(f"the shell ended at {command}: {printed}")


@pytest.fixture
def shell(tmp_path) -> Iterator[Shell]:
    """In an empty folder, with this environment's programs and no user's settings, data or package index."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TUNER", "TRITON"))}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    own = {"PATH": path, "XDG_DATA_HOME": str(tmp_path / "data"), "PIP_NO_INDEX": "1", "CUDA_VISIBLE_DEVICES": ""}
    folder = tmp_path / "tutorial"
    folder.mkdir()
    built_before = (ROOT / "build").exists()
    with subprocess.Popen(
        ["bash"],
        cwd=folder,
        env=kept | own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield Shell(process)
        process.kill()
    if not built_before:
        shutil.rmtree(ROOT / "build", ignore_errors=True)  # pip builds our wheel where the checkout lies


def blocks() -> list[tuple[str, str]]:
    """Language and text of every block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def write(folder: Path, text: str) -> None:
    """A block with a file's text, or its rest: the file is named in the first line, a comment."""
    name, continued, _ = re.fullmatch(r"# (\S+?)(, continued)?\n(.*)", text, re.DOTALL).groups()
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() + "\n\n" if continued else "") + text)


def change(folder: Path, text: str) -> None:
    """A block of changed lines, which stand once in the file that its first line names."""
    name, *lines = (line or " " for line in text.splitlines())  # editors strip a blank line that stays
    path = folder / name.removeprefix("# ")
    before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] in kept) for kept in (" -", " +"))
    assert path.read_text().count(before) == 1, f"{before}\nstands not once in {path.read_text()}"
    path.write_text(path.read_text().replace(before, after))


def looks_like(shown: str, printed: str) -> bool:
    """Whether a text is what is shown of it: `...` stands for anything, any space for any other."""
    parts = (r"\s+".join(map(re.escape, part.split())) for part in shown.split("..."))
    return re.fullmatch(r"\s*" + ".*?".join(parts) + r"\s*", printed, re.DOTALL) is not None


def test_the_tutorial_runs_as_it_stands_and_prints_what_it_shows(shell, tmp_path):
    folder = tmp_path / "tutorial"
    for language, text in blocks():
        if language == "diff":
            change(folder, text)
        elif language != "console":
            write(folder, text)
        else:
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                code, printed = shell.type(command)
                assert code == 0, f"{command}\n{printed}"
                told = f"{command}\nis shown to print\n{shown}\nand printed\n{printed}"
                quick = re.sub(r"^WARNING tuner\.sweep\.child: .* is silent .*\n", "", printed, flags=re.M)
                assert looks_like(shown, quick), told  # a worker on a busy machine starts slowly, which is said
    assert (folder / "src/mylib/tuned/attention_kernel--interpreter.json").exists()
    assert not (tmp_path / "data").exists(), "a process without $TUNER_DB wrote into the user's data folder"
