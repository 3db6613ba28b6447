"""A proof, op by op, that rows added to an input of a graph change nothing but rows of its outputs.

A *row dim* is followed from the enlarged inputs through the ATen forward graph. An op may keep it
(each row of the result is made of the same rows of its operands), or drop it when what it sums is
zero in every added row, whatever the parameters are. Then the result on the real rows, and every
gradient, is that of the call without added rows: outputs are cut back, so an added row gets no
gradient, and what is identically zero has none. Any other op, and every op that is not listed
here, is no proof.

Padding is assumed to give finite numbers: `0 * inf` is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from sgplan.planner import torch_api


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a value lie.

    Attributes:
        dim: the dim that holds them; its size is `outer * N * inner`.
        outer, inner: what was merged into the dim before and behind the rows.
        zero: the added rows are zero, whatever the parameters are.
    """

    dim: int
    outer: int = 1
    inner: int = 1
    zero: bool = False


class NotProved(Exception):
    """The first op that the proof does not get past, and why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the proof found.

    Attributes:
        outputs: of each tensor that the graph returns, its shape as captured and its rows; None
            where padding does not show.
    """

    outputs: tuple[tuple[tuple[int, ...], Rows | None], ...]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the proof starts from; placeholders of the Dynamo graph by number.

    Attributes:
        rows: of those that are enlarged.
        user: those that belong to the call, not to the model.
        labels: those whose added rows hold the class that losses ignore.
        ignore: that class.
    """

    rows: Mapping[int, Rows]
    user: frozenset[int] = frozenset()
    labels: frozenset[int] = frozenset()
    ignore: int | None = None


def prove(gm: fx.GraphModule, inputs: Inputs) -> Outcome:
    """Follow the rows through a Dynamo graph in which their number is a symbol.

    A number that was captured as a constant could hide in any op, so the symbol may stand in shapes
    only, and no branch of the script may hang on it.

    Raises:
        NotProved: naming the op.
    """
    traced, values = torch_api.trace_calls(gm)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    proof = _Proof(
        {node: inputs.rows[i] for i, node in enumerate(placeholders) if i in inputs.rows},
        {node for i, node in enumerate(placeholders) if i in inputs.user},
        {node for i, node in enumerate(placeholders) if i in inputs.labels},
        inputs.ignore,
    )
    for node in traced.graph.nodes:
        if node.op == "call_function" and _is_tensor(node):
            proof.visit(node)
    if decided := torch_api.decisions_by(proof.symbols):
        raise NotProved(f"the model decides by the number of rows: `{decided[0]}`")
    results: list[tuple[tuple[int, ...], Rows | None]] = []
    for made in gm.graph.output_node().all_input_nodes:
        node = values.get(made.name)
        if node is not None and isinstance(node.meta.get("val"), torch.Tensor):
            results.append((_shape(node), proof.rows.get(node)))
    return Outcome(tuple(results))


def _is_tensor(node: fx.Node) -> bool:
    """Whether a node makes tensors; sizes are worked out beside them."""
    value = node.meta.get("val")
    return isinstance(value, (torch.Tensor, tuple, list))


class _Proof:
    def __init__(
        self,
        rows: dict[fx.Node, Rows],
        user: set[fx.Node],
        labels: set[fx.Node],
        ignore: int | None,
    ) -> None:
        self.rows = rows
        self.ignore = ignore
        self.labels = labels
        self._user = user
        sizes = [node.meta["val"].shape[found.dim] for node, found in rows.items()]
        if any(torch_api.is_fixed(size) for size in sizes):
            raise NotProved("the model uses the number of rows as a number of its code")
        self.symbols: list[Any] = sizes

    def visit(self, node: fx.Node) -> None:
        """Work out the rows of one node's value."""
        name = _name(node)
        if any(n in self._user for n in node.all_input_nodes):
            self._user.add(node)
        tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        if tensors and all(n in self.labels for n in tensors) and name in _VIEWS:
            self.labels.add(node)
        if name.removesuffix("_") in _RANDOM:
            raise NotProved(f"`{name}` draws random numbers, whose order padding moves")
        counted = any(
            self.counts(n.meta.get("val")) for n in node.all_input_nodes if n not in tensors
        )
        if counted and name not in _SIZED:
            raise NotProved(f"`{name}`{_module(node)} computes with the number of rows")
        if not any(n in self.rows for n in node.all_input_nodes):
            if counted:
                self._made_by_size(node)
            return
        follow = _FOLLOW.get(name)
        if follow is None:
            raise NotProved(f"`{name}`{_module(node)} is no op that the proof knows")
        try:
            found = follow(self, node)
        except NotProved as error:
            raise NotProved(f"`{name}`{_module(node)} {error}") from None
        if found is not None:
            self.rows[node] = found

    def counts(self, size: Any) -> bool:
        """Whether a number depends on how many rows there are."""
        return any(torch_api.depends_on(size, symbol) for symbol in self.symbols)

    def _made_by_size(self, node: fx.Node) -> None:
        """A constant as long as there are rows: its first part is the same for every number."""
        name, where = _name(node), _module(node)
        from_zero = {
            "aten.arange": len(node.args) == 1 or (node.args[0] == 0 and len(node.args) == 2),
            "aten.slice": node.args[2:3] == (0,) and len(node.args) == 4,
        }
        if not from_zero.get(name, True):
            raise NotProved(f"`{name}`{where} counts from the number of rows")
        dims = [dim for dim, n in enumerate(node.meta["val"].shape) if self.counts(n)]
        if len(dims) != 1:
            raise NotProved(f"`{name}`{where} has the rows in several dims")
        self.rows[node] = Rows(dims[0], zero=name in _ZEROS)

    def of(self, node: Any) -> Rows | None:
        return self.rows.get(node) if isinstance(node, fx.Node) else None

    def need_user(self, node: fx.Node) -> bool:
        """Whether a value is computed from the call's own tensors."""
        return node in self._user


