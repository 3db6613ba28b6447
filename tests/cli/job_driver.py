"""Runs a command as `sgplan apply` does, without a plan: `job_driver.py LOG COMMAND…`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sgplan.launch import Job, environment
from sgplan.progress import Silent

log = Path(sys.argv[1])
log.mkdir(parents=True)
job = Job(sys.argv[2:], environment(log.parent, "apply", os.environ), log)
sys.exit(job.run(Silent()))
