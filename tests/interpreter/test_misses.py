from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sgplan.interpreter import misses
from sgplan.interpreter.misses import Misses
from sgplan.planner.facts import MissFact

pytestmark = pytest.mark.usefixtures("patched")

NAMES = (*misses.BREAK_LOGGERS, misses.LIMIT_LOGGER)


@pytest.fixture
def said() -> Iterator[list[MissFact]]:
    """What Dynamo's loggers say while a test runs, the loggers as before afterwards."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(log.level, log.propagate, list(log.handlers)) for log in loggers]
    found: list[MissFact] = []
    Misses(found.append).install()
    yield found
    for log, (level, propagate, handlers) in zip(loggers, before, strict=True):
        log.setLevel(level)
        log.propagate = propagate
        log.handlers = handlers


def count_only(gm: Any, inputs: Any) -> Any:
    """A backend that compiles nothing."""
    return gm.forward


def line_of(fn: Any, offset: int) -> int:
    return fn.__code__.co_firstlineno + offset


def test_a_graph_break_has_its_place_and_the_users_doing(said: list[MissFact]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    torch.compile(forward, backend=count_only)(torch.ones(2))
    place = f"{Path(__file__).name}:{line_of(forward, 2)}"
    assert [miss.where for miss in said] == [place]
    assert "graph break" in said[0].reason


def test_a_break_on_a_value_names_the_branch(said: list[MissFact]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x * 3

    torch.compile(forward, backend=count_only)(torch.ones(2))
    (miss,) = said
    assert miss.where == f"{Path(__file__).name}:{line_of(forward, 1)}"
    assert "data-dependent" in miss.reason.lower() or "branching" in miss.reason.lower()


def test_one_miss_is_said_once(said: list[MissFact]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(forward, backend=count_only)(torch.ones(2))
    assert len(said) == 1


def test_a_spent_recompile_limit_names_the_function_and_the_last_reason(
    said: list[MissFact],
) -> None:
    def forward(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + n

    compiled = torch.compile(forward, backend=count_only, dynamic=False)
    config: Any = torch._dynamo.config
    with config.patch(recompile_limit=2):
        for n in range(4):
            compiled(torch.ones(2), n)
    (miss,) = said
    assert miss.where.startswith("forward")
    assert "recompile_limit" in miss.reason
    assert " 2 is spent" in miss.reason
    assert "n ==" in miss.reason


def test_a_clean_compile_says_nothing(said: list[MissFact]) -> None:
    torch.compile(lambda x: x + 1, backend=count_only)(torch.ones(2))
    assert said == []


def test_nothing_is_printed_that_the_script_did_not_ask_for(
    said: list[MissFact], capfd: pytest.CaptureFixture[str]
) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    torch.compile(forward, backend=count_only)(torch.ones(2))
    assert said
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize("text", ["", "compiling frame 3", "in user code, somewhere"])
def test_other_text_is_no_miss(text: str) -> None:
    assert misses.graph_break(text) is None
    assert misses.limit_spent(text) is None