def _name(node: fx.Node) -> str:
    target = node.target
    return str(target.overloadpacket) if isinstance(target, torch._ops.OpOverload) else str(target)


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0]) for entry in stack.values()]
    return f" in `{paths[-1]}`" if paths and paths[-1] else ""


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(torch_api.size_hint(size) for size in node.meta["val"].shape)


def _dim(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


# --- ops that keep each row apart ----------------------------------------------------------------


def _pointwise(proof: _Proof, node: fx.Node) -> Rows | None:
    """Operands are broadcast against each other from the last dim."""
    out = len(_shape(node))
    found: Rows | None = None
    zeros: list[bool] = []
    operands = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    for operand in operands:
        rows = proof.of(operand)
        if rows is None:
            continue
        moved = replace(rows, dim=rows.dim + out - len(_shape(operand)), zero=False)
        if found is not None and moved != found:
            raise NotProved("joins rows that lie in different dims")
        found = moved
    assert found is not None
    for operand in operands:
        rows, shape = proof.of(operand), _shape(operand)
        dim = found.dim - out + len(shape)
        if rows is None and dim >= 0 and shape[dim] != 1 and proof.need_user(operand):
            raise NotProved("joins rows with a tensor of the call that has none")
        zeros.append(rows is not None and rows.zero)
    return replace(found, zero=_zero_after(_name(node), operands, zeros, node))


def _zero_after(
    name: str, operands: Sequence[fx.Node], zeros: Sequence[bool], node: fx.Node
) -> bool:
    if name in _PRODUCTS:
        return any(zeros)
    if name in _QUOTIENTS:
        return bool(zeros) and node.args[0] is operands[0] and zeros[0]
    if name in _SUMS:
        return all(zeros) and all(isinstance(arg, fx.Node) for arg in node.args[:2])
    return name in _ZERO_KEPT and all(zeros)


def _view(proof: _Proof, node: fx.Node) -> Rows | None:
    """Rows keep their place in memory order; they must not be cut apart."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rows = proof.rows[source]
    before, after = _shape(source), _shape(node)
    count = before[rows.dim] // (rows.outer * rows.inner)
    outer = math.prod(before[: rows.dim]) * rows.outer
    inner = rows.inner * math.prod(before[rows.dim + 1 :])
    for dim, size in enumerate(after):
        ahead, behind = math.prod(after[:dim]), math.prod(after[dim + 1 :])
        if outer % ahead or inner % behind:
            continue
        own_outer, own_inner = outer // ahead, inner // behind
        if size == own_outer * count * own_inner:
            return Rows(dim, own_outer, own_inner, rows.zero)
    raise NotProved("cuts rows apart")


def _permute(proof: _Proof, node: fx.Node) -> Rows | None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rows, rank = proof.rows[source], len(_shape(source))
    name = _name(node)
    if name == "aten.permute":
        order = [_dim(d, rank) for d in _ints(node.args[1])]
    elif name == "aten.t":
        order = list(reversed(range(rank)))
    else:
        one, other = (_dim(d, rank) for d in _ints(node.args[1:3]))
        order = list(range(rank))
        order[one], order[other] = order[other], order[one]
    return replace(rows, dim=order.index(rows.dim))


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values]


def _expand(proof: _Proof, node: fx.Node) -> Rows | None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rows = proof.rows[source]
    return replace(rows, dim=rows.dim + len(_shape(node)) - len(_shape(source)))


def _unsqueeze(proof: _Proof, node: fx.Node) -> Rows | None:
    source, dim = node.args[0], node.args[1]
    assert isinstance(source, fx.Node)
    assert isinstance(dim, int)
    rows = proof.rows[source]
    dim = _dim(dim, len(_shape(node)))
    return replace(rows, dim=rows.dim + (dim <= rows.dim))


def _other_dim(proof: _Proof, node: fx.Node) -> Rows | None:
    """Slices, picks, joins or normalises along one dim, which must not be that of the rows."""
    sources = [n for n in node.all_input_nodes if n in proof.rows]
    rank = len(_shape(sources[0]))
    position = 2 if _name(node) in _DIM_SECOND else 1
    given = node.args[position] if len(node.args) > position else 0
    assert isinstance(given, int)
    dim = _dim(given, rank)
    found = {replace(proof.rows[s], zero=False) for s in sources}
    if len(found) > 1:
        raise NotProved("joins rows that lie in different dims")
    rows = found.pop()
    if dim == rows.dim and _name(node) == "aten.slice" and _is_whole(proof, node):
        return proof.rows[sources[0]]
    if dim == rows.dim:
        raise NotProved("works along the rows")
    others = [n for n in node.all_input_nodes if n not in sources and proof.need_user(n)]
    if others:
        raise NotProved("joins rows with a tensor of the call that has none")
    zero = _name(node) in _SLICES and all(proof.rows[s].zero for s in sources)
    removed = _name(node) == "aten.select" and dim < rows.dim
    return replace(rows, dim=rows.dim - removed, zero=zero)


def _is_whole(proof: _Proof, node: fx.Node) -> bool:
    """`x[:]`: a slice that takes every row."""
    source, start, end = node.args[0], *(node.args[2:4] or (0, None))
    assert isinstance(source, fx.Node)
    whole = end is None or (isinstance(end, int) and end >= _shape(source)[proof.rows[source].dim])
    return start in (None, 0) and whole and len(node.args) <= 4


def _getitem(proof: _Proof, node: fx.Node) -> Rows | None:
    """One result of several: all have the dims of the first, or none."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rows = proof.rows[source]
    shape = tuple(node.meta["val"].shape) if isinstance(node.meta["val"], torch.Tensor) else ()
    return rows if len(shape) > rows.dim and shape[rows.dim] != 1 else None


def _layer_norm(proof: _Proof, node: fx.Node) -> Rows | None:
    source, sizes = node.args[0], node.args[1]
    assert isinstance(source, fx.Node)
    assert isinstance(sizes, (list, tuple))
    rows = proof.rows[source]
    if rows.dim >= len(_shape(source)) - len(sizes):
        raise NotProved("normalises across the rows")
    return replace(rows, zero=False)


def _embedding(proof: _Proof, node: fx.Node) -> Rows | None:
    rows = proof.of(node.args[1])
    if rows is None or proof.of(node.args[0]) is not None:
        raise NotProved("looks up rows")
    if any(node.args[3:4]):
        raise NotProved("scales its gradient by how often an index occurs")
    return replace(rows, zero=False)


# --- ops that sum --------------------------------------------------------------------------------


def _reduce(proof: _Proof, node: fx.Node) -> Rows | None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rows, rank = proof.rows[source], len(_shape(source))
    given = node.args[1] if len(node.args) > 1 else None
    dims = [
        _dim(d, rank) for d in _ints([given] if isinstance(given, int) else given or range(rank))
    ]
    keep = bool(node.args[2]) if len(node.args) > 2 else bool(node.kwargs.get("keepdim", False))
    if rows.dim in dims:
        if _name(node) == "aten.sum" and rows.zero:
            return None
        raise NotProved("reduces over the rows")
    removed = 0 if keep else sum(dim < rows.dim for dim in dims)
    return replace(rows, dim=rows.dim - removed, zero=rows.zero and _name(node) == "aten.sum")


def _matmul(proof: _Proof, node: fx.Node) -> Rows | None:
    """`mm`, `bmm`, and with something added first `addmm`, `baddbmm`."""
    adds = _name(node) in ("aten.addmm", "aten.baddbmm")
    left, right = node.args[1:3] if adds else node.args[0:2]
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    rank = len(_shape(left))
    of_left, of_right = proof.of(left), proof.of(right)
    in_left = of_left is not None and of_left.dim == rank - 1
    in_right = of_right is not None and of_right.dim == rank - 2
    found: Rows | None = None
    if in_left or in_right:
        both = (of_left, of_right) if in_left and in_right else ()
        if len({rows and (rows.outer, rows.inner) for rows in both}) != 1 or not any(
            rows is not None and rows.zero for rows in both
        ):
            raise NotProved("multiplies along the rows")
    else:
        found = of_left or of_right
        if (of_left and of_right and (of_left.dim, of_right.dim) != (0, 0)) or (
            of_left and of_right and rank == 2
        ):
            raise NotProved("multiplies rows with rows")
        if of_left and of_right:
            found = replace(of_left, zero=of_left.zero or of_right.zero)
        elif found is not None and found.dim == 0 and rank == 3:
            other = right if of_left else left
            if proof.need_user(other):
                raise NotProved("joins rows with a tensor of the call that has none")
    added = node.args[0] if adds else None
    if isinstance(added, fx.Node):
        in_added = proof.of(added)
        if in_added is not None:
            raise NotProved("adds rows to a product")
        found = None if found is None else replace(found, zero=False)
    return found


def _convolution(proof: _Proof, node: fx.Node) -> Rows | None:
    return _first_dim(proof, node, "mixes them over space or channels")


def _pool(proof: _Proof, node: fx.Node) -> Rows | None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rows = proof.rows[source]
    if rows.dim >= len(_shape(source)) - 2:
        raise NotProved("pools over the rows")
    return replace(rows, zero=False)


def _inference_norm(proof: _Proof, node: fx.Node) -> Rows | None:
    return _first_dim(proof, node, "normalises across the rows")


def _first_dim(proof: _Proof, node: fx.Node, why: str) -> Rows | None:
    source = node.args[0]
    rows = proof.of(source)
    if rows is None or rows.dim != 0 or any(n in proof.rows for n in node.all_input_nodes[1:]):
        raise NotProved(why)
    return replace(rows, zero=False)


def _attention(proof: _Proof, node: fx.Node) -> Rows | None:
    """Batch and heads are apart from each other; the sequence is not."""
    found = {proof.of(n) and replace(proof.rows[n], zero=False) for n in node.all_input_nodes[:3]}
    rows = found.pop()
    if found or rows is None or rows.dim > 1:
        raise NotProved("mixes the positions of a sequence")
    if node.args[3:4] and isinstance(node.args[3], float) and node.args[3] > 0:
        raise NotProved("draws random numbers, whose order padding moves")
    return rows


def _loss(proof: _Proof, node: fx.Node) -> Rows | None:
    """Rows whose label is the ignored class have no part in a sum or mean."""
    scores, labels = node.args[0:2]
    reduction, ignored = node.args[3:5]
    if reduction == 0:
        raise NotProved("keeps a loss for each row")
    known = isinstance(labels, fx.Node) and labels in proof.labels
    apart = [(r.outer, r.inner) for n in (scores, labels) if (r := proof.of(n)) and r.dim == 0]
    known = known and len(apart) == 2 and apart[0] == apart[1]
    if proof.ignore is None or ignored != proof.ignore or not known:
        raise NotProved("reduces over the rows; `ignore = N` names a class that losses leave out")
    return None


_POINTWISE = [
    "abs", "add", "addcmul", "addcdiv", "bitwise_and", "bitwise_not", "bitwise_or", "clamp",
    "clamp_min", "cos", "div", "elu", "eq", "erf", "exp", "exp2", "expm1", "floor", "ge",
    "gelu", "gt", "hardsigmoid", "hardswish", "hardtanh", "isnan", "le", "leaky_relu", "log",
    "log1p", "log2", "logical_and", "logical_not", "logical_or", "lt", "masked_fill", "maximum",
    "minimum", "mish", "mul", "ne", "neg", "pow", "reciprocal", "relu", "remainder", "round",
    "rsqrt", "rsub", "scalar_tensor", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt",
    "square", "sub", "tanh", "threshold", "_to_copy", "where", "clone", "detach", "alias",
    "lift_fresh_copy", "_conj", "zeros_like", "ones_like", "full_like", "empty_like",
]  # fmt: skip
_VIEW = ["view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "_reshape_alias"]
_VIEWS = {f"aten.{name}" for name in (*_VIEW, "unsqueeze", "clone", "_to_copy", "to", "detach")}
_PRODUCTS = {"aten.mul"}
_QUOTIENTS = {"aten.div"}
_SUMS = {"aten.add", "aten.sub"}
_ZERO_KEPT = {
    *(f"aten.{name}" for name in ("relu", "neg", "abs", "tanh", "sin", "silu", "gelu", "square")),
    *(f"aten.{name}" for name in ("sqrt", "clone", "detach", "alias", "_to_copy")),
}
_SLICES = {"aten.slice", "aten.select", "aten.split", "aten.split_with_sizes", "aten.chunk"}
_DIM_SECOND = {"aten.split", "aten.split_with_sizes", "aten.chunk"}
_RANDOM = {
    *(f"aten.{name}" for name in ("native_dropout", "bernoulli", "rand", "rand_like", "randn")),
    *(f"aten.{name}" for name in ("randn_like", "randint", "randperm", "normal", "uniform")),
}
_ZEROS = {"aten.zeros", "aten.new_zeros"}
# What may take the number of rows: as a shape, or as the end of something that starts at 0.
_SIZED = {
    *_VIEWS,
    *_ZEROS,
    *(f"aten.{name}" for name in _VIEW),
    *(f"aten.{name}" for name in ("expand", "arange", "ones", "new_ones", "full", "slice")),
}
_FOLLOW: dict[str, Callable[[_Proof, fx.Node], Rows | None]] = {
    **{f"aten.{name}": _pointwise for name in _POINTWISE},
    **{f"aten.{name}": _view for name in _VIEW},
    **{f"aten.{name}": _permute for name in ("permute", "transpose", "t")},
    **{f"aten.{name}": _reduce for name in ("sum", "mean", "amax", "amin")},
    **{f"aten.{name}": _matmul for name in ("mm", "bmm", "addmm", "baddbmm")},
    **{f"aten.{name}": _pool for name in ("max_pool2d_with_indices", "avg_pool2d",
                                          "_adaptive_avg_pool2d", "upsample_nearest2d")},
    **{f"aten.{name}": _other_dim for name in ("slice", "select", "split", "split_with_sizes",
                                               "cat", "_softmax", "_log_softmax", "cumsum")},
    "aten.expand": _expand,
    "aten.unsqueeze": _unsqueeze,
    "aten.embedding": _embedding,
    "aten.native_layer_norm": _layer_norm,
    "aten.convolution": _convolution,
    "aten._native_batch_norm_legit_no_training": _inference_norm,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention": _attention,
    "aten._scaled_dot_product_efficient_attention": _attention,
    "aten.nll_loss_forward": _loss,
    "<built-in function getitem>": _getitem,
}  # fmt: skip
