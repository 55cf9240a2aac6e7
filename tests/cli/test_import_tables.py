"""`tuner import` of tables: from files, folders and archives, checked, united with what a folder has."""

from __future__ import annotations

import json
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tuner
from tuner.cli import kernel_files
from tuner.entry_points import entry_points
from tuner.hardware.device import KNOWN
from tuner.lookup import sources
from tuner.lookup import table as tables
from tuner.lookup.table_digest import signed_text, unsigned_text
from tuner.problem import Problem

H200, B200 = KNOWN["sm_90"], KNOWN["sm_100"]
BRING = """
import sys
from pathlib import Path
from tuner.tables.importing.tables import bring
print("ready", flush=True)
sys.stdin.readline()
print(bring([Path(sys.argv[1])], Path(sys.argv[2]))[0].new)
"""

pytestmark = pytest.mark.usefixtures("toy", "no_tables")


@pytest.fixture
def folders(tmp_path, make_row, make_table, make_family):
    """An older and a newer folder of tables; the newer one decided a problem of both again."""
    older, newer = tmp_path / "older", tmp_path / "newer"
    older.mkdir()
    newer.mkdir()
    make_table(make_row(16), make_row(64, block=16), families=(make_family(16, 64),)).write(older)
    make_table(make_row(16), device=B200).write(older)
    new = make_table(make_row(64, block=64), make_row(128), families=(make_family(128, first=65),))
    replace(new, date="2026-02-01T12:00:00Z").write(newer)
    return older, newer


def blocks(folder, device=H200) -> dict[int, int]:
    found = tables.load(folder / f"matmul--{device.slug}.json")
    assert found.faults == ()
    return {row.problem.m: row.config["BLOCK_SIZE_M"] for row in found.rows}


def test_imports_at_the_same_time_lose_no_row(start, tmp_path, make_row, make_table):
    processes = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        make_table(*(make_row(4 * m + number + 1) for m in range(300))).write(tmp_path / str(number))
        processes.append(start("-c", BRING, tmp_path / str(number), tmp_path / "out"))
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate() for process in processes] == [("300\n", "")] * 4
    assert len(blocks(tmp_path / "out")) == 1200


