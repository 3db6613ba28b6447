"""A tiny training in one process: STEPS steps of PAUSE seconds, which leaves with STATUS."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch


def main() -> None:
    if os.environ.get("STUBBORN"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("printed by the script", flush=True)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(int(os.environ["STEPS"])):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        time.sleep(float(os.environ["PAUSE"]))
    print("the script's last words", file=sys.stderr)
    sys.exit(int(os.environ.get("STATUS", "0")))


if __name__ == "__main__":
    main()
