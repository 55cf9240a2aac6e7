"""Calls of a library's autotuned kernels: captured by real programs, and tuned under the interpreter."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter

import pytest

pytest.importorskip("triton")

import tuner
from tuner.adopt import calls, replay
from tuner.adopt.kernel import WideList
from tuner.kernel.config import Config
from tuner.problem import Problem

ALL = "import theirs.kernels as k; k.call_all()"


@pytest.fixture(scope="module")
def captured(capture, tmp_path_factory):
    """A folder with the calls of everything that the library has."""
    folder = tmp_path_factory.mktemp("captured") / "calls"
    done = capture(f"{ALL}; k.call_odd(); print(len(k.segments.fn.cache))", folder)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert "12 calls of adopted kernels; to tune them: tuner run --captured" in done.stderr
    return folder


@pytest.fixture(scope="module")
def tuned(captured, tuner_command, tmp_path_factory):
    """A database in which they were tuned, and what the command said."""
    database = tmp_path_factory.mktemp("tuned") / "tuner.db"
    done = tuner_command("run", "--captured", captured, "--device", "interpreter", "--db", database, "--json")
    assert done.returncode == 1, done.stderr
    return database, json.loads(done.stdout), done.stderr


def documents(folder):
    return [json.loads(path.read_text()) for path in calls.paths(folder)]


def test_each_kernel_and_key_is_captured_once_and_no_float_with_it(captured):
    found = documents(captured)
    assert Counter(each["kernel"].partition(":")[2] for each in found) == {
        "segments": 2,
        **dict.fromkeys(["described", "in_place", "growth", "coarse", "doubled"], 1),
        **dict.fromkeys(["gather", "drawn", "logarithm", "by_address", "counted"], 1),
    }
    (segments,) = [each for each in found if each["key"].startswith("theirs-kernels-segments N=64 ")]
    x, y, bias, total, lengths = (each and each["tensor"] for each in segments["args"][:5])
    assert (x["storage"], x["offset"], y["storage"], y["offset"]) == (0, 0, 0, 64)
    assert (bias, segments["kwargs"], lengths["values"]) == (None, {"HAS_BIAS": False}, [3, 59])
    assert not [each for each in (x, y, total) if "values" in each]
    assert segments["grids"] == [[{"BLOCK": 16}, [4]], [{"BLOCK": 32}, [2]]]
    assert segments["about"]["reset_to_zero"] == ["total"]
    (drawn,) = [each for each in found if each["kernel"].endswith(":drawn")]
    assert drawn["about"]["pre_hook"].endswith("<lambda>")


def test_calls_are_tuned_to_winners_with_what_each_kernel_needs_around_a_launch(tuned):
    database, report, _ = tuned
    states = {}
    for each in report["problems"]:
        states.setdefault(each["problem"]["op"].rpartition("-")[2], []).append(each.get("states"))
    assert states["segments"] == [{"COMPLETE": 4}, {"COMPLETE": 4}]
    assert states["in_place"] == [{"COMPLETE": 4}]
    assert states["described"] == [{"COMPLETE": 2, "RUNTIME_ERROR": 2}], "a config that does not compile is one trial"
    assert states["growth"] == [{"COMPLETE": 2, "WRONG_RESULT": 2}], "a wrong config is found by smaller floats"
    assert states["coarse"] == [{"COMPLETE": 4}], "a float32 output may be off by roundings of the bfloat16 read"
    with sqlite3.connect(database) as connection:
        ops = [op for (op,) in connection.execute("SELECT op FROM winner JOIN problem USING (problem_id) ORDER BY op")]
    assert ops == [
        f"theirs-kernels-{name}" for name in ("coarse", "described", "doubled", "growth", "in_place", *["segments"] * 2)
    ]


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("gather", "depends on integers that were not kept (524288 int32): it is left alone"),
        ("drawn", "writes other results from launch to launch"),
        ("logarithm", "writes nothing finite into y"),
        ("by_address", "holds addresses"),
        ("counted", "depends on integers that were not kept (524288 int32, 524288 int32): it is left alone"),
    ],
)
def test_a_kernel_whose_result_is_not_known_is_left_alone_in_one_line(tuned, kernel, reason):
    _, report, stderr = tuned
    failures = [each.get("failure") or "" for each in report["problems"]]
    lines = [line for line in (*stderr.splitlines(), *failures) if f"theirs.kernels:{kernel}" in line]
    assert lines
    assert all(reason in line for line in lines)


def test_a_second_run_measures_nothing_again_and_tables_are_exported(tuned, captured, tuner_command, tmp_path):
    database, _, _ = tuned
    done = tuner_command(
        "run", "--captured", captured, "--device", "interpreter", "--db", database, "--dry-run", "--json"
    )
    todo = {each["problem"]["op"].rpartition("-")[2]: each for each in json.loads(done.stdout)}
    assert todo["segments"]["to_try"] == todo["in_place"]["to_try"] == 0
    done = tuner_command("export", tmp_path, "--db", database, "--device", "interpreter")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "theirs-kernels-segments--interpreter.json").exists()


@pytest.mark.long
def test_calls_of_one_kernel_in_two_folders_are_tuned_together(captured, tuner_command, tmp_path):
    found = [path for path in calls.paths(captured) if path.name.startswith("segments-")]
    folders = [tmp_path / path.stem for path in found]
    for folder, path in zip(folders, found, strict=True):
        folder.mkdir()
        shutil.copy(path, folder)
    named = [word for folder in (*folders, folders[0]) for word in ("--captured", folder)]
    where = ("--device", "interpreter", "--db", tmp_path / "tuner.db")
    done = tuner_command("run", *named, *where, "--json")
    assert done.returncode == 0, done.stderr
    assert [each["states"] for each in json.loads(done.stdout)["problems"]] == [{"COMPLETE": 4}] * 2
    done = tuner_command("run", *named[:4], *where, "--dry-run", "--json")
    assert [each["to_try"] for each in json.loads(done.stdout)] == [0, 0]


SERVED = """
import tuner, theirs.kernels as k
k.call_all()
for kernel in (k.segments.fn, k.described, k.growth, k.coarse, k.doubled.fn, k.in_place):
    print(kernel.base_fn.__name__, [str(config) for config in kernel.cache.values()])