def test_an_interrupt_while_kernels_compile_says_what_is_there(run, folders, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed: nothing compiles")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel_files, "_write", interrupted)
    code, out, err = run("import", folders[0], "--out", tmp_path / "out", "--with-kernels")
    said = "the tables are written, but not all of their kernels: the same command compiles what is left"
    assert (code, [line for line in err.splitlines() if line]) == (130, [said, "interrupted"]), out
    assert blocks(tmp_path / "out") == {16: 32, 64: 16}


def test_new_rows_beside_kernels_of_before_are_told(run, folders, tmp_path):
    older, newer = folders
    out = tmp_path / "out"
    assert run("import", older, "--out", out)[2] == ""
    (out / f"matmul--{H200.slug}.kernels").mkdir()
    code, _, err = run("import", newer, "--out", out)
    told = f"{out / f'matmul--{H200.slug}.json'}: 2 new rows beside kernels of before"
    assert (code, err) == (0, f"{told}: to compile theirs too, add --with-kernels\n")
    assert run("import", newer, "--out", out)[2] == "", "none is new"


@pytest.mark.parametrize("kind", ["folder", "zip", "gztar", "files"])
def test_the_newer_row_of_a_problem_stays_whatever_comes_first(run, folders, tmp_path, kind):
    older, newer = folders
    out = tmp_path / "out"
    for folder in (newer, older):
        places = [folder]
        if kind in ("zip", "gztar"):
            places = [shutil.make_archive(str(tmp_path / folder.name), kind, tmp_path, folder.name)]
        if kind == "files":
            places = sorted(folder.iterdir())
        code, said, err = run("import", *places, "--out", out)
        assert (code, err) == (0, "")
    assert f"matmul--{H200.slug}.json: 3 rows, 2 families, 1 row new" in said
    assert blocks(out) == {16: 32, 64: 64, 128: 32}
    assert blocks(out, B200) == {16: 32}
    tuner.use(out)
    for m, rule in ((16, "exact"), (40, "family"), (100, "family"), (129, "default")):
        assert tuner.lookup(Problem(m, 512, 256), H200).rule == rule
    code, said, _ = run("import", older, "--out", out)
    assert "0 rows new" in said


@pytest.fixture
def two_families(tmp_path, make_row, make_table, make_family):
    """A folder of a table with two families, and a suite that names one of them by another M."""
    (tmp_path / "tables").mkdir()
    rows = [make_row(m, n) for n in (512, 1024) for m in (16, 64)]
    tuned = tuple(make_family(16, 64, problem=Problem(1, n, 256)) for n in (512, 1024))
    make_table(*rows, families=tuned).write(tmp_path / "tables")
    make_table(make_row(16, 1024), device=B200).write(tmp_path / "tables")
    (tmp_path / "suite.csv").write_text("m,n,k,dtype,layout\n1-8,1024,256,float16,nn\n")
    return tmp_path / "tables", tmp_path / "suite.csv"


def test_a_suite_and_a_device_name_the_part_that_is_brought(run, two_families, tmp_path):
    folder, suite = two_families
    out = tmp_path / "out"
    code, said, err = run("import", folder, "--suite", suite, "--device", H200.slug, "--out", out)
    assert (code, err) == (0, "")
    assert [path.name for path in out.iterdir()] == [f"matmul--{H200.slug}.json"]
    assert ": 2 rows, 1 family, 2 rows new" in said
    found = tables.load(out / f"matmul--{H200.slug}.json")
    assert {(row.problem.m, row.problem.n) for row in found.rows} == {(16, 1024), (64, 1024)}
    assert [each.problem.n for each in found.families] == [1024]
    code, said, _ = run("import", folder, "--suite", suite, "--out", out, "--device", H200.name)
    assert (code, ": 2 rows, 1 family, 0 rows new" in said, len([*out.iterdir()])) == (0, True, 1)
    code, said, _ = run("import", folder, "--suite", suite, "--out", out)  # what is there stays, and B200's comes
    assert {path.name for path in out.iterdir()} == {f"matmul--{each.slug}.json" for each in (H200, B200)}
    assert code == 0
    assert ": 2 rows, 1 family, 0 rows new" in said


def test_ranges_of_families_that_are_not_named_stay_away_from_rows_that_are_there(
    run, two_families, tmp_path, make_row, make_table
):
    folder, suite = two_families
    (tmp_path / "out").mkdir()
    make_table(make_row(16)).write(tmp_path / "out")
    assert run("import", folder, "--suite", suite, "--device", H200.slug, "--out", tmp_path / "out")[0] == 0
    found = tables.load(tmp_path / "out" / f"matmul--{H200.slug}.json")
    assert {(row.problem.m, row.problem.n) for row in found.rows} == {(16, 512), (16, 1024), (64, 1024)}
    assert [each.problem.n for each in found.families] == [1024]


def test_families_of_the_suite_that_no_table_has_are_told(run, two_families, tmp_path):
    folder, suite = two_families
    with suite.open("a") as file:
        file.writelines(f"{m},{n},256,float16,nn\n" for n in (8, 16, 24, 32) for m in (1, 2))
    code, said, err = run("import", folder, "--suite", suite, "--out", tmp_path / "out", "--json")
    absent = json.loads(said)["absent"]
    assert (code, [each.split()[1].split("x")[1] for each in absent]) == (0, ["8", "16", "24", "32"])
    told = f"{', '.join(absent[:3])}, and 1 more"
    assert err == f"no row of 4 of 5 families of the suite: {told}: `tuner run` tunes them\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--device", "nvidia-h300-sm90-132"),
            "no table of nvidia-h300-sm90-132 there: expected one of nvidia-b200-",
        ),
        (("--device", B200.slug, "--suite", "decode"), f"no row of {B200.slug} is of a family of the suite"),
        (("--suite", "decoder"), "unknown suite 'decoder': known are"),
        (("--suite", "none.csv"), "cannot read the suite none.csv: No such file"),
    ],
)
def test_a_part_that_is_not_there_is_one_line_and_nothing_is_written(run, two_families, tmp_path, arguments, expected):
    code, said, err = run("import", two_families[0], *arguments, "--out", tmp_path / "out")
    assert (code in (1, 2), said, err.count("\n")) == (True, "", 1)
    assert err.startswith(f"tuner: {expected}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--kernel", "mine.py:doubled"), "--kernel names a kernel to compile: add --with-kernels"),
        (
            ("--kernel", "mine.py:doubled", "--with-kernels", "--suite", "decode"),
            "--suite names problems of ops: leave it out to bring the tables of --kernel",
        ),
    ],
)
def test_a_kernel_is_named_to_be_compiled_and_not_beside_a_suite(run, two_families, tmp_path, options, expected):
    code, said, err = run("import", two_families[0], *options, "--out", tmp_path / "out")
    assert (code, said, err) == (2, "", f"tuner: {expected}\n")


