import contextlib
import dataclasses
import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tuner import reference
from tuner.errors import KernelError, SweepError
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Outcome, State
from tuner.sweep.compile_child import Compiled, Failed
from tuner.sweep.compile_pool import CompilePool, Urgency
from tuner.sweep.host_errors import host_error_in
from tuner.sweep.measure import failure_of
from tuner.sweep.search_task import list_spaces, make_search_task

DEVICE = KNOWN["sm_90"]


def wait_for(pool, keys):
    deadline = time.monotonic() + 120
    while any(pool.result(key) is None for key in keys):
        assert time.monotonic() < deadline, "the pool did not finish"
        pool.recover()
        time.sleep(0.02)
    return [pool.result(key) for key in keys]


def test_failures_of_a_compiler_stay_in_its_child_and_are_told(faulty, capfd):
    problem = faulty()
    spec = registry.find("faulty", "faulty")
    behaviours = ["good", "raise", "segfault", "hang", "slow"]
    with CompilePool(DEVICE, workers=2, time_limit_s=3) as pool:
        keys = [pool.request(spec, problem, Config("faulty", behaviour=name, index=0)) for name in behaviours]
        good, raised, aborted, hung, noisy = wait_for(pool, keys)
    assert isinstance(good, Compiled)
    assert raised == Failed(State.COMPILE_ERROR, "ValueError: cannot lower this")
    assert aborted == Failed(State.COMPILE_ERROR, "compiler died with signal SIGABRT: LLVM ERROR: unreachable executed")
    assert hung == Failed(State.TIMEOUT, "compile took more than 3 s")
    assert isinstance(noisy, Compiled)
    assert capfd.readouterr().out == ""


def test_a_compiler_that_is_killed_twice_may_be_no_fault_of_the_config(faulty):
    spec, problem = registry.find("faulty", "faulty"), faulty()
    with CompilePool(DEVICE, workers=1) as pool:
        (killed,) = wait_for(pool, [pool.request(spec, problem, Config("faulty", behaviour="killed", index=0))])
    assert killed == Failed(State.CRASHED, "compiler died with signal SIGKILL")


def test_a_full_disk_under_the_compilers_ends_the_sweep_and_is_no_result(faulty):
    spec, problem = registry.find("faulty", "faulty"), faulty()
    with CompilePool(DEVICE, workers=1) as pool:
        key = pool.request(spec, problem, Config("faulty", behaviour="full", index=0))
        with pytest.raises(SweepError, match=r"cache cannot be written .*No space left.*set \$TRITON_CACHE_DIR"):
            wait_for(pool, [key])
        assert pool.result(key) is None


def test_a_full_disk_is_told_while_what_is_to_be_compiled_is_still_being_listed(faulty):
    problem, deadline = faulty(), time.monotonic() + 120

    def listed():
        yield problem, Config("faulty", behaviour="full", index=0)
        while time.monotonic() < deadline:
            time.sleep(0.05)
            yield problem, Config("faulty", behaviour="good", index=0)

    with CompilePool(DEVICE, workers=1) as pool, pytest.raises(SweepError, match="cache cannot be written"):
        pool.compile_all(listed())
    assert time.monotonic() < deadline


def test_a_missing_folder_of_the_cache_is_the_machines_error_and_another_missing_file_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "gone" / "cache"))
    for missed in ("gone", "gone/cache", "gone/cache/AB/kernel.cubin"):
        assert host_error_in(FileNotFoundError(errno.ENOENT, "", str(tmp_path / missed))) is not None
    assert host_error_in(FileNotFoundError(errno.ENOENT, "", str(tmp_path / "other"))) is None
    assert host_error_in(ValueError("cannot lower this")) is None
    error = RuntimeError("cannot launch this")
    error.__cause__ = PermissionError(errno.EACCES, "no")
    assert failure_of(error) == Outcome(State.CRASHED, "PermissionError: [Errno 13] no")


def test_a_pool_that_ends_while_children_start_leaves_nothing_on_the_screen(capfd):
    with contextlib.ExitStack() as pools:
        for _ in range(3):
            pools.enter_context(CompilePool(DEVICE, workers=14))
    assert capfd.readouterr().err == ""


