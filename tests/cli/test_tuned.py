"""A user's own kernel from the command line: tuned by `tuner run --kernel`, and what other commands make of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import tuner
from tuner import reference
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem

MODULE = """
import sys
import torch, triton, triton.language as tl
import tuner

@tuner.tuned(
    name="scale_rows", version=3, key=["N"],
    configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block in (16, 256) for warps in (4, 8)],
)
@triton.jit
def scale_rows(x_ptr, y_ptr, stride, N, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + at, mask=at < N)
        tl.store(y_ptr + row * stride + at, x * factor, mask=at < N)

@scale_rows.make_inputs
def inputs(problem):
    x = torch.randn(4, problem["N"], dtype=problem.torch_dtype, device="cuda")
    y = torch.empty_like(x)
    return tuner.Arguments(grid=(4,), args=(x, y, x.stride(0), problem["N"], 2.0), outputs=["y_ptr"])

@scale_rows.reference
def expected(args):
    return args["x_ptr"].double() * args["factor"]

plain = triton.jit(scale_rows.base_fn)
auto = triton.heuristics({})(triton.autotune([triton.Config({"BLOCK": 16})], key=["N"])(plain))

if __name__ == "__main__":
    found = []
    for size in (256, 200):
        x = torch.randn(4, size)
        y = torch.empty_like(x)
        scale_rows[(4,)](x, y, size, size, 2.0)
        assert torch.equal(y, 2 * x)
        found.append(scale_rows.best_config.kwargs["BLOCK"])
    print(found)
"""


@pytest.fixture(scope="module")
def tuned(compiling, tmp_path_factory):
    """A folder with the module, and a database in which two of its keys were tuned: one typed, one from a CSV file."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "mine.py").write_text(MODULE)
    (folder / "sizes.csv").write_text("# ours\nN,dtype,note\n200,fp32,odd\n")
    command = ["run", "--kernel", "mine:scale_rows", "--device", "interpreter", "--db", "tuner.db", "--json"]
    problems = ["--problem", "N=256,dtype=fp32", "--suite", "sizes.csv"]
    done = compiling.tuner(*command, *problems, env=os.environ, cwd=folder)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return folder, report


