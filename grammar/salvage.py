"""What to report of a text that does not parse: every broken item, not only the first.

Strings that do not hold are made readable and the item with a fault is blanked, every place
unmoved, until the rest parses. What the fault is, `syntax_errors.py` names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from sgplan.grammar import misspelt
from sgplan.grammar.diagnostics import Diagnostic, Label, Span
from sgplan.grammar.parse import other_version
from sgplan.grammar.scan import Places, Token, scan
from sgplan.grammar.stop import CLOSER, Stop
from sgplan.grammar.syntax_errors import ITEM_WORDS, diagnose

_MOST_ERRORS = 20

# The offset at which the parser stops, None when it does not.
ParseBody = Callable[[str], int | None]


def syntax_problems(
    text: str, places: Places, language: int, parse_body: ParseBody
) -> list[Diagnostic]:
    """What is wrong with the text, in order of place."""
    tokens = [token for token in scan(text, places) if token.kind != "comment"]
    problems = header_problem(tokens, places, language)
    if any(problem.code == "SG0102" for problem in problems):
        return problems
    if problems:
        body = _without_header(text, tokens)
        if body is None:
            return problems
        text = body
    readable, found = faulty_tokens(text, places)
    broken = _broken_items(readable, places, parse_body)
    return problems + sorted(found + broken, key=_position)


def set_problems(text: str, places: Places, start: int, offset: int) -> list[Diagnostic]:
    """What is wrong with a `--set` that stands in the text from `start` to its end."""
    _, found = faulty_tokens(text, places)
    if found:
        return found
    tokens = scan(text, places)
    stop = Stop(tokens, _token_at(tokens, offset), places)
    for rule in (*misspelt.VALUE_RULES, misspelt.quantity_in_two):
        if (problem := rule(stop)) is not None:
            return [problem]
    end = len(text)
    at_end = offset >= end
    written = f"`{text[start:]}`" if text[start:].strip() else "an empty text"
    label = Label(
        places.span(start if at_end else offset, end),
        "it ends too early" if at_end else "cannot be read from here on",
    )
    return [
        Diagnostic(
            "SG0121",
            f"{written} is not an address and a value",
            label,
            help="write `--set kind.attribute=value`, or `--set kind.label.attribute=value`; "
            "quote strings inside the value",
        )
    ]


def _broken_items(text: str, places: Places, parse_body: ParseBody) -> list[Diagnostic]:
    """The first fault of every item that does not parse."""
    found: list[Diagnostic] = []
    header = header_tokens(scan(text, places))
    body: str | None = _blanked(text, 0, header[-1].span.end) if header else text
    while body is not None and len(found) < _MOST_ERRORS:
        offset = parse_body(body)
        if offset is None:
            break
        tokens = [token for token in scan(body, places) if token.kind != "comment"]
        problem = diagnose(tokens, _token_at(tokens, offset), places)
        found.append(problem)
        body = _without_item(body, tokens, problem)
    return found


def _without_item(text: str, tokens: list[Token], problem: Diagnostic) -> str | None:
    """The text with the faulty item blanked, None when that leaves nothing to go on with."""
    assert problem.primary is not None
    at = problem.primary.span.start
    for start, end in segments(tokens):
        if start <= at < end:
            return _blanked(text, start, end)
    return None


def _without_header(text: str, tokens: list[Token]) -> str | None:
    """The text without what was meant as its header; None when nothing in it looks like a plan."""
    first = tokens[0].span.line if tokens else 0
    meant = [
        token
        for token in tokens
        if token.text.lower().startswith("sgplan")
        and (token.span.line == first or token.span.column == 1)
    ]
    for token in meant[:1]:
        line = [other.span for other in tokens if other.span.line == token.span.line]
        return _blanked(text, token.span.start, line[-1].end)
    return text if tokens and tokens[0].text in ITEM_WORDS else None


def _blanked(text: str, start: int, end: int) -> str:
    """The text with a stretch of it replaced by spaces; lines stay lines."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def _token_at(tokens: list[Token], offset: int) -> int:
    return next((i for i, token in enumerate(tokens) if token.span.end > offset), len(tokens))


def _position(problem: Diagnostic) -> int:
    return problem.primary.span.start if problem.primary else 0


