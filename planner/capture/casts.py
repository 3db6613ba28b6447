"""Casts of one precision stage, put into a Dynamo graph before it is differentiated.

The graph is walked call by call with fake values, once as the script wrote it and once as the stage
has it. fp32 parameters are cast where they are used, so that their gradients arrive in fp32.
Selectors are matched on the ATen ops that a call makes; a decision is made for the whole call.

Never cast: what a call changes in place, values that are views of others, explicit conversions of
the script, ops of other libraries than torch's. A call with a number that the format does not have
stays as written, and so does what reads its result, up to an op that bounds it, as softmax does.
What the graph returns has the dtype of the plain run. Knows nothing of steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
import torch.fx as fx
from torch.utils import _pytree as pytree

from sgplan.planner import torch_api
from sgplan.planner.capture.groups import group_ops
from sgplan.planner.capture.provenance import module_of
from sgplan.planner.capture.record import op_families
from sgplan.planner.capture.rewrite import Rewritten
from sgplan.planner.capture.schema import arguments
from sgplan.planner.capture.trial import objection
from sgplan.planner.kernels.written import written
from sgplan.planner.precision import Clash, Settings, clash_in

CASTS_VERSION = 3
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CONVERSIONS = frozenset({"to", "type", "type_as", "float", "double", "half", "bfloat16"})
_WITH_STATISTICS = frozenset({"batch_norm", "instance_norm"})
_LIBRARIES = ("aten", "prims")
# Both formats have these on every device; trying them costs as much as they do.
_KNOWN_TO_RUN = frozenset({"matmul", "conv", "attention"})
# What these make does not grow with a number such as a mask's.
_BOUNDING = frozenset({"attention", "softmax", "norm", "matmul", "conv", "loss", "embedding"})

Policy = Literal["as_written", "fp32", "bf16", "fp16"]
Wanted = Callable[[fx.Node], torch.dtype | None]


@dataclass(frozen=True, slots=True)
class _Op:
    """An op as a selector sees it."""

    op: str
    families: tuple[str, ...]
    module: str


@dataclass(slots=True)
class _Call:
    """What a call of the script comes to.

    Attributes:
        ops: as selectors see them; one that only looks at memory has none.
        foreign: an op of another library than torch's; empty without one.
        largest: magnitude of the numbers that it is given, infinity aside.
    """

    ops: list[_Op] = field(default_factory=list[_Op])
    foreign: str = ""
    largest: float = 0.0

    def number(self, value: object) -> None:
        if isinstance(value, (int, float)) and abs(value) < float("inf"):
            self.largest = max(self.largest, abs(value))

    def of(self, families: frozenset[str]) -> bool:
        """Whether an op belongs to one of these families."""
        return any(not families.isdisjoint(op.families) for op in self.ops)

    @property
    def bounds(self) -> bool:
        return self.of(_BOUNDING) and not any("log_softmax" in op.op for op in self.ops)


class _Widen(Exception):
    """A value that is changed in place later must be as the script wrote it.

    Attributes:
        maker: of its memory.
    """

    def __init__(self, maker: fx.Node) -> None:
        self.maker = maker


@dataclass(frozen=True, slots=True)
class CastPrecision:
    """Casts for one stage (`capture.rewrite.GraphPass`).

    Attributes:
        settings: of the stage, higher priority first.
        modules: module paths of the unwrapped model.
        noted: is told, in a sentence, what was left as the script wrote it.
        clashed: is told of an op that two settings claim; nothing is cast then.
    """

    name: ClassVar[str] = "cast_precision"
    settings: Settings
    modules: tuple[str, ...]
    noted: Callable[[str], None] = field(default=lambda text: None, compare=False)
    clashed: Callable[[Clash], None] = field(default=lambda clash: None, compare=False)

    @property
    def key(self) -> str:
        return str((CASTS_VERSION, self.settings))

    def apply(self, graph: Rewritten) -> Rewritten:
        """The graph with its casts; as it is where the script uses autocast itself."""
        if autocasts(graph.gm):
            self.noted(
                "the script uses autocast; `precision` leaves the formats of its graph to it"
            )
            return graph
        return replace(graph, gm=self._cast(graph.gm))

    def _cast(self, gm: fx.GraphModule) -> fx.GraphModule:
        examples = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
        fake = next((value for value in examples if torch_api.is_fake(value)), None)
        if fake is None:
            return gm
        calls = self._calls(gm)
        claimed = [(op, op.module) for call in calls.values() for op in call.ops]
        if (clash := clash_in(self.settings, claimed)) is not None:
            self.clashed(clash)
            return gm
        policies: dict[str, Policy] = {
            name: self._policy(call) for name, call in calls.items() if call.ops
        }
        wide: set[fx.Node] = set()
        while True:
            walk = _Walk(gm, calls, policies, wide)
            try:
                with torch.no_grad(), torch_api.fake_mode_of(fake):
                    made = walk.run()
            except _Widen as again:
                wide.add(again.maker)
                continue
            for note in walk.notes:
                self.noted(note)
            return made

    def _policy(self, call: _Call) -> Policy:
        # Looking rows up computes nothing; its readers cast them. Gradients of one row, which may
        # be many, are so summed in the format of the table.
        if all("embedding" in op.families for op in call.ops):
            return "as_written"
        for setting in self.settings:
            if not any(setting.takes(op, op.module) for op in call.ops):
                continue
            if call.foreign:
                self.noted(f"`{call.foreign}` is no op of torch: it gets the formats of the script")
                return "as_written"
            if any(setting.keeps(op, op.module) for op in call.ops):
                return "fp32"
            return setting.compute
        return "as_written"

    def _calls(self, gm: fx.GraphModule) -> dict[str, _Call]:
        """Every call by name."""
        graph = written(gm)
        groups = group_ops(graph.graph, self.modules)
        found: dict[str, _Call] = defaultdict(_Call)
        for node, name in graph.callers().items():
            call = found[name]
            _look_at(call, node)
            group = groups.get(node)
            if group is not None and not group.layout and node is group.nodes[0]:
                call.ops.append(_Op(group.op, group.families, group.module))
        for node in gm.graph.nodes:
            call = found[node.name]
            if isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
                _look_at(call, node)
            for value in pytree.tree_leaves((node.args, node.kwargs)):
                if isinstance(value, float):
                    call.number(value)
            own = graph.ops.get(node.name)
            if own is None or not call.ops:
                continue
            op = _Op(own, op_families(own, node), module_of(node, self.modules))
            # The softmax inside of attention is attention's own.
            call.ops[:] = [op] if "attention" in op.families else [op, *call.ops]
        return found


def _look_at(call: _Call, node: fx.Node) -> None:
    """Note the library of an op, and the numbers that it computes with; sizes are none."""
    op = node.target
    if isinstance(op, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        name = str(op)
        if name.partition(".")[0] not in _LIBRARIES:
            call.foreign = call.foreign or name
    if not isinstance(op, torch._ops.OpOverload):
        return
    given = arguments(node)
    for argument in op._schema.arguments:
        kind: Any = argument.type
        if kind.kind() == "OptionalType":
            kind = kind.getElementType()
        if kind.kind() in ("NumberType", "TensorType"):
            call.number(given.get(argument.name))


def autocasts(gm: fx.GraphModule) -> bool:
    """Whether a Dynamo graph runs under autocast of the script, as a whole or in a part."""
    entered = (
        node
        for body in gm.modules()
        if isinstance(body, fx.GraphModule)
        for node in body.graph.nodes
        if node.op == "call_function" and _name(node) == "_enter_autocast"
    )
    # Of what is entered: device, dtype, whether it is enabled.
    switched_on = any(len(node.args) < 3 or node.args[2] is not False for node in entered)
    return switched_on or any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _name(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    return getattr(node.target, "__name__", str(node.target))


class _Walk:
    """One walk over one graph: what each value is in the script, and in the stage."""

    def __init__(
        self,
        gm: fx.GraphModule,
        calls: Mapping[str, _Call],
        policies: Mapping[str, Policy],
        wide: Collection[fx.Node],
    ) -> None:
        self._gm = gm
        self._calls = calls
        self._policies = policies
        self._wide = wide
        self.notes: list[str] = []
        self._graph = fx.Graph()
        self._plain: dict[fx.Node, Any] = {}  # by nodes of the script's graph
        self._new: dict[fx.Node, fx.Node] = {}
        self._value: dict[fx.Node, Any] = {}  # by nodes of the new graph
        # By memory: who made it, and the largest number behind it that no op has bounded.
        self._maker: dict[int, fx.Node] = {}
        self._largest: dict[int, float] = {}

    def run(self) -> fx.GraphModule:
        for node in self._gm.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._keep(node, self._given(node), None)
            elif node.op == "output":
                args = self._arguments(node, self._as_script)
                self._graph.output(args[0][0])
                self._graph.output_node().meta.update(node.meta)
            else:
                self._call(node)
        made = fx.GraphModule(self._gm, self._graph)
        made.meta.update(self._gm.meta)
        return made

    def _given(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return node.meta.get("example_value")
        found: Any = self._gm
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return node.meta.get("example_value", found)

    def _keep(self, node: fx.Node, plain: Any, value: Any, args: Any = None) -> None:
        new = self._graph.node_copy(node, lambda n: self._new[n])
        if args is not None:
            new.args, new.kwargs = args
            new.meta["example_value"] = value
        self._plain[node], self._new[node] = plain, new
        self._value[new] = plain if args is None else value

    # --- one call --------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> None:
        given = list(dict.fromkeys(node.all_input_nodes))
        tensors = [n for n in given if isinstance(self._plain[n], torch.Tensor)]
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self.notes.append(f"`{_name(node)}` keeps the formats of the script inside")
            plain = node.meta["example_value"]
            self._keep(node, plain, plain, self._arguments(node, self._as_script))
            return
        versions = {n: self._plain[n]._version for n in tensors}
        plain = _run(node, (node.args, node.kwargs), self._plain)
        changed = {n for n in tensors if self._plain[n]._version != versions[n]} | set(
            _statistics(node)
        )
        largest = self._grown(node, changed, plain)
        policy = self._policy(node, largest)
        wanted = self._wanted(node, policy, tensors, changed, plain)
        try:
            args = self._arguments(node, wanted)
            value = self._rerun(node, args, plain)
            self._try(node, policy, args)
        except Exception as error:  # whatever an op says of a format that it does not have
            first = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
            self._stays(node, first)
            args = self._arguments(node, lambda n: None if n in changed else self._as_script(n))
            value = self._rerun(node, args, plain)
        self._keep(node, plain, value, args)

    def _stays(self, node: fx.Node, why: str) -> None:
        self.notes.append(f"`{node.name}` stays as the script wrote it: {why}")

    def _grown(self, node: fx.Node, changed: Collection[fx.Node], plain: Any) -> float:
        """The largest number behind a call; what the call makes or changes has it behind it too.

        Raises:
            _Widen: it is written into memory in a format that does not have it.
        """
        call = self._calls[node.name]
        read = [memory for n in node.all_input_nodes for memory in _memories(self._plain[n])]
        largest = max([call.largest, *(self._largest.get(memory, 0.0) for memory in read)])
        for n in changed:
            now, written = self._value[self._new[n]].dtype, self._plain[n]
            if now is written.dtype or largest <= torch.finfo(now).max:
                continue
            maker = next((self._maker.get(memory) for memory in _memories(written)), None)
            if maker is not None and maker not in self._wide:
                raise _Widen(maker)
        made = pytree.tree_leaves(plain)
        touched = [*made, *(self._plain[n] for n in changed)]
        for value in touched:
            for memory in _memories(value):
                self._maker.setdefault(memory, node)
                if not call.bounds and value.dtype is not torch.bool:
                    self._largest[memory] = max(self._largest.get(memory, 0.0), largest)
        return largest

    def _policy(self, node: fx.Node, largest: float) -> Policy | None:
        policy = self._policies.get(node.name)
        if policy not in LOW:
            return policy
        if node in self._wide:
            self._stays(node, f"numbers that {policy} does not have are written into it")
            return "as_written"
        if largest > torch.finfo(LOW[policy]).max:
            self._stays(node, f"{policy} does not have {largest:.3g}, which is behind it")
            return "as_written"
        return policy

    def _try(self, node: fx.Node, policy: Policy | None, args: Any) -> None:
        """Have an op that few formats may know run once; tracing alone does not show it.

        Raises:
            TypeError: it does not run in the formats that it gets.
        """
        if policy not in LOW or self._calls[node.name].of(_KNOWN_TO_RUN):
            return
        if self._unchanged(node, args):
            return
        plain = fx.map_arg((node.args, node.kwargs), lambda n: self._plain[n])
        low = fx.map_arg(args, lambda n: self._value[n])
        if why := objection(_function(node), str(node.target), plain, low):
            raise TypeError(why)

    def _wanted(
        self,
        node: fx.Node,
        policy: Policy | None,
        tensors: Sequence[fx.Node],
        changed: set[fx.Node],
        plain: Any,
    ) -> Wanted:
        """Which dtype an argument shall have; None for the one that it has."""
        name = _name(node)
        targets = [n for n in changed if _shares(self._plain[n], plain)]
        if targets:
            target = self._value[self._new[targets[0]]].dtype
            return lambda n: None if n in changed else self._float_as(n, target)
        if name in _CONVERSIONS or name.startswith("new_") or name.endswith("_like"):
            return self._as_script
        views = any(_shares(self._plain[n], plain) for n in tensors)
        if views or (policy is None and len(tensors) <= 1):
            return lambda n: None
        if policy in LOW:
            low = LOW[policy]
            return lambda n: None if n in changed else self._float_as(n, low)
        if policy == "fp32":
            return lambda n: None if n in changed else self._float_as(n, torch.float32)
        return lambda n: None if n in changed else self._as_script(n)

    def _float_as(self, node: fx.Node, dtype: torch.dtype) -> torch.dtype | None:
        value = self._value[self._new[node]]
        known = (torch.float32, torch.bfloat16, torch.float16)
        return dtype if isinstance(value, torch.Tensor) and value.dtype in known else None

    def _as_script(self, node: fx.Node) -> torch.dtype | None:
        plain = self._plain[node]
        return plain.dtype if isinstance(plain, torch.Tensor) else None

    # --- arguments -------------------------------------------------------------------------------

    def _arguments(self, node: fx.Node, wanted: Wanted) -> Any:
        return fx.map_arg(
            (node.args, node.kwargs), lambda n: self._as(self._new[n], wanted(n), node)
        )

    def _as(self, new: fx.Node, dtype: torch.dtype | None, reader: fx.Node) -> fx.Node:
        value = self._value[new]
        if dtype is None or not isinstance(value, torch.Tensor) or value.dtype == dtype:
            return new
        # One for each use: equal ones are merged after differentiation, so that gradients of
        # several uses are summed in the format of the parameter.
        cast = self._graph.call_method("to", (new, dtype))
        dropped = ("example_value", "from_node", "val", "source_fn_stack")
        cast.meta.update({k: v for k, v in reader.meta.items() if k not in dropped})
        self._value[cast] = cast.meta["example_value"] = value.to(dtype)
        return cast

    def _rerun(self, node: fx.Node, args: Any, plain: Any) -> Any:
        """The call on the stage's values; what has the same arguments is not run twice."""
        return plain if self._unchanged(node, args) else _run(node, args, self._value)

    def _unchanged(self, node: fx.Node, args: Any) -> bool:
        before = fx.map_arg((node.args, node.kwargs), lambda n: self._new[n])
        given = node.all_input_nodes
        return args == before and all(self._value[self._new[n]] is self._plain[n] for n in given)


def _run(node: fx.Node, arguments: Any, values: Mapping[fx.Node, Any]) -> Any:
    args, kwargs = fx.map_arg(arguments, lambda n: values[n])
    return _function(node)(*args, **kwargs)


def _function(node: fx.Node) -> Callable[..., Any]:
    """What a node calls, as a function."""
    if node.op == "call_method":
        return lambda own, *args, **kwargs: getattr(own, str(node.target))(*args, **kwargs)
    assert callable(node.target)
    return node.target


def _memories(values: Any) -> list[int]:
    tensors = (v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor))
    return [tensor.untyped_storage()._cdata for tensor in tensors]


def _statistics(node: fx.Node) -> Iterator[fx.Node]:
    """Running statistics, which no schema says are updated, and the weights of the same dtype."""
    if _name(node) in _WITH_STATISTICS:
        yield from node.all_input_nodes[1:]


def _shares(value: Any, results: Any) -> bool:
    """Whether a result is a view of a value, or the value itself."""
    if not isinstance(value, torch.Tensor):
        return False
    own = value.untyped_storage()._cdata
    return any(
        isinstance(r, torch.Tensor) and r.untyped_storage()._cdata == own
        for r in pytree.tree_leaves(results)
    )
