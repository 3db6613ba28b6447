"""Coverage and verdicts of fusion rules, and the listing of kernels; facts only, no torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.planner.facts import Facts, KernelFact, Outcome, Placed, SiteFact
from sgplan.planner.kernels_listing import kernels_json, render_kernels, rule_lines
from sgplan.planner.listing_text import body_lines
from sgplan.planner.numerics import active_numerics
from sgplan.planner.pipeline import lower
from sgplan.planner.program_text import format_program, parse_program
from sgplan.planner.rules import coverage, miscounted, missed, rejected, rules_of

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


OWN = 'fuse "bias_gelu" { match = bias -> aten.gelu  with = triton("k.py:f")%s }'


def own(block: int) -> KernelFact:
    ops = (("sgplan_kernels::bias_gelu_0123abcd.default", f"blocks.{block}"),)
    return KernelFact("library", ops, 16_000, ("fuse.bias_gelu",))


def test_a_kernel_that_stands_for_ops_is_listed_under_its_own_name() -> None:
    found = seen(site(0, "replaced"), site(1, "replaced"))
    forward = replace(found.roots[0].graphs[0], kernels=(own(0), own(1)))
    found = facts(root(graphs=(forward,)))
    text = render_kernels(plan(OWN % ""), found)
    assert "2 sites" in text
    assert "2 replaced   0 refused   0 rejected" in text
    assert "triton:bias_gelu (blocks.0)   # fuse.bias_gelu" in text


def test_a_kernel_that_computes_something_else_is_an_error_with_the_difference() -> None:
    found = seen(site(0, "replaced"), site(1, "rejected", "the kernel differs by 0.3\nat [0]"))
    (told,) = missed(plan(OWN % ""), found)
    assert (told.code, told.severity) == ("SG0614", "error")
    assert told.notes == ("the kernel differs by 0.3", "at [0]")
    assert "`k.py:f` may not stand for `aten.addmm.default` of `blocks.1.fc`" in told.message
    (told,) = missed(plan(OWN % "  on_miss = warn"), found)
    assert told.severity == "warning"


def test_a_rejected_kernel_is_told_before_anything_is_compiled() -> None:
    standing = Placed(site(0, "replaced"), "sgplan_kernels::f_0123abcd")
    placed = [standing, Placed(site(1, "rejected"))]
    assert [d.code for d in rejected(plan(OWN % ""), placed)] == ["SG0614"]
    assert rejected(plan(OWN % "  on_miss = warn"), placed) == []
    assert rejected(plan(OWN % ""), placed[:1]) == []


def test_the_graphs_of_a_program_say_how_many_kernels_they_are() -> None:
    wanted, found = plan(BIAS % ""), seen(site(0), site(1))
    program = lower(wanted, found)
    assert [graph.kernels for graph in program.graphs] == [3, 1]
    assert parse_program(format_program(program)) == program
    graphs = [line for line in body_lines(program) if line.startswith("graph ")]
    assert ["3 kernels" in graphs[0], "1 kernel" in graphs[1]] == [True, True]


def test_a_kernel_is_among_what_changes_numbers() -> None:
    wanted, found = plan(OWN % ""), seen(site(0, "replaced"))
    assert any(
        "a Triton kernel stands for the ops of `fuse.bias_gelu`" in change.why
        for change in active_numerics(wanted, found)
    )
