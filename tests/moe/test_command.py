"""`tuner moe`, from sizes to a file that the packages' own loaders read, on the interpreter."""

from __future__ import annotations

import dataclasses
import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from tuner.cli import main, moe_files
from tuner.cli.moe_options import MoeOptions
from tuner.errors import KernelError
from tuner.hardware.device import INTERPRETER
from tuner.moe import config_file, tuning
from tuner.moe.layer import Layer
from tuner.moe.package import load
from tuner.store.store import Store
from tuner.sweep.messages import FinalsPlayed

LAYER = Layer(4, 32, 32, 2)
SIZES = ("--experts", "4", "--hidden", "32", "--intermediate", "32", "--topk", "2")
WHERE = ("--out", "out", "--device", "interpreter", "--db", "tuner.db")


def start(folder, *words) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tuner", "moe", *words, *WHERE]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder, *words) -> tuple[int, str, str]:
    process = start(folder, *words)
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    return process.returncode, out, err


def trials(folder) -> int:
    with Store.open(folder / "tuner.db", read_only=True) as store:
        return len(list(store.trials()))


def stored(folder) -> int:
    """How many trials there are, also where the run is only about to make its database."""
    try:
        with closing(sqlite3.connect(f"file:{folder / 'tuner.db'}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM trial").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.long
@pytest.mark.parametrize(("name", "files"), [("vllm", 1), ("sglang", 2)])
def test_what_is_tuned_is_read_by_the_packages_own_loader_and_a_second_run_measures_nothing(
    name, files, tmp_path, monkeypatch, capfd
):
    code, out, err = run(tmp_path, *SIZES, "--m", "2", "--trials", "2", "--for", name, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert len(document["files"]) == files
    monkeypatch.setenv(config_file.VARIABLES[name], str(tmp_path / "out"))
    for at in range(files):
        read = config_file.read(load(name), LAYER, INTERPRETER.name, down=bool(at))
        assert {m: dict(config.pairs) for m, config in read.items()} == {
            row["m"]: row["configs"][at]["config"] for row in document["rows"]
        }
    for row in document["rows"]:
        assert min(row["ratios"].values()) >= 1, "nothing that was played is faster than what ships"
        assert len({config["config"]["BLOCK_SIZE_M"] for config in row["configs"]}) == 1
    before = trials(tmp_path)
    code, out, err = run(tmp_path, *SIZES, "--m", "2", "--trials", "2", "--for", name, "--json")
    assert (code, trials(tmp_path)) == (0, before)
    # What was written is what the package has now, and nothing is said to be gained over it.
    assert all("file" in row["ratios"] for row in json.loads(out)["rows"])
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path / "tables"), "--device", "interpreter", "--db", str(tmp_path / "tuner.db")])
    assert "of experts left out: `tuner moe` writes their files" in capfd.readouterr().err
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("vllm", "E=128,N=768,device_name=NVIDIA_H200,dtype=int4_w4a16.json"),
        # SGLang's N is the last extent of w2, which counts bytes; vLLM doubles it.
        ("sglang", "E=128,N=384,device_name=NVIDIA_H200,dtype=int4_w4a16.json"),
    ],
)
def test_a_file_of_int4_has_the_name_that_a_server_looks_for(name, file):
    layer = Layer(128, 2048, 768, 8, "int4_w4a16", group_size=128)
    assert config_file.path_of(load(name), layer, "NVIDIA H200").name == file


@pytest.mark.long
def test_an_interrupt_writes_no_file_and_the_same_command_goes_on(tmp_path):
    words = (*SIZES, "--m", "1,2", "--trials", "2", "--for", "vllm")
    process = start(tmp_path, *words)
    while not stored(tmp_path):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert (process.returncode, list(tmp_path.glob("out/*"))) == (130, [])
    assert "the same command goes on" in err
    code, out, err = run(tmp_path, *words, "--json")
    assert code == 0, err
    assert [row["m"] for row in json.loads(out)["rows"]] == [1, 2]


@pytest.mark.long
def test_an_interrupt_among_the_paired_rounds_keeps_the_rows_that_were_played(tmp_path):
    words = (*SIZES, "--m", "1,512", "--trials", "1", "--for", "vllm", "--json")
    process = start(tmp_path, *words)
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("[1/2] M 1: "):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, "".join(said) + err
    told = ["not timed: M 512; the same command times every row again", "interrupted"]
    assert [line for line in err.splitlines() if line] == told
    document = json.loads(out)
    assert ([row["m"] for row in document["rows"]], document["not_played"]) == ([1], [512])
    path = tmp_path / document["files"][0]
    assert list(config_file.rows_of(path)) == ["1"]
    assert [row["m"] for row in json.loads(moe_files.evidence_of(path).read_bytes())["rows"]] == [1]


