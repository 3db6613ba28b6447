"""The fold of events: figures, and equal lines of several ranks shown once."""

from __future__ import annotations

from sgplan.grammar.diagnostics import Diagnostic
from sgplan.interpreter import events
from sgplan.progress import describe
from sgplan.report import Outcome, Run, summary_text, to_json
from sgplan.summary import Folded, Summary

RUN = Run("apply", ("torchrun", "train.py"), "plan.sgplan", "/runs/a", 0.0, 12.5)


def attached(rank: int, world: int = 2) -> events.RankAttached:
    return events.RankAttached(rank, world, 100 + rank, "/bin/python", "2.13.0", "apply")


def step(number: int, seconds: float, wait: float = 0.0) -> events.StepFinished:
    return events.StepFinished(number, seconds, wait, 0.001, 8, 2.0 / number, False, 1, 0)


def summary_of(*events_by_rank: list[object]) -> Summary:
    summary = Summary()
    for rank, happened in enumerate(events_by_rank):
        for event in happened:
            summary.take(rank, event)
    return summary


def text_of(summary: Summary) -> str:
    return summary_text(RUN, Outcome(0, 0, "done"), summary, ".sgplan/runs/a")


def test_speed_leaves_the_compiling_step_out_and_sums_over_ranks() -> None:
    steps = [step(1, 60.0), step(2, 0.5), step(3, 0.5), step(4, 0.5)]
    summary = summary_of([attached(0), *steps], [attached(1), *steps])
    assert summary.samples_per_second() == 32.0
    assert summary.step_seconds() == 0.5


def test_a_lone_step_is_all_we_have() -> None:
    assert summary_of([attached(0), step(1, 2.0)]).samples_per_second() == 4.0


def test_exposed_communication_is_the_mean_share_of_the_ranks() -> None:
    first = [attached(0), step(1, 9.0, 9.0), step(2, 1.0, 0.1), step(3, 1.0, 0.1)]
    second = [attached(1), step(1, 9.0, 9.0), step(2, 1.0, 0.3), step(3, 1.0, 0.3)]
    share = summary_of(first, second).wait_share()
    assert share is not None
    assert abs(share - 0.2) < 1e-9


def test_steps_are_those_that_every_rank_finished() -> None:
    both = summary_of([attached(0), step(1, 1), step(2, 1)], [attached(1), step(1, 1)])
    assert both.steps == 1


def test_a_restarted_rank_counts_from_its_new_start() -> None:
    summary = summary_of([attached(0), step(1, 1), step(2, 1), attached(0), step(1, 1)])
    assert (summary.steps, summary.ranks[0].attempts) == (1, 2)


def test_equal_notes_of_eight_ranks_are_one_line() -> None:
    warnings = [events.NoteAdded("dataset", "is tiny")] * 20
    summary = summary_of(*[[attached(rank, 8), *warnings] for rank in range(8)])
    assert summary.notes.lines() == [Folded("dataset", "is tiny", tuple(range(8)), 160)]
    assert text_of(summary).count("is tiny") == 1
    assert "dataset: is tiny  ×8 ranks, 160 times" in text_of(summary)


def test_a_note_of_one_rank_names_it() -> None:
    summary = summary_of([attached(0)], [attached(1), events.NoteAdded("gate", "refused")])
    assert "gate: refused  (rank 1)" in text_of(summary)


def test_the_last_engine_and_path_of_a_model_are_shown() -> None:
    found = [
        attached(0),
        events.EngineChosen("model", "eager", "the script runs it eagerly"),
        events.PathChosen("model", "hooks", "the script runs it eagerly"),
        events.EngineChosen("model", "inductor", "the script compiles it"),
        events.PathChosen("model", "in_graph", "the script compiles it"),
    ]
    summary = summary_of(found, [attached(1), *found[1:]])
    assert [line.text for line in summary.engines.lines()] == ["inductor: the script compiles it"]
    assert [line.ranks for line in summary.paths.lines()] == [(0, 1)]


