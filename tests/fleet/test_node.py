"""What a node of a fleet does with the work that it is leased."""

from __future__ import annotations

import logging

import pytest

from tuner.fleet.feed import Feed
from tuner.fleet.messages import Answer, Orders
from tuner.fleet.node import LedgerStore, Node
from tuner.hardware.device import INTERPRETER, Environment
from tuner.problem import Problem
from tuner.problem.family import Ladder, ladders


@pytest.fixture
def node():
    """A node that has said hello: with a feed, and with nothing to do."""
    logger = logging.getLogger("tuner")
    before = list(logger.handlers)
    node = Node([None], ["matmul"], ())
    logger.handlers = before
    node._feed = Feed(lambda _config, _problem: None)
    return node


def test_new_work_may_come_while_the_sweep_looks_whether_a_problem_is_new(node):
    late = Problem(4, 64, 64)

    class Interrupted(Ladder):
        """A ladder at which the thread that looks through what is new gives way to the one that takes orders."""

        @property
        def family(self):
            node.exchange(Orders(unknown=frozenset([late]), give_back=(late,)))
            return super().family

    (ladder,) = ladders(range(1, 9), lambda m: Problem(m, 32, 32))
    answer = Answer({"a config": "its outcome"})
    node.exchange(Orders(unknown=frozenset([Interrupted(*ladder)]), give_back=(late,), answer=answer))
    store = LedgerStore(node, is_shared=False)
    place = INTERPRETER, Environment("3.7.1", "2.13.0", "", "", "3.11")
    assert store.settled(*place, Problem(5, 16, 16), ()) == answer.value
    assert store.settled(*place, late, ()) == {}, "what came meanwhile is known to be new"
