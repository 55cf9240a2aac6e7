"""`tuner export --format python`: modules that answer as lookups do, in a Python that has nothing else."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

import tuner
from tuner.errors import ProblemError
from tuner.hardware.device import KNOWN
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Family, Range, ms_within
from tuner.tables.dispatcher import _key as dispatcher_key
from tuner.tables.dispatcher import dispatcher

pytest.importorskip("triton", reason="kernels need triton")
H200 = KNOWN["sm_90"]
VERSION = 2
BMM_VERSION = 1
ASK = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("tuned", sys.argv[1])
tuned = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tuned)
print(json.dumps([tuned.config(*shape, **parts) for shape, parts in json.load(sys.stdin)]))
"""
POINTER = {
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 64,
    "GROUP_SIZE_M": 4,
    "num_stages": 3,
    "num_warps": 4,
    "launch_pdl": True,
}
CLASSES = (
    {"dtype": "bf16", "layout": "nt"},
    {"dtype": "fp16"},
    {"dtype": "float16", "layout": "tn"},
    {"dtype": "fp32", "precision": "tf32"},
    {"dtype": "fp32"},
    {"dtype": "e4m3", "layout": "nt", "scaling": "row"},
    {"dtype": "e4m3", "layout": "nt", "fast_accum": False},
    {"dtype": "i8", "scaling": "row", "layout": "nt"},
    {"dtype": "i8"},
    {"dtype": "bf16", "out_dtype": "fp32", "epilogue": "bias+none"},
    {"dtype": "bf16", "layout": "nt", "aligned": False, "epilogue": "bias+relu"},
    {"dtype": "bf16", "layout": "nt", "b_padded": True},
)


def ask(module: Path, questions: list) -> list:
    """What a module answers in a Python without any package."""
    command = [sys.executable, "-I", "-S", "-c", ASK, str(module)]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def by_lookup(shape: tuple[int, ...], parts: dict, op: str = "matmul") -> dict | None:
    match = tuner.lookup(Problem(*shape, op=op, **parts), H200)
    served = match.rule in ("exact", "family")
    return {"kernel": match.config.kernel, **dict(match.config.pairs)} if served else None


def problem_of(n: int, k: int, parts: dict) -> Problem:
    return Problem(1, n, k, **{**parts, "aligned": parts.get("aligned", True) and n % 16 == k % 16 == 0})


def pointer(block_m: int, **parts: int) -> Config:
    return Config("pointer", BLOCK_SIZE_M=block_m, **{**POINTER, **parts})


@pytest.mark.usefixtures("no_tables")
def test_a_module_answers_as_a_lookup_does_for_every_row_and_every_range(tmp_path, run, make_database, make_row):
    draw = random.Random(22)
    rows, families, questions = [], [], []
    for number, (parts, (n, k)) in enumerate(product(CLASSES, ((512, 256), (1000, 250), (64, 4099)))):
        if problem_of(n, k, parts).group() in [family.problem for family in families]:
            continue  # padding gains nothing at this size
        problem = problem_of(n, k, parts)
        ms = sorted(draw.sample(ms_within(problem, 2, 299), 3))
        configs = [pointer(draw.choice((16, 64, 128)), num_warps=draw.choice((4, 8))) for _ in range(4)]
        configs[1] = configs[1].replace(BLOCK_SIZE_K=48) if number % 5 == 0 else configs[1]  # no kernel takes it
        fields = problem.fields()
        for m, config in zip((*ms, 1000), configs, strict=True):
            given = {name: value for name, value in fields.items() if name not in ("op", "m", "n", "k", "extras")}
            rows.append(make_row(m, n, k, config=config, version=VERSION, extras=fields["extras"], **given))
        firsts = (1, *(m + 1 for m in ms))
        ranges = tuple(Range(first, m, m, "measured") for first, m in zip(firsts, ms, strict=False))
        families.append(Family(problem.group(), ranges))
        asked = [1, *ms, *(m + 1 for m in ms), 1000, 1001, *draw.sample(range(1, 400), 8)]
        # Columns of A are aligned for some Ms only.
        given = [parts] if parts.get("layout") == "tn" else [parts, {**parts, "aligned": problem.aligned}]
        questions += [((m, n, k), each) for m in asked for each in given]
    db = make_database(tmp_path / "tuner.db", *rows, families=tuple(families))
    code, _, err = run("export", tmp_path / "modules", "--format", "python", "--db", db)
    assert code == 0, err
    assert "left out: " in err
    (module,) = (tmp_path / "modules").iterdir()
    assert module.name == "matmul_nvidia_h200_sm90_132.py"
    tuner.use(db)
    expected = [by_lookup(shape, parts) for shape, parts in questions]
    assert sum(answer is not None for answer in expected) > len(expected) / 4
    assert sum(answer is None for answer in expected) > len(expected) / 20
    assert ask(module, questions) == expected


