"""The canonical layout of a plan: `sgplan fmt`.

Order, values and comments stay; spaces, line breaks and commas are decided here. This module knows
layout only: a text that parses can be formatted, whether or not it checks. Formatting twice changes
nothing more.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sgplan.grammar import ast
from sgplan.grammar.spell import GAP, spell, spell_body, spell_head

WIDTH = 100
_INDENT = "  "

_Node = ast.Let | ast.Block | ast.Override | ast.Attribute | ast.Value
_BRACE = re.compile(r"(?:\s|#[^\n]*)*\{")


def format_document(document: ast.Document) -> str:
    """The text in canonical layout."""
    return _Layout(document).text()


@dataclass(slots=True)
class _Entry:
    """One node or one comment that has its own line.

    Attributes:
        node: None for a comment.
        text: of the comment.
        first, last: lines in the source.
        trailing: the comment behind the node.
    """

    node: _Node | None
    text: str
    first: int
    last: int
    trailing: str = ""


@dataclass(slots=True)
class _Body:
    """What stands between two brackets, or in the whole file; `opening` is behind the bracket."""

    entries: list[_Entry]
    opening: str = ""


class _Layout:
    def __init__(self, document: ast.Document) -> None:
        self._document = document
        self._comments = [comment.span.start for comment in document.comments]
        self._starts = [0, *(m.end() for m in re.finditer("\n", document.text))]

    def text(self) -> str:
        document = self._document
        nodes = (document.version, *document.items)
        body = self._body(nodes, 0, len(document.text) + 1)
        version = next(i for i, entry in enumerate(body.entries) if entry.node is not None)
        before = self._lines(body.entries[:version], "")
        header = self._with_comment(f"sgplan {document.version.text}", body.entries[version])
        gap = [""] if before and self._parted(*body.entries[version - 1 : version + 1]) else []
        after = self._lines(body.entries[version + 1 :], "")
        lines = [*before, *gap, header, *([""] if after else []), *after]
        return "".join(f"{line}\n" for line in lines)

    # Comments: which stand where.

    def _line(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def _body(self, nodes: Sequence[_Node], start: int, end: int) -> _Body:
        """The nodes and the comments between `start` and `end` that no node lays out itself."""
        body = _Body([])
        kept = {comment.span for node in nodes for comment in self._kept(node)}
        comments = deque(c for c in self._between(start, end) if c.span not in kept)
        for node in nodes:
            while comments and comments[0].span.start < node.span.end:
                self._place(body, comments.popleft(), start, node)
            last = self._line(node.span.end - 1)
            body.entries.append(_Entry(node, "", node.span.line, last))
        for comment in comments:
            self._place(body, comment, start, None)
        return body

    def _place(self, body: _Body, comment: ast.Comment, start: int, node: _Node | None) -> None:
        """Behind the node before it, behind the opening bracket, or on a line of its own."""
        line = comment.span.line
        if node is not None and comment.span.start > node.span.start:
            # Inside a node that has no lines of its own: it moves up in front of it.
            line = node.span.line
        elif body.entries and body.entries[-1].node is not None:
            if body.entries[-1].last == line:
                body.entries[-1].trailing = comment.text
                return
        elif not body.entries and start and not body.opening and self._line(start - 1) == line:
            body.opening = comment.text
            return
        body.entries.append(_Entry(None, comment.text, line, line))

    def _between(self, start: int, end: int) -> Sequence[ast.Comment]:
        """The comments of that stretch of the text."""
        first = bisect_left(self._comments, start)
        return self._document.comments[first : bisect_left(self._comments, end)]

    def _kept(self, node: _Node) -> Sequence[ast.Comment]:
        """The comments inside the brackets of the node."""
        inside = self._inside(node)
        return () if inside is None else self._between(*inside)

    def _inside(self, node: _Node) -> tuple[int, int] | None:
        """Where the brackets of a node hold lines of their own."""
        if isinstance(node, ast.Block | ast.Override):
            brace = _BRACE.match(self._document.text, node.head.end)
            assert brace is not None
            return brace.end(), node.span.end
        value = node.value if isinstance(node, ast.Attribute | ast.Let) else node
        return (value.span.start + 1, value.span.end) if isinstance(value, ast.Items) else None

    def _has_comments(self, node: _Node) -> bool:
        return bool(self._kept(node))

    @staticmethod
    def _with_comment(line: str, entry: _Entry) -> str:
        return f"{line}{GAP}{entry.trailing}" if entry.trailing else line

    @staticmethod
    def _parted(before: _Entry, after: _Entry) -> bool:
        return after.first > before.last + 1

    # Lines.

    def _lines(self, entries: Sequence[_Entry], indent: str) -> list[str]:
        """Every entry, blank lines kept but never two, heads of neighbours aligned."""
        heads = self._heads(entries, indent)
        lines: list[str] = []
        for index, entry in enumerate(entries):
            if index and self._parted(entries[index - 1], entry):
                lines.append("")
            if entry.node is None:
                lines.append(indent + entry.text)
            elif (head := heads[index]) is not None:
                assert isinstance(entry.node, ast.Block)
                line = f"{indent}{head} {spell_body(entry.node)}"
                lines.append(self._with_comment(line, entry))
            else:
                *most, last = self._node_lines(entry.node, indent)
                lines += [*most, self._with_comment(last, entry)]
        return lines

    def _heads(self, entries: Sequence[_Entry], indent: str) -> list[str | None]:
        """Padded heads of the blocks that go on one line, None for all other entries.

        A block that no longer fits once it is padded is broken, which parts its neighbours.
        """
        single = {
            index: node
            for index, entry in enumerate(entries)
            if isinstance(node := entry.node, ast.Block) and not self._has_comments(node)
        }
        while True:
            heads: dict[int, str] = {}
            for group in self._groups(entries, single):
                width = max(len(spell_head(single[index])) for index in group)
                heads |= {index: spell_head(single[index]).ljust(width) for index in group}
            wide = [i for i in heads if len(f"{indent}{heads[i]} {spell_body(single[i])}") > WIDTH]
            if not wide:
                return [heads.get(index) for index in range(len(entries))]
            # The ones too wide on their own first: without them the others may need less padding.
            alone = [i for i in wide if not self._fits(single[i], indent)]
            for index in alone or wide[:1]:
                del single[index]

    def _groups(
        self, entries: Sequence[_Entry], single: dict[int, ast.Block]
    ) -> Iterator[list[int]]:
        """Runs of one-line blocks on lines that follow each other."""
        group: list[int] = []
        for index in sorted(single):
            near = group and index == group[-1] + 1
            if group and not (near and not self._parted(entries[index - 1], entries[index])):
                yield group
                group = []
            group.append(index)
        if group:
            yield group

    @staticmethod
    def _fits(node: ast.Block | ast.Override, indent: str) -> bool:
        return len(f"{indent}{spell_head(node)} {spell_body(node)}") <= WIDTH

    def _node_lines(self, node: _Node, indent: str) -> list[str]:
        """A node on one line when it can, else on several."""
        if isinstance(node, ast.Override):
            if self._fits(node, indent) and not self._has_comments(node):
                return [f"{indent}{spell_head(node)} {spell_body(node)}"]
            return self._broken(node, node.members, f"{indent}{spell_head(node)} {{", "}", indent)
        if isinstance(node, ast.Block):
            return self._broken(
                node, node.attributes, f"{indent}{spell_head(node)} {{", "}", indent
            )
        return self._value_lines(node, indent)

    def _value_lines(self, node: ast.Let | ast.Attribute | ast.Value, indent: str) -> list[str]:
        """`let`, an attribute, or one item of a list; a long list is broken."""
        if isinstance(node, ast.Let):
            name, value = f"let {node.name.text} = ", node.value
        elif isinstance(node, ast.Attribute):
            name, value = f"{node.name.text} = ", node.value
        else:
            name, value = "", node
        line = f"{indent}{name}{spell(value)}"
        fits = len(line) <= WIDTH and not self._has_comments(value)
        if (
            fits
            or not isinstance(value, ast.Items)
            or not (value.values or self._has_comments(value))
        ):
            return [line]
        return self._broken(value, value.values, f"{indent}{name}[", "]", indent)

    def _broken(
        self, node: _Node, inside: Sequence[_Node], opening: str, closing: str, indent: str
    ) -> list[str]:
        """The opening line, one line for each thing inside, the closing bracket."""
        bounds = self._inside(node)
        assert bounds is not None
        body = self._body(inside, *bounds)
        first = f"{opening}{GAP}{body.opening}" if body.opening else opening
        if closing == "]":
            lines = self._list_lines(body.entries, indent + _INDENT)
        else:
            lines = self._lines(body.entries, indent + _INDENT)
        return [first, *lines, indent + closing]

    def _list_lines(self, entries: Sequence[_Entry], indent: str) -> list[str]:
        lines: list[str] = []
        for entry in entries:
            if entry.node is None:
                lines.append(indent + entry.text)
                continue
            *most, last = self._node_lines(entry.node, indent)
            lines += [*most, self._with_comment(f"{last},", entry)]
        return lines
