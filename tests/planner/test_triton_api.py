"""The names that `triton_api.py` takes of Triton's inside, each exercised."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sgplan.planner import triton_api
from sgplan.planner.kernels.source import Function

pytest.importorskip("triton")
FAULTY = Path(__file__).parent.parent / "cases" / "kernels" / "faulty.py"
TUNED = """
import torch, triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["count"])
@triton.jit
def copy(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count), mask=at < count)

def launch(x):
    y = torch.empty_like(x)
    copy[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y
"""


def launched(name: str, file: Path = FAULTY) -> Any:
    return Function(str(file), name).load()


@pytest.mark.parametrize("capability", triton_api.ARCHITECTURES)
def test_compiling_only_needs_no_gpu_and_launches_nothing(capability: int) -> None:
    x = torch.zeros(8)
    with triton_api.compiling_only(capability) as compiled:
        out = launched("right")(x, x)
    assert compiled == ["_right"]
    assert out.shape == x.shape


def test_a_kernel_that_does_not_compile_is_told_with_its_line() -> None:
    with triton_api.compiling_only(90), pytest.raises(Exception) as caught:  # noqa: PT011
        launched("undefined")(torch.zeros(8), torch.zeros(8))
    text = triton_api.told(caught.value)
    assert text.startswith("CompilationError: at 3:23")
    assert "not_defined_anywhere is not defined" in text


def test_every_configuration_of_an_autotuner_is_compiled(tmp_path: Path) -> None:
    file = tmp_path / "tuned.py"
    file.write_text(TUNED)
    with triton_api.compiling_only(80) as compiled:
        launched("launch", file)(torch.zeros(8))
    assert compiled == ["copy", "copy"]


def test_what_was_replaced_is_given_back() -> None:
    from triton.runtime import JITFunction, driver
    from triton.runtime.autotuner import Autotuner

    before = JITFunction.run, Autotuner.run, driver._active
    with triton_api.compiling_only(80), triton_api.first_configuration():
        assert JITFunction.run is not before[0]
    assert (JITFunction.run, Autotuner.run, driver._active) == before
    assert "triton" in sys.modules
