"""Passes of sgplan made wrong, one fault each, in the ranks that a plan runs in.

`verified.py` installs the one that `FAULTY_PASS` names. A fault sits inside one pass, so a run that
does not use the pass, as the plain one, is not touched by it.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx


def install(name: str) -> None:
    """Break one pass in this process, if it is under a plan."""
    if "sgplan.attach" in sys.modules:
        FAULTS[name]()


# --- reductions ----------------------------------------------------------------------------------


def scales_twice() -> None:
    from sgplan.interpreter import reducer

    right = reducer._scale
    reducer._scale = lambda world: right(world) * right(world)


def swaps_slots() -> None:
    """Two gradients of one shape that lie in different buckets are delivered to each other."""
    from sgplan.interpreter.reducer import Reducer

    right = Reducer.deliver

    def deliver(self: Any) -> None:
        name = dict(zip(self.setup.names, self._place, strict=True))
        one, other = name["layers.0.inner.weight"], name["layers.1.inner.weight"]
        kept = one[0].views[one[1]].clone()
        one[0].views[one[1]].copy_(other[0].views[other[1]])
        other[0].views[other[1]].copy_(kept)
        right(self)

    Reducer.deliver = deliver


def _on_wrapping(change: Callable[[list[torch.Tensor]], None]) -> None:
    from sgplan.interpreter.reducer import Reducer

    right = Reducer.__init__

    def init(self: Any, setup: Any) -> None:
        right(self, setup)
        change(setup.parameters)

    Reducer.__init__ = init


def loses_the_broadcast() -> None:
    """Rank 1 does not begin with the parameters of rank 0."""

    def change(parameters: list[torch.Tensor]) -> None:
        if torch.distributed.get_rank():
            parameters[0].data.add_(1.0)

    _on_wrapping(change)


def draws_at_wrapping() -> None:
    def change(parameters: list[torch.Tensor]) -> None:
        torch.rand(1)

    _on_wrapping(change)


class _Nothing:
    def wait(self, *timeout: Any) -> bool:
        return True


def _handler(kind: type, run: Callable[[Callable[..., None], Any, Any], None]) -> None:
    from sgplan.interpreter import registry

    right = registry._handlers[kind]

    def wrong(state: Any, instruction: Any) -> None:
        run(right.run, state, instruction)

    registry._handlers[kind] = registry.Handler(right.ready, wrong)


def skips_a_bucket() -> None:
    from sgplan.planner.program import ReduceStart

    def run(right: Callable[..., None], state: Any, instruction: Any) -> None:
        if instruction.bucket == "b1":
            state.buffers["b1"].work = _Nothing()
        else:
            right(state, instruction)

    _handler(ReduceStart, run)


def delivers_stale_views() -> None:
    """From the second step on, the last bucket still has the gradients of the first."""
    from sgplan.planner.program import Deliver

    old: dict[str, torch.Tensor] = {}

    def run(right: Callable[..., None], state: Any, instruction: Any) -> None:
        last = list(state.buffers.values())[-1]
        if "flat" in old:
            last.flat.copy_(old["flat"])
        old.setdefault("flat", last.flat.clone())
        right(state, instruction)

    _handler(Deliver, run)


def loses_the_wire() -> None:
    """What came back over the wire is not written into the bucket."""
    from sgplan.planner.program import Cast

    def run(right: Callable[..., None], state: Any, instruction: Any) -> None:
        if state.buffers[instruction.bucket].wire is None:
            right(state, instruction)

    _handler(Cast, run)


# --- graphs --------------------------------------------------------------------------------------


def _on_graphs(change: Callable[[fx.GraphModule], None]) -> None:
    """Change every Dynamo graph on its way to the compiler."""
    from sgplan.planner.capture import backend

    right = backend.rewritten

    def rewritten(gm: fx.GraphModule, *how: Any) -> Any:
        done = right(gm, *how)
        change(done.gm)
        done.gm.graph.lint()
        done.gm.recompile()
        return done

    backend.rewritten = rewritten


def _called(gm: fx.GraphModule, name: str) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if getattr(n.target, "__name__", n.target) == name]


def drops_a_gradient() -> None:
    def change(gm: fx.GraphModule) -> None:
        node = _called(gm, "gelu")[0]
        with gm.graph.inserting_after(node):
            cut = gm.graph.call_method("detach", (node,))
        node.replace_all_uses_with(cut, delete_user_cb=lambda user: user is not cut)

    _on_graphs(change)


def reorders_dropouts() -> None:
    def change(gm: fx.GraphModule) -> None:
        first, second = _called(gm, "dropout")[:2]
        first.prepend(second)

    _on_graphs(change)


def draws_twice() -> None:
    def change(gm: fx.GraphModule) -> None:
        node = _called(gm, "dropout")[0]
        with gm.graph.inserting_after(node):
            again = gm.graph.node_copy(node)
        node.replace_all_uses_with(again)

    _on_graphs(change)


def loses_a_mutation() -> None:
    """The model's own counter is not written back."""

    def change(gm: fx.GraphModule) -> None:
        for node in _called(gm, "add_"):
            node.target = "add"

    _on_graphs(change)


