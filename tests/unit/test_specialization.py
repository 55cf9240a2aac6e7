"""A kernel compiles in no size and no stride but 1: a forgotten name would be a binary for each alignment."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("triton", reason="kernels need triton")

KERNELS = {
    "gemm.pointer.jit": ["matmul_kernel"],
    "gemm.tma.jit": ["matmul_kernel", "persistent_kernel"],
    "gemm.small_m.gemv_jit": ["gemv_kernel"],
    "gemm.block_scaled.jit": ["matmul_kernel"],
    "batched.jit": ["pointer_kernel", "tma_kernel"],
    "grouped.jit": ["grouped_kernel", "listed_kernel"],
    "grouped.tma_jit": ["grouped_kernel"],
    "experts.jit": ["route_kernel", "gate_up_kernel", "down_kernel", "combine_kernel"],
    "experts.tma_jit": ["gate_up_kernel", "down_kernel"],
    "gated.jit": ["gated_kernel"],
    "gated.gemv_jit": ["gated_gemv_kernel"],
    "gated.hopper_jit": ["gated_kernel"],
    "merged.gemv_jit": ["merged_gemv_kernel"],
    "softmax.whole_jit": ["whole_kernel"],
    "softmax.online_jit": ["online_kernel"],
    "softmax.split_jit": ["split_sums_kernel", "split_write_kernel"],
    "elementwise.vector_add_jit": ["add_kernel"],
    "rms_norm.whole_jit": ["norm_kernel"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in KERNELS.items() for name in names])
def test_no_size_and_no_alignment_of_a_stride_is_compiled_in(module, name):
    kernel = getattr(importlib.import_module(f"tuner.kernels.{module}"), name)
    if not hasattr(kernel, "params"):
        pytest.skip("the interpreter specializes on nothing")
    numbers = [each for each in kernel.params if not each.is_constexpr and not each.name.endswith(("_ptr", "_desc"))]
    tensors = {"a", "b", "c"}
    specialized = {
        each.name
        for each in numbers
        if each.name not in tensors and not each.do_not_specialize and not each.do_not_specialize_on_alignment
    }
    assert not specialized


def test_the_key_of_a_launch_is_made_once_for_all_sizes_and_tells_values_of_two_types_apart(monkeypatch):
    import torch

    from tuner.kernels.gemm.pointer.jit import matmul_kernel
    from tuner.launch import binaries
    from tuner.launch.launch import Launch

    made, key_of = [], binaries.key_of
    monkeypatch.setattr(binaries, "key_of", lambda found: made.append(found) or key_of(found))

    def key(size: int, even: object, options: dict[str, int]) -> str:
        tensor = torch.empty(size, 16, dtype=torch.float16, device="meta")
        return Launch(matmul_kernel, (size,), (tensor, tensor, None, size), {"EVEN_K": even}, options).key

    first = key(48, True, {"num_warps": 4})
    assert key(80, True, {"num_warps": 4}) == first
    assert len(made) == 1
    assert key(1, True, {"num_warps": 4}) != first
    others = {key(48, 1, {"num_warps": 4}), key(48, False, {"num_warps": 4}), key(48, True, {"num_warps": 8})}
    assert len(others | {first}) == 4
