"""Others' tuned files, read for problems worth tuning and configs worth trying. Their figures are never taken.

Two kinds are known. vLLM's and SGLang's files of block-scaled fp8 name configs of a Triton kernel, which ours can try.
AITER's tables of tuned GEMMs (aiter/configs/*.csv) name kernels in assembly and C++, so only their problems are of use.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import files
from tuner.errors import ProblemError, TableError, TunerError
from tuner.kernel.config import Config
from tuner.lookup.database import MAGIC
from tuner.problem import Problem
from tuner.problem import suite as suites
from tuner.tables import vllm
from tuner.tables.importing.candidates import Candidate

_NAME = re.compile(
    r"(?P<experts>E=\d+,)?N=(?P<n>\d+)(,K=(?P<k>\d+))?,device_name=(?P<device>[^,]+?)(,dtype=(?P<dtype>\w+))?"
    r"(,block_shape=\[(?P<block_n>\d+), ?(?P<block_k>\d+)\])?(,.*|_down)?\.json"
)
_COLUMNS = ("m", "n", "k", "dtype", "layout", "out_dtype", "epilogue", "scaling", "group")
EXPECTED = (
    "tables that `tuner export` wrote, a folder or an archive of them (zip, tar), N=...,K=...,device_name=...,"
    "dtype=fp8_w8a8,block_shape=[128,128].json of vLLM or SGLang, or a CSV file of AITER's tuned GEMMs"
)
"""What `tuner import` takes."""
_TRUE = ("true", "1")
_AMD_STAGES = 2
"""Stages of a config without them: Triton's default on AMD, where alone such files are (HIPOptions.num_stages)."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What one file held.

    Attributes:
        source: the file's name.
        project: "vllm" (SGLang's too) or "aiter".
        problems: each once, in the file's order.
        candidates: configs for some of them.
        left_out: why rows were left out, and how many for each reason.
    """

    source: str
    project: str
    problems: tuple[Problem, ...]
    candidates: tuple[Candidate, ...]
    left_out: Mapping[str, int]


def suite(found: Iterable[Imported]) -> str:
    """The text of a suite (docs/suites.md) of every problem that was found; the projects are its groups."""
    lines = dict.fromkeys(
        f"{p.m},{p.n},{p.k},{p.a_dtype},{p.layout},{p.out_dtype},{p.epilogue},{p.scaling},{one.project}"
        for one in found
        for p in one.problems
    )
    head = ["# Problems that others tuned, by `tuner import`: nothing of this was measured here.", ",".join(_COLUMNS)]
    return "\n".join([*head, *lines, ""])


def read(path: Path) -> Imported:
    """Read one file; rows that cannot be meant for us are left out and counted."""
    files.check_regular(path, "file", error=TableError)
    if not path.exists():
        raise TableError(f"{path} is not there: expected {EXPECTED}: name one")
    content = files.read_bytes(path, "file", error=TableError)
    if content.startswith(MAGIC):
        typed = shlex.join(["tuner", "merge", "tuner.db", str(path)])
        raise TableError(f"{path} is a database, which is merged into another: type for instance {typed}")
    try:
        text = content.decode()
    except UnicodeDecodeError as e:
        raise TableError(f"{path}: not text: expected {EXPECTED}: name another") from e
    if path.suffix == ".csv":
        return _read_csv(path, text)
    found = _NAME.fullmatch(path.name)
    if found is None:
        raise TableError(f"{path}: not a file that is known: expected {EXPECTED}: name another")
    return _read_json(path, text, found.groupdict())


def _read_json(path: Path, text: str, name: Mapping[str, str | None]) -> Imported:
    try:
        rows = files.parse_json(text)
    except ValueError as e:
        raise TableError(f"{path}: not JSON ({e})") from e
    if not isinstance(rows, dict):
        raise TableError(f"{path}: expected a JSON object from M to a config")
    if reason := _not_ours(name):
        return Imported(path.name, "vllm", (), (), {reason: len(rows)})
    left_out: Counter[str] = Counter()
    candidates: list[Candidate] = []
    for m, parameters in rows.items():
        try:
            if not m.isdigit():
                raise ValueError("its M is no integer")
            size = (int(m), int(name["n"] or 0), int(name["k"] or 0))
            problem = Problem(*size, dtype="float8_e4m3fn", layout="nt", scaling="block")
            config = _config(parameters)
        except ValueError as e:  # a ProblemError is one
            left_out[str(e)] += 1
        else:
            candidates.append(Candidate(problem, config, str(name["device"]), path.name))
    problems = dict.fromkeys(candidate.problem for candidate in candidates)
    return Imported(path.name, "vllm", tuple(problems), tuple(candidates), left_out)


def _not_ours(name: Mapping[str, str | None]) -> str | None:
    if name["experts"] or name["k"] is None:
        return "it is for a mixture of experts: tune that with `tuner moe` (docs/moe.md says how it is tried)"
    found = f"{name['dtype']} scaled by blocks of {name['block_n']}x{name['block_k']}"
    if name["block_n"] is None:
        found = f"{name['dtype']} without blocks"
    wanted = f"fp8_w8a8 scaled by blocks of {vllm.BLOCK}x{vllm.BLOCK}"
    return None if found == wanted else f"it is for {found}, expected {wanted}"


def _config(parameters: Any) -> Config:
    if not isinstance(parameters, dict):
        raise ValueError(f"expected an object of launch parameters, got {parameters!r:.60}")
    for name, value in parameters.items():
        if name not in vllm.KEYS:
            raise ValueError(f"{name} is no parameter of {vllm.KERNEL}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be an integer, got {value!r:.60}")
    if missing := [name for name in vllm.NEEDED if name not in parameters]:
        raise ValueError(f"{', '.join(missing)} missing")
    if parameters["BLOCK_SIZE_K"] != vllm.BLOCK:
        raise ValueError(f"BLOCK_SIZE_K is {parameters['BLOCK_SIZE_K']}, {vllm.KERNEL} takes {vllm.BLOCK}")
    return Config(vllm.KERNEL, **{"num_stages": _AMD_STAGES, **parameters, **vllm.THEIRS})


def _is_suite(path: Path) -> bool:
    try:
        return bool(suites.load(path))
    except TunerError:
        return False


def _read_csv(path: Path, text: str) -> Imported:
    try:
        reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
        columns, rows = reader.fieldnames or (), list(reader)
    except csv.Error as e:
        raise TableError(f"{path}: not CSV ({e})") from e
    if not {"M", "N", "K"} <= set(columns):
        if _is_suite(path):
            advice = f"to bring tables for it, tuner import triton-tuner --suite {shlex.quote(str(path))} --out DIR"
            raise TableError(f"{path} is a suite, not what others tuned: {advice}")
        found = ", ".join(columns) or "none"
        raise TableError(
            f"{path}: expected the columns M, N and K of AITER's tuned GEMMs, found {found}: name another file"
        )
    left_out: Counter[str] = Counter()
    problems: dict[Problem, None] = {}
    for row in rows:
        try:
            problems[_problem(path, row)] = None
        except ValueError as e:  # a ProblemError is one
            left_out[str(e)] += 1
    return Imported(path.name, "aiter", tuple(problems), (), left_out)


def _problem(path: Path, row: Mapping[str, str | None]) -> Problem:
    """A row's problem. AITER multiplies by weights stored [N, K] everywhere."""
    sizes = [row[name] or "" for name in "MNK"]
    if not all(size.isdigit() for size in sizes):
        raise ProblemError("its M, N and K are no integers")
    m, n, k = (int(size) for size in sizes)
    if "dtype" in row:
        if str(row.get("scaleAB")).lower() in _TRUE:
            raise ProblemError("its operands are scaled in a way that the file does not tell")
        epilogue = "bias" if str(row.get("bias")).lower() in _TRUE else "none"
        out_dtype = row.get("outdtype") or None
        return Problem(m, n, k, dtype=row["dtype"] or "", out_dtype=out_dtype, layout="nt", epilogue=epilogue)
    if "q_dtype_w" in row:
        return Problem(m, n, k, dtype=row["q_dtype_w"] or "", layout="nt", scaling="row")
    if path.name.startswith("a8w8_blockscale"):
        return Problem(m, n, k, dtype="float8_e4m3fn", layout="nt", scaling="block")
    raise TableError(f"{path}: neither a column (dtype, q_dtype_w) nor its name (a8w8_blockscale...) tells the dtype")
