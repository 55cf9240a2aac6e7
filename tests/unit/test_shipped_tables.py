"""The tables that come with triton-tuner are fit to ship, and are asked after everything that somebody chose."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import tuner
from tuner.errors import TableError
from tuner.lookup import device_names, sources, table
from tuner.lookup.sources import GROUP, OWN
from tuner.problem.batches import split
from tuner.tables import shipped
from tuner.tables.verify.finding import Level
from tuner.tables.verify.inspection import inspect

pytest.importorskip("triton", reason="rows are checked against the kernels, which import Triton")
FOLDER = Path(shipped.__file__).parent
TABLES = sorted(FOLDER.glob("*.json"))
PACKAGE = "tuner.tables.shipped"
POINTS = [EntryPoint(OWN, PACKAGE, GROUP)]


@pytest.fixture
def own(no_tables, monkeypatch):
    monkeypatch.setattr(sources, "entry_points", lambda group: POINTS if group == GROUP else [])
    tuner.use(None)


def test_no_row_is_stale_or_refused_or_anything_else_that_verify_warns_of(own):
    found = inspect(OWN)
    assert (found.tables, found.rows > 0) == (len(TABLES), True)
    assert [finding for finding in found.findings if finding.level in (Level.WARNING, Level.ERROR)] == []
    assert [finding.found for finding in found.findings if finding.check == "device"] == []


def test_they_are_small_enough_for_the_wheel():
    assert 0 < sum(path.stat().st_size for path in TABLES) <= 2_000_000


@pytest.mark.usefixtures("no_tables")
def test_their_devices_are_known_without_a_table_of_them():
    for path in TABLES:
        device = table.load(path).device
        assert device_names.named(device.slug, []).slug == device.slug


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_m_of_every_family_is_served_from_there(own, path):
    loaded = table.load(path)
    assert loaded.families
    for family in loaded.families:
        for m in (family.ranges[0].first_m, family.ranges[-1].last_m):
            match = tuner.lookup(family.problem.with_m(m), loaded.device)
            assert match.rule in ("exact", "family")
            assert match.source == f"package {PACKAGE}"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_no_family_is_half_tuned(path):
    """Of several Ms a run makes ranges; of a run that ended before, rows are left that serve these Ms alone."""
    loaded = table.load(path)
    decided = {split(family.problem)[0] for family in loaded.families}
    rows = Counter(key for row in loaded.rows if (key := split(row.problem)[0]) not in decided)
    assert {key: count for key, count in rows.items() if count > 1} == {}


def test_any_other_package_is_asked_before_them(monkeypatch):
    others = [EntryPoint("zebra", "zebra.tuned", GROUP), EntryPoint(OWN, PACKAGE, GROUP)]
    monkeypatch.setattr(sources, "entry_points", lambda group: sorted(others, key=lambda point: point.name))
    assert [package.point.name for package in sources.packages()] == ["zebra", OWN]


def test_who_takes_a_table_takes_an_installed_package_by_its_name(own):
    for name in (OWN, PACKAGE):
        source = sources.named(name)
        assert source.slugs() == ["nvidia-h100-80gb-hbm3-sm90-132", "nvidia-h200-sm90-132"]
        assert source.slugs() == [device.slug for device in source.devices()]
    with pytest.raises(TableError, match="nobody is not there: expected a table, a folder of tables, a package or"):
        sources.named("nobody")


def test_a_name_is_that_of_one_model_before_it_is_a_word_of_several():
    h200, nvl = "nvidia-h200-sm90-132", "nvidia-h200-nvl-sm90-132"
    for name, found in (
        (nvl, [nvl]),
        ("NVIDIA H200", [h200]),
        ("nvidia h200 nvl", [nvl]),
        ("NVL", [nvl]),
        ("h200", [h200, nvl]),
        ("nvidia", [h200, nvl]),
        ("h2", []),
    ):
        assert device_names.matching([h200, nvl], name) == found, name
