"""`tuner import`: what others tuned becomes problems and candidates, and never a figure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tuner
from tuner.errors import TableError
from tuner.hardware.device import KNOWN
from tuner.kernel.config import Config
from tuner.problem import Problem, suite
from tuner.tables.importing import candidates

FIXTURES = Path(__file__).parent / "fixtures"
OF_VLLM = FIXTURES / "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
OF_SGLANG = FIXTURES / "N=1536,K=7168,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128, 128].json"
# Rows in the layout of ROCm/aiter's aiter/configs/*.csv (MIT licence); the kernels' names are shortened.
BF16 = """\
gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw
gfx950,256,64,256,5120,False,torch.bfloat16,torch.float32,False,False,asm,5,13,7.9191,bf16gemm,0.0,21.19,417.92
gfx950,256,64,256,5120,True,torch.bfloat16,torch.bfloat16,False,False,opus,5,13,8.0,gemm,0.0,21.19,417.92
gfx942,304,64,256,5120,True,torch.bfloat16,torch.bfloat16,False,False,asm,5,13,9.0,gemm,0.0,21.19,417.92
gfx950,256,64,256,5120,False,torch.float8_e4m3fn,torch.bfloat16,True,False,asm,5,13,7.9,gemm,0.0,21.19,417.92
"""
BLOCKSCALE = """cu_num,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio
304,16,1536,7168,8,0,19.3027,a8w8_blockscale,18.25,578.88,0.0
304, 32, 1536, 7168,8,0,19.3628,a8w8_blockscale,36.39,585.54,0.0
304,x,1536,7168,8,0,19.3628,a8w8_blockscale,36.39,585.54,0.0
"""
ROWWISE = """gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio
gfx950,256,1,1280,8192,torch.int8,34,0,17.6914,a8w8_rowwise,1.19,593.31,0.0
gfx950,256,1,1280,8192,torch.float8_e4m3fn,79,3,7.6797,a8w8_rowwise,2.73,1366.79,0.1344
gfx942,80,1,1280,8192,torch.float8_e4m3fnuz,79,3,7.6797,a8w8_rowwise,2.73,1366.79,0.1344
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_files_of_vllm_and_sglang_become_a_suite_and_candidates(tmp_path, run):
    out = tmp_path / "new" / "out"
    code, said, err = run("import", OF_VLLM, OF_SGLANG, "--out", out)
    assert (code, err, names(out)) == (0, "", ["imported.candidates.json", "imported.csv"])
    assert said.splitlines()[0] == f"{out}/imported.csv: 5 problems; to tune them: tuner run --suite {out}/imported.csv"
    parts = {"dtype": "e4m3", "layout": "nt", "scaling": "block"}
    shapes = [(m, 2112, 7168) for m in (1, 64, 1024)] + [(m, 1536, 7168) for m in (1, 256)]
    assert suite.load(str(out / "imported.csv")) == [Problem(*shape, **parts) for shape in shapes]
    assert suite.entries(str(out / "imported.csv"))[0].groups == ("vllm",)
    found = {(row.problem.m, row.problem.n): row for row in candidates.load(out / "imported.candidates.json")}
    assert len(found) == 5
    theirs = json.loads(OF_VLLM.read_text())["64"]
    config = Config("block_scaled", **theirs, LOADS="pointer", SPLIT_K=1, SWAP_AB=False)
    assert found[64, 2112] == candidates.Candidate(
        Problem(64, 2112, 7168, **parts), config, "NVIDIA_H200", OF_VLLM.name
    )


def test_what_is_exported_for_vllm_comes_back_as_the_same_configs():
    from tuner.tables import vllm
    from tuner.tables.importing import reader as imported

    theirs = {int(m): config for m, config in json.loads(OF_VLLM.read_text()).items()}
    found = imported.read(OF_VLLM).candidates
    assert {row.problem.m: vllm.expressed(row.config) for row in found} == theirs
    assert all(vllm.is_theirs(row.problem) for row in found)


def test_candidates_are_configs_that_the_kernel_can_run():
    pytest.importorskip("triton", reason="Triton is not installed")
    from tuner.kernel import registry
    from tuner.tables.importing import reader as imported

    space = registry.find("matmul", "block_scaled").space
    device = KNOWN["sm_90"]
    for row in imported.read(OF_VLLM).candidates:
        fatal = [rule for rule in space(row.problem, device).rules if rule.fatal]
        assert [rule.rejects(row.config, row.problem, device) for rule in fatal] == [None] * len(fatal)