def rounds_the_output() -> None:
    """The last product, whose result is the loss's input, is computed in bf16."""

    def change(gm: fx.GraphModule) -> None:
        node = _called(gm, "linear")[-1]
        with gm.graph.inserting_before(node):
            node.args = tuple(gm.graph.call_method("bfloat16", (each,)) for each in node.args)
        with gm.graph.inserting_after(node):
            back = gm.graph.call_method("float", (node,))
        node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)

    _on_graphs(change)


def swaps_ready() -> None:
    """Two gradients of one shape change places behind the op that hands them over."""
    from sgplan.planner.capture import backend

    right = backend.insert_ready

    def insert_ready(gm: fx.GraphModule, inputs: Any) -> int:
        count = right(gm, inputs)
        output = gm.graph.output_node()
        given: Any = output.args[0]
        values = list(given)
        shaped: dict[Any, int] = {}
        for place, node in enumerate(values):
            if not isinstance(node, fx.Node) or node.target is not operator.getitem:
                continue
            shape = tuple(node.meta["val"].shape)
            if len(shape) == 2 and shape in shaped:
                other = shaped[shape]
                values[place], values[other] = values[other], values[place]
                break
            shaped[shape] = place
        output.args = (type(given)(values),)
        gm.recompile()
        return count

    backend.insert_ready = insert_ready


def shifts_the_split_bias() -> None:
    from sgplan.planner.capture import bias, steering

    right = bias.split_bias

    def split_bias(graph: fx.Graph, group: Any) -> Any:
        split = right(graph, group)
        if split is not None:
            term = split.added.args[1]
            with graph.inserting_before(split.added):
                head = graph.call_function(torch.ops.aten.slice.Tensor, (term, 0, 0, 1))
                tail = graph.call_function(torch.ops.aten.slice.Tensor, (term, 0, 1))
                rolled = graph.call_function(torch.ops.aten.cat.default, ([tail, head],))
            for node, value in ((head, term.meta["val"][:1]), (tail, term.meta["val"][1:])):
                node.meta["val"] = value
            rolled.meta["val"] = torch.empty_like(term.meta["val"])
            split.added.replace_input_with(term, rolled)
        return split

    steering.split_bias = split_bias


def gives_a_kernel_the_wrong_bias() -> None:
    from dataclasses import replace

    from sgplan.planner.kernels.substitute import Substitution

    right = Substitution.apply

    def apply(self: Substitution, graph: Any) -> Any:
        done = right(self, graph)
        kernels = [n for n in done.gm.graph.nodes if "bias_gelu" in str(n.target)]
        if len(kernels) > 1:
            one, other = kernels[0], kernels[1]
            one.replace_input_with(one.args[1], other.args[1])
            done.gm.recompile()
        return replace(done)

    Substitution.apply = apply


# --- precision, recompute, guards ----------------------------------------------------------------


def casts_a_kept_op() -> None:
    """`keep_fp32` is not followed."""
    from sgplan.planner.precision import Setting

    Setting.keeps = lambda self, op, module: False


def returns_a_low_format() -> None:
    """What the graph returns, hence the loss, has the format of the casts."""
    from sgplan.planner.capture import casts

    right = casts._Walk._arguments

    def arguments(self: Any, node: fx.Node, wanted: Any) -> Any:
        return right(self, node, (lambda _: None) if node.op == "output" else wanted)

    casts._Walk._arguments = arguments


