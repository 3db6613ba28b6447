"""DDP taken over in place: the class stays, its C++ reducer is replaced by the planned one.

Everything DDP does around the reducer (verification, broadcast, buffers, device moves, `no_sync`,
unused-parameter sink) stays stock code. What stock DDP can do and the planned reducer cannot goes
to the stock path: decided when DDP is entered, or at the first call that needs it.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sgplan.interpreter import events, unsupported
from sgplan.interpreter.rank import Rank
from sgplan.interpreter.reducer import Reducer
from sgplan.interpreter.reducer_setup import ReducerSetup
from sgplan.interpreter.roots import SHORT_DTYPES, Root, trainable, unwrapped
from sgplan.planner import torch_api
from sgplan.planner.program import Instruction, Program, Run

# Digests of an artefact that no later root can change.
KNOWN_AT_ENTRY = frozenset({"plan", "mesh", "torch"})

_COPIED = "a DDP instance was copied or unpickled, which other ranks need not do"

Entering = Callable[[Root, nn.Module], None]

# What the planned reducer has no part in, by DDP's argument: (argument, harmless value, reason).
_STOCK_ARGUMENTS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("static_graph", (False,), "static_graph"),
    ("mixed_precision", (None,), "DDP's own mixed precision"),
    ("delay_all_reduce_named_params", (None,), "delayed all-reduce"),
    ("param_to_hook_all_reduce", (None,), "delayed all-reduce"),
    ("skip_all_reduce_unused_params", (False,), "skip_all_reduce_unused_params"),
    ("bucket_cap_mb_list", (None,), "bucket_cap_mb_list"),
)


class Takeover:
    """Patches DistributedDataParallel for one rank.

    Args:
        rank: reports, lowers, agrees.
        entering: called with a new root and its module before stock code runs (captures it).
    """

    def __init__(self, rank: Rank, entering: Entering) -> None:
        self._rank = rank
        self._entering = entering
        self._roots: weakref.WeakKeyDictionary[DDP, Root] = weakref.WeakKeyDictionary()
        # What stock's `_ddp_init_helper` wants, kept for a later way back.
        self._stock: weakref.WeakKeyDictionary[DDP, tuple[Any, Any, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._init = DDP.__init__
        self._signature = inspect.signature(DDP.__init__)
        self._init_helper = DDP._ddp_init_helper
        self._run_forward = DDP._run_ddp_forward

    def install(self) -> None:
        """Patch the methods; other references to the class see them too."""
        takeover = self

        @functools.wraps(self._init)
        def init(self: DDP, *args: Any, **kwargs: Any) -> None:
            synchronized = takeover.enter(self, args, kwargs)
            takeover._init(self, *args, **kwargs)
            if synchronized is not None and self.process_group is not None:
                takeover._rank.masters.synchronize(synchronized, self.process_group)

        @functools.wraps(self._init_helper)
        def init_helper(self: DDP, parameters: Any, *rest: Any, **named: Any) -> None:
            takeover.build(self, parameters, rest, named)

        @functools.wraps(self._run_forward)
        def run_forward(self: DDP, *inputs: Any, **kwargs: Any) -> Any:
            return takeover.forward(self, inputs, kwargs)

        DDP.__init__ = init
        DDP._ddp_init_helper = init_helper
        DDP._run_ddp_forward = run_forward
        for name, what in _STOCK_METHODS.items():
            _demote_before(self, name, what)

    # --- entering --------------------------------------------------------------------------------

    def enter(self, ddp: DDP, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Root | None:
        """DDP is entered: make the root, agree with the other ranks.

        Returns:
            The root, when DDP is to give every rank the parameters of the first.
        """
        try:
            given = self._signature.bind(ddp, *args, **kwargs).arguments
        except TypeError:
            return None  # stock code raises it in the script's own words
        module = given.get("module")
        if not isinstance(module, nn.Module) or not dist.is_initialized():
            return None
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        root = self._make_root(module, given, trainable(module, ignored))
        if not root.parameters:
            return None  # stock code refuses it
        rank = self._rank
        rank.add_root(root)
        self._roots[ddp] = root
        # The script may build models in a loop: what reduces for one ends with it.
        weakref.finalize(ddp, rank.drop_reducer, root).atexit = False
        rank.peers.agree(
            root,
            _group(given),
            [f"path {_wire_path(root)}", f"find_unused_parameters {root.find_unused}"],
        )
        rank.check_fresh(KNOWN_AT_ENTRY)
        self._entering(root, module)
        return root if given.get("init_sync", True) else None

    def _make_root(
        self, module: nn.Module, given: dict[str, Any], parameters: list[tuple[str, nn.Parameter]]
    ) -> Root:
        inner, why = unwrapped(module), "the script runs it eagerly"
        root = self._rank.make_root(inner, parameters, "ddp", "eager", "hooks", why)
        root.find_unused = bool(given.get("find_unused_parameters", False))
        reason = self._stock_reason(root, module, given)
        if reason:
            root.path = "stock"
            root.why = reason
        return root

    def _stock_reason(self, root: Root, module: nn.Module, given: dict[str, Any]) -> str:
        if self._rank.sync_of(root).by == "stock":
            return "the plan says `by = stock`"
        for argument, harmless, reason in _STOCK_ARGUMENTS:
            if given.get(argument, harmless[0]) not in harmless:
                return f"the script uses {reason}"
        if why := unsupported.named(module, [p for _, p in root.parameters]):
            return why
        if torch_api.optimize_ddp_mode() == "python_reducer":
            return "the script uses the python reducer"
        for name, parameter in root.parameters:
            if parameter.dtype not in SHORT_DTYPES:
                return f"`{name}` is {parameter.dtype}, which no bucket holds"
        sparse = next(
            (n for n, m in module.named_modules() if getattr(m, "sparse", False) is True), None
        )
        return "" if sparse is None else f"`{sparse}` makes sparse gradients"

    # --- the reducer -----------------------------------------------------------------------------

    def build(self, ddp: DDP, parameters: Sequence[torch.Tensor], rest: Any, named: Any) -> None:
        """In place of stock's reducer: ours, or stock's where the root stays stock."""
        root = self._roots.get(ddp)
        if root is None or root.path == "stock":
            name, why = ("", _COPIED) if root is None else (root.name, root.why)
            self._rank.once(events.FallbackTaken, name, "stock DDP", why)
            self._init_helper(ddp, parameters, *rest, **named)
            return
        self._stock[ddp] = (parameters, rest, named)
        ddp.reducer = self._reducer(ddp, root)
        ddp.logger = _Logger(self, ddp)  # pyright: ignore[reportAttributeAccessIssue]
        ddp._passing_sync_batchnorm_handle(ddp.module)

    def _reducer(self, ddp: DDP, root: Root) -> Any:
        rank = self._rank
        program = rank.lower()
        assert ddp.process_group is not None
        setup = ReducerSetup(
            root=root.name,
            names=[name for name, _ in root.parameters],
            parameters=[parameter for _, parameter in root.parameters],
            buckets=[bucket for bucket in program.buckets if bucket.root == root.name],
            instructions=reductions_of(program, root.name),
            group=ddp.process_group,
            find_unused=root.find_unused,
            in_graph=rank.sync_of(root).by in ("auto", "in_graph"),
            timeout=rank.sync_of(root).timeout,
            track=rank.track,
            lost=rank.peers.lost,
        )
        if rank.mode == "plan":
            return _Idle(self, ddp)
        reducer = _Planned(setup, self, ddp)
        rank.attach_reducer(root, reducer)
        return reducer

    def forward(self, ddp: DDP, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's call; on our path Dynamo sees no active DDP, so nothing cuts its graphs."""
        root = self._roots.get(ddp)
        if root is None:
            return self._run_forward(ddp, *inputs, **kwargs)
        self._rank.called(root, inputs, kwargs)
        with self._rank.calls.of(root):
            if root.path == "stock":
                output = self._run_forward(ddp, *inputs, **kwargs)
            else:
                output = ddp.module(*inputs, **kwargs)
        self._rank.returned(root, output)
        return output

    def root_of(self, ddp: DDP) -> Root | None:
        return self._roots.get(ddp)

    def demote(self, ddp: DDP, what: str) -> None:
        """Give a DDP instance its stock reducer back, between two backwards."""
        root = self._roots.get(ddp)
        stock = self._stock.pop(ddp, None)
        if root is None or stock is None:
            return
        self._rank.drop_reducer(root)
        root.path = "stock"
        root.why = f"the script uses {what}"
        self._rank.describe(root)
        self._rank.once(events.FallbackTaken, root.name, "stock DDP", root.why)
        parameters, rest, named = stock
        self._init_helper(ddp, parameters, *rest, **named)


