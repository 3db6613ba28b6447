"""Who waits for whom: which rank is the victim, and which the cause."""

from __future__ import annotations

import pytest

from sgplan.interpreter import events
from sgplan.interpreter.counter import ELSEWHERE, Position
from sgplan.tui.rows import View, rank_rows
from sgplan.tui.state import RunState
from sgplan.tui.waiting import Where, whereabouts
from sgplan.tui.words import head

from .build import BEGIN, SECOND, after, at, attached, heard_of, step


def ranks(count: int) -> RunState:
    return after(*((rank, 0.0, attached(rank, count)) for rank in range(count)))


def seen(
    positions: dict[int, Position], seconds: float = 10.0, **given: object
) -> dict[int, Where]:
    state = given.pop("state", None) or ranks(len(positions))
    assert isinstance(state, RunState)
    return whereabouts(state, positions, BEGIN + round(seconds * SECOND), **given)  # type: ignore


def test_a_rank_that_stays_in_the_script_is_the_cause() -> None:
    found = seen({0: at("wait b0"), 1: at(ELSEWHERE), 2: at("wait b0")})
    assert found[0].waits_for == found[2].waits_for == (1,)
    assert found[1].holds_up == (0, 2)
    assert found[1].doing == "script"
    assert found[0].since == 10.0


def test_nobody_is_blamed_for_a_short_wait() -> None:
    found = seen({0: at("wait b0"), 1: at(ELSEWHERE)}, seconds=0.5)
    assert (found[0].waits_for, found[1].holds_up) == ((), ())


def test_a_rank_that_is_a_step_ahead_is_not_waited_for() -> None:
    found = seen({0: at("wait b0", 3), 1: at("wait b0", 4), 2: at("backward", 3)})
    assert found[0].waits_for == (2,)
    assert found[1].waits_for == (0, 2)
    assert found[2].holds_up == (0, 1)


def test_ranks_in_one_wait_wait_for_the_network_not_for_each_other() -> None:
    found = seen({0: at("wait b0"), 1: at("wait b0")})
    assert all(where.waits_for == where.holds_up == () for where in found.values())


def test_a_rank_whose_process_is_gone_is_said_to_be() -> None:
    found = seen({0: at("wait b0"), 1: at("backward")}, dead={1})
    assert (found[1].gone, found[1].holds_up) == (True, (0,))


def test_a_rank_that_has_ended_waits_for_nobody() -> None:
    state = after(
        (0, 0.0, attached(0)),
        (1, 0.0, attached(1)),
        (0, 1.0, events.ScriptEnded("returned", "", 3, 0)),
    )
    found = seen({0: at("wait b0"), 1: at("wait b0")}, state=state)
    assert found[0].doing == "returned"
    assert found[0].waits_for == ()


def test_without_counters_ranks_do_what_their_events_say() -> None:
    state = after((0, 0.0, attached(world=1)), (0, 1.0, events.CompileStarted("GPT.forward")))
    found = whereabouts(state, {}, BEGIN + 3 * SECOND)
    assert found[0].doing == "compile GPT.forward"
    assert found[0].since == 2.0


def agreed(root: str, *group: int) -> events.ContractAgreed:
    return events.ContractAgreed(root, "digest", 0.1, list(group))


def in_groups(count: int, *said: tuple[int, events.ContractAgreed]) -> RunState:
    """Ranks that have agreed on roots; an empty group is that of all."""
    state = ranks(count)
    for heard in heard_of(*((rank, 0.0, event) for rank, event in said)):
        state.take(heard)
    return state


def test_a_rank_that_cannot_be_seen_is_not_blamed() -> None:
    """It plans without a counter, or its file cannot be mapped."""
    found = seen({0: at("wait b0"), 1: at("wait b0")}, state=ranks(3))
    assert (found[0].waits_for, found[0].unsure) == ((), (2,))
    assert found[2].holds_up == ()
    victim = rank_rows(View(ranks(3), found))[0]
    assert (victim[1].text, victim[-1].text) == ("… waits", "unknown, maybe rank 2")


def test_a_rank_that_can_be_seen_is_blamed_beside_one_that_cannot() -> None:
    found = seen({0: at("wait b0"), 1: at(ELSEWHERE)}, state=ranks(3))
    assert (found[0].waits_for, found[0].unsure) == ((1,), (2,))
    assert found[1].holds_up == (0,)


