"""The `swap_ab` kernel: computes the transposed output, so that B's columns fill the tensor cores' 64 rows.

It is for few rows of A. A config is in terms of the problem (BLOCK_SIZE_M rows of A), while the device sees exchanged
operands and stores the tile transposed. With a SPLIT_K above 1, sums are split as in `split_k`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands, exchanged
from tuner.kernels.cost import calibration
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.model import Candidates
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.gemm import splitting, sums
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.pointer import spec as pointer
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.kernels.gemm.tma import spec as tma
from tuner.kernels.space import refinements, tile_resources, tile_rules
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

NAME = "swap_ab"
VERSION = 2
_OPTIONS = (refinements.WAVES_PER_EU, refinements.PDL_TRIGGER, refinements.PREFETCH_KIB)
_MOST_ROWS = 256
_SHORTEST = 32
"""The least BLOCK_SIZE_K."""
_ROWS = (16, 32, 64, 128)
"""Rows of A in a default's tile, but of what Hopper's wgmma does not take as it is stored: of that 8 as well (decision
160). Before Triton 3.9, fewer rows are multiplied without wgmma and tcgen05."""


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    launch = tma.tma_launch if splitting.by_tma(config) else pointer.pointer_launch
    return (launch(operands.exchanged(), exchanged_tile(config), exchanged=True),)


@functools.lru_cache(maxsize=65536)
def exchanged_tile(config: Config) -> Config:
    """The config of the transposed output, which the device computes: the tile's sides are exchanged."""
    return config.replace(BLOCK_SIZE_M=config["BLOCK_SIZE_N"], BLOCK_SIZE_N=config["BLOCK_SIZE_M"])