@pytest.mark.parametrize("option", [("--suite", "decode"), ("--device", "x"), ("--with-kernels",)])
def test_parts_and_kernels_are_of_tables_alone(run, tmp_path, option):
    if "--with-kernels" in option:
        pytest.importorskip("triton", reason="it compiles by Triton, and asks it first whether it can")
    name = "N=512,K=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    (tmp_path / name).write_text("{}")
    code, _, err = run("import", tmp_path / name, *option, "--out", tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "--suite, --device and --with-kernels are for tables of triton-tuner" in err


def test_rows_of_the_folder_that_cannot_be_read_here_are_not_lost(run, folders, tmp_path):
    older, newer = folders
    path = older / f"matmul--{H200.slug}.json"
    parts = json.loads(path.read_text())
    date, _ = parts.pop("date"), parts.pop("digest")
    parts["rows"][1]["a_dtype"] = "float4"  # as a later triton-tuner may write it
    path.write_text(signed_text(unsigned_text(parts), date))
    before = path.read_bytes()
    code, said, err = run("import", newer, "--out", older)
    assert (code, said, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"tuner: {path}: row 2 cannot be read and would be lost: unknown dtype 'float4'")
    assert err.endswith(": upgrade triton-tuner, or write into another folder\n")
    assert path.read_bytes() == before
    code, said, err = run("import", newer, older, "--out", tmp_path / "out")
    assert (code, err.count("row 2 left out: unknown dtype 'float4'")) == (0, 1)


def test_what_was_edited_cut_short_or_is_no_table_is_one_line_and_nothing_is_written(
    run, folders, tmp_path, make_database, make_row
):
    older, newer = folders
    path = older / f"matmul--{H200.slug}.json"
    path.write_text(path.read_text().replace('"BLOCK_SIZE_M": 16', '"BLOCK_SIZE_M": 24'))
    archive = shutil.make_archive(str(tmp_path / "cut"), "gztar", newer)
    content = (tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty").mkdir()
    (tmp_path / "aiter.csv").write_text("M,N,K,dtype\n16,16,16,bf16\n")
    database = make_database(tmp_path / "tuner.db", make_row(16))
    (tmp_path / "notes.txt").write_text("hello\n")
    empty, cut = (tmp_path / name / path.name for name in ("blank", "half"))
    for folder in (empty.parent, cut.parent):
        folder.mkdir()
    empty.touch()
    cut.write_text(path.read_text()[:900])
    for places, said in (
        ([newer, older], f"{path}: its digest is not that of its rows: it was edited"),
        ([archive], "cut.tar.gz"),
        ([tmp_path / "empty"], "empty holds no table: expected what `tuner export` wrote, or an archive of it"),
        ([newer, tmp_path / "aiter.csv"], "import them one by one"),
        ([newer, tmp_path / "gone.zip"], f"{tmp_path / 'gone.zip'} is not there: expected tables that `tuner export`"),
        (["nope"], "nope is not there: expected tables that `tuner export` wrote, a folder or an archive of them"),
        (["https://x.y/z.tar"], "https://x.y/z.tar is an address: download it first, then name the file"),
        ([tmp_path / "notes.txt"], "notes.txt: not a file that is known: expected tables that `tuner export` wrote"),
        ([empty], f"{empty}: neither a table nor a SQLite database: it is empty: name another, or export it again"),
        ([cut], f"{cut}: a table that is cut short or damaged ("),
        ([newer, database], f"{database} is a database, which is merged into another: type for instance tuner merge"),
    ):
        code, out, err = run("import", *places, "--out", tmp_path / "out")
        assert (code > 0, out) == (True, "")
        assert said in err.splitlines()[-1]
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b'{\n  "forma', b"\x00\xff", b"[]", b"null"], ids=repr)
@pytest.mark.parametrize("kind", ["file", "folder", "zip", "gztar"])
def test_what_is_named_as_a_table_and_is_none_is_one_line_and_nothing_is_written(run, folders, tmp_path, kind, content):
    older, _ = folders
    path = older / f"matmul--{B200.slug}.json"
    path.write_bytes(content)
    place = {"file": path, "folder": older}.get(kind) or shutil.make_archive(
        str(tmp_path / "a"), kind, tmp_path, "older"
    )
    code, out, err = run("import", place, "--out", tmp_path / "out")
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert re.search(f"older/matmul--{B200.slug}.json: (not|neither) a table", err)
    assert not (tmp_path / "out").exists()


