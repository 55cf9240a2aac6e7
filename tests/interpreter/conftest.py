"""Runs each file of this folder in a pytest with TRITON_INTERPRET=1, a fork of one process, and reports its tests here.

The variable is read when Triton is imported and a kernel decorated, and an interpreting process cannot compile: the
tests of tests/compile, in the same pytest, need it off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import InputError

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
RESULTS = "INTERPRETER_TEST_RESULTS"
PYTEST = Path(pytest.__file__).with_name("__main__.py")
SLOW = {"transformers": "transformers.models.llama.modeling_llama", "torch.compile(": "torch._inductor.compile_fx"}
"""What a file's text tells of the imports of its tests, each of seconds: the process that is forked has them once."""
LIMIT_S = 900
"""One file's tests; each has its own limit in the child."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Here a file's first test waits for the child with all of them; in the child each has a limit of its own."""
    for item in items if not INTERPRETING else ():
        if item.nodeid.startswith("tests/interpreter/"):
            item.add_marker(pytest.mark.timeout(0))


@pytest.fixture(autouse=True, scope="session")
def no_database(tmp_path_factory: pytest.TempPathFactory):
    """A developer's own tuned configs must not decide what these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_DB", str(tmp_path_factory.mktemp("none") / "none.db"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _interpreter_is_quick():
    if not INTERPRETING:
        yield
        return
    from quick_interpreter import quicken

    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        yield


@pytest.fixture(scope="session")
def interpreting(forks: Callable[..., Any]) -> Any:
    return forks("interpreting", {**os.environ, "TRITON_INTERPRET": "1"})


@pytest.fixture(scope="module")
def child_results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Node id to (outcome, text), from the child with this file's tests; empty where this process interprets itself."""
    if INTERPRETING:
        return {}
    file = tmp_path_factory.mktemp("interpreter") / "results.jsonl"
    file.touch()
    root = request.config.rootpath
    names = [str(root / item.nodeid) for item in request.session.items if item.path == request.path]
    forks = request.getfixturevalue("interpreting")
    # transformers imports anyio, which has a plugin for pytest.
    known = ("-W", "ignore:Module already imported so cannot be rewritten; anyio")
    asked = ("-q", "-m", "", "-p", "no:cacheprovider", *known, f"--rootdir={root}", *names)
    # Of its own: a pytest that starts closes the folder that all share to the other users whom some tests become.
    asked = [*asked, "--basetemp", str(file.with_suffix(".tmp"))]
    slow = [module for word, module in SLOW.items() if word in request.path.read_text()]
    child = forks.run(PYTEST, *asked, env={**forks.env, RESULTS: str(file)}, modules=slow, timeout=LIMIT_S)
    results = dict(json.loads(line) for line in file.read_text().splitlines())
    results[""] = ["died", f"the interpreting pytest ended with {child.returncode}:\n{child.stdout[-4000:]}"]
    return results


@pytest.fixture(autouse=True)
def child_result(child_results: dict[str, list[str]], request: pytest.FixtureRequest) -> None:
    """What the child found for this test, on the item for `pytest_pyfunc_call`."""
    request.node.child_result = child_results.get(request.node.nodeid) or child_results.get("")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A list that grows with each launch of a kernel of ours."""
    from tuner.kernels.ops import matmul as ops

    calls: list[tuple[Any, ...]] = []

    def launch(*arguments: Any, run: Callable[..., Any] = ops.launch) -> Any:
        calls.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(ops, "launch", launch)
    return calls


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
