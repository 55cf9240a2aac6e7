"""Ranks that see the same choose the same, and one digest says whether they do."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tuner
from tuner.hardware import device as devices
from tuner.hardware.device import KNOWN
from tuner.kernel.config import Config
from tuner.lookup import match_rules, strict
from tuner.problem import Problem

H200 = KNOWN["sm_90"]

RANK = """
import json, random, sys, threading
sys.path.insert(0, sys.argv[1])
import conftest
from tuner.kernel import registry
from tuner.hardware import device as devices
from tuner.lookup import match_rules
toy = conftest.toy_spec()
registry.serving = lambda problem, device, **_: [toy]
registry.find = lambda op, name, source="": toy
registry.specs = lambda: {("matmul", "toy"): toy}
devices.triton_version = lambda: "3.7.1"
import tuner
sizes = [(m, n, 256) for m in (1, 16, 48, 64, 90, 100, 2000) for n in (512, 1000)]
random.Random(int(sys.argv[2])).shuffle(sizes)
found = {}
def ask(size):
    found["x".join(map(str, size))] = str(tuner.lookup(tuner.Problem(*size), conftest.H200))
threads = [threading.Thread(target=ask, args=(size,)) for size in sizes]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([tuner.digest(conftest.H200), found], sort_keys=True))
"""


def test_ranks_agree_whatever_their_hash_seed_their_threads_and_the_order_of_files(tmp_path, make_row, make_table):
    mine = make_table(make_row(64, block=64), make_row(128, block=32)), make_table(make_row(64, block=16))
    other = make_table(make_row(32, block=16), device=dataclasses.replace(H200, slug="nvidia-h20-sm90-78", sm_count=78))
    written = [("matmul--nvidia-h200-sm90-132.json", mine[0]), ("more--nvidia-h200-sm90-132.json", mine[1])]
    written.append(("matmul--nvidia-h20-sm90-78.json", other))
    printed = []
    for seed, order in ((1, 1), (77, -1)):
        folder = tmp_path / f"mount{seed}"
        folder.mkdir()
        for name, table in written[::order]:
            (folder / name).write_text(table.dumps())
        environment = os.environ | {"PYTHONHASHSEED": str(seed), "TUNER_TABLES": str(folder)}
        environment["TUNER_DB"] = str(tmp_path / f"{seed}.db")
        done = subprocess.run(
            [sys.executable, "-c", RANK, str(Path(__file__).parents[1]), str(seed)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        printed.append(done.stdout.replace(str(folder), "FOLDER"))
    assert printed[0] == printed[1]
    digest, found = json.loads(printed[0])
    assert digest.startswith("sha256:")
    assert "'exact'" in found["64x512x256"]


@pytest.fixture
def digest_of(tmp_path, toy, no_tables, make_table):
    def digest_of(*rows, **parts):
        folder = tmp_path / "tables"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make_table(*rows, **parts).write(folder)
        tuner.use(None)
        tuner.use(folder)
        return tuner.digest(H200)

    return digest_of


def test_whatever_may_change_a_choice_changes_the_digest(digest_of, make_row, make_family, monkeypatch):
    row = make_row(64)
    before = digest_of(row)
    assert digest_of(row) == before
    others = [
        digest_of(),
        digest_of(make_row(64, block=16)),
        digest_of(make_row(65)),
        digest_of(row, make_row(128)),
        digest_of(make_row(64, version=2)),
        digest_of(dataclasses.replace(row, vs_vendor=1.01)),
        digest_of(row, families=(make_family(64),)),
        digest_of(row, families=(make_family(64, first=2),)),
    ]
    digest_of(row)
    others.append(tuner.digest(KNOWN["sm_80"]))
    monkeypatch.setitem(match_rules.failed, (H200.slug, Problem(64, 512, 256), row.config), "out of resources")
    others.append(tuner.digest(H200))
    monkeypatch.setattr(strict, "_on", True)
    others.append(tuner.digest(H200))
    monkeypatch.setattr(devices, "triton_version", lambda: "3.8.0")
    others.append(tuner.digest(H200))
    assert len({before, *others}) == 1 + len(others)


def test_a_source_that_holds_nothing_for_here_and_what_was_asked_before_change_nothing(
    digest_of, make_row, make_table, tmp_path
):
    before = digest_of(make_row(64))
    tuner.lookup(Problem(100, 512, 256), H200)
    (tmp_path / "elsewhere").mkdir()
    make_table(make_row(), device=KNOWN["sm_100"]).write(tmp_path / "elsewhere")
    tuner.use(tmp_path / "elsewhere")
    assert tuner.digest(H200) == before
    assert Config("toy", BLOCK_SIZE_M=32, num_warps=4) == tuner.lookup(Problem(64, 512, 256), H200).config
