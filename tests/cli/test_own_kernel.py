"""`--kernel` of a KernelSpec takes the one that is installed, and says what keeps another from being used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="what `--kernel` names is imported beside torch and Triton")
pytest.importorskip("triton", reason="what `--kernel` names is imported beside torch and Triton")

SPEC = """
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace

def unused(*_):
    raise NotImplementedError

SPEC = KernelSpec(
    op="doubled", name="{name}", version=1,
    supports=lambda problem, device: None,
    space=lambda problem, device: SearchSpace("{name}", problem, device, {{"BLOCK": (1, 2)}}),
    default_config=lambda problem, device: Config("{name}", BLOCK=1),
    make_inputs=unused, launch=unused, reference=unused,
)
"""
LOOKUP = ("--problem", "M=8,N=8,K=8", "--device", "sm_90")


@pytest.fixture
def package(tmp_path) -> Callable[..., Path]:
    """Make a package whose module `kernels` has a KernelSpec, with an entry point unless told otherwise."""

    def make(package: str, *, name: str = "mine", point: str = "doubled.mine") -> Path:
        site = tmp_path / "site"
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").touch()
        (site / package / "kernels.py").write_text(SPEC.format(name=name))
        if point:
            about = site / f"{package}-1.0.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            (about / "entry_points.txt").write_text(f"[tuner.kernels]\n{point} = {package}.kernels:SPEC\n")
        return site / package / "kernels.py"

    return make


@pytest.fixture
def tuner(compiling, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Run a command where those packages are installed."""

    def run(*command: str | Path) -> tuple[int, str, str]:
        paths = os.pathsep.join((str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")))
        own = {"PYTHONPATH": paths, "TUNER_DB": str(tmp_path / "own.db")}
        done = compiling.tuner(*command, env=os.environ | own, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_kernel_that_is_installed_is_taken_by_its_module_and_by_its_file(package, tuner):
    file = package("pka")
    for reference in ("pka.kernels:SPEC", f"{file}:SPEC"):
        code, out, err = tuner("lookup", "--kernel", reference, *LOOKUP)
        assert (code, err) == (1, "")
        assert "\nrule default, " in out


@pytest.mark.parametrize("by_file", [False, True])
def test_a_kernel_without_an_entry_point_is_an_error_with_the_line_to_write(package, tuner, by_file):
    file = package("pka", point="")
    reference = f"{file}:SPEC" if by_file else "pka.kernels:SPEC"
    expected = (
        f"tuner: {reference} is a KernelSpec without an entry point, which it needs (docs/own-kernel.md): in its "
        'package\'s pyproject.toml write "doubled.mine" = "pka.kernels:SPEC" under '
        '[project.entry-points."tuner.kernels"], and install the package\n'
    )
    assert tuner("run", "--kernel", reference, "--problem", "M=8,N=8,K=8") == (2, "", expected)


def test_of_two_packages_with_a_kernel_of_one_name_the_second_is_named_by_a_warning_by_doctor_and_where_it_is_typed(
    package, tuner
):
    package("pka")
    second = package("pkb")
    why = "is not used for doubled/mine: pka.kernels:SPEC has that name too: give one of them another"
    warning = f"WARNING tuner.kernel.registry: kernel doubled.mine (pkb.kernels:SPEC) {why}\n"
    code, out, err = tuner("lookup", "--kernel", "doubled", *LOOKUP)
    assert (code, err) == (1, warning)
    assert "\nrule default, " in out
    for reference in ("pkb.kernels:SPEC", f"{second}:SPEC"):
        code, out, err = tuner("run", "--kernel", reference, "--problem", "M=8,N=8,K=8")
        assert (code, out, err) == (2, "", f"{warning}tuner: doubled.mine (pkb.kernels:SPEC) {why}\n")
    findings = json.loads(tuner("doctor", "--json")[1])["findings"]
    ours = [(one["status"], one["found"]) for one in findings if "doubled" in one["found"]]
    assert ours == [("ok", "doubled/mine version 1"), ("wrong", f"doubled.mine (pkb.kernels:SPEC) {why}")]


def test_a_copy_of_an_installed_kernel_is_not_tuned_under_its_name(package, tuner, tmp_path):
    package("pka")
    copy = tmp_path / "copy.py"
    copy.write_text(SPEC.format(name="mine"))
    expected = (
        f"tuner: {copy}:SPEC is not the doubled/mine that is installed, which is pka.kernels:SPEC: give one of them "
        "another name\n"
    )
    assert tuner("run", "--kernel", f"{copy}:SPEC", "--problem", "M=8,N=8,K=8") == (2, "", expected)


def test_a_misnamed_entry_point_is_wrong_to_doctor_and_said_where_its_kernel_is_typed(package, tuner):
    package("pka", name="other")
    why = "doubled.mine (pka.kernels:SPEC) is not used: it is doubled.other: name it so"
    code, out, err = tuner("lookup", "--kernel", "pka.kernels:SPEC", *LOOKUP)
    assert (code, out, err) == (2, "", f"WARNING tuner.kernel.registry: kernel {why}\ntuner: {why}\n")
    findings = json.loads(tuner("doctor", "--json")[1])["findings"]
    assert [(one["status"], one["found"]) for one in findings if "doubled" in one["found"]] == [("wrong", why)]
