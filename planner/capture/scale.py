"""`precision { loss_scale = … }`: gradients are scaled inside a graph, and nowhere else.

At the outputs of a Dynamo graph stands an identity whose gradient is multiplied by the scale, at
its inputs one whose gradient is divided by it. What the script gets is therefore unscaled: it clips
and accumulates as written, and graphs of one model compose. The scale is a tensor handed in at each
call, so that changing it compiles nothing.

The identities are ops that decompose before autograd sees them, so that caches know them by name
and Inductor sees a view forward and a product backward: no parameter is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.fx as fx
from torch import library
from torch.autograd import Function

from sgplan.planner.capture.rewrite import Rewritten

SCALE_VERSION = 2

_library = library.Library("sgplan_scale", "DEF")


class _Scaled(Function):
    """The value as it is; its gradient is scaled in the wider of its own and the scale's format.

    In fp16 a scale of 2**16 would be infinite; a gradient in float64 keeps its bits.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(scale)
        return value.view_as(value)


class _Multiplied(_Scaled):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (scale,) = ctx.saved_tensors
        return (_wide(grads[0], scale) * scale).to(grads[0].dtype), None


class _Divided(_Scaled):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (scale,) = ctx.saved_tensors
        return (_wide(grads[0], scale) / scale).to(grads[0].dtype), None


def _wide(gradient: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Complex ones stay complex."""
    return gradient.to(torch.promote_types(gradient.dtype, scale.dtype))


def _defined(name: str, function: type[Function]) -> torch._ops.OpOverload:
    _library.define(f"{name}(Tensor(a) value, Tensor scale) -> Tensor(a)")
    _library.impl(name, function.apply, "CompositeImplicitAutograd")
    return getattr(torch.ops.sgplan_scale, name).default


multiplied = _defined("multiplied", _Multiplied)
divided = _defined("divided", _Divided)


@dataclass(frozen=True, slots=True)
class ScaleLoss:
    """Scales the gradients inside a graph.

    Attributes:
        scale: 0-dim, fp32; its value is read at each call.
    """

    scale: torch.Tensor
    name: ClassVar[str] = "scale_loss"

    @property
    def key(self) -> str:
        """The value is no part of it."""
        return f"{self.name} {SCALE_VERSION}"

    def apply(self, graph: Rewritten) -> Rewritten:
        """The graph between the identities, its scale behind its inputs."""
        nodes = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        result: Any = nodes.graph_copy(graph.gm.graph, copied)
        placeholders = [copied[n] for n in graph.gm.graph.nodes if n.op == "placeholder"]
        last = placeholders[-1] if placeholders else None
        with nodes.inserting_after(last) if last else nodes.inserting_before():
            scale = nodes.placeholder("sgplan_loss_scale")
        scale.meta["example_value"] = self.scale
        at = scale
        for placeholder in placeholders:
            if not _differentiable(placeholder):
                continue
            with nodes.inserting_after(at):
                at = nodes.call_function(divided, (placeholder, scale))
            at.meta.update(placeholder.meta)
            placeholder.replace_all_uses_with(
                at, delete_user_cb=lambda user, own=at: user is not own
            )
            result = fx.map_arg(result, lambda n, old=placeholder, new=at: new if n is old else n)
        outputs: dict[fx.Node, fx.Node] = {}

        def scaled(node: fx.Node) -> fx.Node:
            if not _may_have_gradient(node):
                return node
            if node not in outputs:
                outputs[node] = nodes.call_function(multiplied, (node, scale))
                outputs[node].meta.update(node.meta)
            return outputs[node]

        nodes.output(fx.map_arg(result, scaled))
        gm = fx.GraphModule(graph.gm, nodes)
        gm.meta.update(graph.gm.meta)
        return Rewritten(gm, (*graph.inputs, self.scale), graph.placed)


def _may_have_gradient(node: fx.Node) -> bool:
    """Whether an output may need one: passes before this one work without autograd, and leave no
    mark of it. An identity too many is a view."""
    value = node.meta.get("example_value")
    if node.op == "placeholder":
        return _differentiable(node)
    return _continuous(value)


def _differentiable(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _continuous(value: Any) -> bool:
    """Of a type that autograd follows."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
