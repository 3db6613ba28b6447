"""sgplan: plan, show and run the decisions of distributed training on an unmodified script."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgplan.proof.verification import Verification

__version__ = "0.1.0"


def verify(
    plan: str,
    command: Sequence[str],
    *,
    run_dir: str | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Verification:
    """Run a command plainly and under a plan, and say whether both compute the same.

    For tests: `sgplan.verify("plan.sgplan", ["torchrun", …, "train.py"]).assert_equal()`.

    Args:
        plan: path of a `.sgplan` or `.sgpx`.
        command: as behind `--` of `sgplan verify`.
        run_dir: folder of the runs; by default one below `.sgplan/runs`.
        sets: values as of `--set`.
        environ: variables for the command, beside those that it inherits.

    Returns:
        The answer, with `ok`, `table` and `culprit`; a difference is no exception.

    Raises:
        Failure: the plan cannot be read or the command cannot be found.
        Refused: the plan is wrong.

    The runs are started and ended by a helper process: other children of the caller are left alone.
    """
    # By name: a command such as `sgplan check` loads none of it.
    proof = importlib.import_module("sgplan.proof.aside")
    wanted = proof.Wanted(plan, tuple(command), run_dir, tuple(sets), dict(environ or {}))
    return proof.verified_aside(wanted)
