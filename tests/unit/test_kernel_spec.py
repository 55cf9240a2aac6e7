"""A minimal KernelSpec states what is its own; the rest has defaults that every floor can work with."""

from __future__ import annotations

import dataclasses
import textwrap

import pytest

from tuner.errors import KernelError, UsageError
from tuner.hardware.device import KNOWN
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.problem import Problem
from tuner.sweep.job import Job
from tuner.sweep.search_task import SearchTask
from tuner.sweep.strategies import EXHAUSTIVE

DEVICE = KNOWN["sm_90"]
PROBLEM = Problem(64, 64, 64, op="copy")


def launch(inputs, config) -> None:
    inputs.output.copy_(inputs.source)


@pytest.fixture
def minimal() -> KernelSpec:
    return KernelSpec(
        op="copy",
        name="copy",
        version=1,
        supports=lambda problem, device: None,
        space=lambda problem, device: SearchSpace("copy", problem, device, {"BLOCK": (128, 256)}),
        default_config=lambda problem, device: Config("copy", BLOCK=128),
        make_inputs=lambda problem, device, seed: None,
        launch=launch,
        reference=lambda inputs: None,
    )


def test_defaults_are_safe(minimal):
    small, large = (Config("copy", BLOCK=block) for block in (128, 256))
    assert minimal.compile_class(PROBLEM, small) != minimal.compile_class(PROBLEM, large)
    assert minimal.simplicity(small) == minimal.simplicity(large)
    assert 0 < minimal.tolerance(PROBLEM) < 0.01
    assert minimal.tolerance(Problem(64, 64, 64, dtype="int8")) == 0
    with pytest.raises(NotImplementedError):
        minimal.vendor(None)


@pytest.mark.parametrize("version", ["v1", "1.0", "1", 1.0, True, 0, -1, None])
def test_a_version_that_no_database_could_hold_is_refused_when_the_spec_is_made(minimal, version):
    with pytest.raises(UsageError) as raised:
        dataclasses.replace(minimal, version=version)
    expected = f"the version of the kernel copy/copy must be an integer from 1 on, got {version!r}"
    assert str(raised.value) == expected


def test_the_source_hash_is_that_of_the_files_that_launch_and_judge(minimal):
    assert len(minimal.source_hash()) == 64
    assert minimal.source_hash() == minimal.source_hash()
    elsewhere = dataclasses.replace(minimal, source_hash=None, reference=textwrap.dedent)
    assert elsewhere.source_hash() != minimal.source_hash()
    assert elsewhere.source_hash() == dataclasses.replace(elsewhere, source_hash=None).source_hash()


def test_a_kernel_that_only_its_launch_compiles_is_measured_without_asking_a_compiler(minimal):
    task = SearchTask(
        PROBLEM, DEVICE, {"copy": minimal}, minimal.space(PROBLEM, DEVICE).configs(), Config("copy", BLOCK=128)
    )
    job = Job(task, EXHAUSTIVE)
    job.resume({})
    batch, decided = job.take(16, NoCompiler())
    assert (len(batch), decided, job.binaries) == (2, [], 0)
    assert not minimal.compiles_ahead
    with pytest.raises(KernelError, match="has no compile"):
        minimal.compile(PROBLEM, batch[0])


class NoCompiler:
    """A pool that is asked for nothing."""

    waiting, workers = 0, 1
