from __future__ import annotations

from pathlib import Path

import pytest

from tuner.errors import ProblemError, SuiteError, UsageError
from tuner.problem import Problem, suite

HEADER = "m,n,k,dtype,layout"


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "suite.csv"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_rows_become_problems_in_the_files_order(write):
    path = write(f"{HEADER}\n64,128,256,bf16,nt\n1,2,3,fp32,nn\n")
    assert suite.load(path) == [Problem(64, 128, 256, dtype="bfloat16", layout="nt"), Problem(1, 2, 3, dtype="float32")]


def test_optional_columns_reach_the_problem_and_empty_cells_mean_its_defaults(write):
    path = write(
        f"{HEADER},out_dtype,epilogue,precision,aligned,b_dtype,group\n"
        "64,64,64,float32,nn,bf16,bias+relu,tf32,no,,attention\n"
        "64,64,64,e5m2,nt,,,,,e4m3,\n"
    )
    assert suite.load(path) == [
        Problem(
            *(64, 64, 64), dtype="float32", out_dtype="bfloat16", epilogue="bias+relu", precision="tf32", aligned=False
        ),
        Problem(64, 64, 64, a_dtype="e5m2", b_dtype="e4m3", layout="nt"),
    ]


def test_other_ops_are_named_with_what_their_problems_have_besides(write):
    path = write(
        f"{HEADER},op,batch,groups,top_k,listed\n"
        "8,8,16,fp16,nn,bmm,4,,,\n"
        "64,8,16,fp16,nn,grouped_mm,,3,,yes\n"
        "64,8,16,fp16,nt,fused_experts,,3,2,\n"
        "64,8,16,fp16,nt,gated_linear,,,,\n"
        "8,8,16,fp16,nn,,,,,\n"
    )  # fmt: skip
    assert suite.load(path) == [
        Problem(8, 8, 16, op="bmm", extras={"batch": 4}),
        Problem(64, 8, 16, op="grouped_mm", extras={"groups": 3, "listed": True}),
        Problem(64, 8, 16, layout="nt", op="fused_experts", extras={"groups": 3, "top_k": 2}),
        Problem(64, 8, 16, layout="nt", op="gated_linear"),
        Problem(8, 8, 16),
    ]


def test_eps_is_one_number_however_it_is_spelt(write):
    path = write(f"op,{HEADER},eps\n" + "".join(f"rms_norm,8,64,1,fp16,nn,{cell}\n" for cell in ("1e-6", "0.000001")))
    (problem,) = suite.load(path)
    assert problem == Problem(8, 64, 1, op="rms_norm", extras={"eps": 1e-06})


def test_comments_blank_lines_spaces_and_a_byte_order_mark_are_let_pass(write):
    path = write(f"\ufeff# ours\n\n{HEADER}\n  # a remark\n 8 , 8 ,8, float16 ,nn\n")
    assert suite.load(path) == [Problem(8, 8, 8)]


def test_a_comment_that_a_spreadsheet_wrote_is_one(write):
    path = write(f'"# our service, January",,,,\n{HEADER}\n8,8,8,float16,nn\n"# 8, too",,,,\n')
    assert suite.load(path) == [Problem(8, 8, 8)]