def test_tables_of_aiter_give_problems_only(tmp_path, run):
    for name, text in (("bf16_tuned_gemm", BF16), ("a8w8_blockscale_x", BLOCKSCALE), ("a8w8_tuned_gemm", ROWWISE)):
        (tmp_path / f"{name}.csv").write_text(text)
    code, _, err = run("import", *sorted(tmp_path.glob("*.csv")), "--out", tmp_path / "out")
    assert (code, names(tmp_path / "out")) == (0, ["imported.csv"])
    bf16 = {"dtype": "bf16", "layout": "nt"}
    rows = {"layout": "nt", "scaling": "row"}
    assert suite.load(str(tmp_path / "out" / "imported.csv")) == [
        Problem(16, 1536, 7168, dtype="e4m3", layout="nt", scaling="block"),
        Problem(32, 1536, 7168, dtype="e4m3", layout="nt", scaling="block"),
        Problem(1, 1280, 8192, dtype="i8", **rows),
        Problem(1, 1280, 8192, dtype="e4m3", **rows),
        Problem(64, 256, 5120, out_dtype="fp32", **bf16),
        Problem(64, 256, 5120, epilogue="bias", **bf16),
    ]
    left_out = dict(line.split(": left out ") for line in err.splitlines())
    assert left_out["a8w8_blockscale_x.csv"] == "1 row: its M, N and K are no integers"
    assert left_out["a8w8_tuned_gemm.csv"].startswith("1 row: unknown dtype 'torch.float8_e4m3fnuz'")
    assert left_out["bf16_tuned_gemm.csv"].startswith("1 row: its operands are scaled")