def test_a_part_of_the_rows_never_takes_the_place_of_rows_that_cannot_be_kept(tmp_path, capfd):
    task = tuning.Task(load("sglang"), LAYER, (1, 8), "uniform")
    one = tuning.space.config_of("sglang", dict.fromkeys(tuning.space.PARAMETERS, 16))
    runner = SimpleNamespace(device=INTERPRETER, environment=None)
    rows = [tuning.Row(m, tuning.TUNED, (one, one), 1.0) for m in task.ms]
    paths = moe_files.write(tmp_path, task, rows, runner, in_part=False)
    changed = one.replace(BLOCK_SIZE_N=32)
    assert moe_files.write(tmp_path, task, [tuning.Row(1, "", (changed, changed), 1.0)], runner, in_part=True) == paths
    # The row of the M that was not played is measured alike, and stays.
    assert [row["BLOCK_SIZE_N"] for row in config_file.rows_of(paths[0]).values()] == [32, 16]
    capfd.readouterr()
    proof = moe_files.evidence_of(paths[1])
    proof.write_text(proof.read_text().replace("uniform", "zipf"))
    before = {path: path.read_bytes() for path in (*paths, *map(moe_files.evidence_of, paths))}
    assert moe_files.write(tmp_path, task, rows[:1], runner, in_part=True) == []
    assert {path: path.read_bytes() for path in before} == before
    assert f"{paths[1]} stays as it was: it has rows for M 8, and no evidence" in capfd.readouterr().err
    assert moe_files.write(tmp_path, task, rows[:1], runner, in_part=False) == paths
    assert "dropped the rows that it had for M 8:" in capfd.readouterr().err