# Methods that reach into the C++ reducer, and what the script uses when it calls them.
_STOCK_METHODS = {
    "register_comm_hook": "register_comm_hook",
    "_register_builtin_comm_hook": "a built-in communication hook",
    "_register_fused_optim": "an optimizer in backward",
    "join": "join",
    "join_hook": "join",
    "_set_static_graph": "static_graph",
}


def _demote_before(takeover: Takeover, name: str, what: str) -> None:
    original = getattr(DDP, name)

    @functools.wraps(original)
    def method(ddp: DDP, *args: Any, **kwargs: Any) -> Any:
        takeover.demote(ddp, what)
        return original(ddp, *args, **kwargs)

    setattr(DDP, name, method)


class _Demoting:
    """Anything stock's object has and ours has not: go back to stock, then ask that one."""

    _takeover: Takeover
    _ddp: weakref.ref[DDP]
    _stock_name: str

    def __getattr__(self, name: str) -> Any:
        ddp = None if name.startswith("__") else self.__dict__.get("_ddp", lambda: None)()
        if ddp is None:
            raise AttributeError(name)
        self._takeover.demote(ddp, f"`{self._stock_name}.{name}`")
        return getattr(getattr(ddp, self._stock_name), name)


class _Planned(Reducer, _Demoting):
    """The planned reducer as DDP's attribute `reducer`."""

    _stock_name = "reducer"

    def __init__(self, setup: ReducerSetup, takeover: Takeover, ddp: DDP) -> None:
        self._takeover = takeover
        self._ddp = weakref.ref(ddp)
        super().__init__(setup)


