"""How a run ended, judged from evidence: the child's status, events, and files that ranks left.

The question it must never get wrong: did the plan take hold? A plan that silently did not attach is
worse than an error. Pure but for the files of the run folder it is given.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgplan.execution import Executed
from sgplan.grammar.diagnostics import Diagnostic
from sgplan.report import Outcome, level_words
from sgplan.summary import Summary

UNSUPPORTED = "unsupported"
SLO_STATUS = 3
_DELETED = "the run folder was deleted while the command ran"
_KEEP = "keep the run folder until the run has ended"
CANNOT_IMPORT = "cannot import sgplan"
_ISOLATING = {
    "I": "runs Python isolated (`-I`)",
    "E": "makes Python ignore the environment (`-E`)",
    "S": "starts Python without `site` (`-S`)",
}


def judge_apply(done: Executed) -> Outcome:
    """The outcome of `apply`: a step must have run under the plan, within enforced levels."""
    found = _judge(done, bool(done.summary.steps), "done", "no_step", "no step ran under the plan")
    if found.status == 0 and done.summary.levels and done.enforced:
        event = next(iter(done.summary.levels.values()))
        return Outcome(SLO_STATUS, 0, "slo", f"service level {level_words(event)}")
    return found


def judge_plan(done: Executed) -> Outcome:
    """The outcome of `plan`: a rank must have written its program."""
    planned = bool(done.folder.parts())
    return _judge(done, planned, "planned", "not_planned", "nothing was planned")


def _judge(done: Executed, achieved: bool, good: str, bad: str, lacking: str) -> Outcome:
    if done.child is None:
        return Outcome(128 + signal.SIGINT, None, "killed", "killed by a second Ctrl-C")
    errors = [d for d, _ in done.summary.diagnostics if d.severity == "error"]
    if errors:
        return Outcome(done.child or 1, done.child, "refused", f"refused: {errors[0].message}")
    if done.child != 0:
        return Outcome(done.child, done.child, "failed", _failed(done), _gone(done))
    if not achieved and done.gone:
        message = f"it is not known what ran under the plan: {_DELETED}"
        return Outcome(1, 0, "deleted", message, Diagnostic("SG0906", message, help=_KEEP))
    if not achieved:
        reason = why_nothing_ran(done)
        message = f"{lacking}: {reason.fact}"
        return Outcome(1, 0, bad, message, Diagnostic(reason.code, message, help=reason.cure))
    return Outcome(0, 0, good, diagnostic=_gone(done))


def _gone(done: Executed) -> Diagnostic | None:
    """What a person should know where the plan has taken hold all the same."""
    if not done.gone:
        return None
    known = f"; {_count(done.summary.steps, 'step')} under the plan had been seen until then"
    return Diagnostic("SG0906", f"{_DELETED}{known}", severity="warning", help=_KEEP)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a plan did not take hold: the code to explain it, the fact, and the cure."""

    code: str
    fact: str
    cure: str | None = None


def why_nothing_ran(done: Executed) -> Reason:
    """Why no step ran, or nothing was captured, although the command ended well."""
    return next(reason for explain in _EXPLANATIONS if (reason := explain(done)))


def _failed(done: Executed) -> str:
    how = _status_words(done.child or 0)
    summary = done.summary
    if done.gone:
        return f"the command {how}; {_DELETED}"
    if summary.steps:
        return f"the command {how} after {_count(summary.steps, 'step')} under the plan"
    if reason := _attach_failed(done):
        return f"the command {how}; the plan was not applied: {reason.fact}"
    return f"the command {how} before its first step; {_had_done(done)}"


def _status_words(status: int) -> str:
    if status > 128 and (name := _signal_name(status - 128)):
        return f"was ended by {name}"
    return f"ended with status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _had_done(run: Executed) -> str:
    """What sgplan had done until then, so that nobody looks for the fault in the wrong place."""
    if not _attached(run):
        return "sgplan had not attached to any of its processes"
    summary = run.summary
    done = [f"attached to {_count(len(summary.ranks) or 1, 'rank')}"]
    roots = _roots(summary)
    done.append(f"found {', '.join(roots)}" if roots else "found no model yet")
    compiles = sum(len(state.compiles) for state in summary.ranks.values())
    if compiles:
        done.append(f"compiled {_count(compiles, 'graph')}")
    return "sgplan had " + " and ".join(filter(None, [", ".join(done[:-1]), done[-1]]))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _roots(summary: Summary) -> list[str]:
    found = {r.root: r.cls for state in summary.ranks.values() for r in state.roots}
    return [f"`{root}` ({cls})" for root, cls in found.items()]


def _attach_failed(done: Executed) -> Reason | None:
    failures = done.folder.attach_failures()
    if not failures:
        return None
    first = failures[0]
    fact = f"{first.python} {first.what} ({first.reason})"
    if first.what != CANNOT_IMPORT:
        return Reason("SG0901", fact)
    cure = "install sgplan there, or run the command with the Python that has it"
    return Reason("SG0902", fact, cure)


def _attached(done: Executed) -> bool:
    return bool(done.summary.ranks) or done.folder.was_attached()


def _isolated(done: Executed) -> Reason | None:
    found = isolating_options(done.run.command)
    if _attached(done) or not found:
        return None
    return Reason("SG0901", f"the command {found[0]}, where nothing can be injected", found[1])


def isolating_options(command: Sequence[str]) -> tuple[str, str] | None:
    """What in the command keeps Python from running our hook, and the cure; None when nothing."""
    for place, word in enumerate(command):
        if not os.path.basename(word).startswith("python"):
            continue
        for option in command[place + 1 :]:
            if not option.startswith("-") or option.startswith("--") or option[1:2] in "cm":
                break
            for letter, text in _ISOLATING.items():
                if letter in option[1:]:
                    return text, f"start Python without `-{letter}`"
    return None


def _nobody_attached(done: Executed) -> Reason | None:
    if _attached(done):
        return None
    fact = "the command started no Python that loads torch, or removed PYTHONPATH before it did"
    return Reason("SG0901", fact)


def _unsupported(done: Executed) -> Reason | None:
    named = [n.text for n in done.summary.notes.lines() if n.subject == UNSUPPORTED]
    return Reason("SG0903", "; ".join(named)) if named else None


def _no_root(done: Executed) -> Reason | None:
    if _roots(done.summary):
        return None
    fact = (
        "no model was called with gradients enabled in a process that sgplan attached to: "
        "the script only runs inference, or trains in processes it starts itself"
    )
    return Reason("SG0901", fact)


def _no_backward(done: Executed) -> Reason:
    found = ", ".join(_roots(done.summary))
    return Reason("SG0901", f"{found} was found, but no backward pass and step followed")


# Tried in order; the last one always has an answer.
_EXPLANATIONS: tuple[Callable[[Executed], Reason | None], ...] = (
    _attach_failed,
    _isolated,
    _nobody_attached,
    _unsupported,
    _no_root,
    _no_backward,
)
