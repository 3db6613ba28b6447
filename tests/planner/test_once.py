from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx
from torch import nn

from sgplan.planner.capture.once import SideFile, dynamo_digest

SPAWN = multiprocessing.get_context("fork")


def compiled(folder: Path, log: list[str], name: str, graph: list[str]) -> None:
    """What a rank does: compile when nobody has."""
    side = SideFile(folder, "digest")
    with side.turn(1):
        if side.read() is None:
            log.append(f"{name} compiles")
            time.sleep(0.2)
            side.write(list(graph))
        else:
            log.append(f"{name} reads")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    side = SideFile(tmp_path / "new", "digest")
    assert side.read() is None
    side.write([{"ops": [1, 2]}])
    assert side.read() == [{"ops": [1, 2]}]
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".msgpack"]


def test_a_damaged_side_file_is_none(tmp_path: Path) -> None:
    side = SideFile(tmp_path, "digest")
    side.path.write_bytes(b"\xc1 no msgpack")
    assert side.read() is None
    side.path.write_bytes(b"")
    assert side.read() is None


def test_the_first_compiles_and_the_others_read(tmp_path: Path) -> None:
    log: list[str] = []
    names = ("a", "b", "c")
    threads = [
        threading.Thread(target=compiled, args=(tmp_path, log, name, ["g"])) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len([line for line in log if line.endswith("compiles")]) == 1
    assert len([line for line in log if line.endswith("reads")]) == 2


def test_the_next_graph_is_free_while_one_is_compiled(tmp_path: Path) -> None:
    with SideFile(tmp_path, "digest").turn(1), SideFile(tmp_path, "digest").turn(2):
        pass


def test_ranks_with_other_graphs_do_not_wait(tmp_path: Path) -> None:
    with SideFile(tmp_path, "one").turn(1):
        done: list[bool] = []

        def other() -> None:
            with SideFile(tmp_path, "other").turn(1):
                done.append(True)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(5)
        assert done == [True]


def _dies_while_compiling(folder: Path, holding: Any) -> None:
    with SideFile(folder, "digest").turn(1):
        holding.set()
        time.sleep(30)


def test_a_leader_that_dies_lets_the_next_one_compile(tmp_path: Path) -> None:
    holding = SPAWN.Event()
    leader = SPAWN.Process(target=_dies_while_compiling, args=(tmp_path, holding))
    leader.start()
    assert holding.wait(10)
    log: list[str] = []
    follower = threading.Thread(target=compiled, args=(tmp_path, log, "follower", ["g"]))
    follower.start()
    follower.join(0.3)
    assert follower.is_alive(), "it waits for the leader"
    assert leader.pid is not None
    os.kill(leader.pid, signal.SIGKILL)
    leader.join(10)
    follower.join(10)
    assert log == ["follower compiles"]


def test_only_one_is_first_and_nobody_waits_to_know(tmp_path: Path) -> None:
    with SideFile(tmp_path, "digest").first() as one:
        with SideFile(tmp_path, "digest").first() as other, SideFile(tmp_path, "digest").turn(0):
            assert (one, other) == (True, False)
        with SideFile(tmp_path, "of another graph").first() as elsewhere:
            assert elsewhere
    with SideFile(tmp_path, "digest").first() as later:
        assert later


def test_an_error_while_compiling_frees_the_lock(tmp_path: Path) -> None:
    try:
        with SideFile(tmp_path, "digest").turn(1):
            raise RuntimeError("compile error")
    except RuntimeError:
        pass
    log: list[str] = []
    compiled(tmp_path, log, "next", ["g"])
    assert log == ["next compiles"]


# --- the digest ----------------------------------------------------------------------------------


def graph(factor: float) -> fx.GraphModule:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * factor

    return fx.symbolic_trace(Scale())


X = torch.ones(2, 3)


def test_equal_graphs_and_inputs_have_equal_digests() -> None:
    assert dynamo_digest(graph(2.0), [X], "t") == dynamo_digest(graph(2.0), [X + 1], "t")


def test_the_digest_sees_what_is_compiled_for() -> None:
    base = dynamo_digest(graph(2.0), [X], "t")
    others = [
        dynamo_digest(graph(3.0), [X], "t"),
        dynamo_digest(graph(2.0), [X], "other tag"),
        dynamo_digest(graph(2.0), [torch.ones(3, 2)], "t"),
        dynamo_digest(graph(2.0), [X.double()], "t"),
        dynamo_digest(graph(2.0), [torch.ones(3, 2).t()], "t"),
        dynamo_digest(graph(2.0), [X.clone().requires_grad_()], "t"),
        dynamo_digest(graph(2.0), [X, 7], "t"),
    ]
    assert base not in others
    assert len(set(others)) == len(others)


def traced(source: str, lines_above: int) -> fx.GraphModule:
    """The Dynamo graph of a module class whose source stands somewhere in a file."""
    found: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        found.append(gm)
        return gm.forward

    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(compile("\n" * lines_above + source, f"place{lines_above}.py", "exec"), names)
    torch._dynamo.reset()
    torch.compile(names["Net"](), backend=backend)(X)
    return found[0]


NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.ReLU(), nn.ReLU()
    def forward(self, x):
        return self.first(x)
"""


def test_the_digest_of_a_moved_script_is_the_same_and_of_another_module_path_is_not() -> None:
    base = dynamo_digest(traced(NET, 0), [X], "t")
    assert dynamo_digest(traced(NET, 3), [X], "t") == base
    assert dynamo_digest(traced(NET.replace("self.first(", "self.second("), 0), [X], "t") != base


def test_the_digest_sees_the_mode_it_is_compiled_in() -> None:
    base = dynamo_digest(graph(2.0), [X], "t")
    with torch.no_grad():
        without = dynamo_digest(graph(2.0), [X], "t")
    with torch.inference_mode():
        inference = dynamo_digest(graph(2.0), [X], "t")
    with torch.autocast("cpu", torch.bfloat16):
        autocast = dynamo_digest(graph(2.0), [X], "t")
    assert len({base, without, inference, autocast}) == 4
