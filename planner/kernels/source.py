"""Kernels as a plan names them: where they lie, what digest they have, how they are loaded.

`"file.py:function"` is relative to the plan's folder; `"sgplan:function"` is one of the kernels
that come along, with its reference and its backward.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgplan.grammar.plan import Triton

LIBRARY = Path(__file__).parent / "shipped"
SHIPPED = {
    "add_layer_norm": "add_norm.py",
    "add_rms_norm": "add_norm.py",
    "bias_gelu": "bias_gelu.py",
    "cross_entropy": "cross_entropy.py",
}
_PREFIX = "sgplan"


class KernelFault(Exception):
    """A kernel cannot be used; the text says why, for people."""


class Unfit(Exception):
    """No kernel can stand at a site; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a file."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.name}"

    def load(self) -> Callable[..., Any]:
        """The function itself.

        Raises:
            KernelFault: the file fails, or has no such function.
        """
        try:
            module = _loaded(self.file, hashlib.sha256(Path(self.file).read_bytes()).hexdigest())
        except (Exception, SystemExit) as error:
            raise KernelFault(f"`{self.file}` cannot be loaded: {error!r}") from error
        function = getattr(module, self.name, None)
        if not callable(function):
            raise KernelFault(f"`{self.file}` has no function `{self.name}`")
        return function


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function that starts kernels, and what is known about it.

    Attributes:
        function: takes the site's tensors, and what constants of its ops it has a parameter for.
        reference: the same in plain torch; None where the script's own ops are it.
        backward: takes a gradient for each value that `function` returns, then its arguments;
            returns a gradient for each floating-point tensor.
        tolerance: of the largest value, in float32; None for the usual one.
        digest: of all that was said here and of the files.
    """

    function: Function
    reference: Function | None
    backward: Function | None
    tolerance: float | None
    digest: str


def located(written: Triton, folder: Path) -> Kernel:
    """Find the files of a kernel.

    Args:
        folder: of the plan.

    Raises:
        KernelFault: a file is not there.
    """
    function = _function(written.kernel, folder)
    named = {"reference": written.reference, "backward": written.backward}
    if written.kernel.startswith(f"{_PREFIX}:"):
        for part in named:
            named[part] = named[part] or f"{written.kernel}_{part}"
    reference, backward = (None if w is None else _function(w, folder) for w in named.values())
    content = hashlib.sha256(str(written).encode())
    files = {Path(f.file) for f in (function, reference, backward) if f is not None}
    for path in sorted(_with_neighbours(files)):
        content.update(path.read_bytes())
    return Kernel(function, reference, backward, written.tolerance, content.hexdigest())


def _function(written: str, folder: Path) -> Function:
    file, _, name = written.rpartition(":")
    path = _shipped(name) if file == _PREFIX else folder / file
    if not path.is_file():
        raise KernelFault(f"there is no file `{path}`")
    return Function(str(path.resolve()), name)


def _shipped(name: str) -> Path:
    """The file of a kernel that comes along, or of its reference or backward."""
    kernel = name.removesuffix("_reference").removesuffix("_backward")
    if kernel not in SHIPPED:
        known = ", ".join(f"`{known}`" for known in SHIPPED)
        raise KernelFault(f"no kernel `{name}` comes with sgplan; those that do: {known}")
    return LIBRARY / SHIPPED[kernel]


def _with_neighbours(files: Iterable[Path]) -> set[Path]:
    """Files, and what they import from their own folders."""
    found: set[Path] = set()
    pending = list(files)
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:
            continue  # loading it says so
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            beside = (path.parent / f"{name.split('.')[0]}.py" for name in names)
            pending += [file for file in beside if file.is_file()]
    return found


@contextmanager
def _own_imports(folder: Path) -> Iterator[None]:
    """A kernel imports what lies beside it; the script's modules of the same names stay its own."""
    beside = {path.stem for path in folder.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in beside & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in beside & sys.modules.keys():
            del sys.modules[name]
        sys.modules.update(others)


def _loaded(file: str, digest: str) -> Any:
    """The module of a file; the same one as long as the file's content is the same."""
    name = f"sgplan_kernel_{hashlib.sha256(f'{file}|{digest}'.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # triton looks its functions' modules up
    try:
        with _own_imports(Path(file).parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
