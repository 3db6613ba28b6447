"""The planned reducer of one data-parallel root: gradients in, the program's backward phase out.

It stands where DDP keeps its C++ reducer and offers the same small surface. Hooks on AccumulateGrad
nodes and `sgplan.ready` ops in compiled graphs both count gradients into the buckets; the cursor
then carries out every instruction whose gradients are there. A forward in grad mode with gradient
synchronisation on arms it, the first complete reduction disarms it, as stock DDP does. Sets of
parameters are integers, bit by index: one operation for all gradients of a compiled graph's op.

Owns: the bucket buffers, the hooks, the state of the running reduction. The parameters are the
script's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import reduce
from operator import or_
from time import perf_counter, time_ns
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from sgplan.interpreter.accumulate_hooks import AccumulateHooks
from sgplan.interpreter.bucket_buffer import Batch, BucketBuffer
from sgplan.interpreter.gate import Opening, Owner
from sgplan.interpreter.reducer_setup import ReducerSetup
from sgplan.interpreter.run import Cursor
from sgplan.interpreter.tracked_places import in_flight
from sgplan.planner import torch_api
from sgplan.planner.program import Bucket

SMALL = 65536  # elements: up to 256 KiB a hook that does more than count costs more than the copy
BATCHES = 64  # orders of arrival that are remembered
VIEWS = 4 * BATCHES  # batches whose views are
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

    __slots__ = (
        "__weakref__",
        "_accumulated",
        "_ahead",
        "_all",
        "_all_fresh",
        "_batches",
        "_counts_used",
        "_cursor",
        "_fresh",
        "_hooked",
        "_hooks",
        "_hooks_made",
        "_hooks_seen",
        "_last",
        "_last_buffer",
        "_later",
        "_looked_ahead",
        "_none_fresh",
        "_opened",
        "_pattern",
        "_place",
        "_queued",
        "_ready",
        "_small",
        "_taken",
        "_unused",
        "_used",
        "_views",
        "_whole",
        "all_free",
        "armed",
        "buffers",
        "elsewhere",
        "hooked",
        "late",
        "openings",
        "own_seconds",
        "owner_of",
        "parameters",
        "reduced_by_hooks",
        "reduced_in_graph",
        "scale",
        "setup",
        "taken",
        "timeout",
        "wait_seconds",
    )

    def __init__(self, setup: ReducerSetup) -> None:
        self.setup = setup
        self.parameters = list(setup.parameters)
        self._counts_used = setup.find_unused
        self.scale = _scale(dist.get_world_size(setup.group))
        self.timeout = None if setup.timeout is None else timedelta(seconds=setup.timeout)
        self.buffers = {b.name: self._buffer_of(b) for b in setup.buckets}
        self._place: list[tuple[BucketBuffer, int]] = [(None, 0)] * len(self.parameters)  # pyright: ignore[reportAttributeAccessIssue]
        for buffer in self.buffers.values():
            for place, slot in enumerate(buffer.bucket.slots):
                self._place[slot.index] = (buffer, place)
        self._cursor = Cursor(setup.instructions, self, setup.track)
        self.armed = False
        self.wait_seconds = 0.0
        self.own_seconds = 0.0
        self.elsewhere = 0.0  # seconds in copies, collectives and waits, ever
        self.taken = 0  # gradients reduced in-graph since the last step
        self.hooked = 0  # and through hooks
        self.reduced_in_graph = 0  # reductions begun since the last step
        self.reduced_by_hooks = 0
        self._last_buffer = next(reversed(self.buffers.values()))
        self.late: list[str] = []  # buckets but the last that started behind the last gradient
        self._unused: Sequence[int] = ()
        self._used = 0
        # Copied when their bucket is complete, many in one call; others while they are in cache.
        self._small = [p.numel() <= SMALL for p in self.parameters]
        self._views: dict[Batch, list[torch.Tensor]] = {}  # of the memory that is used now
        self._batches: dict[tuple[int, ...], tuple[Batch, Batch]] = {}  # all, and the small ones
        self._whole = {buffer: self._whole_of(buffer) for buffer in self.buffers.values()}
        self._ahead: dict[Batch, list[torch.Tensor]] = {}  # slots that were made ahead
        self._taken: list[Batch] = []  # that graphs handed over in this backward
        self._all_fresh = [True] * len(self.parameters)
        self._none_fresh = [False] * len(self.parameters)
        self._all = (1 << len(self.parameters)) - 1
        self._hooks_made = -1  # in this process, when it was known who has one
        self._hooks_seen = -1  # and when it was looked last
        self._hooked = False  # whether a parameter had one then
        self._hooks = AccumulateHooks(self.parameters, self)
        self._pattern = (0, 0)  # what came in-graph, and what completed buckets, when chosen
        self._reset()
        self.owner_of = {n: Owner(self, index) for index, n in enumerate(self._hooks.nodes)}
        # Of compiled nodes with no successor but these parameters, each with `next_functions`.
        self.openings: list[tuple[tuple[Any, ...], Opening]] = []

    def _buffer_of(self, bucket: Bucket) -> BucketBuffer:
        device = self.parameters[bucket.slots[0].index].device
        return BucketBuffer(bucket, DTYPES[bucket.dtype], device)

    def _whole_of(self, buffer: BucketBuffer) -> Batch:
        return self.batch([slot.index for slot in buffer.bucket.slots])

    def _reset(self) -> None:
        self._ready = 0  # in a bucket
        self._accumulated = 0  # their AccumulateGrad has run, as far as that was looked at
        self._fresh = self._none_fresh
        self.all_free = False  # whether `can_take` holds for every parameter
        self._opened = False
        self._last = 0  # those that completed a bucket
        self._later: list[Batch] = []
        self._taken = []
        self._looked_ahead = False
        self._hooks.arrived.clear()
        self._hooks.due = len(self.parameters)
        self._queued = False

    def detach(self) -> None:
        """Let go of the parameters: nothing of this reducer acts any more."""
        self.armed = False
        self._hooks.remove()
        self.owner_of.clear()
        self.openings.clear()

    # --- the surface DDP calls -------------------------------------------------------------------

    def prepare_for_forward(self) -> None:
        """DDP's forward begins; nothing to do before it knows whether it arms."""

    def _rebuild_buckets(self) -> bool:
        """The list never changes; as in stock, an unfinished reduction is an error here."""
        if self.armed and self._ready:
            missing = ", ".join(self.setup.names[i] for i in self._without(self._ready))
            raise RuntimeError(_UNFINISHED.format(names=missing))
        return False

    def prepare_for_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Arm: the next complete backward reduces.

        Args:
            outputs: with `find_unused`, the forward's tensors; parameters they do not reach are
                ready.
        """
        began = perf_counter()
        self._reset()
        for buffer in self.buffers.values():
            buffer.await_gradients()
        self._cursor.rewind()
        self._unused = self._unreached(outputs) if self.setup.find_unused else ()
        self.armed = True
        self.own_seconds += perf_counter() - began

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
        if self._hooked or self._hooks_made != torch_api.hooks_made():
            self._look_for_hooks()
        self.all_free = not self._hooked
        if self.all_free:
            for p in self.parameters:
                if p.grad is not None:
                    self.all_free = False
                    break
        self._fresh = (
            self._all_fresh
            if self.all_free
            else [p.grad is None and not p._post_accumulate_grad_hooks for p in self.parameters]
        )

    def _look_for_hooks(self) -> None:
        """Whether the script has a hook on a parameter: it may have, once new ones were made.

        A hook is counted before it is there, perhaps by another thread; so whoever finds another
        number looks once more in the next backward.
        """
        made = torch_api.hooks_made()
        self._hooks_made = made if made == self._hooks_seen else -1
        self._hooks_seen = made
        self._hooked = any(
            p._post_accumulate_grad_hooks or p._backward_hooks for p in self.parameters
        )

    def end_backward(self) -> None:
        """Called after every backward: what waits for its bucket is copied before it can change."""
        if not self._hooks.arrived and not self._later:
            return
        began, before = perf_counter(), self.elsewhere
        if self._hooks.arrived and self._note_arrived():
            self.advance()
        if self._later:
            self._copy_later()
        self._account(began, before)

    @property
    def takes_over(self) -> bool:
        """Whether compiled graphs may hand gradients to it in this backward."""
        return self.armed and self.setup.in_graph and not self.setup.find_unused

    def can_take(self, index: int) -> bool:
        """Whether nobody looks at this parameter's gradient before the reduction is done."""
        return self._fresh[index] and not self.parameters[index]._backward_hooks

    def batch(self, indices: Sequence[int]) -> Batch:
        """What `take` wants to know of gradients that come together."""
        return Batch(indices, [self._place[i] for i in indices])

    def take(self, batch: Batch, grads: Sequence[torch.Tensor], began: float) -> list[torch.Tensor]:
        """Copy gradients out of a compiled graph; returns the slots autograd shall accumulate.

        Args:
            batch: what gradients they are.
            grads: in the batch's order.
            began: `perf_counter` when their op began.
        """
        before = self.elsewhere
        if not self._opened:
            self._open()
        views = self._views.get(batch) or self._views_of(batch)
        copying = perf_counter()
        scale = self.scale
        for view, grad in zip(views, grads, strict=True):
            torch.mul(grad, scale, out=view)
        self.elsewhere += perf_counter() - copying
        bits = batch.bits
        if self._ready & bits:
            self._refuse_all(bits)
        self._ready |= bits
        self._taken.append(batch)
        slots = self._ahead.pop(batch, None)
        made_ahead = slots is not None
        complete = False
        for buffer, count, _ in batch.counts:
            buffer.handed += count
            buffer.missing -= count
            if made_ahead:
                buffer.ahead -= count
            if not buffer.missing:
                complete = True
        if slots is None:
            slots = [view.data for view in views]  # `detach` costs twice as much
        self.taken += len(slots)
        if complete:
            self.advance()
        self.own_seconds += perf_counter() - began - (self.elsewhere - before)
        return slots

    def _look_ahead(self) -> None:
        """Do what need not wait for values.

        The slots for the next backward are made, if it is like this one; and parameters whose
        gradients nobody looks at are given their slots, to be filled.
        """
        self._looked_ahead = True
        for buffer in self.buffers.values():
            buffer.given = buffer.all_taken
            buffer.ahead = 0
        taken = self._taken
        self._ahead = {batch: [view.data for view in self._views_of(batch)] for batch in taken}
        for batch in taken:
            for buffer, count, _ in batch.counts:
                buffer.ahead += count
        self._give_whole()

    def _give_whole(self) -> None:
        """Slots as gradients, where no graph handed any over and nobody has one of these."""
        if not self.all_free or self.setup.find_unused:
            return
        parameters = self.parameters
        for buffer in self.buffers.values():
            if buffer.handed or buffer.given:
                continue
            buffer.given = True
            whole = self._whole[buffer]
            for index, view in zip(whole.indices, self._views_of(whole), strict=True):
                parameters[index].grad = view.data

    def _account(self, began: float, before: float) -> None:
        """Own time is what passed since, without what was spent `elsewhere`."""
        self.own_seconds += perf_counter() - began - (self.elsewhere - before)

    def woken(self) -> None:
        """AccumulateGrad of some parameters has run, with or without gradients."""
        if not self.armed and not self._counts_used:
            self._hooks.arrived.clear()
            return
        began, before = perf_counter(), self.elsewhere
        if self._note_arrived():
            self.advance()
        self._account(began, before)

    def _note_arrived(self) -> bool:
        """Count what has arrived into its buckets; returns whether a bucket became complete."""
        arrived = self._hooks.arrived[:]
        self._hooks.arrived.clear()
        for index in arrived if self._counts_used else ():
            if self.parameters[index].grad is not None:
                self._used |= 1 << index
        if not self.armed:
            return False
        self._hooks.due -= len(arrived)
        if self._taken:  # those that a graph brought are counted already
            handed = self._in_graph() & ~self._accumulated
            for index in arrived:
                self._accumulated |= 1 << index
            arrived = [index for index in arrived if not handed >> index & 1]
        return self._count(tuple(arrived)) if arrived else False

    def _count(self, arrived: tuple[int, ...]) -> bool:
        """Gradients came through hooks, in this order; returns whether they completed a bucket."""
        if self._unused:
            self._mark_unused()
        batches = self._batches.get(arrived)
        if batches is None:
            if len(self._batches) >= BATCHES:
                self._batches.clear()
                self._views.clear()
            later = self.batch([index for index in arrived if self._small[index]])
            batches = self._batches[arrived] = self.batch(arrived), later
        batch, later = batches
        if later.indices:
            self._later.append(later)
        if len(later.indices) != len(arrived):
            for index in arrived:
                if not self._small[index]:
                    self._copy(index)
        self.hooked += len(arrived)
        if batch.bits.bit_count() != len(arrived):
            self._refuse(next(i for i in arrived if arrived.count(i) > 1))
        self._mark(batch.bits)
        complete = False
        for buffer, count, last in batch.counts:
            buffer.missing -= count
            if not buffer.missing:
                complete = True
                self._last |= last
        return complete

    def _open(self) -> None:
        """Memory for this reduction, at its first gradient."""
        if not self._opened:
            renewed = False
            for buffer in self.buffers.values():
                renewed |= buffer.open()
            if renewed:
                self._views.clear()
                self._ahead.clear()
                for buffer in self.buffers.values():
                    buffer.ahead = 0
            self._opened = True

    def _view(self, index: int) -> torch.Tensor:
        self._open()
        buffer, place = self._place[index]
        return buffer.views[place]

    def _copy(self, index: int) -> None:
        """Scale one accumulated gradient into its slot."""
        view, grad = self._view(index), self._gradient(index)
        began = perf_counter()
        if grad is None:
            view.zero_()
        else:
            torch.mul(grad, self.scale, out=view)
        self.elsewhere += perf_counter() - began

    def _copy_later(self) -> None:
        """Scale the small gradients that have come since the last time into their slots."""
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        self._open()
        parameters = self.parameters
        for batch in self._later:
            views = self._views_of(batch)
            grads = [parameters[index].grad for index in batch.indices]
            there = [grad for grad in grads if grad is not None]
            if len(there) < len(views):
                for view, grad in zip(views, grads, strict=True):
                    if grad is None:
                        view.zero_()
                views = [v for v, grad in zip(views, grads, strict=True) if grad is not None]
            targets += views
            sources += there
        if torch.is_grad_enabled():  # under `create_graph`
            sources = [grad.detach() for grad in sources]
        if targets:
            began = perf_counter()
            try:
                torch_api.copy_all(targets, sources)
            except RuntimeError:
                for index in (index for batch in self._later for index in batch.indices):
                    self._gradient(index)
                raise
            torch_api.scale_all(targets, self.scale)
            self.elsewhere += perf_counter() - began
        self._later.clear()

    def _views_of(self, batch: Batch) -> list[torch.Tensor]:
        views = self._views.get(batch)
        if views is None:
            if (
                len(self._views) >= VIEWS
            ):  # an op that is not known again brings a new one each time
                self._views.clear()
            views = self._views[batch] = batch.views()
        return views

    def _gradient(self, index: int) -> torch.Tensor | None:
        grad = self.parameters[index].grad
        if grad is None:
            return None
        if grad.is_sparse:
            raise RuntimeError(
                f"`{self.setup.names[index]}` has a sparse gradient; plan `sync {{ by = stock }}`"
            )
        return grad.detach() if grad.requires_grad else grad

    def _mark(self, bits: int) -> None:
        if self._ready & bits:
            self._refuse_all(bits)
        self._ready |= bits

    def _refuse_all(self, bits: int) -> NoReturn:
        self._refuse((self._ready & bits).bit_length() - 1)

    def _in_graph(self) -> int:
        """The gradients that compiled graphs brought in this backward."""
        return reduce(or_, (batch.bits for batch in self._taken), 0)

    def _refuse(self, index: int) -> NoReturn:
        raise RuntimeError(_TWICE.format(name=self.setup.names[index]))

    def _without(self, bits: int) -> Iterator[int]:
        """The indices that are not in a set."""
        return (index for index in range(len(self.parameters)) if not bits >> index & 1)

    def _mark_unused(self) -> None:
        """Parameters the forward did not reach are ready with the first gradient, as in stock.

        What they have accumulated counts: another rank may have reached them.
        """
        unused, self._unused = self._unused, ()
        for index in unused:
            self._copy(index)
            self._mark(1 << index)
            self._place[index][0].missing -= 1

    def advance(self) -> None:
        """Carry out what is ready; behind the last gradient, let the rest run at the end."""
        if self._later:
            self._copy_later()
        self._cursor.advance()
        if self._ready == self._all and not self._queued:
            self._queued = True
            self._hooks.due = sys.maxsize  # nobody is waited for any more
            torch_api.queue_callback(self._finish)

    def _finish(self) -> None:
        began, before = perf_counter(), self.elsewhere
        if self.setup.find_unused:
            self._agree_on_used()
        self._cursor.advance(to_end=True)
        self._account(began, before)
        self.armed = False
        self._used = 0
        self._hooks.arrived.clear()
        self._hooks.due = len(self.parameters)
        pattern = self._in_graph(), self._last
        if self._pattern != pattern and not self._counts_used:
            self._pattern = pattern
            self._choose_wakes(*pattern)

    def _choose_wakes(self, in_graph: int, last: int) -> None:
        """From now on only those wake us that completed a bucket this time, or are copied at once.

        The others are counted with the next that does; behind the last gradient of all we are woken
        in any case, so that what comes in another order starts later, and nothing is missed.
        """
        self._hooks.wakes.clear()
        self._hooks.wakes.update(
            index
            for index in self._without(in_graph)
            if last >> index & 1 or not self._small[index]
        )

    def _agree_on_used(self) -> None:
        """Which parameters got a gradient on any rank: the others' `.grad` stays untouched."""
        mine = [self._used >> index & 1 for index in range(len(self.parameters))]
        used = torch.tensor(mine, dtype=torch.int32, device=self.parameters[0].device)
        began = perf_counter()
        dist.all_reduce(used, group=self.setup.group)
        self.elsewhere += perf_counter() - began
        self._used = sum(1 << index for index, on in enumerate(used.tolist()) if on)

    # --- what handlers do to it ------------------------------------------------------------------

    def wait_for(self, buffer: BucketBuffer) -> None:
        """Block until a bucket is reduced."""
        assert buffer.work is not None
        began = perf_counter()
        if not self._looked_ahead and not buffer.work.is_completed():
            self._look_ahead()
            if buffer.work.is_completed():  # what nobody can say was hidden is our own time
                began = perf_counter()
        try:
            buffer.work.wait() if self.timeout is None else buffer.work.wait(self.timeout)
        except RuntimeError as error:
            raise self.setup.lost(self.setup.root, error) from error
        buffer.work = None
        if buffer.started_ns:
            self.setup.track.span(in_flight(buffer.bucket.name), buffer.started_ns)
        seconds = perf_counter() - began
        self.elsewhere += seconds
        self.wait_seconds += seconds

    def starting(self, buffer: BucketBuffer) -> None:
        """A reduction begins: do gradients still have to come?"""
        if buffer.in_graph:
            self.reduced_in_graph += 1
        else:
            self.reduced_by_hooks += 1
        buffer.started_ns = time_ns() if self.setup.track.full else 0
        if self._ready == self._all and buffer is not self._last_buffer:
            self.late.append(buffer.bucket.name)

    def deliver(self) -> None:
        """Give every parameter its reduced gradient.

        A gradient that began in this backward and that nobody hooked is replaced by its slot, which
        saves a copy; any other keeps its identity and gets the values, as under stock DDP.
        """
        used = self._used if self.setup.find_unused else None
        parameters = self.parameters
        if not self._looked_ahead:
            self._give_whole()
        for buffer in self.buffers.values():
            if buffer.given or buffer.all_taken:
                continue
            in_graph = self._in_graph()
            targets: list[torch.Tensor] = []
            sources: list[torch.Tensor] = []
            slots = zip(buffer.bucket.slots, buffer.views, buffer.pointers, strict=True)
            for slot, view, pointer in slots:
                index = slot.index
                if used is not None and not used >> index & 1:
                    continue
                parameter = parameters[index]
                grad = parameter.grad
                if grad is None:
                    parameter.grad = view.data
                elif in_graph >> index & 1 and grad.data_ptr() == pointer:
                    continue
                elif self._fresh[index]:
                    parameter.grad = view.data
                else:
                    targets.append(grad.detach())
                    sources.append(view)
            if targets:
                began = perf_counter()
                torch_api.copy_all(targets, sources)
                self.elsewhere += perf_counter() - began
