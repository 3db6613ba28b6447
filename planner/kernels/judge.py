"""Whether a kernel computes what its reference does, and that what the script does.

    compile   every launch is compiled for each architecture; needs no GPU
    compare   the kernel is run on made-up tensors, and compared with its reference; the reference
              with the script's own ops, values and gradients; the backward with those gradients

Sizes are the site's, and odd ones where the ops allow it, so that a missing mask shows; values are
usual, tiny, large and positive ones, in the site's dtype and in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from sgplan.planner import triton_api
from sgplan.planner.kernels.check import Case, TensorLike
from sgplan.planner.kernels.guard import Fences, span
from sgplan.planner.kernels.op import Calling, Tensors, gradients
from sgplan.planner.kernels.source import KernelFault

# Of the largest value of a tensor.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,  # Triton's interpreter rounds towards zero: 1 ulp
}
_ODD = (13, 7, 11, 5)
_LARGE = 1 << 16  # elements: tensors above are compared with only one of their sizes as it is
_KINDS = {
    "": lambda values: values,
    ", values times 0.001": lambda values: values * 1e-3,
    ", values times 30": lambda values: values * 30,
    ", values from 0.5 to 1.5": lambda values: values.clamp(-2, 2) / 4 + 1,
}

Like = tuple[TensorLike | None, ...]


class Objection(Exception):
    """The kernel may not be used; the text says why."""


class Judge:
    """Compiles or runs the kernel of one case.

    Args:
        case: what is asked.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.kernel = case.kernel.function.load()
        named = case.kernel.reference
        self.reference = None if named is None else named.load()
        self.backward = None if case.kernel.backward is None else case.kernel.backward.load()
        self.floating = tuple(t.dtype.is_floating_point for t in case.tensors if t is not None)

    def compile(self) -> None:
        """Compile every launch for every architecture."""
        for capability in triton_api.ARCHITECTURES:
            for dtype in self._dtypes():
                tensors = list(self._made(self._sizes()[-1], dtype))
                with triton_api.compiling_only(capability) as compiled:
                    values = self._run(self.kernel, tensors, f"for sm_{capability}")
                    if self.backward is not None:
                        grads = [torch.ones_like(value) for value in values]
                        self._run(self.backward, [*grads, *tensors], f"for sm_{capability}")
                if not compiled:
                    raise Objection("it starts no Triton kernel")

    def compare(self) -> None:
        """Run kernel and reference on the same tensors."""
        *others, last = self._sizes()
        for dtype in self._dtypes():
            compared = [self._compare(sizes, dtype, "") for sizes in others]
            compared += [self._compare(last, dtype, kind) for kind in _KINDS]
            if not any(compared):
                raise Objection(f"the script's own ops make nothing finite of {_dtype(dtype)}")

    # --- one comparison --------------------------------------------------------------------------

    def _compare(self, sizes: Like, dtype: torch.dtype, kind: str) -> bool:
        """False where the script's own ops make something that cannot be compared."""
        tensors = list(self._made(sizes, dtype, kind))
        shapes = ", ".join("x".join(map(str, t.shape)) for t in tensors)
        where = f"on {_dtype(dtype)} {shapes}{kind}"
        expected = self._script(*_cloned(tensors))
        if not all(value.isfinite().all() for value in expected if value.is_floating_point()):
            return False
        exact = self._script(*_exact(tensors))
        if self.reference is not None:
            found = self._fenced(self.reference, tensors, where)
            self._equal(found, expected, f"the reference {where}", "the script's own ops", exact)
        found = self._fenced(self.kernel, tensors, where)
        of = "the script's own ops" if self.reference is None else "its reference"
        self._equal(found, expected, f"the kernel {where}", of, exact)
        if any(self.floating):
            self._compare_gradients(tensors, expected, where)
        return True

    def _compare_gradients(
        self, tensors: Sequence[torch.Tensor], expected: Tensors, where: str
    ) -> None:
        grads = [torch.randn(v.shape, generator=_generator()).to(v) for v in expected]
        given = [*(grad.contiguous() for grad in grads), *tensors]
        wanted = gradients(self._script, self.floating, _cloned(given))
        if not all(grad.isfinite().all() for grad in wanted):
            return
        exact = gradients(self._script, self.floating, _exact(given))
        if self.reference is not None:
            with _told(f"the gradient of the reference {where}"):
                found = gradients(self._bound(self.reference), self.floating, _cloned(given))
            who = f"the gradient of the reference {where}"
            self._equal(found, wanted, who, "that of the script's own ops", exact)
        if self.backward is not None:
            found = self._fenced(self.backward, given, where)
            self._equal(found, wanted, f"the backward {where}", "the reference's gradient", exact)

    def _script(self, *tensors: torch.Tensor) -> Tensors:
        values = self.case.script(*tensors)
        return tuple(values[step] for step in self.case.returns)

    def _equal(
        self, found: Tensors, expected: Tensors, who: str, of: str, exact: Tensors | None = None
    ) -> None:
        """Compare all values.

        Args:
            exact: what is expected, in a wider dtype: who computed the expected values in half
                precision may be as far from it as their own rounding, and the kernel as well.
        """
        if len(found) != len(expected):
            raise Objection(f"{who} returns {len(found)} tensors, and {of} {len(expected)}")
        for got, want, wide in zip(found, expected, exact or expected, strict=True):
            if got.shape != want.shape or got.dtype != want.dtype:
                raise Objection(f"{who} returns {_shown(got)}, and {of} {_shown(want)}")
            if not want.is_floating_point():
                if not torch.equal(got, want):
                    raise Objection(f"{who} differs from {of}")
                continue
            rounding = (want.double() - wide.double()).abs().max().item() if want.numel() else 0.0
            self._close(got, want, who, of, rounding)

    def _close(
        self, got: torch.Tensor, want: torch.Tensor, who: str, of: str, rounding: float
    ) -> None:
        if not want.numel():
            return
        off = (got.double() - want.double()).abs().nan_to_num(nan=float("inf"))
        allowed = self._tolerance(want.dtype) * want.double().abs().max().item() + rounding
        if off.max().item() <= allowed:
            return
        place = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
        raise Objection(
            f"{who} differs from {of} by {off.max().item():.3g} at {list(place)}: "
            f"{got[place].item():.6g} instead of {want[place].item():.6g}, allowed {allowed:.2g}"
        )

    def _tolerance(self, dtype: torch.dtype) -> float:
        usual, given = TOLERANCE[dtype], self.case.kernel.tolerance
        if given is None:
            return usual
        return given if dtype in (torch.float32, torch.float64) else max(given, usual)

    # --- calls -----------------------------------------------------------------------------------

    def _bound(self, function: Callable[..., object]) -> Callable[..., Tensors]:
        given = tuple(tensor is not None for tensor in self.case.tensors)
        return Calling(given, self.case.constants).bound(function)

    def _fenced(
        self, function: Callable[..., object], tensors: Sequence[torch.Tensor], where: str
    ) -> Tensors:
        fences = Fences()
        inside = [fences.fenced(t, f"argument {n}") for n, t in enumerate(tensors)]
        found = self._run(function, inside, where, fences)
        if text := fences.broken(found):
            raise Objection(f"the kernel {where}: {text}")
        return found

    def _run(
        self,
        function: Callable[..., object],
        tensors: Sequence[torch.Tensor],
        where: str,
        fences: Fences | None = None,
    ) -> Tensors:
        name = getattr(function, "__name__", "the kernel")
        with _told(f"`{name}` {where}"), fences or nullcontext(), torch.no_grad():
            return self._bound(function)(*tensors)

    # --- made-up tensors -------------------------------------------------------------------------

    def _dtypes(self) -> list[torch.dtype]:
        """Of the floating-point tensors: the site's, and another."""
        dtypes = [t.dtype for t in self.case.tensors if t and t.dtype.is_floating_point]
        site = dtypes[0] if dtypes else torch.float32
        mixed = any(dtype != site for dtype in dtypes)
        other = torch.bfloat16 if site in (torch.float32, torch.float64) else torch.float32
        return [site] if mixed or not dtypes else [site, other]

    def _sizes(self) -> list[Like]:
        """The site's sizes, one by one where they are large; last, odd ones where the ops allow."""
        tensors, odd = self.case.tensors, self._odd()
        if not odd or all(_numel(tensor) <= _LARGE for tensor in tensors):
            found = [tensors]
        else:
            kept = ({s: o for s, o in odd.items() if s != size} for size in odd)
            found = [like for sizes in kept if self._allows(like := _resized(tensors, sizes))]
        return [*found, _resized(tensors, odd)] if odd else found

    def _odd(self) -> dict[int, int]:
        """Every size that the ops do not fix, with a small odd one."""
        sizes = sorted({n for t in self.case.tensors if t for n in t.shape if n > 1}, reverse=True)
        changed: dict[int, int] = {}
        spare = iter(_ODD)
        for size in sizes:
            odd = next(spare, 3)
            if self._allows(_resized(self.case.tensors, {**changed, size: odd})):
                changed[size] = odd
        return changed

    def _allows(self, tensors: Like) -> bool:
        try:
            self.case.script(*self._made(tensors, None))
        except Exception:
            return False
        return True

    def _made(
        self, like: Like, dtype: torch.dtype | None, kind: str = ""
    ) -> Iterator[torch.Tensor]:
        """Random tensors.

        Args:
            dtype: of those that are floating-point; None for their own.
        """
        generator = _generator()
        floating = [t for t in like if t and t.dtype.is_floating_point]
        classes = min((n for t in floating for n in t.shape), default=2)
        ignored = self.case.constants.get("ignore_index")
        for tensor in like:
            if tensor is None:
                continue
            extent = span(tensor.shape, tensor.stride)  # expanded dims share their memory
            if tensor.dtype.is_floating_point:
                flat = _KINDS[kind](torch.randn(extent, generator=generator))
                flat = flat.to(dtype or tensor.dtype)
            else:
                high = 2 if tensor.dtype is torch.bool else max(classes, 2)
                flat = torch.randint(high, (extent,), generator=generator).to(tensor.dtype)
                if ignored is not None and extent:
                    flat[-1] = ignored
            yield flat.to(self.case.device).as_strided(tensor.shape, tensor.stride)


