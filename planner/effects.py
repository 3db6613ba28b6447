"""Effects of a graph, and which changes of a graph keep them in order.

    draw     takes numbers from a random stream
    write    changes memory: of an input, of a buffer, of a value made in the graph

What must stay is the order of every two accesses of the same thing, unless both only read:

    two draws of one stream                 keep their order
    two writes of the same memory           keep their order
    a write and a reader of its memory      keep their order
    draws of different streams, writes of different memory, readers      may change places

Every draw, and every write of memory that outlives the graph, is there once before and once after.
Ops without effects may go and come: a new reader may see a state of memory only if an op that went
has seen it. Memory that a graph makes itself may go with all that is written to it.

Inputs are taken to be different memory; AOTAutograd guards on those that are not. Pure: knows
accesses by name, and nothing of FX.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sgplan.grammar.diagnostics import Diagnostic, Refused
from sgplan.planner.facts import EffectFact

# Memory that a graph makes is named by who made it, behind this mark.
MADE = "%"


@dataclass(frozen=True, slots=True)
class Access:
    """What one op of a graph does to streams and memory.

    Attributes:
        key: names the op; unique in a graph, the same before and after a pass that keeps the op.
        op, module: as in `facts.OpFact`.
        draws: streams that it takes numbers from.
        call: of the script, which made the op; empty where nobody knows.
        writes, reads: memory; `%KEY` for what the op `KEY` of the graph made, else the name of an
            input. What it writes is not listed as read.
    """

    key: str
    op: str
    module: str
    draws: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    call: str = ""

    @property
    def lasting(self) -> tuple[str, ...]:
        """Memory that it changes and that outlives the graph."""
        return tuple(memory for memory in self.writes if not memory.startswith(MADE))

    @property
    def is_effect(self) -> bool:
        return bool(self.draws or self.writes)


@dataclass(frozen=True, slots=True)
class Fault:
    """One effect that a change of the graph did not keep.

    Attributes:
        access: whose effect it is.
        what: what became of it, as the end of a sentence.
    """

    access: Access
    what: str


def effects_of(accesses: Iterable[Access]) -> tuple[EffectFact, ...]:
    """The effects that are seen outside the graph, in order: draws, and writes of inputs."""
    found: list[EffectFact] = []
    for each in accesses:
        found += [EffectFact("random", each.op, each.module, name) for name in each.draws]
        found += [EffectFact("mutation", each.op, each.module, name) for name in each.lasting]
    return tuple(found)


def faults(before: Sequence[Access], after: Sequence[Access]) -> list[Fault]:
    """Every effect that is not kept in order between two states of a graph."""
    return _Change(before, after).faults()


def require(name: str, before: Sequence[Access], after: Sequence[Access]) -> None:
    """Raises unless the pass kept all effects in order.

    Raises:
        Refused: with SG0540, the pass, the effect with its module, the order before and after.
    """
    found = faults(before, after)
    if not found:
        return
    notes = [f"{_worded(fault.access)} {fault.what}" for fault in found]
    notes += [f"before: {_order(before)}", f"after: {_order(after)}"]
    raise Refused(
        [
            Diagnostic(
                "SG0540",
                f"internal error in pass `{name}`: {notes[0]}",
                notes=tuple(notes[1:]),
                help="this is a fault of sgplan, not of the plan: please report it with this text",
            )
        ]
    )


class _Change:
    """Two states of a graph, and which op of the one is which of the other."""

    def __init__(self, before: Sequence[Access], after: Sequence[Access]) -> None:
        self._before, self._after = before, after
        self._place_before = {each.key: place for place, each in enumerate(before)}
        self._place_after = {each.key: place for place, each in enumerate(after)}
        self._pairs = self._paired()
        self._back = {there: here for here, there in self._pairs.items()}
        # Memory made in the graph that has another maker now -> its name before.
        self._renamed: dict[str, str] = {}

    def _paired(self) -> dict[int, int]:
        """Places before -> after: by key, and by what they do where a key has gone.

        What a call does counts before the op that does it: attention in another format is another
        op, which draws the same.
        """
        pairs = {
            here: there
            for key, here in self._place_before.items()
            if (there := self._place_after.get(key)) is not None
            and self._before[here].op == self._after[there].op
        }
        for alike in (_call_likeness, _likeness):
            taken = set(pairs.values())
            free: dict[object, list[int]] = defaultdict(list)
            for there, each in enumerate(self._after):
                if there not in taken and (kind := alike(each)) is not None:
                    free[kind].append(there)
            for here, each in enumerate(self._before):
                if here not in pairs and (same := free[alike(each)]):
                    pairs[here] = same.pop(0)
        return pairs

    def faults(self) -> list[Fault]:
        found = [*self._gone(), *self._new(), *self._retargeted()]
        return found or [*self._reordered(), *self._misread()]

    def _gone(self) -> Iterable[Fault]:
        for here, each in enumerate(self._before):
            if each.is_effect and here not in self._pairs:
                if each.draws or each.lasting:
                    yield Fault(each, "vanished")
                elif any(memory[1:] in self._place_after for memory in each.writes):
                    yield Fault(each, "vanished, and the memory that it changed did not")

    def _new(self) -> Iterable[Fault]:
        known = {_likeness(each) for each in self._before}
        for there, each in enumerate(self._after):
            if not each.is_effect or there in self._back:
                continue
            old = [m for m in each.writes if m[1:] in self._place_before or m in each.lasting]
            if each.draws or old:
                again = _likeness(each) in known
                yield Fault(each, "is there once more" if again else "was not there before")

    def _retargeted(self) -> Iterable[Fault]:
        for here, there in self._pairs.items():
            old, new = self._before[here], self._after[there]
            if old.op != new.op:
                continue  # paired by what they do
            if old.draws != new.draws or len(old.writes) != len(new.writes):
                yield Fault(new, "touches something else than before")
                continue
            for mine, its in zip(old.writes, new.writes, strict=True):
                if mine != its and not self._renames(mine, its):
                    yield Fault(new, f"changed {_memory(mine)} and changes {_memory(its)} now")

    def _renames(self, old: str, new: str) -> bool:
        """Whether memory may have another maker now; noted if so."""
        gone = old.startswith(MADE) and old[1:] not in self._place_after
        fresh = new.startswith(MADE) and new[1:] not in self._place_before
        return gone and fresh and self._renamed.setdefault(new, old) == old

    def _reordered(self) -> Iterable[Fault]:
        """Draws of one stream, and writes of the same memory, that changed places."""
        of_one: dict[str, list[int]] = defaultdict(list)
        for here, each in enumerate(self._before):
            if here in self._pairs:
                for touched in (*(f"draw {s}" for s in each.draws), *each.writes):
                    of_one[touched].append(here)
        said: set[int] = set()
        for places in of_one.values():
            for first, second in pairwise(places):
                if self._pairs[first] > self._pairs[second] and second not in said:
                    said.add(second)
                    other = _worded(self._before[first])
                    yield Fault(self._before[second], f"moved in front of {other}")

    def _misread(self) -> Iterable[Fault]:
        """Readers that see another state of memory than before."""
        seen_before = _versions(self._before, {})
        seen_after = _versions(self._after, self._renamed)
        went: dict[str, set[int]] = defaultdict(set)
        known: dict[str, set[int]] = defaultdict(set)
        for here, states in seen_before.items():
            there = self._pairs.get(here)
            for memory, state in states.items():
                known[memory].add(state)
                if there is None or memory not in seen_after.get(there, {}):
                    went[memory].add(state)
        for there, states in seen_after.items():
            mine = seen_before.get(self._back.get(there, -1), {})
            for memory, state in states.items():
                allowed = {mine[memory]} if memory in mine else went[memory] or known[memory]
                if state not in allowed:
                    yield Fault(
                        self._after[there],
                        f"reads {_memory(memory)} after {_changes(state)} of it; it was read "
                        f"after {' or '.join(map(_changes, sorted(allowed))) or 'none'}",
                    )


def _versions(accesses: Sequence[Access], names: dict[str, str]) -> dict[int, dict[str, int]]:
    """By place: memory that is read, of what is ever written -> the writes that came before."""
    written = {names.get(m, m) for each in accesses for m in each.writes}
    count: dict[str, int] = dict.fromkeys(written, 0)
    found: dict[int, dict[str, int]] = {}
    for place, each in enumerate(accesses):
        read = {names.get(memory, memory) for memory in each.reads}
        if states := {memory: count[memory] for memory in read if memory in count}:
            found[place] = states
        for memory in {names.get(memory, memory) for memory in each.writes}:
            count[memory] += 1
    return found


def _call_likeness(access: Access) -> object:
    """What two ops of one call agree in when one can stand for the other; None for no effect."""
    seen_outside = access.draws or access.lasting
    return (access.call, access.draws, access.lasting) if access.call and seen_outside else None


def _likeness(access: Access) -> object:
    """What two accesses agree in when one can stand for the other; None for no effect."""
    if not access.is_effect:
        return None
    return access.op, access.module, access.draws, access.lasting, len(access.writes)


def _worded(access: Access) -> str:
    where = f" of {access.module}" if access.module else ""
    touched = [*access.draws, *map(_memory, access.writes)]
    return f"`{access.op}`{where}" + (f" ({', '.join(touched)})" if touched else "")


def _memory(name: str) -> str:
    return f"the result of `{name[1:]}`" if name.startswith(MADE) else f"`{name}`"


def _changes(count: int) -> str:
    return f"{count} change" if count == 1 else f"{count} changes"


def _order(accesses: Sequence[Access]) -> str:
    return "; ".join(_worded(each) for each in accesses if each.is_effect) or "no effects"
