"""Values that a forward graph saves for its backward and then changes: saved as they were read.

    seen1 = seen + 1                       kept = clone(seen)
    seen.copy_(seen1)             ->       seen1 = seen + 1; seen.copy_(seen1)
    return …, seen                         return …, kept

AOTAutograd's partitioner may save an input and compute what the backward needs from it again. When
the same graph changes that input in place, the backward would read it after the change and compute
something else than eager, without any error (torch 2.13, every backend that uses AOTAutograd).
"""

from __future__ import annotations

import torch
import torch.fx as fx

from sgplan.planner import torch_api
from sgplan.planner.capture.effects import viewed_inputs, written_inputs

# Raised when the same graph would be rewritten in another way.
SAVED_VERSION = 1


def keep_saved(gm: fx.GraphModule) -> int:
    """Rewrite a forward graph in place; returns the number of values that were kept."""
    changed = written_inputs(gm.graph.nodes)
    if not changed:
        return 0
    output = gm.graph.output_node()
    _, kinds = torch_api.descriptors(gm)
    given = output.args[0]
    assert isinstance(given, (list, tuple))
    values = list(given)
    kept: dict[fx.Node, fx.Node] = {}
    first = next(node for node in gm.graph.nodes if node.op != "placeholder")
    for place, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if not isinstance(value, fx.Node) or not torch_api.is_saved(kind):
            continue
        if changed.isdisjoint(viewed_inputs(value)):
            continue
        if value not in kept:
            # The changes of inputs stand at the end of a functional graph.
            with gm.graph.inserting_before(first if value.op == "placeholder" else value.next):
                kept[value] = gm.graph.call_function(torch.ops.aten.clone.default, (value,))
            kept[value].meta["val"] = value.meta["val"].clone()
        values[place] = kept[value]
    if kept:
        output.args = (type(given)(values),)
        gm.graph.lint()
        gm.recompile()
    return len(kept)