@pytest.fixture
def run(run, monkeypatch, tuned, no_tables, no_added_kernels):
    """Run a command in that folder, in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tuned[0])
    monkeypatch.syspath_prepend(tuned[0])
    yield run
    sys.modules.pop("mine", None)


def test_a_kernel_is_tuned_and_its_results_were_compared_with_its_reference(tuned):
    problems = tuned[1]["problems"]
    sources = {p["problem"]["extras"].pop("kernel.source") for p in problems}
    assert [len(source) for source in sources] == [16]
    names = [(p["problem"]["op"], p["problem"]["extras"], p["problem"]["a_dtype"]) for p in problems]
    assert names == [
        ("scale_rows", {"N": 256}, "float32"),
        ("scale_rows", {"N": 200, "stride.aligned": False}, "float32"),
    ]
    for problem in problems:
        assert problem["states"] == {"COMPLETE": 4}
        assert problem["winner"]["kernel"] == "scale_rows"
        assert problem["winner"]["vs_default"] > 1
        assert problem["winner"]["config"]["BLOCK"] == 256


@pytest.mark.long  # the rule itself is tested in tests/store
def test_what_a_wrong_reference_called_wrong_is_tried_again_once_the_reference_is_mended(compiling, tmp_path):
    command = ["run", "--kernel", "mine:scale_rows", "--device", "interpreter"]
    words = ["--problem", "N=256,dtype=fp32", "--db", "tuner.db", "--json"]

    def tune(module):
        (tmp_path / "mine.py").write_text(module)
        done = compiling.tuner(*command, *words, env=os.environ, cwd=tmp_path)
        (problem,) = json.loads(done.stdout)["problems"]
        return done.returncode, problem["measured"], problem["states"]

    wrong = MODULE.replace('* args["factor"]', '* args["factor"] + 1')
    assert tune(wrong) == (1, 4, {"WRONG_RESULT": 4})
    assert tune(wrong) == (1, 0, {"WRONG_RESULT": 4})
    assert tune(MODULE) == (0, 4, {"COMPLETE": 4})


def test_another_process_launches_the_winners(tuned):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TUNER_DB": "tuner.db"}
    command = [sys.executable, "-W", "error", "mine.py"]
    done = subprocess.run(
        command, cwd=tuned[0], env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[256, 256]\n", "")


def test_winners_and_trials_are_shown_under_the_names_of_the_key(run):
    code, out, _ = run("show", "winners", "--db", "tuner.db")
    assert code == 0
    assert "scale_rows N=256 float32 " in out
    assert "scale_rows N=200 float32 unaligned(stride)" in out
    assert len(run("show", "trials", "--db", "tuner.db", "--kernel", "scale_rows")[1].splitlines()) == 9


@pytest.mark.parametrize(("noun", "of_one", "of_all"), [("winners", 1, 2), ("trials", 4, 8), ("problems", 1, 2)])
def test_values_of_the_key_filter_what_is_shown(run, noun, of_one, of_all):
    def shown(problem: str) -> int:
        code, out, _ = run("show", noun, "--db", "tuner.db", "--problem", problem, "--json")
        assert code == 0
        return len(json.loads(out))

    assert shown("N=256") == shown("N=200,stride.aligned=false") == of_one
    assert shown("dtype=fp32") == of_all
    assert shown("N=25") == shown("N=256,dtype=fp16") == shown("stride=false") == 0


def test_a_lookup_tells_by_which_key_and_a_nearest_key_is_told_too(run):
    here = ("--kernel", "mine:scale_rows", "--device", "interpreter", "--db", "tuner.db")
    code, out, _ = run("lookup", *here, "--problem", "N=256", "--dtype", "fp32")
    assert (code, out.splitlines()[1]) == (0, "rule exact, grade exact, from tuner.db")
    code, out, _ = run("lookup", *here, "--problem", "N=1024,dtype=fp32", "--explain")
    assert code == 0
    assert "rule: near_key (tuned for scale_rows N=256 float32), from tuner.db" in out
    assert out.endswith("to tune it: tuner run --kernel mine:scale_rows --problem N=1024,dtype=float32\n")


def test_a_table_of_it_is_exported_verified_compared_and_served(run, tuned):
    assert run("export", "tables", "--db", "tuner.db", "--device", "interpreter")[0] == 0
    table = "tables/scale_rows--interpreter.json"
    code, out, _ = run("verify", table, "--kernel", "mine:scale_rows", "--strict")
    assert code == 0, out
    assert run("diff", table, "tuner.db")[0] == 0
    assert run("merge", "copy.db", "tuner.db")[0] == 0
    assert run("diff", table, "copy.db")[0] == 0
    tuner.use(table)
    problem = tuner.Problem.keyed("scale_rows", {"N": 256}, dtype="float32")
    assert tuner.lookup(problem, tuner.device.INTERPRETER).rule == "exact"


def test_two_kernels_of_one_name_are_told_apart_by_every_command(run, tuned):
    (tuned[0] / "theirs.py").write_text(MODULE.replace("x * factor", "factor * x"))
    reference.load("mine:scale_rows")
    theirs = reference.load("theirs:scale_rows")
    try:
        code, _, err = run("run", "--kernel", "scale_rows", "--problem", "N=256", "--device", "interpreter")
        assert (code, err) == (
            2,
            "tuner: 2 kernels are called 'scale_rows': type --kernel mine:scale_rows or --kernel theirs:scale_rows\n",
        )
        for module, rule in (("mine", "exact"), ("theirs", "default")):
            given = ("--kernel", f"{module}:scale_rows", "--problem", "N=256,dtype=fp32")
            assert f"rule {rule}" in run("lookup", *given, "--device", "interpreter", "--db", "tuner.db")[1]
        run("export", "edited", "--db", "tuner.db", "--device", "interpreter")
        registry._added.clear()
        registry.add(theirs.spec)
        code, out, _ = run("verify", "edited/scale_rows--interpreter.json", "--strict")
        assert code == 0, out
        assert "if scale_rows was edited, tune again: tuner run --kernel theirs:scale_rows --problem N=256" in out
    finally:
        sys.modules.pop("theirs")


def test_a_table_of_a_kernel_that_is_not_there_is_told(run):
    run("export", "alone", "--db", "tuner.db", "--device", "interpreter")
    code, out, _ = run("verify", "alone/scale_rows--interpreter.json")
    assert code == 1
    assert "op 'scale_rows', 2 rows: no installed kernel serves it" in out


def test_a_kernel_in_a_file_is_to_be_tuned_under_the_name_that_was_typed(run, monkeypatch):
    folder = Path.cwd()
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(folder)])
    typed = [
        "lookup",
        "--kernel",
        f"{folder.name}/mine.py:scale_rows",
        "--problem",
        "N=512",
        "--db",
        f"{folder.name}/tuner.db",
    ]
    advice = f"tuner run --kernel {folder.name}/mine.py:scale_rows --problem N=512,"
    for more in ([], ["--explain"], ["--json"]):
        _, out, err = run(*typed, *more)
        assert advice in out, err


def tuned_alone(compiling, folder, *given, **where):
    """What `tuner run` in a folder ended with, and the one problem of which it told, which has a winner."""
    command = ["run", *given, "--device", "interpreter", "--db", "tuner.db", "--json"]
    done = compiling.tuner(*command, env={**os.environ, **where}, cwd=folder)
    assert done.returncode == 0, done.stderr
    (problem,) = json.loads(done.stdout)["problems"]
    return done, problem


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("01-scale rows.py", ""),
        ("scaling.py", "others:kernels"),  # there is another one of its name, which an import would find
        pytest.param("scale.v2.py", "", marks=pytest.mark.long),
    ],
)
def test_a_kernel_is_tuned_in_a_file_whatever_its_name(compiling, tmp_path, name, path):
    for folder, text in (("kernels", MODULE), ("others", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    where = {"PYTHONPATH": os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))}
    given = ("--kernel", f"kernels/{name}:scale_rows", "--problem", "N=256,dtype=fp32")
    _, problem = tuned_alone(compiling, tmp_path, *given, **where)
    assert problem["states"] == {"COMPLETE": 4}


def test_what_a_missed_kernel_advises_of_a_script_of_a_package_tunes_it(tmp_path):
    package = tmp_path / "scripts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("COUNT = 4\n")
    (package / "train.py").write_text(MODULE.replace("import sys\n", "from . import sizes\n", 1))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TUNER_DB": "tuner.db"}

    def typed(*words):
        command = [sys.executable, "-m", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    missed = typed("scripts.train")
    assert missed.returncode == 0, missed.stderr
    advice = missed.stderr.splitlines()[0].partition("to tune it: ")[2]
    assert advice == "tuner run --kernel scripts.train:scale_rows --problem N=256,dtype=float32"
    assert typed(*advice.split()).returncode == 0
    assert typed("scripts.train").stdout == "[256, 256]\n"


LONELY = (
    MODULE[: MODULE.index("@scale_rows.make_inputs")]
    + """
