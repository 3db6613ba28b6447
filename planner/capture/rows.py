"""A proof, op by op, that rows added to an input of a graph change nothing but rows of its outputs.

A *row dim* is followed from the enlarged inputs through the ATen forward graph, in which the number
of rows is a symbol. After every node, the symbol stands in the row dim of its tensor and nowhere
else. An op may keep the row dim (each row of the result is made of the same rows of its operands),
or drop it when what it sums is zero in every added row, whatever the parameters are. Then the
result on the real rows is that of the call without added rows. So is every gradient: what leaves
the graph is cut, so an added row gets the gradient zero, what is identically zero has none, and
zero stays zero because ops whose derivative at an added row may not be finite are no proof. Neither
is any other op, and every op that is not listed here.

Two assumptions: what the caller does not name as infinite is finite, and so is what is made of it
without rows; no op overflows on an added row (`0 * inf` is not zero), and one that is known to is
refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner import torch_api
from sgplan.planner.capture.provenance import module_of
from sgplan.planner.capture.schema import arguments

_INF = math.inf


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of numbers, both included."""

    low: float = -_INF
    high: float = _INF

    @property
    def zero(self) -> bool:
        return self.low == 0 == self.high

    @property
    def point(self) -> float | None:
        return float(self.low) if self.low == self.high else None

    @property
    def whole(self) -> bool:
        """Whether it is one whole number."""
        return self.point is not None and self.point.is_integer()


