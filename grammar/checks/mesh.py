"""`mesh`: axes that multiply to the world, hosts that hold whole ranks."""

from __future__ import annotations

from collections.abc import Iterator

from sgplan.grammar.checks.view import View
from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.planfile import misfits


def check_mesh(view: View) -> Iterator[Diagnostic]:
    """Against the world when it is known; host counts against the axes when those are numbers."""
    mesh = view.one("mesh")
    if mesh is None or not view.is_sure(mesh, "data", "pipe", "hosts"):
        return
    if view.world is not None:
        yield from misfits(view.layer, view.world)
    data, pipe, hosts = mesh.value("data", "rest"), mesh.value("pipe", 1), mesh.get("hosts")
    if data == "rest" or hosts is None or hosts.value == "auto":
        return
    if data * pipe % hosts.value:
        yield Diagnostic(
            "SG0302",
            f"{data * pipe} ranks do not spread evenly over {hosts.value} hosts",
            Label(hosts.value_span),
            tuple(Label(axis.span) for name in ("data", "pipe") if (axis := mesh.get(name))),
            help="write a number of hosts that divides the number of ranks, or `hosts = auto`",
        )