def test_a_row_takes_what_was_fastest_in_both_gemms_together(monkeypatch):
    task = tuning.Task(load("sglang"), LAYER, (2,), "uniform")
    default, ours = (
        tuning.space.config_of("sglang", {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1})
        for m in (16, 32)
    )
    times = {"gate_up": {default: 10.0, ours: 12.0}, "down": {default: 10.0, ours: 5.0}}

    class Runner:
        device = INTERPRETER

        def compile(self, todo):
            assert len(list(todo)) == 4

        def play(self, problem, configs):
            played = times[problem["gemm"]]
            return FinalsPlayed({one.digest: [played[one]] * 3 for one in configs}, {})

    monkeypatch.setattr(tuning, "own", lambda *_: {tuning.DEFAULT: (default, default)})
    (row,) = tuning.play(task, {2: [(ours, ours)]}, Runner())
    assert (row.origin, row.configs, row.us * tuning.DRAWS) == (tuning.TUNED, (ours, ours), 17.0)
    assert row.ratios == pytest.approx({tuning.DEFAULT: 20 / 17, tuning.TUNED: 1.0})
    assert row.gain == pytest.approx(20 / 17)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "type them, or --model CONFIG.json"),
        ((*SIZES, "--tp", "5"), "does not divide by tp 5"),
        ((*SIZES, "--dtype", "int3"), "expected one of bf16, fp16, fp8_w8a8, int8_w8a16, int4_w4a16"),
        ((*SIZES, "--dtype", "int4_w4a16", "--group-size", "64"), "hidden is 32, which does not divide into groups of"),
        ((*SIZES, "--dtype", "fp8_w8a8", "--block-shape", "128,128"), "does not divide into blocks of 128"),
        ((*SIZES, "--block-shape", "128"), "--block-shape 128,128"),
        ((*SIZES, "--m", "1-8"), "expected integers from 1 on"),
        ((*SIZES, "--m", "8" * 5000), "expected integers from 1 on"),
        ((*SIZES, "--dtype", "fp8_w8a8", "--block-shape", "32x32"), "such as 128,128"),
        ((*SIZES, "--dtype", "fp8_w8a8", "--block-shape", "64,64"), "--block-shape of the weights, of sizes up to 32"),
        ((*SIZES, "--zero-points"), "leave --zero-points out, or type --dtype int4_w4a16"),
        ((*SIZES, "--group-size", "32"), "leave --group-size out"),
        ((*SIZES[:4], *SIZES[6:]), "no --intermediate given: type it, or"),
        ((*SIZES, "--routing", "foo"), "there is no routing foo: expected uniform, zipf or a file of JSON"),
        ((*SIZES, "--out", "llama.json"), "llama.json is not a folder"),
        ((*SIZES, "--routing", "ids.json"), "token 1 goes to expert 4: expected 0 to 3"),
        (("--model", "llama.json"), "a llama model has no experts"),
        (("--model", "none.json"), "none.json"),
        (("--model", "pruned.json"), "layers of this mixtral model differ in their experts (intermediate)"),
        (("--model", "pruned.json", *SIZES[4:], "--tp", "5"), "does not divide by tp 5"),  # its sizes are typed
        (("--model", "seeing.json"), "(intermediate): expected one size: add --intermediate of a layer"),
        (("--model", "gemma.json"), "no experts with a top_k known here (none of num_experts_per_tok, "),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(words, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama.json").write_text('{"model_type": "llama"}')
    (tmp_path / "ids.json").write_text("[[0, 1], [3, 4]]")
    pruned = {"model_type": "mixtral", "per_layer_config": {"0": {"intermediate_size": 96}}}
    (tmp_path / "pruned.json").write_text(json.dumps(pruned))
    (tmp_path / "seeing.json").write_text('{"model_type": "ernie4_5_vl_moe"}')  # experts of two kinds
    (tmp_path / "gemma.json").write_text('{"model_type": "gemma4_text", "num_experts": 8, "moe_intermediate_size": 32}')
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as ended:
        main(["moe", "--for", "vllm", *WHERE, *words])
    err = capfd.readouterr().err
    assert (ended.value.code, len(err.splitlines())) == (ended.value.code or 1, 1), err
    assert said in err
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("package", "architecture", "experts", "more", "said"),
    [
        ("sglang", "DeepseekV3ForCausalLM", 256, {}, "it looks for E=257: add --experts 257 --topk 3"),
        ("sglang", "Glm4MoeLiteForCausalLM", 64, {}, "it looks for E=65: add --experts 65 --topk 3"),
        ("sglang", "DeepseekV3ForCausalLM", 384, {}, None),  # Kimi K2's
        ("sglang", "DeepseekV32ForCausalLM", 256, {}, None),
        ("sglang", "DeepseekV3ForCausalLM", 256, {"experts": 257}, None),
        ("vllm", "DeepseekV3ForCausalLM", 256, {}, None),
    ],
)
def test_experts_that_sglang_fuses_are_told_of(package, architecture, experts, more, said, tmp_path):
    path = tmp_path / "config.json"
    sizes = {"n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 2}
    path.write_text(json.dumps({"model_type": "deepseek_v3", "architectures": [architecture], **sizes}))
    unset = dict.fromkeys(each.name for each in dataclasses.fields(MoeOptions))
    note = MoeOptions(**unset | {"package": package, "model": str(path)} | more).shared_experts_note()
    assert note == said if said is None else said in note


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quant_method": "compressed-tensors"}, "quantized by compressed-tensors: expected fp8, gptq or awq: type"),
        ({"quant_method": "mxfp4"}, "quantized by mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantized by bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, "has desc_act true"),
        ({"quant_method": "gptq", "bits": "four", "group_size": 32}, "has bits 'four': expected 4 or 8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "its quantization_config has group_size -1"),
    ],
)
def test_weights_whose_quantization_has_no_kernel_here_are_refused_unless_a_dtype_is_typed(
    fields, said, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "quantization_config": fields}))
    for more, expected in (((), said), (("--dtype", "int4_w4a16"), "type --group-size 128")):
        with pytest.raises(SystemExit) as ended:
            main(["moe", "--model", "config.json", *more, "--for", "vllm", *WHERE])
        err = capfd.readouterr().err
        assert (bool(ended.value.code), len(err.splitlines())) == (True, 1), err
        assert expected in err


@pytest.mark.long
def test_an_m_that_is_typed_twice_is_one_row(tmp_path):
    code, out, err = run(tmp_path, *SIZES, "--m", "2,1,2", "--for", "sglang", "--play-only", "--json")
    assert code == 0, err
    assert "timing 2 rows" in err
    assert [row["m"] for row in json.loads(out)["rows"]] == [2, 1]