ANY = Range()
ZERO = Range(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a value lie.

    Attributes:
        dim: the dim that holds them; its size is `outer * N * inner`.
        outer, inner: what was merged into the dim before and behind the rows.
        added: what the added rows hold, whatever the parameters are.
    """

    dim: int
    outer: int = 1
    inner: int = 1
    added: Range = ANY

    @property
    def place(self) -> tuple[int, int, int]:
        return self.dim, self.outer, self.inner


class NotProved(Exception):
    """The first op that the proof does not get past, and why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the proof found.

    Attributes:
        outputs: of each tensor that the graph returns, in order, its shape with added rows, and
            its rows; None where padding does not show.
    """

    outputs: tuple[tuple[tuple[int, ...], Rows | None], ...]


def prove(
    gm: fx.GraphModule, inputs: Mapping[int, Rows], infinite: Collection[int] = ()
) -> Outcome:
    """Follow the rows through a Dynamo graph in which their number is a symbol.

    A number that was captured as a constant could hide in any op, so the symbol may stand in shapes
    only, and no branch of the script may hang on it.

    Args:
        inputs: rows of the placeholders that are enlarged, by number.
        infinite: numbers of other placeholders that hold an infinity or what is no number.

    Raises:
        NotProved: naming the op.
    """
    for module in gm.modules():
        if isinstance(module, fx.GraphModule) and torch_api.has_gradient_hook(module):
            raise NotProved("a hook reads or changes a gradient inside the model")
    traced, values = torch_api.trace_calls(gm)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    proof = _Proof({placeholders[number]: rows for number, rows in inputs.items()})
    proof.infinite_inputs(placeholders[number] for number in infinite)
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            proof.constant(node, getattr(traced, str(node.target), None))
        if node.op == "call_function" and _makes_tensors(node):
            proof.visit(node)
    if decided := torch_api.decisions_by(proof.symbols):
        raise NotProved(f"the model decides by the number of rows: `{decided[0]}`")
    _read_backward(gm, lambda node: proof.has_rows(values.get(node.name)))
    return Outcome(tuple(_leaving(gm, proof, values)))


def _leaving(
    gm: fx.GraphModule, proof: _Proof, values: Mapping[str, fx.Node]
) -> Iterator[tuple[tuple[int, ...], Rows | None]]:
    made = gm.graph.output_node().args[0]
    assert isinstance(made, (list, tuple))
    for output in made:
        if not isinstance(output, fx.Node):
            continue
        value = values.get(output.name)
        if value is None:
            raise NotProved(f"`{output.name}`, which leaves the graph, is not followed")
        if not isinstance(value.meta.get("val"), torch.Tensor):
            if proof.counts(value.meta.get("val")):
                raise NotProved("the call returns or stores the number of rows")
            continue
        if proof.has_rows(value) and torch_api.is_input_alias(output):
            raise NotProved("the call returns or stores an argument as it is")
        yield _shape(value), proof.rows.get(value)


def _read_backward(gm: fx.GraphModule, has_rows: Callable[[fx.Node], bool]) -> None:
    """What has a backward of its own, which a trace of the forward does not show, takes no rows."""
    for path, module in gm.named_modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            opaque = node.op == "call_function" and torch_api.opaque_backward(node.target)
            if opaque and (path or any(map(has_rows, node.all_input_nodes))):
                raise NotProved(f"`{opaque}` has a backward of its own, which is not read")


def _makes_tensors(node: fx.Node) -> bool:
    """Whether a node makes tensors; sizes are worked out beside them."""
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


class _Proof:
    """Attributes:
    rows: of every value that has any.
    symbols: the number of rows, once for each enlarged input.
    """

    def __init__(self, rows: dict[fx.Node, Rows]) -> None:
        self.rows = rows
        self._infinite: set[fx.Node] = set()
        sizes = [node.meta["val"].shape[found.dim] for node, found in rows.items()]
        if any(torch_api.is_fixed(size) for size in sizes):
            raise NotProved("the model uses the number of rows as a number of its code")
        self.symbols: list[Any] = sizes

    def visit(self, node: fx.Node) -> None:
        """Work out the rows of one node's value."""
        name = _name(node)
        reached = any(map(_is_infinite, node.args)) or self._infinite & set(node.all_input_nodes)
        if reached and name not in ("aten._softmax", "aten._safe_softmax"):
            self._mark_infinite(node)
        try:
            counted = self._counted(node, name)
            if any(n in self.rows for n in node.all_input_nodes):
                if name.removesuffix("_") in _RANDOM:
                    raise NotProved("draws random numbers, whose order padding moves")
                follow = _FOLLOW.get(name)
                if follow is None:
                    raise NotProved("is no op that the proof knows")
                found = follow(self, node)
            else:
                found = self.made_by_size(node) if counted else None
            self._settle(node, found)
        except NotProved as error:
            raise NotProved(f"`{name}`{_module(node)} {error}") from None

    def _mark_infinite(self, node: fx.Node) -> None:
        """A value, and what it is a view of: an op in place writes there."""
        self._infinite.add(node)
        while _is_view(node) and isinstance(node.args[0], fx.Node):
            node = node.args[0]
            self._infinite.add(node)

    def infinite_inputs(self, nodes: Iterable[fx.Node]) -> None:
        """Inputs that are not finite."""
        self._infinite.update(nodes)

    def constant(self, node: fx.Node, value: Any) -> None:
        """A tensor that the code of the model holds."""
        if isinstance(value, torch.Tensor) and not torch_api.is_finite(value):
            self._infinite.add(node)

    def counts(self, size: Any) -> bool:
        """Whether a number depends on how many rows there are."""
        return any(torch_api.depends_on(size, symbol) for symbol in self.symbols)

    def has_rows(self, node: fx.Node | None) -> bool:
        """Whether a value has rows or is computed with their number."""
        return node is not None and (node in self.rows or self.counts(node.meta.get("val")))

    def infinite(self, value: Any) -> bool:
        """Whether a value without rows, or a number, may not be finite."""
        return value in self._infinite if isinstance(value, fx.Node) else _is_infinite(value)

    def _counted(self, node: fx.Node, name: str) -> bool:
        """Whether the number of rows is used, which must be as a shape or as an end."""
        found = False
        for argument, value in _given(node).items():
            for part in value if isinstance(value, (list, tuple)) else (value,):
                if self.counts(part.meta.get("val") if isinstance(part, fx.Node) else part):
                    found = True
                    if argument not in _SIZED.get(name, ()):
                        raise NotProved("computes with the number of rows")
        return found

    def made_by_size(self, node: fx.Node) -> Rows:
        """A constant as long as there are rows: its first part is the same for every number."""
        name, given = _name(node), _given(node)
        if given.get("start") not in (None, 0):
            raise NotProved("does not start at 0")
        value = node.meta["val"]
        dims = self._dims(value)
        if len(dims) != 1:
            raise NotProved("has the rows in several dims")
        size = value.shape[dims[0]]
        inner = torch_api.multiple_of(size, self.symbols) or 0
        added = ZERO if name in _ZEROS else ANY
        if name == "aten.arange" and given.get("step", 1) == 1:
            # A bound of the trace: a larger size is proved again.
            added = Range(0.0, torch_api.at_most(size) - 1.0)
        return Rows(dims[0], inner=inner, added=added)

    def _dims(self, tensor: torch.Tensor) -> list[int]:
        return [dim for dim, size in enumerate(tensor.shape) if self.counts(size)]

    def _settle(self, node: fx.Node, found: Rows | None) -> None:
        """Keep what was found, if the symbol stands in the row dim alone."""
        value = node.meta["val"]
        for tensor in (value,) if isinstance(value, torch.Tensor) else value:
            if not isinstance(tensor, torch.Tensor):
                continue
            dims = self._dims(tensor)
            if found is None and dims:
                raise NotProved("computes a shape with the number of rows")
            if found is None or (not dims and not isinstance(value, torch.Tensor)):
                continue
            times = torch_api.multiple_of(tensor.shape[found.dim], self.symbols) if dims else None
            if dims != [found.dim] or times != found.outer * found.inner:
                raise NotProved("computes a shape with the number of rows")
            others = [size for dim, size in enumerate(tensor.shape) if dim != found.dim]
            if not all(map(torch_api.is_fixed, others)):
                raise NotProved("has a size that differs from call to call")
        if found is not None:
            if isinstance(value, torch.Tensor) and value.is_complex():
                raise NotProved("computes with complex numbers")
            self.rows[node] = replace(found, added=_rounded(found.added, value))

    def of(self, node: Any) -> Rows | None:
        return self.rows.get(node) if isinstance(node, fx.Node) else None

    def range(self, value: Any) -> Range:
        """What the added rows of an operand hold; of a number, the number."""
        if isinstance(value, fx.Node):
            return self.rows[value].added if value in self.rows else ANY
        return Range(value, value) if isinstance(value, (bool, int, float)) else ANY


def _given(node: fx.Node) -> dict[str, Any]:
    if isinstance(node.target, torch._ops.OpOverload):
        return arguments(node)
    return {str(place): value for place, value in enumerate(node.args)}


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_view(node: fx.Node) -> bool:
    """Whether a value shares memory with the first operand: a view, or an op in place."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or not node.args:
        return False
    return op._schema.arguments[0].alias_info is not None


def _name(node: fx.Node) -> str:
    target = node.target
    return str(target.overloadpacket) if isinstance(target, torch._ops.OpOverload) else str(target)


def _module(node: fx.Node) -> str:
    path = module_of(node)
    return f" in `{path}`" if path else ""


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(torch_api.size_hint(size) for size in node.meta["val"].shape)


def _dim(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def _source(node: fx.Node) -> fx.Node:
    """The operand that an op is about: its first."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _rows(proof: _Proof, node: fx.Node) -> Rows:
    rows = proof.of(node.args[0])
    if rows is None:
        raise NotProved("has rows in another operand than the first")
    return rows


# --- what added rows hold ------------------------------------------------------------------------


def _rounded(found: Range, value: Any) -> Range:
    """What a type makes of a range: it may round, to zero too, and whole numbers wrap around.

    Raises:
        NotProved: it overflows, whatever the added row holds.
    """
    dtype = value.dtype if isinstance(value, torch.Tensor) else torch.float16
    if not dtype.is_floating_point:
        kept = all(math.isinf(end) or _holds(dtype, end) for end in (found.low, found.high))
        return found if kept else ANY
    info = torch.finfo(dtype)
    if found.low > info.max or found.high < -info.max:
        raise NotProved(f"overflows `{dtype}` in an added row")
    low = 0.0 if 0 < found.low < info.tiny else found.low
    high = 0.0 if -info.tiny < found.high < 0 else found.high
    if low == high and not (float(low).is_integer() and _holds(dtype, low)):
        return Range(low - abs(low) * info.eps, high + abs(high) * info.eps)
    return Range(low, high)


def _times(one: Range, other: Range) -> Range:
    ends = [
        0.0 if a == 0 or b == 0 else a * b
        for a in (one.low, one.high)
        for b in (other.low, other.high)
    ]
    return Range(min(ends), max(ends))


def _plus(one: Range, other: Range) -> Range:
    """Of one sign only: what cancels is known to no precision."""
    if (one.low >= 0 and other.low >= 0) or (one.high <= 0 and other.high <= 0):
        return Range(one.low + other.low, one.high + other.high)
    return ANY


def _minus(value: Range) -> Range:
    return Range(-value.high, -value.low)


def _hull(one: Range, other: Range) -> Range:
    return Range(min(one.low, other.low), max(one.high, other.high))


def _pointwise_range(proof: _Proof, node: fx.Node) -> Range:
    """The range of a pointwise op's result, from those of its operands."""
    name, given = _name(node).removeprefix("aten."), _given(node)
    operands = [given[key] for key in ("self", "other") if key in given]
    own = proof.range(operands[0]) if operands else ANY
    other = proof.range(operands[1]) if len(operands) > 1 else ANY
    alpha = given.get("alpha", 1)
    if name in _SAME:
        return own
    if name == "_to_copy":
        truncated = _dtype(operands[0]).is_floating_point and not _dtype(node).is_floating_point
        return own if own.zero or not (truncated or _dtype(node) is torch.bool) else ANY
    if name in ("add", "sub", "rsub") and isinstance(alpha, (int, float)):
        scaled = _times(other, Range(alpha, alpha))
        if name == "rsub":
            return _plus(other, _minus(own)) if alpha == 1 else ANY
        return _plus(own, scaled if name == "add" else _minus(scaled))
    if name == "mul":
        found = _times(own, other)
        if found.whole and not found.zero and not (own.whole and other.whole):
            found = Range(0.0) if found.low > 0 else Range(high=0.0)
        return Range(max(found.low, 0.0), found.high) if operands[0] is operands[1] else found
    if name == "div" and given.get("rounding_mode") is None:
        if own.zero:
            return own
        return Range(0.0) if own.low >= 0 and other.low > 0 else ANY
    if name in ("clamp", "clamp_min"):
        least, most = (
            Range(none, none) if given.get(key) is None else proof.range(given[key])
            for key, none in (("min", -_INF), ("max", _INF))
        )
        return Range(
            min(max(own.low, least.low), most.low), min(max(own.high, least.high), most.high)
        )
    if name == "pow" and given["exponent"] in (2, 4):
        return ZERO if own.zero else Range(0.0)
    if name in ("bitwise_and", "logical_and") and (own.zero or other.zero):
        return ZERO
    if name in ("bitwise_not", "logical_not") and own.zero and _dtype(operands[0]) is torch.bool:
        return Range(1.0, 1.0)
    if name in _COMPARISONS and _all_hold(operands, (own, other)):
        holds = float(_COMPARISONS[name](own.low, other.low))
        return Range(holds, holds)
    if name in ("where", "masked_fill"):
        return _chosen(proof, name, given)
    if name in _ZERO_KEPT and own.zero:
        return ZERO
    return _RANGES.get(name, ANY)


def _all_hold(operands: Sequence[Any], ranges: Iterable[Range]) -> bool:
    """Whether every range is a whole number that all operands' types hold as it is."""
    types = [_dtype(each) for each in operands if isinstance(each, fx.Node)]
    return all(found.whole and all(_holds(dtype, found.low) for dtype in types) for found in ranges)


def _holds(dtype: torch.dtype, number: float) -> bool:
    """Whether a type has a whole number as it is."""
    if dtype is torch.bool:
        return number in (0, 1)
    if dtype.is_floating_point or dtype.is_complex:
        return abs(number) <= 2 / torch.finfo(dtype).eps
    return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def _chosen(proof: _Proof, name: str, given: Mapping[str, Any]) -> Range:
    """Of `where` and `masked_fill`: of the operand that is chosen in every added row, if known."""
    if name == "where":
        condition, yes, no = (given.get(key) for key in ("condition", "self", "other"))
    else:
        condition, yes, no = (given.get(key) for key in ("mask", "value", "self"))
    chosen = proof.range(condition).point
    if chosen is None:
        return _hull(proof.range(yes), proof.range(no))
    return proof.range(yes if chosen else no)


def _dtype(node: Any) -> torch.dtype:
    return node.meta["val"].dtype if isinstance(node, fx.Node) else torch.float64


def _finite(proof: _Proof, node: fx.Node) -> None:
    """Refuse what may give an added row a number, or a derivative, that is not finite."""
    name, given = _name(node).removeprefix("aten."), _given(node)
    own, other = proof.range(given.get("self")), proof.range(given.get("other"))
    most = torch.finfo(_dtype(node)).max if _dtype(node).is_floating_point else _INF
    # What is squared, or raised to 3/2, in the backward has to be finite there too.
    bounds = {**_LOWEST, "rsqrt": most ** (-2 / 3)}
    steep = name in bounds and own.low <= bounds[name]
    if name == "pow":
        steep = proof.of(given["exponent"]) is not None or not _smooth_power(
            proof.of(given["self"]), given["exponent"], most
        )
    if steep:
        raise NotProved("has no finite derivative where an added row may be")
    divisor = own if name == "reciprocal" else other
    divides = name == "reciprocal" or (name in ("div", "remainder") and proof.of(given["other"]))
    if divides and divisor.low <= most**-0.5 and divisor.high >= -(most**-0.5):
        raise NotProved("divides by what may be zero, or as good as zero, in an added row")
    if name == "masked_fill" and proof.of(given["mask"]) and proof.infinite(given["value"]):
        raise NotProved("may fill an added row with what is not finite")
    chosen = [given.get("self"), given.get("other")]
    if name == "where" and proof.of(given["condition"]) and any(map(proof.infinite, chosen)):
        raise NotProved("may fill an added row with what is not finite")
    if name in ("mul", "addcmul") or (name == "div" and proof.of(given["other"])):
        _no_infinite_factor(proof, node)
    numbers = [value for value in given.values() if not isinstance(value, fx.Node)]
    takes = name in _COMPARISONS or name in ("masked_fill", "clamp")
    if not takes and any(map(_is_infinite, numbers)):
        raise NotProved("computes with what is not finite")


def _smooth_power(base: Rows | None, exponent: Any, most: float) -> bool:
    """Whether a power has a finite derivative at all that an added row may hold."""
    if not isinstance(exponent, (int, float)):
        return False
    if exponent >= 0 and exponent == int(exponent):
        return True
    low = 0.0 if base is None else base.added.low
    return low > 0 and (exponent - 1) * math.log(low) < math.log(most)


def _no_infinite_factor(proof: _Proof, node: fx.Node) -> None:
    """Refuse a product in which zero may meet what is not finite."""
    factors = node.all_input_nodes
    if len(factors) > 1 and any(map(proof.infinite, factors)):
        raise NotProved("may multiply zero with what is not finite in an added row")


# --- ops that keep each row apart ----------------------------------------------------------------


def _pointwise(proof: _Proof, node: fx.Node) -> Rows | None:
    """Operands are broadcast against each other from the last dim.

    One without rows is broadcast over them: a size of its own in that dim would be a decision by
    the number of rows.
    """
    rank = len(_shape(node))
    places: set[tuple[int, int, int]] = set()
    for operand in node.all_input_nodes:
        if (rows := proof.of(operand)) is not None:
            places.add(replace(rows, dim=rows.dim + rank - len(_shape(operand))).place)
    if len(places) != 1:
        raise NotProved("joins rows that lie in different dims")
    _finite(proof, node)
    return Rows(*places.pop(), added=_pointwise_range(proof, node))


def _view(proof: _Proof, node: fx.Node) -> Rows | None:
    """Rows keep their place in memory order; they must not be cut apart."""
    source = _source(node)
    rows, before, after = _rows(proof, node), _shape(source), _shape(node)
    if _dtype(source) is not _dtype(node):
        raise NotProved("reads numbers as another type")
    outer = math.prod(before[: rows.dim]) * rows.outer
    inner = rows.inner * math.prod(before[rows.dim + 1 :])
    for dim, size in enumerate(node.meta["val"].shape):
        ahead, behind = math.prod(after[:dim]), math.prod(after[dim + 1 :])
        if proof.counts(size) and ahead and behind and outer % ahead == 0 and inner % behind == 0:
            return Rows(dim, outer // ahead, inner // behind, rows.added)
    raise NotProved("cuts rows apart")


def _permute(proof: _Proof, node: fx.Node) -> Rows | None:
    rows, rank, given = _rows(proof, node), len(_shape(_source(node))), _given(node)
    order = list(range(rank))
    if "dims" in given:
        order = [_dim(d, rank) for d in given["dims"]]
    elif "dim0" in given:
        one, other = _dim(given["dim0"], rank), _dim(given["dim1"], rank)
        order[one], order[other] = order[other], order[one]
    else:
        order.reverse()
    return replace(rows, dim=order.index(rows.dim))


def _expand(proof: _Proof, node: fx.Node) -> Rows | None:
    rows = _rows(proof, node)
    return replace(rows, dim=rows.dim + len(_shape(node)) - len(_shape(_source(node))))


def _other_dim(proof: _Proof, node: fx.Node) -> Rows | None:
    """Picks, joins or normalises along one dim, which must not be that of the rows."""
    sources = [n for n in node.all_input_nodes if n in proof.rows]
    if len({proof.rows[source].place for source in sources}) != 1:
        raise NotProved("joins rows that lie in different dims")
    rows, name = proof.rows[sources[0]], _name(node)
    dim = _dim(_given(node)["dim"], len(_shape(sources[0])))
    if dim == rows.dim:
        raise NotProved("works along the rows")
    picks = name in _PICKS
    added = rows.added if picks else Range(0.0, 1.0) if "_softmax" in name[-8:] else ANY
    added = ANY if name == "aten._log_softmax" else added
    return replace(rows, dim=rows.dim - (name == "aten.select" and dim < rows.dim), added=added)


def _slice(proof: _Proof, node: fx.Node) -> Rows | None:
    """Along another dim, or every row."""
    rows, given = _rows(proof, node), _given(node)
    if _dim(given["dim"], len(_shape(node))) == rows.dim and given["start"] not in (None, 0):
        raise NotProved("works along the rows")
    return rows


def _getitem(proof: _Proof, node: fx.Node) -> Rows | None:
    """One result of several; some of them, as the state of a random generator, have no rows."""
    value, rows = node.meta["val"], _rows(proof, node)
    return rows if any(map(proof.counts, value.shape)) else None


def _new(proof: _Proof, node: fx.Node) -> Rows | None:
    """A constant of the type of another tensor."""
    return proof.made_by_size(node) if any(map(proof.counts, node.meta["val"].shape)) else None


def _layer_norm(proof: _Proof, node: fx.Node) -> Rows | None:
    rows, given = _rows(proof, node), _given(node)
    if any(proof.of(given[key]) for key in ("weight", "bias")):
        raise NotProved("scales by rows")
    if rows.dim >= len(_shape(_source(node))) - len(given["normalized_shape"]):
        raise NotProved("normalises across the rows")
    if given["eps"] < _LEAST_EPS:
        raise NotProved("has no finite derivative where an added row may be")
    return replace(rows, added=ANY)


def _embedding(proof: _Proof, node: fx.Node) -> Rows | None:
    given = _given(node)
    rows = proof.of(given["indices"])
    if rows is None or proof.of(given["weight"]) is not None:
        raise NotProved("looks up rows")
    if given["scale_grad_by_freq"] or given["sparse"]:
        raise NotProved("has a gradient that depends on which rows are looked up")
    index, count = rows.added, _shape(_source(node))[0]
    if not 0 <= index.low <= index.high < count:
        raise NotProved("may have no row that added rows would look up")
    return replace(rows, added=ANY)


# --- ops that sum --------------------------------------------------------------------------------


def _reduce(proof: _Proof, node: fx.Node) -> Rows | None:
    rows, rank, given = _rows(proof, node), len(_shape(_source(node))), _given(node)
    dims = {_dim(d, rank) for d in given.get("dim") or range(rank)}
    if rows.dim in dims:
        if _name(node) == "aten.sum" and rows.added.zero:
            return None
        raise NotProved("reduces over the rows")
    removed = 0 if given.get("keepdim") else sum(dim < rows.dim for dim in dims)
    added = rows.added
    if _name(node) in ("aten.sum", "aten.mean") and not added.zero:
        same = _dtype(node) is _dtype(_source(node))
        added = Range(added.low) if added.low >= 0 and same else ANY
    return replace(rows, dim=rows.dim - removed, added=added)


def _matmul(proof: _Proof, node: fx.Node) -> Rows | None:
    """`mm`, `bmm`, and with something added first `addmm`, `baddbmm`."""
    adds = _name(node) in ("aten.addmm", "aten.baddbmm")
    left, right = node.args[1:3] if adds else node.args[0:2]
    assert isinstance(left, fx.Node)
    if adds and proof.of(node.args[0]) is not None:
        raise NotProved("adds rows to a product")
    _no_infinite_factor(proof, node)
    rank = len(_shape(left))
    one, other = proof.of(left), proof.of(right)
    zero = any(rows is not None and rows.added.zero for rows in (one, other))
    if (one and one.dim == rank - 1) or (other and other.dim == rank - 2):
        along = one and other and one.dim == rank - 1 and other.dim == rank - 2
        if not (along and one and other and one.place[1:] == other.place[1:] and zero):
            raise NotProved("multiplies along the rows")
        return None
    if one and other and (rank == 2 or one.place != other.place or one.dim != 0):
        raise NotProved("multiplies rows with rows")
    found = one or other
    assert found is not None
    return replace(found, added=ZERO if zero and not adds else ANY)


def _convolution(proof: _Proof, node: fx.Node) -> Rows | None:
    return _first_dim(proof, node, "mixes them over space or channels")


def _pool(proof: _Proof, node: fx.Node) -> Rows | None:
    rows = _rows(proof, node)
    if rows.dim >= len(_shape(_source(node))) - 2:
        raise NotProved("pools over the rows")
    return replace(rows, added=ANY)


def _inference_norm(proof: _Proof, node: fx.Node) -> Rows | None:
    given = _given(node)
    if given.get("training"):
        raise NotProved("normalises across the rows")
    if given.get("eps", given.get("epsilon", 0)) < _LEAST_EPS:
        raise NotProved("has no finite derivative where an added row may be")
    return _first_dim(proof, node, "normalises across the rows")


def _first_dim(proof: _Proof, node: fx.Node, why: str) -> Rows | None:
    rows = proof.of(node.args[0])
    if rows is None or rows.dim != 0 or any(n in proof.rows for n in node.all_input_nodes[1:]):
        raise NotProved(why)
    return replace(rows, added=ANY)


def _attention(proof: _Proof, node: fx.Node) -> Rows | None:
    """Batch and heads are apart from each other; the sequence is not."""
    given = _given(node)
    found = [proof.of(given[key]) for key in ("query", "key", "value")]
    rows = found[0]
    if rows is None or rows.dim > 1 or len({each and each.place for each in found}) != 1:
        raise NotProved("mixes the positions of a sequence")
    if given.get("dropout_p"):
        raise NotProved("draws random numbers, whose order padding moves")
    if any(proof.of(given.get(key)) for key in ("attn_mask", "attn_bias")):
        raise NotProved("may mask all of an added row")
    return replace(rows, added=ANY)


def _loss(proof: _Proof, node: fx.Node) -> Rows | None:
    """Rows whose label is the ignored class have no part in a sum or mean."""
    given = _given(node)
    scores, labels = proof.of(given["self"]), proof.of(given["target"])
    if given["reduction"] == 0:
        raise NotProved("keeps a loss for each row")
    together = scores and labels and scores.dim == 0 and scores.place == labels.place
    ignored = labels and labels.added.point == given["ignore_index"]
    if not (together and ignored):
        raise NotProved("reduces over the rows; `ignore = N` names a class that losses leave out")
    return None


_SAME = {"clone", "detach", "alias", "lift_fresh_copy"}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}
# f(0) = 0
_ZERO_KEPT = {"relu", "neg", "abs", "tanh", "sin", "silu", "gelu", "square", "sign", "erf"}
_RANGES = {
    **dict.fromkeys(("abs", "relu", "square", "exp", "exp2"), Range(0.0)),
    "sigmoid": Range(0.0, 1.0),
}
_LEAST_EPS = torch.finfo(torch.float32).tiny
# Above it an op and its derivative are finite.
_LOWEST = {"sqrt": 0.0, "rsqrt": 0.0, "log": 0.0, "log2": 0.0, "log1p": -1.0}
_POINTWISE = [
    "abs", "add", "addcmul", "bitwise_and", "bitwise_not", "bitwise_or", "clamp", "clamp_min",
    "cos", "div", "elu", "erf", "exp", "exp2", "expm1", "floor", "gelu", "hardsigmoid", "hardswish",
    "hardtanh", "isnan", "leaky_relu", "logical_and", "logical_not", "logical_or", "masked_fill",
    "maximum", "minimum", "mish", "mul", "neg", "pow", "reciprocal", "relu", "remainder", "round",
    "rsub", "sigmoid", "sign", "silu", "sin", "softplus", "square", "sub", "tanh", "threshold",
    "where", "_to_copy", "zeros_like", "ones_like", "full_like", "empty_like",
    *_SAME, *_COMPARISONS, *_LOWEST,
]  # fmt: skip
_VIEWS = ["view", "_unsafe_view", "squeeze", "unsqueeze"]
_PICKS = {"aten.select", "aten.split", "aten.split_with_sizes"}
# They are named for what they do; any op that is not known is refused all the same.
_RANDOM = {
    *(f"aten.{name}" for name in ("native_dropout", "bernoulli", "rand_like", "randn_like")),
    *(f"aten.{name}" for name in ("normal", "uniform", "multinomial", "exponential")),
}
_ZEROS = {"aten.zeros", "aten.new_zeros"}
# Which arguments may be the number of rows: a shape, or the end of what starts at 0.
_SIZED = {
    **{f"aten.{name}": ("size",) for name in ("view", "_unsafe_view", "expand", "zeros", "ones")},
    **{f"aten.{name}": ("size",) for name in ("full", "new_zeros", "new_ones", "new_full")},
    **{f"aten.{name}": ("end",) for name in ("arange", "slice")},
}
_FOLLOW: dict[str, Callable[[_Proof, fx.Node], Rows | None]] = {
    **{f"aten.{name}": _pointwise for name in _POINTWISE},
    **{f"aten.{name}": _view for name in _VIEWS},
    **{f"aten.{name}": _permute for name in ("permute", "transpose", "t")},
    **{f"aten.{name}": _reduce for name in ("sum", "mean", "amax", "amin")},
    **{f"aten.{name}": _matmul for name in ("mm", "bmm", "addmm", "baddbmm")},
    **{f"aten.{name}": _pool for name in ("max_pool2d_with_indices", "avg_pool2d",
                                          "_adaptive_avg_pool2d", "upsample_nearest2d")},
    **{f"aten.{name}": _other_dim for name in ("select", "split", "split_with_sizes", "cat",
                                               "_softmax", "_log_softmax", "cumsum")},
    **{f"aten.{name}": _inference_norm for name in ("native_batch_norm", "cudnn_batch_norm",
                                                    "_native_batch_norm_legit_no_training")},
    **{f"aten._scaled_dot_product_{name}": _attention for name in (
        "flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")},
    **{f"aten.{name}": _new for name in ("new_zeros", "new_ones", "new_full")},
    "aten.slice": _slice,
    "aten.expand": _expand,
    "aten.embedding": _embedding,
    "aten.native_layer_norm": _layer_norm,
    "aten.convolution": _convolution,
    "aten.nll_loss_forward": _loss,
    "<built-in function getitem>": _getitem,
}  # fmt: skip
