"""What guards and precision stages cost in each step of the compiled mixer, beside an empty plan.

    python bench/guards.py               # about three minutes
    python bench/guards.py --steps 8     # does it run at all

Both plans run the same script, in turn. Prints sgplan's own time as a share of the step for each,
from their reports; exit status 1 when the guards add more than the bar.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from gated import BIN, HERE

BAR = 0.005
PLANS = {
    "empty plan": "sgplan 1\n",
    "3 guards, 2 precision stages": """sgplan 1

guard "batch" { on = input[0].shape[0]  allow = [8] }
guard "type"  { on = input[*].dtype  otherwise = error }
guard "mode"  { on = module.training  allow = [on] }

precision "early" { steps = 0..9  compute = fp32 }
precision "late"  { steps = 10..  compute = fp32  in = "*" }
""",
}


def own_share(folder: Path, plan: str, steps: int) -> float:
    """sgplan's own time over the time of the steps, from the report of one run."""
    folder.mkdir()
    (folder / "plan.sgplan").write_text(plan)
    command = [
        *(str(BIN / "sgplan"), "apply", "--run-dir", str(folder / "run")),
        *(str(folder / "plan.sgplan"), "--", str(BIN / "torchrun"), "--standalone"),
        *("--nproc-per-node", "2", str(HERE / "train.py"), "--model", "mixer", "--compile"),
        *("--rounds", "1", "--steps", str(steps)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((folder / "run" / "report.json").read_text())["own_share"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    shares: dict[str, list[float]] = {name: [] for name in PLANS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for name, plan in PLANS.items():
                place = Path(folder) / f"{len(name)}-{number}"
                shares[name].append(own_share(place, plan, args.steps))
    for name, found in shares.items():
        print(f"{name}: own time {', '.join(f'{share:.2%}' for share in found)} of the step")
    empty, guarded = (min(found) for found in shares.values())
    print(f"guards and stages add {guarded - empty:.2%}, bar {BAR:.1%}")
    return 0 if guarded - empty <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
