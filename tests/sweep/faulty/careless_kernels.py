"""A third party's kernel like that of faulty_kernels.py, but its own functions raise or return what they must not.

The `fault` of a problem says which and how: "space raises", "space gives {}".
"""

from __future__ import annotations

import dataclasses

import faulty_kernels

from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace
from tuner.problem import Problem

NAME = "careless"
GIVEN = {
    "{}": {},
    "True": True,
    "high": "high",
    "another": Config("another", index=0),
    "another's": SearchSpace("another", Problem(1, 1, 1), None, {"index": (0,)}),
}


def _careless(name, right):
    """Return a function that does what is right, but for the problems whose fault it is."""

    def function(*given):
        (problem,) = [one for one in given if isinstance(one, Problem)]
        whose, _, how = str(dict(problem.extras).get("fault", "")).partition(" ")
        if whose != name:
            return right(*given)
        if how == "raises":
            raise TypeError("no such\nfield")
        return GIVEN[how.removeprefix("gives ")]

    return function


def _space(problem, device):
    found = dataclasses.replace(faulty_kernels.SPEC.space(problem, device), kernel=NAME)
    fault = str(dict(problem.extras).get("fault", ""))
    if fault.startswith("axis "):
        return dataclasses.replace(found, axes={**found.axes, "index": 0 if fault == "axis 0" else ()})
    rejects = _careless("rejects", lambda *_: None)
    return dataclasses.replace(
        found,
        rules=(Rule("memory", "a guess", (lambda _config: None) if fault == "signature" else rejects),),
        canonical=_careless("canonical", lambda config, *_: config),
        expand=_careless("expand", lambda config, *_: [config]),
    )


SPEC = dataclasses.replace(
    faulty_kernels.SPEC,
    op=NAME,
    name=NAME,
    supports=_careless("supports", faulty_kernels.SPEC.supports),
    space=_careless("space", _space),
    default_config=_careless(
        "default_config",
        lambda *given: Config(NAME, **faulty_kernels.SPEC.default_config(*given)),
    ),
    precedence=_careless("precedence", lambda *_: 0),
    unmeasurable=_careless("unmeasurable", lambda _problem: None),
    compile_class=_careless("compile_class", lambda _problem, config: str(config)),
)