def test_a_function_runs_in_a_child_unless_none_runs_it_to_its_end():
    with CompilePool(DEVICE, workers=1) as pool:
        while (there := pool.call(os.getpid)) is None:
            time.sleep(0.1)  # the children are starting
        assert there != os.getpid()
        with pytest.raises(KernelError, match="unheard-of"):
            pool.call(list_spaces, Problem(8, 8, 8, op="unheard-of"), DEVICE)
        assert pool.call(os._exit, 3) is None
        problem = Problem(64, 4096, 4096, dtype="bf16", layout="nt")
        there, here = pool.call(list_spaces, problem, DEVICE, estimated=True), list_spaces(problem, DEVICE)
        assert (there.configs, there.default) == (here.configs, here.default)
        known, unknown = (make_search_task(problem, DEVICE, listing=each) for each in (there, here))
        assert len(known.estimates) == len(known.configs) > 1000
        assert not unknown.estimates
        assert all(known.estimate(config) == unknown.estimate(config) for config in known.configs[::100])
    assert pool.call(os.getpid) is None


def test_a_killed_child_costs_nothing_but_time(faulty):
    problem = faulty()
    spec = registry.find("faulty", "faulty")
    with CompilePool(DEVICE, workers=1) as pool:
        wait_for(pool, [pool.request(spec, problem, Config("faulty", behaviour="good", index=0))])
        for child in pool_children():
            os.kill(child, signal.SIGKILL)
        time.sleep(0.5)
        keys = [pool.request(spec, problem, Config("faulty", behaviour="good", index=index)) for index in (1, 2)]
        assert all(isinstance(result, Compiled) for result in wait_for(pool, keys))


def test_what_is_given_to_the_children_while_the_last_of_them_dies_is_compiled_by_others(faulty, monkeypatch):
    spec, problem = registry.find("faulty", "faulty"), faulty()
    with CompilePool(DEVICE, workers=1) as pool:
        wait_for(pool, [pool.request(spec, problem, Config("faulty", behaviour="good", index=0))])
        manager = pool._pool.result()._pool_manager
        listed = manager.task_manager.register

        def list_too_late(task):
            manager.handle_broken_pool(BrokenProcessPool("All workers expired"))
            listed(task)

        monkeypatch.setattr(manager.task_manager, "register", list_too_late)
        (result,) = wait_for(pool, [pool.request(spec, problem, Config("faulty", behaviour="good", index=1))])
        assert isinstance(result, Compiled)


def test_what_a_gpu_waits_for_is_compiled_before_what_may_come(faulty):
    spec, problem = registry.find("faulty", "faulty"), faulty()

    def config(index):
        return Config("faulty", behaviour="good", index=index)

    with CompilePool(DEVICE, workers=1) as pool:
        first = pool.request(spec, problem, config(98))
        wait_for(pool, [first])
        (child,) = pool_children()
        os.kill(child, signal.SIGSTOP)
        spare = [pool.request(spec, problem, config(index), Urgency.SPARE) for index in range(12)]
        now = pool.request(spec, problem, config(99), Urgency.NOW)
        moved = pool.request(spec, problem, config(11), Urgency.NOW)
        pool.hasten(spare[5], Urgency.NOW)
        pool.hasten(spare[5], Urgency.SPARE)
        os.kill(child, signal.SIGCONT)
        assert moved == spare[11]
        wait_for(pool, [now, *spare])
        in_order = [first, spare[0], now, moved, spare[5]]
        assert list(pool._results)[:5] == in_order, "what is urgent waits for what is at work alone"
        assert pool.compiled == 14


def test_children_that_cannot_start_are_one_clear_error(faulty):
    nowhere = dataclasses.replace(DEVICE, arch="sm_none")
    spec = registry.find("faulty", "faulty")
    with CompilePool(nowhere, workers=1) as pool:
        key = pool.request(spec, faulty(), Config("faulty", behaviour="good", index=0))
        with pytest.raises(SweepError, match=r"compile processes die as soon as they start.*sm_none"):
            wait_for(pool, [key])


