"""What a run came to: `report.json` and the summary on stderr, both from one `Summary`.

Knows words and fields; measures nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sgplan import __version__
from sgplan.grammar.diagnostics import Diagnostic
from sgplan.interpreter import events
from sgplan.planner.units import human_rate, human_share, human_time
from sgplan.summary import Folded, RankState, Summary

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: exit status of sgplan.
        child: exit status of the command, None when we killed it.
        word: `done`, `slo`, `planned`, `refused`, `failed`, `no_step`, `not_planned`, `killed`,
            `deleted` (its folder, so that no report says it), or `unfinished` when read back from
            a run without a report.
        why: one sentence when it is not `done` or `planned`, else empty.
        diagnostic: the finding of ours behind it, None when the script or a rank has said it.
    """

    status: int
    child: int | None
    word: str
    why: str = ""
    diagnostic: Diagnostic | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The frame of a run: what was asked for, where, and when."""

    mode: str
    command: tuple[str, ...]
    plan: str
    folder: str
    started: float
    seconds: float


def to_json(run: Run, outcome: Outcome, summary: Summary, damage: Sequence[Diagnostic]) -> Any:
    """The content of `report.json`; its fields are described in `sgplan/README.md`."""
    return {
        "sgplan_report": REPORT_VERSION,
        "sgplan": __version__,
        "mode": run.mode,
        "command": list(run.command),
        "plan": run.plan,
        "folder": run.folder,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(run.started)),
        "seconds": round(run.seconds, 3),
        "outcome": outcome.word,
        "why": outcome.why,
        "exit_status": outcome.status,
        "child_exit_status": outcome.child,
        **_figures(summary),
        **_folded_fields(summary),
        "guard_misses": [
            {"rank": rank, **{f.name: getattr(event, f.name) for f in fields(event)}}
            for rank, event in summary.guard_misses
        ],
        "ranks": [_rank(summary.ranks[rank]) for rank in sorted(summary.ranks)],
        "diagnostics": [
            {"diagnostic": diagnostic.to_wire(), "ranks": list(ranks)}
            for diagnostic, ranks in summary.diagnostics
        ],
        "damaged_logs": [diagnostic.to_wire() for diagnostic in damage],
    }


def recorded(report: dict[str, Any] | None, folder: str, plan: str) -> tuple[Run, Outcome]:
    """Frame and outcome of an earlier run; without a report it still runs, or was killed."""
    if report is None:
        return Run("apply", (), plan, folder, 0.0, 0.0), Outcome(1, None, "unfinished")
    command = tuple(report["command"])
    run = Run(report["mode"], command, report["plan"], folder, began(report), report["seconds"])
    status, child = report["exit_status"], report["child_exit_status"]
    return run, Outcome(status, child, report["outcome"], report["why"])


def began(report: dict[str, Any]) -> float:
    """When the run of a report began, in seconds since the epoch, to a second."""
    return datetime.fromisoformat(report["started"]).timestamp()


def _figures(summary: Summary) -> dict[str, Any]:
    return {
        "steps": summary.steps,
        "loss": summary.loss,
        "samples_per_second": summary.samples_per_second(),
        "step_seconds": summary.step_seconds(),
        "wait_share": summary.wait_share(),
        "own_share": summary.own_share(),
        "compile_seconds": summary.compile_seconds,
        "compile_cache": summary.cache_counts,
        "slo_breaches": [
            {
                "level": event.level,
                "limit": event.limit,
                "measured": event.measured,
                "step": event.step,
                "holds": isinstance(event, events.SloCleared),
            }
            for event in summary.levels.values()
        ],
    }


def _folds(summary: Summary) -> dict[str, list[Folded]]:
    return {
        "engines": summary.engines.lines(),
        "paths": summary.paths.lines(),
        "recompiles": summary.recompiles.lines(),
        "misses": summary.misses.lines(),
        "fallbacks": summary.fallbacks.lines(),
        "overridden": summary.overridden.lines(),
        "missed": summary.missed.lines(),
        "notes": summary.notes.lines(),
    }


def _folded_fields(summary: Summary) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [
            {"subject": x.subject, "text": x.text, "ranks": list(x.ranks), "count": x.count}
            | ({"seconds": x.seconds} if name == "recompiles" else {})
            for x in lines
        ]
        for name, lines in _folds(summary).items()
    }


def _rank(state: RankState) -> dict[str, Any]:
    ended = state.ended
    return {
        "rank": state.rank,
        "world": state.world,
        "python": state.python,
        "torch": state.torch,
        "attempts": state.attempts,
        "steps": state.steps,
        "skipped": state.skipped,
        "events_dropped": state.dropped,
        "ended": None if ended is None else ended.how,
        "detail": None if ended is None else ended.detail,
        "peak_rss": None if ended is None else ended.peak_rss,
    }


def summary_text(run: Run, outcome: Outcome, summary: Summary, shown: str) -> str:
    """The end summary, one fact a line."""
    lines = [f"sgplan: {headline(run, outcome, summary)}"]
    if summary.steps:
        lines += [_row(name, value) for name, value in _step_rows(summary)]
    if any(state.compiles for state in summary.ranks.values()):
        lines.append(_row("compile", _compile(summary)))
    lines += [_row("slo", level_words(event)) for event in summary.levels.values()]
    world = len(summary.ranks)
    for title, folded in _folds(summary).items():
        lines += _section(_TITLES[title], folded, world)
    lines += [
        _row("dropped", f"{state.dropped} events of rank {state.rank}: figures are incomplete")
        for state in summary.ranks.values()
        if state.dropped
    ]
    lines.append(_row("run folder", shown))
    return "\n".join(lines)


def level_words(event: events.SloBreached | events.SloCleared) -> str:
    """`step_p99 does not hold: 61.0 ms, limit 50.0 ms, since step 41`."""
    if event.level == "step_p99":
        figures = f"{human_time(event.measured)}, limit {human_time(event.limit)}"
    else:
        figures = f"{human_rate(event.measured)} samples/s, limit {human_rate(event.limit)}"
    if isinstance(event, events.SloBreached):
        return f"{event.level} does not hold: {figures}, since step {event.step}"
    return f"{event.level} was breached, and holds again: {figures}, since step {event.step}"


_TITLES = {
    "engines": "engine",
    "paths": "reduction",
    "recompiles": "recompiled",
    "misses": "guard missed",
    "fallbacks": "fell back",
    "overridden": "plan wins",
    "missed": "not captured",
    "notes": "note",
}


def headline(run: Run, outcome: Outcome, summary: Summary) -> str:
    """How it ended, in one line."""
    if outcome.word in _WHOLE:
        return outcome.why or _WHOLE[outcome.word]
    count = len(summary.ranks)
    ranks = f"{count} rank{'s' if count != 1 else ''}"
    return f"{_WORDS[outcome.word]} after {run.seconds:.1f} s on {ranks}"


_WHOLE = {
    "failed": "failed",
    "deleted": "the run folder was deleted",
    "unfinished": "no end recorded: it still runs, or was killed",
}
_WORDS = {
    "done": "done",
    "slo": "done, with a service level breached",
    "planned": "planned",
    "refused": "refused",
    "no_step": "no step ran",
    "not_planned": "nothing was planned",
    "killed": "killed by a second Ctrl-C",
}


def _step_rows(summary: Summary) -> Iterable[tuple[str, str]]:
    step = summary.step_seconds()
    skipped = max((state.skipped for state in summary.ranks.values()), default=0)
    steps = f"{summary.steps}" + (f" ({skipped} skipped their update)" if skipped else "")
    yield "steps", steps if step is None else f"{steps}, median {human_time(step)}"
    yield "speed", f"{human_rate(summary.samples_per_second())} samples/s, all ranks"
    yield "comm", f"{human_share(summary.wait_share())} of the step exposed"
    yield "own time", f"{human_share(summary.own_share())} of the step"
    if not summary.recompiles.lines():
        yield "recompiled", "never"
    if not summary.fallbacks.lines():
        yield "fell back", "never"


def _compile(summary: Summary) -> str:
    counts = summary.cache_counts
    words = {
        "hit": "from the cache",
        "part": "compiled in part",
        "miss": "compiled",
        "off": "compiled with the cache off",
    }
    parts = [f"{counts[key]} {word}" for key, word in words.items() if counts.get(key)]
    return f"{summary.compile_seconds:.1f} s; {', '.join(parts)}"


def _section(title: str, folded: Sequence[Folded], world: int) -> list[str]:
    return [_row(title, f"{x.subject}: {_cost(x)}{x.text}{_times(x, world)}") for x in folded]


def _cost(line: Folded) -> str:
    return f"{line.seconds * 1000:,.0f} ms for " if line.seconds else ""


def _times(line: Folded, world: int) -> str:
    """`×8 ranks` for a line of several ranks, and how often each said it when more than once."""
    ranks = len(line.ranks)
    each = f", {line.count} times" if line.count > max(ranks, 1) else ""
    if ranks > 1:
        return f"  ×{ranks} ranks{each}"
    where = f"rank {line.ranks[0]}" if world > 1 and ranks else ""
    said = "  ".join(part for part in (where, each.lstrip(", ")) if part)
    return f"  ({said})" if said else ""


def _row(name: str, value: str) -> str:
    return f"  {name:<13} {value}"
