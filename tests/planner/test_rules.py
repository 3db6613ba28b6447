"""Coverage and verdicts of fusion rules, and the listing of kernels; facts only, no torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.planner.facts import Facts, KernelFact, Outcome, SiteFact
from sgplan.planner.kernels_listing import kernels_json, render_kernels, rule_lines
from sgplan.planner.rules import coverage, miscounted, missed, rules_of

from .build import BACKWARD, FORWARD, facts, plan, root
from .conftest import Recorded

BIAS = 'fuse "bias_gelu" { match = bias -> aten.gelu%s }'


def site(
    block: int, outcome: Outcome = "fused", why: str = "", rule: str = "fuse.bias_gelu"
) -> SiteFact:
    ops = (("aten.addmm.default", f"blocks.{block}.fc"), ("aten.gelu.default", f"blocks.{block}"))
    return SiteFact(
        rule, f"linear_{block}/forward > gelu_{block}/forward", ops, outcome, why, (block,)
    )


def kernel(block: int) -> KernelFact:
    ops = (("aten.addmm.default", f"blocks.{block}.fc"), ("aten.gelu.default", f"blocks.{block}"))
    return KernelFact("loops", ops, 16_000, ("fuse.bias_gelu",))


def seen(
    *sites: SiteFact, near: tuple[tuple[str, str], ...] = (), copies: tuple[SiteFact, ...] = ()
) -> Facts:
    kernels = (kernel(0), kernel(1), KernelFact("library", (("aten.mm.default", ""),), 2_000_000))
    forward = replace(FORWARD, sites=sites, kernels=kernels, near=near)
    backward = replace(BACKWARD, sites=copies, kernels=kernels[2:])
    return facts(root(graphs=(forward, backward)))


def texts(found: list[Diagnostic]) -> list[tuple[str, str, str]]:
    return [(d.code, d.severity, d.message) for d in found]


def test_rules_come_by_priority_and_then_as_written() -> None:
    wanted = plan(
        'fuse "a" { match = norm }\nseparate "b" { match = norm -> bias }\n'
        'fuse "c" { match = norm -> aten.add  priority = 3 }'
    )
    assert [rule.address for rule in rules_of(wanted, None)] == ["fuse.c", "fuse.a", "separate.b"]


def test_rules_of_another_model_are_left_out() -> None:
    wanted = plan(
        'model "G" { is = "m:G" }\nmodel "D" { is = "m:D" }\nfuse "a" { match = norm  model = "D" }'
    )
    assert rules_of(wanted, "G") == ()
    assert [rule.address for rule in rules_of(wanted, "D")] == ["fuse.a"]


def test_a_copy_in_the_backward_is_no_site() -> None:
    found = seen(site(0), site(1), copies=(site(1, "recomputed"),))
    (covered,) = coverage(plan(BIAS % ""), found)
    assert len(covered.sites) == 2
    assert covered.counts["fused"] == 2


def test_all_as_planned_says_nothing() -> None:
    wanted, found = plan(BIAS % "  expect = 2"), seen(site(0), site(1))
    assert missed(wanted, found) == []
    assert miscounted(wanted, found) == []


@pytest.mark.parametrize(("on_miss", "severity"), [("error", "error"), ("warn", "warning")])
def test_a_miss_names_site_module_and_reason(on_miss: str, severity: str) -> None:
    wanted = plan(BIAS % f"  on_miss = {on_miss}")
    (found,) = missed(
        wanted, seen(site(0), site(1, "missed", "`aten.addmm.default` is a call of a library"))
    )
    assert texts([found]) == [
        (
            "SG0606",
            severity,
            "`fuse.bias_gelu` is not fused at `aten.addmm.default` of `blocks.1.fc` -> "
            "`aten.gelu.default` of `blocks.1`",
        )
    ]
    assert found.notes == ("the compiler's reason: `aten.addmm.default` is a call of a library",)


def test_a_miss_in_a_variant_counts_too() -> None:
    evaluation = replace(FORWARD, digest="c" * 64, sites=(site(0, "missed", "no shared data"),))
    found = seen(site(0))
    one = found.roots[0]
    both = replace(found, roots=(replace(one, graphs=(*one.graphs, evaluation)),))
    assert [d.code for d in missed(plan(BIAS % ""), both)] == ["SG0606"]
    assert miscounted(plan(BIAS % "  expect = 1"), both) == []


def test_one_site_too_many_is_named() -> None:
    (found,) = miscounted(plan(BIAS % "  expect = 1"), seen(site(0), site(1)))
    assert found.code == "SG0607"
    assert found.message == "`fuse.bias_gelu` has 2 sites where 1 are expected"
    assert "the first one too many is `aten.addmm.default` of `blocks.1.fc`" in found.notes[0]
    assert found.help is not None
    assert found.help.startswith("write `expect = 2`")


def test_a_missing_site_is_named_by_where_the_pattern_stops() -> None:
    near = (
        ("fuse.bias_gelu", "`aten.addmm.default` of `head`, which flows into `aten.mul.Tensor`"),
    )
    (found,) = miscounted(plan(BIAS % "  expect = 3"), seen(site(0), site(1), near=near))
    assert "begins and does not go on at `aten.addmm.default` of `head`" in found.notes[0]


def test_a_rule_without_a_site_is_an_error() -> None:
    (found,) = miscounted(plan(BIAS % ""), seen())
    assert (found.code, found.severity) == ("SG0608", "error")


def test_a_rule_without_any_graph_says_so() -> None:
    (found,) = miscounted(plan(BIAS % ""), facts(root("eager", "stock", graphs=())))
    assert found.notes == ("no graph was captured",)


def test_the_listing_shows_rules_and_kernels(recorded: Recorded) -> None:
    wanted = plan(BIAS % "  expect = 2")
    found = seen(site(0), site(1, "refused", "predicted gain 0.90, below 1"))
    recorded("kernels", render_kernels(wanted, found))


def test_without_rules_only_kernels_are_listed() -> None:
    text = render_kernels(plan(), seen())
    assert "rules" not in text.splitlines()[0]
    assert rule_lines(plan(), seen()) == []
    assert render_kernels(plan(), facts()) == "no graph was compiled: the script runs eagerly\n"


def test_the_machine_form_has_the_same() -> None:
    found = kernels_json(plan(BIAS % ""), seen(site(0), site(1)))
    (rule,) = found["rules"]
    assert [s["outcome"] for s in rule["sites"]] == ["fused", "fused"]
    assert [len(graph["kernels"]) for graph in found["graphs"]] == [3, 1]
