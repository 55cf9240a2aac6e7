"""A library's kernels under adoption and capture do what they do under Triton; captured calls are made again."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl

import tuner
from tuner.adopt import calls, replay
from tuner.adopt.inputs import ReplayedInputs
from tuner.errors import KernelError
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.sweep.search_task import list_spaces

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]
DO_BENCH = {"do_bench": lambda launch, quantiles: launch() or [1.0, 1.0, 1.0]}


@pytest.fixture(autouse=True)
def alone(no_tables, no_added_kernels):
    replay._opened.cache_clear()


def early(configs, named, *, grid, warmup, **rest):
    assert callable(grid)
    assert warmup is False
    assert set(named) | set(rest) == {"x", "y", "N", "autotuner"}
    return configs


def model(x, y, N, autotuner, grid, warmup, BLOCK, num_warps, num_ctas, num_stages):
    return -BLOCK


def sees_grid(args):
    assert callable(args["grid"])
    assert args["warmup"] is False


def all_of_tritons(decorate, **options):
    configs = [triton.Config(each.kwargs, pre_hook=sees_grid) for each in CONFIGS]
    prune = {"early_config_prune": early, "perf_model": model, "top_k": 1}
    return decorate(configs, key=["N"], prune_configs_by=prune, **options)


@all_of_tritons(triton.autotune, **DO_BENCH)
@triton.jit
def asking(x, y, N, autotuner, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N) * autotuner, mask=at < N)


@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def split(x, y, N, SPLIT: tl.constexpr = 2, BLOCK: tl.constexpr = 16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N) * SPLIT, mask=at < N)


def grid(meta):
    return (triton.cdiv(64, meta["BLOCK"]),)


def captured(folder, call):
    """The documents of a call that is captured."""
    with tuner.capture(folder, __name__):
        call()
    registry._added.clear()  # the kernels that measure take the places of those that were called
    registry.forget()
    return [json.loads(path.read_text()) for path in calls.paths(folder)]


def replayed(folder):
    """The one kernel of a folder with the inputs of its one call, and what its outputs should be."""
    found = replay.open_folders([folder])
    assert not found.faults
    ((kernel,), (problem,)) = found.kernels.values(), found.problems
    inputs = kernel.spec.make_inputs(problem, "cpu", 0)
    assert isinstance(inputs, ReplayedInputs)
    return kernel, inputs, kernel.spec.reference(inputs)


def test_pruning_models_and_hooks_get_under_capture_what_triton_gives_them(tmp_path):
    x, y = torch.randn(64), torch.empty(64)
    asking[grid](x, y, 64, autotuner=3)
    assert torch.equal(y, 3 * x)
    assert asking.best_config is asking.configs[1]
    y.zero_()
    (call,) = captured(tmp_path, lambda: asking[grid](x, y, 64, autotuner=3))
    assert torch.equal(y, 3 * x)
    assert asking.best_config is asking.configs[1]
    assert call["kwargs"] == {"autotuner": 3}
    kernel, inputs, expected = replayed(tmp_path)
    (config,) = kernel.spec.space(replay.open_folders([tmp_path]).problems[0], INTERPRETER).configs()
    inputs.poison()
    kernel.spec.launch(inputs, config)
    assert max(inputs.error_ratios(expected).values()) <= 1


def test_pruning_models_and_hooks_get_under_tuned_what_triton_gives_them():
    kernel = all_of_tritons(tuner.tuned, name="asked")(asking.fn)
    for _ in range(2):
        x, y = torch.randn(64), torch.empty(64)
        kernel[grid](x, y, 64, autotuner=3)
        assert torch.equal(y, 3 * x)
        assert kernel.best_config.kwargs == {"BLOCK": 32}


def test_a_grid_may_read_a_parameter_that_the_call_leaves_to_its_default(tmp_path):
    x, y = torch.randn(64), torch.empty(64)
    (call,) = captured(tmp_path, lambda: split[lambda meta: (meta["SPLIT"] // 2 * 64 // meta["BLOCK"],)](x, y, 64))
    assert torch.equal(y, 2 * x)
    assert call["grids"] == [[{"BLOCK": 16}, [4]], [{"BLOCK": 32}, [2]]]
    replayed(tmp_path)


@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def several(x, outs, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < N)
    tl.store(outs[0] + at, v, mask=at < N)
    tl.store(outs[1][0] + at, v + 2 if BLOCK == 16 else v + 1, mask=at < N)  # one of the two blocks is wrong


def test_outputs_within_tuples_are_compared_and_given_back(tmp_path):
    captured(tmp_path, lambda: several[grid](torch.randn(64), (torch.zeros(64), (torch.zeros(64),)), 64))
    kernel, inputs, expected = replayed(tmp_path)
    assert set(expected) == {"outs.0", "outs.1.0"}
    ratios = []
    for config in kernel.spec.space(*replay.open_folders([tmp_path]).problems, INTERPRETER).configs():
        inputs.poison()
        assert max(inputs.error_ratios(expected).values()) > 1
        kernel.spec.launch(inputs, config)
        ratios.append(max(inputs.error_ratios(expected).values()))
    assert ratios[0] <= 1 < ratios[1]


@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def of_numbers(N, BLOCK: tl.constexpr):
    tl.device_assert(BLOCK <= N)


def test_a_kernel_that_takes_no_tensor_is_left_alone_in_words_of_capture(tmp_path):
    captured(tmp_path, lambda: of_numbers[grid](64))
    (line,) = replay.open_folders([tmp_path]).faults
    assert line.endswith(":of_numbers is a tensor, so no config can be told right: left alone")


class Pair(NamedTuple):
    x: torch.Tensor
    n: int


@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def of_a_pair(pair, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(pair.x + at, mask=at < pair.n), mask=at < N)


def test_a_named_tuple_is_one_again_or_the_call_is_not_recorded(tmp_path, capsys):
    captured(tmp_path, lambda: of_a_pair[grid](Pair(torch.randn(64), 64), torch.empty(64), 64))
    _, inputs, expected = replayed(tmp_path)
    assert type(inputs.named["pair"]) is Pair
    assert torch.equal(expected["y"], inputs.named["pair"].x)

    class Local(NamedTuple):
        x: torch.Tensor
        n: int

    captured(tmp_path, lambda: of_a_pair[grid](Local(torch.randn(32), 32), torch.empty(32), 32))
    assert "Local cannot be imported under this name" in capsys.readouterr().err
    assert len(calls.paths(tmp_path)) == 1


@triton.autotune(CONFIGS, key=["N"], reset_to_zero=["total"], **DO_BENCH)
@triton.jit
def added(x, total, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + at, mask=at < N, other=0.0)))


def totals(between=lambda: None):
    """What is in a sum after each of some calls, of one key of Triton's but for the last."""
    added.cache.clear()
    memory, total, found = torch.ones(65), torch.full((1,), 100.0), []
    for x, size in ((memory[:64], 64), (memory[:64], 64), (memory[1:], 64), (memory[:32], 32)):
        added[grid](x, total, size)
        found.append(total.item())
        between()
    return found


