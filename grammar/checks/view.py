"""What a rule family sees: the blocks that hold together in one world, laid over one another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.grammar.written import Key, Layer, WrittenBlock

NO_EFFECT = "SG0227"
NOT_BUILT = "SG0230"


@dataclass(frozen=True, slots=True)
class View:
    """The blocks of one combination of overrides, `--set` included, switched-off ones left out.

    Attributes:
        layer: by kind and label.
        broken: attributes that are written but could not be read: nothing may be said of them.
        world: the world size, None when it is not known.
    """

    layer: Layer
    broken: frozenset[tuple[Key, str]]
    world: int | None = None

    def all(self, *kinds: str) -> Iterator[WrittenBlock]:
        """The blocks of these kinds, in the order written."""
        return (block for block in self.layer.values() if block.kind in kinds)

    def one(self, kind: str) -> WrittenBlock | None:
        """The block of a kind that occurs once."""
        return self.layer.get((kind, None))

    def writes(self, block: WrittenBlock, name: str) -> bool:
        """Whether the block has the attribute, readable or not."""
        return block.get(name) is not None or (block.key, name) in self.broken

    def is_sure(self, block: WrittenBlock, *names: str) -> bool:
        """Whether every one of the attributes is readable or not written at all."""
        return not any((block.key, name) in self.broken for name in names)

    def speaking_for(self, kind: str, block: WrittenBlock) -> WrittenBlock | None:
        """The block of a kind that holds for the same model as `block`, or for all models."""
        found = {other.value("model", None): other for other in self.all(kind)}
        return found.get(block.value("model", None)) or found.get(None)

    @property
    def pipe(self) -> int | None:
        """Size of axis `pipe`, None when it cannot be read."""
        mesh = self.one("mesh")
        if mesh is None:
            return 1
        return mesh.value("pipe", 1) if self.is_sure(mesh, "pipe") else None


def alike(
    blocks: Iterable[WrittenBlock], key: Callable[[WrittenBlock], Hashable]
) -> Iterator[tuple[WrittenBlock, WrittenBlock]]:
    """The first block of a key and each later one of the same; a key of None is like no other."""
    first: dict[Hashable, WrittenBlock] = {}
    for block in blocks:
        found = key(block)
        if found is not None and (earlier := first.setdefault(found, block)) is not block:
            yield earlier, block


def place_of(block: WrittenBlock, name: str, text: str = "") -> Label:
    """The value of an attribute where it is written, else the head of the block."""
    setting = block.get(name)
    return Label(block.span if setting is None else setting.value_span, text)


def no_effect(
    block: WrittenBlock, names: tuple[str, ...], why: str, because: Label | None = None
) -> Iterator[Diagnostic]:
    """One diagnostic for every written attribute that can have no effect."""
    for name in names:
        setting = block.get(name)
        if setting is not None:
            yield Diagnostic(
                NO_EFFECT,
                f"`{block.kind}.{name}` can have no effect",
                Label(setting.span, why),
                () if because is None else (because,),
                help=f"take `{name}` out",
            )


def no_effect_at_all(block: WrittenBlock, why: str, cure: str) -> Diagnostic:
    """A whole block that can have no effect."""
    return Diagnostic(
        NO_EFFECT, f"`{block.address}` can have no effect", Label(block.span, why), help=cure
    )


def missing(block: WrittenBlock, name: str, why: str, cure: str) -> Diagnostic:
    """An attribute that this block cannot do without."""
    return Diagnostic(
        "SG0224", f"`{block.address}` has no `{name}`", Label(block.span, why), help=cure
    )
