"""What `sgplan plan` prints, as files to read; and its machine form."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sgplan.grammar.check import check_text
from sgplan.grammar.format import format_document
from sgplan.grammar.parse import parse
from sgplan.grammar.plan import Plan
from sgplan.planner.facts import Facts, MissFact, OptimizerFact
from sgplan.planner.listing import fold, render_plan, span_of
from sgplan.planner.listing_json import plan_json
from sgplan.planner.numerics import active_numerics
from sgplan.planner.ops_listing import ops_json, render_ops
from sgplan.planner.pipeline import lower
from sgplan.planner.program import Program
from sgplan.planner.starter import starter_plan
from sgplan.planner.units import human_bytes, human_flops

from .build import BACKWARD, FORWARD, GPT_PARAMETERS, facts, fused, plan, root
from .conftest import Recorded

SMALL = "bucket = 1KiB  first_bucket = 1KiB"


@pytest.fixture(autouse=True)
def _one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract holds sgplan's version, which a golden must not."""
    monkeypatch.setattr("sgplan.planner.digest.__version__", "0.0")


def parts(wanted: Plan, *found: Facts) -> list[tuple[Program, Facts]]:
    return [(lower(wanted, one), one) for one in found]


def listing(wanted: Plan, *found: Facts) -> str:
    return render_plan(wanted, parts(wanted, *found))


def test_in_graph(recorded: Recorded) -> None:
    wanted = plan(
        f'let fc = "blocks.*.fc"\nlet act = aten.gelu\nsync {{ {SMALL} }}\n'
        "update { optimizer = fused }"
    )
    recorded("listing_in_graph", listing(wanted, fused(facts()), fused(facts(rank=1))))


def test_eager_on_hooks_with_a_capture_for_information(recorded: Recorded) -> None:
    missed = [MissFact("GPT.encode", "called outside the captured forward")]
    eager = [facts(root("eager", "hooks", misses=missed), rank=rank) for rank in (0, 1)]
    recorded("listing_eager_hooks", listing(plan(f"sync {{ {SMALL} }}"), *eager))


def test_bf16_on_the_wire_at_the_end(recorded: Recorded) -> None:
    wanted = plan(f"sync {{ {SMALL}  wire = bf16  overlap = off }}")
    recorded("listing_wire_at_end", listing(wanted, facts(), facts(rank=1)))


def test_ranks_that_differ_are_listed_apart(recorded: Recorded) -> None:
    other = replace(FORWARD, shapeless_digest="0" * 64)
    hooks = facts(root("eager", "hooks", graphs=(other,)), rank=1)
    recorded(
        "listing_ranks_differ", listing(plan(f"sync {{ {SMALL} }}"), facts(), hooks, facts(rank=2))
    )


def test_two_models_with_two_optimizers(recorded: Recorded) -> None:
    both = facts(
        root("eager", "hooks", name="G", graphs=(), parameters=GPT_PARAMETERS[:2]),
        root("eager", "stock", name="D", graphs=(), parameters=GPT_PARAMETERS[5:]),
    )
    optimizers = (
        OptimizerFact("Adam", 768, "fused", root="G"),
        OptimizerFact("Adam", 16, "as_written", "it was built with `differentiable = True`", "D"),
    )
    wanted = plan('model "G" { is = "train:GPT" }\nupdate { optimizer = fused }')
    recorded("listing_two_models", listing(wanted, replace(both, optimizers=optimizers)))


def test_variants_and_a_graph_that_makes_half_the_gradients(recorded: Recorded) -> None:
    half = replace(BACKWARD, gradients=BACKWARD.gradients[:3])
    again = replace(FORWARD, digest="9" * 64, variant=1)
    recorded("listing_variants", listing(plan(), facts(root(graphs=(FORWARD, half, again)))))


def test_a_script_without_models(recorded: Recorded) -> None:
    bare = Facts(0, 1, "2.13.0", "cpu", ())
    wanted = plan(world=1)
    recorded("listing_no_model", render_plan(wanted, parts(wanted, bare)))