def test_a_budget_that_ends_before_anything_is_tuned_writes_no_file_and_says_which_rows(tmp_path):
    code, out, err = run(tmp_path, *SIZES, "--m", "1,8", "--for", "vllm", "--time-budget", "0.001s")
    assert (code, out, list(tmp_path.glob("out/*"))) == (1, "", [])
    assert "the time budget is spent: not tuned: M 1, 8;" in err


@pytest.mark.parametrize(
    ("words", "since"), [((), (None, None)), (("--fresh",), (None, "ab12")), (("--fresh-since", "cd"), ("cd", "cd"))]
)
def test_both_sweeps_of_sglangs_gemms_share_the_budget_and_what_counts(tmp_path, monkeypatch, capfd, words, since):
    monkeypatch.chdir(tmp_path)
    budgets_s, fresh, fresh_since = [], [], []

    def sweep(_store, problems, _gpus, plan, **_):
        budgets_s.append(plan.time_budget_s)
        fresh.append(plan.fresh)
        fresh_since.append(plan.fresh_since)
        if len(budgets_s) == 2:
            raise KernelError("both have begun")
        time.sleep(1)
        rows = {"gate_up": 16, "down": 32}
        won = {gemm: tuning.space.config_of("sglang", {"BLOCK_SIZE_M": m}) for gemm, m in rows.items()}
        winners = [SimpleNamespace(problem=each, config=won[each["gemm"]]) for each in problems(INTERPRETER)]
        won = [SimpleNamespace(winner=winner) for winner in winners]
        return SimpleNamespace(
            is_spent=False, problems=won, fresh_since=plan.fresh_since or ("ab12" if plan.fresh else None)
        )

    monkeypatch.setattr("tuner.sweep.run.sweep", sweep)
    Store.open("tuner.db").close()
    with pytest.raises(SystemExit):
        main(["moe", *SIZES, "--m", "1", "--for", "sglang", "--time-budget", "10s", *words, *WHERE])
    assert fresh == [bool(words)] * 2
    assert tuple(fresh_since) == since
    assert "both have begun" in capfd.readouterr().err
    first_s, second_s = budgets_s
    assert 0 < first_s <= 10
    assert second_s <= first_s - 1


def test_rows_of_the_file_that_is_there_stay_where_their_evidence_is_of_the_same_and_are_named(tmp_path, capfd):
    path, default = (
        tmp_path / "E=4,N=32.json",
        tuning.space.config_of("vllm", dict.fromkeys(tuning.space.PARAMETERS, 1)),
    )
    path.write_text(config_file.dumps("vllm", LAYER, {1: default, 64: default}))
    evidence = {"routing": "uniform", "rows": [{"m": 64, "us": 1.0}]}
    path.with_suffix(".evidence.json").write_text(json.dumps(evidence))
    kept, proofs, dropped = moe_files.rows_kept(path, {**evidence, "rows": []}, {8: default})
    assert (list(kept), proofs, dropped) == (["64"], evidence["rows"], ["1"])
    moe_files.say_kept(path, kept, dropped)
    said = capfd.readouterr().err
    assert "kept the rows that it had for M 64" in said
    assert "dropped the rows that it had for M 1:" in said
    assert list(json.loads(config_file.dumps("vllm", LAYER, {8: default}, kept))) == ["triton_version", "8", "64"]
    assert moe_files.rows_kept(path, {"routing": "zipf", "rows": []}, {8: default}) == ({}, [], ["1", "64"])
    path.write_text('{"64": {')
    assert moe_files.rows_kept(path, {**evidence, "rows": []}, {8: default}) == ({}, [], [])
    moe_files.say_kept(path, {}, [])
    assert "replaced: no row of what was there can be read" in capfd.readouterr().err


@pytest.mark.long
def test_the_config_of_a_users_file_that_cannot_be_played_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path))
    row = {"BLOCK_SIZE_M": 17, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}
    (tmp_path / config_file.path_of(load("vllm"), LAYER, INTERPRETER.name)).write_text(json.dumps({"1": row}))
    words = (*SIZES, "--m", "1", "--for", "vllm", "--play-only")
    _, out, _ = run(tmp_path, *words, "--json")
    said = json.loads(out)["rows"][0]["reason"]
    assert said.startswith("the config of vllm's file (vllm 17x32x32 "), said
    assert f"M 1: {said}" in run(tmp_path, *words)[2].splitlines()


