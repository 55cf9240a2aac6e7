from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import pickle
import threading

import pytest

import tuner
from tuner.errors import KernelError
from tuner.hardware.device import KNOWN, Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace
from tuner.lookup import sources
from tuner.problem import Problem
from tuner.sweep.search_task import list_spaces

H200 = KNOWN["sm_90"]


pytestmark = pytest.mark.usefixtures("no_added_kernels")


@pytest.fixture
def point(installed, toy):
    """Entry points by name, each of kernels given by op and name; `loads` says which were loaded."""
    loads: list[str] = []

    def make(name: str, *kernels: str, only: bool = False):
        specs = [
            dataclasses.replace(toy, op=op, name=kernel, default_config=lambda *_, kernel=kernel: Config(kernel))
            for op, kernel in (kernel.split("/") for kernel in kernels)
        ]

        def load():
            loads.append(name)
            return specs[0] if only else specs

        return installed(name, load)

    make.loads = loads
    return make


def test_a_kernel_is_found_without_loading_another(install, point):
    install(
        point("matmul.one", "matmul/one", only=True), point("matmul.two", "matmul/two"), point("rest", "matmul/three")
    )
    assert registry.find("matmul", "one").name == "one"
    assert point.loads == ["matmul.one"]


def test_of_an_op_nothing_is_loaded_that_is_another_ops(install, point):
    install(point("matmul.one", "matmul/one"), point("softmax.one", "softmax/one"), point("rest", "bmm/a", "matmul/b"))
    assert sorted(registry.of("matmul")) == ["b", "one"]
    assert sorted(point.loads) == ["matmul.one", "rest"]
    assert [spec.name for spec in registry.serving(Problem(64, 64, 64), H200)] == ["b", "one"]
    assert sorted(registry.specs()) == [("bmm", "a"), ("matmul", "b"), ("matmul", "one"), ("softmax", "one")]
    assert sorted(point.loads) == ["matmul.one", "rest", "softmax.one"]


def test_of_kernels_that_come_as_early_the_one_whose_config_is_faster_by_its_model_gives_the_default(
    install, installed, toy
):
    def modelled(**times):
        specs = [
            dataclasses.replace(
                toy,
                name=name,
                estimate_us=us and (lambda *_, us=us: us),
                default_config=lambda *_, name=name: Config(name, BLOCK_SIZE_M=16),
            )
            for name, us in times.items()
        ]
        install(installed("toys", lambda: specs))
        return registry.default_config(Problem(64, 64, 64), H200).kernel

    assert modelled(one=5.0, two=4.0) == "two"
    assert modelled(one=4.0, two=4.0) == "one"
    assert modelled(one=5.0, two=None) == "one"


@pytest.mark.parametrize("name", ["supports", "precedence", "default_config", "estimate_us"])
def test_a_kernel_whose_code_raises_is_one_warning_and_the_others_serve(install, installed, toy, name, caplog):
    def broken(*_: object) -> None:
        raise TypeError("two\nlines")

    def config(*_: object) -> Config:
        return Config("other", BLOCK_SIZE_M=32)

    raising = dataclasses.replace(toy, **{"estimate_us": broken, name: broken})

    def space(problem: Problem, device: Device) -> SearchSpace:
        return dataclasses.replace(toy.space(problem, device), kernel="other")

    other = dataclasses.replace(toy, name="other", space=space, default_config=config, estimate_us=lambda *_: 1.0)
    install(installed("toys", lambda: [other, raising]))
    for m in (64, 65, 64):
        assert registry.default_config(Problem(m, 64, 64), H200) == config()
        assert registry.default_config(Problem(m, 64, 64), H200, {Config("toy", BLOCK_SIZE_M=1): "lost"}) == config()
    (warning,) = caplog.messages
    assert warning.startswith(f"{name} of the kernel matmul/toy failed: TypeError: two")
    assert warning.endswith(": mend it, or uninstall its package; meanwhile others serve")
    # A run that decided without it would have its winner stand once the kernel is mended.
    with pytest.raises(KernelError, match=f"^{name} of the kernel matmul/toy failed: TypeError: two") as raised:
        registry.default_config(Problem(64, 64, 64), H200, strict=True)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(KernelError, match=f"^{name} of the kernel matmul/toy failed"):
        list_spaces(Problem(64, 64, 64), H200)


