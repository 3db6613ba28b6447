"""The ways a numeric case is run, and their jobs: each at most once per test session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from sgplan.interpreter.events import RootFound, StepFinished
from tests.gloo.harness import Job, run_job

from .names import FURTHER, REQUIRED

SCRIPT = Path(__file__).parent / "script.py"
ALL = (*REQUIRED, *FURTHER)


@dataclass(frozen=True, slots=True)
class Way:
    """How the script is started.

    Attributes:
        plan: text of the plan, None for a plain run.
        args: arguments of the script.
        reference: the plain way it must equal.
    """

    plan: str | None = None
    args: tuple[str, ...] = ()
    reference: str | None = None


COMPILE = ("--compile",)
WAYS: dict[str, Way] = {
    "eager": Way(),
    "compiled": Way(args=COMPILE),
    "empty plan on eager": Way("sgplan 1\n", reference="eager"),
    "as written, in graph": Way(
        "sgplan 1\ncapture { recompiles = 100 }\n", COMPILE, reference="compiled"
    ),
    "engine = inductor": Way(
        "sgplan 1\ncapture { engine = inductor  recompiles = 100 }\n", reference="compiled"
    ),
    "compiled, by = hooks": Way(
        "sgplan 1\ncapture { recompiles = 100 }\nsync { by = hooks }\n",
        COMPILE,
        reference="compiled",
    ),
}
PLANNED = tuple(name for name, way in WAYS.items() if way.plan is not None)


@dataclass(frozen=True, slots=True)
class Key:
    """One job: its way, ranks, dtype and cases."""

    way: str
    world: int = 2
    dtype: str = "float32"
    cases: tuple[str, ...] = ALL


@dataclass(slots=True)
class Runs:
    """Starts a job when its results are first asked for and keeps it for the session."""

    folder: Path
    jobs: dict[Key, Job] = field(default_factory=dict)

    def job(self, key: Key) -> Job:
        if key not in self.jobs:
            folder = self.folder / f"job{len(self.jobs)}"
            folder.mkdir()
            way = WAYS[key.way]
            self.jobs[key] = run_job(
                SCRIPT, ".", *key.cases, *way.args, "--dtype", key.dtype,
                folder=folder, nproc=key.world, plan=way.plan, timeout=900,
            )  # fmt: skip
        return self.jobs[key]

    def results(self, key: Key, case: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """`(rank, result)` of one case.

        Raises:
            AssertionError: the job did not get that far.
        """
        job = self.job(key)
        for rank in range(key.world):
            file = job.folder / f"{case}-{rank}.pt"
            assert file.exists(), f"{key.way}: no result of {case}\n{job.report()}"
            yield rank, torch.load(file)

    def events(self, key: Key, case: str, rank: int) -> list[Any]:
        """What one rank recorded during one case: from its first model to the next case's."""
        counts = [dict(self.results(key, name))[rank]["models"] for name in key.cases]
        recorded = self.job(key).events(rank)
        found = [
            place
            for place, event in enumerate(recorded)
            if isinstance(event, RootFound) and event.kind == "ddp"
        ]
        assert len(found) == sum(counts), f"{len(found)} roots, {sum(counts)} models"
        firsts = [found[sum(counts[:place])] for place in range(len(counts))]
        spans = dict(zip(key.cases, pairwise([*firsts, len(recorded)]), strict=True))
        return recorded[slice(*spans[case])]


def reduction_counts(events: list[Any]) -> dict[str, int]:
    """How many reductions were started by whom."""
    steps = [event for event in events if isinstance(event, StepFinished)]
    counts = Counter(
        in_graph=sum(step.in_graph for step in steps), hook=sum(step.by_hooks for step in steps)
    )
    return dict(+counts)