def test_equal_refusals_of_several_ranks_are_one() -> None:
    wire = Diagnostic("SG0501", "no match").to_wire()
    summary = summary_of(*[[attached(r), events.DiagnosticRaised(wire)] for r in range(2)])
    assert summary.diagnostics == [(Diagnostic("SG0501", "no match"), (0, 1))]


def test_recompiles_carry_their_reason_and_first_compiles_do_not_count() -> None:
    compiled = events.CompileFinished("GPT.forward", 3.0, "miss", 2, "")
    again = events.CompileFinished("GPT.forward", 1.0, "hit", 0, "size mismatch at dim 0")
    missed = events.GuardMissed(
        "", "input[0].shape[0]", "4", "5", "a.py:3", "recompiled", 1.0, "x", ""
    )
    summary = summary_of([attached(0), compiled, again, missed], [attached(1), compiled])
    (line,) = summary.recompiles.lines()
    assert line == Folded("no guard", "input[0].shape[0] 4 -> 5 at a.py:3; x", (0,), 1, 1.0)
    assert summary.compile_seconds == 4.0
    assert summary.cache_counts == {"miss": 2, "hit": 1}


def test_dropped_events_are_said() -> None:
    assert "7 events of rank 0" in text_of(summary_of([attached(0), events.EventsDropped(7)]))


def test_the_progress_line_has_the_five_figures() -> None:
    steps = [step(1, 60.0), step(2, 0.5, 0.05)]
    line = describe(summary_of([attached(0), *steps], [attached(1), *steps]))
    assert line == "step 2  loss 1  32.0 samples/s  comm 10.0 % exposed  0 recompiles"


def test_the_progress_line_says_what_is_compiled_before_the_first_step() -> None:
    summary = summary_of([attached(0), events.CompileStarted("GPT.forward")], [attached(1)])
    assert describe(summary) == "2 ranks attached  compiling GPT.forward"
    assert describe(Summary()) == ""


def test_the_summary_reads_like_this() -> None:
    steps = [step(1, 60.0), step(2, 0.5, 0.05), step(3, 0.5, 0.05)]
    happened = [attached(0), events.CompileFinished("GPT.forward", 3.0, "miss", 2, ""), *steps]
    assert text_of(summary_of(happened, happened)) == (
        "sgplan: done after 12.5 s on 2 ranks\n"
        "  steps         3, median 500.00 ms\n"
        "  speed         32.0 samples/s, all ranks\n"
        "  comm          10.0 % of the step exposed\n"
        "  own time      0.2 % of the step\n"
        "  recompiled    never\n"
        "  fell back     never\n"
        "  compile       3.0 s; 2 compiled\n"
        "  run folder    .sgplan/runs/a"
    )


def test_the_report_has_the_same_data() -> None:
    summary = summary_of([attached(0), step(1, 1.0), events.NoteAdded("a", "b")])
    report = to_json(RUN, Outcome(0, 0, "done"), summary, [])
    assert (report["outcome"], report["exit_status"], report["steps"]) == ("done", 0, 1)
    assert report["notes"] == [{"subject": "a", "text": "b", "ranks": [0], "count": 1}]
    assert report["ranks"][0]["torch"] == "2.13.0"


def test_what_stopped_an_earlier_attempt_is_told_and_is_no_refusal_of_the_run() -> None:
    stopped = events.DiagnosticRaised(Diagnostic("SG0904", "waited in vain").to_wire())
    warned = events.DiagnosticRaised(Diagnostic("SG0501", "odd", severity="warning").to_wire())
    summary = summary_of([attached(0), warned, stopped, attached(0), step(1, 0.1)], [attached(1)])
    assert [found.code for found, _ in summary.diagnostics] == ["SG0501"]
    assert summary.notes.lines() == [Folded("attempt 1", "waited in vain", (0,), 1)]
    summary.take(0, stopped)  # again: now it is of this attempt
    assert [found.code for found, _ in summary.diagnostics] == ["SG0501", "SG0904"]
