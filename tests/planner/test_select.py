"""Selectors: what they match, how often, and what is near when they match nothing."""

from __future__ import annotations

import pytest

from sgplan.grammar.plan import Selector
from sgplan.planner.globs import covers, matching
from sgplan.planner.select import (
    Match,
    Written,
    forward_sites,
    match,
    match_all,
    module_paths,
    problems,
    selectors_of,
)

from .build import FORWARD, facts, op, plan, root

PATHS = ("tok", "layers.0", "layers.0.mlp", "layers.1", "layers.1.mlp", "layers.10.mlp", "ln")


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("tok", ("tok",)),
        ("layers.*", ("layers.0", "layers.1")),
        ("layers.*.mlp", ("layers.0.mlp", "layers.1.mlp", "layers.10.mlp")),
        ("**.mlp", ("layers.0.mlp", "layers.1.mlp", "layers.10.mlp")),
        ("layers.{0..1}.mlp", ("layers.0.mlp", "layers.1.mlp")),
        ("layers.{0,10}.mlp", ("layers.0.mlp", "layers.10.mlp")),
        ("{tok,ln}", ("tok", "ln")),
        ("l*", ("ln",)),
        ("**", PATHS),
        ("layers.0.**", ("layers.0", "layers.0.mlp")),
        ("layer", ()),
    ],
)
def test_glob(glob: str, found: tuple[str, ...]) -> None:
    assert matching(glob, PATHS) == found


def test_double_star_reaches_the_root_itself() -> None:
    assert matching("**.ln", ("ln", "a.ln", "a.b.ln", "vln")) == ("ln", "a.ln", "a.b.ln")


def test_a_match_includes_its_submodules() -> None:
    assert covers("layers.*", "layers.3.mlp.fc")
    assert not covers("layers.*.mlp", "layers.3.attn")
    assert not covers("layers.*", "layers")


SITES = (
    op("aten.gelu.default", "blocks.0"),
    op("aten.gelu_.default", "blocks.1"),
    op("aten.add.Tensor", ""),
    op("aten.add.Scalar", ""),
    op("mylib::scan.default", "ln"),
)


@pytest.mark.parametrize(
    ("selector", "count"),
    [
        (Selector(None, "aten.gelu"), 2),
        (Selector(None, "aten.gelu.default"), 1),
        (Selector(None, "aten.add.Tensor"), 1),
        (Selector(None, "mylib::scan"), 1),
        (Selector(None, "mylib::scan.default"), 1),
        (Selector(None, "pointwise"), 4),
        (Selector("blocks.*", "aten.gelu"), 2),
        (Selector("blocks.1", "pointwise"), 1),
        (Selector("ln", "aten.gelu"), 0),
    ],
)
def test_ops_are_counted(selector: Selector, count: int) -> None:
    found = match(Written("let a", selector, None), ("blocks.0", "blocks.1", "ln"), SITES)
    assert len(found.sites) == count
    assert found.empty == (count == 0)


def test_a_bare_glob_counts_modules() -> None:
    found = match(Written("let a", Selector("blocks.*", None), None), module_paths(facts()), SITES)
    assert (found.modules, found.sites) == (("blocks.0", "blocks.1"), ())


def test_sites_are_those_of_the_listed_forward() -> None:
    twice = root(graphs=(FORWARD, FORWARD))
    assert forward_sites(facts(twice)) == FORWARD.ops


def matches(body: str) -> tuple[Match, ...]:
    return match_all(plan(body), facts())


def test_lets_are_read_for_selectors() -> None:
    found = matches(
        'let mlp = "blocks.*.fc"\nlet act = aten.gelu | "blocks.0"::aten.relu\nlet size = 25MiB\n'
        "let both = act\nlet n = norm"
    )
    assert [
        (m.written.owner, str(m.written.selector), len(m.modules), len(m.sites)) for m in found
    ] == [
        ("let mlp", '"blocks.*.fc"', 2, 0),
        ("let act", "aten.gelu", 0, 2),
        ("let act", '"blocks.0"::aten.relu', 1, 0),
        ("let both", "aten.gelu", 0, 2),
        ("let both", '"blocks.0"::aten.relu', 1, 0),
        ("let n", "norm", 0, 1),
    ]


def test_a_glob_without_match_is_an_error_with_the_nearest_modules() -> None:
    found = problems(plan('let a = "block.*.fc"'), facts())
    assert [d.code for d in found] == ["SG0508"]
    assert found[0].severity == "error"
    assert found[0].message == '`"block.*.fc"` in `let a` matches nothing'
    assert found[0].primary is not None
    assert found[0].primary.span.line == 3
    assert found[0].help is not None
    assert found[0].help == 'write `"blocks.*.fc"`'


def test_an_op_without_match_is_an_error_with_the_nearest_ops() -> None:
    found = problems(plan("let a = aten.gleu"), facts())
    assert found[0].severity == "error"
    assert found[0].help == "write `aten.gelu`"


def test_a_family_without_match_is_a_note() -> None:
    found = problems(plan("let a = conv"), facts())
    assert [d.severity for d in found] == ["note"]


@pytest.mark.parametrize(
    "selector", ['"zzz.*"', '"blocks.*.attention"', '"blocks.{0..11}.mlp"', "aten.zzz", "aten.sin"]
)
def test_nothing_near_means_no_suggestion(selector: str) -> None:
    found = problems(plan(f"let a = {selector}"), facts())
    assert found[0].help == (
        "`sgplan plan --ops` lists every module, op and family that was captured"
    )


def test_a_string_that_may_be_a_path_is_not_judged() -> None:
    assert problems(plan('let where = "runs"'), facts()) == []


def test_ops_are_not_missed_where_nothing_was_captured() -> None:
    bare = facts(root("eager", "hooks", graphs=()))
    assert problems(plan("let a = aten.gleu"), bare) == []


def test_a_plan_without_selectors_has_none() -> None:
    assert list(selectors_of(plan("sync { bucket = 1MiB }"))) == []
