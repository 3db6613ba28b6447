"""The other ranks, as far as this one knows them: through the store, never by a collective.

The agreement on every root's contract, who ended its script and when, where each is, and whether
all run alike.
What is said on the store is in `agree.py` and `likeness.py`; here is what it means for this rank.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import torch.distributed as dist

from sgplan.grammar.diagnostics import Diagnostic, Label
from sgplan.interpreter import clock, events
from sgplan.interpreter.agree import Agreement, disagreement
from sgplan.interpreter.likeness import LOOKS, Likeness
from sgplan.interpreter.roots import Root
from sgplan.planner import torch_api

if TYPE_CHECKING:
    from sgplan.interpreter.rank import Rank

_CLOCK = "ranks"
STRICT_WAIT = 600.0  # seconds for the other ranks to end their first step, compiling included


class Peers:
    """What one rank says to the others and hears of them.

    Attributes:
        store: of the default group, None until the script enters DDP and when its owner is gone.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._groups: Counter[str] = Counter()
        self._likeness: dict[str, Likeness] = {}
        self._looking = False  # what other ranks are to say of an earlier step is not there yet
        self.store: torch_api.Store | None = None
        self._own_connection: torch_api.Store | None = None
        self._published = ""
        self._aligned = self._rank.world == 1

    # --- before the first reduction --------------------------------------------------------------

    def agree(self, root: Root, group: dist.ProcessGroup, extra: Sequence[str]) -> None:
        """Publish the contract of a root and wait for the verdict; a mismatch ends this rank."""
        began = perf_counter()
        rank = self._rank
        self.store = torch_api.default_store()
        self._groups[group.group_name] += 1
        topic = f"contract/{group.group_name}/{self._groups[group.group_name]}"
        ranks = dist.get_process_group_ranks(group)
        timeout = torch_api.group_timeout(group)
        agreement = Agreement(self.store, topic, dist.get_rank(), ranks, timeout)
        lines = [*self._contract(root), *extra]
        digest = rank.planner.digest(lines)
        agreement.publish(digest, lines)
        try:
            other = agreement.differing(self._waiting_for)
        except TimeoutError as error:
            rank.report([_absent(root.name, str(error))])
            return
        if other is None:
            part = [] if len(ranks) == rank.world else ranks
            rank.emit(events.ContractAgreed, root.name, digest, perf_counter() - began, part)
            rank.write_part()
            if not part and not self._aligned:
                self._align()
            return
        first = ranks[0]
        difference = rank.planner.difference(agreement.text(first), agreement.text(other))
        agreement.leave()
        rank.report([disagreement(root.name, first, other, difference)])

    def _align(self) -> None:
        """Measure how far the clocks are apart, while every rank is here and has nothing to do."""
        self._aligned = True
        rank, store = self._rank, self.store
        assert store is not None
        if rank.rank == 0:
            rank.emit(events.ClockAligned, 0, 0)
            threading.Thread(target=self._keep_time, args=(store,), daemon=True).start()
            return
        try:
            found = clock.ask_time(torch_api.own_connection(store), _CLOCK, rank.rank)
        except RuntimeError as error:
            rank.once(events.NoteAdded, "clock", f"the offset to rank 0 is not known: {error}")
            return
        rank.emit(events.ClockAligned, found.offset_ns, found.error_ns)

    def _keep_time(self, store: torch_api.Store) -> None:
        try:
            clock.keep_time(torch_api.own_connection(store), _CLOCK, range(1, self._rank.world))
        except RuntimeError:
            return  # a rank that did not ask says so itself

    def _contract(self, root: Root) -> list[str]:
        rank = self._rank
        buckets = [bucket for bucket in rank.lower().buckets if bucket.root == root.name]
        return rank.planner.contract(rank.plan, rank.facts(), root.fact(), buckets)

    def _waiting_for(self, ranks: list[int]) -> None:
        text = f"waiting for ranks {', '.join(map(str, ranks))} to enter DDP"
        self._rank.once(events.NoteAdded, "agreement", text)

    # --- who ended -------------------------------------------------------------------------------

    def publish_end(self) -> None:
        """Tell the other ranks that this one takes no further step."""
        if self.store is not None:
            try:
                self.store.set(_ended_key(self._rank.rank), str(self._rank.steps.step))
            except RuntimeError:
                self.store = None  # its owner is gone, and with it everybody who could read

    def publish_progress(self) -> None:
        """Tell the other ranks where this one is, when that changed; from the recording thread.

        Uses a connection of its own: the script may sit in a wait on the shared one.
        """
        store = self.store
        if store is None:
            return
        text = f"{self._rank.steps.step} {'backward' if self._rank.in_backward else 'script'}"
        if text == self._published:
            return
        try:
            own = self._own_connection or torch_api.own_connection(store)
            own.set(_at_key(self._rank.rank), text)
            self._own_connection = own
        except RuntimeError:
            self.store = None
        self._published = text

    def lost(self, root: str, error: BaseException) -> BaseException:
        """What a failed wait means: names the ranks that ended or did not come, and their steps."""
        found = self._loss(root)
        found = replace(found, notes=(str(error).strip().split("\n")[0],))
        self._rank.emit(events.DiagnosticRaised, found.to_wire())
        return RuntimeError(f"sgplan: {found.message}")

    def _loss(self, root: str) -> Diagnostic:
        rank, step = self._rank.rank, self._rank.steps.step + 1
        batches = "give every rank the same number of batches, or use `join()`"
        ended = self._others(_ended_key)
        if ended:
            gone = ", ".join(f"rank {rank} ended its script after step {at}" for rank, at in ended)
            fact = f"rank {rank} waits in step {step} for a reduction that cannot come: {gone}"
            return Diagnostic("SG0905", fact, help=batches)
        away = [(rank, at.split()[0]) for rank, at in self._others(_at_key) if "script" in at]
        if away:
            where = ", ".join(
                f"rank {rank} ended step {at} and is in no backward" for rank, at in away
            )
            fact = f"rank {rank} waits in step {step} for a reduction that nobody joins: {where}"
            return Diagnostic("SG0904", fact, help=batches)
        fact = f"rank {rank} waited in vain for a reduction of `{root}` in step {step}"
        cure = "look at what the other ranks did last (`sgplan show` on the run folder)"
        return Diagnostic("SG0904", fact, help=cure)

    def _others(self, key: Callable[[int], str]) -> list[tuple[int, str]]:
        """What the other ranks said under a key, as far as the store still answers."""
        found: list[tuple[int, str]] = []
        for rank in range(self._rank.world):
            try:
                if rank != self._rank.rank and self.store and self.store.check([key(rank)]):
                    found.append((rank, self.store.get(key(rank)).decode()))
            except RuntimeError:
                return found
        return found

    # --- whether all run alike -------------------------------------------------------------------

    def compare(self, step: int) -> None:
        """Note, or refuse under `agree = strict`, that ranks run different graphs.

        Args:
            step: the one that ends now, from 1.
        """
        if step not in LOOKS and not self._looking:
            return
        if self.store is None or self._rank.world == 1:
            return
        for root in self._rank.roots:
            if root.kind == "ddp" and root.path != "stock":
                self._compare_root(root, step, self.store)
        self._looking = any(likeness.pending for likeness in self._likeness.values())

    def _compare_root(self, root: Root, step: int, store: torch_api.Store) -> None:
        rank = self._rank
        likeness = self._likeness.get(root.name)
        if likeness is None:
            likeness = Likeness(store, root.name, rank.rank, rank.world)
            self._likeness[root.name] = likeness
        capture = rank.capture_of(root)
        strict = capture.agree == "strict" and step == 1
        try:
            likeness.publish(step, root.path, [graph.shapeless_digest for graph in root.graphs])
            difference = likeness.strict(step, STRICT_WAIT) if strict else likeness.difference()
        except RuntimeError as error:
            # A rank that is gone, or the store with it: only a rank that must know is ended by it.
            if strict:
                rank.report([_not_compared(root.name, error)])
            return
        if difference and strict:
            span = capture.origin("agree")
            place = None if span is None else Label(span)
            cure = "make the ranks run one graph, or write `agree = contract`"
            rank.report([Diagnostic("SG1003", difference, place, help=cure)])
        elif difference:
            rank.once(events.NoteAdded, "ranks differ", difference)


def _ended_key(rank: int) -> str:
    return f"sgplan/ended/{rank}"


def _at_key(rank: int) -> str:
    """`STEPS backward` or `STEPS script`: steps ended, and where the rank is."""
    return f"sgplan/at/{rank}"


def _not_compared(root: str, error: BaseException) -> Diagnostic:
    return Diagnostic(
        "SG0904",
        f"the ranks' graphs of `{root}` could not be compared after the first step",
        notes=(str(error).strip().split("\n")[0],),
        help="look at what the other ranks did last (`sgplan show` on the run folder)",
    )


def _absent(root: str, fact: str) -> Diagnostic:
    return Diagnostic(
        "SG0904",
        fact,
        notes=(f"the contract of `{root}` was not agreed on",),
        help="see what the absent ranks do before they wrap the model in DDP",
    )
