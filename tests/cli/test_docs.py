"""The documentation names everything there is, and its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tuner
from tuner.cli import cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def leaves(command: click.Command, path: str):
    """Every command that does something, with what one types for it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, f"{path} {name}")
    else:
        yield path, command


COMMANDS = dict(leaves(cli, "tuner"))


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_is_in_the_documentation(path):
    text = (DOCS / "cli.md").read_text()
    assert path in text
    section = next(part for part in text.split("\n## ") if part.startswith(" ".join(path.split()[:2])))
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}" in section, (
                f"{path} {parameter.opts[0]} is not in its section of docs/cli.md"
            )


def test_the_readmes_table_names_every_command_and_no_other():
    table = (ROOT / "README.md").read_text().split("\n## Commands\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `tuner (\w+)", table, re.MULTILINE)) == {path.split()[1] for path in COMMANDS}


def test_options_of_tuner_itself_are_in_the_documentation():
    text = (DOCS / "cli.md").read_text()
    for parameter in cli.params:
        assert f"`{parameter.opts[0]}`" in text


def test_a_decision_has_a_number_of_its_own():
    numbers = re.findall(r"^\*\*(\d+)\.", (DOCS / "decisions.md").read_text(), re.M)
    assert numbers
    assert sorted(numbers) == sorted(set(numbers))


def test_every_public_name_is_in_the_documentation():
    pytest.importorskip("torch", reason="tuner.kernels needs torch")
    from tuner import kernels

    text = (DOCS / "api.md").read_text()
    for name in (*tuner.__all__, *kernels.__all__):
        assert re.search(rf"`{name}\b", text), f"{name} is not in docs/api.md"


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda page: page.name)
def test_a_line_is_at_most_120_columns_wide(page):
    code, wide = False, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.startswith("```")
        if len(line) > 120 and not code and not line.startswith("|") and " " in line.strip():
            wide.append(number)
    assert not wide


def test_the_index_lists_every_page():
    index = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *DOCS.glob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)  # code has kernel[grid](x)
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", prose):
        if not link.startswith("http"):
            there = page.parent / link if link else page
            assert there.exists(), f"{page.name} links to {link}"
            assert not anchor or anchor in anchors(there), f"{page.name} links to {link}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readmes_python_runs(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1", "TUNER_DB": str(tmp_path / "tuner.db"), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "matmul 64x64x64 float16 nn" in found.stdout
