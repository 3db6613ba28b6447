"""No step of adding a block can be forgotten: tables, classes, checks, pages and README agree."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import sgplan.grammar
from sgplan.grammar.blocks import BLOCKS, RESERVED, AttributeSpec, BlockSpec
from sgplan.grammar.check import check_text
from sgplan.grammar.checks.registry import FOR_KIND, TYPES_SUFFICE
from sgplan.grammar.clauses import CLASS_OF, Block
from sgplan.grammar.literals import VALUE_CLASSES, field_name
from sgplan.grammar.plan import REPEATED, Plan

FOLDER = Path(next(iter(sgplan.grammar.__path__)))
README = (FOLDER / "README.md").read_text(encoding="utf-8")
PAGE = (Path(__file__).parent / "language.md").read_text(encoding="utf-8")

CLASSED = [spec for spec in BLOCKS if spec.kind != "export"]
ATTRIBUTES = [(spec, attribute) for spec in CLASSED for attribute in spec.attributes]
# Defaults that no spelling of the language gives: prose in the table, None in the class.
PROSE = {
    ("sync", "timeout"),
    ("guard", "allow"),
    ("checkpoint", "to"),
    ("verify", "forward"),
    ("verify", "gradient"),
}


def name(value: object) -> str:
    return value.kind if isinstance(value, BlockSpec) else getattr(value, "name", str(value))


@pytest.mark.parametrize("spec", BLOCKS, ids=name)
def test_block_has_a_class_a_check_a_page_and_a_readme_row(spec: BlockSpec) -> None:
    assert spec.kind in CLASS_OF or spec.kind == "export"
    assert (spec.kind in FOR_KIND) != (spec.kind in TYPES_SUFFICE)
    assert re.search(rf"^ *{spec.kind}\b.*\{{", PAGE, re.MULTILINE)
    assert f"| `{spec.kind}`" in README


@pytest.mark.parametrize("spec", CLASSED, ids=name)
def test_class_has_the_attributes_of_the_table(spec: BlockSpec) -> None:
    common = {f.name for f in fields(Block)}
    have = {f.name for f in fields(CLASS_OF[spec.kind])} - common
    assert have == {field_name(attribute) for attribute in spec.names if attribute != "use"}


@pytest.mark.parametrize(("spec", "attribute"), ATTRIBUTES, ids=name)
def test_default_of_the_table_is_the_default_of_the_class(
    spec: BlockSpec, attribute: AttributeSpec
) -> None:
    if attribute.name == "use" or (spec.kind, attribute.name) in PROSE:
        return
    (field,) = (f for f in fields(CLASS_OF[spec.kind]) if f.name == field_name(attribute.name))
    if attribute.required:
        assert field.default is MISSING
    elif attribute.default is None:
        assert field.default in (None, ())
    else:
        assert value_of(spec, attribute) == (
            "rest" if (spec.kind, attribute.name) == ("mesh", "data") else field.default
        )


def value_of(spec: BlockSpec, attribute: AttributeSpec) -> object:
    """The default, read as if it were written."""
    from sgplan.grammar.parse import parse
    from sgplan.grammar.reading import Reader

    text = f"sgplan 1\n{spec.kind} {{ {attribute.name} = {attribute.default} }}\n"
    reader = Reader({})
    (block,) = reader.blocks(parse(text, "default").items)  # pyright: ignore[reportArgumentType]
    return block.value(attribute.name, None)


@pytest.mark.parametrize(("spec", "attribute"), ATTRIBUTES, ids=name)
def test_attribute_is_shown_on_the_page_and_in_the_readme(
    spec: BlockSpec, attribute: AttributeSpec
) -> None:
    if attribute.name in ("use", "model", "priority"):
        assert f"`{attribute.name}`" in README
        return
    (row,) = (line for line in README.split("\n") if line.startswith(f"| `{spec.kind}`"))
    assert f"`{attribute.name}`" in row
    assert re.search(rf"\b{attribute.name} = ", PAGE)


def test_plan_has_a_place_for_every_block() -> None:
    places = {REPEATED.get(spec.kind, spec.kind) for spec in CLASSED}
    assert places <= {f.name for f in fields(Plan)}


def test_labels_are_for_blocks_that_repeat() -> None:
    assert {spec.kind for spec in BLOCKS if spec.label != "forbidden"} == set(REPEATED)


@pytest.mark.parametrize("spec", [spec for spec in BLOCKS if not spec.built], ids=name)
def test_block_that_is_not_built_says_so(spec: BlockSpec) -> None:
    label = '"x" ' if spec.label == "required" else ""
    _, found = check_text(f"sgplan 1\n{spec.kind} {label}{{ }}\n", "plan.sgplan")
    assert "SG0230" in {diagnostic.code for diagnostic in found}


def test_words_and_families_are_no_names_for_let() -> None:
    assert {"norm", "sync", "prefer", "1f1b", "triton", "override"} <= RESERVED


def test_values_of_classes_are_registered_for_the_wire() -> None:
    assert len({cls.__name__ for cls in VALUE_CLASSES}) == len(VALUE_CLASSES)
