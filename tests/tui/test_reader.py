"""Reading event files: that grow, that are damaged, from the beginning or from anywhere."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from sgplan.interpreter import events
from sgplan.reader import Reader

from .build import BEGIN, SECOND, attached, folder, step


def test_records_of_all_ranks_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    run = folder(
        tmp_path,
        (0, 0.0, attached(0)),
        (0, 3.0, step(1)),
        (1, 1.0, attached(1)),
        (-1, 4.0, events.SloBreached("step_p99", 0.1, 0.2, 1)),
    )
    reader = Reader(run.path)
    found = list(reader.records())
    assert [heard.rank for heard in found] == [0, 1, 0, -1]
    assert [heard.time_ns - BEGIN for heard in found] == [0, SECOND, 3 * SECOND, 4 * SECOND]
    assert list(reader.records()) == []


def test_a_rank_whose_clock_is_off_is_put_where_it_belongs(tmp_path: Path) -> None:
    run = folder(
        tmp_path,
        (0, 0.0, attached(0)),
        (0, 2.0, step(1)),
        (1, 0.0, events.ClockAligned(3 * SECOND, 40_000)),
        (1, 0.1, step(1)),
    )
    assert [heard.rank for heard in Reader(run.path).records()] == [0, 0, 1, 1]


def test_what_was_said_before_the_clock_was_known_is_put_where_it_belongs(tmp_path: Path) -> None:
    """The offset may lie beyond what is decoded at once."""
    said = [(1, 0.0, attached(1))]
    said += [(1, 0.001 * n, events.NoteAdded("a", "b" * 1000)) for n in range(600)]
    said += [(1, 1.0, events.ClockAligned(3 * SECOND, 40_000)), (1, 2.0, step(1))]
    run = folder(tmp_path, (0, 0.0, attached(0)), (0, 2.0, step(1)), *said)
    heard = list(Reader(run.path).records())
    assert [each.rank for each in heard][:3] == [0, 0, 1]
    assert all(each.time_ns - each.record.time_ns == 3 * SECOND * each.rank for each in heard)


def test_a_rank_that_was_started_again_has_its_clock_of_before(tmp_path: Path) -> None:
    run = folder(tmp_path, (1, 0.0, attached(1)), (1, 1.0, events.ClockAligned(SECOND, 1)))
    path = run.path / "events-1.msgpack"
    first = path.read_bytes()
    again = folder(tmp_path / "again", (1, 5.0, attached(1)), (1, 6.0, step(1)))
    path.write_bytes(first + (again.path / "events-1.msgpack").read_bytes())
    seconds = [(heard.time_ns - BEGIN) / SECOND for heard in Reader(run.path).records()]
    assert seconds == [1.0, 2.0, 6.0, 7.0]
    third = folder(tmp_path / "third", (1, 9.0, attached(1)), (1, 9.5, events.ClockAligned(0, 1)))
    path.write_bytes(path.read_bytes() + (third.path / "events-1.msgpack").read_bytes())
    seconds = [(heard.time_ns - BEGIN) / SECOND for heard in Reader(run.path).records()]
    assert seconds == [1.0, 2.0, 6.0, 7.0, 9.0, 9.5]


def test_a_file_that_grows_is_followed_and_half_a_record_is_left_alone(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)), (0, 1.0, step(1)))
    path = run.path / "events-0.msgpack"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    reader = Reader(run.path)
    assert len(list(reader.records())) == 1
    assert reader.damage() == []
    assert "cut off" in reader.verdicts()[0].message
    path.write_bytes(whole)
    assert len(list(reader.records())) == 1
    assert reader.verdicts() == []


def test_what_cannot_be_read_is_named_and_the_rest_is_given(tmp_path: Path) -> None:
    run = folder(tmp_path, (0, 0.0, attached(0)), (1, 0.0, attached(1)), (1, 1.0, step(1)))
    with (run.path / "events-0.msgpack").open("ab") as file:
        file.write(b"\xc1\xc1")
    reader = Reader(run.path)
    assert len(list(reader.records())) == 3
    (found,) = reader.damage()
    assert "`events-0.msgpack` is damaged: unreadable from byte" in found.message
    assert reader.verdicts() == [found]


def test_a_reader_begins_where_another_was(tmp_path: Path) -> None:
    said = [(0, 0.0, attached(0)), (1, 0.5, events.ClockAligned(SECOND, 1))]
    said += [(rank, 2.0 + number, step(number)) for number in (1, 2, 3) for rank in (0, 1)]
    run = folder(tmp_path, *said)
    whole = list(Reader(run.path).records())
    for count in range(len(whole) + 1):
        first = Reader(run.path)
        taken = list(islice(first.records(), count))
        assert taken + list(Reader(run.path, first.places()).records()) == whole


def test_the_first_record_of_many_long_files_waits_for_a_little_of_each(tmp_path: Path) -> None:
    many = 64
    said = [(rank, 0.0, attached(rank, many)) for rank in range(many)]
    said += [(rank, float(n), step(n)) for n in range(1, 100) for rank in range(many)]
    run = folder(tmp_path, *said)
    reader = Reader(run.path)
    records = reader.records()
    next(records)
    assert sum(file.tail.offset for file in reader._files.values()) < many * 1024
    assert len(list(records)) == len(said) - 1
