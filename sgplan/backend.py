"""The Dynamo backend `sgplan`, an entry point of `torch_dynamo_backends`.

Under `sgplan apply` and `sgplan plan` every Inductor compile goes through the plan, whatever name
the script uses, and this function is not reached. Elsewhere there is no plan: the graph is compiled
by Inductor as it is, and that is said once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx as fx

from sgplan.planner import torch_api


def sgplan(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph with Inductor, outside of a planned run.

    Args:
        mode, options: as `torch.compile` takes them for Inductor.
    """
    warnings.warn(
        "backend `sgplan` without a plan compiles with Inductor as it is: "
        "start with `sgplan apply`",
        stacklevel=2,
    )
    return torch_api.inductor_wrapper()(mode, options, None)(gm, list(inputs))
