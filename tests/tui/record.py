"""Record the runs that screens are tested with: real jobs, whose folders stay in the repository.

    python tests/tui/record.py              # all of them (a minute or two)
    python tests/tui/record.py hang slow

The run that hangs is copied while it hangs, and then ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack

HERE = Path(__file__).parent
RUNS = HERE / "runs"
SCRIPT = HERE.parent / "cases" / "watched.py"
RANKS = 4
KEPT = ("events-*.msgpack", "counter-*.bin", "program-*.msgpack", "plan.msgpack", "report.json")
HANGS_FOR = 8.0

PLANS = {
    "healthy": """sgplan 1
capture { engine = inductor }
sync    { bucket = 32KiB  first_bucket = 16KiB }
fuse    "residual" { match = aten.gelu -> aten.add  expect = 4 }
precision "warm" { steps = 0..14  compute = fp32 }
precision "main" { steps = 15..   compute = fp16  keep_fp32 = [norm] }
slo     { step_p99 = 5s }
""",
    "storm": """sgplan 1
capture { engine = inductor }
guard "batch" { on = input[0].shape[0]  allow = [16]  otherwise = recompile  budget = 8 }
""",
    "hang": "sgplan 1\nsync { bucket = 32KiB  first_bucket = 16KiB }\n",
    "slow": "sgplan 1\nsync { bucket = 32KiB  first_bucket = 16KiB }\nslo { step_p99 = 60ms }\n",
    "fails": "sgplan 1\n",
}


def record(case: str) -> None:
    """Run one case and keep its folder."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        (work / f"{case}.sgplan").write_text(PLANS[case])
        shutil.copy(SCRIPT, work / "train.py")
        tools = Path(sys.executable).parent
        command = [
            *(str(tools / "sgplan"), "apply", "--run-dir", "run", f"{case}.sgplan", "--"),
            *(str(tools / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS)),
            *("train.py", case),
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, cwd=work, env=environ) as job:
            if case == "hang":
                _until_it_hangs(work / "run")
                _keep(case, work / "run")
                job.send_signal(signal.SIGTERM)
            job.wait(300)
        if case != "hang":
            _keep(case, work / "run")


def _until_it_hangs(run: Path) -> None:
    """Until no event file has grown for a while."""
    size, since = -1, time.monotonic()
    while time.monotonic() - since < HANGS_FOR or size < 4000:
        now = sum(path.stat().st_size for path in run.glob("events-*.msgpack"))
        if now != size:
            size, since = now, time.monotonic()
        time.sleep(0.2)


def _keep(case: str, run: Path) -> None:
    """Copy what is looked at, without the paths of this machine."""
    target = RUNS / case
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    paths = {str(run.parent): "/job", str(Path(sys.executable).parent): "/venv/bin"}
    paths[str(run.parent.resolve())] = "/job"
    for pattern in KEPT:
        for path in run.glob(pattern):
            data = path.read_bytes()
            if path.suffix == ".json":
                data = json.dumps(_moved(json.loads(data), paths), indent=2).encode() + b"\n"
            elif path.suffix == ".msgpack":
                data = b"".join(_packed(_moved(each, paths)) for each in _unpacked(data))
            (target / path.name).write_bytes(data)


def _moved(value: Any, paths: dict[str, str]) -> Any:
    match value:
        case str():
            for path, other in paths.items():
                value = value.replace(path, other)
            return value
        case list():
            return [_moved(each, paths) for each in value]
        case dict():
            return {_moved(key, paths): _moved(each, paths) for key, each in value.items()}
        case _:
            return value


def _unpacked(data: bytes) -> msgpack.Unpacker:
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data)
    return unpacker


def _packed(value: Any) -> bytes:
    return msgpack.Packer().pack(value)


if __name__ == "__main__":
    for name in sys.argv[1:] or PLANS:
        record(name)