@pytest.mark.parametrize(
    ("name", "returned", "expected"),
    [
        ("supports", True, "True: expected None, or a sentence that says why it cannot serve the problem"),
        ("supports", False, "False: expected None, or a sentence that says why it cannot serve the problem"),
        ("precedence", "high", "'high': expected an integer"),
        ("default_config", {"BLOCK_SIZE_M": 16}, "{'BLOCK_SIZE_M': 16}: expected a Config that has its name"),
        ("default_config", Config("other"), "one of the kernel 'other': expected a Config that has its name"),
        ("estimate_us", "fast", "'fast': expected microseconds, or None"),
    ],
)
def test_a_kernel_that_returns_what_it_must_not_is_one_warning_and_the_others_serve(
    install, installed, toy, name, returned, expected, caplog
):
    careless = dataclasses.replace(toy, **{"estimate_us": lambda *_: 0.5, name: lambda *_: returned})
    other = dataclasses.replace(toy, name="other", default_config=lambda *_: Config("other"), estimate_us=lambda *_: 1)
    install(installed("toys", lambda: [other, careless]))
    for m in (64, 65):
        assert registry.default_config(Problem(m, 64, 64), H200) == Config("other")
    said = f"{name} of the kernel matmul/toy returned {expected}: mend it, or uninstall its package"
    assert caplog.messages == [f"{said}; meanwhile others serve"]
    with pytest.raises(KernelError) as raised:
        registry.default_config(Problem(64, 64, 64), H200, strict=True)
    assert str(raised.value) == said


def test_a_default_whose_own_space_fails_is_one_warning_and_the_others_serve(install, installed, toy, caplog):
    def rejects(*_: object) -> str:
        raise AssertionError("never")

    def config(problem: Problem, device: Device) -> Config:
        rules = (Rule("odd", "this test", rejects),)
        return dataclasses.replace(toy.space(problem, device), rules=rules).configs()[0]

    other = dataclasses.replace(toy, name="other", default_config=lambda *_: Config("other"))
    install(
        installed("toys", lambda: [other, dataclasses.replace(toy, default_config=config, precedence=lambda *_: 1)])
    )
    assert registry.default_config(Problem(64, 64, 64), H200) == Config("other")
    (warning,) = caplog.messages
    assert warning.startswith("the rule 'odd' of the kernel matmul/toy failed for toy(")


@pytest.mark.parametrize("name", ["supports", "precedence", "default_config"])
def test_where_the_only_kernel_raises_the_error_says_what(install, installed, toy, name):
    def broken(*_: object) -> None:
        raise TypeError("two\nlines")

    install(installed("toys", lambda: [dataclasses.replace(toy, **{name: broken})]))
    with pytest.raises(KernelError, match=f"^no kernel .*: {name} of the kernel matmul/toy failed: TypeError: two"):
        registry.default_config(Problem(64, 64, 64), H200)


def test_a_prediction_that_is_none_counts_as_no_model(install, installed, toy):
    install(
        installed(
            "toys",
            lambda: [
                dataclasses.replace(
                    toy, name=name, default_config=lambda *_, name=name: Config(name), estimate_us=lambda *_: None
                )
                for name in ("one", "two")
            ],
        )
    )
    assert registry.default_config(Problem(64, 64, 64), H200) == Config("one")


def test_a_kernel_whose_entry_point_does_not_tell_is_found(install, point):
    install(point("matmul.one", "matmul/one"), point("mine", "matmul/two"))
    assert registry.find("matmul", "two").name == "two"


def test_of_two_kernels_of_one_name_the_one_whose_entry_point_says_so_is_taken_everywhere(install, point):
    install(point("a", "matmul/one"), point("matmul.one", "matmul/one"))
    (one,) = registry.of("matmul").values()
    assert one is registry.find("matmul", "one") is registry.specs()["matmul", "one"]
    assert point.loads == ["matmul.one", "a"]


def test_a_second_kernel_of_one_name_is_one_warning_that_names_both(install, installed, toy, caplog):
    first, second = toy, dataclasses.replace(toy, version=2)
    listed = installed("all", lambda: (first, second), "listed")
    install(installed("matmul.toy", lambda: first, "one"), installed("matmul.toy", lambda: second, "two"), listed)
    for _ in range(2):
        assert (
            registry.find("matmul", "toy") is registry.of("matmul")["toy"] is registry.specs()["matmul", "toy"] is first
        )
    assert caplog.messages == [
        f"kernel {name} ({value}) is not used for matmul/toy: one has that name too: give one of them another"
        for name, value in (("matmul.toy", "two"), ("all", "listed"))
    ]


