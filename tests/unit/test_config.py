"""A config is a value: however it came to be, the same parameters are the same config, and never change."""

from __future__ import annotations

import pickle

import pytest

from tuner.errors import ConfigError
from tuner.kernel.config import Config

CONFIG = Config("pointer", num_warps=8, BLOCK_SIZE_M=128, launch_pdl=True)


def test_what_came_by_replacing_is_what_was_made_whole():
    changed, added = CONFIG.replace(BLOCK_SIZE_M=64), CONFIG.replace(SPLIT_K=2)
    assert CONFIG.pairs == (("BLOCK_SIZE_M", 128), ("launch_pdl", True), ("num_warps", 8))
    for made in (changed, added):
        whole = Config("pointer", **dict(made.pairs))
        assert (made, hash(made), list(made), made.digest) == (whole, hash(whole), list(whole), whole.digest)
        assert made != CONFIG
        assert pickle.loads(pickle.dumps(made)) == made


def test_a_parameter_is_read_as_of_a_dict():
    assert (CONFIG["num_warps"], CONFIG.get("num_warps"), CONFIG.get("kpack", 1)) == (8, 8, 1)
    assert (CONFIG.integer("launch_pdl"), CONFIG.integer("kpack"), CONFIG.integer("kpack", 2)) == (1, 0, 2)
    assert "num_warps" in CONFIG
    assert "kpack" not in CONFIG
    with pytest.raises(KeyError, match="kpack"):
        CONFIG["kpack"]


@pytest.mark.parametrize("value", [1.5, None, (1, 2)])
def test_a_value_that_json_would_not_keep_is_refused_when_it_is_replaced_too(value):
    for make in (lambda: Config("any", num_warps=value), lambda: CONFIG.replace(num_warps=value)):
        with pytest.raises(ConfigError, match="num_warps must be an integer, a boolean or a string"):
            make()
