"""What a command says when it cannot go on and no place in a plan is to blame."""

from __future__ import annotations


class Failure(Exception):
    """One clear line for the user; the command ends with status 1."""
