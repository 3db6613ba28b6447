"""How a line whose path depends on tensor values is written for one graph: advice from its source.

    if x.sum() > 0:                 def then(y):
        y = y + 1                       y = y + 1
                            ->          return y
                                    def otherwise(y):
                                        return y
                                    y = torch.cond(x.sum() > 0, then, otherwise, (y,))

Reads the script's text with `ast` and runs nothing. It does not know types: a name that a branch
assigns is taken for a tensor, a name in a condition for what Python can decide. Where no form can
be derived it says nothing.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Node = TypeVar("_Node", bound=ast.AST)

_Statement = TypeVar("_Statement", bound=ast.stmt)

_PLACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.M)
_MARK = "from user code:"

# Calls that take a tensor's value out into Python.
_METHODS = frozenset({"item", "tolist", "__bool__", "__float__"})
_CASTS = frozenset({"bool", "float"})
# Methods of tensors that are known without their values.
_SIZES = frozenset(
    {"size", "dim", "ndimension", "numel", "stride", "element_size", "is_contiguous"}
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to write in the place of some lines of the script.

    Attributes:
        first, last: the lines, from 1.
        quoted: the first of them as it stands there, stripped.
        code: what does the same inside one graph.
    """

    first: int
    last: int
    quoted: str
    code: str


def place_of(text: str) -> tuple[str, int] | None:
    """File and line of the script in an error of Dynamo: the innermost frame it names."""
    found = list(_PLACE.finditer(text, text.find(_MARK) + 1 if _MARK in text else 0))
    return (found[-1]["file"], int(found[-1]["line"])) if found else None


