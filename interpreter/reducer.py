"""The planned reducer of one data-parallel root: gradients in, the program's backward phase out.

It stands where DDP keeps its C++ reducer and offers the same small surface. Hooks on AccumulateGrad
nodes and `sgplan.ready` ops in compiled graphs both end in `_mark`; the cursor then carries out
every instruction whose gradients are there. A forward in grad mode with gradient synchronisation on
arms it, the first complete reduction disarms it, as stock DDP does.

Owns: the bucket buffers, the hooks, the state of the running reduction. The parameters are the
script's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from time import perf_counter

import torch
import torch.distributed as dist

from sgplan.interpreter.accumulate_hooks import AccumulateHooks
from sgplan.interpreter.bucket_buffer import BucketBuffer
from sgplan.interpreter.gate import Owner
from sgplan.interpreter.reducer_setup import ReducerSetup
from sgplan.interpreter.run import Cursor
from sgplan.planner import torch_api
from sgplan.planner.program import Bucket

SMALL = 16384  # elements: up to 64 KiB a call costs more than the copy
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. "
    "Parameters that got no gradient: {names}. Their outputs took no part in the loss on this "
    "rank: pass `find_unused_parameters=True` to DistributedDataParallel, or use them in the loss"
)
_TWICE = (
    "Expected to mark a variable ready only once: `{name}` got a second gradient before the "
    "reduction of the first was complete"
)


def _scale(world: int) -> torch.Tensor:
    """1 / world as stock DDP multiplies by it; a tensor, because a Python float costs a new one."""
    return torch.tensor(1.0 / world, dtype=torch.float64)


class Reducer:
    """Reduces the gradients of one root by its program."""

    def __init__(self, setup: ReducerSetup) -> None:
        self.setup = setup
        self.parameters = list(setup.parameters)
        self.scale = _scale(dist.get_world_size(setup.group))
        self.timeout = None if setup.timeout is None else timedelta(seconds=setup.timeout)
        self.buffers = {b.name: self._buffer_of(b) for b in setup.buckets}
        self._place: list[tuple[BucketBuffer, int]] = [(None, 0)] * len(self.parameters)  # pyright: ignore[reportAttributeAccessIssue]
        for buffer in self.buffers.values():
            for place, slot in enumerate(buffer.bucket.slots):
                self._place[slot.index] = (buffer, place)
        self._cursor = Cursor(setup.instructions, self)
        self.armed = False
        self.closing = False  # the backward is over: what may wait no longer runs now
        self.wait_seconds = 0.0
        self.own_seconds = 0.0
        self.taken = 0  # gradients reduced in-graph since the last step
        self.hooked = 0  # and through hooks
        self.late: list[str] = []  # buckets but the last that started behind the last gradient
        self._unused: Sequence[int] = ()
        self._used = bytearray(len(self.parameters))
        # Copied when their bucket is complete, many in one call; others while they are in cache.
        self._small = [p.numel() <= SMALL for p in self.parameters]
        self._reset()
        self._hooks = AccumulateHooks(self.parameters, self)
        self.owner_of = {n: Owner(self, index) for index, n in enumerate(self._hooks.nodes)}

    def _buffer_of(self, bucket: Bucket) -> BucketBuffer:
        device = self.parameters[bucket.slots[0].index].device
        return BucketBuffer(bucket, DTYPES[bucket.dtype], device)

    def _reset(self) -> None:
        count = len(self.parameters)
        self._ready = bytearray(count)
        self._in_graph = bytearray(count)
        self._fresh = bytearray(count)
        self.all_free = False  # whether `can_take` holds for every parameter
        self._missing = count
        self._opened = False
        self._later: list[int] = []
        self._queued = False
        self.closing = False
        self._partial = False

    def detach(self) -> None:
        """Let go of the parameters: nothing of this reducer acts any more."""
        self.armed = False
        self._hooks.remove()
        self.owner_of.clear()

    # --- the surface DDP calls -------------------------------------------------------------------

    def prepare_for_forward(self) -> None:
        """DDP's forward begins; nothing to do before it knows whether it arms."""

    def _rebuild_buckets(self) -> bool:
        """The list never changes; as in stock, an unfinished reduction is an error here."""
        if self._partial:
            missing = [
                name for name, ready in zip(self.setup.names, self._ready, strict=True) if not ready
            ]
            raise RuntimeError(_UNFINISHED.format(names=", ".join(missing)))
        return False

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Arm: the next complete backward reduces.

        Args:
            outputs: with `find_unused`, the forward's tensors; parameters they do not reach are
                ready.
        """
        self._reset()
        for buffer in self.buffers.values():
            buffer.await_gradients()
        self._cursor.rewind()
        self._unused = self._unreached(outputs) if self.setup.find_unused else ()
        self.armed = True

    def _unreached(self, outputs: Sequence[torch.Tensor]) -> list[int]:
        seen = {tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None}
        stack = list(seen)
        reached: set[int] = {id(tensor) for tensor in outputs}
        while stack:
            for node, _ in stack.pop().next_functions:
                if node is None or node in seen:
                    continue
                seen.add(node)
                if (variable := getattr(node, "variable", None)) is not None:
                    reached.add(id(variable))
                stack.append(node)
        return [index for index, p in enumerate(self.parameters) if id(p) not in reached]

    # --- gradients arrive ------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """Called before an armed backward: remember which gradients nobody can hold yet."""
        self._fresh = bytearray(
            [p.grad is None and not p._post_accumulate_grad_hooks for p in self.parameters]
        )
        self.all_free = all(self._fresh) and not any(p._backward_hooks for p in self.parameters)

    @property
    def takes_over(self) -> bool:
        """Whether compiled graphs may hand gradients to it in this backward."""
        return self.armed and self.setup.in_graph and not self.setup.find_unused

    def can_take(self, index: int) -> bool:
        """Whether nobody looks at this parameter's gradient before the reduction is done."""
        return bool(self._fresh[index]) and not self.parameters[index]._backward_hooks

    def take(self, indices: Sequence[int], grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy gradients out of a compiled graph; returns the slots autograd shall accumulate."""
        began = perf_counter()
        self._open()
        homes = [self._place[index] for index in indices]
        views = [buffer.views[place] for buffer, place in homes]
        copying = perf_counter()
        for view, grad in zip(views, grads, strict=True):
            torch.mul(grad, self.scale, out=view)
        copied = perf_counter()
        for index, (buffer, _) in zip(indices, homes, strict=True):
            self._in_graph[index] = 1
            self._mark(index)
            buffer.handed += 1
        self.taken += len(indices)
        slots = [view.detach() for view in views]
        self.own_seconds += perf_counter() - began - (copied - copying)
        self.advance()
        return slots

    def accumulated(self, index: int) -> None:
        """AccumulateGrad of a parameter has run, with or without a gradient."""
        if self.setup.find_unused and self.parameters[index].grad is not None:
            self._used[index] = 1
        if not self.armed:
            return
        if self._in_graph[index] == 1:
            self._in_graph[index] = 2
            return
        began = perf_counter()
        if self._unused:
            self._mark_unused()
        copying = 0.0
        if self._small[index]:
            self._later.append(index)
        else:
            copying = self._copy(index)
        self.hooked += 1
        self._mark(index)
        self.own_seconds += perf_counter() - began - copying
        if not self._place[index][0].missing:
            self.advance()

    def _open(self) -> None:
        """Memory for this reduction, at its first gradient."""
        if not self._opened:
            for buffer in self.buffers.values():
                buffer.open()
            self._opened = True

    def _view(self, index: int) -> torch.Tensor:
        self._open()
        buffer, place = self._place[index]
        return buffer.views[place]

    def _copy(self, index: int) -> float:
        """Scale one accumulated gradient into its slot; returns the seconds."""
        view, grad = self._view(index), self._gradient(index)
        began = perf_counter()
        if grad is None:
            view.zero_()
        else:
            torch.mul(grad, self.scale, out=view)
        return perf_counter() - began

    def _copy_later(self) -> None:
        """Scale the small gradients that have come since the last time into their slots."""
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for index in self._later:
            view, grad = self._view(index), self._gradient(index)
            if grad is None:
                view.zero_()
            else:
                targets.append(view)
                sources.append(grad)
        self._later.clear()
        if targets:
            torch_api.copy_all(targets, sources)
            torch_api.scale_all(targets, self.scale)

    def _gradient(self, index: int) -> torch.Tensor | None:
        grad = self.parameters[index].grad
        if grad is None:
            return None
        if grad.is_sparse:
            raise RuntimeError(
                f"`{self.setup.names[index]}` has a sparse gradient; plan `sync {{ by = stock }}`"
            )
        return grad.detach() if grad.requires_grad else grad

    def _mark(self, index: int) -> None:
        if self._ready[index]:
            raise RuntimeError(_TWICE.format(name=self.setup.names[index]))
        self._ready[index] = 1
        self._partial = True
        self._missing -= 1
        self._place[index][0].missing -= 1

    def _mark_unused(self) -> None:
        """Parameters the forward did not reach are ready with the first gradient, as in stock."""
        unused, self._unused = self._unused, ()
        for index in unused:
            self._view(index).zero_()
            self._mark(index)

    def advance(self) -> None:
        """Carry out what is ready; behind the last gradient, let the rest run at the end."""
        if self._later:
            self._copy_later()
        self._cursor.advance()
        if self._missing == 0 and not self._queued:
            self._queued = True
            torch_api.queue_callback(self._finish)

    def _finish(self) -> None:
        self.closing = True
        if self.setup.find_unused:
            self._agree_on_used()
        self._cursor.advance()
        self.armed = False
        self._partial = False
        self._used = bytearray(len(self.parameters))

    def _agree_on_used(self) -> None:
        """Which parameters got a gradient on any rank: the others' `.grad` stays untouched."""
        used = torch.tensor(list(self._used), dtype=torch.int32, device=self.parameters[0].device)
        dist.all_reduce(used, group=self.setup.group)
        self._used = bytearray(map(bool, used.tolist()))

    # --- what handlers do to it ------------------------------------------------------------------

    def wait_for(self, buffer: BucketBuffer) -> float:
        """Block until a bucket is reduced; returns the seconds."""
        assert buffer.work is not None
        began = perf_counter()
        try:
            buffer.work.wait() if self.timeout is None else buffer.work.wait(self.timeout)
        except RuntimeError as error:
            raise self.setup.lost(self.setup.root, error) from error
        buffer.work = None
        seconds = perf_counter() - began
        self.wait_seconds += seconds
        return seconds

    def started(self, buffer: BucketBuffer) -> None:
        """A reduction has begun: did gradients still have to come?"""
        if self._missing == 0 and buffer is not next(reversed(self.buffers.values())):
            self.late.append(buffer.bucket.name)

    def deliver(self) -> None:
        """Give every parameter its reduced gradient.

        A gradient that began in this backward and that nobody hooked is replaced by its slot, which
        saves a copy; any other keeps its identity and gets the values, as under stock DDP.
        """
        used = self._used if self.setup.find_unused else None
        for buffer in self.buffers.values():
            if buffer.all_taken:
                continue
            targets: list[torch.Tensor] = []
            sources: list[torch.Tensor] = []
            slots = zip(buffer.bucket.slots, buffer.views, buffer.pointers, strict=True)
            for slot, view, pointer in slots:
                index = slot.index
                if used is not None and not used[index]:
                    continue
                parameter = self.parameters[index]
                grad = parameter.grad
                if grad is None:
                    parameter.grad = view.detach()
                elif self._in_graph[index] and grad.data_ptr() == pointer:
                    continue
                elif self._fresh[index]:
                    parameter.grad = view.detach()
                else:
                    targets.append(grad.detach())
                    sources.append(view)
            if targets:
                torch_api.copy_all(targets, sources)