x = torch.randn(4, 256)
scale_rows[(4,)](x, torch.empty_like(x), 256, 256, 2.0)
"""
)
WITHIN = (
    "import triton.language as tl\ndef make():\n"
    + "".join(f"    {line}\n" for line in LONELY.splitlines())
    + "make()\n"
)
DEFINE, GIVE = "define the kernel at the top level of a file", "give the kernel inputs (@scale_rows.make_inputs)"


@pytest.mark.parametrize(
    ("how", "text", "before"),
    [("-c", MODULE, DEFINE), ("-", LONELY, f"{DEFINE}, {GIVE}"), ("a.py", WITHIN, f"{DEFINE}, {GIVE}")],
)
def test_a_kernel_that_no_other_process_can_import_is_advised_to_be_defined_in_a_file(tmp_path, how, text, before):
    (tmp_path / "a.py").write_text(text)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TUNER_DB": "tuner.db"}
    done = subprocess.run(
        [sys.executable, how, *([text] if how == "-c" else [])],
        input=text,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    typed = "tuner run --kernel FILE.py:scale_rows --problem N=256,dtype=float32"
    assert done.stderr.splitlines()[0].endswith(f"to tune it: {before}, then {typed}")


@pytest.mark.parametrize("stored", ["Infinity", "NaN", "-Infinity"])
def test_a_database_that_holds_an_infinite_key_is_shown_and_exported_as_plain_json(
    run, tmp_path, make_database, make_row, stored
):
    config = Config("limited", BLOCK=16)
    row = dataclasses.replace(make_row(), problem=Problem.keyed("limited", {"most": 7}), config=config)
    path = make_database(tmp_path / "limited.db", row, make_row())
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("update problem set extras = ? where op = 'limited'", [f'{{"most":{stored}}}'])
        database.commit()
    for noun in ("winners", "trials", "problems"):
        json.loads(run("show", noun, "--db", str(path), "--json")[1], parse_constant=pytest.fail)
    code, out, err = run("export", str(tmp_path / "tables"), "--db", str(path), "--json")
    assert code == 0, err
    json.loads(out, parse_constant=pytest.fail)
    (table,) = (tmp_path / "tables").glob("limited--*.json")
    (found,) = json.loads(table.read_text(), parse_constant=pytest.fail)["rows"]
    assert found["extras"] == {"most": stored.lower().removesuffix("inity")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel", "mine:scale_rows"], "no problem of --kernel mine:scale_rows given: name some with --problem M="),
        (["--problem", "N=8"], "--problem names a key of a kernel: say which by --kernel my_pkg.my_module:my_kernel"),
        (["--kernel", "mine:scale_rows"] * 2 + ["--problem", "N=8"], "--problem and --suite name keys of one kernel:"),
        (
            ["--kernel", "mine:scale_rows", "--problem", "N=8", "--captured", "calls"],
            "--captured names its kernels itself: leave --kernel out, or tune it by a command of its own\n",
        ),
        (["--kernel", "mine:scale_rows", "--shape", "8x8x8"], "--shape is for GEMMs: name a problem of --kernel by"),
        (
            ["--kernel", "softmax", "--problem", "M=8,N=8", "--layout", "tn"],
            "--layout is for problems by --shape: type it in --problem, M=8,N=64,K=64,layout=nt for instance",
        ),
        (["--kernel", "mine:plain", "--problem", "N=8"], "mine:plain is no kernel under tuner.tuned: put @tuner.tu"),
        (
            ["--kernel", "mine:auto", "--problem", "N=8"],
            "mine:auto is under triton.autotune: write @tuner.tuned(...) in its place; or, to leave it as it is, type ",
        ),
        (
            ["--kernel", "my_lib-auto", "--problem", "N=8"],
            "no installed kernel is called 'my_lib-auto': an adopted library's kernel is launched by its captured",
        ),
        (["--kernel", "mine:absent", "--problem", "N=8"], "mine has no 'absent': expected the name of a kernel in it"),
        (["--kernel", "absent", "--problem", "N=8"], "no installed kernel is called 'absent': expected my_pkg.my_mo"),
        (
            ["--kernel", "matmul", "--problem", "N=8"],
            "missing M, K: expected for instance M=4096,N=4096,K=4096",
        ),
        (["--kernel", "softmax", "--problem", "n=8,Q=1"], "unknown name 'Q': known are m, n, k, dtype, layout, "),
        (
            ["--kernel", "pointer", "--problem", "N=8"],
            "pointer is one kernel of matmul: type --kernel matmul, whose kernels",
        ),
        (["--kernel", "mine:scale_rows", "--problem", "M=8"], "scale_rows has no key 'M': expected N, dtype"),
        (["--kernel", "mine:scale_rows", "--suite", "demo"], "the suite 'demo' is of GEMMs: --kernel takes FILE.csv"),
        (["--kernel", "mine:scale_rows", "--suite", "N.CSV"], "there is no suite 'N.CSV': --kernel takes FILE.csv"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_code_2(run, arguments, message):
    code, out, err = run("run", "--device", "interpreter", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"tuner: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "odd.csv is empty: expected a line of column names, as the key has them"),
        ("N,dtype\n", "odd.csv names no problem: expected lines with values of N,dtype"),
        ("N,note\n8,\n,\n", "odd.csv line 3: every value is empty: expected N,note, or no such line"),
        ("N\nx\n", "odd.csv line 2: make_inputs of scale_rows failed for scale_rows N=x float16: TypeError: "),
        ("dtype\nfp32\n", "odd.csv line 2: make_inputs of scale_rows failed for scale_rows float32: KeyError: "),
    ],
)
def test_a_suite_with_a_value_that_no_inputs_can_be_made_of_names_the_line(run, tuned, text, message):
    (tuned[0] / "odd.csv").write_text(text)
    code, out, err = run("run", "--kernel", "mine:scale_rows", "--suite", "odd.csv", "--device", "interpreter")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"tuner: {message}")


def test_a_suite_with_a_column_that_is_no_key_names_the_line(run, tuned):
    (tuned[0] / "odd.csv").write_text("N,batch\n8,2\n")
    code, _, err = run("run", "--kernel", "mine:scale_rows", "--suite", "odd.csv", "--device", "interpreter")
    assert (code, err) == (1, "tuner: odd.csv line 2: scale_rows has no key 'batch': expected N, dtype\n")
    (tuned[0] / "odd.csv").write_text("N,N\n8,16\n")
    code, _, err = run("run", "--kernel", "mine:scale_rows", "--suite", "odd.csv", "--device", "interpreter")
    assert (code, err) == (1, "tuner: odd.csv line 1: the column 'N' is there twice\n")
    (tuned[0] / "odd.csv").write_text("N,\n8,16\n")
    code, _, err = run("run", "--kernel", "mine:scale_rows", "--suite", "odd.csv", "--device", "interpreter")
    assert (code, err) == (1, "tuner: odd.csv line 1: column 2 of 2 has no name: name it, or delete its comma\n")


THEIRS = """
import triton, triton.language as tl