@pytest.mark.usefixtures("no_tables")
def test_nothing_that_was_imported_is_a_figure_or_can_be_looked_up(tmp_path, run):
    (tmp_path / "a8w8_blockscale.csv").write_text(BLOCKSCALE)
    run("import", OF_VLLM, tmp_path / "a8w8_blockscale.csv", "--out", tmp_path / "out")
    written = {name: (tmp_path / "out" / name).read_text() for name in names(tmp_path / "out")}
    assert all(
        "us" not in line.split(",") and "19.3" not in line for text in written.values() for line in text.split("\n")
    )
    document = json.loads(written["imported.candidates.json"])
    assert document["verified"] is False
    assert {key for row in document["candidates"] for key in row} == {
        *("problem", "kernel", "config", "device_name", "source")
    }
    with pytest.raises(TableError, match="not a table of triton-tuner"):
        tuner.use(tmp_path / "out" / "imported.candidates.json")
    with pytest.raises(TableError, match="holds no table"):
        tuner.use(tmp_path / "out")
    pytest.importorskip("triton", reason="Triton is not installed")
    problem = Problem(64, 2112, 7168, dtype="e4m3", layout="nt", scaling="block")
    assert tuner.lookup(problem, KNOWN["sm_90"]).rule == "default"
    assert run("diff", tmp_path / "out", tmp_path / "out")[0] == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json", "a mixture of experts"),
        ("E=8,N=14336,device_name=NVIDIA_H200.json", "tune that with `tuner moe`"),
        ("N=1,K=2,gpu=X.json", None),
        ("N=1,K=2,device_name=X,dtype=int8_w8a8,block_shape=[128,128].json", "int8_w8a8 scaled by blocks of 128x128"),
        ("N=1,K=2,device_name=X,dtype=fp8_w8a8,block_shape=[64, 64].json", "fp8_w8a8 scaled by blocks of 64x64"),
        ("N=1,K=2,device_name=X,dtype=fp8_w8a8_per_token,out_dtype=bf16.json", "fp8_w8a8_per_token without blocks"),
    ],
)
def test_files_of_other_things_are_left_out_in_words_and_alone_are_an_error(tmp_path, run, name, reason):
    path = Path(shutil.copy(OF_VLLM, tmp_path / name))
    code, out, err = run("import", path, "--out", tmp_path / "out")
    assert (code, out, names(tmp_path / "out")) == (1, "", [])
    assert (reason or "not a file that is known") in err
    if reason:
        assert run("import", OF_VLLM, path, "--out", tmp_path / "out")[0] == 0


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"BLOCK_SIZE_K": 64}, "BLOCK_SIZE_K is 64, block_scaled takes 128"),
        ({"num_ctas": 2}, "num_ctas is no parameter of block_scaled"),
        ({"num_warps": "4"}, "num_warps must be an integer, got '4'"),
        ({"GROUP_SIZE_M": None}, "GROUP_SIZE_M must be an integer"),
    ],
)
def test_configs_that_ours_cannot_be_are_left_out_and_counted(tmp_path, run, entry, reason):
    rows = json.loads(OF_VLLM.read_text())
    rows["64"] |= entry
    rows["1024"] = [1, 2]
    path = tmp_path / OF_VLLM.name
    path.write_text(json.dumps(rows))
    code, out, err = run("import", path, "--out", tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(out)["candidates"]["rows"] == json.loads(out)["suite"]["problems"] == 1
    assert f"left out 1 row: {reason}" in err
    assert "left out 1 row: expected an object of launch parameters" in err


def test_stages_that_a_file_leaves_out_are_tritons_on_amd(tmp_path, run):
    rows = json.loads(OF_SGLANG.read_text())
    for row in rows.values():
        del row["num_stages"]
    (tmp_path / OF_SGLANG.name).write_text(json.dumps(rows))
    run("import", tmp_path / OF_SGLANG.name, "--out", tmp_path / "out")
    found = candidates.load(tmp_path / "out" / "imported.candidates.json")
    assert [row.config["num_stages"] for row in found] == [2, 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (OF_VLLM.name, None),
        (OF_VLLM.name, "not json"),
        (OF_VLLM.name, "[1]"),
        ("other.json", "{}"),
        ("a.csv", "x,y\n1,2\n"),
        ("a.csv", "M,N,K\n1,2,3\n"),
        ("a.csv", ""),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_and_nothing_is_written(tmp_path, run, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    code, out, err = run("import", OF_SGLANG, path, "--out", tmp_path / "out")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert name in err
    assert not err.endswith("found \n")
    assert names(tmp_path / "out") == []


def test_a_suite_in_the_place_of_tables_is_told_from_them(tmp_path, run):
    suite = tmp_path / "model.csv"
    suite.write_text("m,n,k,dtype,layout\n64,512,256,float16,nt\n")
    code, out, err = run("import", suite, "--out", tmp_path / "out")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert f"tuner import triton-tuner --suite {suite} --out DIR" in err


def test_importing_again_gives_the_same_bytes_and_files_in_any_order_the_same_candidates(tmp_path, run):
    for out, files in (("a", (OF_VLLM, OF_SGLANG)), ("b", (OF_VLLM, OF_SGLANG)), ("c", (OF_SGLANG, OF_VLLM, OF_VLLM))):
        assert run("import", *files, "--out", tmp_path / out)[0] == 0
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    name = "imported.candidates.json"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()


@pytest.mark.parametrize("content", ["", "[]", '{"format": "triton-tuner candidates", "version": 2}', "{}"])
def test_a_file_of_candidates_that_cannot_be_read_is_one_error(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(TableError, match="import it again"):
        candidates.load(tmp_path / "c.json")


def test_a_candidate_that_cannot_be_read_is_one_error(tmp_path):
    text = candidates.dumps([candidates.Candidate(Problem(1, 2, 3), Config("pointer", num_warps=4), "X", "y.json")])
    (tmp_path / "c.json").write_text(text.replace('"kernel"', '"core"'))
    with pytest.raises(TableError, match=r"'kernel'.*import it again"):
        candidates.load(tmp_path / "c.json")


def test_a_run_of_the_suite_tries_its_candidates_first_and_those_that_cannot_run_never(tmp_path, run):
    pytest.importorskip("torch", reason="torch is not installed: no kernel serves")
    from tuner.cli.run_problems import suggested
    from tuner.sweep.race import Race
    from tuner.sweep.search_task import make_search_task

    assert run("import", OF_VLLM, "--out", tmp_path)[0] == 0
    named = suggested([str(tmp_path / "imported.csv"), "demo"])
    problem = Problem(64, 2112, 7168, dtype="e4m3", layout="nt", scaling="block")
    (theirs,) = named[problem]
    too_deep = theirs.replace(num_stages=40)
    field = make_search_task(problem, KNOWN["sm_90"], suggested=[theirs, too_deep, Config("unknown", A=1)])
    ours = theirs.replace(GROUP_SIZE_M=4)  # of four rows of tiles, 64 of theirs are the same program
    assert list(field.suggested) == [ours]
    assert Race(field).propose({})[:2] == [field.default, ours]
    assert field.configs.count(ours) == 1
