"""One compile per host: the first rank compiles a graph, the others wait for its cache entry.

File locks in the shared cache folder, keyed by the graph's digest. The kernel releases it when its
owner dies, so no timeout and no message is needed; ranks with different graphs never wait for each
other. The lock needs a local file system. What was captured is left in a side file beside the lock,
because a cache hit does not show the graphs again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import torch
import torch.fx as fx


def dynamo_digest(gm: fx.GraphModule, inputs: Sequence[Any], tag: str) -> str:
    """Digest of a Dynamo graph with what it is compiled for and recorded as (hex).

    Sees ops, names and module paths, bodies of higher-order ops included, and shapes and dtypes of
    the inputs; not the places in source files, so that a moved script meets its cache entries.
    """
    modes = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *(
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
            for kind in ("cpu", "cuda")
        ),
    )
    text = [tag, torch.__version__, str(modes)]
    for body in gm.modules():
        if isinstance(body, fx.GraphModule):
            text.append(str(body.graph))
            text += map(_module_stack, body.graph.nodes)
    for value in inputs:
        if isinstance(value, torch.Tensor):
            text.append(
                f"{tuple(value.shape)}{value.stride()}{value.dtype}{value.device}{value.requires_grad}"
            )
        else:
            text.append(str(value))
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _module_stack(node: fx.Node) -> str:
    return "/".join(path for path, _ in (node.meta.get("nn_module_stack") or {}).values())


class SideFile:
    """What one compile captured, next to Inductor's cache: read on a hit, written on a miss."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.path = folder / f"{digest}.msgpack"

    @contextlib.contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Alone for the first rank, together for the ranks that waited for it.

        Args:
            number: of the ATen graph within this compile; each has a lock of its own, so that the
                others trace the next graph while the first rank still compiles.
        """
        path = self.path.with_suffix(f".{number}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def first(self) -> Iterator[bool]:
        """Whether nobody on this host was at this compile before, which waits for nobody.

        Those that come later have time: what they can do before they trace the same graph is done
        when the first one needs it.
        """
        path = self.path.with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def read(self, number: int | None = None) -> Any:
        """What was captured, in wire form; None when there is no readable file.

        Args:
            number: of one ATen graph; all of the compile without it.
        """
        try:
            return msgpack.unpackb(self._part(number).read_bytes())
        except (OSError, ValueError, msgpack.UnpackException):
            return None

    def write(self, captured: Any, number: int | None = None) -> None:
        """Publish by rename, so that a reader never sees half a file."""
        path = self._part(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        partial.write_bytes(msgpack.Packer().pack(captured))
        partial.replace(path)

    def _part(self, number: int | None) -> Path:
        return self.path if number is None else self.path.with_suffix(f".{number}.msgpack")
