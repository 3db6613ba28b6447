"""The version of sgplan that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """The installed version, or `unknown` when the sources run without an installation."""
    try:
        return installed("sgplan")
    except PackageNotFoundError:
        return "unknown"
