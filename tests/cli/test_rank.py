"""Which processes of a job are ranks."""

from __future__ import annotations

import pytest

from sgplan.rank import claim, decide

PY = "/venv/bin/python"
TRAIN = [PY, "train.py", "--lr", "1"]


def test_a_process_with_rank_is_a_rank() -> None:
    assert decide({"RANK": "1"}, TRAIN, 7) == "rank"


def test_a_process_without_rank_is_single() -> None:
    assert decide({}, TRAIN, 7) == "single"


@pytest.mark.parametrize(
    "argv",
    [
        [PY, "/venv/bin/torchrun", "--nproc-per-node", "2", "train.py"],
        [PY, "-m", "torch.distributed.run", "train.py"],
        [PY, "-um", "torch.distributed.run", "train.py"],
        [PY, "-X", "dev", "-mtorch.distributed.launch", "train.py"],
        [PY, "-W", "error", "/lib/site-packages/torch/distributed/run.py", "train.py"],
        [PY, "/venv/bin/accelerate", "launch", "train.py"],
        [PY, "-m", "accelerate.commands.launch", "train.py"],
        [PY, "--check-hash-based-pycs", "never", "/venv/bin/deepspeed", "train.py"],
    ],
)
def test_a_launcher_is_known_by_its_command(argv: list[str]) -> None:
    assert decide({}, argv, 7) == "launcher"
    assert decide({"RANK": "0"}, argv, 7) == "launcher"


@pytest.mark.parametrize("script", ["ray.py", "fabric.py", "torchrun.py", "my_launch.py", ""])
def test_a_script_is_no_launcher_because_of_its_name(script: str) -> None:
    assert decide({}, [PY, script], 7) == "single"


@pytest.mark.parametrize(
    "argv",
    [
        [PY, "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"],
        [PY, "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "parent_pid=4"],
        [PY, "-s", "-c", "from multiprocessing.forkserver import main; main(3, 4)"],
        [PY, "-c", "from multiprocessing.resource_tracker import main;main(5)"],
        [PY, "-m", "torch._inductor.compile_worker", "--workers=2"],
        [PY, "/lib/torch/_inductor/compile_worker/__main__.py", "--workers=2"],
    ],
)
def test_workers_are_helpers_even_with_rank(argv: list[str]) -> None:
    assert decide({"RANK": "0"}, argv, 7) == "helper"


def test_a_child_of_a_rank_is_a_helper() -> None:
    environ = {"RANK": "0"}
    claim(environ, 7)
    assert decide(environ, TRAIN, 7) == "rank"
    assert decide(environ, TRAIN, 8) == "helper"


def test_a_child_of_a_single_process_is_a_helper() -> None:
    environ: dict[str, str] = {}
    claim(environ, 7)
    assert decide(environ, TRAIN, 8) == "helper"


def test_ranks_of_an_unknown_launcher_are_ranks() -> None:
    environ: dict[str, str] = {}
    claim(environ, 7)
    environ["RANK"] = "0"
    assert decide(environ, TRAIN, 8) == "rank"


def test_a_process_started_while_attaching_is_a_helper() -> None:
    assert decide({"RANK": "0", "SGPLAN_ATTACHING": "7"}, TRAIN, 8) == "helper"
    assert decide({"RANK": "0", "SGPLAN_ATTACHING": "7"}, TRAIN, 7) == "rank"