"""


def test_what_was_tuned_serves_the_program_that_was_captured(tuned, tuner_command):
    database, report, _ = tuned
    environment = {"TUNER_DB": str(database), "TRITON_INTERPRET": "1"}
    done = tuner_command("exec", "--adopt", "theirs", "--", sys.executable, "-c", SERVED, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    winners = {}
    for each in report["problems"]:
        if (winner := each.get("winner")) is not None:
            config = winner["config"]
            words = f"BLOCK: {config['BLOCK']}, num_warps: {config['num_warps']}, num_ctas: 1, num_stages: 3"
            winners.setdefault(each["problem"]["op"].rpartition("-")[2], set()).add(f"{words}, maxnreg: None")
    found = {name: eval(configs) for name, _, configs in (line.partition(" ") for line in done.stdout.splitlines())}
    assert {name: set(configs) for name, configs in found.items()} == winners
    assert len(found["segments"]) == 2


def test_binaries_are_compiled_for_captured_calls_without_a_gpu(
    captured, tuned, tuner_command, make_database, make_row, tmp_path
):
    rows = [
        dataclasses.replace(
            make_row(),
            problem=Problem.from_fields(each["problem"]),
            config=Config(each["winner"]["kernel"], **each["winner"]["config"]),
        )
        for each in tuned[1]["problems"]
        if each.get("winner") is not None
    ]
    database = make_database(tmp_path / "h200.db", *rows)
    serving = {"TUNER_ADOPT": "theirs", "TUNER_STRICT": "1"}  # which is not for what compiles
    exports = ["export", tmp_path / "out", "--db", database, "--with-kernels", "--captured", captured]
    done = tuner_command(*exports, env=serving)
    assert done.returncode == 0, done.stderr
    for name in ("described", "in_place", "segments"):
        (index,) = (tmp_path / "out").glob(f"theirs-kernels-{name}--*/index.json")
        assert json.loads(index.read_text())["kernels"]
    assert "left out of the kernels" not in done.stderr
    code = tuner_command("export", tmp_path / "out", "--db", database, "--captured", captured).returncode
    assert code == 2


@pytest.mark.parametrize(
    "name", ["tuned", *(pytest.param(each, marks=pytest.mark.long) for each in ("capture", "adopt"))]
)
def test_a_program_that_imports_triton_by_way_of_tuner_is_served_too(name, tuned, tuner_command):
    environment = {"TUNER_DB": str(tuned[0]), "TRITON_INTERPRET": "1", "TUNER_ADOPT": "theirs"}
    program = (
        f"import tuner; tuner.{name}\nimport theirs.kernels as k; k.call_segments(); print(k.segments.fn.bench_time)"
    )
    done = tuner_command("exec", "--", sys.executable, "-c", program, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_widen_tries_neighbours_of_the_listed_configs_too(captured, tuner_command, tmp_path):
    folder = tmp_path / "calls"
    folder.mkdir()
    for path in calls.paths(captured):
        if path.name.startswith("in_place"):
            shutil.copy(path, folder)
    states = []
    for widen in ([], ["--widen"]):  # also of a problem that has a winner
        done = tuner_command(
            *("run", "--captured", folder, *widen, "--device", "interpreter", "--db", tmp_path / "t.db", "--json")
        )
        assert done.returncode == 0, done.stderr
        (problem,) = json.loads(done.stdout)["problems"]
        states.append(problem["states"])
    # Warps 1, 2, 4 and 8 with 2, 3 and 4 stages, for each of two blocks.
    assert states[0]["COMPLETE"] < states[1]["COMPLETE"] == 24


def test_a_neighbour_that_won_is_a_config_of_the_adopted_kernel_with_the_hook_of_the_listed_one():
    import triton

    def hook(_arguments):
        return None

    listed = [triton.Config({"BLOCK": block}, num_warps=4, num_stages=2, pre_hook=hook) for block in (16, 32)]
    known = WideList("adopted", listed)
    neighbour = known.of(triton.Config({"BLOCK": 32}, num_warps=8, num_stages=3))
    assert known.find(neighbour).pre_hook is hook
    assert neighbour in known
    assert known.of(triton.Config({"BLOCK": 64}, num_warps=4, num_stages=2)) not in known
    assert known.listed == tuple(listed)


PROCESSES = """
import multiprocessing, os, sys
import theirs.kernels as k
def work(n):
    for size in (32, n):
        k.call_segments(size)