@pytest.mark.usefixtures("no_tables")
def test_a_module_serves_ranges_of_batches(tmp_path, run, make_database, make_row):
    parts = {"op": "bmm", "dtype": "bf16", "layout": "nt"}
    rows, families = [], []
    for first, batch in ((1, 2), (3, 8), (20, 32)):
        problem = Problem(1, 256, 128, extras={"batch": batch}, **parts)
        for m, block in ((16, 16), (100, 64)):
            config = Config("bmm_pointer", **dict(pointer(block, num_warps=4 if batch < 8 else 8).pairs))
            rows.append(make_row(m, 256, 128, config=config, version=BMM_VERSION, extras={"batch": batch}, **parts))
        ranges = (Range(1, 16, 16, "measured"), Range(17, 100, 100, "estimated"))
        families.append(Family(problem, ranges, batches=(first, batch)))
    db = make_database(tmp_path / "tuner.db", *rows, families=tuple(families))
    code, _, err = run("export", tmp_path, "--format", "python", "--db", db)
    assert (code, err) == (0, "")
    tuner.use(db)
    shapes = [(m, 256, 128) for m in (1, 16, 17, 99, 100, 101)]
    sizes = (1, 2, 3, 7, 8, 9, 19, 20, 31, 32, 33)
    asked = [
        (shape, {"dtype": "bf16", "layout": "nt", "extras": {"batch": batch}}) for shape in shapes for batch in sizes
    ]
    expected = [by_lookup(shape, given, op="bmm") for shape, given in asked]
    questions = [
        (shape, {"dtype": "bf16", "layout": "nt", "batch": given["extras"]["batch"]}) for shape, given in asked
    ]
    assert ask(tmp_path / "bmm_nvidia_h200_sm90_132.py", questions) == expected
    assert {answer is None for answer in expected} == {True, False}


@pytest.mark.usefixtures("no_tables")
def test_a_module_of_norms_tells_their_eps_apart(make_row, make_table):
    parts = {"op": "rms_norm", "dtype": "bf16", "layout": "nn"}
    rows = [
        make_row(
            *(32, 4096, 1),
            config=Config("rms_norm_whole", BLOCK_SIZE_M=1, launch_pdl=True, num_warps=warps),
            version=1,
            extras={"eps": eps},
            **parts,
        )
        for eps, warps in ((1e-6, 8), (1e-5, 4))
    ]
    tuned = load(dispatcher(replace(make_table(*rows), op="rms_norm")).text)
    found = [tuned.config(32, 4096, 1, "bf16", eps=eps) for eps in (0.000001, 1e-5, 2e-5)]
    assert [each and each["num_warps"] for each in found] == [8, 4, None]
    for wrong in ({}, {"eps": 0}, {"eps": "1e-6"}, {"eps": True}):
        with pytest.raises(ValueError, match=r"eps is .*: expected a number from 1\.2e-38"):
            tuned.config(32, 4096, 1, "bf16", **wrong)


