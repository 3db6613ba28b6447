"""sgplan: plan, show and run the decisions of distributed training on an unmodified script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgplan.proof.verification import Verification
    from sgplan.proof.verify import verify

__all__ = ["Verification", "__version__", "verify"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`sgplan.verify` and `sgplan.Verification`, loaded when they are asked for."""
    if name == "verify":
        from sgplan.proof.verify import verify

        return verify
    if name == "Verification":
        from sgplan.proof.verification import Verification

        return Verification
    raise AttributeError(f"module `sgplan` has no attribute `{name}`")