if __name__ == "__main__":
    work(48)
    if not os.fork():
        work(64)
        os._exit(0)
    os.wait()
    import subprocess
    program = "import sys, theirs.kernels as k; k.call_segments(32); k.call_segments(int(sys.argv[1]))"
    both = [subprocess.Popen([sys.executable, "-c", program, n]) for n in ("80", "96")]
    assert [each.wait() for each in both] == [0, 0]
    print("called", flush=True)
    k.call_segments(112)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.long
def test_forks_and_processes_that_are_killed_record_into_one_folder(capture, tmp_path):
    done = capture(PROCESSES, tmp_path / "calls")
    assert done.returncode == -signal.SIGKILL, done.stderr
    keys = sorted(int(each["key"].split("N=")[1].split()[0]) for each in documents(tmp_path / "calls"))
    assert keys == [32, 48, 64, 80, 96, 112]
    assert not [path for path in (tmp_path / "calls").iterdir() if path.name.startswith(".")]


BLOCK = """
import sys
import triton
import tuner
import theirs.kernels as k
def at_hand():
    return triton.runtime.Autotuner.run, k.OwnAutotuner.run, vars(triton.runtime.Autotuner).get("__init_subclass__")
own, *_ = before = at_hand()
with tuner.capture(sys.argv[1], "theirs"):
    assert not {*before} & {*at_hand()}
    k.call_segments()
    assert not k.segments.fn.cache and k.segments.fn.best_config is k.segments.fn.configs[0]
assert at_hand() == before
k.coarse.configs, k.coarse.early_config_prune = k.coarse.configs[:1], lambda *_, **__: []
with tuner.capture(sys.argv[1], "theirs"):
    k.coarse[k.grid(64)](k.torch.zeros(64), k.torch.empty(64), 64)  # Triton prunes no single config
with tuner.capture(sys.argv[1], "another"):
    assert triton.runtime.Autotuner.run is not own
k.segments.fn.configs = k.segments.fn.configs[:1]
k.call_segments(48)
for folder, libraries in ((__file__, ["theirs"]), (sys.argv[1], [])):
    try:
        with tuner.capture(folder, *libraries):
            raise AssertionError("captured")
    except tuner.TunerError as e:
        print(e)
"""


