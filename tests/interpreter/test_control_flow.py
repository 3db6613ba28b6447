"""Advice on lines whose path depends on data: it is run, compiled as one graph, and compared."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sgplan.interpreter.control_flow import advice, explained, place_of

BRANCH = """
def f(x):
    y = x * 2
    if x.sum() > 0:
        y = y + 1
        z = y * x
    else:
        z = -x
    return y + z
"""
RETURNS = """
def f(x):
    if x.sum() > 0:
        return x
    y = x - 1
    return y * y
"""
BOTH_RETURN = """
def f(x):
    if not x.sum() > 0 and bool(x.max() < 9):
        return -x
    else:
        return x + 1
"""
CHOICE = """
def f(x):
    y = x if x.sum() > 0 else -x
    return y * 3
"""
WHILE = """
def f(x):
    limit = x.abs().sum() * 8
    while x.abs().sum() < limit:
        x = x * 2
    return x
"""
COUNTED = """
def f(x):
    n = x.abs().sum().int()
    for i in range(n.item()):
        x = x + i
    return x
"""
ITEM = """
def f(x):
    n = x.sum().item()
    if n > 3:
        x = x * n
    return x
"""
SCALE = """
def f(x):
    x = x * x.sum().item()
    return x
"""
CASES = {
    "branch": (BRANCH, "if x", "torch.cond(x.sum() > 0, then, otherwise, (y,))"),
    "returns": (RETURNS, "if x", "return torch.cond(x.sum() > 0, then, otherwise, ())"),
    "both": (BOTH_RETURN, "if not", "torch.logical_and(torch.logical_not(x.sum() > 0)"),
    "choice": (CHOICE, "y = x if", "torch.cond(x.sum() > 0, lambda: x.clone(), lambda: -x, ())"),
    "while": (WHILE, "while", "(x,) = torch.while_loop(again, body, (x,))"),
    "for": (COUNTED, "for i", "(i, x) = torch.while_loop(again, body, (i, x))"),
    "item": (ITEM, "if n", "n = x.sum()\ndef then(x):"),
    "scale": (SCALE, "x = x *", "x = x * x.sum()"),
}
INPUTS = (torch.tensor([1.5, 2.5]), torch.tensor([-1.5, -2.5]))


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def function(source: str) -> Callable[[torch.Tensor], torch.Tensor]:
    names: dict[str, Any] = {"torch": torch}
    exec(source, names)
    return names["f"]


@pytest.mark.parametrize("case", CASES)
def test_the_form_for_one_graph_does_the_same(case: str) -> None:
    source, begins, part = CASES[case]
    lines = source.splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.strip().startswith(begins))
    found = advice(source, line)
    assert found is not None
    assert part in found.code
    assert found.quoted == lines[line - 1].strip()
    written = textwrap.indent(found.code, "    ").splitlines()
    changed = "\n".join([*lines[: found.first - 1], *written, *lines[found.last :]])
    ours = torch.compile(function(changed), backend="eager", fullgraph=True)
    for value in INPUTS:
        assert torch.equal(ours(value.clone()), function(source)(value.clone())), changed


@pytest.mark.parametrize(
    "body",
    [
        "while x.sum() < 3:\n        if x.max() > 2:\n            break\n        x = x + 1",
        "if x.sum() > 0:\n        self.seen = x",
        "if x.sum() > 0:\n        print(x)",
        "if x.sum() > 0:\n        raise ValueError(x)",
        # torch.cond refuses to change what it hands to a branch.
        "if x.sum() > 0:\n        x += 1",
        "while x.sum() < 3:\n        x *= 2",
        # Python's own `and`, in three spellings; the names may be flags.
        "if 0 < x.sum() < 9:\n        x = x + 1",
        "if self.on and x.sum() > 0:\n        x = x + 1",
        "if x.sum() > 0 and not on:\n        x = x + 1",
        "if x.size(0) > 1 or x.sum() > 0:\n        x = x + 1",
        # A tensor keeps what `int` cuts off.
        "n = int(x.mean() * 10)",
        "for i in range(int(x.sum())):\n        x = x + i",
        "n = x.mean().__int__()",
    ],
)
def test_nothing_is_advised_where_no_form_does_the_same(body: str) -> None:
    assert advice(f"def f(self, x):\n    {body}\n    return x\n", 2) is None


def test_the_innermost_frame_of_the_script_is_the_place() -> None:
    text = (
        'Data-dependent branching\n  # File "a.py", line 1, in f\n\nfrom user code:\n'
        '   File "train.py", line 30, in forward\n    return self.inner(x)\n'
        '  File "model.py", line 4, in inner\n    if x.sum() > 0:\n'
    )
    assert place_of(text) == ("model.py", 4)
    notes = explained(text, {"model.py": BRANCH}.__getitem__)
    assert notes[0] == "model.py:4: if x.sum() > 0:"
    assert notes[1].startswith("in one graph, lines 4 to 8 can be written as:\ndef then(y):\n")


def test_a_file_that_is_gone_is_no_reason_to_fail() -> None:
    def read(file: str) -> str:
        raise FileNotFoundError(file)

    assert explained('from user code:\n  File "gone.py", line 4, in f\n', read) == ()
