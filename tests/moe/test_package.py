"""The kernels of vLLM and SGLang are found without importing either; another layout of a package is one clear line."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import packages
import pytest

from tuner.errors import KernelError, ProblemError
from tuner.moe.layer import LADDER, Layer, layer_of
from tuner.moe.model import _FUSED_BY_SGLANG
from tuner.moe.package import TRIED, load

NAMES = packages.EXPERTS


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_comes_from_the_installed_package_with_its_lines(name):
    package = load(name)
    assert package.version == packages.VERSIONS[name]
    assert package.version in TRIED[name]
    assert package.file.is_relative_to(packages.folder(name).resolve())
    lines, first = inspect.getsourcelines(package.kernel.fn)
    assert package.file.read_text().splitlines(keepends=True)[first - 1 : first - 1 + len(lines)] == lines
    assert name not in sys.modules


@pytest.mark.parametrize("name", NAMES)
def test_the_default_is_what_the_packages_own_function_says(name):
    small, large = (load(name).default_parameters(Layer(64, 2048, 1408, 6), m, shared_bytes=232448) for m in (1, 4096))
    assert small["BLOCK_SIZE_M"] == 16
    assert small["BLOCK_SIZE_M"] < large["BLOCK_SIZE_M"]
    blocks = load(name).default_parameters(
        Layer(64, 2048, 2048, 6, "fp8_w8a8", (128, 128), tp=2), 64, shared_bytes=232448
    )
    assert blocks["BLOCK_SIZE_K"] == 128


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of a package's kernel that a test may change: its file."""

    def copied(name: str) -> Path:
        package = load(name)
        own = tmp_path / name / package.file.relative_to(package.folder)
        own.parent.mkdir(parents=True)
        shutil.copy(package.file, own)
        shutil.copy(package.folder / "_version.py", tmp_path / name)
        (tmp_path / name / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        load.cache_clear()
        return own

    return copied


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_with_other_arguments_is_one_line_with_the_versions_that_were_tried(name, copy):
    file = copy(name)
    text = file.read_text()
    file.write_text(re.sub(r"(?<=def fused_moe_kernel\(\n)", "    novel_ptr,\n", text))
    with pytest.raises(KernelError) as refused:
        load(name)
    said = str(refused.value)
    assert f"{name} {packages.VERSIONS[name]} is installed" in said
    assert "(novel_ptr)" in said
    assert f"tried were {', '.join(TRIED[name])}" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("vllm", ("def fused_moe_kernel_gptq_awq(", "def renamed("), "has no fused_moe_kernel_gptq_awq"),
        ("sglang", ("def fused_moe_kernel_gptq_awq(", "def renamed("), "has no fused_moe_kernel_gptq_awq"),
        ("sglang", ("    b_zp_ptr,\n", "    novel_ptr,\n"), r"has other arguments \(b_zp_ptr, novel_ptr\)"),
        ("vllm", ("", ""), "does not serve few tokens of weights with groups"),
    ],
)
def test_a_package_without_a_kernel_for_groups_is_one_line_for_these_alone(name, change, said, copy):
    file = copy(name)
    file.write_text(file.read_text().replace(*change, 1))
    package = load(name)
    assert package.kernel_of(Layer(8, 64, 64, 2)) is package.kernel
    with pytest.raises(KernelError, match=f"^{name} .* is installed: .*{said}.*; tried were"):
        package.kernel_of(Layer(8, 64, 64, 2, "int4_w4a16", group_size=32))