def test_what_is_reset_to_zero_is_so_once_a_key_as_under_triton(tmp_path):
    assert totals() == [64, 128, 192, 32]
    with tuner.capture(tmp_path, __name__):
        assert totals() == [64, 128, 192, 32]
    with tuner.adopt(__name__, on_miss="first"):
        assert totals(lambda: tuner.use(None)) == [64, 128, 192, 32], "nothing is zeroed for a new lookup"
        hook = added.pre_hook
    assert totals()[0] == 64, "what Triton measures it zeroes"
    assert added.pre_hook is hook


def needs_values(configs, named, **_rest):
    return configs[int(named["y"].sum().item() * 0) :][:1]


def fails(_configs, _named, **_rest):
    raise LookupError("no such tensor")


@triton.autotune(CONFIGS, key=["N"], prune_configs_by={"early_config_prune": needs_values})
@triton.jit
def looking(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < N), mask=at < N)


failing = triton.autotune(CONFIGS, key=["N"], prune_configs_by={"early_config_prune": needs_values})(split.fn)


def test_what_prunes_by_values_gets_values_offline_and_what_fails_is_one_line_of_its_kernel(tmp_path, monkeypatch):
    for kernel, name in ((looking, "looking"), (failing, "failing")):
        captured(tmp_path / name, lambda kernel=kernel: kernel[grid](torch.randn(64), torch.zeros(64), 64))
    kernel, _, _ = replayed(tmp_path / "looking")
    (config,) = list_spaces(*replay.open_folders([tmp_path / "looking"]).problems, INTERPRETER).configs
    assert config["BLOCK"] == 16
    monkeypatch.setattr(failing, "early_config_prune", fails)
    found = replay.open_folders([tmp_path / "failing"])
    with pytest.raises(KernelError, match=r"prune_configs_by of .*split failed: LookupError: .*no such tensor"):
        list_spaces(*found.problems, INTERPRETER)


