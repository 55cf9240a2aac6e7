"""The options of `tuner run`: which go together, and the plan that they make."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.options import OF_SHAPES, check_fresh_since, check_shaped
from tuner.errors import UsageError
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.shard import Shard

if TYPE_CHECKING:
    from tuner.sweep.plan import Plan


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was typed after `tuner run`, an attribute for each option.

    Attributes:
        suites, shapes, kernels, problems, captured: the problems, by `--suite`, `--shape`, `--kernel`, `--problem` and
            `--captured`; each option may be repeated.
        misses: files of `--from-misses`.
        dtype, layout, scaling, precision: of the problems by shape.
        invariant: whether rows must not depend on M.
        widen: whether neighbours of captured configs are tried.
        strategy: a name of `tuner.sweep.strategies.STRATEGIES`: which configs are tried.
        trials: the most configs of a problem, None for as many as the strategy tries.
        time_budget_s: seconds that all of it may take, None for any.
        shard: the part of the problems to tune, None for all.
        seed: of random choices.
        device: what `--device` names.
        ray: the address of a Ray cluster, None for this machine alone.
        mixed: whether the cluster's nodes may differ in their versions.
        db: the database, None for the default.
        fresh: whether to measure again what earlier runs measured.
        fresh_since: a run: whether to measure again what was measured before it. None without.
        dry_run: whether to say only what would be tried.
        as_json: whether to print JSON.
    """

    suites: tuple[str, ...]
    shapes: tuple[str, ...]
    kernels: tuple[str, ...]
    problems: tuple[str, ...]
    dtype: str
    layout: str
    scaling: str
    precision: str | None
    invariant: bool
    misses: tuple[Path, ...]
    captured: tuple[Path, ...]
    widen: bool
    strategy: str
    trials: int | None
    time_budget_s: float | None
    shard: Shard | None
    seed: int
    device: str
    ray: str | None
    mixed: bool
    db: str | None
    fresh: bool
    fresh_since: str | None
    dry_run: bool
    as_json: bool

    @property
    def is_interpreted(self) -> bool:
        """Whether the nodes of a Ray cluster are to use Triton's interpreter."""
        return self.device == "interpreter" or os.environ.get("TRITON_INTERPRET", "0") != "0"

    def check(self, ctx: click.Context) -> None:
        """Refuse options that do not go together; `ctx` tells those that were typed from defaults.

        Raises:
            UsageError: there is no problem, or an option makes no sense beside the others.
        """
        if self.kernels:
            self._check_kernels()
            advice = "type it in --problem, M=8,N=64,K=64,layout=nt for instance"
            check_shaped(ctx, self.shapes, [name for name in OF_SHAPES if name != "dtype"], advice)
        else:
            self._check_lists()
            advice = "a suite says its own, and so does what was captured or missed"
            check_shaped(ctx, self.shapes, OF_SHAPES, advice)
        if self.widen and not self.captured:
            raise UsageError("--widen is for --captured DIR: a kernel of ours says itself what is tried")
        self._check_cluster()
        check_fresh_since(self.fresh_since, self.db)

    def _check_kernels(self) -> None:
        if self.captured:
            raise UsageError(
                "--captured names its kernels itself: leave --kernel out, or tune it by a command of its own"
            )
        if self.shapes:
            raise UsageError("--shape is for GEMMs: name a problem of --kernel by --problem M=4096,N=1024")
        if self.invariant:
            raise UsageError(
                "--invariant is for --suite and --shape: leave it out; in a --problem of an op that has it, type "
                "invariant=true"
            )
        if len(self.kernels) > 1 and (self.problems or self.suites):
            raise UsageError("--problem and --suite name keys of one kernel: several --kernel are for --from-misses")
        if not (self.problems or self.suites or self.misses):
            raise UsageError(
                f"no problem of --kernel {self.kernels[0]} given: name some with --problem M=4096,N=1024, "
                "--suite FILE.csv or --from-misses FILE"
            )

    def _check_lists(self) -> None:
        if self.problems:
            raise UsageError("--problem names a key of a kernel: say which by --kernel my_pkg.my_module:my_kernel")
        listed = self.suites or self.shapes or self.captured
        if not (listed or self.misses):
            raise UsageError(
                "no problem given: name some with --suite demo, --suite FILE.csv, --shape 4096x4096x1024, "
                "--kernel MODULE:NAME --problem M=4096,N=1024, --captured DIR or --from-misses FILE"
            )
        if self.invariant and not listed:
            raise UsageError(
                "--invariant is for --suite and --shape: what was missed says itself whether it is invariant"
            )

    def _check_cluster(self) -> None:
        if self.ray is None:
            if self.mixed:
                raise UsageError("--mixed is for --ray ADDRESS: one machine has one set of versions")
            return
        if self.dry_run:
            raise UsageError("--dry-run looks at this machine: leave out --ray")
        if self.device not in ("auto", "interpreter"):
            raise UsageError(f"--device {self.device} names GPUs of this machine: with --ray each node uses all of its")

    def plan(self, suggested: Mapping[Problem, Sequence[Config]]) -> Plan:
        """Return what a sweep is to do, where `tuner import` suggested these configs."""
        from tuner.sweep.plan import Plan
        from tuner.sweep.strategies import STRATEGIES

        strategy = STRATEGIES[self.strategy]
        if self.widen:  # a winner may stand without the neighbours
            strategy = replace(strategy, revisits=True)
        return Plan(
            strategy=strategy,
            trials=self.trials,
            time_budget_s=self.time_budget_s,
            fresh=self.fresh or self.fresh_since is not None,
            fresh_since=self.fresh_since,
            seed=self.seed,
            suggested=suggested,
        )