@pytest.mark.parametrize("damage", ["", "def fused_moe_kernel(:\n"])
@pytest.mark.parametrize("name", NAMES)
def test_a_package_without_the_kernel_is_one_line(name, damage, copy):
    copy(name).write_text(damage)
    with pytest.raises(KernelError, match=f"^{name} .* is installed: .*tried were"):
        load(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_kernel_is_another_version_and_a_comment_is_none(name, copy):
    before = load(name).source_hash
    file = copy(name)
    file.write_text(file.read_text() + "\n# a comment\n")
    assert load(name).source_hash == before
    file.write_text(file.read_text().replace("offs_k = tl.arange(0, BLOCK_SIZE_K)", "offs_k = tl.arange(0, 16)"))
    load.cache_clear()
    assert load(name).source_hash != before


def test_a_package_that_is_not_installed_is_one_line():
    code = (
        "import tuner.moe.package as p, tuner.errors as e\n"
        "try: p.load('vllm')\nexcept e.KernelError as error: print(error)"
    )
    child = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert "no vllm is installed here: install it" in child.stdout, child.stderr


def test_a_layer_is_what_its_problems_say():
    for more in (
        {},
        {"dtype": "fp16"},
        {"dtype": "fp8_w8a8", "block_shape": (128, 128)},
        {"dtype": "int8_w8a16"},
        {"dtype": "int8_w8a16", "group_size": 64},
        {"dtype": "int4_w4a16", "group_size": 128, "zero_points": True},
    ):
        layer = Layer(8, 4096, 14336, 2, **more, tp=2)
        for name in NAMES:
            for problem in layer.problems(name, LADDER[-1], "zipf"):
                assert layer_of(problem) == Layer(8, 4096, 7168, 2, **more)
                assert problem["routing"] == "zipf"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 3}, "intermediate 1408 does not divide by tp 3"),
        ({"top_k": 65}, "top_k is 65"),
        ({"dtype": "fp4"}, "unknown dtype 'fp4'"),
        (
            {"dtype": "fp8_w8a8", "block_shape": (128, 128), "tp": 2},
            "intermediate on one rank is 704, .* type a smaller --tp, or the --block-shape .* vLLM makes 64,64 here$",
        ),
        ({"dtype": "fp8_w8a8", "block_shape": (128, 128), "tp": 8}, "on one rank is 176, .* sizes up to 16 here$"),
        ({"block_shape": (128, 128)}, "block_shape is for fp8_w8a8"),
        ({"dtype": "int4_w4a16"}, "type --group-size 128"),
        ({"dtype": "int8_w8a16", "zero_points": True}, "type --group-size 128"),
        ({"group_size": 128}, "group_size is for int4_w4a16 and int8_w8a16, these experts are bf16"),
        ({"dtype": "int4_w4a16", "group_size": 96}, "group_size is 96: expected a power of two from 32 on"),
        (
            {"dtype": "int4_w4a16", "group_size": 128, "tp": 2},
            "intermediate on one rank is 704, which does not divide into groups of 128: .* type --group-size 64",
        ),
        ({"dtype": "int4_w4a16", "group_size": 128, "hidden": 2056}, "hidden is 2056, .* into groups of 128$"),
        ({"experts": 0}, "experts must be an integer from 1 on, got 0"),
    ],
)
def test_a_layer_that_no_kernel_can_have_is_one_line(given, said):
    with pytest.raises(ProblemError, match=said):
        Layer(**{"experts": 64, "hidden": 2048, "intermediate": 1408, "top_k": 6, **given})


def test_operations_are_those_of_all_that_one_launch_plays():
    layer = Layer(8, 64, 48, 2)
    gate_up, down = (problem.flops for problem in layer.problems("sglang", 5))
    assert gate_up == 4 * 2 * (5 * 2) * 96 * 64  # four draws
    assert [problem.flops for problem in layer.problems("vllm", 5)] == [gate_up + down]


def test_models_whose_shared_expert_sglang_fuses_say_so_in_its_own_classes():
    texts = [path.read_text() for path in (packages.folder("sglang") / "sglang/srt/models").rglob("*.py")]
    counting = [text for text in texts if "def num_fusable_shared_experts" in text]
    for architecture in _FUSED_BY_SGLANG:
        assert any(f"class {architecture}(" in text or f'"{architecture}"' in text for text in counting), architecture