def header_problem(tokens: Sequence[Token], places: Places, language: int) -> list[Diagnostic]:
    """What is wrong with the first line, if anything."""
    words = header_tokens(tokens)
    if len(words) < 2:
        first = next((token.span for token in tokens if token.kind != "comment"), None)
        place = first or places.span(0, 0)
        return [
            Diagnostic(
                "SG0101",
                "the file does not start with its version",
                Label(place, "no number behind it" if words else "the header belongs before this"),
                help=f"write `sgplan {language}` as the first line",
            )
        ]
    if words[1].text != str(language):
        return [other_version(words[1].text, words[1].span, language)]
    return []


def header_tokens(tokens: Sequence[Token]) -> list[Token]:
    """`sgplan` and its version, as far as they are there."""
    first = [token for token in tokens if token.kind != "comment"][:2]
    if not first or first[0].text != "sgplan":
        return []
    return first if first[-1].kind == "quantity" else first[:1]


def faulty_tokens(text: str, places: Places) -> tuple[str, list[Diagnostic]]:
    """Strings that do not hold, and the text with them made readable, every place unmoved."""
    found: list[Diagnostic] = []
    readable = text
    for token in scan(text, places):
        fault = _FAULTS.get(token.kind)
        problem = fault(token) if fault else None
        if problem is None:
            continue
        found.append(problem)
        length = len(_BEHIND.sub("", token.text)) if token.kind == "unclosed" else len(token.text)
        stand_in = f'"{"_" * (length - 2)}"' if length > 1 else "_"
        end = token.span.start + length
        readable = readable[: token.span.start] + stand_in + readable[end:]
    return readable, found


def _within(token: Token, offset: int, length: int) -> Span:
    span = token.span
    start = span.start + offset
    return Span(span.source, start, start + length, span.line, span.column + offset)


def _bad_escape(token: Token) -> Diagnostic | None:
    for match in re.finditer(r"\\(.)", token.text):
        if match.group(1) not in '"\\':
            start = token.span.start + match.start()
            place = Span(
                token.span.source,
                start,
                start + 2,
                token.span.line,
                token.span.column + match.start(),
            )
            return Diagnostic(
                "SG0106",
                f"`{match.group()}` is not an escape",
                Label(place, 'only `\\"` and `\\\\` are'),
                help="write `\\\\` for a backslash",
            )
    return None


def _unclosed_string(token: Token) -> Diagnostic:
    return Diagnostic(
        "SG0106",
        "the string does not end on its line",
        Label(_within(token, 0, 1), "it starts here"),
        help='close it with `"`',
    )


def _single_quotes(token: Token) -> Diagnostic:
    inside = token.text.strip("'")
    return Diagnostic(
        "SG0105",
        "strings have double quotes",
        Label(token.span, "single quotes"),
        help=f'write `"{inside}"`',
    )


# Closing brackets at the end of an unclosed string: they more likely belong to the block.
_BEHIND = re.compile(r"[\s}\])]*$")

_FAULTS: dict[str, Callable[[Token], Diagnostic | None]] = {
    "string": _bad_escape,
    "unclosed": _unclosed_string,
    "single": _single_quotes,
}


def segments(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """Start and end of every item, as far as broken text shows them.

    An item starts at depth 0; a block kind at the start of a line starts one at any depth, so that
    an unclosed brace does not swallow the rest of the file.
    """
    starts: list[int] = []
    depth = line = 0
    for index, token in enumerate(tokens):
        new_line, line = token.span.line != line, token.span.line
        first = token.kind == "name" and (new_line or _starts_item(tokens, index))
        if (depth <= 0 and first) or (token.span.column == 1 and token.text in ITEM_WORDS):
            starts.append(index)
            depth = 0
        depth += (token.text in CLOSER) - (token.text in CLOSER.values())
    if tokens and (not starts or starts[0] != 0):
        starts.insert(0, 0)
    bounds = [*starts, len(tokens)]
    return [(tokens[start].span.start, tokens[end - 1].span.end) for start, end in pairwise(bounds)]


def _starts_item(tokens: Sequence[Token], index: int) -> bool:
    """Whether a name at depth 0 begins a `let` or a block, not a value inside one."""
    if tokens[index].text in ("let", "override"):
        return True
    before = tokens[index - 1] if index else None
    if before is not None and before.kind == "name" and before.span.line == tokens[index].span.line:
        return False  # A label that lacks its quotes.
    behind = tokens[index + 1 : index + 3]
    if behind and behind[0].kind == "string":
        behind = behind[1:]
    return bool(behind) and behind[0].text == "{"
