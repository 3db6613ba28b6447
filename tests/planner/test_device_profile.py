"""What is measured of a device is kept, and measured again when it cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

from sgplan.planner.capture.device_profile import matmul_seconds


def test_a_product_is_measured_once(tmp_path: Path) -> None:
    first = matmul_seconds("cpu", "bfloat16", tmp_path / "new")
    assert 0 < first < 10
    (kept,) = (tmp_path / "new").iterdir()
    assert json.loads(kept.read_text()) == {"seconds": first}
    assert matmul_seconds("cpu", "bfloat16", tmp_path / "new") == first
    kept.write_text('{"seconds": 2.5}')
    assert matmul_seconds("cpu", "bfloat16", tmp_path / "new") == 2.5
    kept.write_text("{")
    assert matmul_seconds("cpu", "bfloat16", tmp_path / "new") < 2.5
    assert len(list((tmp_path / "new").iterdir())) == 1
