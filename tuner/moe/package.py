"""The fused-experts kernel of the installed vLLM or SGLang, and the functions that choose its config.

Neither package is imported: both need compiled parts and a GPU, and take seconds. A module's file is parsed instead,
and only the functions that are needed are compiled, under the file's own name and line numbers. So Triton finds their
source, and its cache keys are those of a serving process.
"""

from __future__ import annotations
import __future__

import ast
import functools
import hashlib
import importlib.util
import inspect
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import KernelError, in_short
from tuner.moe.layer import PACKAGES, Layer
from tuner.tuned.source import source_hash

TRIED = {"vllm": ("0.33.0",), "sglang": ("0.5.23",)}
"""The versions whose kernel was launched in tests of this folder."""
_GROUPED = "fused_moe_kernel_gptq_awq"
_SERVED = "model_executor/layers/quantization/moe_wna16.py", "make_wna16_moe_kernel"
"""vLLM's module for weights with groups, and a function that it calls if the Triton kernel serves any number of tokens.
Versions without it serve few tokens of int4 by a CUDA kernel, which takes its sizes from the same rows and fails on
most."""
_FILES = {
    "vllm": "model_executor/layers/fused_moe/fused_moe.py",
    "sglang": "kernels/ops/moe/fused_moe_triton_kernels.py",
}
CONFIGS = {
    "vllm": "model_executor/layers/fused_moe/fused_moe.py",
    "sglang": "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py",
}
"""The module of each package that reads files of configs and has the default config."""
_COMMON = (
    *("a_ptr", "b_ptr", "c_ptr", "a_scale_ptr", "b_scale_ptr", "topk_weights_ptr"),
    *("sorted_token_ids_ptr", "expert_ids_ptr", "num_tokens_post_padded_ptr", "N", "K", "EM", "num_valid_tokens"),
    *("stride_am", "stride_ak", "stride_be", "stride_bk", "stride_bn", "stride_cm", "stride_cn"),
    *("stride_asm", "stride_ask", "stride_bse", "stride_bsk", "stride_bsn", "group_n", "group_k"),
    *("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "MUL_ROUTED_WEIGHT", "top_k", "compute_type"),
    *("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "per_channel_quant"),
)
_OF_GROUPS = {
    *_COMMON,
    *("b_zp_ptr", "stride_bze", "stride_bzk", "stride_bzn", "group_size", "has_zp", "use_int4_w4a16"),
} - {
    *("a_scale_ptr", "stride_asm", "stride_ask", "group_n", "group_k"),
    *("use_fp8_w8a8", "use_int8_w8a8", "per_channel_quant"),
}
ARGUMENTS = {
    "vllm": {
        *(*_COMMON, "b_bias_ptr", "stride_bbe", "stride_bbn"),
        *("naive_block_assignment", "SPLIT_K", "HAS_BIAS", "SWAP_AB", "USE_TD"),
    },
    "sglang": {
        *(*_COMMON, "a_desc", "b_desc", "bias_ptr", "add_mask_ptr", "stride_bias_e", "stride_bias_n", "even_Ks"),
        *("c_sorted", "swap_ab", "FUSE_ADD_TO_OUTPUT", "MASK_OUTPUT", "FUSE_SUM_ALL_REDUCE", "ROUTER_TOPK"),
        *("FUSE_SWIGLU", "USE_GDC", "GDC_EARLY", "A_OUTPUT_SLICES", "A_OUTPUT_SLICE_WIDTH", "A_OUTPUT_SLICE_K"),
    },
}
"""The arguments of each `fused_moe_kernel`, which `tuner.moe.launch` passes."""
_ARGUMENTS_OF_GROUPS = {"vllm": {*_OF_GROUPS, "block_k_diviable", "SPLIT_K"}, "sglang": {*_OF_GROUPS, "even_Ks"}}


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package.

    Attributes:
        name: "vllm" or "sglang".
        version: from its `_version.py`.
        folder: where it is installed.
        file: the module of its kernel.
        kernel: the jit function.
        grouped: the jit function for weights with groups, or the error that says why there is none.
    """

    name: str
    version: str
    folder: Path
    file: Path
    kernel: Any
    grouped: Any

    @property
    def source_hash(self) -> str:
        """The hash of the kernels' source: another one makes old timings stale."""
        own = source_hash(self.kernel)
        if isinstance(self.grouped, KernelError):
            return own
        return hashlib.sha256(f"{own} {source_hash(self.grouped)}".encode()).hexdigest()

    def kernel_of(self, layer: Layer) -> Any:
        """Return the jit function for a layer's weights.

        Raises:
            KernelError: this version has none for them.
        """
        if layer.group_size is None:
            return self.kernel
        if isinstance(self.grouped, KernelError):
            raise self.grouped
        if self.name == "vllm" and not _serves_by_triton(self.folder):
            why = "its Triton kernel does not serve few tokens of weights with groups"
            raise _other_version(self.name, self.version, why)
        return self.grouped

    def part(self, file: str, names: Iterable[str], stand_ins: Mapping[str, Any]) -> types.SimpleNamespace:
        """Return some functions of one of its modules: see `part`; `file` is relative to the package."""
        return part(self.folder / file, names, stand_ins, f"{self.name} {self.version}")

    def default_parameters(self, layer: Layer, m: int, *, shared_bytes: int) -> dict[str, int]:
        """Return the parameters of its own `get_default_config` for M tokens, which it uses where there is no file.

        Args:
            layer: the layer on one rank.
            m: tokens.
            shared_bytes: the most shared memory of a block, which SGLang's function asks the device for.
        """
        import torch
        import triton

        stand_ins = {
            "envs": types.SimpleNamespace(VLLM_BATCH_INVARIANT=False),
            "current_platform": types.SimpleNamespace(
                is_rocm=lambda: torch.version.hip is not None, is_cuda=lambda: torch.version.hip is None
            ),
            "next_power_of_2": triton.next_power_of_2,
            "get_exec": lambda: types.SimpleNamespace(
                deterministic=types.SimpleNamespace(enable_deterministic_inference=False)
            ),
            "_is_hip": torch.version.hip is not None,
            "_use_low_smem_fp8_default": lambda: shared_bytes < 128 * 1024,
        }
        names = ["get_default_config"]
        if self.name == "vllm" and layer.group_size is not None:
            names.append("should_moe_wna16_use_cuda")
        get_default_config = self.part(CONFIGS[self.name], names, stand_ins).get_default_config
        options = {"is_marlin": False} if self.name == "sglang" else {}
        sizes = (layer.experts, layer.shard, layer.hidden, layer.top_k)
        try:
            return dict(get_default_config(m, *sizes, layer.config_dtype, block_shape=layer.blocks, **options))
        except Exception as e:
            raise _other_version(self.name, self.version, f"get_default_config fails: {in_short(e)}") from e

    def block_sizes(self, layer: Layer, m: int, config: Mapping[str, Any]) -> list[dict[str, int]]:
        """Return the BLOCK_SIZE_N and BLOCK_SIZE_K that vLLM adds to a config without them: of gate-up, and of down."""
        name = "get_moe_wna16_block_config"
        get_sizes = getattr(self.part(CONFIGS[self.name], (name,), {}), name)
        sizes = {"num_experts": layer.experts, "group_size": layer.group_size, "block_size_m": config["BLOCK_SIZE_M"]}
        gemms = ((2 * layer.shard, layer.hidden, layer.top_k), (layer.hidden, layer.shard, 1))
        return [
            get_sizes(
                config={},
                use_moe_wna16_cuda=False,
                num_valid_tokens=m * layer.top_k,
                size_n=n,
                size_k=k,
                real_top_k=top_k,
                **sizes,
            )
            for n, k, top_k in gemms
        ]


@functools.cache
def load(name: str) -> Package:
    """Return the kernel of an installed package.

    Args:
        name: "vllm" or "sglang".

    Raises:
        KernelError: the package is not installed, or its version has another kernel than those that were tried.
    """
    if name not in PACKAGES:
        raise KernelError(f"unknown package {name!r}: expected one of {', '.join(PACKAGES)}")
    module = importlib.util.find_spec(name)
    if module is None or not module.submodule_search_locations:
        raise KernelError(f"no {name} is installed here: install it (pip install {name}), at best {TRIED[name][-1]}")
    folder = Path(next(iter(module.submodule_search_locations))).resolve()
    version, file = _version(folder), folder / _FILES[name]
    of = f"{name} {version}"
    kernel, grouped = _jit(file, "fused_moe_kernel", ARGUMENTS[name], of), None
    try:
        grouped = _jit(file, _GROUPED, _ARGUMENTS_OF_GROUPS[name], of)
    except KernelError as e:
        grouped = e
    return Package(name, version, folder, file, kernel, grouped)


@functools.cache
def _serves_by_triton(folder: Path) -> bool:
    file, called = _SERVED
    try:
        return called in (folder / file).read_text(encoding="utf-8")
    except OSError:
        return False


def _jit(file: Path, function: str, arguments: set[str], of: str) -> Any:
    import torch
    import triton
    import triton.language as tl

    names = part(file, ("write_zeros_to_output", function), {"torch": torch, "triton": triton, "tl": tl}, of)
    kernel = getattr(names, function)
    if odd := set(inspect.signature(kernel.fn).parameters) ^ arguments:
        name, _, version = of.partition(" ")
        raise _other_version(name, version, f"its {function} has other arguments ({', '.join(sorted(odd))})")
    return kernel


def part(file: Path, names: Iterable[str], stand_ins: Mapping[str, Any], of: str) -> types.SimpleNamespace:
    """Compile some functions and assignments of a module's file, and nothing else of it.

    Args:
        file: the module's file.
        names: top-level names to take, in the file's order.
        stand_ins: what they refer to beside each other, by name, in place of the module's imports.
        of: the package and its version, for messages.

    Raises:
        KernelError: the file is missing or no Python, or lacks one of the names.
    """
    name, _, version = of.partition(" ")
    wanted = set(names)
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, SyntaxError, ValueError) as e:
        raise _other_version(name, version, f"{file} cannot be read ({in_short(e)})") from e
    body = [node for node in tree.body if _names_of(node) & wanted]
    if missing := wanted - set().union(*map(_names_of, body)):
        raise _other_version(name, version, f"{file} has no {', '.join(sorted(missing))}")
    # Annotations are not evaluated: they name classes that are not needed here, and Triton also reads them as text.
    flags = __future__.annotations.compiler_flag
    code = compile(ast.Module(body, []), str(file), "exec", flags=flags, dont_inherit=True)
    module = types.ModuleType(_module_name(file, name))
    module.__file__ = str(file)
    vars(module).update(functools=functools, **stand_ins)
    try:
        exec(code, vars(module))  # noqa: S102  the package's own code, which a server runs too
    except Exception as e:
        raise _other_version(name, version, f"{file} refers to what is not known here ({in_short(e)})") from e
    return types.SimpleNamespace(**{each: vars(module)[each] for each in wanted})


def _names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _module_name(file: Path, package: str) -> str:
    """Return the module's own name, which Triton hashes with a function's source."""
    parts = file.with_suffix("").parts
    return ".".join(parts[len(parts) - 1 - parts[::-1].index(package) :]) if package in parts else file.stem


def _version(folder: Path) -> str:
    try:
        version = re.search(r"__version__\s*=.*?['\"]([^'\"]+)", (folder / "_version.py").read_text(encoding="utf-8"))
    except OSError:
        version = None
    return version[1] if version else "of an unknown version"


def _other_version(name: str, version: str, why: str) -> KernelError:
    tried = ", ".join(TRIED[name])
    return KernelError(f"{name} {version} is installed: {why}; tried were {tried}: install one of these")
