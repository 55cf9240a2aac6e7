"""What to try of a kernel: problems that hold every pair of choices once, configs that hold every value of each axis.

A fault of a GEMM shows where two things meet: a mask and a layout, an epilogue and a dtype. All combinations of sizes,
dtypes, outputs, layouts, epilogues and views are millions; all pairs of them fit into a few hundred problems.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from tuner.errors import ProblemError
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.problem import Problem
from tuner.problem.gemm_fields import ACTIVATIONS, LAYOUTS
from tuner.problem.generic_key import Extra

SIZES = (1, 3, 7, 16, 17, 127, 128, 129, 256, 1000, 1024, 4093)
"""Of M, N and K: one, few, odd, just below, at and beyond a tile's edge, many tiles, a prime."""
OPERANDS = (
    ("float16", "float16", None),
    ("bfloat16", "bfloat16", None),
    ("float32", "float32", "ieee"),
    ("float32", "float32", "tf32"),
    ("float32", "float32", "tf32x3"),
    ("float8_e4m3fn", "float8_e4m3fn", None),
    ("float8_e5m2", "float8_e5m2", None),
    ("float8_e4m3fn", "float8_e5m2", None),
    ("float8_e5m2", "float8_e4m3fn", None),
    ("int8", "int8", None),
)
"""Dtypes of A and B, and the precision."""
OUTPUTS = (None, "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes of the output; None is what torch would give."""
EPILOGUES = ("none", "bias", *ACTIVATIONS[1:], *(f"bias+{activation}" for activation in ACTIVATIONS[1:]))
VIEWS = {
    "matmul": ("dense", "shifted", "strided", "odd", "transposed"),
    "bmm": ("dense", "strided"),
    "grouped_mm": ("dense",),
    "fused_experts": ("dense", "shifted", "strided", "odd"),
    "gated_linear": ("dense", "shifted", "strided", "odd"),
    "merged_linear": ("dense", "shifted", "strided", "odd"),
    "vector_add": ("dense", "shifted"),
    "softmax": ("dense", "shifted"),
    "rms_norm": ("dense", "shifted", "strided", "odd"),
}
"""How operands and output lie in memory, by op.

dense: contiguous. shifted: A and B one element off a 16-byte address. strided: rows 16 bytes apart from each other.
odd: rows one element apart. transposed: the output is stored [N, M]. All but dense and strided are unaligned problems.
"""
EXTRAS: dict[str, tuple[tuple[tuple[str, Extra], ...], ...]] = {
    "matmul": (
        (),
        (),
        (("scaling", "scalar"),),
        (("scaling", "row"),),
        (("scaling", "block"),),
        (("fast_accum", True),),
        (("fast_accum", False),),
    ),
    "bmm": ((("batch", 1),), (("batch", 3),)),
    "grouped_mm": ((("groups", 1),), (("groups", 5),)),
    "fused_experts": tuple(
        (("groups", experts), ("top_k", top_k)) for experts, top_k in ((1, 1), (5, 2), (3, 3), (40, 1))
    ),
    "gated_linear": ((),),
    "merged_linear": ((("parts", 2),), (("parts", 3),)),
    "vector_add": ((),),
    "softmax": ((),),
    "rms_norm": ((("eps", 1e-6),), (("eps", 1e-5),), (("eps", 0.5),)),
}
"""What else names a problem of each op, and the values to try; what is there twice is drawn twice as often."""
LAID_OUT = {
    "vector_add": ("nn",),
    "softmax": ("nn", "tn"),
    "rms_norm": ("nn",),
    "fused_experts": ("nt",),
    "gated_linear": ("nt",),
    "merged_linear": ("nt",),
}
"""Layouts of the ops that do not take all of them, and have one dtype.

Those that only move memory have no K and no epilogue, a vector no N either; experts and gated layers have no bias. Of
merged layers the number of parts is drawn.
"""
_DRAWS = 20_000
_KEPT = 6_000
_RIVALS = 30
_CONFIGS = 4
_CONFIG_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Case:
    """One launch to try.

    Attributes:
        problem: what is computed.
        view: how it lies in memory, see VIEWS.
        config: of the kernel it names.
        default: whether that is the kernel's default config.
        seed: of the inputs.
    """

    problem: Problem
    view: str
    config: Config
    default: bool
    seed: int

    def __str__(self) -> str:
        return f"{self.problem} {self.view}, {self.config}"

    @property
    def kernel(self) -> str:
        """The op's and the kernel's name, as one: "matmul/pointer"."""
        return f"{self.problem.op}/{self.config.kernel}"


@dataclass(slots=True)
class Coverage:
    """The cases of one kernel, and which values of its search spaces' axes they hold so far.

    Attributes:
        spec, device: which kernel on which device.
        sizes: of M, of N and of K.
        configs: sampled for each problem, beside the default.
        seed: of everything that is drawn.
        refined: sampled configs have an option each (num_ctas, PREFETCH_KIB ...), where a rule allows one.
        problems: with views, every pair of choices that the kernel serves among them; empty where it serves none.
        faults: problems whose space or default config raised, so far, and what.
        offered, tried: values of axes by name, in the search spaces and in the cases so far.
    """

    spec: KernelSpec
    device: Device
    sizes: tuple[Sequence[int], Sequence[int], Sequence[int]] = (SIZES, SIZES, SIZES)
    configs: int = 1
    seed: int = 0
    refined: bool = False
    problems: list[tuple[Problem, str]] = field(init=False)
    faults: list[tuple[Problem, str]] = field(default_factory=list, init=False)
    offered: set[tuple[str, Hashable]] = field(default_factory=set, init=False)
    tried: Counter[tuple[str, Hashable]] = field(default_factory=Counter, init=False)
    _draw: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._draw = random.Random(f"{self.seed} {self.spec.op} {self.spec.name}")
        self.problems = problems(self.spec, self.device, self.sizes, self._draw)

    def cases(self) -> Iterator[Case]:
        """The default config and `configs` sampled ones for each problem, the most telling problems first."""
        for index, (problem, view) in enumerate(self.problems):
            try:
                default, *sampled = self._configs(problem)
            except Exception as e:  # noqa: BLE001  a third party's formula or space may raise anything: a finding too
                self.faults.append((problem, f"{type(e).__name__}: {e}"))
                continue
            yield Case(problem, view, default, True, index)
            yield from (Case(problem, view, config, False, index) for config in sampled)

    @property
    def untried(self) -> list[str]:
        """Values of axes that no case held: no config with them passed the rules for any problem that was drawn."""
        return sorted(f"{name}={value}" for name, value in self.offered - set(self.tried))

    def _configs(self, problem: Problem) -> list[Config]:
        """The default config, then sampled ones; each counts as tried."""
        space = self.spec.space(problem, self.device)
        default = space.canonicalize(self.spec.default_config(problem, self.device))
        sampled = [self._sample(space) for _ in range(self.configs)]
        configs = list(dict.fromkeys([default, *(config for config in sampled if config is not None)]))
        self.tried.update(pair for config in configs for pair in config.pairs)
        return configs

    def _sample(self, space: SearchSpace) -> Config | None:
        """Of some configs that pass the rules the one whose values were tried least; None where hardly any passes."""
        self.offered.update((name, value) for name, values in space.axes.items() for value in values)
        found: dict[Config, None] = {}
        for _ in range(_CONFIG_DRAWS):
            point = Config(space.kernel, **{name: self._draw.choice(values) for name, values in space.axes.items()})
            expanded = list(space.expand(point, space.problem, space.device))
            config = space.canonicalize(self._draw.choice(expanded)) if expanded else None
            if config is not None and space.rejection(config) is None:
                found[config] = None
            if len(found) == _CONFIGS:
                break
        if self.refined:
            found = dict.fromkeys(one for config in found for one in space.refinements(config) or [config])
        return max(found, key=lambda config: sum(0.5 ** self.tried[pair] for pair in config.pairs), default=None)


def problems(spec: KernelSpec, device: Device, sizes: Sequence[int], draw: random.Random) -> list[tuple[Problem, str]]:
    """Problems with views, all of which the kernel serves, that hold every pair of choices it serves at all."""
    columns = (*_computed(spec.op, sizes), VIEWS[spec.op], EXTRAS[spec.op])
    served: dict[tuple[Hashable, ...], tuple[Problem, str]] = {}
    drawn = set()
    for _ in range(_DRAWS):
        row = tuple([draw.choice(column) for column in columns])
        if row in drawn:
            continue
        drawn.add(row)
        problem = problem_of(spec.op, row)
        if problem is not None and spec.supports(problem, device) is None:
            served[row] = problem, row[-2]
        if len(served) == _KEPT:
            break
    return [served[row] for row in cover(list(served), draw)]


def _computed(op: str, sizes: Sequence[Sequence[int]]) -> tuple[Sequence[Hashable], ...]:
    """The choices of sizes, operands, outputs, layouts and epilogues."""
    if op not in LAID_OUT:
        return (*sizes, OPERANDS, OUTPUTS, LAYOUTS, EPILOGUES)
    if op in ("fused_experts", "gated_linear"):
        return (*sizes, OPERANDS[:5], (None,), LAID_OUT[op], ACTIVATIONS)
    if op == "merged_linear":
        return ((1, 2), *sizes[1:], OPERANDS[:5], (None,), LAID_OUT[op], ("none", "bias"))
    extents = (sizes[0], sizes[2], (1,)) if op in ("softmax", "rms_norm") else (sizes[2], (1,), (1,))
    return (*extents, OPERANDS[:3], (None,), LAID_OUT[op], ("none",))


def problem_of(op: str, row: tuple) -> Problem | None:
    """The problem that one choice from each column describes, None where they exclude each other."""
    m, n, k, (a_dtype, b_dtype, precision), out, layout, epilogue, view, extras = row
    operands = {"a_dtype": a_dtype, "b_dtype": b_dtype, "precision": precision}
    aligned = None if view in ("dense", "strided") else False
    written = {"out_dtype": out, "layout": layout, "aligned": aligned, "epilogue": epilogue}
    extras = {name: _parts(n, value) if name == "parts" else value for name, value in extras}
    try:
        return Problem(m, n, k, **operands, **written, op=op, extras=extras)
    except ProblemError:
        return None


def _parts(n: int, count: int) -> str:
    """N as a sum, the first part the largest: q has more rows than k and v."""
    others = [max(1, n // 6)] * (count - 1)
    return "+".join(map(str, (n - sum(others), *others)))


def cover(rows: list[tuple[Hashable, ...]], draw: random.Random) -> list[tuple[Hashable, ...]]:
    """Few of `rows` that hold every pair of values, of two columns, that all of them hold.

    Greedy: of some rows that hold a missing pair, the one that holds most missing pairs; so the first rows hold many.
    """
    holders: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        for pair in _pairs(row):
            holders[pair].append(index)
    missing = dict.fromkeys(draw.sample(list(holders), len(holders)))
    chosen = []
    while missing:
        holding = holders[next(iter(missing))]
        rivals = draw.sample(holding, min(_RIVALS, len(holding)))
        best = max(rivals, key=lambda index: sum(pair in missing for pair in _pairs(rows[index])))
        chosen.append(rows[best])
        for pair in _pairs(rows[best]):
            missing.pop(pair, None)
    return chosen


def _pairs(row: tuple[Hashable, ...]) -> Iterator[Hashable]:
    return itertools.combinations(enumerate(row), 2)