@contextmanager
def _told(who: str) -> Iterator[None]:
    """Whatever a function of the user's raises is an objection; leaving the process is, too."""
    try:
        yield
    except Objection:
        raise
    except BaseException as error:
        raise Objection(f"{who} fails: {triton_api.told(error)}") from error


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _cloned(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors]


def _exact(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """In float64, where they have fewer digits."""
    return [t.double() if t.is_floating_point() else t for t in tensors]


def _resized(like: Like, sizes: dict[int, int]) -> Like:
    """With other sizes, in the same order of strides."""
    found: list[TensorLike | None] = []
    for tensor in like:
        if tensor is None:
            found.append(None)
            continue
        shape = tuple(sizes.get(n, n) for n in tensor.shape)
        order = sorted(range(len(shape)), key=lambda d, t=tensor: (t.stride[d], -d))
        stride, step = [0] * len(shape), 1
        for dim in order:
            stride[dim] = step if tensor.stride[dim] else 0
            step *= shape[dim] if tensor.stride[dim] else 1
        found.append(TensorLike(shape, tuple(stride), tensor.dtype))
    return tuple(found)


def _numel(tensor: TensorLike | None) -> int:
    count = 1
    for size in () if tensor is None else tensor.shape:
        count *= size
    return count


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shown(tensor: torch.Tensor) -> str:
    return f"{_dtype(tensor.dtype)} {'x'.join(map(str, tensor.shape)) or 'scalar'}"


def judged(case: Case, task: str) -> str:
    """Why the kernel may not be used, empty when it may."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        judge = Judge(case)
        with triton_api.first_configuration() if case.device == "cpu" else nullcontext():
            judge.compile() if task == "compile" else judge.compare()
    except (Objection, KernelFault) as objection:
        return str(objection)
    return ""