def advice(source: str, line: int) -> Advice | None:
    """The form for one graph of the statement at `line`; None where none can be derived.

    Args:
        source: of the whole file.
        line: where the compiler stopped, from 1.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    function = _innermost(line, _of(tree, ast.FunctionDef))
    statement = _innermost(line, _of(tree, ast.stmt))
    if function is None or statement is None:
        return None
    form = _Form(function, statement)
    code = form.written()
    if code is None:
        return None
    lines = source.splitlines()
    last = form.last.end_lineno or form.last.lineno
    return Advice(statement.lineno, last, lines[statement.lineno - 1].strip(), code)


def _innermost(line: int, nodes: Sequence[_Statement]) -> _Statement | None:
    """The one that holds the line and begins last."""
    found = [node for node in nodes if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return max(found, key=lambda node: node.lineno, default=None)


class _Without(Exception):
    """An expression has no form in tensors that means the same."""


class _Form:
    """One statement on its way into its form for one graph.

    Attributes:
        last: the last statement that the form replaces.
    """

    def __init__(self, function: ast.FunctionDef, statement: ast.stmt) -> None:
        self._function, self._statement = function, statement
        self.last = statement

    def written(self) -> str | None:
        try:
            code = self._instead()
            return None if code is None else "\n".join((*self._tensors(), code))
        except _Without:
            return None

    def _tensors(self) -> Iterator[str]:
        """Lines before the statement that make a number of a tensor it asks for, without that."""
        statement = self._statement
        asked = statement.iter if isinstance(statement, ast.For) else statement
        asked = statement.test if isinstance(statement, (ast.If, ast.While)) else asked
        names = {n.id for n in _of(asked, ast.Name) if isinstance(n.ctx, ast.Load)}
        for each in _of(self._function, ast.Assign):
            before = each.lineno < statement.lineno and names.intersection(_assigned([each]))
            if before and (kept := ast.unparse(_kept(each))) != ast.unparse(each):
                yield kept

    def _instead(self) -> str | None:
        statement = self._statement
        if isinstance(statement, ast.If):
            return self._if(statement)
        if isinstance(statement, ast.While):
            return self._while(statement.test, statement.body, statement)
        if isinstance(statement, ast.For):
            return self._for(statement)
        if isinstance(statement, ast.Assert):
            return f"torch._assert_async({ast.unparse(_kept(statement.test))})"
        if choice := next(iter(_of(statement, ast.IfExp)), None):
            return _in_place_of(statement, choice, _choice(choice))
        stripped = ast.unparse(_kept(statement))
        return stripped if stripped != ast.unparse(statement) else None

    # --- branches --------------------------------------------------------------------------------

    def _if(self, statement: ast.If) -> str | None:
        body, other = statement.body, statement.orelse
        if _leaves(body):
            rest = other if other else self._rest()
            return self._returning(statement, rest) if rest and _leaves(rest) else None
        if _leaves(other) or _jumps([statement]):
            return None
        known = self._known()
        inside, beside = _assigned(body), _assigned(other)
        names = [n for n in dict.fromkeys(inside + beside) if n in known or n in _both(statement)]
        if not names:
            return None
        taken = [name for name in names if name in known]
        return "\n".join(
            (
                _function("then", taken, body, names),
                _function("otherwise", taken, other, names),
                f"{', '.join(names)} = torch.cond({ast.unparse(_kept(statement.test))}, "
                f"then, otherwise, {_tuple(taken)})",
            )
        )

    def _returning(self, statement: ast.If, rest: list[ast.stmt]) -> str | None:
        """Both ways leave the function."""
        if _jumps([*statement.body, *rest]) or not _ends_alone(statement.body, rest):
            return None
        known = self._known()
        assigned = dict.fromkeys(_assigned(statement.body) + _assigned(rest))
        taken = [name for name in assigned if name in known]
        self.last = rest[-1]
        return "\n".join(
            (
                _function("then", taken, statement.body),
                _function("otherwise", taken, rest),
                f"return torch.cond({ast.unparse(_kept(statement.test))}, then, otherwise, "
                f"{_tuple(taken)})",
            )
        )

    def _rest(self) -> list[ast.stmt]:
        """The statements behind this one, in its own block of the function."""
        body = self._function.body
        place = next((i for i, each in enumerate(body) if each is self._statement), len(body))
        return body[place + 1 :]

    # --- loops -----------------------------------------------------------------------------------

    def _while(self, test: ast.expr, body: list[ast.stmt], statement: ast.While) -> str | None:
        known = self._known()
        names = [name for name in _assigned(body) if name in known]
        if not names or statement.orelse or _jumps(body) or _leaves(body):
            return None
        return "\n".join(_loop(names, ast.unparse(_kept(test)), body))

    def _for(self, statement: ast.For) -> str | None:
        call, target, body = statement.iter, statement.target, statement.body
        counts = isinstance(call, ast.Call) and ast.unparse(call.func) == "range"
        if not (counts and isinstance(target, ast.Name)) or statement.orelse or _jumps(body):
            return None
        assert isinstance(call, ast.Call)
        if len(call.args) not in (1, 2) or target.id in _assigned(body) or _leaves(body):
            return None
        first = ast.unparse(call.args[0]) if len(call.args) == 2 else "0"
        bound = ast.unparse(_kept(call.args[-1]))
        names = [name for name in _assigned(body) if name in self._known()]
        if not names:
            return None
        counted = ast.parse(f"{target.id} = {target.id} + 1").body
        carried = [target.id, *names]
        lines = _loop(carried, f"{target.id} < {bound}", [*body, *counted])
        return "\n".join((f"{target.id} = torch.tensor({first})", *lines))

    # --- names -----------------------------------------------------------------------------------

    def _known(self) -> set[str]:
        """Names of the function that have a value before the statement."""
        arguments = self._function.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        found = {each.arg for each in given}
        line = self._statement.lineno
        stored = (n for n in _of(self._function, ast.Name) if isinstance(n.ctx, ast.Store))
        return found | {node.id for node in stored if node.lineno < line}


def _loop(names: list[str], test: str, body: Sequence[ast.stmt]) -> Iterator[str]:
    """A loop that carries these names from turn to turn."""
    yield f"def again({', '.join(names)}):\n    return {test}"
    yield _function("body", names, body, names, copied=True)
    yield f"{_tuple(names)} = torch.while_loop(again, body, {_tuple(names)})"


def _function(
    name: str,
    arguments: list[str],
    body: Sequence[ast.stmt],
    result: list[str] | None = None,
    *,
    copied: bool = False,
) -> str:
    """A branch or a loop's body as a function of the names that it changes.

    Args:
        result: what it returns; None for a body that returns by itself.
        copied: a tuple is returned, also for one name.
    """
    lines = [line for each in body for line in ast.unparse(_cloned(each)).splitlines()]
    if result is not None:
        own = _assigned(body)
        # A branch of torch.cond may not hand an operand through as it is.
        values = [n if n in own else f"{n}.clone()" for n in result]
        lines.append("return " + (_tuple(values) if copied else ", ".join(values)))
    head = f"def {name}({', '.join(arguments)}):"
    return "\n".join((head, *(f"    {line}" for line in lines if line != "pass")))


def _cloned(statement: ast.stmt) -> ast.AST:
    """`return x` as `return x.clone()`: a branch may not hand a tensor through as it is."""
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Name):
        return ast.parse(f"return {statement.value.id}.clone()").body[0]
    return statement


def _choice(node: ast.IfExp) -> str:
    ways = [ast.unparse(way) for way in (node.body, node.orelse)]
    then, otherwise = (
        f"{text}.clone()" if isinstance(way, ast.Name) else text
        for way, text in zip((node.body, node.orelse), ways, strict=True)
    )
    test = ast.unparse(_kept(node.test))
    return f"torch.cond({test}, lambda: {then}, lambda: {otherwise}, ())"


def _in_place_of(statement: ast.stmt, old: ast.expr, new: str) -> str:
    class Replace(ast.NodeTransformer):
        def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
            same = ast.dump(node) == ast.dump(old)
            return ast.parse(new, mode="eval").body if same else node

    return ast.unparse(Replace().visit(copy.deepcopy(statement)))


class _Kept(ast.NodeTransformer):
    """An expression whose value stays a tensor: no `.item()`, no `not`, no `and`.

    Raises:
        _Without: `int(x)` cuts off what a tensor keeps; Python's `and` of what is no tensor stays
            Python's.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            return node.func.value
        if ast.unparse(node.func) == "int" or ast.unparse(node.func).endswith(".__int__"):
            raise _Without
        if isinstance(node.func, ast.Name) and node.func.id in _CASTS and len(node.args) == 1:
            return node.args[0]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1:  # `a < x < b` is `a < x and x < b`
            raise _Without
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return _called("logical_not", _tensor(node.operand))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        whole = _tensor(node.values[0])
        for value in node.values[1:]:
            whole = _called(name, whole, _tensor(value))
        return whole


