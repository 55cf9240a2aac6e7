"""Tunes a layer of experts, and compares the tuned configs with those that the package would use without them.

A row is one M. vLLM's rows have one config for both GEMMs. SGLang's have one for each, with equal BLOCK_SIZE_M, because
both GEMMs read the same sorted tokens. A row ships the configs that were fastest in paired rounds: the tuned ones,
those of the package's own file, or its default.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.errors import KernelError, one_line
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.moe import config_file, kernel, space
from tuner.moe.layer import DRAWS, Layer
from tuner.moe.package import Package
from tuner.problem import Problem
from tuner.store.records import Winner
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

TUNED, FILE, DEFAULT = "tuned", "file", "default"
NOISE = 0.01
"""A row counts as faster than the package's own if it is faster by more than this share."""

Configs = tuple[Config, ...]
"""One config for each of a row's problems."""
Sweep = Callable[[Callable[[Device], Sequence[Problem]], Mapping[Problem, Sequence[Config]]], Sequence[Winner]]
"""Tunes problems, for which it takes suggested configs, and returns their winners."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to tune.

    Attributes:
        package: whose kernel.
        layer: the layer on one rank.
        ms: numbers of tokens, each once.
        routing: its name, see `tuner.moe.routing`.
    """

    package: Package
    layer: Layer
    ms: tuple[int, ...]
    routing: str

    def problems(self, m: int) -> tuple[Problem, ...]:
        """Return the problems of a row."""
        return self.layer.problems(self.package.name, m, self.routing)


@dataclass(frozen=True, slots=True)
class Row:
    """The configs that ship for one M.

    Attributes:
        m: tokens.
        origin: where its configs are from: "tuned", "file" (the package's) or "default".
        configs: one for each of the row's problems.
        us: microseconds of the layer's GEMMs for one draw of the routing.
        ratios: by origin, the time of other configs over its own in paired rounds; those that failed are left out.
        reason: why it has no configs, or why those of the package's file were not played; otherwise "".
    """

    m: int
    origin: str
    configs: Configs
    us: float
    ratios: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def gain(self) -> float:
        """The time of the configs that the package would use without our file, over this row's time."""
        return 1.0 if self.origin in (FILE, DEFAULT) else self.ratios.get(FILE, self.ratios.get(DEFAULT, 1.0))


def tuned(task: Task, sweep: Sweep, earlier: Callable[[Device], Sequence[Winner]]) -> dict[int, list[Configs]]:
    """Tune all rows and return their configs by M, several where one BLOCK_SIZE_M has to be chosen for two GEMMs.

    Args:
        task: what to tune.
        sweep: tunes problems.
        earlier: returns a device's winners, of other versions too, which are tried first.
    """
    suggested: dict[Problem, list[Config]] = {}

    def problems(device: Device) -> list[Problem]:
        rows = {m: task.problems(m) for m in task.ms}
        earlier_winners = earlier(device)
        for m, row in rows.items():
            for problem, configs in zip(row, zip(*own(task, m, device).values(), strict=True), strict=True):
                before = [winner.config for winner in earlier_winners if winner.problem == problem]
                suggested[problem] = list(dict.fromkeys([*configs, *before]))
        return [problem for row in rows.values() for problem in row]

    winners = {winner.problem: winner.config for winner in sweep(problems, suggested)}
    settled: dict[int, list[Configs]] = {}
    open_rows: dict[int, list[Configs]] = {}
    for m in task.ms:
        row = [winners.get(problem) for problem in task.problems(m)]
        configs = tuple(config for config in row if config is not None)
        if len(configs) == len(row):
            sizes = {config["BLOCK_SIZE_M"] for config in configs}
            (settled if len(sizes) == 1 else open_rows).setdefault(m, []).append(configs)
    return settled | _agreed(task, sweep, open_rows)


