"""Tables and verdicts from figures. Prints Markdown, which reads well in a terminal too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from measure import Figures, Settings
from stats import flat, ratio_of_medians, speed_ratio
from ways import COMPILED, EAGER, SLACK_SECONDS, Bar

MIB = 1024 * 1024
By = Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar and how it came out: `ok`, `FAIL`, or `open` when the interval holds the limit."""

    bar: str
    measured: str
    outcome: str


def table(settings: Settings, figures: By) -> str:
    """One row a way: samples/s, ratios with intervals, CPU, memory, first calls, own share."""
    head = (
        "| way | samples/s | over eager DDP | over DDP + compile | CPU ms a step | peak RSS MiB "
        "| first call cold s | warm s | own share |\n|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(_row(settings, name, figures) for name in figures)])


def _row(settings: Settings, name: str, figures: By) -> str:
    own = figures[name]
    speed = settings.ranks * settings.batch / median(flat(own.steps))
    cells = [
        name,
        f"{speed:.1f}",
        _ratio(own, figures.get(EAGER.name)),
        _ratio(own, figures.get(COMPILED.name)),
        f"{1000 * own.cpu:.1f}",
        f"{median(own.peak_rss) / MIB:.0f}",
        "-" if own.cold is None else f"{own.cold:.1f}",
        f"{own.warm:.1f}",
        "-" if own.own is None else f"{own.own:.2%}",
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(way: Figures, against: Figures | None) -> str:
    if against is None:
        return "-"
    return "1" if way is against else str(speed_ratio(way.steps, against.steps))


def verdicts(bars: Sequence[Bar], figures: By) -> list[Verdict]:
    """Every bar whose two ways were measured, and one line on repeated compiles."""
    judged = [
        _JUDGES[bar.quantity](bar, figures[bar.way.name], figures[bar.against.name])
        for bar in bars
        if bar.way.name in figures and bar.against.name in figures
    ]
    again = [f"{name}: {what}" for name, own in figures.items() for what in own.compiled_again]
    outcome = "FAIL" if again else "ok"
    compiled = Verdict("nothing is compiled twice", "; ".join(again) or "nothing", outcome)
    return [*judged, compiled]


def _outcome(least: float, most: float) -> str:
    """Of the smallest and the largest distance to a limit that an interval holds; good is above."""
    return "FAIL" if most < 0 else "ok" if least >= 0 else "open"


def _judge_speed(bar: Bar, way: Figures, against: Figures) -> Verdict:
    ratio = speed_ratio(way.steps, against.steps)
    outcome = _outcome(ratio.low - bar.limit, ratio.high - bar.limit)
    text = f"speed of {bar.way.name} over {bar.against.name} at least {bar.limit:g}"
    return Verdict(text, str(ratio), outcome)


def _judge_memory(bar: Bar, way: Figures, against: Figures) -> Verdict:
    ratio = ratio_of_medians(way.peak_rss, against.peak_rss)
    outcome = _outcome(bar.limit - ratio.high, bar.limit - ratio.low)
    text = f"peak RSS of {bar.way.name} over {bar.against.name} at most {bar.limit:g}"
    return Verdict(text, str(ratio), outcome)


def _judge_first_call(bar: Bar, way: Figures, against: Figures) -> Verdict:
    """Cold and warm; by factor or by a few seconds, whichever allows more."""
    pairs = [("warm", way.warm, against.warm)]
    if way.cold is not None and against.cold is not None:
        pairs.append(("cold", way.cold, against.cold))
    allowed = [max(bar.limit * by_hand, by_hand + SLACK_SECONDS) for _, _, by_hand in pairs]
    good = all(own <= limit for (_, own, _), limit in zip(pairs, allowed, strict=True))
    measured = ", ".join(f"{name} {own:.1f} s against {ref:.1f} s" for name, own, ref in pairs)
    text = f"first call of {bar.way.name} at most {bar.limit:g} of {bar.against.name} or 2 s more"
    return Verdict(text, measured, "ok" if good else "FAIL")


def _judge_own_time(bar: Bar, way: Figures, against: Figures) -> Verdict:
    share = way.own or 0.0
    text = f"own share of a step of {bar.way.name} under {bar.limit:.0%}"
    return Verdict(text, f"{share:.2%}", "ok" if share < bar.limit else "FAIL")


_JUDGES = {
    "speed": _judge_speed,
    "memory": _judge_memory,
    "first call": _judge_first_call,
    "own time": _judge_own_time,
}


def verdict_table(found: Sequence[Verdict]) -> str:
    rows = [f"| {v.outcome} | {v.bar} | {v.measured} |" for v in found]
    return "\n".join(["| outcome | bar | measured |\n|---|---|---|", *rows])