@pytest.mark.usefixtures("no_tables")
def test_a_module_of_gated_layers_tells_activations_apart(make_row, make_table):
    tile = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "SWAP_AB": False}
    kind = {"dtype": "bf16", "layout": "nt"}
    rows = [
        make_row(
            *(320, 4096, 1024),
            config=Config("gated_pointer", **tile, num_stages=3, num_warps=warps, launch_pdl=True),
            version=1,
            op="gated_linear",
            epilogue=epilogue,
            **kind,
        )
        for epilogue, warps in (("silu", 8), ("none", 4))
    ]
    tuned = load(dispatcher(replace(make_table(*rows), op="gated_linear")).text)
    shape = 320, 4096, 1024
    found = [tuned.config(*shape, **kind, **rest) for rest in ({"epilogue": "silu"}, {}, {"epilogue": "gelu"})]
    assert [each and each["num_warps"] for each in found] == [8, 4, None]


def load(text: str) -> ModuleType:
    module = ModuleType("tuned")
    exec(text, module.__dict__)
    return module


WRONG = (
    ((64.0, 64, 64), {}),
    ((True, 64, 64), {}),
    ((0, 64, 64), {}),
    ((64, 64, 2**31), {}),
    ((64, "64", 64), {}),
    ((64, 64, 64), {"layout": "zz"}),
    ((64, 64, 64), {"layout": None}),
    ((64, 64, 64), {"dtype": "bfloat"}),
    ((64, 64, 64), {"out_dtype": "fp33"}),
    ((64, 64, 64), {"aligned": "no"}),
    ((64, 64, 64), {"b_padded": "no"}),
    ((64, 64, 64), {"epilogue": "bias+tanh"}),
    ((64, 64, 64), {"epilogue": "bias+bias"}),
    ((64, 64, 64), {"precision": "x", "dtype": "fp32"}),
    ((64, 64, 64), {"precision": "tf32", "dtype": "bf16"}),
    ((64, 64, 64), {"scaling": "x", "dtype": "e4m3"}),
    ((64, 64, 64), {"scaling": "row", "dtype": "bf16"}),
    ((64, 64, 64), {"scaling": "block", "dtype": "i8"}),
    ((64, 64, 64), {"fast_accum": True, "dtype": "bf16"}),
    ((64, 64, 64), {"fast_accum": True, "dtype": "e4m3", "scaling": "block"}),
    ((64, 64, 64), {"invariant": "yes"}),
    ((64, 64, 64), {"invariant": True, "dtype": "fp32", "precision": "tf32x3"}),
)


@pytest.mark.parametrize(("shape", "parts"), WRONG)
def test_a_module_refuses_what_a_problem_refuses_in_one_line(shape, parts, make_row, make_table):
    with pytest.raises(ProblemError):
        Problem(*shape, **parts)
    with pytest.raises(ValueError, match=r"\A[^\n]{10,300}\Z"):
        load(dispatcher(make_table(make_row(16))).text).config(*shape, **parts)


ARGUMENTS = {
    "dtype": ("bf16", "fp32", "e4m3", "i8", "torch.float16", "nope"),
    "out_dtype": (None, "fp32", "bf16", "zz"),
    "layout": ("nn", "nt", "tn", "zz"),
    "aligned": (None, True, 0, "no"),
    "epilogue": ("none", "bias", "bias+none", "gelu", "none+relu"),
    "precision": (None, "default", "tf32", "tf32x3", "x"),
    "scaling": (None, "none", "row", "block", "x"),
    "fast_accum": (None, True, 0, "yes"),
    "b_padded": (False, True, "no"),
    "invariant": (False, True, 0, "yes"),
}


def test_a_module_and_a_problem_take_and_refuse_the_same_arguments(make_row, make_table):
    key = load(dispatcher(make_table(make_row(16))).text)._key
    draw = random.Random(6)
    taken = 0
    for _ in range(3000):
        shape = tuple(
            draw.choice((1, 16, 1000, 4096, 64.0, 0) if draw.random() < 0.1 else (1, 64, 1000)) for _ in "mnk"
        )
        parts = {name: draw.choice(values) for name, values in ARGUMENTS.items() if draw.random() < 0.2}
        try:
            expected = dispatcher_key(Problem(*shape, **parts))
        except ProblemError:
            with pytest.raises(ValueError, match=r"."):
                key(*shape, **{"dtype": "float16", **parts})
        else:
            assert key(*shape, **{"dtype": "float16", **parts})[:-1] == expected, (shape, parts)
            taken += 1
    assert 500 < taken < 2500


