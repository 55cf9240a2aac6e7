"""A contest from Python: children that die, wrong results, the tutorial's kernel, means, charts."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

pytest.importorskip("triton")

from tuner.bench import chart, contest, inductor, tutorial
from tuner.bench.contest import Contest
from tuner.bench.document import ContestReport, document
from tuner.bench.score import OURS, VENDOR, ListedProblem, Row, SuiteGroup, figures, geomeans, is_memory_bound
from tuner.errors import TunerError
from tuner.files import write
from tuner.hardware.device import INTERPRETER, KNOWN, Environment
from tuner.problem import Problem

H200 = KNOWN["sm_90"]
VERSIONS = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7")


def play(*problems: Problem, rivals=(VENDOR,)) -> list[Row]:
    begun: list[str] = []
    with Contest(None, rivals, rounds=2) as playing:
        problems = [ListedProblem(problem, (SuiteGroup("ours"),)) for problem in problems]
        return list(playing.rows(problems, lambda _problem, name: begun.append(name)))


@pytest.mark.long
def test_a_contestant_that_kills_the_child_costs_its_own_figure_and_nothing_else(faulty):
    killed, next_one = play(faulty(default="segfault"), faulty())
    assert killed.reasons == {OURS: "worker died with signal SIGSEGV"}
    assert killed.figures[VENDOR].rounds == 2
    assert killed.ratio(VENDOR) is None
    assert next_one.reasons == {}
    assert next_one.ratio(VENDOR) > 0


@pytest.mark.long
def test_a_contestant_that_hangs_is_killed(faulty, monkeypatch):
    monkeypatch.setattr(contest, "STEP_LIMIT_S", 8.0)
    (row,) = play(faulty(default="hang"))
    assert row.reasons == {OURS: "no sign of life for 8 s, killed"}
    assert VENDOR in row.figures


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("wrong", "wrong result: error "),
        ("stray", "wrong result: wrote outside its output"),
        ("raise", "RuntimeError: no such instruction"),
    ],
)
def test_what_is_wrong_or_fails_has_a_reason_and_no_figure(faulty, behaviour, reason):
    (row,) = play(faulty(default=behaviour))
    assert row.reasons[OURS].startswith(reason)
    assert set(row.figures) == {VENDOR}


def test_a_problem_that_no_kernel_serves_is_a_row_with_the_reason():
    (row,) = play(Problem(16, 16, 16, op="nobody"))
    assert row.match is None
    assert set(row.reasons) == {OURS, VENDOR}
    assert "no kernel serves nobody 16x16x16" in row.reasons[OURS]


MULTIPLY = """
import torch
from tuner.bench.tutorial import tiled
for (m, n, k), dtype in (((33, 47, 29), torch.float16), ((65, 16, 70), torch.float32)):
    a, b = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype).t()
    c = torch.full((m, n), float("nan"), dtype=dtype)
    tiles = -(-m // 32) * -(-n // 32)
    tiled.fn[(tiles,)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), BM=32, BN=32, BK=32, GROUP=8, PRECISION="ieee"
    )
    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-2)
print("right")
"""


def test_the_tutorials_kernel_is_right():
    done = subprocess.run(
        [sys.executable, "-c", MULTIPLY],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=False,
        timeout=120,
    )
    assert done.stdout == "right\n", done.stderr


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Problem(16, 16, 16), None),
        (Problem(16, 16, 16, epilogue="bias+silu"), "without scales or an epilogue"),
        (Problem(16, 16, 16, dtype="int8"), "sums in float32"),
        (Problem(16, 16, 16, a_dtype="float8_e4m3fn", b_dtype="float8_e5m2"), "two operands of one dtype"),
        (Problem(16, 16, 16, dtype="e4m3", extras={"scaling": "row"}), "without scales"),
    ],
)
def test_the_tutorials_kernel_says_what_it_cannot_do(problem, words):
    refusal = tutorial.refusal(problem)
    assert refusal is None if words is None else words in refusal


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Problem(16, 16, 16, epilogue="bias+silu"), None),
        (Problem(16, 16, 16, dtype="float8_e4m3fn", layout="nt"), None),
        (Problem(16, 16, 16, dtype="float32", precision="tf32x3"), "no tf32x3"),
        (Problem(16, 16, 16, out_dtype="float32"), "torch.mm has no float16->float32"),
        (Problem(16, 16, 16, dtype="e4m3", extras={"scaling": "row"}), "alone"),
    ],
)
def test_inductor_is_not_asked_for_what_it_cannot_do(problem, words):
    refusal = inductor.refusal(problem)
    assert refusal is None if words is None else words in refusal


def test_few_rows_are_bound_by_memory_and_large_squares_by_arithmetic():
    def bound(problem: Problem) -> bool:
        return is_memory_bound(problem, problem.flops, problem.bytes_moved, H200)

    assert bound(Problem(64, 4096, 4096, dtype="bfloat16"))
    assert not bound(Problem(4096, 4096, 4096, dtype="bfloat16"))
    assert bound(Problem(512, 512, 512, dtype="bfloat16"))
    assert not bound(Problem(512, 512, 512, dtype="float32"))
    assert not bound(Problem(600, 4096, 4096, dtype="bfloat16"))
    assert bound(Problem(200, 4096, 4096, dtype="float8_e4m3fn"))


def row(problem: Problem, *places: SuiteGroup, vendor: float = 2.0, rounds: int = 5) -> Row:
    """Ours takes 10 us and a little; the vendor's library `vendor` times as long in each round."""
    ours = [10.0 + index for index in range(rounds)]
    found = figures({OURS: ours, VENDOR: [vendor * us for us in ours]}, {})
    return Row(ListedProblem(problem, places), None, found, {}, problem.flops, problem.bytes_moved, False)


