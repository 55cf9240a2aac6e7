"""Runs this folder's tests in ONE child pytest with TRITON_INTERPRET=1, and reports each here.

The variable is read when Triton is imported and a kernel decorated, and an interpreting process cannot compile: the
tests of tests/compile, in the same pytest, need it off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.errors import InputError

HERE = Path(__file__).parent
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
RESULTS = "INTERPRETER_TEST_RESULTS"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Here the first test waits for the child with all of them; in the child each has the usual time of its own."""
    for item in items if not INTERPRETING else ():
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))


@pytest.fixture(autouse=True, scope="session")
def no_database(tmp_path_factory: pytest.TempPathFactory):
    """A developer's own tuned configs must not decide what these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_DB", str(tmp_path_factory.mktemp("none") / "none.db"))
        yield


@pytest.fixture(scope="session")
def child_results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Node id to (outcome, text), from the child; empty where this process interprets itself."""
    if INTERPRETING:
        return {}
    file = tmp_path_factory.mktemp("interpreter") / "results.jsonl"
    file.touch()
    names = [item.nodeid for item in request.session.items if HERE in item.path.parents]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *names],
        cwd=request.config.rootpath,
        env={**os.environ, "TRITON_INTERPRET": "1", RESULTS: str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    results = dict(json.loads(line) for line in file.read_text().splitlines())
    results[""] = ["died", f"the interpreting pytest ended with {child.returncode}:\n{child.stdout[-4000:]}"]
    return results


@pytest.fixture(autouse=True)
def child_result(child_results: dict[str, list[str]], request: pytest.FixtureRequest) -> None:
    """What the child found for this test, on the item for `pytest_pyfunc_call`."""
    request.node.child_result = child_results.get(request.node.nodeid) or child_results.get("")


@pytest.fixture
def refused() -> Callable[[Callable[[], object], str], None]:
    """Expects a call to be refused with these words, in one line."""

    def refused(call: Callable[[], object], words: str) -> None:
        with pytest.raises(InputError) as raised:
            call()
        assert words in str(raised.value)
        assert "\n" not in str(raised.value)

    return refused


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if INTERPRETING:
        return None
    outcome, text = pyfuncitem.child_result  # type: ignore[attr-defined]
    if outcome == "skipped":
        pytest.skip(text)
    if outcome != "passed":
        pytest.fail(text, pytrace=False)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if RESULTS in os.environ and (report.when == "call" or report.outcome != "passed"):
        with Path(os.environ[RESULTS]).open("a") as file:
            file.write(json.dumps([report.nodeid, [report.outcome, report.longreprtext]]) + "\n")