@triton.jit
def copied(x_ptr, y_ptr, N, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < N), mask=at < N)
"""
DECORATE = """
configs = [triton.Config({"BLOCK": block}) for block in (16, 64)]
"""
INPUTS = """
def inputs(problem):
    x = torch.randn(problem["N"])
    grid = lambda meta: (triton.cdiv(problem["N"], meta["BLOCK"]),)
    return tuner.Arguments(grid, (x, torch.empty_like(x), problem["N"]), {}, outputs=["y_ptr"])
"""
IMPORTS = "import torch, triton, tuner\n"
EVEN = 'triton.heuristics({"EVEN": lambda args: args["N"] % 2 == 0})'
PARTS = {
    "decorated by them, inputs by us": {
        "theirs": f"{THEIRS}\n{IMPORTS}{DECORATE}\ncopied = tuner.tuned(configs, ['N'])({EVEN}(copied))\n",
        "ours": f"{IMPORTS}from theirs import copied\n{INPUTS}\ncopied.make_inputs(inputs)\n",
    },
    "inputs through their module": {
        "theirs": f"{THEIRS}\n{IMPORTS}{DECORATE}\ncopied = tuner.tuned(configs, ['N'])({EVEN}(copied))\n",
        "ours": f"{IMPORTS}import theirs as other\n{INPUTS}\nother.copied.make_inputs(inputs)\ncopied = other.copied\n",
    },
    "decorated by us": {
        "theirs": THEIRS,
        "ours": f"{IMPORTS}import theirs\n{INPUTS}{DECORATE}\n"
        f"copied = tuner.tuned(configs, ['N'], make_inputs=inputs)({EVEN}(theirs.copied))\n",
    },
    "all of it elsewhere": {
        "theirs": THEIRS,
        "given": f"{IMPORTS}{INPUTS}",
        "ours": f"{IMPORTS}import given, theirs\n{DECORATE}\n"
        f"copied = tuner.tuned(configs, ['N'], make_inputs=given.inputs)({EVEN}(theirs.copied))\n",
    },
    "made by a function": {
        "ours": f"{IMPORTS}import triton.language as tl\n{INPUTS}{DECORATE}\ndef make():\n"
        + "\n".join(f"    {line}" for line in THEIRS.splitlines()[2:])
        + f"\n    return tuner.tuned(configs, ['N'], make_inputs=inputs)({EVEN}(copied))\ncopied = make()\n",
    },
    "heuristics above": {
        "ours": f"{THEIRS}\n{IMPORTS}{DECORATE}\ncopied = {EVEN}(tuner.tuned(configs, ['N'])(copied))\n{INPUTS}\n"
        "copied.make_inputs(inputs)\n\n@copied.reference\ndef expected(args):\n    return args['x_ptr']\n",
    },
}


ALWAYS = ("heuristics above",)


@pytest.mark.parametrize(
    "parts",
    [pytest.param(parts, id=name, marks=() if name in ALWAYS else pytest.mark.long) for name, parts in PARTS.items()],
)
def test_a_kernel_is_tuned_wherever_it_its_decorator_and_its_inputs_stand(compiling, tmp_path, parts):
    for name, text in parts.items():
        (tmp_path / f"{name}.py").write_text(text)
    done, problem = tuned_alone(compiling, tmp_path, "--kernel", "ours:copied", "--problem", "N=48,dtype=fp32")
    assert problem["states"] == {"COMPLETE": 2}
    assert "did not load" not in done.stderr
    served = (
        "import torch, ours\nfor size in (48, 50): ours.copied[lambda meta: (-(-size // meta['BLOCK']),)]"
        "(torch.zeros(size), torch.zeros(size), size)\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TUNER_DB": "tuner.db"}
    done = subprocess.run(
        [sys.executable, "-c", served],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    (said,) = done.stderr.splitlines()
    assert said.endswith("to tune it: tuner run --kernel ours:copied --problem N=50,dtype=float32"), said
