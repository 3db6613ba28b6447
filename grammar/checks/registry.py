"""Which check looks at which block: the one list that the completeness test walks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sgplan.grammar.checks.built import check_built
from sgplan.grammar.checks.capture import check_capture
from sgplan.grammar.checks.guard import check_guard
from sgplan.grammar.checks.host import check_host
from sgplan.grammar.checks.mesh import check_mesh
from sgplan.grammar.checks.model import check_model
from sgplan.grammar.checks.names import check_models, check_required
from sgplan.grammar.checks.operator import check_operator
from sgplan.grammar.checks.partition import check_partition
from sgplan.grammar.checks.precision import check_precision
from sgplan.grammar.checks.recompute import check_recompute
from sgplan.grammar.checks.recover import check_recover
from sgplan.grammar.checks.rules import check_rules
from sgplan.grammar.checks.schedule import check_schedule
from sgplan.grammar.checks.slo import check_slo
from sgplan.grammar.checks.sync import check_sync
from sgplan.grammar.checks.update import check_update
from sgplan.grammar.checks.view import View
from sgplan.grammar.diagnostics import Diagnostic

Check = Callable[[View], Iterator[Diagnostic]]

FOR_ALL: tuple[Check, ...] = (check_required, check_models, check_built)

FOR_KIND: dict[str, Check] = {
    "model": check_model,
    "mesh": check_mesh,
    "capture": check_capture,
    "fuse": check_rules,
    "separate": check_rules,
    "operator": check_operator,
    "partition": check_partition,
    "schedule": check_schedule,
    "sync": check_sync,
    "update": check_update,
    "guard": check_guard,
    "precision": check_precision,
    "recompute": check_recompute,
    "recover": check_recover,
    "host": check_host,
    "slo": check_slo,
}

# Kinds whose attributes say nothing about one another or about other blocks.
TYPES_SUFFICE = ("checkpoint", "control", "verify", "export")

CHECKS: tuple[Check, ...] = (*FOR_ALL, *dict.fromkeys(FOR_KIND.values()))
