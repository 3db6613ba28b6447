"""What a wheel holds is what the folders hold."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_of_the_folders_is_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = set(project["packages"])
    found = {
        ".".join((name, *path.parent.relative_to(ROOT / folder).parts))
        for name, folder in project["package-dir"].items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert found == listed