def test_duplicates_are_merged_even_when_spelt_otherwise(write):
    assert suite.load(write(f"{HEADER}\n8,8,8,fp16,nn\n8,8,8,torch.float16,nn\n")) == [Problem(8, 8, 8)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: expected a line of column names, m,n,k,dtype,layout"),
        ("# only a remark\n", "is empty"),
        (f"{HEADER}\n", "names no problem"),
        ("m,n,dtype\n8,8,fp16\n", "line 1: missing k, layout"),
        (f"{HEADER},epilog\n", "line 1: unknown column 'epilog'"),
        (f"{HEADER},m\n", "line 1: the column 'm' is there twice"),
        (f"{HEADER},,\n", "line 1: column 6 of 7 has no name: name it, or delete its comma"),
        (f"{HEADER},M\n", "line 1: the column 'm' is there twice"),
        (HEADER.replace(",", ";") + "\n8;8;8;fp16;nn\n", "line 1: found semicolons between the columns, expected comm"),
        (HEADER.replace(",", "\t") + "\n", "line 1: found tabs between the columns, expected commas: save it with"),
        (f"# one\n\n{HEADER}\n8,8,8,fp16,nn\n0,8,8,fp16,nn\n", "line 5: M must be from 1 to 2147483647, got 0"),
        (f"{HEADER}\n8,-1,8,fp16,nn\n", "line 2: N must be from 1"),
        (f"{HEADER}\n8,8,4294967296,fp16,nn\n", "line 2: K must be from 1"),
        (f"{HEADER}\n8,8,wide,fp16,nn\n", "line 2: K must be an integer, got 'wide'"),
        (f"{HEADER}\n8,8,8,fp12,nn\n", "line 2: unknown dtype 'fp12'"),
        (f"{HEADER}\n8,8,8,fp16,xx\n", "line 2: unknown layout 'xx'"),
        (f"{HEADER}\n8,8,8,fp16\n", "line 2: expected 5 values (m,n,k,dtype,layout), found 4"),
        (f'{HEADER}\n8,8,8,"fp16,nn\n', "line 2: not CSV"),
        (f"{HEADER},aligned\n8,8,8,fp16,nn,maybe\n", "line 2: aligned must be one of"),
        (f"{HEADER},precision\n8,8,8,fp16,nn,tf32\n", "line 2: precision 'tf32' is for float32"),
        (f"{HEADER},op,eps\n8,8,1,fp16,nn,rms_norm,little\n", "line 2: eps must be a number, got 'little'"),
        (f"{HEADER},op,eps\n8,8,1,fp16,nn,rms_norm,0\n", "line 2: eps is 0.0: expected a number from 1.2e-38"),
        (f"{HEADER},op\n8,8,1,fp16,nn,rms_norm\n", "line 2: eps is missing: expected a number from 1.2e-38"),
        (f"{HEADER},batch\n8,8,8,fp16,nn,4\n", "line 2: batch is for other ops than matmul: expected op, bmm or"),
        (
            f"{HEADER},op,batch\n8,8,8,fp16,nn,bmm,few\n",
            "line 2: batch must be an integer, a range such as 1-512, or a list such as 1,8,64; got 'few'",
        ),
    ],
)
def test_an_error_names_the_file_and_the_line(write, text, message):
    path = write(text)
    with pytest.raises(SuiteError) as raised:
        suite.load(path)
    assert str(raised.value).startswith(path)
    assert message in str(raised.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(SuiteError, match=r"cannot read the suite .*absent\.csv: No such file"):
        suite.load(str(tmp_path / "absent.csv"))
    with pytest.raises(SuiteError, match="Is a directory"):
        suite.load(f"{tmp_path}/")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(SuiteError, match="not UTF-8"):
        suite.load(str(tmp_path / "binary.csv"))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown suite 'squaers': known are decode, demo, llm, squares; .* \.csv"):
        suite.load("squaers")


def test_the_suites_of_the_package_hold_what_their_names_say():
    assert suite.names() == ["decode", "demo", "llm", "squares"]
    assert {(p.a_dtype, p.layout) for p in suite.load("demo")} == {
        (dtype, layout) for dtype in ("float16", "float32") for layout in ("nn", "nt")
    }
    assert [p.shape for p in suite.load("squares")] == [(size, size, size) for size in range(256, 4097, 128)]
    for name, largest in (("decode", 256), ("llm", 8192)):
        problems = suite.load(name)
        assert {(p.a_dtype, p.layout, p.aligned) for p in problems} == {("bfloat16", "nt", True)}
        assert (min(p.m for p in problems), max(p.m for p in problems)) == (1, largest)
        ladders = suite.load_with_ladders(name)
        assert {(ladder.first_m, ladder.last_m) for ladder in ladders} == {(1, largest)}
        assert [problem for ladder in ladders for problem in ladder.rungs] == problems


def test_m_may_be_a_range_or_a_list(write):
    path = write(f'{HEADER}\n"1,8",16,16,float16,nn\n1-64,32,32,float16,nn\n')
    rungs = [Problem(m, 32, 32) for m in (1, 2, 4, 8, 16, 17, 32, 33, 64)]
    assert suite.load(path) == [Problem(1, 16, 16), Problem(8, 16, 16), *rungs]
    assert [str(each) for each in suite.load_with_ladders(path)[2:]] == ["matmul 1-64x32x32 float16 nn"]


@pytest.mark.parametrize(
    "m", ["64-1", "0-4", "1-2147483648", "1-", "1-2-3", "x", '"1,"', '"' + ",".join(map(str, range(1, 70))) + '"']
)
def test_a_range_or_a_list_that_is_none_names_its_line(write, m):
    with pytest.raises(SuiteError, match=r"line 2: M ") as raised:
        suite.load(write(f"{HEADER}\n{m},16,16,float16,nn\n"))
    assert "\n" not in str(raised.value)


def test_a_problem_is_in_every_group_that_a_line_puts_it_in(write):
    rows = "16,16,16,float16,nn,b\n16,16,32,float16,nn,\n16,16,16,fp16,nn,a\n16,16,16,float16,nn,b\n"
    found = suite.entries(write(f"{HEADER},group\n{rows}"))
    assert [(entry.problem.k, entry.groups) for entry in found] == [(16, ("b", "a")), (32, ())]
    assert suite.load(write(f"{HEADER},group\n{rows}")) == [entry.problem for entry in found]


def test_a_suite_may_be_a_path(write):
    path = write(f"{HEADER}\n64,128,256,bf16,nt\n")
    assert suite.load(Path(path)) == suite.load(path)


@pytest.mark.parametrize("row", [{"k": None}, {"aligend": "yes"}, {"M": "64"}], ids=str)
def test_cells_that_are_no_problem_are_refused_without_a_file_too(row):
    with pytest.raises(ProblemError, match=f"{next(iter(row))!r}|there is no k: expected m, n and k"):
        suite.problem_of({"m": "64", "n": "64", "k": "64"} | row)


def test_a_range_of_batches_is_whole_where_another_line_names_one_of_them(write):
    head = "op,m,n,k,dtype,layout,batch\n"
    one, several = "bmm,1-16,64,64,bf16,nt,6\n", "bmm,1-16,64,64,bf16,nt,1-8\n"
    for text in (one + several, several + one):
        ladders = suite.load_with_ladders(write(head + text))
        assert {ladder.batches for ladder in ladders} >= {(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8)}


def test_a_column_of_scalings_leaves_other_ops_what_they_are(write):
    cells = "1,64,64,bf16,nt,4"
    (named,) = suite.load(write(f"op,m,n,k,dtype,layout,batch,scaling\nbmm,{cells},none\n"))
    (plain,) = suite.load(write(f"op,m,n,k,dtype,layout,batch\nbmm,{cells}\n"))
    assert named == plain


@pytest.mark.parametrize("absent", ["m", "n", "k"])
def test_a_size_that_is_missing_is_named(absent):
    row = {"m": "64", "n": "64", "k": "64", "dtype": "fp16", "layout": "nn"}
    del row[absent]
    with pytest.raises(ProblemError, match=f"^there is no {absent}: expected m, n and k$"):
        suite.problem_of(row)