def test_a_counter_that_is_older_than_the_events_is_not_believed() -> None:
    state = after((0, 0.0, attached(0)), (1, 0.0, attached(1)), (1, 1.0, step(3)))
    found = seen({0: at("wait b0", 3), 1: at(ELSEWHERE, 2)}, state=state)
    assert (found[0].waits_for, found[0].unsure) == ((), (1,))


def test_a_rank_without_a_counter_that_has_ended_is_the_cause() -> None:
    state = ranks(2)
    (ended,) = heard_of((1, 0.0, events.ScriptEnded("returned", "", 3, 0)))
    state.take(ended)
    assert seen({0: at("wait b0")}, state=state)[1].holds_up == (0,)


def test_a_rank_outside_of_the_process_group_is_not_blamed() -> None:
    state = in_groups(3, (0, agreed("model", 0, 1)), (1, agreed("model", 0, 1)))
    found = seen({0: at("wait b0"), 1: at(ELSEWHERE), 2: at(ELSEWHERE)}, state=state)
    assert found[0].waits_for == (1,)
    assert found[2].holds_up == ()


def test_of_a_rank_in_several_groups_it_is_not_known_which_one_waits() -> None:
    state = in_groups(3, (0, agreed("model", 0, 1)), (0, agreed("head")))
    found = seen({0: at("wait b0"), 1: at(ELSEWHERE), 2: at(ELSEWHERE)}, state=state)
    assert (found[0].waits_for, found[0].unsure) == ((1,), (2,))
    assert found[2].holds_up == ()


def first_line(
    positions: dict[int, Position], later: float, usual: float = 0.1, state: RunState | None = None
) -> str:
    """What is said of ranks whose last step of several ended after a second."""
    if state is None:
        said = [(rank, 0.0, attached(rank)) for rank in reversed(positions)]
        said += [(r, 1.0, step(n, usual)) for n in (1, 2, 3) for r in positions]
        state = after(*said)
    now = BEGIN + round(later * SECOND)
    view = View(state, whereabouts(state, positions, now), now_ns=now)
    return head(view, "run", 120).splitlines()[0]


@pytest.mark.parametrize(
    ("place", "since", "later", "usual", "said"),
    [
        ("forward model", 1.0, 71.0, 0.1, "▲ no step has ended for 70 s: rank 0 in script, rank 1"),
        ("script", 1.0, 71.0, 0.1, "▲ no step has ended for 70 s: rank 0..1 in script"),
        ("forward model", 70.5, 71.0, 0.1, "… no step has ended for 70 s: rank 0 in script"),
        ("forward model", 1.0, 6.0, 0.1, "● training"),
        ("forward model", 1.0, 71.0, 10.0, "● training"),  # steps of 10 s
    ],
)
def test_a_run_that_ends_no_step_is_not_called_healthy(
    place: str, since: float, later: float, usual: float, said: str
) -> None:
    """A barrier of the script's own is no `wait`, and an evaluation moves on."""
    positions = {0: at("script", 3, 1.0), 1: at(place, 3, since)}
    assert first_line(positions, later, usual).startswith(said)


def test_a_run_that_stands_still_now_is_not_called_slow() -> None:
    """What was the matter before is of less weight."""
    waits = {0: 0.9, 1: 0.0}
    said = [(r, n / 10, step(n, 0.1, wait=waits[r] / 10)) for n in range(1, 10) for r in waits]
    positions = {rank: at("script", 9, 1.0) for rank in waits}
    assert first_line(positions, 5.0, state=after(*said)).startswith("▲ rank 1 is slow")
    assert first_line(positions, 41.0, state=after(*said)).startswith("▲ no step has ended")


def test_ranks_without_counters_that_end_no_step_are_told() -> None:
    state = after((0, 0.0, attached(0)), (0, 1.0, step(1)))
    assert first_line({}, 31.0, state=state).startswith("… no step has ended for 30 s: rank 0 in")


def test_a_rank_that_has_ended_does_not_make_a_run_move() -> None:
    said = [(rank, 1.0, step(1)) for rank in (0, 1)]
    state = after(*said, (1, 30.0, step(2)), (1, 31.0, events.ScriptEnded("returned", "", 2, 0)))
    line = first_line({0: at("script", 1), 1: at("script", 2)}, 41.0, state=state)
    assert line.startswith("▲ no step has ended for 40 s: rank 0 in script")


def test_a_wait_for_nobody_knows_whom_is_told() -> None:
    line = first_line({0: at("wait b0")}, 41.0, state=ranks(2))
    assert line.startswith("▲ rank 0 waits for 41 s, who for is not known")
