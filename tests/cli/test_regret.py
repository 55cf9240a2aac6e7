"""`tuner verify --regret`: problems held out of tables, and what lookups say of them."""

from __future__ import annotations

import json

import pytest

from tuner.bench import held_out
from tuner.bench.held_out import Case, CaseResult, cases, summary
from tuner.errors import SweepError
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel.config import Config
from tuner.lookup import sources
from tuner.problem import Problem
from tuner.sweep.messages import FinalsPlayed

H200 = KNOWN["sm_90"]
PROBLEM = Problem(64, 512, 256)


@pytest.fixture
def formula_won(toy, no_tables, tmp_path, make_row, make_table):
    """A table whose winners are all the formula's: there is nothing to measure."""
    rows = [make_row(m, n, block=16) for m in (64, 100) for n in (512, 4096)]
    return make_table(*rows, device=INTERPRETER).write(tmp_path)


def played(rule: str, answer: float | None, formula: float | None) -> CaseResult:
    config = Config("toy", BLOCK_SIZE_M=16, num_warps=4)
    return CaseResult(Case(PROBLEM, rule, config, config, config), answer, formula, 1.0)


def test_a_problem_is_looked_up_without_its_own_row(toy, no_tables, tmp_path, make_row, make_table, make_family):
    rows = [make_row(64, block=32), make_row(100, block=64), make_row(4096, block=32)]
    path = make_table(*rows, families=(make_family(64, 100),)).write(tmp_path)
    found = {case.problem.m: case for case in cases(sources.named(path), H200, None, 30)}
    blocks = {
        m: [config["BLOCK_SIZE_M"] for config in (case.answer, case.formula, case.winner)] for m, case in found.items()
    }
    assert {m: case.rule for m, case in found.items()} == {64: "family", 100: "family", 4096: "default"}
    assert blocks == {64: [64, 16, 32], 100: [32, 16, 64], 4096: [16, 16, 32]}


def test_the_problems_of_a_suite_are_held_out_together(toy, no_tables, tmp_path, make_row, make_table):
    path = make_table(make_row(64, block=32), make_row(100, block=64), make_row(300)).write(tmp_path)
    suite = [PROBLEM.with_shape(m, 512, 256) for m in (64, 100, 5)]
    found = cases(sources.named(path), H200, suite, 30)
    assert [(case.problem.m, case.rule) for case in found] == [(64, "default"), (100, "default")]


def test_a_sample_is_always_the_same(toy, no_tables, tmp_path, make_row, make_table):
    path = make_table(*(make_row(m) for m in range(1, 50))).write(tmp_path)
    first, again = ([case.problem for case in cases(sources.named(path), H200, None, 7)] for _ in range(2))
    assert first == again
    assert len(first) == 7


def test_figures_are_geometric_means_by_rule_beside_the_formulas_on_the_same_problems():
    found = summary([played("family", 1.0, 1.2), played("family", 1.21, 1.0), played("default", None, None)])
    assert found.keys() == {"family", "all"}
    assert found["family"].geomean == pytest.approx(1.1)
    assert (found["family"].count, found["family"].worst, found["family"].formula_worst) == (2, 1.21, 1.2)


WINNER, ANSWER, FORMULA = (Config("toy", BLOCK_SIZE_M=block, num_warps=4) for block in (16, 32, 64))


class Runner:
    """Plays three contestants, of which one may not run: the winner takes 10 us, the others 20 and 30."""

    def __init__(self, rejected: Config):
        self._rejected = rejected

    def compile(self, todo):
        assert list(todo)

    def play(self, problem, configs):
        times = dict(zip((WINNER.digest, ANSWER.digest, FORMULA.digest), ([10.0], [20.0], [30.0]), strict=True))
        del times[self._rejected.digest]
        return FinalsPlayed(times, {self._rejected.digest: "wrong result"})


@pytest.mark.parametrize(
    ("rejected", "regrets"),
    [(WINNER, (None, None, None)), (ANSWER, (None, 3.0, 10.0)), (FORMULA, (2.0, None, 10.0))],
    ids=["winner", "answer", "formula"],
)
def test_where_the_winner_does_not_run_nobody_has_a_regret(rejected, regrets):
    (one,) = held_out.play([Case(PROBLEM, "family", ANSWER, FORMULA, WINNER)], Runner(rejected))
    assert (one.answer, one.formula, one.fastest_us) == pytest.approx(regrets)
    assert one.failure == "wrong result"
    assert summary([one]) == {}