class _Idle(_Demoting):
    """In plan mode nothing is reduced: one rank may get further than another."""

    _stock_name = "reducer"

    def __init__(self, takeover: Takeover, ddp: DDP) -> None:
        self._takeover = takeover
        self._ddp = weakref.ref(ddp)

    def prepare_for_forward(self) -> None:
        """Nothing to prepare."""

    def _rebuild_buckets(self) -> bool:
        return False

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Never armed."""


class _Logger(_Demoting):
    """DDP's attribute `logger`: the parts its forward and its errors use."""

    _stock_name = "logger"

    def __init__(self, takeover: Takeover, ddp: DDP) -> None:
        self._takeover = takeover
        self._ddp = weakref.ref(ddp)

    def set_runtime_stats_and_log(self) -> None:
        """Stock samples timings here; ours are events."""

    def set_error_and_log(self, text: str) -> None:
        """Stock logs the error it is about to raise."""


def reductions_of(program: Program, root: str) -> list[Instruction]:
    """The root's part of the backward phase, without the calls that autograd makes itself."""
    own = {bucket.name for bucket in program.buckets if bucket.root == root}
    found: list[Instruction] = []
    for instruction in program.phase("backward"):
        if isinstance(instruction, Run):
            continue
        named = getattr(instruction, "bucket", None)
        buckets = getattr(instruction, "buckets", ())
        values = getattr(instruction, "values", ())
        mine = (
            named in own
            or (bool(buckets) and set(buckets) <= own)
            or getattr(instruction, "root", None) == root
            or any(value.partition(".")[0] in own for value in values)
        )
        if mine:
            found.append(instruction)
    return found


def _wire_path(root: Root) -> str:
    """What the path means for communication: hooks and in-graph reductions are one."""
    return "stock" if root.path == "stock" else "planned"


def _group(given: dict[str, Any]) -> dist.ProcessGroup:
    mesh = given.get("device_mesh")
    if mesh is not None:
        return mesh.get_group(mesh_dim=0)
    return given.get("process_group") or torch_api.default_group()