def test_ops(recorded: Recorded) -> None:
    recorded("ops", render_ops(facts()))


def test_starter_is_valid_and_in_canonical_form(recorded: Recorded) -> None:
    text = starter_plan(facts())
    recorded("starter", text)
    assert check_text(text, "starter.sgplan")[1] == []
    assert format_document(parse(text, "starter.sgplan")) == text


@pytest.mark.parametrize(
    "found",
    [
        Facts(0, 1, "2.13.0", "cpu", ()),
        facts(root("eager", "none", graphs=(), kind="module"), world=1),
        facts(root(name="G"), root(name="D")),
        # Modules whose names the language keeps for itself, or cannot spell as a name.
        facts(replace(root(), modules=(("model.0", "Block"), ("sync.0", "Block")))),
        facts(replace(root(), modules=(("en-de.0", "Block"), ("é.0", "Block")))),
    ],
)
def test_every_starter_is_valid_and_in_canonical_form(found: Facts) -> None:
    text = starter_plan(found)
    assert check_text(text, "starter.sgplan", world=found.world)[1] == []
    assert format_document(parse(text, "starter.sgplan")) == text
    assert max(map(len, text.splitlines())) <= 100


def test_sentences_keep_to_the_width() -> None:
    wordy = replace(root(), why="a reason " * 40)
    text = render_plan(plan(), parts(plan(), facts(wordy)), width=60)
    assert all(len(line) <= 60 for line in text.splitlines() if "a reason" in line)


def test_a_listing_needs_a_rank() -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        render_plan(plan(), [])


def test_equal_ranks_are_folded() -> None:
    wanted = plan()
    assert [ranks for _, ranks in fold(parts(wanted, facts(), facts(rank=1)))] == [[0, 1]]


@pytest.mark.parametrize(
    ("ranks", "text"), [([0], "rank 0"), ([0, 1, 2], "rank 0..2"), ([0, 2], "rank 0 2")]
)
def test_ranks_are_named(ranks: list[int], text: str) -> None:
    assert span_of(ranks) == text


def test_passes_that_change_numerics_are_named() -> None:
    wanted = plan(
        "capture { engine = inductor }\nsync { wire = fp16 }\nupdate { optimizer = fused }"
    )
    made = replace(root(), made_compiled=True)
    found = active_numerics(wanted, fused(facts(made)))
    assert [change.name for change in found] == ["compress_wire", "lower_roots", "insert_updates"]
    assert active_numerics(plan(), facts()) == ()


README = (Path(__file__).parents[2] / "planner" / "README.md").read_text(encoding="utf-8")


def keys(data: object) -> set[str]:
    if isinstance(data, dict):
        return {*data, *(key for value in data.values() for key in keys(value))}
    return {key for value in data for key in keys(value)} if isinstance(data, list) else set()


def test_the_machine_form_is_json_and_its_keys_are_documented() -> None:
    missed = [MissFact("GPT.encode", "called outside the captured forward")]
    wanted = plan('let fc = "blocks.*.fc"\nlet act = aten.gelu\nupdate { optimizer = fused }')
    found = fused(facts(root(misses=missed)))
    data = plan_json(wanted, parts(wanted, found))
    for rank in data["ranks"]:
        rank["program"] = None  # `program.py` documents it field by field
    assert json.loads(json.dumps(data)) == data
    ops = ops_json(found)
    assert json.loads(json.dumps(ops)) == ops
    documented = set(re.findall(r"`(\w+)`", README))
    assert keys(data) | keys({k: v for k, v in ops.items() if k != "families"}) <= documented


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (26_109_542, "24.9 MiB"),
        (1 << 20, "1.0 MiB"),
    ],
)
def test_bytes_for_eyes(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999 FLOP"), (999_960, "1.0 MFLOP"), (21_900_000_000, "21.9 GFLOP"), (None, "")],
)
def test_flops_for_eyes(count: int | None, text: str) -> None:
    assert human_flops(count) == text