def test_a_kernel_of_an_op_that_nobody_installed_is_said_to_be_named(install):
    install()
    message = "no kernel 'scale' of op 'scale' is installed: name its module with --kernel MODULE:NAME, or import it"
    with pytest.raises(KernelError, match=f"^{message}$"):
        registry.find("scale", "scale")


def test_an_entry_point_that_promises_another_kernel_is_one_warning(install, point, caplog):
    install(point("matmul.one", "matmul/one"), point("matmul.two", "softmax/two"))
    assert sorted(registry.specs()) == [("matmul", "one")]
    with pytest.raises(KernelError, match="no kernel 'two' of op 'matmul' is installed: known are one"):
        registry.find("matmul", "two")
    (record,) = caplog.records
    assert "kernel matmul.two (test) is not used: it is softmax.two" in record.getMessage()


def test_an_entry_point_that_cannot_be_loaded_is_one_warning_and_the_others_serve(install, installed, point, caplog):
    def broken():
        raise RuntimeError("no such library")

    install(installed("matmul.bad", broken), installed("worse", lambda: 3), point("matmul.one", "matmul/one"))
    for _ in range(2):
        assert list(registry.specs()) == [("matmul", "one")]
        assert registry.default_config(Problem(64, 64, 64), H200).kernel == "one"
        with pytest.raises(KernelError):
            registry.find("matmul", "bad")
    caplog.set_level(logging.WARNING)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "kernel matmul.bad (test) did not load",
        "kernel worse (test) did not load",
    ]


@pytest.mark.usefixtures("no_tables")
def test_a_kernel_whose_import_waits_for_a_thread_that_looks_something_up_is_imported(install, installed, toy):
    """Two packages that import each other's kernels in two threads: neither may wait for ever."""
    answers = []

    def load():
        thread = threading.Thread(target=lambda: answers.append(tuner.lookup(Problem(64, 64, 64, op="other"), H200)))
        thread.start()
        thread.join(20)
        return toy

    other = dataclasses.replace(toy, op="other")
    install(installed("matmul.toy", load), installed("other.toy", lambda: other))
    assert tuner.lookup(Problem(64, 64, 64), H200).kernel == "toy"
    assert len(answers) == 1


def test_our_own_entry_points_say_what_they_are(caplog):
    pytest.importorskip("triton", reason="the kernels need torch and Triton")
    names = [point.name for point in registry.points()]
    assert "matmul.pointer" in names
    assert {f"{op}.{name}" for op, name in registry.specs()} == set(names)
    assert caplog.records == []


def test_packages_are_read_once_for_kernels_and_tables(monkeypatch):
    read = []
    distributions = importlib.metadata.distributions
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: read.append(None) or distributions())
    registry.forget()
    assert [point.name for point in registry.points() if point.name == "matmul.pointer"] == ["matmul.pointer"]
    sources.packages()
    assert len(read) == 1
    tuner.use(None)
    sources.packages()
    assert len(read) == 2


def install(folder, name, entry_points, metadata):
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(entry_points)
    if metadata:
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{metadata}\nVersion: 1.0\n")


def test_of_two_packages_of_one_name_the_first_on_the_path_counts(tmp_path, monkeypatch):
    install(tmp_path / "first", "theirs", "[console_scripts]\nx = x:main\n", "Name: theirs")
    install(tmp_path / "second", "theirs", f"[{registry.GROUP}]\nmatmul.old = old:SPEC\n", "Name: theirs")
    for folder, is_there in (("second", True), ("first", False)):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        registry.forget()
        assert ("matmul.old" in [point.name for point in registry.points()]) is is_there


@pytest.mark.parametrize("metadata", ["", "Summary: no name", "Name: another"])
def test_a_package_without_a_name_or_in_a_folder_of_another_is_found(metadata, tmp_path, monkeypatch):
    install(tmp_path, "theirs", f"[{registry.GROUP}]\nmatmul.odd = odd:SPEC\n", metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.forget()
    assert "matmul.odd" in [point.name for point in registry.points()]


def test_an_op_that_no_kernel_has_is_told_with_those_that_there_are():
    pytest.importorskip("triton", reason="Triton is not installed: no kernel is registered")
    with pytest.raises(KernelError, match=r"none is installed; the ops are bmm, .*matmul, .*vector_add"):
        registry.serving(Problem(64, 64, 64, op="matmull"), KNOWN["sm_90"])
