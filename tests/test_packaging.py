"""What is installed is what the project says: version, entry points, names and data files."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from celery.utils.imports import load_extension_class_names

import celery_singlebeat
from tests.support import shop_database

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest depends on it there
    import tomli as tomllib

assert shop_database.SETTINGS  # Django's models can be imported only where it is set up

REPOSITORY = Path(__file__).parents[1]
PACKAGE = Path(celery_singlebeat.__file__).parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
ENTRY_POINTS = [
    (group, name, value)
    for group, points in PROJECT["entry-points"].items()
    for name, value in points.items()
]


def test_the_version_is_the_one_installed():
    assert metadata.version("celery-singlebeat") == celery_singlebeat.__version__


@pytest.mark.parametrize(
    ("group", "name", "value"), ENTRY_POINTS, ids=[f"{g}:{n}" for g, n, _ in ENTRY_POINTS]
)
def test_every_entry_point_is_installed_and_loads(group, name, value):
    """Celery turns a command that fails to import into a warning, so nothing else would tell."""
    (point,) = metadata.entry_points(group=group, name=name)
    assert point.value == value
    assert point.load()


def test_celery_finds_the_scheduler_by_its_short_name():
    schedulers = dict(load_extension_class_names("celery.beat_schedulers"))
    assert schedulers["singlebeat"].startswith("celery_singlebeat.")


def test_every_public_name_is_there():
    assert celery_singlebeat.__all__
    missing = [name for name in celery_singlebeat.__all__ if not hasattr(celery_singlebeat, name)]
    assert missing == []


def test_every_module_that_names_its_public_names_has_them():
    missing = []
    for module in pkgutil.walk_packages([str(PACKAGE)], prefix="celery_singlebeat."):
        imported = importlib.import_module(module.name)
        missing += [
            f"{module.name}.{n}" for n in getattr(imported, "__all__", ()) if not hasattr(imported, n)
        ]
    assert missing == []


def test_the_types_are_announced():
    assert (PACKAGE / "py.typed").is_file()


def test_the_scripts_lie_inside_the_package_and_say_what_they_take():
    scripts = sorted(PACKAGE.rglob("*.lua"))
    assert scripts
    silent = [script.name for script in scripts if not script.read_text().lstrip().startswith("--")]
    assert silent == []


def test_the_scripts_and_the_types_are_not_ignored_by_the_build():
    """hatchling leaves out of wheel and sdist what .gitignore names."""
    ignored = (REPOSITORY / ".gitignore").read_text()
    assert "*.lua" not in ignored
    assert "py.typed" not in ignored


def test_the_changelog_has_a_place_for_what_comes_next():
    assert re.search(r"^## Unreleased$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
