"""A verification in a process of its own, for callers that have processes of their own to keep.

`sgplan verify` owns its process: it takes over what its command leaves behind, ends it, and answers
signals. A test session, with its fixtures and pools, must not be treated so. The request goes to
the helper on its standard input and the answer comes back on its standard output, both pickled.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from sgplan import process
from sgplan.failure import Failure
from sgplan.grammar.diagnostics import Diagnostic, Refused
from sgplan.proof.verification import Verification
from sgplan.refusal import RefusedPlan

_HELPER = "from sgplan.proof.aside import main; main()"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of `sgplan.verify`."""

    plan: str
    command: tuple[str, ...]
    run_dir: str | None
    sets: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What a RefusedPlan carries: exceptions with arguments of their own cannot be pickled."""

    diagnostics: tuple[Diagnostic, ...]
    sources: Mapping[str, str]


def verified_aside(wanted: Wanted) -> Verification:
    """Verify in a helper process, and wait for it.

    Raises:
        Failure: as of `verify`, or the helper was ended.
        Refused: as of `verify`.
    """
    # `-P`: a file of the working directory must not stand in for a module.
    command = [sys.executable, "-P", "-c", _HELPER, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:
        answer, _ = helper.communicate(pickle.dumps(wanted))
    if helper.returncode:
        raise Failure(f"the verification was ended: its process left with {helper.returncode}")
    found = pickle.loads(answer)
    if isinstance(found, Failure):
        raise found
    if isinstance(found, _Refusal):
        raise RefusedPlan(found.diagnostics, found.sources)
    return found


def main() -> None:
    """The helper: reads what is wanted, and answers with a Verification or why there is none."""
    process.die_with_parent(parent=int(sys.argv[1]))
    wanted: Wanted = pickle.load(sys.stdin.buffer)
    # Whoever prints from now on must not print into the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answer, "wb") as stream:
        pickle.dump(_answer(wanted), stream)


def _answer(wanted: Wanted) -> Verification | Failure | _Refusal:
    from sgplan.proof.verify import verify

    try:
        return verify(
            wanted.plan,
            wanted.command,
            run_dir=wanted.run_dir,
            sets=wanted.sets,
            environ=wanted.environ,
        )
    except Failure as failure:
        return failure
    except Refused as refused:
        return _Refusal(refused.diagnostics, getattr(refused, "sources", {}))