def test_a_call_that_is_captured_again_with_other_configs_takes_the_place_of_the_first(tmp_path, monkeypatch):
    def blocks():
        (call,) = captured(tmp_path, lambda: looking[grid](torch.randn(64), torch.zeros(64), 64))
        return [pairs["BLOCK"] for pairs, _ in call["grids"]]

    assert blocks() == [16, 32]
    monkeypatch.setattr(looking, "configs", [triton.Config({"BLOCK": block}) for block in (32, 64)])
    assert blocks() == [32, 64]
    (path,) = calls.paths(tmp_path)
    path.write_text("cut")
    assert blocks() == [32, 64]


def made_within():
    return triton.autotune(CONFIGS, key=["N"], **DO_BENCH)(added.fn)


def test_autotuners_that_a_function_makes_are_one_line_under_capture(tmp_path, capsys):
    with tuner.capture(tmp_path, __name__):
        for _ in range(3):
            made_within()[grid](torch.ones(64), torch.zeros(1), 64)
    (line,) = capsys.readouterr().err.splitlines()
    assert "added is not recorded: " in line


def test_a_kernel_that_nobody_holds_is_not_held_by_what_forgets_its_answers():
    kernel = weakref.ref(tuner.tuned(CONFIGS, ["N"], name="let_go")(added.fn))
    registry._added.clear()
    registry.forget()
    gc.collect()
    assert kernel() is None


def test_an_adoption_that_is_undone_leaves_what_another_tool_put_in_place_since(monkeypatch):
    own = triton.runtime.Autotuner.prune_configs
    monkeypatch.setattr(triton.runtime.Autotuner, "prune_configs", own)
    with tuner.adopt(__name__):
        ours = triton.runtime.Autotuner.prune_configs
        assert ours is not own

        def theirs(self, kwargs):
            return ours(self, kwargs)

        triton.runtime.Autotuner.prune_configs = theirs
    assert triton.runtime.Autotuner.prune_configs is theirs
    added.cache.clear()
    added[grid](torch.ones(64), torch.zeros(1), 64)  # nobody chooses, so Triton's own prunes


def test_a_module_that_is_not_there_is_one_warning_and_nothing_is_imported_to_find_that(caplog):
    before = {*sys.modules}
    with tuner.adopt("xml.etree.ElementTree"), tuner.adopt("email.mime.nowhere"), tuner.adopt("email.nowhere.at_all"):
        pass
    assert {*sys.modules} - before == set()
    assert [record.getMessage().split(" (yet)")[0] for record in caplog.records] == [
        "there is no module email.mime.nowhere",
        "there is no module email.nowhere.at_all",
    ]