@pytest.fixture
def play(monkeypatch):
    """Has the command measure what is given, and end with an error where one is among it."""

    def play(*results: CaseResult | BaseException) -> None:
        def measure(*_):
            for one in results:
                if isinstance(one, BaseException):
                    raise one
                yield one

        monkeypatch.setattr(held_out, "play", measure)

    return play


def test_what_could_not_be_measured_is_said_beside_the_figures(formula_won, play, run):
    lost = CaseResult(played("default", 1, 1).case, 1.5, None, 10.0, "wrong result")
    play(played("family", 1.0, 1.2), lost, lost, lost)
    code, out, err = run("verify", formula_won, "--regret", "--device", "interpreter")
    assert (code, out.splitlines()[-1].split()[:2]) == (1, ["all", "1"])
    assert "[1/4] matmul 64x512x256 float16 nn: family 1.000, formula 1.200, toy" in err
    (second,) = (line for line in err.splitlines() if line.startswith("[2/4] matmul 64x512x256 float16 nn: "))
    assert second.endswith(f": default, {lost.case.answer.label}: wrong result")
    assert err.splitlines()[-1] == "3 of 4 problems are in no figure: the lines above say why"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(KeyboardInterrupt(), 130, "interrupted"), (SweepError("no worker"), 1, "tuner: no worker")],
    ids=["ctrl-c", "no worker"],
)
def test_what_ends_early_shows_what_was_measured(error, code, said, formula_won, play, run):
    play(played("family", 1.0, 1.2), error)
    command = ("verify", formula_won, "--regret", "--device", "interpreter")
    ended, out, err = run(*command)
    assert (ended, out.splitlines()[-1].split()[:2]) == (code, ["all", "1"])
    assert "3 problems not measured" in err.splitlines()
    assert err.splitlines()[-1] == said
    ended, out, _ = run(*command, "--json")
    told = json.loads(out)
    assert (ended, len(told["problems"]), told["unplayed"], told["rules"]["all"]["count"]) == (code, 1, 3, 1)


def test_where_nothing_differs_nothing_is_measured(formula_won, run):
    code, out, err = run("verify", formula_won, "--regret", "--device", "interpreter")
    assert code == 0
    assert out.splitlines()[0].split() == ["rule", "held", "out", "regret", "worst", "formula's", "formula's", "worst"]
    assert out.splitlines()[-1].split() == ["all", "4", "0.0%", "0.0%", "0.0%", "0.0%"]
    assert len(err.splitlines()) == 4


def test_wrong_usage_exits_2_and_says_what_is_wrong(formula_won, run, tmp_path, make_row, make_database):
    database = make_database(tmp_path / "tuner.db", make_row(64), device=INTERPRETER)
    on = ("--device", "interpreter")
    for arguments, words in (
        ((formula_won, database, "--regret", *on), "one table"),
        ((formula_won, "--sample", "3"), "--sample goes with --regret"),
        ((formula_won, "--regret", "--strict", *on), "--strict is for warnings"),
        ((formula_won, "--invariance", "--strict", *on), "--strict is for warnings"),
        (
            (formula_won, "--regret", "--suite", "demo", "--sample", "3", *on),
            "--sample is for --regret without --suite",
        ),
        ((formula_won, "--regret", "--device", "cuda:0,cuda:1"), "one GPU"),
        ((formula_won, "--regret", "--suite", "gone", *on), "unknown suite"),
        ((formula_won, "--regret", "--suite", "demo", *on), "no tuned problem to hold out"),
    ):
        code, out, err = run("verify", *arguments)
        assert (code, out) == (2, "")
        assert words in err


def test_what_differs_is_measured_in_paired_rounds(no_tables, run, tmp_path, make_row, make_table):
    pytest.importorskip("triton")
    from tuner.kernel import registry

    problem = Problem(16, 32, 16)
    spec = registry.find("matmul", "pointer")
    default = registry.default_config(problem, INTERPRETER)
    other = next(c for c in spec.space(problem, INTERPRETER).configs() if c != default)
    rows = [make_row(m, 32, 16, config=other, version=spec.version) for m in (16, 5000)]
    path = make_table(*rows, device=INTERPRETER).write(tmp_path)
    (tmp_path / "held.csv").write_text("m,n,k,dtype,layout\n16,32,16,fp16,nn\n")
    code, out, _ = run(
        "verify", path, "--regret", "--suite", tmp_path / "held.csv", "--device", "interpreter", "--json"
    )
    (row,) = json.loads(out)["problems"]
    assert code == 0
    assert row["winner"] == str(other)
    assert row["answer"] == row["formula"] != row["winner"]
    assert row["fastest_us"] > 0
    assert row["answer_regret"] == row["formula_regret"] >= 1
