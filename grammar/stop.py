"""Where the parser stopped: the tokens around that place, and the brackets that are open there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgplan.grammar.diagnostics import Span
from sgplan.grammar.scan import Places, Token, through

CLOSER = {"{": "}", "[": "]", "(": ")"}


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the parser stopped: `tokens[at]` is the first one that does not fit."""

    tokens: Sequence[Token]
    at: int
    places: Places

    def token(self, offset: int) -> Token:
        """The token at that distance; an empty one outside the text."""
        index = self.at + offset
        if 0 <= index < len(self.tokens):
            return self.tokens[index]
        end = self.tokens[-1].span.end if self.tokens else 0
        return Token("other", "", self.places.span(end, end))

    @property
    def here(self) -> Token:
        return self.token(0)

    @property
    def open(self) -> list[int]:
        """Indices of the brackets that are open here, outermost first."""
        stack: list[int] = []
        for index, token in enumerate(self.tokens[: self.at]):
            if token.text in CLOSER:
                stack.append(index)
            elif token.text in CLOSER.values() and stack:
                stack.pop()
        return stack

    @property
    def in_block(self) -> bool:
        """Whether attributes may stand here."""
        stack = self.open
        return bool(stack) and self.tokens[stack[-1]].text == "{"

    @property
    def kind(self) -> str:
        """The kind of the block that is open here, empty outside of one."""
        stack = self.open
        return self.head_tokens(stack[0])[0].text if stack else ""

    def head_tokens(self, brace: int) -> Sequence[Token]:
        """Kind and label in front of an opening brace, and the brace."""
        start = brace
        if start > 0 and self.tokens[start - 1].kind == "string":
            start -= 1
        if start > 0 and self.tokens[start - 1].kind == "name":
            start -= 1
        return self.tokens[start : brace + 1]

    def ends_value(self, offset: int) -> bool:
        """Whether a value may end with that token."""
        token = self.token(offset)
        return token.kind in ("name", "quantity", "string") or token.text in ("]", ")", "..")

    def begins_value(self, offset: int) -> bool:
        """Whether a value may begin with that token."""
        token = self.token(offset)
        return token.kind in ("name", "quantity", "string") or token.text == "["

    def head(self, brace: int) -> Span:
        """Where the head of a block stands, its brace included."""
        tokens = self.head_tokens(brace)
        return through(tokens[0].span, tokens[-1].span)