def test_ratios_are_paired_and_means_are_of_each_suite_and_group():
    rows = [
        row(Problem(1, 16, 16), SuiteGroup("a", "x"), vendor=2.0),
        row(Problem(2, 16, 16), SuiteGroup("a", "x"), SuiteGroup("a", "y"), vendor=8.0),
        row(Problem(3, 16, 16), SuiteGroup("b"), vendor=0.5),
    ]
    assert rows[1].ratio(VENDOR) == pytest.approx(8.0)
    paired = rows[1].figures[VENDOR].against_ours
    assert paired.low == pytest.approx(8.0) == paired.high
    means = {mean.label: (mean.ratio, mean.rows) for mean in geomeans(rows, (VENDOR,))}
    assert means == {
        "all": (pytest.approx(2.0), 3),
        "a": (pytest.approx(4.0), 2),
        "b": (pytest.approx(0.5), 1),
        "a x": (pytest.approx(4.0), 2),
        "a y": (pytest.approx(8.0), 1),
    }


def test_squares_are_a_curve_with_a_panel_a_class_and_the_rest_are_bars(tmp_path):
    half = [row(Problem(size, size, size), SuiteGroup("curve-fp16")) for size in (256, 384, 512, 640)]
    fp8 = [
        row(Problem(size, size, size, dtype="e4m3", layout="nt"), SuiteGroup("curve-fp8"))
        for size in (256, 384, 512, 640)
    ]
    rest = [row(Problem(1, 6144, 4096, dtype="bf16", layout="nt"), SuiteGroup("ours/odd name", "decode"))]

    def draw(name, *rows):
        folder = tmp_path / name
        folder.mkdir()
        return chart.draw(ContestReport(H200, VERSIONS, (VENDOR,), rows, unplayed=0), folder)

    both = draw("both", *half, *fp8, *rest)
    assert [path.name for path in both] == ["curve.png", "bars-ours-odd-name.png"]
    (one,) = draw("one", *half)
    assert 1.9 < size_of(both[0])[0] / size_of(one)[0] < 2.1
    assert [path.name for path in draw("few", *half[:3])] == ["bars-curve-fp16.png"]
    assert draw("none") == []


def test_problems_of_two_ops_have_bars_and_curves_of_their_own(tmp_path, monkeypatch):
    sizes, ops = (256, 384, 512, 640), ("matmul", "gated_linear")
    squares = [Problem(size, size, size, layout="nt", op=op) for op in ops for size in sizes]
    odd = [Problem(8, 256, 256, layout="nt", op=op) for op in ops]
    drawn = []
    monkeypatch.setattr(chart.vega, "png", lambda spec: drawn.append(spec) or b"")
    rows = [row(problem, SuiteGroup("ours")) for problem in (*squares, *odd)]
    chart.draw(ContestReport(H200, VERSIONS, (VENDOR,), rows, unplayed=0), tmp_path)
    curve, bars = drawn
    assert [panel["title"] for panel in curve["hconcat"]] == ["float16 nt", "gated_linear float16 nt"]
    assert {each["who"] for panel in curve["hconcat"] for each in panel["data"]["values"]} == {
        "triton-tuner",
        "cuBLAS",
        "torch",
    }
    shapes = [each["shape"] for each in bars["data"]["values"]]
    assert len(shapes) == len(set(shapes)) == len(rows)
    assert "8x256x256 float16 nt" in shapes


def size_of(png):
    """Width and height, from the header of a PNG file; every chunk of it is walked to the end."""
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds = 8, []
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        kinds.append(kind)
        at += 12 + length
    assert kinds[0] == b"IHDR"
    assert kinds[-1] == b"IEND"
    assert at == len(data)
    return struct.unpack(">II", data[16:24])


def test_the_document_tells_figures_from_reasons():
    problem = Problem(64, 64, 64)
    failed = Row(ListedProblem(problem, ()), None, {}, {OURS: "no"}, problem.flops, problem.bytes_moved, True)
    body = document(
        ContestReport(INTERPRETER, VERSIONS, (VENDOR,), (row(problem), failed), unplayed=3), ["tuner", "bench"]
    )
    played, absent = (found["contestants"] for found in body["rows"])
    assert played[OURS]["tflops"] == pytest.approx(2 * 64**3 / 12.0 * 1e-6)
    assert played[VENDOR]["gbytes_s"] == pytest.approx(3 * 64 * 64 * 2 / 24.0 * 1e-3)
    assert played[VENDOR]["time_over_ours"] == pytest.approx({"ratio": 2.0, "low": 2.0, "high": 2.0})
    assert absent == {OURS: {"reason": "no"}}
    assert body["unplayed"] == 3


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text("old")

    def fail(partial):
        partial.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(TunerError, match=r"cannot write .*bench.json: No space left on device"):
        write(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
