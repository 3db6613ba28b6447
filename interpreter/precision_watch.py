"""Reports precision as it moves: the stage a root is in, and its loss scale, when they change."""

from __future__ import annotations

from collections.abc import Callable

from sgplan.grammar.plan import Plan
from sgplan.interpreter import events
from sgplan.planner.precision import Settings, stages_of


def words(stage: Settings) -> str:
    """`bf16 (precision.late), fp32 kept: norm, loss`; `as written` where nothing is asked."""
    parts: list[str] = []
    for setting in stage:
        kept = ", ".join(map(str, setting.keep))
        parts.append(f"{setting.compute} ({setting.address}{f', fp32: {kept}' if kept else ''})")
    return "; ".join(parts) or "as written"


class PrecisionWatch:
    """Of one rank.

    Args:
        plan: of the rank.
        emit: `emit(event_class, *fields)`.
        scale: the loss scale of a root now, None without one.
    """

    def __init__(
        self, plan: Plan, emit: Callable[..., None], scale: Callable[[str], float | None]
    ) -> None:
        self._plan = plan
        self._emit = emit
        self._scale = scale
        self._stage: dict[str, Settings] = {}
        self._scales: dict[str, float] = {}

    def look(self, root: str, step: int) -> None:
        """Before a step, counted from 0, of a root."""
        stages = stages_of(self._plan, root)
        stage = stages.at(step)
        if stages.blocks and self._stage.get(root) != stage:
            self._stage[root] = stage
            self._emit(events.StageEntered, root, step + 1, words(stage))
        scale = self._scale(root)
        if scale is not None and self._scales.get(root) != scale:
            self._scales[root] = scale
            self._emit(events.ScaleChanged, root, step + 1, scale)
