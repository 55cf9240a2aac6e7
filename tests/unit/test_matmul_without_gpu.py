"""What matmul says where there is no GPU and no interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

from tuner.errors import InputError
from tuner.kernels import matmul


def test_a_cpu_tensor_outside_the_interpreter_is_one_clear_error():
    with pytest.raises(InputError, match=r"a is on cpu: expected a GPU; use a\.cuda\(\), or set TRITON_INTERPRET=1"):
        matmul(torch.ones(4, 4), torch.ones(4, 4))


def test_the_function_and_the_module_of_one_name_are_both_reachable():
    import tuner.kernels
    import tuner.kernels.matmul as imported  # `import a.b as c` gives the attribute, which is the function

    assert callable(tuner.kernels.matmul)
    assert imported is tuner.kernels.matmul


def test_a_module_imported_first_does_not_hide_the_op_of_its_name():
    code = textwrap.dedent("""
        import importlib, tuner.kernels
        module = importlib.import_module("tuner.kernels.softmax")
        assert tuner.kernels.softmax is module.softmax
        from tuner.kernels import *
        assert softmax is module.softmax and callable(bmm) and callable(pad_weight)
        assert {*tuner.kernels.__all__} <= {*dir(tuner.kernels)}
        assert not hasattr(tuner.kernels, "nothing")
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