def _agreed(task: Task, sweep: Sweep, rows: Mapping[int, Sequence[Configs]]) -> dict[int, list[Configs]]:
    """Tune each GEMM of rows for the BLOCK_SIZE_M of the other's winner; return the pairs of configs that share it."""
    if not rows:
        return {}
    pinned: dict[tuple[int, str], Problem] = {}
    for m, ((gate_up, down),) in rows.items():
        for gemm, other in (("gate_up", down), ("down", gate_up)):
            block_m = other.integer("BLOCK_SIZE_M")
            pinned[m, gemm] = task.layer.problem(task.package.name, m, gemm, task.routing, block_m)
    winners = {winner.problem: winner.config for winner in sweep(lambda _device: list(pinned.values()), {})}
    agreed: dict[int, list[Configs]] = {}
    for m, ((gate_up, down),) in rows.items():
        pairs = [(winners.get(pinned[m, "gate_up"]), down), (gate_up, winners.get(pinned[m, "down"]))]
        agreed[m] = [(one, other) for one, other in pairs if one is not None and other is not None]
    return agreed


def own(task: Task, m: int, device: Device) -> dict[str, Configs]:
    """Return the package's own configs for M tokens: those of its file, if there is one, and its default."""
    problems = task.problems(m)
    configs = {DEFAULT: tuple(kernel.default_config(problem, device) for problem in problems)}
    files = [
        config_file.read(task.package, task.layer, device.name, down=problem["gemm"] == "down") for problem in problems
    ]
    nearest = [config_file.nearest(each, m) for each in files if each]
    if len(nearest) == len(problems):
        block_m = nearest[0]["BLOCK_SIZE_M"]  # SGLang uses that of gate-up for both
        configs[FILE] = tuple(
            space.canonical(config.replace(BLOCK_SIZE_M=block_m), problem, device)
            for config, problem in zip(nearest, problems, strict=True)
        )
    return configs


def play(task: Task, configs_of: Mapping[int, Sequence[Configs]], runner: PairedRunner) -> Iterator[Row]:
    """Compile all candidates, play each row's in paired rounds, and yield the rows with the fastest."""
    candidates: dict[int, dict[str, Configs]] = {}
    for m in task.ms:
        ours = {f"{TUNED} {number}": configs for number, configs in enumerate(configs_of.get(m, ()))}
        candidates[m] = own(task, m, runner.device) | ours
    runner.compile(
        each
        for m, row in candidates.items()
        for configs in row.values()
        for each in zip(task.problems(m), configs, strict=True)
    )
    for m, row in candidates.items():
        yield _row(task, m, row, runner)


def _row(task: Task, m: int, candidates: Mapping[str, Configs], runner: PairedRunner) -> Row:
    played = []
    for at, problem in enumerate(task.problems(m)):
        of_problem = runner.play(problem, list(dict.fromkeys(configs[at] for configs in candidates.values())))
        if isinstance(of_problem, str):
            return Row(m, "", (), 0.0, reason=of_problem)
        played.append(of_problem)
    times: dict[str, list[float]] = {}
    for name, configs in candidates.items():
        figures = [each.times.get(config.digest, []) for each, config in zip(played, configs, strict=True)]
        if all(figures):
            times[name] = [sum(of_round) for of_round in zip(*figures, strict=False)]
    reasons = [why for each in played for why in each.rejected.values()]
    of_file = [
        f"the config of {task.package.name}'s file ({config.label}) was not timed: {one_line(why)}"
        for each, config in zip(played, candidates.get(FILE, ()), strict=False)
        if (why := each.rejected.get(config.digest))
    ]
    if not times:
        return Row(m, "", (), 0.0, reason=reasons[0] if reasons else "nothing was timed")
    # All are compared with the same one, so that the chosen one is no slower than any other.
    base = next(iter(times.values()))
    relative = {name: finals.ratio(figures, base) for name, figures in times.items()}
    best = min(relative, key=lambda name: relative[name])
    # Where the fastest is what the package would use anyway, the row says so.
    chosen = next((name for name in (FILE, DEFAULT) if candidates.get(name) == candidates[best]), best)
    ratios: dict[str, float] = {}
    for name in times:
        origin, ratio = name.split(" ", maxsplit=1)[0], relative[name] / relative[best]
        ratios[origin] = min(ratio, ratios.get(origin, ratio))
    origin = chosen.split(" ", maxsplit=1)[0]
    return Row(m, origin, candidates[best], statistics.median(times[best]) / DRAWS, ratios, next(iter(of_file), ""))


def check(rows: Sequence[Row]) -> None:
    """Raise KernelError where no row can ship."""
    if not any(row.configs for row in rows):
        raise KernelError(f"no config of any row runs, for M {rows[0].m}: {rows[0].reason}")
