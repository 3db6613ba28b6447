"""Times a plain training script by hand and under plans, and says which bars hold.

    python bench/harness.py                                    # every model
    python bench/harness.py --quick                            # a smoke test: does it run at all
    python bench/harness.py --model mixer --way "DDP + compile" --way "plan, inductor + fused"

Exit status 1 when a bar fails, that is when the whole interval lies on the wrong side of it.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from measure import Settings, measure
from models import WORKLOADS
from report import table, verdict_table, verdicts
from ways import WAYS, bars

STEPS = {"gpt": 2, "resnet50": 2, "mixer": 15}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", choices=WORKLOADS, help="default: all")
    parser.add_argument(
        "--way", action="append", choices=[w.name for w in WAYS], help="default: all"
    )
    parser.add_argument("--starts", type=int, default=5, help="of each way, with its cache")
    parser.add_argument("--rounds", type=int, default=6, help="of each start")
    parser.add_argument("--steps", type=int, help="of a round; default: about a second")
    parser.add_argument("--cold-starts", type=int, default=2, help="the best of them counts")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="per rank")
    parser.add_argument("--quick", action="store_true", help="the mixer, two rounds of three steps")
    parser.add_argument("--folder", type=Path, help="working folder; default: a temporary one")
    return parser.parse_args()


def end_jobs_when_told_to(signum: int, frame: object) -> None:
    """SIGTERM unwinds like an exception, so that no parked job stays behind."""
    sys.exit(128 + signum)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def machine() -> str:
    """Where the figures come from, and how busy it was."""
    load = os.getloadavg()[0]
    return (
        f"torch {torch.__version__}, {os.cpu_count()} cores {platform.machine()}, load {load:.1f}"
    )


def run_model(model: str, args: argparse.Namespace, folder: Path) -> bool:
    """Measure one model and print its tables; returns whether no bar failed."""
    settings = Settings(
        model=model,
        ranks=args.ranks,
        batch=args.batch,
        steps=3 if args.quick else args.steps or STEPS[model],
        rounds=2 if args.quick else args.rounds,
        cold_starts=1 if args.quick else args.cold_starts,
        starts=1 if args.quick else max(args.starts, 1),
        folder=folder / model,
    )
    ways = [way for way in WAYS if not args.way or way.name in args.way]
    before = machine()
    figures = measure(settings, ways, say)
    how = f"{settings.ranks} ranks, one thread each, batch {settings.batch} a rank"
    how += f", {settings.starts} starts with {settings.rounds} rounds of {settings.steps} steps"
    print(f"\n## {model}\n\n{before}; {how}\n\n{table(settings, figures)}\n", flush=True)
    if args.quick:
        print("A quick run is too short to judge a bar by.", flush=True)
        return True
    found = verdicts(bars(model), figures)
    print(verdict_table(found), flush=True)
    return all(verdict.outcome != "FAIL" for verdict in found)


def main() -> int:
    signal.signal(signal.SIGTERM, end_jobs_when_told_to)
    args = parse()
    models = args.model or (["mixer"] if args.quick else list(WORKLOADS))
    with tempfile.TemporaryDirectory(prefix="sgplan-bench-") as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        good = [run_model(model, args, folder) for model in models]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