def test_a_misspelt_argument_of_a_module_is_named_beside_those_that_it_takes(make_row, make_table):
    tuned = load(dispatcher(make_table(make_row(16))).text)
    with pytest.raises(TypeError, match=r"config\(\) has no argument 'layuot': expected one of a_dtype, .*layout"):
        tuned.config(64, 6144, 4096, "bf16", layuot="nt")
    parts = {"op": "bmm", "dtype": "bf16", "layout": "nt", "extras": {"batch": 2}}
    config = Config("bmm_pointer", **dict(pointer(64).pairs))
    table = replace(make_table(make_row(64, config=config, version=BMM_VERSION, **parts)), op="bmm")
    batched = load(dispatcher(table).text)
    with pytest.raises(TypeError, match="has no argument 'bacth'"):
        batched.config(64, 256, 128, "bf16", bacth=2)
    with pytest.raises(ValueError, match="batch must be an integer"):
        batched.config(64, 256, 128, "bf16", batch="2")


@pytest.mark.usefixtures("no_tables")
def test_a_kernel_with_keys_of_its_own_is_one_line(tmp_path, run, make_database, make_row):
    row = make_row(1, 1, 1, op="scale", layout="keyed", extras={"N": 64}, dtype="float32")
    db = make_database(tmp_path / "tuner.db", row)
    code, out, err = run("export", tmp_path / "out", "--format", "python", "--db", db)
    assert (code, out) == (1, "")
    assert err == "tuner: scale has keys of its own: --format python is for ops with M, N and K; leave it out\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_tables", "toy")
def test_a_kernel_with_keys_of_its_own_is_left_out_beside_others(tmp_path, run, make_database, make_row):
    keyed = make_row(1, 1, 1, op="scale", layout="keyed", extras={"N": 64}, dtype="float32")
    db = make_database(tmp_path / "tuner.db", keyed, make_row(64))
    code, _, err = run("export", tmp_path / "out", "--format", "python", "--db", db)
    assert (code, err) == (0, "left out: 1 row of scale, which has keys of its own\n")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["matmul_nvidia_h200_sm90_132.py"]
    _, out, _ = run("export", tmp_path / "out", "--format", "python", "--db", db, "--json")
    assert json.loads(out)["left_out"] == {"stale": 0, "older": 0, "keyed": 1, "refused": 0}


@pytest.mark.usefixtures("no_tables")
def test_rows_that_no_lookup_would_use_make_no_module(tmp_path, run, make_database, make_row):
    """Those of `bmm` alone: then the other op's module is written, and without it none."""
    impossible = pointer(48)
    bmm_config = Config("bmm_pointer", **dict(impossible.pairs))
    parts = {"op": "bmm", "dtype": "bf16", "layout": "nt", "extras": {"batch": 2}}
    refused = make_row(64, 256, 128, config=bmm_config, version=BMM_VERSION, **parts)
    db = make_database(tmp_path / "refused.db", refused)
    code, out, err = run("export", tmp_path / "out", "--format", "python", "--db", db)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith("tuner: a lookup would use no row: bmm 64x256x128 bfloat16 nt batch=2: ")
    assert err.endswith("; tune again with `tuner run`\n")
    assert not (tmp_path / "out").exists()
    served = make_row(64, 256, 128, config=pointer(64), version=VERSION, dtype="bf16", layout="nt")
    both = make_database(tmp_path / "both.db", refused, served)
    code, _, err = run("export", tmp_path / "out", "--format", "python", "--db", both)
    assert (code, len(err.splitlines())) == (0, 1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["matmul_nvidia_h200_sm90_132.py"]


def test_a_devices_name_ends_no_docstring(make_row, make_table):
    plain = make_table(make_row(16))
    odd = replace(plain, device=replace(H200, name='"""\nimport os\n\\"""\\u\ud800\u00e9'), date="1\\")
    bodies = [[type(node) for node in ast.parse(dispatcher(each).text.encode()).body] for each in (plain, odd)]
    assert bodies[0] == bodies[1]