@pytest.mark.parametrize(
    "words", [("--trials", "5"), ("--time-budget", "9s"), ("--fresh",), ("--fresh-since", "ab")], ids=str
)
def test_what_tunes_is_refused_where_nothing_is_tuned(words, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["moe", *SIZES, "--m", "1", "--for", "vllm", "--play-only", *words, *WHERE])
    assert ended.value.code == 2
    assert f"{words[0]} is for tuning, and --play-only tunes nothing: leave one out" in capfd.readouterr().err


@pytest.mark.parametrize("content", ['{"1": ', '{"1": {"num_warps": 4}}'])
def test_a_broken_file_of_the_packages_user_is_one_line_that_names_it(content, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path))
    name = config_file.path_of(load("vllm"), LAYER, INTERPRETER.name)
    (tmp_path / name).write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["moe", *SIZES, "--m", "1", "--for", "vllm", "--play-only", *WHERE])
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tuner: ")]
    assert ended.value.code == 1
    assert len(said) == 1
    assert str(name) in said[0]


@pytest.mark.parametrize(
    ("fields", "sizes", "more"),
    [
        (
            {"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96, "num_local_experts": 4},
            {"experts": 4, "hidden": 64, "intermediate": 96, "top_k": 2},
            {"dtype": "bf16"},
        ),
        (
            {"model_type": "qwen3_moe", "moe_intermediate_size": 768, "intermediate_size": 9, "num_experts": 128},
            {"experts": 128, "hidden": 2048, "intermediate": 768, "top_k": 8},
            {"dtype": "bf16"},
        ),
        (
            {
                "model_type": "deepseek_v3",
                "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
            },
            {"experts": 256, "hidden": 7168, "intermediate": 2048, "top_k": 8},
            {"dtype": "fp8_w8a8", "block_shape": (128, 128)},
        ),
        (
            {
                "model_type": "qwen3_moe",
                "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
            },
            {"experts": 128, "hidden": 2048, "intermediate": 768, "top_k": 8},
            {"dtype": "int4_w4a16", "group_size": 128},
        ),
        (
            {
                "model_type": "qwen3_moe",
                "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},
            },
            {"experts": 128, "hidden": 2048, "intermediate": 768, "top_k": 8},
            {"dtype": "int4_w4a16", "group_size": 64, "zero_points": True},
        ),
        (
            {"model_type": "nemotron_h", "n_routed_experts": 64, "hidden_size": 4096, "moe_latent_size": 1024},
            {"experts": 64, "hidden": 1024, "intermediate": 7688, "top_k": 2},
            {"dtype": "bf16"},
        ),
        (
            {"model_type": "gemma4_text", "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
            {"experts": 128, "hidden": 2304, "intermediate": 704, "top_k": 8},
            {"dtype": "bf16"},
        ),
        (
            {
                "model_type": "hunyuan_v1_moe",
                "num_experts": 64,
                "intermediate_size": 3072,
                "moe_intermediate_size": [1536] * 32,
                "moe_topk": [8] * 32,
            },
            {"experts": 64, "hidden": 4096, "intermediate": 1536, "top_k": 8},
            {"dtype": "bf16"},
        ),
    ],
)
def test_a_hugging_face_config_says_the_sizes_of_its_experts(fields, sizes, more, tmp_path):
    from tuner.moe import model

    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert model.sizes(str(tmp_path)) == sizes
    assert model.quantization(str(tmp_path)) == more


@pytest.mark.parametrize(
    ("name", "layer", "file"),
    [
        ("vllm", Layer(8, 4096, 14336, 2), "E=8,N=14336,device_name=NVIDIA_H200.json"),
        ("vllm", Layer(8, 4096, 14336, 2, "fp8_w8a8", tp=2), "E=8,N=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"),
        (
            "vllm",
            Layer(256, 7168, 2048, 8, "fp8_w8a8", (128, 128), tp=8),
            "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        ),
        (
            "vllm",
            Layer(16, 8192, 24576, 2, "int8_w8a16", tp=8, group_size=128),
            "E=16,N=3072,device_name=NVIDIA_H200,dtype=int8_w8a16.json",
        ),
    ],
)
def test_files_that_ship_for_an_h200_are_found_by_their_own_names(name, layer, file):
    assert str(config_file.path_of(load(name), layer, "NVIDIA H200")) == file
    configs = config_file.read(load(name), layer, "NVIDIA H200")
    assert config_file.nearest(configs, 17) == configs[16]
