"""Families that overlap in every way, decided in another order than they are stored, and what the view shows."""

from __future__ import annotations

import random
from dataclasses import replace

from sqlalchemy import text, update

from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.lookup import families
from tuner.problem import Problem
from tuner.problem.family import Family, Range
from tuner.store import models
from tuner.store.records import KernelVersion, Outcome, State, Trial, Verdict
from tuner.store.store import Store

Shown = tuple[str, str, int, int, int, int]
"""A row of the view: device, Triton, N, M, the first and the last M."""

KERNEL = KernelVersion("matmul", "pointer", 1, "a0")
CONFIG = Config("pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, num_stages=3, num_warps=4)
ENVIRONMENT = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.65.06", "3.11.2")
DEVICES = (KNOWN["sm_90"], KNOWN["sm_80"])
KEYS = 60


def fill(store: Store) -> None:
    """Store one to four families of each of many keys, by several runs, at random times, and winners of their rows."""
    chance = random.Random(7)
    newer = replace(ENVIRONMENT, triton="3.8.0")
    here, there = DEVICES
    places = [(here, ENVIRONMENT), (here, newer), (here, ENVIRONMENT), (there, ENVIRONMENT), (here, newer)]
    runs = [store.begin_run(*place, argv=[], host="") for place in places]
    with store.in_one_transaction():
        for n in range(1, KEYS + 1):
            group = Problem(1, n, 64, dtype="bf16", layout="nt")
            for run in sorted(chance.sample(range(len(runs)), chance.randint(1, 4))):
                found = Family(group, _ranges(chance))
                for row_m in {each.row_m for each in found.ranges}:
                    problem = found.at(row_m)
                    store.record(runs[run], [Trial(problem, CONFIG, KERNEL, Outcome(State.COMPLETE, median_us=20.0))])
                    store.decide(runs[run], problem, KERNEL, Verdict(CONFIG, 20.0, None, None, (CONFIG,)))
                store.record_family(runs[run], found)
    with store._writing() as connection:
        for number in connection.execute(text("SELECT family_id FROM family")).scalars().all():
            at = f"2026-01-{chance.randint(1, 9):02}T12:00:00Z"  # some at once: then the number decides
            connection.execute(update(models.family).where(models.family.c.family_id == number).values(decided_at=at))


def _ranges(chance: random.Random) -> tuple[Range, ...]:
    lasts = sorted(chance.sample(range(2, 60), chance.randint(1, 6)))
    firsts = [chance.randint(1, lasts[0]), *(last + 1 for last in lasts)]
    return tuple(
        Range(first, last, chance.randint(*chance.choice(((first, last), (1, 60)))), "measured")
        for first, last in zip(firsts, lasts, strict=False)
    )


def expected(store: Store) -> list[Shown]:
    """What lookups make of it: each winner with each range of Ms that it serves."""
    found: list[Shown] = []
    for device in DEVICES:
        served = families.served(each.family for each in store.families(device_slug=device.slug))
        for winner in store.winners(device_slug=device.slug):
            m = winner.problem.m
            for _, held in served.get(winner.problem, [(None, Range(m, m, m, "measured"))]):
                found.append((device.slug, winner.environment.triton, winner.problem.n, m, held.first_m, held.last_m))
    return sorted(found)


def shown(store: Store) -> list[Shown]:
    """What the view shows."""
    with store._reading() as connection:
        found = connection.execute(text("SELECT device, triton, n, m, first_m, last_m FROM tuned_gemm")).all()
    return sorted((row.device, row.triton, row.n, row.m, row.first_m, row.last_m) for row in found)
