"""Casts of one precision stage, put into a Dynamo graph before it is differentiated.

The graph is walked call by call with fake values, once as the script wrote it and once as the stage
has it. fp32 parameters are cast where they are used, so that their gradients arrive in fp32.
Selectors are matched on the ATen ops that a call makes; a decision is made for the whole call.

Never cast: what a call changes in place, values that are views of others, explicit conversions of
the script. What the graph returns has the dtype of the plain run. Knows nothing of steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sgplan.planner.kernels.written import written
from sgplan.planner.precision import Clash, Settings, clash_in

CASTS_VERSION = 2
_LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CONVERSIONS = frozenset({"to", "type", "type_as", "float", "double", "half", "bfloat16"})
_WITH_STATISTICS = frozenset({"batch_norm", "instance_norm"})

Policy = Literal["as_written", "fp32", "bf16", "fp16"]
Wanted = Callable[[fx.Node], torch.dtype | None]


@dataclass(frozen=True, slots=True)
class _Op:
    """An op as a selector sees it."""

    op: str
    families: tuple[str, ...]
    module: str


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
        if _autocasts(graph.gm):
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
        calls = self._ops(gm)
        claimed = [(op, op.module) for ops in calls.values() for op in ops]
        if (clash := clash_in(self.settings, claimed)) is not None:
            self.clashed(clash)
            return gm
        policies: dict[str, Policy] = {name: self._policy(ops) for name, ops in calls.items()}
        walk = _Walk(gm, policies, self.noted)
        with torch.no_grad(), torch_api.fake_mode_of(fake):
            return walk.run()

    def _policy(self, ops: Sequence[_Op]) -> Policy:
        # Looking rows up computes nothing; its readers cast them. Gradients of one row, which may
        # be many, are so summed in the format of the table.
        if all("embedding" in op.families for op in ops):
            return "as_written"
        for setting in self.settings:
            if not any(setting.takes(op, op.module) for op in ops):
                continue
            if any(setting.keeps(op, op.module) for op in ops):
                return "fp32"
            return setting.compute
        return "as_written"

    def _ops(self, gm: fx.GraphModule) -> dict[str, list[_Op]]:
        """For each call by name; one that makes no op, or only looks at memory, has none."""
        graph = written(gm)
        groups = group_ops(graph.graph, self.modules)
        found: dict[str, list[_Op]] = defaultdict(list)
        for node, name in graph.callers().items():
            group = groups.get(node)
            if group is not None and not group.layout and node is group.nodes[0]:
                found[name].append(_Op(group.op, group.families, group.module))
        for node in gm.graph.nodes:
            own = graph.ops.get(node.name)
            if own is None or node.name not in found:
                continue
            op = _Op(own, op_families(own, node), module_of(node, self.modules))
            # The softmax inside of attention is attention's own.
            found[node.name] = [op] if "attention" in op.families else [op, *found[node.name]]
        return found


def _autocasts(gm: fx.GraphModule) -> bool:
    entered = any("autocast" in _name(n) for n in gm.graph.nodes if n.op == "call_function")
    return entered or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _name(node: fx.Node) -> str:
    if isinstance(node.target, str):
        return node.target
    return getattr(node.target, "__name__", str(node.target))


class _Walk:
    """One walk over one graph: what each value is in the script, and in the stage."""

    def __init__(
        self, gm: fx.GraphModule, policies: Mapping[str, Policy], noted: Callable[[str], None]
    ) -> None:
        self._gm = gm
        self._policies = policies
        self._noted = noted
        self._graph = fx.Graph()
        self._plain: dict[fx.Node, Any] = {}  # by nodes of the script's graph
        self._new: dict[fx.Node, fx.Node] = {}
        self._value: dict[fx.Node, Any] = {}  # by nodes of the new graph

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
            self._noted(f"`{_name(node)}` keeps the formats of the script inside")
            plain = node.meta["example_value"]
            self._keep(node, plain, plain, self._arguments(node, self._as_script))
            return
        versions = {n: self._plain[n]._version for n in tensors}
        plain = _run(node, self._plain)
        changed = {n for n in tensors if self._plain[n]._version != versions[n]} | set(
            _statistics(node)
        )
        policy = self._policies.get(node.name)
        wanted = self._wanted(node, policy, tensors, changed, plain)
        try:
            args = self._arguments(node, wanted)
            value = self._rerun(node, args, plain)
        except Exception as error:  # whatever an op says of a format that it does not have
            first = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
            self._noted(f"`{node.name}` stays as the script wrote it: {first}")
            args = self._arguments(node, lambda n: None if n in changed else self._as_script(n))
            value = self._rerun(node, args, plain)
        self._keep(node, plain, value, args)

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
        if policy in ("bf16", "fp16") and not _too_large(node, _LOW[policy]):
            low = _LOW[policy]
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
        before = fx.map_arg((node.args, node.kwargs), lambda n: self._new[n])
        given = node.all_input_nodes
        if args == before and all(self._value[self._new[n]] is self._plain[n] for n in given):
            return plain
        return _run_with(node, args, self._value)


def _run(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    return _run_with(node, (node.args, node.kwargs), values)


def _run_with(node: fx.Node, arguments: Any, values: Mapping[fx.Node, Any]) -> Any:
    args, kwargs = fx.map_arg(arguments, lambda n: values[n])
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


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


def _too_large(node: fx.Node, dtype: torch.dtype) -> bool:
    """Whether a number among the arguments is beyond a format, as a mask's `finfo.min` is."""
    limit = torch.finfo(dtype).max
    numbers = [a for a in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(a, float)]
    return any(limit < abs(n) < float("inf") for n in numbers)