def pool_children():
    """Process ids of the compile children: those whose parent is this process's fork server."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    servers = [pid for pid, parent in parents.items() if parent == os.getpid() and is_forkserver(pid)]
    return [pid for pid, parent in parents.items() if parent in servers]


def is_forkserver(pid):
    return "forkserver" in (Path("/proc") / str(pid) / "cmdline").read_text()


def test_a_binary_is_asked_for_once_however_many_problems_share_it():
    spec = registry.find("matmul", "pointer")
    big, bigger = (Problem(m, 4096, 4096, dtype="bfloat16", layout="nt") for m in (4096, 8192))
    config = spec.default_config(big, DEVICE)
    with CompilePool(DEVICE, workers=1) as pool:
        keys = {pool.request(spec, problem, config) for problem in (big, bigger, big)}
        (result,) = wait_for(pool, keys)
        assert len(keys) == pool.compiled == 1
    assert isinstance(result, Compiled)
    assert result.resources.registers > 32
    assert result.resources.spill_bytes == 0
    assert 0 < result.resources.shared_bytes <= DEVICE.shared_bytes
    assert result.resources.compile_ms > 0


def test_what_does_not_compile_is_no_binary_that_was_made(faulty):
    problem, spec = faulty(), registry.find("faulty", "faulty")
    good, bad = (Config("faulty", behaviour=behaviour, index=0) for behaviour in ("good", "raise"))
    with CompilePool(DEVICE, workers=1) as pool:
        wait_for(pool, [pool.request(spec, problem, config) for config in (good, bad)])
        assert (pool.compiled, pool.waiting) == (1, 0)


@pytest.mark.parametrize("arch", ["gfx942"])
def test_resources_of_an_amd_binary_are_read(arch):
    spec = registry.find("matmul", "pointer")
    problem = Problem(512, 512, 512, dtype="float16")
    with CompilePool(KNOWN[arch], workers=1) as pool:
        key = pool.request(spec, problem, spec.default_config(problem, KNOWN[arch]))
        (result,) = wait_for(pool, [key])
    assert isinstance(result, Compiled), result
    assert result.resources.registers > 0
    assert result.resources.spill_bytes == 0


def test_configs_whose_last_launches_agree_are_other_programs_and_take_what_the_largest_launch_takes():
    pytest.importorskip("triton")
    extras = {"groups": 8, "top_k": 2}
    problem = Problem(64, 256, 512, dtype="bf16", layout="nt", op="fused_experts", epilogue="silu", extras=extras)
    spec = registry.find("fused_experts", "experts_pointer")
    shallow = spec.default_config(problem, DEVICE).replace(num_stages=2)
    with CompilePool(DEVICE, workers=1) as pool:
        configs = shallow, shallow.replace(num_stages=3), shallow.replace(GROUP_SIZE_M=8)
        two, three, alike = wait_for(pool, [pool.request(spec, problem, config) for config in configs])
    assert two.program != three.program
    assert two.program == alike.program
    assert two.resources.shared_bytes == spec.shared_bytes(configs[0], problem, DEVICE)
    assert three.resources.shared_bytes == spec.shared_bytes(configs[1], problem, DEVICE)


def test_a_kernel_of_a_users_file_is_compiled_in_a_child_that_imports_it(tmp_path, no_added_kernels):
    pytest.importorskip("triton")
    path = tmp_path / "doubled.py"
    path.write_text(DOUBLED)
    spec = registry.spec_in(reference.load(f"{path}:doubled"))
    problem = spec.read({"N": "4096", "dtype": "bf16"})
    with CompilePool(DEVICE, workers=1) as pool:
        keys = [pool.request(spec, problem, config) for config in spec.space(problem, DEVICE).configs()]
        small, large = wait_for(pool, keys)
    assert small.resources.registers > 0
    assert small.program != large.program


DOUBLED = """
import torch, triton, triton.language as tl
import tuner

@tuner.tuned([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 1024})], ["N"])
@triton.jit
def doubled(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < N), mask=at < N)

@doubled.make_inputs
def inputs(problem):
    x = torch.randn(problem["N"], dtype=problem.torch_dtype, device="cuda")
    grid = lambda meta: (triton.cdiv(meta["N"], meta["BLOCK"]),)
    return tuner.Arguments(grid, (x, torch.empty_like(x), x.numel()), outputs=["y_ptr"])
"""


IMPATIENT = """
import os, signal, sys, threading, time
from multiprocessing import forkserver
from tuner.hardware.device import KNOWN
from tuner.sweep.compile_pool import CompilePool

def press():
    for _ in range(3):
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

def server():
    return forkserver._forkserver._forkserver_pid

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with CompilePool(KNOWN["sm_90"], workers=1) as pool:
            while not (server() if sys.argv[1] == "server" else pool._pool.done()):
                time.sleep(0.01)
            threading.Thread(target=press).start()
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(0.1)
        print("ended, and its server" if os.waitpid(server(), os.WNOHANG)[0] else "ended")
"""


@pytest.mark.parametrize(("starting", "ended"), [("server", "ended, and its server"), ("children", "ended")])
def test_ctrl_c_again_while_a_pool_still_starts_ends_it_without_a_traceback(tmp_path, starting, ended):
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "impatient.py"), starting],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ended}\n", "")