def _on_scaled(change: Callable[[fx.Graph], None]) -> None:
    """Change every graph whose loss is scaled."""
    from sgplan.planner.capture.scale import ScaleLoss

    right = ScaleLoss.apply

    def apply(self: ScaleLoss, graph: Any) -> Any:
        done = right(self, graph)
        change(done.gm.graph)
        done.gm.recompile()
        return done

    ScaleLoss.apply = apply


def scales_the_loss_twice() -> None:
    from sgplan.planner.capture import scale

    def change(graph: fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=scale.multiplied):
            with graph.inserting_after(node):
                again = graph.call_function(scale.multiplied, (node, node.args[1]))
            again.meta.update(node.meta)
            node.replace_all_uses_with(
                again, delete_user_cb=lambda user, own=again: user is not own
            )

    _on_scaled(change)


def forgets_to_unscale() -> None:
    from sgplan.planner.capture import scale

    def change(graph: fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=scale.divided):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    _on_scaled(change)


def repeats_a_draw() -> None:
    """The backward draws the mask of a dropout once more."""
    from sgplan.planner.capture.recompute import Partition

    right = Partition._cut

    def cut(self: Any, joint: fx.GraphModule, inputs: Any, **given: Any) -> Any:
        forward, backward = right(self, joint, inputs, **given)
        graph = backward.graph
        masks = [n for n in graph.find_nodes(op="placeholder") if n.meta["val"].dtype is torch.bool]
        for mask in masks[:1]:
            value = mask.meta["val"]
            first = next(n for n in graph.nodes if n.op != "placeholder")
            with graph.inserting_before(first):
                drawn = graph.call_function(
                    torch.ops.aten.rand.default,
                    (list(value.shape),),
                    {"dtype": torch.float32, "device": value.device},
                )
                kept = graph.call_function(torch.ops.aten.gt.Scalar, (drawn, 0.5))
            drawn.meta["val"], kept.meta["val"] = value.float(), value.clone()
            mask.replace_all_uses_with(kept)
        backward.recompile()
        return forward, backward

    Partition._cut = cut


def leaves_the_padding_in() -> None:
    """As many rows are cut off as were added, at the other end."""
    from sgplan.interpreter.cutting import Cut

    def one(self: Any, tensor: Any, rows: Any) -> Any:
        return tensor.narrow(rows.dim, self.target - self.size, self.size)

    Cut._one = one


# --- updates -------------------------------------------------------------------------------------


def _on_fused(change: Callable[[torch.optim.Optimizer], None]) -> None:
    """Change what the plan's constructor has made fused."""
    right = torch.optim.AdamW.__init__

    def init(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        if self.defaults["fused"]:
            change(self)

    torch.optim.AdamW.__init__ = init


def forgets_weight_decay() -> None:
    """The settings look right, the step is made with others."""

    def change(optimizer: torch.optim.Optimizer) -> None:
        step = type(optimizer).step

        def without_decay(closure: Any = None) -> Any:
            kept = [group["weight_decay"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.0
            try:
                return step(optimizer, closure)
            finally:
                for group, decay in zip(optimizer.param_groups, kept, strict=True):
                    group["weight_decay"] = decay

        optimizer.step = without_decay

    _on_fused(change)


def uses_another_eps() -> None:
    def change(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["eps"] = 1e-6

    _on_fused(change)


FAULTS = {
    fault.__name__: fault
    for fault in (
        scales_twice,
        swaps_slots,
        skips_a_bucket,
        delivers_stale_views,
        loses_the_broadcast,
        draws_at_wrapping,
        loses_the_wire,
        drops_a_gradient,
        reorders_dropouts,
        draws_twice,
        loses_a_mutation,
        rounds_the_output,
        swaps_ready,
        shifts_the_split_bias,
        gives_a_kernel_the_wrong_bias,
        casts_a_kept_op,
        returns_a_low_format,
        scales_the_loss_twice,
        forgets_to_unscale,
        repeats_a_draw,
        leaves_the_padding_in,
        forgets_weight_decay,
        uses_another_eps,
    )
}