def test_what_lies_beside_tables_and_is_not_named_as_one_is_passed_over(run, folders, tmp_path):
    older, _ = folders
    (older / "notes.json").write_text("[]")
    (older / f"._matmul--{B200.slug}.json").write_bytes(b"\x00\x05\x16\x07")  # as macOS adds to archives
    kernels = older / f"matmul--{B200.slug}.kernels"
    kernels.mkdir()
    (kernels / "index.json").write_text("{}")
    for number, place in enumerate((older, shutil.make_archive(str(tmp_path / "a"), "zip", older))):
        code, _, err = run("import", place, "--out", tmp_path / f"out{number}")
        assert (code, err) == (0, "")
        assert len(list((tmp_path / f"out{number}").iterdir())) == 2


def test_the_tables_of_an_installed_package_are_brought_by_its_name(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "entry_points", entry_points)  # those of this environment
    code, _, err = run("import", "triton-tuner", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert run("diff", "triton-tuner", tmp_path / "out")[0] == 0
    (tmp_path / "here" / "triton-tuner").mkdir(parents=True)  # what lies here comes first
    monkeypatch.chdir(tmp_path / "here")
    assert "triton-tuner holds no table" in run("import", "triton-tuner", "--out", tmp_path / "out")[2]


@pytest.fixture
def small_files():
    """Files may have no more than 8 KiB, as on a disk that becomes full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_one_of_several_tables_cannot_be_written_none_is(run, folders, tmp_path, make_row, make_table, request):
    older, out = folders[0], tmp_path / "out"
    assert run("import", older / f"matmul--{B200.slug}.json", "--out", out)[0] == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    large = tmp_path / "large"
    large.mkdir()
    make_table(make_row(32), device=B200).write(large)  # is written first
    make_table(*map(make_row, range(1, 200))).write(large)
    request.getfixturevalue("small_files")
    code, said, err = run("import", large, "--out", out)
    assert (code, said) == (1, "")
    assert err == f"tuner: cannot write {out / f'matmul--{H200.slug}.json'}: File too large: name another place\n"
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("odd", [{"op": "../../evil"}, {"device": replace(H200, slug="../evil")}, {"op": ""}], ids=str)
def test_a_table_is_written_nowhere_but_into_the_folder(odd, run, tmp_path, make_row, make_table):
    path = tmp_path / "table.json"
    path.write_text(replace(make_table(make_row(16)), **odd).dumps())
    (tmp_path / "a" / "matmul--..").mkdir(parents=True)
    code, out, err = run("import", path, "--out", tmp_path / "a")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "is no name of a file: export it again" in err
    assert not [*tmp_path.rglob("*evil*"), *(tmp_path / "a").rglob("*.json")]


@pytest.mark.parametrize("kind", ["zip", "gztar", "xztar"])
def test_a_damaged_archive_is_one_line_that_says_so_wherever_it_is_damaged(run, folders, tmp_path, kind):
    path = Path(shutil.make_archive(str(tmp_path / "tables"), kind, folders[0]))
    content = path.read_bytes()
    middle = content.find(b"PK\1\2") // 2 if kind == "zip" else len(content) // 2
    damaged = content[:middle] + bytes(byte ^ 0x5A for byte in content[middle : middle + 40]) + content[middle + 40 :]
    for odd in (damaged, content[: len(content) // 2], content[:20], b""):
        path.write_bytes(odd)
        code, out, err = run("import", path, "--out", tmp_path / "out")
        assert (code, out, len(err.splitlines())) == (1, "", 1), err
        assert str(path) in err
        assert odd == damaged or (f"cannot read the archive {path}: " in err and "fetch it again" in err), err
        assert not (tmp_path / "out").exists()


def test_a_zip_with_a_damaged_tail_is_called_that(run, folders, tmp_path):
    path = Path(shutil.make_archive(str(tmp_path / "tables"), "zip", folders[0]))
    content = path.read_bytes()
    begin = int.from_bytes(content[-6:-2], "little")  # where the list of its files begins
    path.write_bytes(content[:-6] + (begin + 9999).to_bytes(4, "little") + content[-2:])
    code, out, err = run("import", path, "--out", tmp_path / "out")
    said = "it is damaged or cut short: fetch it again"
    assert (code, out, err) == (1, "", f"tuner: cannot read the archive {path}: {said}\n")


def test_an_encrypted_archive_is_called_that(run, folders, tmp_path):
    path = Path(shutil.make_archive(str(tmp_path / "tables"), "zip", folders[0]))
    content = bytearray(path.read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        for found in re.finditer(re.escape(header), bytes(content)):
            content[found.start() + flags] |= 1
    path.write_bytes(content)
    code, out, err = run("import", path, "--out", tmp_path / "out")
    said = "it is encrypted: unpack it with its password, and name the folder"
    assert (code, out, err) == (1, "", f"tuner: cannot read the archive {path}: {said}\n")


def test_tables_that_another_program_rewrote_are_tables_too(run, folders, tmp_path):
    older, _ = folders
    path = older / f"matmul--{H200.slug}.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4, sort_keys=True))
    assert path.read_text().index(tables.FORMAT) > 1024
    for number, places in enumerate(([path], [older], [shutil.make_archive(str(tmp_path / "a"), "zip", older)])):
        code, _, err = run("import", *places, "--out", tmp_path / f"out{number}")
        assert (code, err) == (0, "")
        assert blocks(tmp_path / f"out{number}") == {16: 32, 64: 16}


def test_rows_that_give_way_to_a_newer_version_of_their_kernel_are_counted(
    run, folders, tmp_path, make_row, make_table
):
    older, out = folders[0], tmp_path / "out"
    assert run("import", older, "--out", out)[0] == 0
    (tmp_path / "next").mkdir()
    make_table(make_row(128, version=2)).write(tmp_path / "next")
    code, said, err = run("import", tmp_path / "next", "--out", out)
    assert code == 0
    assert "1 row, 0 families, 1 row new" in said
    assert err == "2 rows left out: a newer version of their kernel has rows\n"