def _tensor(node: ast.expr) -> ast.expr:
    """An operand that is a tensor as far as can be seen: something that a method computed.

    Raises:
        _Without: it may be a number or a flag.
    """
    methods = (c.func for c in _of(node, ast.Call) if isinstance(c.func, ast.Attribute))
    if isinstance(node, (ast.Call, ast.Compare)) and any(m.attr not in _SIZES for m in methods):
        return node
    raise _Without


def _called(name: str, *arguments: ast.expr) -> ast.Call:
    function = ast.Attribute(ast.Name("torch", ast.Load()), name, ast.Load())
    return ast.Call(function, list(arguments), [])


def _kept(node: ast.AST) -> ast.AST:
    return _Kept().visit(copy.deepcopy(node))


def _tuple(names: Sequence[str]) -> str:
    return f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"


def _assigned(body: Sequence[ast.stmt]) -> list[str]:
    """Names that statements give a value, in order."""
    stored = (n for each in body for n in _of(each, ast.Name) if isinstance(n.ctx, ast.Store))
    return list(dict.fromkeys(name.id for name in stored))


def _both(statement: ast.If) -> set[str]:
    return set(_assigned(statement.body)) & set(_assigned(statement.orelse))


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return any(_of(each, ast.Return) for each in body)


def _ends_alone(*bodies: Sequence[ast.stmt]) -> bool:
    """Whether each of some bodies returns at its end, and nowhere else."""
    return all(
        isinstance(body[-1], ast.Return) and body[-1].value is not None and not _leaves(body[:-1])
        for body in bodies
    )


def _jumps(body: Sequence[ast.stmt]) -> bool:
    """Whether statements leave a loop, raise, wait for others, or change what is no local name.

    `y += 1` changes the tensor itself, which a branch may not do to what it is given.
    """
    kinds = (ast.Break, ast.Continue, ast.Raise, ast.Yield, ast.Await, ast.Global, ast.Nonlocal)
    kinds = (*kinds, ast.AugAssign)
    stored = (
        n
        for each in body
        for n in _of(each, ast.Attribute, ast.Subscript)
        if isinstance(n.ctx, ast.Store)
    )
    return any(_of(each, *kinds) for each in body) or next(stored, None) is not None


def _of(node: ast.AST, *kinds: type[_Node]) -> list[_Node]:
    return [each for each in ast.walk(node) if isinstance(each, kinds)]


Read = Callable[[str], str]


def explained(text: str, read: Read) -> tuple[str, ...]:
    """Notes on an error of Dynamo: the script's line, quoted, and its form for one graph.

    Args:
        text: of the error.
        read: the text of a file; raises `OSError` where there is none.
    """
    place = place_of(text)
    if place is None:
        return ()
    file, line = place
    try:
        source = read(file)
    except (OSError, UnicodeDecodeError):
        return ()
    lines = source.splitlines()
    if not 0 < line <= len(lines):
        return ()
    quoted = f"{file}:{line}: {lines[line - 1].strip()}"
    found = advice(source, line)
    if found is None:
        return (quoted,)
    where = f"line {found.first}"
    if found.last > found.first:
        where = f"lines {found.first} to {found.last}"
    return (quoted, f"in one graph, {where} can be written as:\n{found.code}")
