"""The environment of what is measured: as of a user who installed everything.

Python keeps the bytecode of what it imports. An installer compiles packages, a source tree does
not: under `PYTHONDONTWRITEBYTECODE` every start would compile ours anew, and count it.
"""

from __future__ import annotations

import os


def environment(**settings: str) -> dict[str, str]:
    """This process's environment with these settings."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **settings}