def test_a_block_is_captured_alone_and_triton_is_as_it_was(library, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(BLOCK)
    done = subprocess.run(
        [sys.executable, program, tmp_path / "calls"],
        env={**os.environ, "PYTHONPATH": str(library), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = {each["kernel"]: each["key"].split()[1] for each in documents(tmp_path / "calls")}
    assert found == {"theirs.kernels:segments": "N=64", "theirs.kernels:coarse": "N=64"}
    folder, libraries = done.stdout.splitlines()
    assert "is not a folder: name a folder to write into" in folder
    assert 'expected a folder and names of packages, tuner.capture("calls", "fla") for instance' in libraries


@pytest.mark.parametrize("folder", ["", None, 5])
def test_what_is_no_name_of_a_folder_records_nowhere(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tuner.TunerError, match="the folder to record into is "), tuner.capture(folder, "json"):
        pass
    assert not list(tmp_path.iterdir())


WITHIN = """
import tuner
import theirs.kernels as k
with tuner.capture("FOLDER", "theirs"):
    class Late(k.OwnAutotuner):
        def run(self, *args, **kwargs):
            raise AssertionError("not captured")
    k.doubled.fn.__class__ = Late
k.doubled[k.grid(64)](k.torch.zeros(64), k.torch.empty(64), 64)
"""


def test_a_capture_around_another_takes_subclasses_that_are_made_within_it(capture, tmp_path):
    done = capture(WITHIN.replace("FOLDER", str(tmp_path / "within")), tmp_path / "around")
    assert done.returncode == 0, done.stderr
    assert [len(calls.paths(tmp_path / name)) for name in ("around", "within")] == [1, 0]


BOTH = """
import torch
import theirs.kernels as k
from tuner.adopt import recorder
recorder.MOST_CALLS = 2
torch.mm(torch.ones(16, 32), torch.ones(32, 64))
k.call_all()
"""


@pytest.mark.long
def test_products_are_recorded_beside_kernels_and_a_folder_is_bounded(capture, run, tmp_path):
    done = capture(BOTH, tmp_path / "calls")
    assert done.returncode == 0, done.stderr
    bound, found = done.stderr.splitlines()
    assert bound.endswith("holds 2 calls: name another folder for more")
    assert "1 family, 1 call; 2 calls of adopted kernels; to tune them: tuner run --captured" in found
    code, said, err = run("run", "--captured", tmp_path / "calls", "--device", "interpreter", "--dry-run", "--json")
    assert code == 0, err
    assert [each["problem"]["op"] for each in json.loads(said)] == ["matmul", *["theirs-kernels-segments"] * 2]


def test_a_full_disk_is_one_line_and_the_program_goes_on(capture, tmp_path):
    under = ["bash", "-c", 'ulimit -f 0; exec "$@"', "-"]
    done = capture(f"{ALL}; print('done')", tmp_path / "calls", under=under, env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "nothing more is recorded" in line]
    assert "cannot write" in line
    assert "Traceback" not in done.stderr


def test_a_library_that_is_not_there_changes_nothing(tuner_command, tmp_path):
    program = "import theirs.kernels as k; k.segments.fn.configs = k.segments.fn.configs[:1]; k.call_segments()"
    command = [
        "capture",
        "--adopt",
        "no_such_library",
        "--out",
        tmp_path / "calls",
        "--",
        sys.executable,
        "-c",
        program,
    ]
    done = tuner_command(*command, env={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0
    told, found = done.stderr.splitlines()
    assert told.startswith("tuner: no library 'no_such_library' is found here")
    assert found == f"{tmp_path / 'calls'}: no autotuned kernel of no_such_library was recorded"


def break_version(document):
    document["version"] = 2


def break_kernel(document):
    document["kernel"] = "theirs.kernels:gone"


def break_module(document):
    document["kernel"] = "theirs.nowhere:segments"


def break_decorator(document):
    document["kernel"] = "theirs.kernels:grid"


def break_arguments(document):
    document["about"]["arguments"][0] = "input"


def break_hooks(document):
    document["about"]["reset_to_zero"] = []


def break_tensor(document):
    document["args"][0] = {"tensor": {"dtype": "float33", "shape": [1], "strides": [1], "storage": 0, "offset": 0}}


def break_value(document):
    document["args"][0] = {"unheard of": 1}


def break_list(document):
    document["args"] = None


def break_names(document):
    document["kwargs"] = []


def break_integers(document):
    document["args"][4]["tensor"]["values"] = ["3", "59"]


def truncate(_document):
    """The test cuts its file."""


BROKEN = [
    (break_version, "a captured call of version 2: expected 1"),
    (break_kernel, "theirs.kernels:gone was captured and is not there any more"),
    (break_module, "theirs.nowhere:segments was captured and is not there any more: there is no module"),
    (break_decorator, "theirs.kernels:grid was captured under triton.autotune and is not under it now"),
    (break_arguments, "theirs.kernels:segments was captured with arguments ['input'"),
    (break_hooks, "theirs.kernels:segments was captured with reset_to_zero [], and has ['total'] now"),
    (break_tensor, "cannot be made again (ProblemError: torch"),
    (
        break_value,
        "a captured call of theirs.kernels:segments cannot be made again (ValueError: it has an argument of the kind",
    ),
    (break_list, "cannot be made again (TypeError: 'NoneType' object is not iterable"),
    (break_names, "cannot be made again (AttributeError: 'list' object has no attribute 'items'"),
    (break_integers, "cannot be made again (TypeError: '<=' not supported"),
    (truncate, "no captured call: not JSON"),
]


@pytest.fixture(scope="module")
def broken(captured, tuner_command, tmp_path_factory):
    """What `tuner run` says of a folder with one call that can be replayed and many that cannot."""
    folder = tmp_path_factory.mktemp("broken")
    (path,) = [path for path in calls.paths(captured) if "kernels-segments N=64" in path.read_text()]
    shutil.copy(path, folder)
    for change, _ in BROKEN:
        document = json.loads(path.read_text()) | {"key": change.__name__}
        change(document)
        version = document.pop("version")
        del document["format"]
        call = calls.Call(**document)
        text = call.dumps().replace('"version":1', f'"version":{version}')
        (folder / call.file_name).write_text(text if change is not truncate else text[: len(text) // 2])
    (folder / f".{path.name}.1.tmp").write_text("of a process that was killed")
    return tuner_command("run", "--captured", folder, "--device", "interpreter", "--dry-run", "--json")


@pytest.mark.parametrize("words", [words for _, words in BROKEN])
def test_a_call_that_cannot_be_replayed_is_one_line(words, broken):
    (line,) = [line for line in broken.stderr.splitlines() if words in line]
    assert line.startswith("left out: ")


def test_calls_beside_broken_ones_are_tuned(broken):
    assert broken.returncode == 0, broken.stderr
    (problem,) = json.loads(broken.stdout)
    assert problem["to_try"] == 4
    told = [line for line in broken.stderr.splitlines() if " is silent " not in line]  # a slow machine's
    assert len(told) == len(BROKEN)


def test_addresses_are_found_in_a_tuple_too():
    tensor = {"tensor": {"values": [0, 1 << 40]}}
    for args in (
        [tensor],
        [{"tuple": [64, {"tuple": [tensor]}]}],
        [{"named": ["theirs:Pair", tensor]}],
        [{"descriptor": {"base": tensor["tensor"]}}],
    ):
        assert replay.holds_addresses(calls.Call("theirs:kernel", "", {}, [], args, {}))


def test_a_folder_of_which_nothing_can_be_replayed_is_an_error(run, tmp_path):
    (tmp_path / f"cut{calls.SUFFIX}").write_text("")
    code, said, err = run("run", "--captured", tmp_path, "--device", "interpreter", "--dry-run")
    assert (code, said) == (1, "")
    assert err.splitlines()[-1].endswith("can be tuned: capture it again")


def test_a_file_in_the_place_of_the_folder_is_one_line(run, tmp_path):
    (tmp_path / "calls").write_text("")
    code, said, err = run("run", "--captured", tmp_path / "calls", "--device", "interpreter")
    assert (code, said, err.count("\n")) == (1, "", 1)
    assert "cannot read the folder" in err
    assert run("run", "--shape", "16x16x16", "--widen")[0] == 2


@pytest.fixture
def run(tuner_command):
    """Run a command: exit code, stdout, stderr."""

    def run(*arguments):
        done = tuner_command(*arguments)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.long
def test_real_kernels_of_flash_linear_attention_are_captured_and_tuned(tuner_command, tmp_path):
    pytest.importorskip("fla", reason="flash-linear-attention is not installed: pip install fla-core")
    program = tmp_path / "program.py"
    program.write_text(FLA)
    done = tuner_command(
        "capture",
        "--adopt",
        "fla",
        "--out",
        "calls",
        "--",
        sys.executable,
        program,
        cwd=tmp_path,
        env={"TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    done = tuner_command(
        "run", "--captured", "calls", "--device", "interpreter", "--db", "t.db", "--json", cwd=tmp_path, timeout=500
    )
    assert done.returncode == 0, done.stderr
    found = {each["problem"]["op"].rpartition("-")[2]: each for each in json.loads(done.stdout)["problems"]}
    assert found.keys() >= {"chunk_local_cumsum_scalar_kernel", "solve_tril_16x16_kernel", "l2norm_fwd_kernel"}
    assert all(each["states"].keys() == {"COMPLETE"} for each in found.values())


FLA = """
import torch
from fla.modules.l2norm import l2norm_fwd
from fla.ops.utils.cumsum import chunk_local_cumsum
from fla.ops.utils.solve_tril import solve_tril
g = torch.randn(1, 64, 2)
chunk_local_cumsum(g, 16)
chunk_local_cumsum(g, 16, cu_seqlens=torch.tensor([0, 20, 64]))
solve_tril(torch.randn(1, 32, 1, 16))
l2norm_fwd(torch.randn(16, 32))
"""