def view(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """A config and its problem as the device computes them."""
    return exchanged_tile(config), exchanged(problem)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := pointer_space.supports(problem, device):
        return reason
    if problem.m > _MOST_ROWS:
        return f"M is {problem.m}: beyond {_MOST_ROWS} rows of A fill the tensor cores themselves"
    if problem.k <= _SHORTEST // 2 and not device.is_interpreter:
        return f"K is {problem.k}: a step along K has {_SHORTEST} elements, half of them would be padding"
    return None if problem.n >= 64 else f"N is {problem.n}: a tile has 64 columns"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    axes, refine = _axes(problem, device), refinements.of_splits
    return SearchSpace(NAME, problem, device, axes, RULES, expand=_expand, options=_OPTIONS, refine=refine)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values, except that `splitting.expand` finds SPLIT_K and num_stages for each tile."""
    ways: tuple[Value, ...] = splitting.loads(problem, device)
    if device.is_interpreter:
        tile: dict[str, tuple[Value, ...]] = {"BLOCK_SIZE_M": (32,), "BLOCK_SIZE_N": (64,), "BLOCK_SIZE_K": (32,)}
        splits = (sums.family_parts(problem),) if problem.invariant else (1, 2)
        return {**tile, "LOADS": ways, "SPLIT_K": splits, "num_stages": (1,), "num_warps": (4,)}
    return {
        # Fewer than 16 rows are multiplied without wgmma, so in another order than an invariant family's.
        "BLOCK_SIZE_M": (8, *_ROWS) if problem.m <= 8 and not problem.invariant else _ROWS,
        "BLOCK_SIZE_N": (64, 128, 256),
        "num_warps": (4, 8),
        "BLOCK_SIZE_K": (_SHORTEST, 64, 128, 256, 512),
        "LOADS": ways,
        "SPLIT_K": (sums.family_parts(problem),),
        "num_stages": (1,),
        **tile_rules.overlap(device),
        **splitting.amd_axes(device),
    }


def default_config(problem: Problem, device: Device) -> Config:
    """The candidate with the least estimated time; where no calibration speaks, of those that mostly win elsewhere."""
    estimate, tied = (functools.partial(of, problem=problem, device=device) for of in (estimate_us, tie_break))

    def best(configs: SearchSpace) -> Config | None:
        return configs.best(estimate, ties=tied, among=corrected(_shortlist(configs, problem, device), problem, device))

    tried = space(problem, device)
    axes = splitting.formula_axes(problem, device)
    if calibration.applies(problem, device):
        lengths = tried.narrowed(BLOCK_SIZE_K=axes["BLOCK_SIZE_K"])
        found = best(lengths)
        return lengths.smallest() if found is None else lengths.refined(found, estimate)
    rows = (8, *_ROWS) if device.features.wgmma and not tile_resources.suits_wgmma(problem) else _ROWS
    promising = tried.narrowed(**axes, BLOCK_SIZE_M=rows)
    fastest = [best(promising)]
    if splitting.loads(problem, device)[-1] == "tma":
        # TMA is slow where its boxes hang over the last row, and where sums are split (`cost.tiled`).
        line = (128 // dtype.ITEMSIZE[problem.a_dtype],)
        fastest.append(best(tried.narrowed(BLOCK_SIZE_M=(64, 128), BLOCK_SIZE_K=line, LOADS=("pointer",))))
    ranked = sorted((one for one in fastest if one is not None), key=lambda config: (estimate(config), tied(config)))
    return ranked[0] if ranked else promising.smallest()


def order(config: Config, problem: Problem, device: Device) -> sums.Order:
    """How a config sums what the device computes, which is the transposed output."""
    return sums.of_tile(exchanged_tile(config).replace(SWAP_AB=True), exchanged(problem), device)


def tie_break(config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """The sort key of configs that take equally long: `splitting.tie_break` of the exchanged tile, then no trigger."""
    early = refinements.PDL_TRIGGER not in config
    return *splitting.tie_break(*view(config, problem), device), early


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, calibrated."""
    return estimates_us((config,), problem, device)[config]


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs."""
    return corrected({config: terms(config, problem, device) for config in configs}, problem, device)


def corrected(models: Mapping[Config, Terms], problem: Problem, device: Device) -> dict[Config, float]:
    """The estimates of kernels that exchange their operands, corrected by the calibration."""
    estimated = [(one, exchanged_tile(config)) for config, one in models.items()]
    return dict(zip(models, calibration.of_tiles(estimated, exchanged(problem), device, exchanged=True), strict=True))


def _shortlist(tried: SearchSpace, problem: Problem, device: Device) -> dict[Config, Terms]:
    """The configs whose estimate by the cost model is near the least one, with the model's terms."""

    def tiles() -> Iterator[Candidates]:
        for point in tried.points():
            inner, transposed = view(point, problem)
            tile = tile_of(Sides.of(inner), _loop(inner), transposed, device)
            splits = splitting.splits_of(inner, transposed, device)
            yield Candidates(point, tile, splits, functools.partial(_variants, point, problem=problem, device=device))

    return cost.near_least(tiles())


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms of what the device computes."""
    return cost.terms(*view(config, problem), device, _loop(config))


def _loop(config: Config) -> Loop:
    return Loop(splitting.by_tma(config), exchanged=True)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block."""
    return splitting.shared_bytes(*view(config, problem), device)


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    for splits in splitting.splits_of(*view(config, problem), device):
        yield from (config.replace(**parameters) for parameters in _variants(config, splits, problem, device))


def _variants(config: Config, splits: int, problem: Problem, device: Device) -> Iterator[dict[str, Value]]:
    """Yield a tile's remaining parameters for a number of splits: num_stages, and when the next kernel starts."""
    inner, transposed = view(config, problem)
    starts_late = splits == 1 and _starts_late(inner, transposed, device)
    for stages in splitting.depths_of(inner, splits, transposed, device):
        parameters: dict[str, Value] = {"SPLIT_K": splits, "num_stages": stages}
        yield parameters
        if starts_late:
            yield {**parameters, refinements.PDL_TRIGGER: refinements.AFTER_LAST_STEP}


def _starts_late(inner: Config, transposed: Problem, device: Device) -> bool:
    """Whether a search also tries to let the next kernel start only after the last step along K, for unsplit sums.

    The tile and the problem are as the device computes them. With loads by TMA, such a start took 0.85 to 1.00 of the
    time on an H200 (measured in November 2026 with Triton 3.6). In more than two waves, the last programs start late
    anyway.
    """
    tiles_m, tiles_n, _ = tile_resources.tile_counts(inner, transposed)
    few = tiles_m * tiles_n <= 2 * device.sm_count
    return few and splitting.by_tma(inner) and bool(inner.get("launch_pdl", False))


RULES = (
    tile_rules.parameters(_axes, _OPTIONS),
    *(splitting.on_view(view, rule) for rule in (*splitting.RULES, *tile_rules.OF_DOTS, tile_rules.waves)),
)

SOURCES = (*pointer.SOURCES, *tma.SOURCES, program, exchanged_tile, Operands.exchanged)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    estimates_us=estimates_us,
    sources=SOURCES,
    runtime_parameters=("SPLIT_K",),
    order=order,
    exchanges=True,
)
