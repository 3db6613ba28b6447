"""The one adapter to Triton's private names: compiling without a GPU, autotuning without a clock.

`tests/planner/test_triton_api.py` names and exercises each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Compute capabilities: A100, H100, B200.
ARCHITECTURES = (80, 90, 100)


class _Bench:
    """A driver for a GPU that is not there (`triton.backends.driver.DriverBase`, as used)."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return self._capability  # compiled kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)


@contextmanager
def compiling_only(capability: int) -> Iterator[list[str]]:
    """Launches compile for an architecture instead of running; yields the names of what compiled.

    Replaces `triton.runtime.driver`'s active driver and `JITFunction.run`; every configuration of
    an `Autotuner` is compiled.
    """
    from triton.runtime import JITFunction, driver
    from triton.runtime.autotuner import Autotuner

    compiled: list[str] = []
    run, tune, active = JITFunction.run, Autotuner.run, driver._active

    def compile_it(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled.append(self.__name__)
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    def compile_all(self: Any, *args: Any, **kwargs: Any) -> None:
        for config in self.configs:
            self.fn.run(*args, **kwargs, **config.all_kwargs())

    JITFunction.run, Autotuner.run = compile_it, compile_all
    bench: Any = _Bench(capability)
    driver.set_active(bench)
    try:
        yield compiled
    finally:
        JITFunction.run, Autotuner.run = run, tune
        driver._active = active


@contextmanager
def first_configuration() -> Iterator[None]:
    """An `Autotuner` takes its first configuration: the interpreter has nothing to measure."""
    from triton.runtime.autotuner import Autotuner

    tune = Autotuner.run

    def run_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    Autotuner.run = run_first
    try:
        yield
    finally:
        Autotuner.run = tune


def told(error: BaseException) -> str:
    """What a compile or a run has to say: the innermost of Triton's wrapped errors."""
    while (cause := error.__cause__) is not None and type(cause).__module__.startswith("triton"):
        error = cause
    return f"{type(error).__name__}: {error}"
